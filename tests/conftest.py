"""How tests share the cores, loops for them, the check that none leaves a task, thread or socket behind, and what to
type to see a failing seed again."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import socket
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import pytest_asyncio
from hypothesis.internal.conjecture import providers

from aiorocket.config import ProducerConfig, RemotingConfig
from aiorocket.runtime import new_event_loop
from aiorocket.testing import SimLoop
from tests.ports import claims

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

#: Of 200 seeds of each scenario, and of 100 examples of each property, a plain run takes a tenth, ``.ci/run`` all.
SEEDS = int(os.environ.get("AIOROCKET_SEEDS", "20"))

# No test is a measurement: an example that is slow on a busy machine is no failure. What hangs meets pytest's timeout.
hypothesis.settings.register_profile("aiorocket", deadline=None, max_examples=max(1, SEEDS // 2))
hypothesis.settings.load_profile("aiorocket")
# Of twenty values it draws one is a number or a text of our modules. To find them it parses all of these, in a fresh
# clone for 4 s in each worker: too much for ten examples of each property.
if SEEDS < 200:
    providers._get_local_constants = lambda: providers._local_constants

#: What each of these shares is dear (a JVM, the syntax trees of all modules): one worker runs it all. Files of other
#: folders go to any worker that is free, as do Spark's with what takes long, which mostly has a JVM of its own.
_ONE_WORKER = {"tests/spark", "tests/architecture"}
#: Minutes of seeds that share nothing: who is free takes the next.
_APART = {"tests/harness/test_chaos.py", "tests/harness/test_simulated.py"}
#: Each worker of interop has Apache's servers of its own: with those of its tests 5 GB in all. One waits
#: for them so often that three share two cores, and fewer leave them idle.
_INTEROP_WORKERS = 3

#: Long ones begin, so that no worker is left with one at the end.
_FIRST = ("interop", "harness", "spark", "cli", "apps", "sim", "storage", "remoting", "architecture")

#: ``-m quick``: rules, parts and stories; no clusters for hours, processes or Spark, and not these long files.
_QUICK = {
    "architecture", "broker", "client", "contract", "integration", "nameserver", "protocol", "remoting", "runtime",
    "storage",
}  # fmt: skip
_LONG = {
    "broker/test_life.py", "client/test_cancellation.py", "client/test_sim_client.py", "integration/test_consume.py",
    "integration/test_transactions.py", "remoting/test_tls.py", "storage/test_faults.py", "storage/test_golden.py",
    "storage/test_retention.py",
}  # fmt: skip

#: Minutes, processes, a JDK and Maven: run when ``-m`` names them, or one of these variables is 1.
_ASKED_FOR = {"interop": ("AIOROCKET_INTEROP", "AIOROCKET_REQUIRE_INTEROP"), "harness": ("AIOROCKET_HARNESS",)}

_PATIENCE = 100  # times 10 ms for closing sockets and ending threads to be gone


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One more than there are cores when folders run: tests wait for disks, processes and a JVM for a third of their
    time. One for each core where a mark asks for more; none, which is this process alone, for single files and ``-s``.
    """
    folders = all(Path(name).is_dir() for name in config.args)
    if not folders or config.option.capture == "no":
        return 0
    cores = os.cpu_count() or 1
    if _asked_for("interop", config):
        return _INTEROP_WORKERS
    return None if config.option.markexpr else cores + 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadFileScheduling

    together = _ONE_WORKER - {"tests/spark"} if config.option.markexpr == "spark_long" else _ONE_WORKER

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            folder = file.rpartition("/")[0]
            return nodeid if file in _APART else folder if folder in together else file

    config.option.loadscopereorder = False  # it would begin with the files that have the most tests
    return Files(config, log)


def _asked_for(name: str, config: pytest.Config) -> bool:
    named = name in config.option.markexpr.replace(f"not {name}", "")
    return named or any(os.environ.get(variable) == "1" for variable in _ASKED_FOR[name])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders of which nothing is run are not even read: of interop and the harness that takes each worker seconds, as
    do Spark's imports."""
    name, unread = collection_path.name, False
    if collection_path.parent == Path(__file__).parent and collection_path.is_dir():
        quick = config.option.markexpr == "quick"
        unread = name not in _QUICK if quick else name in _ASKED_FOR and not _asked_for(name, config)
    return unread or None


