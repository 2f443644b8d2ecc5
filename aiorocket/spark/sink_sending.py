"""Sends converted rows: in batches where that is possible, in order where a row names its queue or sharding key, and
with every acknowledgement awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.client.pipeline.sending import Prepared, Publish, need_timers, send_prepared
from aiorocket.errors import (
    BackPressureError,
    BrokerBusyError,
    NotConnectedError,
    ProtocolError,
    RocketError,
    SendError,
    UsageError,
)
from aiorocket.model import Queue, SendReceipt, SendStatus
from aiorocket.spark.outgoing_rows import OutgoingRow, RowError
from aiorocket_protocol import (
    PROPERTY_TIMER_DELIVER_MS,
    SYS_FLAG_TRANSACTION_PREPARED,
)

if TYPE_CHECKING:
    from aiorocket import Producer

__all__ = ("Sent", "send_rows")

#: Bytes of a batch, with what each message adds to it; brokers take 4 MiB.
_BATCH_BYTES = 1 << 20
_ITEM_OVERHEAD = 96
_PAUSE = 0.05
_NOT_NOW = (BrokerBusyError, BackPressureError, NotConnectedError)


class Sent(NamedTuple):
    """A row and its receipt. ``pinned``: its place in its queue matters."""

    row: OutgoingRow
    receipt: SendReceipt
    pinned: bool


class _Job(NamedTuple):
    """Rows for one request after the other; each request is a list."""

    publish: Publish
    queue: Queue | None
    requests: list[list[OutgoingRow]]


async def send_rows(
    producer: Producer,
    rows: Sequence[OutgoingRow],
    *,
    where: str,
    batch_size: int,
    in_flight: int,
    timeout: float,
    compress_over: int,
    half: str | None = None,
    sent: list[Sent] | None = None,
) -> None:
    """Send ``rows`` and return when every one is acknowledged or has failed.

    RowError before anything is sent when a row names a queue that is not there or needs what its broker does not have.
    Otherwise, after all others have ended, the error of the first row that failed, as SendError with its number.
    ``half`` makes half messages: it is the property text that makes them so. They are sent one by one, and are SEND_OK
    or have failed. ``sent`` gets the rows that went alone, with their receipts, also when others failed.
    """
    targets = await _open(producer, rows, where, timeout)
    jobs = list(_jobs(rows, targets, 1 if half is not None else batch_size, compress_over))
    waiting = iter(jobs)
    failed: list[tuple[int, str, RocketError | ProtocolError]] = []
    time = asyncio.get_running_loop().time
    sys_flag = 0 if half is None else SYS_FLAG_TRANSACTION_PREPARED

    async def request(job: _Job, part: list[OutgoingRow]) -> bool:
        deadline = time() + timeout
        try:
            messages = [_prepared(row, half) for row in part]
            while True:
                try:
                    receipt = await send_prepared(
                        producer.sender, job.publish, messages, job.queue, deadline, sys_flag=sys_flag,
                        compress_over=compress_over,
                    )  # fmt: skip
                    break
                except SendError as error:
                    # What is certainly not there may be sent again, also by a producer without retries.
                    if error.may_be_stored or not isinstance(error.__cause__, _NOT_NOW) or time() >= deadline:
                        raise
                    await asyncio.sleep(_PAUSE)
            if sent is not None and len(part) == 1:
                sent.append(Sent(part[0], receipt, job.queue is not None))
            if half is not None and receipt.status is not SendStatus.SEND_OK:
                raise SendError(f"stored with {receipt.status.name}", may_be_stored=True)
        except (RocketError, ProtocolError) as error:
            first, last = part[0].number, part[-1].number
            failed.append((first, f"row {first}" if first == last else f"rows {first} to {last}", error))
            return False
        return True

    async def work() -> None:
        for job in waiting:
            for part in job.requests:
                if not await request(job, part):
                    break  # what comes later in this queue must not overtake it

    async with asyncio.TaskGroup() as group:
        for _ in range(min(in_flight, len(jobs))):
            group.create_task(work())
    if failed:
        _, which, error = min(failed, key=lambda each: each[0])
        text = f"{where}, {which} for topic {rows[0].topic!r}: {error}"
        if len({row.topic for row in rows}) > 1:
            text = f"{where}, {which}: {error}"
        if len(failed) > 1:
            text += f"; {len(failed) - 1} more requests failed"
        raise SendError(text, may_be_stored=getattr(error, "may_be_stored", True)) from error


class _Target(NamedTuple):
    publish: Publish
    #: By number and broker; by number alone the first broker by name that has it.
    queues: dict[tuple[int, str | None], Queue]


async def _open(producer: Producer, rows: Sequence[OutgoingRow], where: str, timeout: float) -> dict[str, _Target]:
    """The targets of every topic among ``rows``, checked against each row."""
    targets: dict[str, _Target] = {}
    timers: dict[str, int] = {}
    for row in rows:
        target = targets.get(row.topic)
        if target is None:
            publish = await producer.sender.open_topic(row.topic, timeout)
            queues: dict[tuple[int, str | None], Queue] = {}
            for queue in sorted(publish.queues):
                queues[queue.queue_id, queue.broker_name] = queue
                queues.setdefault((queue.queue_id, None), queue)
            target = targets[row.topic] = _Target(publish, queues)
        if row.queue_id is not None and (row.queue_id, row.broker_name) not in target.queues:
            have = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in sorted(target.publish.queues)[:32])
            wanted = f"{row.broker_name or ''}:{row.queue_id}".lstrip(":")
            raise RowError(
                f"{where}, row {row.number}, column queueId: topic {row.topic!r} has no writable queue {wanted}; "
                f"there are {have}"
            )
        if row.deliver_ms is not None and row.topic not in timers:
            timers[row.topic] = row.number
    for topic, number in timers.items():
        await _need_timers(producer, targets[topic].publish, f"{where}, row {number}", timeout)
    return targets


async def _need_timers(producer: Producer, publish: Publish, where: str, timeout: float) -> None:
    """RowError unless every broker of the topic knows timer messages; one that has them switched off says so itself."""
    try:
        await need_timers(producer.sender, publish, timeout)
    except UsageError as error:
        raise RowError(f"{where}, column deliverTimestamp: {error}") from None


def _jobs(
    rows: Sequence[OutgoingRow], targets: dict[str, _Target], batch_size: int, compress_over: int
) -> Iterable[_Job]:
    free: dict[str, list[OutgoingRow]] = {}
    ordered: dict[Queue, list[OutgoingRow]] = {}
    for row in rows:
        if row.queue_id is not None:
            ordered.setdefault(targets[row.topic].queues[row.queue_id, row.broker_name], []).append(row)
        elif row.sharding_key is not None:
            queue = targets[row.topic].publish.target(None, row.sharding_key).queue
            ordered.setdefault(queue, []).append(row)
        else:
            free.setdefault(row.topic, []).append(row)
    for queue, own in ordered.items():
        yield _Job(targets[queue.topic].publish, queue, list(_requests(own, batch_size, compress_over)))
    for topic, own in free.items():
        for part in _requests(own, batch_size, compress_over):
            yield _Job(targets[topic].publish, None, [part])


def _requests(rows: list[OutgoingRow], batch_size: int, compress_over: int) -> Iterable[list[OutgoingRow]]:
    """In order; a row that must or should (it is compressed) go alone does."""
    part: list[OutgoingRow] = []
    size = 0
    for row in rows:
        alone = row.alone or len(row.body) >= compress_over
        own = len(row.body) + 3 * len(row.tail) + _ITEM_OVERHEAD
        if part and (alone or len(part) >= batch_size or size + own > _BATCH_BYTES):
            yield part
            part, size = [], 0
        if alone:
            yield [row]
        else:
            part.append(row)
            size += own
    if part:
        yield part


def _prepared(row: OutgoingRow, half: str | None) -> Prepared:
    text = row.tail + (half or "")
    if row.deliver_ms is not None:
        text += f"{PROPERTY_TIMER_DELIVER_MS}\x01{row.deliver_ms}\x02"
    return Prepared(row.body, text)
