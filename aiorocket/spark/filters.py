"""Turns the filters that Spark pushes down into fewer queues, shorter ranges and a narrower pull.

Filters on ``topic``, ``brokerName``, ``queueId`` and ``queueOffset`` are answered exactly by the choice of ranges, so
Spark need not look again. ``tags`` and ``storeTimestamp`` only make the read shorter: brokers compare hashes of tags
and search for times in steps, so Spark checks those rows again. Streams push nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark

from aiorocket.model import Queue
from aiorocket.spark import cluster
from aiorocket.spark.planner import QueueRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from aiorocket.client.pipeline.reading import Session
    from aiorocket.spark.options import SourceOptions

__all__ = ("Pushed", "push")

_OF_QUEUE = {("topic",): str, ("brokerName",): str, ("queueId",): int}
_OFFSET = ("queueOffset",)
_STORED = ("storeTimestamp",)
_TAGS = ("tags",)
_NEVER_NULL = {*_OF_QUEUE, _OFFSET}
_BEYOND = 1 << 63
#: A longer list is not worth sending with every pull.
_MOST_TAGS = 100


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a read may leave out. Plain data: it is pickled with the reader.

    ``rules`` are about queues; offsets are in [``low``, ``high``); ``tags`` of None are all tags; ``since`` and
    ``until`` are milliseconds, both inclusive.
    """

    rules: tuple[Filter, ...] = ()
    low: int = 0
    high: int = _BEYOND
    tags: tuple[str, ...] | None = None
    since: int | None = None
    until: int | None = None

    def apply(self, options: SourceOptions) -> SourceOptions:
        """``options`` with the narrower tags."""
        return options if self.tags is None else replace(options, tags=self.tags)

    def trim(self, ranges: Iterable[QueueRange]) -> list[QueueRange]:
        """What is left of ``ranges`` by everything but time; empty ones are gone."""
        if self.tags == ():
            return []
        kept = (
            QueueRange(queue, max(begin, self.low), min(end, self.high))
            for queue, begin, end in ranges
            if all(_holds(rule, queue) for rule in self.rules)
        )
        return [part for part in kept if part.begin < part.end]

    async def trim_by_time(self, client: Session, ranges: Sequence[QueueRange]) -> list[QueueRange]:
        """What is left of ``ranges`` after the brokers were asked where ``since`` and ``until`` are; never too little.

        Some brokers (Apache 4.x) answer with the nearest message, or with any of several of the same millisecond, so
        the search is for a millisecond that lies outside, and one message more is read.
        """
        queues = [part.queue for part in ranges]
        begins: Mapping[Queue, int] = {}
        ends: Mapping[Queue, int] = {}
        if self.since is not None and queues:
            begins = await cluster.offsets_at(client, queues, max(0, self.since - 1))
        if self.until is not None and queues:
            ends = await cluster.offsets_at(client, queues, max(0, self.until + 1))
        kept = (
            QueueRange(queue, max(begin, begins.get(queue, begin)), min(end, ends.get(queue, end) + 1))
            for queue, begin, end in ranges
        )
        return [part for part in kept if part.begin < part.end]


def push(filters: Sequence[Filter], options: SourceOptions) -> tuple[Pushed, list[Filter]]:
    """What the read does with ``filters`` (joined by AND), and those that Spark still has to check."""
    pushed = Pushed()
    unhandled: list[Filter] = []
    for each in filters:
        pushed, handled = _add(pushed, each, options)
        if not handled:
            unhandled.append(each)
    return pushed, unhandled


def _add(pushed: Pushed, each: Filter, options: SourceOptions) -> tuple[Pushed, bool]:
    """``pushed`` with one filter more, and whether that is all there is to it."""
    inner = each.child if isinstance(each, spark.Not) else each
    column = getattr(inner, "attribute", None)
    if isinstance(each, spark.IsNotNull) and column in _NEVER_NULL:
        return pushed, True
    if column in _OF_QUEUE and _fits(inner, _OF_QUEUE[column]):
        return replace(pushed, rules=(*pushed.rules, each)), True
    if inner is not each:
        return pushed, False
    if column == _OFFSET:
        return _add_offset(pushed, each)
    if column == _STORED:
        return _add_time(pushed, each), False
    if column == _TAGS and options.sql_filter is None:
        return _add_tags(pushed, each, options), False
    return pushed, False


def _fits(each: Filter, kind: type) -> bool:
    value = getattr(each, "value", None)
    values: tuple[Any, ...] = each.value if isinstance(each, spark.In) else (value,)
    known = (*_COMPARISONS, *_TEXT) if kind is str else tuple(_COMPARISONS)
    return isinstance(each, known) and all(type(one) is kind or one is None for one in values)


