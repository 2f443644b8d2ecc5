"""A call into the JVM that was broken off leaves no answer behind for the next one."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from aiorocket.spark.pytest_plugin import forget_answer, pytest_runtest_makereport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LimitError(BaseException):
    """As pytest-timeout's: no Exception, so py4j passes it on and keeps the connection."""


def break_off(java: Any) -> BaseException:
    """A call that takes a second, ended by a signal after a part of it."""

    def end(*_: object) -> None:
        raise LimitError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        java.Thread.sleep(1000)
    except LimitError as error:
        return error  # with its frames, as pytest keeps it
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    raise AssertionError("the call ended in time")


def test_the_next_call_gets_its_own_answer(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
    kept = break_off(java)
    forget_answer()
    assert [java.Integer.parseInt(text) for text in ("5", "6")] == [5, 6]
    assert isinstance(kept, LimitError)


def test_a_test_that_ran_out_of_time_leaves_none(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]

    def limited() -> None:
        raise break_off(java)

    call = pytest.CallInfo.from_call(limited, "call")
    pytest_runtest_makereport(call)
    assert java.Integer.parseInt("7") == 7