@pytest.hookimpl(tryfirst=True)  # before interop looks for what it needs
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, variables in _ASKED_FOR.items():
        if item.get_closest_marker(name) and not _asked_for(name, item.config):
            pytest.skip(f"{name} is run by .ci/run; by hand: -m {name} or {variables[0]}=1")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("seeds")
    if mark is not None:
        metafunc.parametrize("seed", range(max(1, round(mark.args[0] * SEEDS / 200))))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder, file = item.path.parent.name, item.path.name
        if folder in _QUICK and f"{folder}/{file}" not in _LONG and item.get_closest_marker("crash") is None:
            item.add_marker(pytest.mark.quick)
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[int, Path]:
    folder = item.path.parent.name
    return _FIRST.index(folder) if folder in _FIRST else len(_FIRST), item.path


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Workers begin to read the folders at their beginning, their end and in the midst: in a fresh clone each compiles
    a part of the tests, and takes the others from its neighbours. It costs 20 ms a file."""
    report = yield
    worker = getattr(collector.config, "workerinput", {"workerid": "gw0"})["workerid"]
    if isinstance(collector, pytest.Directory):
        order, place = report.result, int(worker.removeprefix("gw")) % 3
        if place == 1:
            order.reverse()
        elif place == 2:
            order[:] = order[len(order) // 2 :] + order[: len(order) // 2]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Each worker makes all tests and the modules they are in, and what is made stays: the garbage collector would look
    through it again and again, for a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    # What stays to the end need not be looked at again by every full collection: tests ask for hundreds of them.
    # Not even once, which takes a second: a quarter of it is garbage, and stays.
    gc.freeze()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, as users run it; the contract suites run on every loop we support."""
    if "contract" in item.path.parts:
        return {"uvloop": new_event_loop, "stdlib": asyncio.new_event_loop, "sim": SimLoop}
    return {"uvloop": new_event_loop}


def _threads() -> set[threading.Thread]:
    # A default executor's threads belong to the loop and end with it.
    return {thread for thread in threading.enumerate() if not thread.name.startswith(("asyncio_", "uvloop_"))}


def _sockets() -> dict[str, str]:
    """This process's stream sockets of the internet (a loop's own wake-up pair is none), as text by inode. Empty but on
    Linux. A datagram is the resolver's: looking up a name goes on in a thread of libuv's that nobody can stop."""
    found = {}
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for name in names:
        try:
            inode = os.readlink(f"/proc/self/fd/{name}")
            if inode.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as opened:
                    if opened.family in (socket.AF_INET, socket.AF_INET6) and opened.type == socket.SOCK_STREAM:
                        found[inode] = str(opened)
        except OSError:  # closed since, as the listing's own descriptor is
            continue
    return {inode: text for inode, text in found.items() if inode not in claims()}


@pytest_asyncio.fixture
async def nothing_left_on_the_loop() -> AsyncIterator[None]:
    sockets, threads = _sockets(), _threads()
    before = asyncio.all_tasks()
    yield
    for _ in range(_PATIENCE):
        tasks = asyncio.all_tasks() - before - {asyncio.current_task()}
        opened = [text for inode, text in _sockets().items() if inode not in sockets]
        left = [*opened, *(_threads() - threads), *tasks]
        if not left:
            return
        await asyncio.sleep(0.01)
    # As an error, uvloop's warning about an unclosed server makes its own close() hang; ours says the same.
    warnings.simplefilter("ignore", ResourceWarning)
    raise AssertionError(f"the test left behind: {left!r}")


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What gives up after 3 s by default waits for a minute in real time: a machine may have other things to do. Of the
    plain functions only those of these folders run in real time, with loops of their own."""
    function: Any = getattr(request, "function", None)
    if request.path.parent.name in ("cli", "spark") or (function is not None and inspect.iscoroutinefunction(function)):
        for config, name in (
            (RemotingConfig, "connect_timeout"), (RemotingConfig, "request_timeout"), (ProducerConfig, "send_timeout"),
        ):  # fmt: skip
            defaults: Any = config.__init__.__kwdefaults__
            monkeypatch.setitem(defaults, name, 60.0)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test may leave a task, a thread or a socket."""
    function: Any = getattr(request, "function", None)
    if function is not None and inspect.iscoroutinefunction(function):
        request.getfixturevalue("nothing_left_on_the_loop")
        yield
        return
    threads = _threads()
    yield
    left = _threads() - threads
    for thread in left:
        thread.join(1)
    assert not {thread for thread in left if thread.is_alive()}, "the test left threads behind"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A failing seed says what to type to see it again."""
    report = yield
    callspec = getattr(item, "callspec", None)
    if report.failed and callspec is not None and "seed" in callspec.params:
        seeds = os.environ.get("AIOROCKET_SEEDS")
        mark = "".join(f" -m {name}" for name in ("interop", "harness") if item.get_closest_marker(name))
        command = f"python -m pytest{mark} '{item.nodeid}'"
        report.sections.append(("replay", f"AIOROCKET_SEEDS={seeds} {command}" if seeds else command))
    return report
