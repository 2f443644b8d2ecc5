"""What went wrong in Spark, in a line: a failure of a task arrives as two stack traces with the cause inside, and what
our sources and sinks raise is shown with every line that it came through."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, TypeVar, cast

from aiorocket.errors import RocketError
from aiorocket_protocol import ProtocolError

__all__ = ("explain", "is_spark_failure", "raised", "untraced")

F = TypeVar("F", bound=Callable[..., Any])

#: The last line of a Python trace: an exception's name with its module, or a built-in one, and what it says.
_RAISED = re.compile(r"^(?:[a-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
#: Of a Java trace, what each exception in it says; and the condition that Spark gives a name.
_SAID = re.compile(r"^(?:: |Caused by: )[\w.$]+: (.+)$", re.MULTILINE)
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\] .+?(?=\s*SQLSTATE|$)", re.MULTILINE)
_SHOWN = 500


def is_spark_failure(error: BaseException) -> bool:
    """Whether ``error`` comes from pyspark or from the bridge to its JVM."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def explain(error: BaseException) -> str:
    """The cause of a failure of Spark's: what Python code in a task raised, else the first line of what Spark says."""
    text = str(error)
    ours = _ours(text)
    if ours:
        return ours[-1][2].strip()[:_SHOWN]
    told = [found for found in _RAISED.finditer(text) if not found[1].startswith(("Py4J", "Spark"))]
    if told and "Traceback (most recent call last)" in text:
        return f"{told[-1][1]}: {told[-1][2].strip()}"[:_SHOWN]
    if text.startswith("An error occurred while calling"):  # py4j's: which call is of no use to anybody
        return _of_java(text)[:_SHOWN]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:_SHOWN]


def raised(error: BaseException) -> type[BaseException]:
    """The class of our error that a task raised, where ``error`` is Spark's failure of it; else that of ``error``."""
    ours = _ours(str(error)) if is_spark_failure(error) else []
    if ours:
        module, _, name = ours[-1][0].partition(": ")[0].rpartition(".")
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
    return type(error)


def _ours(text: str) -> list[re.Match[str]]:
    return [found for found in _RAISED.finditer(text) if found[0].startswith("aiorocket")]


def _of_java(text: str) -> str:
    said, condition = [each.strip() for each in _SAID.findall(text)], _CONDITION.search(text)
    first = condition[0] if condition else said[0] if said else text.splitlines()[0]
    if said and said[-1] not in first and first not in said[-1]:
        first = f"{first.rstrip('. ')}: {said[-1]}"
    return f"{first}; put the file back from a copy" if "[FAILED_READ_FILE" in first else first


def untraced(function: F) -> F:
    """``function`` with our own errors, whose text says what is wrong and what to do, raised as if they came from here:
    Spark shows a user the whole trace of what it calls, 20 to 40 lines."""

    @wraps(function)
    def calls(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except (RocketError, ProtocolError) as error:
            raise error.with_traceback(None) from None

    @wraps(function)
    def generates(*args: Any, **named: Any) -> Any:
        try:
            yield from function(*args, **named)
        except (RocketError, ProtocolError) as error:
            raise error.with_traceback(None) from None

    return cast(F, generates if isgeneratorfunction(function) else calls)
