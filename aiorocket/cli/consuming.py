"""Prints messages as a member of a group, up to what was the end or on and on."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import click

from aiorocket import Client, Message
from aiorocket.cli.counts import counted
from aiorocket.cli.positions import Positions
from aiorocket.cli.show import body_for_reader, visible
from aiorocket.cli.stopping import stop_signals
from aiorocket.cli.terminal import INTERRUPTED
from aiorocket.config import ClientConfig, ConsumerConfig
from aiorocket.errors import ProtocolError, RemoteError
from aiorocket.model import LegibleRecord, Queue, body_row, check_group, check_topic

__all__ = ("Reader",)

#: How often the brokers are asked whether the group has reached what was the end; our own commits are as frequent.
_LOOK = 0.2


class Reader:
    """One run of ``aiorocket consume``; ``run`` gives the exit code."""

    def __init__(self, topic: str, group: str, tags: str, count: int | None, follow: bool, as_json: bool) -> None:
        self._topic = topic
        self._group = group
        self._tags = tags
        self._count = count
        self._follow = follow
        self._as_json = as_json
        self._wire_group = group
        self._printed = 0
        self._enough = asyncio.Event()
        self._unwritten: OSError | None = None

    async def run(self, config: ClientConfig, start: str | int | None) -> int:
        if sys.__stdout__ is None:  # at the start
            raise click.ClickException("standard output is closed: nobody would see what the group consumes")
        check_topic(self._topic)
        check_group(self._group)
        async with Client(config=config) as client:
            # What is asked of brokers directly has its name there.
            space = f"{config.namespace}%" if config.namespace else ""
            positions, self._wire_group = Positions(client), space + self._group
            queues = await positions.queues(space + self._topic)
            ends = await positions.ends(queues)
            begin = await self._begin(positions, queues, ends, start)
            interrupted = asyncio.Event()
            with stop_signals(interrupted.set):
                if self._follow or not await self._reached(positions, ends):
                    await self._consume(client, positions, ends, begin, interrupted)
        if self._unwritten is not None:
            raise self._unwritten
        printed = counted(self._printed, "message")
        click.echo(f"{printed} of topic {self._topic} printed as group {self._group}", err=True)
        endless = self._follow and self._count is None
        return INTERRUPTED if interrupted.is_set() and not endless and not self._enough.is_set() else 0

    async def _begin(
        self, positions: Positions, queues: tuple[Queue, ...], ends: dict[Queue, int], start: str | int | None
    ) -> Any:
        """Where a queue without an offset begins.

        A group that has none at all is given its offsets here, before it pulls: what ``last`` and a moment mean is then
        decided once, not again by the next member in a queue that had nothing to read this time.
        """
        known = await positions.committed(self._wire_group, queues)
        if any(offset is not None for offset in known.values()):
            if start is not None:
                click.echo(
                    f"group {self._group} already has offsets for topic {self._topic}: it goes on there, "
                    "and --from is not used",
                    err=True,
                )
            return "first" if start is None else start
        if start is None or start == "first":
            offsets = await positions.begins(queues)
        elif start == "last":
            offsets = ends
        else:
            assert isinstance(start, int)
            offsets = await positions.at(queues, start)
        try:
            await positions.commit(self._wire_group, offsets)
        except RemoteError:
            pass  # a broker that does not know the group yet: the consumer begins in the same place by itself
        return "first" if start is None else start

    async def _reached(self, positions: Positions, ends: dict[Queue, int]) -> bool:
        known = await positions.committed(self._wire_group, ends)
        return all((known[queue] or 0) >= end for queue, end in ends.items())

    async def _consume(
        self, client: Client, positions: Positions, ends: dict[Queue, int], begin: Any, interrupted: asyncio.Event
    ) -> None:
        consumer = client.consumer(self._group, config=ConsumerConfig(concurrency=1, offset_flush_interval=_LOOK))
        consumer.listener(self._topic, self._tags, start_from=begin)(self._print)
        await consumer.start()
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._enough.wait()),
            asyncio.ensure_future(interrupted.wait()),
        ]
        if not self._follow:
            waits.append(asyncio.ensure_future(self._until(positions, ends)))
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            await consumer.stop(drain=False)

    async def _until(self, positions: Positions, ends: dict[Queue, int]) -> None:
        while not await self._reached(positions, ends):  # noqa: ASYNC110 - the brokers know, and tell nobody of a commit
            await asyncio.sleep(_LOOK)

    def _text(self, message: Message) -> bytes:
        """What is printed of it. What cannot be read is no reason to send it back: the group would have consumed it
        some time, and nobody seen it."""
        try:
            return _as_json(message, message) if self._as_json else body_for_reader(message.body)
        except ProtocolError as error:
            queue = message.queue
            where = f"{queue.broker_name}:{queue.queue_id}:{message.queue_offset}"
            click.echo(visible(f"message {where} is printed as far as it can be read: {error}"), err=True)
            read = LegibleRecord(message.buffer, message.start, message.end)
            return _as_json(message, read) if self._as_json else body_for_reader(read.body_or_raw)

    async def _print(self, message: Message) -> None:
        if self._enough.is_set():
            # It came after the last one that was wanted. Never returning leaves it, and its offset, to the group.
            await asyncio.Event().wait()
        text = self._text(message)
        try:
            sys.stdout.buffer.write(text + b"\n")
            sys.stdout.buffer.flush()
        except OSError as error:  # nobody reads any more, or the disk is full
            # Nobody has seen it, so it is not consumed. What is left in the buffer must not fail once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._unwritten = error
            self._enough.set()
            await asyncio.Event().wait()
        self._printed += 1
        if self._printed == self._count:
            self._enough.set()


def _as_json(message: Message, read: LegibleRecord | Message) -> bytes:
    queue = message.queue
    return json.dumps(
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "offset": message.queue_offset,
            "msg_id": read.msg_id,
            "tag": read.tag,
            "keys": read.keys,
            "born_ms": message.born_timestamp,
            "stored_ms": message.store_timestamp,
            "reconsume_times": message.reconsume_times,
            "properties": read.properties,
            **(read.body_row() if isinstance(read, LegibleRecord) else body_row(read.body)),
        },
        ensure_ascii=False,
    ).encode()
