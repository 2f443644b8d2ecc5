"""What a group gave up, sorted: which messages of which topic, why, how long ago, and what they look like.

Rows are those of ``%DLQ%group`` (``topic_rows(spark, name_server, "%DLQ%billing")``); rows of other topics are passed
over. Older brokers made dead-letter topics with permission 2, write only, and the source says then that the topic may
not be read: ``make_readable`` gives the permission 6 that newer brokers begin with (as ``mqadmin updateTopicPerm``).

RocketMQ does not store why a listener failed. aiorocket's consumers do (DLQ_ERROR and DLQ_REASON, shown as
``KeyError: 'id'``); if yours put it into a property before they give up (that means: they send the copy themselves),
name it. Else the cause says how often the message had failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aiorocket import Admin, DeadLetter
from aiorocket.errors import UsageError
from aiorocket.spark import bridge
from aiorocket.spark.options import ConnectionOptions, SourceOptions
from aiorocket.spark.steps.fields import QUEUE, need
from aiorocket_protocol import (
    DLQ_PREFIX,
    PROPERTY_DLQ_ERROR,
    PROPERTY_DLQ_HOST,
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_DLQ_REASON,
    PROPERTY_RETRY_TOPIC,
)

__all__ = ("AGES", "CAUSES", "describe", "make_readable", "select", "top_causes", "triage")

#: Properties in which applications say what went wrong; the first that a message has counts.
CAUSES = (PROPERTY_DLQ_REASON, "EXCEPTION", "exception", "ERROR", "error", "x-exception-message", PROPERTY_DLQ_ERROR)
#: Age buckets: name and seconds below which a letter belongs to it. What is older is ``older``.
AGES = (("hour", 3600), ("day", 86_400), ("week", 7 * 86_400))
_NEEDED = (*QUEUE, "queueOffset", "properties", "storeTimestamp", "reconsumeTimes", "body", "tags")
#: A cause is compared and shown up to here: the first line of a stack trace, not all of it.
_CAUSE_CHARS = 200
#: Causes that differ in this only: numbers, addresses, ids. Up to so many of them stay apart (they may be codes).
_VARIES = (
    r"(?i)\b(?:0x[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*\d)[0-9a-f]{8,})\b|\d++(?:[.,]\d++)*+"
)
_FEW = 5
_NUMBER, _ALIKE, _KINDS = "_aiorocket_number", "_aiorocket_alike", "_aiorocket_kinds"


def describe(
    df: DataFrame,
    *,
    causes: Sequence[str] = CAUSES,
    cause: Column | None = None,
    now: datetime | None = None,
    body_chars: int = 200,
) -> DataFrame:
    """Each dead letter with ``consumerGroup``, ``originTopic`` (where it was sent first), ``cause``, ``ageSeconds``
    (since it was given up, until ``now`` or the current time) and ``sample`` (the body as text, up to ``body_chars``
    characters; hex after ``0x`` when it is not UTF-8). Works on streams too.

    ``cause`` is an expression of your own; where it is null, and without one, the first of the properties ``causes``
    counts, then ``gave up after N failed deliveries``.
    """
    return _described(df, causes, cause, now, body_chars).drop(_ALIKE)


def _described(
    df: DataFrame, causes: Sequence[str], cause: Column | None, now: datetime | None, body_chars: int
) -> DataFrame:
    """``describe``, and in the column ``_ALIKE`` the cause with ``#`` for all that varies."""
    need(df, "dead letters", *_NEEDED)
    if now is not None and now.tzinfo is None:
        raise UsageError(f"now={now!r}: the time needs a zone, such as datetime.now(UTC)")
    moment = F.current_timestamp() if now is None else F.lit(now)
    stored = [_recorded() if name == PROPERTY_DLQ_REASON else _property(name) for name in causes]
    said = F.coalesce(*([cause.cast("string")] if cause is not None else []), *stored, F.lit(None).cast("string"))
    line = F.regexp_extract(F.trim(said), r"^[^\r\n]*", 0)
    alike = F.regexp_replace(line, _VARIES, "#")
    times = F.col("reconsumeTimes")
    counted = F.when(times == 1, "gave up after 1 failed delivery").otherwise(
        F.format_string("gave up after %d failed deliveries", F.coalesce(times, F.lit(0)))
    )
    return df.where(F.col("topic").startswith(DLQ_PREFIX)).withColumns(
        {
            "consumerGroup": F.expr(f"substring(topic, {len(DLQ_PREFIX) + 1})"),
            "originTopic": _origin(),
            "cause": F.coalesce(F.substring(line, 1, _CAUSE_CHARS), counted),
            _ALIKE: F.coalesce(F.substring(alike, 1, _CAUSE_CHARS), counted),
            "ageSeconds": (F.unix_micros(moment) - F.unix_micros("storeTimestamp")) / F.lit(1e6),
            "sample": _shown(body_chars),
        }
    )


def select(df: DataFrame, where: str) -> DataFrame:
    """The rows for which ``where`` (SQL) holds: on their columns and those of ``describe``, unless they are rows of an
    archive with too few columns for it."""
    return (describe(df) if set(_NEEDED) <= set(df.columns) else df).where(where)


