"""One run at a time: on a disk by its lock, in an object store by a file that is renewed. What depends on ages goes by
``turns.Turns``, virtual time; only what has to be a process is one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from aiorocket.spark import bridge
from aiorocket.spark.steps import ArchiveConflictError, ClaimStoppedError
from aiorocket.spark.steps.files import claims, owners
from aiorocket.spark.steps.files.claims import ClaimLostError, claim, leave_nothing, look
from aiorocket.spark.steps.files.folder import Folder
from tests.spark.turns import Store, Turns

_ROOT = Path(__file__).parents[2]
_HOLDS = """
import sys
from aiorocket.spark.steps.files.claims import claim
from aiorocket.spark.steps.files.folder import Folder
folder = Folder(sys.argv[1])
folder.make("_claims/table" if sys.argv[2] == "store" else "")
folder._local = sys.argv[2] == "disk"
with claim(folder, "table"):
    print("held", flush=True)
    sys.stdin.read()
"""
#: As a process on another machine writes it.
_ELSEWHERE = b"process 7 on elsewhere\n"


@contextmanager
def holder(path: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the claim until it is killed or its input ends."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "protocol")])}
    command = [sys.executable, "-c", _HOLDS, str(path), kind]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def turns() -> Iterator[Turns]:
    made = Turns()
    yield made
    made.end()


def refused(folder: Folder, turns: Turns | None = None) -> None:
    """By this process."""
    said = f"another run is at work here .process {os.getpid()} on .*; table"
    with pytest.raises(ArchiveConflictError, match=said), claim(folder, "table", pace=turns):
        pass


def needs_proc() -> None:
    if len(owners.own().splitlines()) < 2:
        pytest.skip("nothing is known of dead processes here")


def claims_in(path: Path) -> list[Path]:
    return [each for each in path.glob("_claims/table/*") if not each.name.startswith(".")]


def test_a_disk_locks_until_its_process_is_gone(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    with holder(tmp_path, "disk") as process:
        with (
            pytest.raises(ArchiveConflictError, match=f"another run is at work here .process {process.pid} on .*table"),
            claim(folder, "table"),
        ):
            pass
        with pytest.raises(ArchiveConflictError, match=f"run is at work here .process {process.pid} on .*table"):
            look(folder, "table")
        with claim(folder, "compact"):
            pass
        process.kill()
        process.wait()
        look(folder, "table")
        with claim(folder, "table") as held:
            held.check()
            refused(folder)  # a thread's, of this process
    with claim(folder, "table"):
        pass


def test_a_look_leaves_nothing(tmp_path: Path) -> None:
    look(Folder(str(tmp_path)), "table")
    look(Folder(str(tmp_path / "none")), "table")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_file_was_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner left nothing, when this run had opened the file: the next run would lock another of its name."""
    folder, real = Folder(str(tmp_path)), fcntl.flock
    with monkeypatch.context() as late, ExitStack() as stack:
        stack.enter_context(claim(folder, "table"))

        def flock(file: int, how: int) -> None:
            late.undo()
            leave_nothing(folder, "table")
            assert list(tmp_path.iterdir()) == []
            stack.close()
            real(file, how)

        late.setattr(fcntl, "flock", flock)
        with claim(folder, "table"):
            refused(folder)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of a fork beside threads
def test_a_child_of_a_fork_has_no_part_in_a_lock(tmp_path: Path) -> None:
    """It neither keeps the lock when its parent is done, nor gives it away when it leaves the block itself."""
    folder = Folder(str(tmp_path))
    with ExitStack() as stack:
        held = stack.enter_context(claim(folder, "table"))
        assert isinstance(held, claims._Locked)
        begun, ends = os.pipe(), os.pipe()
        if (child := os.fork()) == 0:
            held.release()
            os.write(begun[1], b"!")
            os.read(ends[0], 1)
            os._exit(0)
        os.read(begun[0], 1)
        refused(folder)
        os.write(ends[1], b"!")
        os.waitpid(child, 0)
        if (child := os.fork()) == 0:
            os.read(ends[0], 1)
            os._exit(0)
        stack.close()
        try:
            with claim(folder, "table"):
                pass
        finally:
            os.write(ends[1], b"!")
            os.waitpid(child, 0)
            for each in (*begun, *ends):
                os.close(each)


def test_a_disk_without_locks_is_as_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: Turns) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = Store(tmp_path, turns, local=True)
    for _ in range(2):
        with claim(folder, "table", pace=turns) as held:
            held.check()
            refused(folder, turns)
    assert not claims_in(tmp_path)


def test_who_reads_a_file_that_is_put_sees_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    """A claim that is just being renewed would be nobody's."""
    folder = Folder(str(tmp_path))
    folder.put("_claims/x/claim", b"old")
    with open(tmp_path / "_claims/x/claim", "rb") as reader:
        folder.put("_claims/x/claim", b"new")
        assert reader.read() == b"old"
    assert folder.read("_claims/x/claim") == b"new" and folder.names("_claims/x") == ["claim"]


