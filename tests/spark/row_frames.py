"""Rows of the source's schema made by hand, for steps that need no broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

#: When the rows of these tests begin.
BEGAN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

SCHEMA = (
    "topic STRING, brokerName STRING, queueId INT, queueOffset LONG, msgId STRING, offsetMsgId STRING, keys STRING, "
    "tags STRING, body BINARY, properties MAP<STRING, STRING>, bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP, "
    "bornHost STRING, storeHost STRING, reconsumeTimes INT"
)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def row(
    offset: int,
    *,
    topic: str = "orders",
    broker: str = "broker-a",
    queue: int = 0,
    msg_id: str | None = None,
    keys: str | None = None,
    tags: str | None = None,
    body: bytes | None = b"x",
    properties: Mapping[str, str] | None = None,
    born: float | None = None,
    stored: float | None = None,
    reconsume_times: int = 0,
) -> tuple[Any, ...]:
    """One row; ``born`` and ``stored`` are seconds after BEGAN, by default as many as the offset says."""
    place = f"{topic}/{broker}/{queue}/{offset}"
    stored = float(offset) if stored is None else stored
    born = stored if born is None else born
    return (
        topic, broker, queue, offset, msg_id if msg_id is not None else f"id-{place}", f"at-{place}", keys, tags, body,
        dict(properties or {}), at(born), at(stored), "10.0.0.1:5000", "10.0.0.2:10911", reconsume_times,
    )  # fmt: skip


def frame(spark: SparkSession, rows: Iterable[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(list(rows), SCHEMA)


def shuffled(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Not in their order, and always in the same other one."""
    rows = list(rows)
    return rows[::-2] + rows[-2::-2]
