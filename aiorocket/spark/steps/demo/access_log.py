"""Lines of web servers' access logs to columns: the common and the combined format, and the response time behind it.

The combined format is what Apache and nginx write unless told otherwise; a number with a point behind it is taken as
the seconds of the response (nginx: ``$request_time``). What comes after that is ignored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from aiorocket.spark.steps.functions.decode import decode

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from aiorocket.spark.steps.functions.decode import Decoded

__all__ = ("COLUMNS", "PATTERN", "access_log")

_QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
#: Groups: client, user, time, request, status, bytes, referrer, agent, seconds. Both Java and Python's ``re`` take it.
PATTERN = (
    r"^(\S+) \S+ (\S.*?) \[(\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\] "
    + _QUOTED
    + r" (\d{3}) (\d+|-)(?: "
    + _QUOTED
    + " "
    + _QUOTED
    + r")?(?: (\d+\.\d+))?(?:\s.*)?$"
)
_GROUPS = 9
#: Between the groups of a line that fitted; a line that has it itself is damaged.
_BETWEEN = "\x01"
#: What the decoded table has besides a row's place: names and types.
COLUMNS = {
    "time": "TIMESTAMP", "client": "STRING", "user": "STRING", "method": "STRING", "path": "STRING", "query": "STRING",
    "protocol": "STRING", "status": "INT", "statusClass": "STRING", "bytes": "LONG", "referrer": "STRING",
    "agent": "STRING", "seconds": "DOUBLE",
}  # fmt: skip


def access_log(df: DataFrame) -> Decoded:
    """``body`` (one line each) to the struct ``value`` with the fields ``COLUMNS``. What is not UTF-8, not such a line,
    or has no possible time goes to the quarantine. The result is as of ``decode``."""
    text = decode(df, "text", into="_line", reason="_bad")
    joined = _BETWEEN.join(f"${number + 1}" for number in range(_GROUPS))
    parts = F.split(F.regexp_replace("_line", PATTERN, joined), _BETWEEN)
    rows = text.rows.withColumn("_parts", parts)
    part = [F.get("_parts", F.lit(number)) for number in range(_GROUPS)]
    request = F.split(part[3], " ")
    whole = F.size(request) == 3
    target = F.when(whole, request[1]).otherwise(part[3])
    status = part[4].try_cast("int")
    at = F.try_to_timestamp(part[2], F.lit("dd/MMM/yyyy:HH:mm:ss Z"))
    values = {
        "time": at,
        "client": part[0],
        "user": _given(part[1]),
        "method": F.when(whole, request[0]),
        "path": F.substring_index(target, "?", 1),
        "query": F.nullif(F.regexp_extract(target, r"\?(.*)$", 1), F.lit("")),
        "protocol": F.when(whole, request[2]),
        "status": status,
        "statusClass": F.concat(F.substring(part[4], 1, 1), F.lit("xx")),
        "bytes": F.coalesce(part[5].try_cast("long"), F.lit(0)),
        "referrer": _given(part[6]),
        "agent": _given(part[7]),
        "seconds": part[8].try_cast("double"),
    }
    bad = (
        F.when(F.col("_bad").isNotNull(), F.col("_bad"))
        .when(F.size("_parts") != _GROUPS, "not a line of an access log")
        .when(at.isNull(), "no such time")
    )
    rows = rows.withColumn("reason", bad)
    fields = F.struct(*[value.cast(COLUMNS[name]).alias(name) for name, value in values.items()])
    rows = rows.withColumn("value", F.when(F.col("reason").isNull(), fields)).drop("_line", "_bad", "_parts")
    return replace(text, rows=rows, into="value", reason="reason")


def _given(value: Column) -> Column:
    """Servers write ``-`` for nothing."""
    return F.nullif(F.nullif(value, F.lit("-")), F.lit(""))