@pytest.mark.parametrize("kind", ["disk", "store"])
def test_a_restore_may_have_any_name(tmp_path: Path, turns: Turns, kind: str) -> None:
    def folder() -> Folder:
        return Store(tmp_path, turns) if kind == "store" else Folder(str(tmp_path))

    with claim(folder(), "restore-a/b", pace=turns) as held, claim(folder(), "restore-a", pace=turns):
        held.check()


def test_time_is_real_where_nothing_else_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is renewed, and no more when it is released; whenever this machine gets to it."""
    monkeypatch.setattr(claims, "_RENEW", 0.01)
    renewed, put = threading.Event(), Folder.put

    def seen(folder: Folder, name: str, data: bytes) -> None:
        put(folder, name, data)
        if threading.current_thread() is not threading.main_thread():
            renewed.set()

    monkeypatch.setattr(Folder, "put", seen)
    folder = Folder(str(tmp_path))
    folder.make("_claims/table")
    folder._local = False
    with claim(folder, "table") as held:
        assert renewed.wait(60)
        held.check()
    assert not claims_in(tmp_path)
    bridge.close()


def test_a_store_keeps_others_away_while_the_owner_lives(tmp_path: Path, turns: Turns) -> None:
    folder = Store(tmp_path, turns)
    with claim(folder, "table", pace=turns) as held:
        for _ in range(2):
            began = turns.now()
            refused(folder, turns)
            assert turns.now() - began <= 16
        turns.sleep(1000)  # it is renewed, so it is trusted for longer than once
        held.check()
        refused(folder, turns)
        assert len(claims_in(tmp_path)) == 1
    assert not claims_in(tmp_path)
    with claim(folder, "table", pace=turns) as held:
        [own] = claims_in(tmp_path)
        own.unlink()  # as another run does that takes it for dead
        with pytest.raises(ArchiveConflictError, match="another run may be at work"):
            held.check()
        turns.sleep(100)
        assert not claims_in(tmp_path)  # and it does not come back


def test_an_owner_that_cannot_renew_writes_no_more(tmp_path: Path, turns: Turns) -> None:
    folder = Store(tmp_path, turns)
    with claim(folder, "table", pace=turns) as held:
        folder.before_put = away
        turns.sleep(59)
        held.check()
        turns.sleep(2)
        with pytest.raises(ClaimLostError, match="was not renewed for 60 s"):
            held.check()
        folder.before_put = lambda: None
        turns.sleep(60)
        with pytest.raises(ClaimLostError, match="was not renewed for 60 s"):
            held.check()  # though the store is back


def away() -> None:
    raise OSError("the store is away")


def test_an_owner_that_was_starved_is_taken_over_and_knows_it(tmp_path: Path, turns: Turns) -> None:
    folder, told = Store(tmp_path, turns), list[str]()
    with claim(folder, "table", pace=turns) as held:
        [own] = claims_in(tmp_path)
        folder.before_put = lambda: turns.sleep(10_000)  # its renewal is on the way all that time
        turns.sleep(40)
        with claim(Store(tmp_path, turns), "table", pace=turns, told=told.append) as other:
            assert turns.now() == 92 and not own.exists()
            with pytest.raises(ArchiveConflictError, match="another run may be at work"):
                held.check()
            turns.sleep(10_000)
            other.check()
    assert told == [
        f"{tmp_path}: {owners.named(owners.own())} has a claim here that was renewed 40 s ago: waiting 50 s at most to "
        "see whether it lives"
    ]


def test_a_renewal_that_comes_too_late_brings_no_claim_back(tmp_path: Path, turns: Turns) -> None:
    """The store was away for long, and the renewal that got through was on the way for long."""
    folder = Store(tmp_path, turns)
    with claim(folder, "table", pace=turns) as held:
        [own] = claims_in(tmp_path)
        folder.before_put = away
        turns.sleep(50)
        folder.before_put = lambda: turns.sleep(60)  # it begins at 60
        with claim(Store(tmp_path, turns), "table", pace=turns) as other:
            assert turns.now() < 100 and not own.exists()
            turns.sleep(60)
            assert own.exists()
            with pytest.raises(ArchiveConflictError, match="another run may be at work"):
                held.check()
            other.check()


def test_what_another_machine_left_is_taken_over_when_it_is_old(tmp_path: Path, turns: Turns) -> None:
    folder, told = Store(tmp_path, turns), list[str]()
    folder.put("_claims/table/0123", _ELSEWHERE)
    turns.sleep(30)
    with claim(folder, "table", pace=turns, told=told.append) as held:
        held.check()
        assert turns.now() == 92 and len(claims_in(tmp_path)) == 1
    assert told == [
        f"{tmp_path}: process 7 on elsewhere has a claim here that was renewed 30 s ago: waiting 60 s at most to see "
        "whether it lives"
    ]
    with claim(folder, "table", pace=turns, told=told.append):
        assert turns.now() == 92 and len(told) == 1  # nobody to wait for


def test_a_wait_ends_when_it_is_told_to(tmp_path: Path, turns: Turns) -> None:
    folder = Store(tmp_path, turns)
    folder.put("_claims/table/0123", _ELSEWHERE)
    said = "told to end while it waited for the claim of process 7 on elsewhere: nothing was changed"
    with (
        pytest.raises(ClaimStoppedError, match=said),
        claim(folder, "table", pace=turns, stop=lambda: turns.now() >= 10),
    ):
        raise AssertionError("it was taken")
    assert turns.now() == 10 and [each.name for each in claims_in(tmp_path)] == ["0123"]


def test_what_a_killed_process_held_in_a_store_is_taken_over(tmp_path: Path, turns: Turns) -> None:
    """At once but for what it may have sent to the store: this machine knows that it is gone."""
    needs_proc()
    told: list[str] = []
    with holder(tmp_path, "store") as process:
        process.kill()
        process.wait()
    [left] = claims_in(tmp_path)
    turns.date(left)
    with claim(Store(tmp_path, turns), "table", pace=turns, told=told.append) as held:
        held.check()
        assert (turns.now(), left.exists()) == (7, False)
    assert len(told) == 1 and f"process {process.pid} on " in told[0] and "has died: going on in 5 s" in told[0]


def test_a_process_is_dead_only_when_that_is_certain() -> None:
    needs_proc()
    assert not owners.is_dead(owners.own())
    said, about = owners.own().decode().splitlines()
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    here, pid, began = json.loads(about)
    assert pid == os.getpid()

    def dead(*about: object) -> bool:
        return owners.is_dead(f"{said}\n{json.dumps(about)}\n".encode())

    assert dead(here, ended.pid, began) and dead(here, pid, began - 1)  # gone; its number is another's now
    for number in range(len(here)):  # another machine, boot, container or time
        assert not dead([*here[:number], "other", *here[number + 1 :]], ended.pid, began)
    for text in (b"", b"process 1 on x", _ELSEWHERE, f"{said}\n[]\n".encode(), f"{said}\n{{\n".encode(), b"\n\xff\n"):
        assert not owners.is_dead(text)
    for wrong in (0, -1, 1 << 40, "1", None):
        assert not dead(here, wrong, began)


def test_nothing_is_certain_where_the_system_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = owners.own()
    monkeypatch.setattr(owners, "_PROC", tmp_path)
    assert owners.own() == own.splitlines(keepends=True)[0] and not owners.is_dead(own)
    (tmp_path / "self").symlink_to("1")  # of other processes than those that kill knows
    assert not owners.is_dead(own)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of a fork beside threads
def test_a_child_of_a_fork_does_not_give_a_claim_away(tmp_path: Path, turns: Turns) -> None:
    with claim(Store(tmp_path, turns), "table", pace=turns) as held:
        assert isinstance(held, claims._Renewed)
        if (child := os.fork()) == 0:
            held.release()
            os._exit(0)
        os.waitpid(child, 0)
        held.check()


def test_of_many_at_once_one_holds_a_disk(tmp_path: Path) -> None:
    """One at most at any time, and of those that began together one."""
    inside, most, begun = 0, 0, threading.Lock()
    together, refusals, over = threading.Barrier(4), list[str](), threading.Event()

    def attempt() -> None:
        nonlocal inside, most
        together.wait()
        try:
            with claim(Folder(str(tmp_path)), "table") as held:
                with begun:
                    inside += 1
                    most = max(most, inside)
                over.wait(60)
                held.check()
                with begun:
                    inside -= 1
        except ArchiveConflictError as error:
            with begun:
                refusals.append(str(error))
                if len(refusals) == 3:
                    over.set()

    with ExitStack() as stack:
        for _ in range(4):
            thread = threading.Thread(target=attempt)
            thread.start()
            stack.callback(thread.join)
    assert over.is_set() and len(refusals) == 3 and most == 1


@pytest.mark.seeds(20)
def test_of_many_at_once_one_holds_a_store(tmp_path: Path, seed: int) -> None:
    """Whatever the order in which they get to the store, and whether or not a dead one's claim is there."""
    turns, told = Turns(seed), list[str]()

    def attempt() -> None:
        try:
            with claim(Store(tmp_path, turns, slow=0.5), "table", pace=turns) as held:
                told.append("in")
                turns.sleep(200)
                held.check()
                told.append("out")
        except ArchiveConflictError:
            told.append("refused")

    if seed % 2:
        Store(tmp_path, turns).put("_claims/table/8", _ELSEWHERE)
    try:
        turns.run(*[attempt] * 4)
    finally:
        turns.end()
    assert sorted(told) == ["in", "out", "refused", "refused", "refused"]
    assert not claims_in(tmp_path)
