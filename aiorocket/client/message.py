"""A message as a listener sees it: a lazy view into the pull answer, and its ways to be settled."""

from __future__ import annotations

import logging
from math import inf
from types import TracebackType
from typing import Protocol

from aiorocket.client.core.delays import level_for
from aiorocket.client.core.namespace import unwrap
from aiorocket.client.core.process_queue import ProcessQueue
from aiorocket.client.core.typed_body import CONTENT_TYPE
from aiorocket.client.exits import DeadLetter, Retry, Skip
from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket_protocol import (
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SHARDING_KEY,
    RETRY_PREFIX,
    RecordView,
)

__all__ = ("Message", "Origin", "Settler", "Source", "exit_level")

_SHARDING_KEY = PROPERTY_SHARDING_KEY.encode()
_CONTENT_TYPE = CONTENT_TYPE.encode()

log = logging.getLogger("aiorocket.client")

#: Delay level of a send-back that means: to the dead letters, now.
DEAD_LETTER_LEVEL = -1


class Settler(Protocol):
    """What becomes of messages that are settled by hand."""

    async def send_back(
        self, message: Message, delay_level: int, max_attempts: int | None = None, error: BaseException | None = None
    ) -> bool: ...

    def count_skipped(self) -> None: ...


class Source(Protocol):
    """The assigned queue a message was pulled from."""

    @property
    def queue(self) -> Queue:
        """By its name on the wire."""

    @property
    def shown(self) -> Queue:
        """As the application knows it: without the namespace."""

    @property
    def namespace(self) -> str: ...

    @property
    def group(self) -> str:
        """The consumer's, without the namespace."""

    #: When a listener last ended with messages of it, in loop time.
    last_consume: float | None

    @property
    def min_offset(self) -> int | None:
        """The first offset the queue has, as the latest answer to a pull of it says; None before any."""

    @property
    def max_offset(self) -> int | None:
        """The offset after the last it has, likewise."""

    def wall_ms(self, then: float) -> int:
        """The wall clock at ``then``, a moment in loop time."""

    @property
    def settler(self) -> Settler: ...


class Origin:
    """Where a message comes from that nobody here has assigned a queue for: it was pushed or popped, or is a copy.
    Nothing of it can be settled."""

    __slots__ = ("group", "last_consume", "namespace", "queue", "shown")

    min_offset = max_offset = None

    def __init__(self, namespace: str, queue: Queue, group: str = "") -> None:
        self.namespace = namespace
        self.group = group
        self.queue = queue
        self.shown = queue._replace(topic=unwrap(namespace, queue.topic))
        self.last_consume: float | None = None

    @property
    def settler(self) -> Origin:
        return self

    def wall_ms(self, then: float) -> int:
        raise UsageError("no delivery begins with a pushed message or a copy: it has no start of its own")

    async def send_back(
        self, message: Message, delay_level: int, max_attempts: int | None = None, error: BaseException | None = None
    ) -> bool:
        raise UsageError(
            "a half message to check, a reply and a copy are not consumed: there is nothing to settle. Of a copy, "
            "settle the message that was received"
        )

    def count_skipped(self) -> None:
        """Nothing is counted."""


def exit_level(error: BaseException) -> int:
    """The delay level of a send-back for what ended a listener: 0 leaves it to the broker, -1 is the dead letters."""
    if isinstance(error, DeadLetter):
        return DEAD_LETTER_LEVEL
    if isinstance(error, Retry):
        if error.delay_level is not None:
            return max(DEAD_LETTER_LEVEL, error.delay_level)
        return 0 if error.after is None else level_for(error.after)
    return 0


