"""What the analysing steps know about rows: their order of arrival, their business key, and whether they have the
columns a step reads."""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from aiorocket.errors import UsageError

__all__ = ("ARRIVAL", "QUEUE", "arrival", "business_key", "check_interval", "interval", "millis_between", "need")

#: The columns that name a queue.
QUEUE = ("topic", "brokerName", "queueId")
#: Rows sorted by these are in the order in which brokers stored them; the last three decide between equal times.
ARRIVAL = ("storeTimestamp", "brokerName", "queueId", "queueOffset")

_INTERVAL = re.compile(r"\s*([0-9]+)\s+(?:microsecond|millisecond|second|minute|hour|day|week)s?\s*", re.IGNORECASE)


def need(df: DataFrame, step: str, *names: str) -> None:
    """UsageError unless ``df`` has the columns ``names``."""
    missing = [name for name in names if name not in df.columns]
    if missing:
        raise UsageError(
            f"{step} needs the columns {', '.join(missing)}; the DataFrame has {', '.join(df.columns)}. Read them with "
            f"the source (its option columns must not leave them out) or rename yours"
        )


def arrival() -> list[Column]:
    """The order of arrival, for ``orderBy``."""
    return [F.col(name) for name in ARRIVAL]


def business_key(df: DataFrame, key: str | Column | None = None) -> Column:
    """The key of a row as text, null when it has none. ``key`` is a column, a SQL expression, or None for ``keys``
    (several keys count as one, joined by blanks, as RocketMQ stores them)."""
    if isinstance(key, Column):
        return key.cast("string")
    if key is not None:
        return F.expr(key).cast("string")
    need(df, "a business key", "keys")
    keys = F.col("keys")
    if isinstance(df.schema["keys"].dataType, ArrayType):
        keys = F.concat_ws(" ", keys)
    return F.nullif(F.trim(keys), F.lit(""))


def check_interval(text: str, name: str, *, least: int = 0) -> None:
    """UsageError, which names the option ``name``, for what is no length of time such as ``10 minutes``, or none of
    ``least`` and more."""
    found = _INTERVAL.fullmatch(text) if isinstance(text, str) else None
    if found is None or int(found[1]) < least:
        more = f"; {least} or more" if found else ""
        raise UsageError(f"{name}={text!r}: a number and a unit, such as '30 seconds', '10 minutes' or '1 hour'{more}")


def interval(text: str, name: str) -> Column:
    """A length of time such as ``10 minutes`` as a column. UsageError as of ``check_interval``."""
    check_interval(text, name)
    return F.expr(f"INTERVAL {text}")


def millis_between(earlier: str, later: str) -> Column:
    """From ``earlier`` to ``later`` in milliseconds, as a double."""
    return (F.unix_micros(F.col(later)) - F.unix_micros(F.col(earlier))) / F.lit(1000.0)
