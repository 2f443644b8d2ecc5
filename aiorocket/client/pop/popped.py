"""A message that was popped: invisible to the others of its group until it is settled or its time is over."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from types import TracebackType
from typing import Protocol

from aiorocket.client.core.delays import seconds_of
from aiorocket.client.exits import DeadLetter, Retry, Skip
from aiorocket.client.message import Message, Origin
from aiorocket.errors import RocketError, UsageError
from aiorocket.model import Queue
from aiorocket_protocol import PopHandle, ProtocolError

__all__ = ("LONGEST", "PoppedMessage", "Popper", "backoff")

log = logging.getLogger("aiorocket.client")

#: RocketMQ's limit of an invisible time, in seconds.
LONGEST = 12 * 3600.0
#: Seconds until a message comes again that failed so many times before: Java's popDelayLevel.
_BACKOFF = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def backoff(failures: int) -> float:
    """Seconds until the next attempt, after ``failures`` of them before this one."""
    return _BACKOFF[min(failures, len(_BACKOFF) - 1)]


class Popper(Protocol):
    """Who tells the broker what became of a message. RocketError when the broker cannot be told."""

    max_attempts: int

    async def ack(self, message: PoppedMessage) -> bool: ...

    async def change_invisible(self, message: PoppedMessage, seconds: float) -> bool: ...

    async def dead_letter(self, message: PoppedMessage, error: BaseException | None) -> bool: ...

    def settled(self, message: PoppedMessage) -> None: ...

    def renew(self, message: PoppedMessage) -> None: ...

    def stop_renewing(self, message: PoppedMessage) -> None: ...


class PoppedMessage(Message):
    """A message of a ``SimpleConsumer``. Settle it by ``process()``, ``ack()``, ``retry()`` or ``dead_letter()``; else
    it comes again when its invisible time is over.

    ``invisible_until`` is when that is, in loop time; ``handle`` what names it to its broker, in this delivery.
    """

    __slots__ = ("_base", "_popper", "_settled", "handle", "invisible", "invisible_until")

    handle: PopHandle
    #: Seconds it is invisible for, counted from ``receive`` or the last change.
    invisible: float
    invisible_until: float

    def prepare(self, popper: Popper, handle: PopHandle, namespace: str, group: str, topic: str, until: float) -> None:
        """Fill in what does not stand in the record; ``topic`` is the one that was asked for."""
        self._process_queue = None
        self._source = Origin(namespace, Queue(topic, handle.broker_name, handle.queue_id), group)
        self._base = topic
        self._popper = popper
        self._settled = False
        self.handle = handle
        self.invisible = handle.invisible_time / 1000
        self.invisible_until = until

    @property
    def _wire_topic(self) -> str:
        return self._base

    @property
    def settled(self) -> bool:
        """Acknowledged, given back or a dead letter. Its time may be over all the same before it is."""
        process_queue = self._process_queue
        return self._settled or (process_queue is not None and process_queue.dropped)

    @property
    def queue(self) -> Queue:
        """The queue it was popped from; its retries have queues of their own."""
        return self._source.shown._replace(queue_id=self.handle.queue_id)

    async def ack(self) -> bool:
        """Done: it does not come again. False when that was too late, for then it may. RocketError when the broker
        cannot be told."""
        return await self._settle(self._popper.ack(self))

    async def retry(self, *, after: float | None = None, delay_level: int = 0) -> bool:
        """Have it again later: after ``after`` seconds, exactly (12 hours at most); by a delay level; or, with neither,
        after 10 s, 30 s, 60 s and so on by the number of attempts. The last attempt goes to the dead letters instead.
        Otherwise as ``ack``. UsageError for what is no number."""
        _check(after, "after")
        return await self._again(None, after, delay_level)

    async def dead_letter(self, reason: str = "") -> bool:
        """To ``%DLQ%group``, now. ``reason`` is logged, and kept with it where the broker is ours. Otherwise as
        ``ack``."""
        return await self._give_up(DeadLetter(reason))

    async def change_invisible(self, seconds: float) -> bool:
        """Keep it for ``seconds`` from now on, 12 hours at most (UsageError); 0 gives it back at once. Otherwise as
        ``ack``, but it can still be settled."""
        if not 0 <= seconds <= LONGEST:
            raise UsageError(f"change_invisible({seconds!r}): 0 to {LONGEST:g} seconds")
        return await self._popper.change_invisible(self, seconds)

    def process(self, *, retry_delay: float | None = None) -> PopProcessing:  # type: ignore[override]  # the same verbs
        """``async with message.process():`` keeps it invisible while the block runs, however long that is, and
        acknowledges at the end. An exception inside is logged and leads to a retry after ``retry_delay`` seconds (None:
        as ``retry``); it does not leave the block. Retry, DeadLetter and Skip work as in a listener. Being cancelled
        settles nothing, and the message comes again when its time is over."""
        _check(retry_delay, "retry_delay")
        return PopProcessing(self, retry_delay)

    async def _again(self, error: BaseException | None, after: float | None, delay_level: int = 0) -> bool:
        if self.attempt >= self._popper.max_attempts:
            return await self._give_up(error)
        if after is None:
            after = seconds_of(delay_level) if delay_level > 0 else backoff(self.reconsume_times)
        return await self._settle(self._popper.change_invisible(self, min(max(0.0, after), LONGEST)))

    async def _give_up(self, error: BaseException | None) -> bool:
        return await self._settle(self._popper.dead_letter(self, error))

    async def _settle(self, telling: Awaitable[bool]) -> bool:
        done = await telling
        self._settled = True
        self._popper.settled(self)
        return done


def _check(seconds: float | None, name: str) -> None:
    if seconds is not None and not (isinstance(seconds, int | float) and seconds == seconds):
        raise UsageError(f"{name}={seconds!r}: a number of seconds")


class PopProcessing:
    """See ``PoppedMessage.process``."""

    __slots__ = ("_message", "_retry_delay")

    def __init__(self, message: PoppedMessage, retry_delay: float | None) -> None:
        self._message = message
        self._retry_delay = retry_delay

    async def __aenter__(self) -> PoppedMessage:
        self._message._popper.renew(self._message)
        return self._message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        message = self._message
        message._popper.stop_renewing(message)
        if error is not None and not isinstance(error, Exception):
            return False
        if message.settled:
            # Settled by hand: whatever failed afterwards is the caller's.
            return False
        try:
            if error is None or isinstance(error, Skip):
                done = await message.ack()
            elif isinstance(error, DeadLetter):
                done = await message._give_up(error)
            elif isinstance(error, Retry):
                done = await message._again(error, error.after, error.delay_level or 0)
            else:
                log.warning("processing message %s of %s failed", message.msg_id, message.queue, exc_info=error)
                done = await message._again(error, self._retry_delay)
        except (RocketError, ProtocolError) as failed:
            log.warning(
                "message %s of %s comes again: its broker cannot be told: %s", message.msg_id, message.queue, failed
            )
            return True
        if not done:
            log.warning("message %s of %s comes again: its invisible time was over", message.msg_id, message.queue)
        return True