def triage(
    df: DataFrame,
    *,
    samples: int = 3,
    causes: Sequence[str] = CAUSES,
    cause: Column | None = None,
    now: datetime | None = None,
    body_chars: int = 200,
) -> DataFrame:
    """One row for each ``consumerGroup``, ``originTopic``, ``tag`` and ``cause`` of a batch, the most frequent first:
    ``letters``, ``fewestFailures`` and ``mostFailures`` (reconsumeTimes), ``oldest``, ``newest``, ``lastHour``,
    ``lastDay``, ``lastWeek``, ``older`` (which add up to ``letters``), and ``samples``: of the newest ``samples``
    letters ``msgId``, ``offsetMsgId``, ``keys``, ``host`` (the client that gave it up, where that says so) and
    ``body``. Where more than five causes differ in numbers, addresses and ids only, they are one, with ``#`` for each.
    Arguments as of ``describe``."""
    if df.isStreaming:
        raise UsageError("triage takes a batch; describe works on a stream")
    if samples < 0:
        raise UsageError(f"samples={samples}: 0 or more")
    need(df, "triage", "msgId", "offsetMsgId", "keys")
    groups = ("consumerGroup", "originTopic", "tag", "cause")
    letters = _described(df, causes, cause, now, body_chars).withColumn("tag", F.col("tags"))
    same = Window.partitionBy("consumerGroup", _ALIKE)
    letters = letters.withColumn(_KINDS, F.dense_rank().over(same.orderBy("cause")))
    many = F.max(_KINDS).over(same) > _FEW
    letters = letters.withColumn("cause", F.when(many, F.col(_ALIKE)).otherwise(F.col("cause")))
    newest = Window.partitionBy(*groups).orderBy(F.desc("storeTimestamp"), *QUEUE, F.desc("queueOffset"))
    letters = letters.withColumn(_NUMBER, F.row_number().over(newest))
    host = _property(PROPERTY_DLQ_HOST).alias("host")
    shown = F.struct(_NUMBER, "msgId", "offsetMsgId", "keys", host, F.col("sample").alias("body"))
    age = F.col("ageSeconds")
    buckets, at_least = [], F.lit(True)
    for name, seconds in AGES:
        buckets.append(F.count_if(at_least & (age < seconds)).alias(f"last{name.capitalize()}"))
        at_least = age >= seconds
    kept = F.sort_array(F.collect_list(F.when(F.col(_NUMBER) <= samples, shown)))
    found = letters.groupBy(*groups).agg(
        F.count(F.lit(1)).alias("letters"),
        F.min("reconsumeTimes").alias("fewestFailures"),
        F.max("reconsumeTimes").alias("mostFailures"),
        F.min("storeTimestamp").alias("oldest"),
        F.max("storeTimestamp").alias("newest"),
        *buckets,
        F.count_if(at_least).alias("older"),
        F.transform(kept, lambda letter: letter.dropFields(_NUMBER)).alias("samples"),
    )
    return found.orderBy(F.desc("letters"), *groups)


def top_causes(triaged: DataFrame, count: int = 10) -> DataFrame:
    """The ``count`` most frequent causes of a ``triage`` over all groups and topics: ``cause``, ``letters``,
    ``groups``, ``topics``."""
    return (
        triaged.groupBy("cause")
        .agg(
            F.sum("letters").alias("letters"),
            F.array_sort(F.collect_set("consumerGroup")).alias("groups"),
            F.array_sort(F.collect_set("originTopic")).alias("topics"),
        )
        .orderBy(F.desc("letters"), "cause")
        .limit(count)
    )


def make_readable(name_server: str, group: str, *, timeout: float = 30.0, **options: object) -> None:
    """Give ``%DLQ%group`` read permission on the brokers that keep it from being read, which is what ``Admin.dlq`` does
    when it reads. Nothing to do on newer brokers, or when nothing was given up. ``options`` are the connection's, as of
    the source (``accessKey``, ``tls`` …). RemoteError when a broker refuses."""
    bridge.call(_make_readable, connection(name_server, options), group, timeout=timeout)


def connection(name_server: str, options: dict[str, object]) -> ConnectionOptions:
    """The connection that the source would make of these options."""
    given = {"nameServer": name_server, "topic": DLQ_PREFIX, **{name: str(value) for name, value in options.items()}}
    return SourceOptions.parse(given).connection


async def _make_readable(where: ConnectionOptions, group: str) -> None:
    client = await bridge.client(where)
    with bridge.holding(client):
        async with Admin(client=client) as admin:
            async for _ in admin.dlq(group).messages(limit=1):
                pass  # looking at them at all makes them readable


def _origin() -> Column:
    """Where it was sent, as ``DeadMessage.origin_topic`` has it; null when it was put here by hand."""
    names = (PROPERTY_RETRY_TOPIC, PROPERTY_DLQ_ORIGIN_TOPIC)
    return F.coalesce(*[F.nullif(F.try_element_at("properties", F.lit(name)), F.lit("")) for name in names])


def _property(name: str) -> Column:
    return F.nullif(F.trim(F.try_element_at("properties", F.lit(name))), F.lit(""))


def _recorded() -> Column:
    """What our consumers record: the text of the error, behind its class but for that of a DeadLetter, which is raised
    for its text. A KeyError's is ``'id'``, and says nothing alone."""
    error, reason = _property(PROPERTY_DLQ_ERROR), _property(PROPERTY_DLQ_REASON)
    named = error.isNotNull() & (error != DeadLetter.__qualname__)
    return F.when(named & reason.isNotNull(), F.concat_ws(": ", error, reason)).otherwise(reason)


def _shown(chars: int) -> Column:
    if chars < 1:
        raise UsageError(f"body_chars={chars}: 1 or more")
    body = F.col("body")
    text = body.cast("string")
    # Of a large body only the beginning is turned into hex.
    hexed = F.concat(F.lit("0x"), F.lower(F.hex(F.substring(body, 1, (chars + 1) // 2))))
    cut = F.when(F.length(text) > chars, F.concat(F.substring(text, 1, chars - 1), F.lit("…"))).otherwise(text)
    return F.when(F.is_valid_utf8(text), cut).otherwise(hexed)
