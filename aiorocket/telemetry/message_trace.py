"""RocketMQ's own message trace: what became of each message, as messages of RMQ_SYS_TRACE_TOPIC in Apache's format.

A record is fields joined by U+0001 and ended by U+0002. Its message has the ids and keys of what it tells of as its own
keys, by which ``mqadmin QueryMsgTraceById``, RocketMQ's dashboard and ``trace_of`` find it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any

from aiorocket import (
    Admin,
    ConsumeNext,
    DeadLetter,
    Message,
    Middleware,
    OutgoingMessage,
    Producer,
    PublishNext,
    Retry,
    RocketError,
    SendReceipt,
    Skip,
)
from aiorocket.runtime.clock import WallClock
from aiorocket.telemetry.legible import said_by
from aiorocket_protocol import (
    DEFAULT_REGION,
    PROPERTY_MSG_REGION,
    PROPERTY_TRACE_ON,
    TRACE_TOPIC,
    ProtocolError,
    parse_offset_msg_id,
)
from aiorocket_protocol.message_trace import TraceRecord, read_trace, write_trace

__all__ = ("TRACE_TOPIC", "MessageTrace", "TraceRecord", "read_trace", "trace_of", "write_trace")

log = logging.getLogger("aiorocket.telemetry")

#: Java's ordinals: MessageType of a message, ConsumeReturnType of a call.
_NORMAL, _DELAYED, _ORDERED = 0, 3, 4
_SUCCESS, _EXCEPTION, _FAILED = 0, 2, 4
#: Bytes of one message of the topic, as Java's dispatcher has it.
_MOST_BYTES = 128_000
#: Of the keys of one message, whose properties have 32,767 bytes.
_MOST_KEYS = 16_000


async def trace_of(admin: Admin, msg_id: str) -> list[TraceRecord]:
    """What the trace topic has of the message with a sender's ``msg_id``, the oldest first; the errors of ``admin``."""
    return await admin.messages.trace(msg_id)


