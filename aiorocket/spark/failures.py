"""What went wrong in Spark, in one line: a failure of a task arrives as two stack traces with the cause inside."""

from __future__ import annotations

import re

__all__ = ("explain", "is_spark_failure")

#: The last line of a Python trace: an exception's name with its module, or a built-in one, and what it says.
_RAISED = re.compile(r"^(?:[a-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_SHOWN = 500


def is_spark_failure(error: BaseException) -> bool:
    """Whether ``error`` comes from pyspark or from the bridge to its JVM."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def explain(error: BaseException) -> str:
    """The cause of a failure of Spark's: what Python code in a task raised, else the first line of what Spark says."""
    text = str(error)
    ours = [found for found in _RAISED.finditer(text) if found[0].startswith("aiorocket")]
    if ours:
        return ours[-1][2].strip()[:_SHOWN]
    told = [found for found in _RAISED.finditer(text) if not found[1].startswith(("Py4J", "Spark"))]
    if told and "Traceback (most recent call last)" in text:
        return f"{told[-1][1]}: {told[-1][2].strip()}"[:_SHOWN]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:_SHOWN]
