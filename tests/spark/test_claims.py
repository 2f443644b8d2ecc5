"""One run at a time: on a disk by its lock, in an object store by a file that is renewed."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from aiorocket.spark import bridge
from aiorocket.spark.steps import ArchiveConflictError, claims
from aiorocket.spark.steps.claims import claim
from aiorocket.spark.steps.folder import Folder

_ROOT = Path(__file__).parents[2]
_HOLDS = """
import sys
from aiorocket.spark.steps.claims import claim
from aiorocket.spark.steps.folder import Folder
folder = Folder(sys.argv[1])
folder.make("_claims/table" if sys.argv[2] == "store" else "")
folder._local = sys.argv[2] == "disk"
with claim(folder, "table"):
    print("held", flush=True)
    sys.stdin.read()
"""


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


def store(path: Path) -> Folder:
    """As an object store: without locks and links."""
    folder = Folder(str(path))
    folder.make("_claims/table")
    folder._local = False
    return folder


def refuse(folder: Folder, text: str) -> None:
    with pytest.raises(ArchiveConflictError, match=f"another run is at work here .{text}"), claim(folder, "table"):
        pass


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, seconds in (("_RENEW", 0.1), ("_TRUST", 1.0), ("_TAKE", 1.5), ("_LOOK", 0.02)):
        monkeypatch.setattr(claims, name, seconds)
    yield
    bridge.close()


def test_a_disk_locks_until_its_process_is_gone(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    with holder(tmp_path, "disk") as process:
        with (
            pytest.raises(ArchiveConflictError, match=f"another run is at work here .process {process.pid} on .*table"),
            claim(folder, "table"),
        ):
            pass
        with claim(folder, "compact"):
            pass
        process.kill()
        process.wait()
        with claim(folder, "table") as held:
            held.check()
            refuse(folder, f"process {os.getpid()}")  # a thread's, of this process
    with claim(folder, "table"):
        pass


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
        refuse(folder, f"process {os.getpid()}")
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


def test_a_disk_without_locks_is_as_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(claims, "_RENEW", 0.1)
    monkeypatch.setattr(claims, "_LOOK", 0.02)
    folder = Folder(str(tmp_path))
    for _ in range(2):
        with claim(folder, "table") as held:
            held.check()
            refuse(folder, f"process {os.getpid()}")
    bridge.close()


@pytest.mark.parametrize("kind", ["disk", "store"])
def test_a_restore_may_have_any_name(tmp_path: Path, kind: str) -> None:
    folder = Folder(str(tmp_path))
    folder.make("_claims/restore-a%2Fb")
    folder._local = kind == "disk"
    with claim(folder, "restore-a/b") as held, claim(Folder(str(tmp_path)), "restore-a"):
        held.check()
    bridge.close()


@pytest.mark.usefixtures("quick")
def test_a_renewal_that_comes_too_late_brings_no_claim_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store was away for long, and the renewal that got through was on the way for long."""
    taken_over, put, began = threading.Event(), Folder.put, time.monotonic()

    def late(self: Folder, name: str, data: bytes) -> None:
        if threading.current_thread() is not threading.main_thread():
            if time.monotonic() - began < 0.8:
                raise OSError("the store is away")
            assert taken_over.wait(20)
        put(self, name, data)

    with claim(store(tmp_path), "table") as held:
        [own] = tmp_path.glob("_claims/table/*")
        monkeypatch.setattr(Folder, "put", late)
        with claim(store(tmp_path), "table") as other:
            assert not own.exists()
            taken_over.set()
            assert isinstance(held, claims._Renewed)
            with held._busy:  # until it got through
                assert own.exists()
            with pytest.raises(ArchiveConflictError, match="another run may be at work"):
                held.check()
            other.check()


@pytest.mark.usefixtures("quick")
def test_a_store_keeps_others_away_while_the_owner_lives(tmp_path: Path) -> None:
    folder = store(tmp_path)
    with claim(folder, "table") as held:
        for _ in range(2):
            refuse(store(tmp_path), f"process {os.getpid()}")
        time.sleep(1.2)  # it is renewed, so it is trusted for longer than once
        held.check()
        assert len(list(tmp_path.glob("_claims/table/*"))) == 1
    assert not list(tmp_path.glob("_claims/table/*"))
    with claim(folder, "table") as held:
        [own] = tmp_path.glob("_claims/table/*")
        own.unlink()  # as another run does that takes it for dead
        with pytest.raises(ArchiveConflictError, match="another run may be at work"):
            held.check()
        time.sleep(0.3)
        assert not list(tmp_path.glob("_claims/table/*"))  # and it does not come back


@pytest.mark.usefixtures("quick")
def test_what_a_killed_process_held_in_a_store_is_taken_over(tmp_path: Path) -> None:
    with holder(tmp_path, "store") as process:
        process.kill()
        process.wait()
    [left] = tmp_path.glob("_claims/table/*")
    with claim(store(tmp_path), "table") as held:
        held.check()
        assert not left.exists()


@pytest.mark.usefixtures("quick")
def test_an_owner_that_cannot_renew_writes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with claim(store(tmp_path), "table") as held:
        monkeypatch.setattr(Folder, "put", lambda *_: (_ for _ in ()).throw(OSError("the store is away")))
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                held.check()
            except ArchiveConflictError:
                break
            time.sleep(0.02)
        else:
            raise AssertionError("it trusts an old claim")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["disk", "store"])
def test_of_many_at_once_one_holds(tmp_path: Path, kind: str) -> None:
    """One at most at any time, and of those that began together one."""
    inside, most, begun = 0, 0, threading.Lock()
    together, refused, over = threading.Barrier(4), list[str](), threading.Event()

    def attempt() -> None:
        nonlocal inside, most
        together.wait()
        try:
            with claim(store(tmp_path) if kind == "store" else Folder(str(tmp_path)), "table") as held:
                with begun:
                    inside += 1
                    most = max(most, inside)
                over.wait(20)
                held.check()
                with begun:
                    inside -= 1
        except ArchiveConflictError as error:
            with begun:
                refused.append(str(error))
                if len(refused) == 3:
                    over.set()

    with ExitStack() as stack:
        for _ in range(4):
            thread = threading.Thread(target=attempt)
            thread.start()
            stack.callback(thread.join)
    assert over.is_set() and len(refused) == 3 and most == 1