_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    spark.EqualTo: lambda own, value: own == value,
    spark.EqualNullSafe: lambda own, value: own == value,
    spark.GreaterThan: lambda own, value: own > value,
    spark.GreaterThanOrEqual: lambda own, value: own >= value,
    spark.LessThan: lambda own, value: own < value,
    spark.LessThanOrEqual: lambda own, value: own <= value,
    spark.In: lambda own, value: own in value,
}
_TEXT: dict[type, Callable[[Any, Any], bool]] = {
    spark.StringStartsWith: lambda own, value: own.startswith(value),
    spark.StringEndsWith: lambda own, value: own.endswith(value),
    spark.StringContains: lambda own, value: value in own,
}


def _holds(rule: Filter, queue: Queue) -> bool | None:
    """SQL's three values: None where a null decides, and then the row is out, with NOT and without."""
    if isinstance(rule, spark.Not):
        inner = _holds(rule.child, queue)
        return None if inner is None else not inner
    column: Any = getattr(rule, "attribute", None)
    value: Any = getattr(rule, "value", None)
    own: Any = {("topic",): queue.topic, ("brokerName",): queue.broker_name, ("queueId",): queue.queue_id}[column]
    if isinstance(rule, spark.In):
        return True if own in value else None if None in value else False
    if value is None:
        return False if isinstance(rule, spark.EqualNullSafe) else None
    # Spark compares text by its UTF-8 bytes. Names of topics and brokers are ASCII, the value may be anything.
    if isinstance(value, str):
        own, value = own.encode(), value.encode("utf-8", "surrogatepass")
    return (_COMPARISONS.get(type(rule)) or _TEXT[type(rule)])(own, value)


def _add_offset(pushed: Pushed, each: Filter) -> tuple[Pushed, bool]:
    value: Any = getattr(each, "value", None)
    if isinstance(each, spark.In):
        offsets = sorted(one for one in value if type(one) is int)
        if len(offsets) != len([one for one in value if one is not None]):
            return pushed, False
        bounds = (offsets[0], offsets[-1] + 1) if offsets else (0, 0)
        # The range from the least to the greatest has others in it, unless they are neighbours.
        return _between(pushed, *bounds), bounds[1] - bounds[0] == len(set(offsets))
    if type(value) is not int:
        return pushed, False
    match each:
        case spark.EqualTo() | spark.EqualNullSafe():
            return _between(pushed, value, value + 1), True
        case spark.GreaterThan():
            return _between(pushed, value + 1, _BEYOND), True
        case spark.GreaterThanOrEqual():
            return _between(pushed, value, _BEYOND), True
        case spark.LessThan():
            return _between(pushed, 0, value), True
        case spark.LessThanOrEqual():
            return _between(pushed, 0, value + 1), True
    return pushed, False


def _between(pushed: Pushed, low: int, high: int) -> Pushed:
    return replace(pushed, low=max(pushed.low, low), high=min(pushed.high, high))


def _add_time(pushed: Pushed, each: Filter) -> Pushed:
    value: Any = getattr(each, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return pushed
    # The column is whole milliseconds, so both bounds may be taken a little wide: Spark looks again.
    millis = int(value.timestamp() * 1000)
    since = until = None
    if isinstance(each, (spark.EqualTo, spark.EqualNullSafe, spark.GreaterThan, spark.GreaterThanOrEqual)):
        since = max(millis - 1, pushed.since or 0)
    if isinstance(each, (spark.EqualTo, spark.EqualNullSafe, spark.LessThan, spark.LessThanOrEqual)):
        until = millis + 1 if pushed.until is None else min(millis + 1, pushed.until)
    return replace(
        pushed,
        since=pushed.since if since is None else since,
        until=pushed.until if until is None else until,
    )


def _add_tags(pushed: Pushed, each: Filter, options: SourceOptions) -> Pushed:
    value: Any = getattr(each, "value", None)
    wanted: Iterable[Any]
    if isinstance(each, spark.EqualTo):
        wanted = (value,)
    elif isinstance(each, spark.In):
        wanted = value
    else:
        return pushed
    tags = tuple(dict.fromkeys(tag for tag in wanted if tag is not None))
    if len(tags) > _MOST_TAGS or not all(_plain(tag) for tag in tags):
        return pushed
    for narrower in (options.tags or None, pushed.tags):
        if narrower is not None:
            tags = tuple(tag for tag in tags if tag in narrower)
    return replace(pushed, tags=tags)


def _plain(tag: Any) -> bool:
    """Whether a broker reads ``tag`` in an expression as just this tag."""
    return isinstance(tag, str) and tag != "*" and "|" not in tag and tag != "" and tag == tag.strip()
