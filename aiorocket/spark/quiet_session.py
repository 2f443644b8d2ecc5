"""A session for one piece of work: the one there is, or one that ends with it and says no more than errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from aiorocket.spark.session import spark_session

__all__ = ("session_for",)

#: What pyspark logs a refused expression with: the error that it raises too, and 5,000 characters of Java's stack.
_TWICE = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: For work of seconds: the JVM compiles quickly instead of well, and tasks after a shuffle are few.
_SHORT = ("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", {"spark.sql.shuffle.partitions": "4"})
#: Seconds that an interrupted JVM has to clear away its files.
_PATIENCE = 30.0


@contextmanager
def session_for(
    app_name: str, master: str, conf: Mapping[str, str] | None = None, *, short: bool = False
) -> Iterator[SparkSession]:
    """A session, stopped at the end unless it was there before (``conf`` and ``master`` then say nothing). ``short``
    is for work of seconds. ``conf`` wins over what this sets. KeyboardInterrupt ends its JVM."""
    for name in _TWICE:
        PySparkLogger.getLogger(name).disabled = True
    before = SparkSession.getActiveSession()
    if before is not None:
        yield before
        return
    logging = Path(__file__).with_name("log4j2.properties").as_uri()
    options = f'"-Dlog4j2.configurationFile={logging}"' + (f" {_SHORT[0]}" if short else "")
    settings = {_JAVA_OPTIONS: options, **(_SHORT[1] if short else {}), **(conf or {})}
    spark = spark_session(app_name=app_name, master=master, conf=settings)
    stop = spark.stop
    try:
        yield spark
    except KeyboardInterrupt:
        stop = partial(_end, spark)
        raise
    finally:
        # Who sends SIGTERM to the whole group of processes ends the JVM first, and there is nothing left to stop.
        with suppress(Py4JNetworkError):
            stop()


def _end(spark: SparkSession) -> None:
    """Behind a call that was broken off the JVM may not answer another one. It also ends in good order with its
    standard input, as it does when this process is killed."""
    context: Any = spark.sparkContext
    process = getattr(context._gateway, "proc", None)
    if process is None:  # spark-submit's, which ends behind us
        return
    if context._accumulatorServer is not None:  # a thread that reads from the JVM, and tells of its end with a trace
        context._accumulatorServer.handle_error = lambda *_: None
    process.stdin.close()
    with suppress(TimeoutExpired):
        process.wait(_PATIENCE)
    context._jsc = SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
