"""ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151) and CHANGE_MESSAGE_INVISIBLETIME (200053): what consumers say of
messages they popped. Answered when it is as durable as messages are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiorocket.broker.answers import plain_body, put_refusal, refuse, store_refusal, unknown_topic
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.pops import MAX_INVISIBLE_MS, QueueKey
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.revive import PopRevival, base_topic
from aiorocket.errors import StoreError
from aiorocket.remoting.awaited import shed
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import (
    MAX_ACKS,
    AckMessageRequestHeader,
    BatchAck,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopHandle,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    popped_topic,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.runtime.clock import Clock
    from aiorocket.storage.store import MessageStore

__all__ = ("AckHandlers",)

_OK = PutStatus.OK
#: Messages that they may name: some 20 ms.
MAX_BATCH_MESSAGES = 8192
#: Milliseconds before a handle's time is over in which its message may have come again: that is by the loop's clock,
#: which stands still for a turn of the loop, and handles have the wall clock's time.
_IN_DOUBT = 100


class AckHandlers:
    """A message that is not out in the pop that the handle names was acknowledged before (0, as at Apache's), or its
    time was over, so that it comes again or has come again (208, where Apache's broker says 0)."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, tables: Tables, store: MessageStore, revival: PopRevival
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._store = store
        self._revival = revival

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.ACK_MESSAGE: self.acknowledge,
            RequestCode.BATCH_ACK_MESSAGE: self.acknowledge_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change,
        }

    def acknowledge(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 200051: the message is done."""
        header = command.read(AckMessageRequestHeader)
        handle = PopHandle.from_text(header.extra_info)
        key = QueueKey(header.topic, header.consumer_group, header.queue_id)
        refusal = self._check(key, header.offset)
        if refusal is not None:
            return refuse(refusal)
        try:
            if not self._land(connection, command, key, [header.offset], handle.pop_time):
                return self._too_late(key, header.offset, handle) or RemotingCommand.response()
        except StoreError as error:
            return refuse(store_refusal(error))
        finally:
            self._revival.free(base_topic(key.topic, key.group), key.group)
        return None

    def acknowledge_batch(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 200151: messages of several pops are done; 0 also when some were not out any more."""
        items = plain_body(command).get("acks")
        if not isinstance(items, list | tuple) or not items:
            return RemotingCommand.response(ResponseCode.NO_MESSAGE, remark="a batch without acks")
        if len(items) > MAX_ACKS:
            return RemotingCommand.response(
                ResponseCode.INVALID_PARAMETER, remark=f"{len(items)} acks in one batch: {MAX_ACKS} at most"
            )
        is_out = self._revival.table.is_out_in
        # By pop, for what is named twice can be done once.
        pops: dict[tuple[QueueKey, int], set[int]] = {}
        left = MAX_BATCH_MESSAGES
        for ack in [BatchAck.from_plain(item) for item in items]:
            key = QueueKey(popped_topic(ack.retry, ack.group, ack.topic), ack.group, ack.queue_id)
            for offset in ack.offsets():
                left -= 1
                if left < 0:
                    return RemotingCommand.response(
                        ResponseCode.INVALID_PARAMETER,
                        remark=f"more than {MAX_BATCH_MESSAGES} messages in one batch of acks, split it",
                    )
                if is_out(key, offset, ack.pop_time):
                    pops.setdefault((key, ack.pop_time), set()).add(offset)
        if not pops:
            return RemotingCommand.response()
        found = [(key, sorted(some), pop_time) for (key, pop_time), some in pops.items()]
        try:
            for key, offsets, pop_time in found[:-1]:
                self._revival.acknowledge(key, offsets, pop_time, None)
            # The records become durable in their order, so the last one answers for all.
            key, offsets, pop_time = found[-1]
            self._land(connection, command, key, offsets, pop_time)
        except StoreError as error:
            return refuse(store_refusal(error))
        finally:
            for key, _, _ in found:
                self._revival.free(base_topic(key.topic, key.group), key.group)
        return None

    def change(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 200053: the message comes again so long from now, if nobody acknowledges it until then."""
        header = command.read(ChangeInvisibleTimeRequestHeader)
        handle = PopHandle.from_text(header.extra_info)
        key = QueueKey(header.topic, header.consumer_group, header.queue_id)
        refusal = self._check(key, header.offset)
        if refusal is not None:
            return refuse(refusal)
        if not 0 <= header.invisible_time <= MAX_INVISIBLE_MS:
            return RemotingCommand.response(
                ResponseCode.INVALID_PARAMETER,
                remark=f"invisibleTime is {header.invisible_time}: 0 to {MAX_INVISIBLE_MS} ms are allowed",
            )
        pop = self._revival.table.change(
            key,
            header.offset,
            handle.pop_time,
            wall_ms=self._clock.wall_ms(),
            invisible_ms=header.invisible_time,
            now=self._loop.time(),
        )
        if pop is None:
            return self._too_late(key, header.offset, handle) or RemotingCommand.response(
                ResponseCode.NO_MESSAGE, remark=f"message {header.offset} of {header.topic} was acknowledged before"
            )
        answer = ChangeInvisibleTimeResponseHeader(pop.pop_time, pop.invisible_ms, handle.revive_qid)

        shed(command)

        def done(result: PutResult) -> None:
            ok = result.status is _OK
            connection.reply(command, RemotingCommand.response(header=answer) if ok else refuse(put_refusal(result)))

        try:
            self._revival.changed(pop, done)
        except StoreError as error:
            return refuse(store_refusal(error))
        return None

    def _land(
        self, connection: Connection, command: RemotingCommand, key: QueueKey, offsets: list[int], pop_time: int
    ) -> bool:
        """Whether any of them was out; the request is answered when that they are done is durable."""
        shed(command)

        def done(result: PutResult) -> None:
            ok = result.status is _OK
            connection.reply(command, RemotingCommand.response() if ok else refuse(put_refusal(result)))

        return self._revival.acknowledge(key, offsets, pop_time, done)

    def _check(self, key: QueueKey, offset: int) -> Refusal | None:
        topic = self._topics.get(key.topic)
        if topic is None:
            return unknown_topic(key.topic)
        if not 0 <= key.queue_id < topic.read_queues:
            return Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{key.queue_id}] is illegal, topic:[{key.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}]",
            )
        low, high = (end(key.topic, key.queue_id) for end in (self._store.min_offset, self._store.max_offset))
        if not low <= offset <= high:
            return Refusal(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{key.topic}@{key.queue_id}, commit:{offset}, store:{low}~{high}",
            )
        return None

    def _too_late(self, key: QueueKey, offset: int, handle: PopHandle) -> RemotingCommand | None:
        """The refusal of a handle that names nothing that is out, when its message comes again or may."""
        table = self._revival.table
        committed = self._offsets.query(key.group, key.topic, key.queue_id) or 0
        # The latter after a crash that lost the record of its pop, or a reset.
        if table.is_out(key, offset) or offset >= table.next_offset(key, committed):
            return RemotingCommand.response(
                ResponseCode.NO_MESSAGE,
                remark=f"message {offset} was or is to be given out again, or its time was changed, since that pop",
            )
        if handle.pop_time + handle.invisible_time - _IN_DOUBT > self._clock.wall_ms():
            return None
        return RemotingCommand.response(
            ResponseCode.NO_MESSAGE,
            remark=f"the invisible time of message {handle.offset} ({handle.invisible_time} ms) is over: unless it was "
            "acknowledged before, it comes again",
        )
