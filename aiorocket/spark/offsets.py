"""Offsets of queues as JSON: ``{"topic":{"broker-a":{"0":23,"1":-2}}}``.

The form is the one of the old RocketMQ connector for Spark, byte for byte. Spark compares two offsets of a stream as
text, so everything written here is in one order: topics and brokers by name, queues by number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from aiorocket.config.times import iso_time, plain_millis
from aiorocket.errors import UsageError
from aiorocket.model import Queue, check_topic

__all__ = (
    "EARLIEST",
    "LATEST",
    "OptionError",
    "format_offsets",
    "from_nested",
    "parse_offsets",
    "parse_queues",
    "parse_time",
    "parse_timestamps",
    "queue_path",
    "time_text",
    "to_nested",
    "topic_name",
)

#: What stands for an offset that is to be looked up (the numbers of Spark's Kafka source).
EARLIEST = -2
LATEST = -1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SHAPE = '{"topic":{"broker":{"0":23,"1":-2}}}'
_TIMES = '{"topic":"2025-03-01T12:00Z"} or {"topic":{"broker":{"0":1740830400000,"1":"2025-03-01T12:00Z"}}}'


class OptionError(UsageError):
    """An option of the Spark source or sink that is unknown, malformed, or contradicts another one."""


def parse_offsets(text: str, *, option: str) -> dict[Queue, int]:
    """Offsets from their JSON form, EARLIEST and LATEST as they stand. OptionError names ``option`` and the place."""
    found = _nested(_loads(text, option), option)
    for queue, offset in found.items():
        if offset < EARLIEST:
            raise OptionError(
                f"{option}: offset {offset} of {queue_path(queue)} is below 0; only -2 (earliest) and -1 (latest) are"
            )
    return found


def parse_timestamps(text: str, *, option: str) -> tuple[dict[Queue, int], dict[str, int]]:
    """Milliseconds by queue, in the shape of offsets, and by topic where a topic has one time for all its queues:
    ``{"t":{"broker-a":{"0":1700000000000}},"u":"2023-11-14T22:13:20Z"}``."""
    value = _in_millis(_loads(text, option, _TIMES), option)
    topics = {topic_name(topic, option): inner for topic, inner in value.items() if _number(inner)}
    queues = _nested({topic: inner for topic, inner in value.items() if topic not in topics}, option, _TIMES)
    for place, millis in [*((queue_path(queue), millis) for queue, millis in queues.items()), *topics.items()]:
        if millis < 0:
            raise OptionError(f"{option}: {millis} of {place} is below 0; milliseconds since 1970 UTC are meant")
    return queues, topics


def parse_time(text: str, *, option: str) -> int:
    """Milliseconds since 1970 UTC, which may be written as such or in ISO 8601; without a zone UTC is meant."""
    try:
        millis = plain_millis(text)
    except ValueError as error:
        raise OptionError(f"{option}={error}") from None
    if millis is not None:
        return millis
    try:
        at = iso_time(text)
    except ValueError:
        at = _EPOCH - _MILLISECOND
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    if at < _EPOCH:
        raise OptionError(
            f"{option}={text!r:.50}: milliseconds since 1970 UTC, or a time from then on such as 2025-03-01T12:00+01:00"
        )
    return (at - _EPOCH) // _MILLISECOND


def _in_millis(value: Any, option: str) -> Any:
    if isinstance(value, dict):
        return {key: _in_millis(inner, option) for key, inner in value.items()}
    return parse_time(value, option=option) if isinstance(value, str) else value


def parse_queues(text: str, *, option: str) -> tuple[Queue, ...]:
    """The queues of ``{"topic":{"broker-a":[0,1,2]}}``, sorted."""
    shape = '{"topic":{"broker":[0,1]}}'
    queues: set[Queue] = set()
    for topic, brokers in _loads(text, option, shape).items():
        topic_name(topic, option)
        for broker, numbers in _object(brokers, f"{option}: {topic}", shape).items():
            if not isinstance(numbers, list):
                raise OptionError(f"{option}: {topic}/{broker} is {numbers!r:.100}; the form is {shape}")
            queues.update(Queue(topic, broker, _queue_id(number, f"{option}: {topic}/{broker}")) for number in numbers)
    if not queues:
        raise OptionError(f"{option} names no queue; the form is {shape}")
    return tuple(sorted(queues))


def to_nested(offsets: Mapping[Queue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """The JSON form as a dict, in canonical order (dicts keep it, and so does ``json.dumps``)."""
    nested: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        brokers = nested.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return nested


def from_nested(nested: Mapping[str, Any]) -> dict[Queue, int]:
    """What ``to_nested`` was given. UsageError when the shape is another one (a checkpoint of another source)."""
    return _nested(nested, "the offset of the checkpoint")


def format_offsets(offsets: Mapping[Queue, int]) -> str:
    """Canonical JSON, without blanks."""
    return json.dumps(to_nested(offsets), separators=(",", ":"), ensure_ascii=False)


def topic_name(topic: str, option: str) -> str:
    """``topic``, or OptionError when no topic can be called that."""
    try:
        return check_topic(topic)
    except UsageError as error:
        raise OptionError(f"{option}: {error}") from None


def _loads(text: str, option: str, shape: str = _SHAPE) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_pairs_of(option))
    except (json.JSONDecodeError, RecursionError) as error:
        raise OptionError(f"{option}={text!r:.200} is not JSON ({error}); the form is {shape}") from None
    return _object(value, option, shape)


def _pairs_of(option: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            # json keeps the last of two equal keys without a word: half of what was asked for would be lost.
            names = [name for name, _ in items]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise OptionError(f"{option}: {', '.join(twice)} is there more than once")
        return found

    return pairs


def _object(value: Any, place: str, shape: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise OptionError(f"{place}: {value!r:.100} is no JSON object; the form is {shape}")
    return dict(value)


def _nested(value: Mapping[str, Any], option: str, shape: str = _SHAPE) -> dict[Queue, int]:
    offsets: dict[Queue, int] = {}
    for topic, brokers in value.items():
        topic_name(topic, option)
        for broker, numbers in _object(brokers, f"{option}: {topic}", shape).items():
            for number, offset in _object(numbers, f"{option}: {topic}/{broker}", shape).items():
                queue = Queue(topic, broker, _queue_id(number, f"{option}: {topic}/{broker}"))
                if queue in offsets:
                    raise OptionError(f"{option}: {queue_path(queue)} is there more than once")
                offsets[queue] = _whole(offset, f"{option}: {queue_path(queue)}")
    return offsets


def _queue_id(number: Any, place: str) -> int:
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return number
    if isinstance(number, str) and number.isascii() and number.isdigit():
        return int(number)
    raise OptionError(f"{place}: {number!r:.50} is no queue number (0, 1, 2 …)")


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(value: Any, place: str) -> int:
    if not _number(value):
        raise OptionError(f"{place}: {value!r:.50} is no whole number")
    return int(value)


def time_text(millis: int) -> str:
    """``millis`` as ``parse_time`` takes it, for people."""
    try:
        return (_EPOCH + millis * _MILLISECOND).isoformat().removesuffix("+00:00") + "Z"
    except OverflowError:
        return f"{millis} ms since 1970"


def queue_path(queue: Queue) -> str:
    """The queue for people: ``topic/broker/number``."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"
