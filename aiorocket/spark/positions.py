"""Turns ``earliest``, a group, a time or JSON into one offset for each queue, by asking the cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from aiorocket.spark import cluster
from aiorocket.spark.fetch import DataLossError
from aiorocket.spark.offsets import EARLIEST, LATEST, OptionError, queue_path, time_text
from aiorocket.spark.options import OffsetSpec

if TYPE_CHECKING:
    from aiorocket.client.pipeline.reading import Bounds, Session
    from aiorocket.model import Queue
    from aiorocket.spark.options import SourceOptions

__all__ = ("ending_offsets", "present", "starting_offsets")

_log = logging.getLogger(__name__)


async def present(client: Session, options: SourceOptions) -> dict[Queue, Bounds]:
    """The queues that ``options`` ask for, with the offsets they have now. DataLossError, or with
    ``failOnDataLoss=false`` a warning, when brokers do not have some of them; a broker that cannot be asked is an
    error of its own."""
    queues = await cluster.queues(client, options)
    bounds = await cluster.bounds(client, queues)
    gone = [queue for queue in queues if queue not in bounds]
    if gone:
        text = (
            f"{len(gone)} of {len(queues)} queues are not at their brokers, the first is {_list(gone[:1])}: a wrong "
            "queue in assign, or a topic that was deleted or shrunk"
        )
        if options.fail_on_data_loss:
            raise DataLossError(f"{text}; failOnDataLoss=false reads the others")
        _log.warning("%s; reading the others", text)
    return bounds


async def starting_offsets(client: Session, options: SourceOptions, bounds: Mapping[Queue, Bounds]) -> dict[Queue, int]:
    """The first offset to read of each queue of ``bounds``, by ``options.starting`` (None: earliest).

    A group without an offset for a queue begins at its first message. OptionError when JSON leaves a queue out or names
    one that is not read, or nothing was stored at a timestamp or later and
    ``startingOffsetsByTimestampStrategy`` is ``error``. DataLossError, or with ``failOnDataLoss=false`` a warning and
    the nearest offset there is, when an offset lies outside what the broker has."""
    spec = options.starting or OffsetSpec(kind="earliest")
    latest_instead = options.starting_offsets_by_timestamp_strategy == "latest"
    found = await _resolved(client, options, spec, bounds, "starting", latest_instead)
    return {queue: _within(queue, found[queue], bounds[queue], options, "starting") for queue in bounds}


async def ending_offsets(client: Session, options: SourceOptions, bounds: Mapping[Queue, Bounds]) -> dict[Queue, int]:
    """The offset behind the last one to read of each queue, by ``options.ending`` (None: latest). As
    ``starting_offsets``; where nothing was stored at a timestamp or later, it is the end of the queue."""
    spec = options.ending or OffsetSpec(kind="latest")
    found = await _resolved(client, options, spec, bounds, "ending", True)
    return {queue: _within(queue, found[queue], bounds[queue], options, "ending") for queue in bounds}


async def _resolved(
    client: Session,
    options: SourceOptions,
    spec: OffsetSpec,
    bounds: Mapping[Queue, Bounds],
    side: str,
    latest_instead: bool,
) -> dict[Queue, int]:
    match spec.kind:
        case "earliest":
            return {queue: each.begin for queue, each in bounds.items()}
        case "latest":
            return {queue: each.end for queue, each in bounds.items()}
        case "group":
            # SourceOptions sees to it that there is a groupId.
            committed = await cluster.committed(client, options.group_id or "", list(bounds))
            return {queue: bounds[queue].begin if (at := committed.get(queue)) is None else at for queue in bounds}
        case "offsets":
            _same_queues(f"{side}Offsets", bounds, spec.offsets)
            return {queue: _given(spec.offsets[queue], each) for queue, each in bounds.items()}
        case _:
            return await _at_times(client, spec, bounds, side, latest_instead)


def _given(offset: int, bounds: Bounds) -> int:
    return {EARLIEST: bounds.begin, LATEST: bounds.end}.get(offset, offset)


def _same_queues(option: str, bounds: Iterable[Queue], given: Iterable[Queue]) -> None:
    """The rule of Spark's Kafka source: every queue is named, and no other one."""
    missing, strange = sorted(set(bounds) - set(given)), sorted(set(given) - set(bounds))
    if missing:
        raise OptionError(
            f"{option} must name every queue that is read, and leaves out {_list(missing)}: -2 means its first "
            "message, -1 its end"
        )
    if strange:
        raise OptionError(f"{option} names {_list(strange)}, which is not read; read are {_list(sorted(bounds))}")


async def _at_times(
    client: Session, spec: OffsetSpec, bounds: Mapping[Queue, Bounds], side: str, latest_instead: bool
) -> dict[Queue, int]:
    times: dict[int, list[Queue]] = {}
    missing: list[Queue] = []
    for queue in sorted(bounds):
        millis = spec.millis_for(queue)
        if millis is None:
            missing.append(queue)
        else:
            times.setdefault(millis, []).append(queue)
    if missing:
        raise OptionError(f"{side}OffsetsByTimestamp must name every queue or topic, and leaves out {_list(missing)}")
    if spec.kind == "timestamps":
        strange = sorted(queue for queue in spec.by_queue if queue not in bounds)
        topics = sorted(spec.by_topic.keys() - {queue.topic for queue in bounds})
        if strange or topics:
            named = _list(strange) or ", ".join(topics)
            raise OptionError(f"{side}OffsetsByTimestamp names {named}, which is not read")
    found: dict[Queue, int] = {}
    for millis, queues in times.items():
        found.update(await cluster.offsets_at(client, queues, millis))
        # An empty queue has nothing on either side of the time: its end is the only answer there is.
        late = [queue for queue in queues if found[queue] >= bounds[queue].end > bounds[queue].begin]
        if late and not latest_instead:
            raise OptionError(
                f"nothing was stored at {time_text(millis)} or later in {_list(late)}: give an earlier time, "
                "or startingOffsetsByTimestampStrategy=latest to begin at the end of such queues"
            )
    return found


def _within(queue: Queue, offset: int, bounds: Bounds, options: SourceOptions, side: str) -> int:
    near = min(max(offset, bounds.begin), bounds.end)
    if near == offset:
        return offset
    text = (
        f"{side} offset {offset} of {_list([queue])} is outside of what the broker has, {bounds.begin} to "
        f"{bounds.end}: messages were removed by retention, or the topic was made anew"
    )
    if options.fail_on_data_loss:
        raise DataLossError(f"{text}; failOnDataLoss=false reads what is there")
    _log.warning("%s; reading from %d", text, near)
    return near


def _list(queues: Iterable[Queue]) -> str:
    queues = list(queues)
    some = ", ".join(map(queue_path, queues[:5]))
    return some if len(queues) <= 5 else f"{some} and {len(queues) - 5} more"