class Message(RecordView):
    """A received message. Attributes are decoded when first asked for; bodies arrive as they were sent.

    Of a listener's messages nothing needs to be settled: returning is success, an exception is a retry. Messages of
    ``Consumer.messages()`` are settled by ``process()``, ``ack()``, ``retry()`` or ``dead_letter()``; until then the
    group's offset does not pass them.

    A copy, by ``pickle`` (for a pool of processes) or ``copy``, has all that was received and nothing to settle: that
    stays with the message itself, and with the process that received it.
    """

    # `_process_queue` is None once the message is finished; `_begun` is set when a listener is called with it, `_local`
    # by the first retry in this process, which few messages meet; `_stamped` is the `_begun` its properties tell of.
    __slots__ = ("_begun", "_local", "_process_queue", "_source", "_stamped")

    _local: int
    _stamped: float
    _begun: float

    _process_queue: ProcessQueue | None
    _source: Source

    @property
    def topic(self) -> str:
        """The topic it was sent to, also when it comes back as a retry; without the client's namespace."""
        topic, namespace = self._wire_topic, self._source.namespace
        return unwrap(namespace, topic) if namespace else topic

    @property
    def _wire_topic(self) -> str:
        """The same as brokers know it."""
        topic = super().topic
        if topic.startswith(RETRY_PREFIX):
            return self.properties.get(PROPERTY_RETRY_TOPIC, topic)
        return topic

    @property
    def queue(self) -> Queue:
        """The queue it was pulled from (of the retry topic, for a retry)."""
        return self._source.shown

    @property
    def offset(self) -> int:
        """Its offset in that queue."""
        return self.queue_offset

    @property
    def queue_min_offset(self) -> int | None:
        """The first offset its queue has, as the latest pull found it; None of a message that was not pulled. Java
        writes it into the properties, as MIN_OFFSET."""
        return self._source.min_offset

    @property
    def queue_max_offset(self) -> int | None:
        """The offset after the last message of its queue, likewise (MAX_OFFSET): less ``offset`` and 1, it is how far
        behind this message is."""
        return self._source.max_offset

    @property
    def _local_attempts(self) -> int:
        """Failed deliveries that the broker does not know of: those of an orderly queue, which are made again here."""
        return getattr(self, "_local", 0)

    @_local_attempts.setter
    def _local_attempts(self, value: int) -> None:
        self._local = value

    @property
    def reconsume_times(self) -> int:
        """Failed deliveries before this one, here and elsewhere."""
        return super().reconsume_times + self._local_attempts

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self.reconsume_times + 1

    @property
    def consume_started(self) -> float | None:
        """When its listener was called, in loop time; None before that."""
        return getattr(self, "_begun", None)

    @property
    def properties(self) -> dict[str, str]:
        """All properties, RocketMQ's and the sender's. CONSUME_START_TIME is there from the call of a listener on: when
        that was, in milliseconds of the wall clock. One dict per message; only middleware changes it."""
        properties = super().properties
        begun = self.consume_started
        # Worked out for those who look: most messages are never asked, and delivering them must not cost it.
        if begun is not None and begun != getattr(self, "_stamped", None):
            self._stamped = begun
            properties[PROPERTY_CONSUME_START_TIME] = str(self._source.wall_ms(begun))
        return properties

    def __reduce__(self) -> tuple[object, ...]:
        properties, topic = dict(self.properties), self._wire_topic
        if topic != super().topic:
            properties[PROPERTY_RETRY_TOPIC] = topic  # of what was popped, the record may not tell it
        source, record = self._source, self.buffer[self.start : self.end]
        return _copy, (
            record, self._body, properties, self._local_attempts, source.namespace, source.queue, source.group
        )  # fmt: skip

    def _forget_changes(self) -> None:
        """Be what was sent again, whatever middleware has made of it."""
        self._body = self._properties = None
        self._stamped = -inf

    @property
    def sharding_key(self) -> str | None:
        return self._property(PROPERTY_SHARDING_KEY, _SHARDING_KEY)

    @property
    def content_type(self) -> str | None:
        """What its sender says the body is, in the property contentType."""
        return self._property(CONTENT_TYPE, _CONTENT_TYPE)

    @property
    def group(self) -> str:
        """The group it is consumed by; "" for what is not consumed, such as a reply."""
        return self._source.group

    @property
    def settled(self) -> bool:
        """Finished one way or the other, or its queue was given up."""
        process_queue = self._process_queue
        return process_queue is None or process_queue.dropped

    async def ack(self) -> bool:
        """Done. False when that came too late: settled before, or the queue belongs to somebody else by now."""
        process_queue = self._process_queue
        return process_queue is not None and process_queue.done(self) and not process_queue.dropped

    async def retry(self, *, after: float | None = None, delay_level: int = 0) -> bool:
        """Deliver again later: after ``after`` seconds (rounded up to a delay level), or by the broker's schedule.
        False when it came too late. The last allowed attempt goes to the dead letters instead."""
        level = level_for(after) if after is not None else delay_level
        return await self._source.settler.send_back(self, level)

    async def dead_letter(self, reason: str = "") -> bool:
        """To ``%DLQ%group``, now. ``reason`` is logged, and kept with it. False when it came too late."""
        return await self._source.settler.send_back(self, DEAD_LETTER_LEVEL, error=DeadLetter(reason))

    def process(self, *, retry_delay: float | None = None) -> Processing:
        """``async with message.process():`` acknowledges at the end of the block. An exception inside is logged and
        leads to a retry after ``retry_delay`` seconds (None: the broker's schedule); it does not leave the block, so
        one bad message does not end a loop. Retry, DeadLetter and Skip work as in a listener. Being cancelled settles
        nothing."""
        return Processing(self, retry_delay)


def _copy(
    record: bytes, body: bytes | None, properties: dict[str, str], attempts: int, namespace: str, queue: Queue,
    group: str,
) -> Message:  # fmt: skip
    message = Message(record, 0, len(record))
    message._body, message._properties, message._local = body, properties, attempts
    message._process_queue, message._source = None, Origin(namespace, queue, group)
    return message


class Processing:
    """See ``Message.process``."""

    __slots__ = ("_message", "_retry_delay")

    def __init__(self, message: Message, retry_delay: float | None) -> None:
        self._message = message
        self._retry_delay = retry_delay

    async def __aenter__(self) -> Message:
        return self._message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        message = self._message
        if error is None:
            await message.ack()
            return False
        if not isinstance(error, Exception):
            return False
        if message.settled:
            # Settled by hand, failed afterwards: nothing more can be done for the message, so the error is the
            # caller's.
            return False
        if isinstance(error, Skip):
            message._source.settler.count_skipped()
            await message.ack()
            return True
        level = exit_level(error)
        if not isinstance(error, Retry | DeadLetter):
            log.warning("processing message %s of %s failed", message.msg_id, message.queue, exc_info=error)
            level = 0 if self._retry_delay is None else level_for(self._retry_delay)
        await message._source.settler.send_back(message, level, error=error)
        return True
