"""A Spark session for tests: ``pytest_plugins = ["aiorocket.spark.pytest_plugin"]`` in the top conftest.py gives the
fixture ``spark``.

One session serves the whole run on two cores, tuned for many small queries: a JVM that compiles quickly instead of
well, and no generated code. Use ``broker_thread()`` of ``aiorocket.testing`` as the broker, and in streams
``trigger(availableNow=True)`` with ``awaitTermination(timeout)`` instead of sleeping.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aiorocket.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("TEST_CONF", "spark", "spark_for_tests")

#: Processor time of a session, 24 small batch queries and 2 streams, measured on two cores: 44 s as Spark is, 26 s with
#: the first compiler only, 24 s with the serial collector too, 23 s and less time a query without generated code.
#: Of a folder of tests the first compiler makes more than the 48 MB it has for that by default: the JVM would throw
#: code away, and compile it again. Spark's classes are read as they are, without a proof that they keep Java's rules: a
#: start and four queries take 24 to 26 s instead of 27. A Java without these two options passes over them.
TEST_CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=128m "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}


@contextmanager
def spark_for_tests(master: str = "local[2]", conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session whose JVM, threads and sockets are gone at the end of the block."""
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    session = spark_session(app_name="tests", master=master, conf={**TEST_CONF, **(conf or {})})
    context = session.sparkContext
    gateway: Any = context._gateway
    # Now, and not in the first test that has a listener or a foreachBatch: it starts a thread that stays.
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # pyspark left it untyped
    try:
        yield session
    finally:
        session.stop()
        with warnings.catch_warnings():
            # py4j leaves its pooled sockets to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            gateway.shutdown()
            process = getattr(gateway, "proc", None)
            if process is not None:
                process.stdin.close()
                process.wait(30)
            SparkContext._gateway = SparkContext._jvm = None
            del context, gateway, session
            gc.collect()


def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """A test that its time limit ended (pytest-timeout raises where the code happens to be) may have left an answer of
    the JVM unread, and pytest keeps the frames: the next test would read it as the answer to its own first call."""
    if call.excinfo is not None and not isinstance(call.excinfo.value, (Exception, pytest.skip.Exception)):
        forget_answer()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest's own, which adds the handlers
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """After a refused query pyspark's loggers of those propagate to nobody. To such loggers pytest adds the handler of
    ``caplog``, and pyspark's give it their own formatter: JSON in ``caplog.text`` of every later test."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        if name in logging.root.manager.loggerDict:
            logging.getLogger(name).propagate = True
    yield


def forget_answer() -> None:
    """Closes this thread's connection to the JVM; the next call opens another. py4j does so itself behind an Exception
    and behind KeyboardInterrupt, not behind others."""
    context: Any = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    if context is not None and context._gateway is not None:
        connection = context._gateway._gateway_client.get_thread_connection()
        if connection is not None:
            connection.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on ``local[2]`` for the whole run."""
    with spark_for_tests() as session:
        yield session
