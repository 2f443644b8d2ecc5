"""What the sink does in the bridge's loop: sends in tasks, decides in the driver. All that needs the client is here, so
that a process which only makes a writer does not import it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket import Producer
from aiorocket.client.pipeline.reading import wrap
from aiorocket.spark import bridge
from aiorocket.spark.exactly_once import HALF_GROUP, HalfSink, Halves
from aiorocket.spark.sink_sending import send_rows

if TYPE_CHECKING:
    from aiorocket.spark.options import SinkOptions
    from aiorocket.spark.outgoing_rows import OutgoingRow

__all__ = ("Halves", "abort", "commit", "decided", "send", "send_halves")

#: The producer group of sinks without the option ``groupId``.
DEFAULT_GROUP = "aiorocket-spark-sink"


async def send(settings: SinkOptions, rows: list[OutgoingRow], where: str) -> None:
    """Send ``rows`` without half messages. Errors as of ``send_rows``."""
    await send_rows(
        await _producer(settings), rows, where=where, batch_size=settings.batch_size,
        in_flight=settings.sends_in_flight, timeout=settings.send_timeout, compress_over=settings.compress_over,
    )  # fmt: skip


async def send_halves(settings: SinkOptions, rows: list[OutgoingRow], where: str, halves: Halves) -> None:
    """``HalfSink.send`` of this process."""
    await (await _half_sink(settings)).send(rows, where, halves, settings)


async def decided(settings: SinkOptions, query: str, batch: int, first: bool) -> bool:
    """Whether the ledger has an entry of the batch or a later one."""
    sink = await _half_sink(settings)
    return (await sink.ledger(settings.ledger_topic).look(query, batch, first=first)).decided


async def commit(settings: SinkOptions, query: str, batch: int, parts: list[Halves], skipped: bool, rows: int) -> None:
    """``HalfSink.commit`` of this process."""
    await (await _half_sink(settings)).commit(query, batch, parts, skipped, settings, rows)


async def abort(settings: SinkOptions, query: str, batch: int, parts: list[Halves]) -> None:
    """``HalfSink.abort`` of this process."""
    await (await _half_sink(settings)).abort(query, batch, parts, settings)


async def _producer(settings: SinkOptions) -> Producer:
    """The producer of this process for modes without half messages."""
    client = await bridge.client(settings.connection)
    group = settings.group_id or DEFAULT_GROUP
    registered = client.producers.get(wrap(client.config.namespace, group))
    if registered is None:
        made = Producer(group, client=client)
        await made.start()
        return made
    assert isinstance(registered.producer, Producer)
    return registered.producer


async def _half_sink(settings: SinkOptions) -> HalfSink:
    client = await bridge.client(settings.connection)
    return await HalfSink.of(client, (settings.group_id or DEFAULT_GROUP) + HALF_GROUP)