class MessageTrace(Middleware):
    """Writes the trace of what passes it, by a producer that must have another Client than what it traces, or none::

        async with Producer("tracing", nameservers=...) as producer, MessageTrace(producer) as trace:
            async with Client(nameservers=..., middleware=[trace]) as client: ...

    Records are sent every ``interval`` seconds, and at the end of the block; ``most`` of them wait (more are counted in
    ``dropped``). A broker that is away costs the application nothing but these, and at the end the time of one send or
    two. Messages whose broker switched tracing off (TRACE_ON is "false") leave no record of their consumption, and
    those of the topic itself leave none.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        group: str = "",
        region: str = DEFAULT_REGION,
        interval: float = 0.5,
        most: int = 2048,
    ) -> None:
        self._producer = producer
        self._group = group or producer.group
        self._region = region
        self._interval = interval
        self._most = most
        self._wall_ms = WallClock().wall_ms
        self._waiting: list[TraceRecord] = []
        self._calls = 0
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        #: Records that were not written, because too many waited or the broker did not take them.
        self.dropped = 0

    async def __aenter__(self) -> MessageTrace:
        self._task = asyncio.get_running_loop().create_task(self._forever(), name="message-trace")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        if self._task is not None:
            await self._task

    async def publish(self, messages: list[OutgoingMessage], call_next: PublishNext) -> Any:
        if messages[0].topic == TRACE_TOPIC:
            return await call_next(messages)
        began, time = self._wall_ms(), asyncio.get_running_loop().time
        start = time()
        receipts = await call_next(messages)
        cost = round(1000 * (time() - start))
        for message, receipt in zip(messages, receipts, strict=False):  # none of one-way sends
            self._add(_of_send(message, receipt, began, cost)._replace(group=self._group, region=self._region))
        return receipts

    async def consume(self, messages: list[Message], call_next: ConsumeNext) -> Any:
        traced = [
            (each, about) for each, about in zip(messages, map(said_by, messages), strict=True)
            if about.topic != TRACE_TOPIC and about.properties.get(PROPERTY_TRACE_ON) != "false"
        ]  # fmt: skip
        if not traced:
            return await call_next(messages)
        self._calls += 1
        request_id, group, began = f"{traced[0][1].msg_id}{self._calls:08X}", messages[0].group, self._wall_ms()
        time = asyncio.get_running_loop().time
        start = time()
        for each, about in traced:
            self._add(
                TraceRecord(
                    "SubBefore", about.msg_id, began, about.properties.get(PROPERTY_MSG_REGION, self._region), group,
                    topic=about.topic, keys=" ".join(about.keys), request_id=request_id,
                    retry_times=each.reconsume_times,
                )
            )  # fmt: skip
        code = _EXCEPTION
        try:
            answer = await call_next(messages)
            code = _SUCCESS
            return answer
        except Skip:
            code = _SUCCESS
            raise
        except (Retry, DeadLetter):
            code = _FAILED
            raise
        finally:
            now, cost = self._wall_ms(), round(1000 * (time() - start)) // len(messages)
            for _, about in traced:
                self._add(
                    TraceRecord(
                        "SubAfter", about.msg_id, now, about.properties.get(PROPERTY_MSG_REGION, self._region), group,
                        topic=about.topic, keys=" ".join(about.keys), request_id=request_id, context_code=code,
                        cost=cost, success=code == _SUCCESS,
                    )
                )  # fmt: skip

    def _add(self, record: TraceRecord) -> None:
        if len(self._waiting) >= self._most:
            self.dropped += 1
        else:
            self._waiting.append(record)

    async def _forever(self) -> None:
        while not self._ending.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._ending.wait()
            await self.flush()
        await self.flush()  # what came while the last ones were sent

    async def flush(self) -> None:
        """Send what waits. What the broker does not take is dropped, counted and logged."""
        records, self._waiting = self._waiting, []
        parts = _parts(records)
        for number, part in enumerate(parts):
            keys = dict.fromkeys(name for each in part for name in _names(each))
            body = "".join(map(write_trace, part)).encode()
            try:
                await self._producer.send(TRACE_TOPIC, body, keys=list(keys))
            except (RocketError, ProtocolError) as error:
                # At the end not one send after the other waits for a broker that is away.
                lost = sum(map(len, parts[number:] if self._ending.is_set() else [part]))
                self.dropped += lost
                log.warning("%d records of the message trace are lost: %s", lost, error)
                if self._ending.is_set():
                    return


def _names(record: TraceRecord) -> list[str]:
    """The keys by which it is found. Ids and keys of others may have blanks."""
    return f"{record.msg_id} {record.keys}".split()


def _parts(records: Iterable[TraceRecord]) -> list[list[TraceRecord]]:
    """As many as one message holds; their ids and keys must fit its properties, too."""
    parts: list[list[TraceRecord]] = []
    room = key_room = 0
    for record in records:
        size, key_size = len(write_trace(record).encode()), len(" ".join(_names(record)).encode()) + 1
        if size > room or key_size > key_room or len(parts[-1]) >= 100:
            parts.append([])
            room, key_room = _MOST_BYTES, _MOST_KEYS
        parts[-1].append(record)
        room -= size
        key_room -= key_size
    return parts


def _of_send(message: OutgoingMessage, receipt: SendReceipt, began: int, cost: int) -> TraceRecord:
    host = ""
    with suppress(ProtocolError, ValueError):
        ip, port, _ = parse_offset_msg_id(receipt.offset_msg_id)
        host = f"{ip}:{port}"
    kind = _DELAYED if message.delay_level or message.at or message.after else _NORMAL
    if message.sharding_key is not None:
        kind = _ORDERED
    return TraceRecord(
        "Pub", receipt.msg_id, began, topic=message.topic, tag=message.tag, keys=" ".join(message.keys),
        store_host=host, body_length=len(message.body), cost=cost, message_type=kind,
        offset_msg_id=receipt.offset_msg_id,
    )  # fmt: skip
