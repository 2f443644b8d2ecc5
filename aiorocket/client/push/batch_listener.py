"""Batches for a listener that works on many messages at once: filled up to a number or a size, or until the oldest has
waited long enough.

One deadline for the batch that is being filled, none per message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, overload

from aiorocket.client.exits import DeadLetter, Retry, Skip
from aiorocket.client.message import Message
from aiorocket.client.push.calls import Call, Failures, Surroundings
from aiorocket.client.push.delivery import Delivery
from aiorocket.client.push.hooks import ConsumeReturnType
from aiorocket.client.push.status import ConsumeConcurrentlyStatus, Handler
from aiorocket.errors import UsageError
from aiorocket.runtime.deadlines import DeadlineDriver

__all__ = ("Batch", "BatchCall", "BatchDelivery", "part_of")


class Batch(Sequence[Message]):
    """What a batch listener gets: its messages, and a say about each of them.

    When the listener returns, every message that was not failed is done. When it raises, every message that was not
    marked goes the way of the exception; what was marked keeps its mark.
    """

    __slots__ = ("_marks", "_messages", "_open")

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        # By index: None for done, else how it failed.
        self._marks: dict[int, Exception | None] = {}
        self._open = True

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]

    def bodies(self) -> list[bytes]:
        """All bodies, in order."""
        return [message.body for message in self._messages]

    def fail(
        self,
        indexes: Iterable[int],
        *,
        retry_after: float | None = None,
        delay_level: int | None = None,
        dead_letter: bool = False,
        reason: str = "",
    ) -> None:
        """These messages failed. They are delivered again after ``retry_after`` seconds (rounded up to a delay level),
        by ``delay_level`` 1 to 18, or by the broker's schedule when neither is given; with ``dead_letter`` they go to
        the dead letters, and ``reason`` is logged. UsageError for an index that is not in the batch, for two ways at
        once, or after the listener has ended."""
        if (retry_after is not None) + (delay_level is not None) + dead_letter > 1:
            raise UsageError("one of retry_after, delay_level and dead_letter, not several")
        error = DeadLetter(reason) if dead_letter else Retry(retry_after, delay_level=delay_level)
        self.mark(indexes, error)

    def done(self, indexes: Iterable[int]) -> None:
        """These messages are done, also when the listener raises afterwards. UsageError as of ``fail``."""
        self.mark(indexes, None)

    def mark(self, indexes: Iterable[int], how: Exception | None) -> None:
        """``how`` these ended: as a listener that raises it, None as one that returns. UsageError as of ``fail``."""
        if not self._open:
            raise UsageError("the listener has ended: its batch can no longer be marked")
        wanted = list(indexes)
        self._check(wanted)
        self._marks.update(dict.fromkeys(wanted, how))

    def _check(self, indexes: Iterable[int]) -> None:
        for index in indexes:
            if not 0 <= index < len(self._messages):
                raise UsageError(f"index {index} is not in this batch of {len(self._messages)} messages")

    def close(self, rest: Exception | None) -> Failures:
        """The listener has ended, with ``rest`` for what was not marked: what failed."""
        self._open = False
        marks = self._marks
        if not marks and rest is None:
            return ()
        ends = ((message, marks.get(index, rest)) for index, message in enumerate(self._messages))
        return [(message, error) for message, error in ends if error is not None]


class _Part(Batch):
    """Some messages of a batch; what is said of them is said of these of the whole."""

    __slots__ = ("_places", "_whole")

    def __init__(self, whole: Batch, places: Sequence[int]) -> None:
        super().__init__([whole[place] for place in places])
        self._whole = whole
        self._places = places

    def mark(self, indexes: Iterable[int], how: Exception | None) -> None:
        wanted = list(indexes)
        self._check(wanted)
        self._whole.mark([self._places[index] for index in wanted], how)


def part_of(batch: Batch, places: Sequence[int]) -> Batch:
    """The messages at ``places`` as a batch of their own; the whole when it is all of them."""
    return batch if len(places) == len(batch) else _Part(batch, places)


class BatchCall(Call):
    """The handler takes a Batch."""

    __slots__ = ("batch",)

    def __init__(self, handler: Handler, messages: list[Message]) -> None:
        super().__init__(handler, messages)
        self.batch = Batch(messages)

    async def run(self) -> Failures:
        await self.handler(self.batch)
        failures = self.batch.close(None)
        if failures:
            self._later(ConsumeReturnType.FAILED)
        return failures

    def failed(self, error: Exception) -> Failures:
        if not isinstance(error, Skip):
            later = isinstance(error, Retry | DeadLetter)
            self._later(ConsumeReturnType.FAILED if later else ConsumeReturnType.EXCEPTION)
        # What was settled by hand is nobody's failure any more.
        return [(message, how) for message, how in self.batch.close(error) if not message.settled]

    def _later(self, kind: ConsumeReturnType) -> None:
        self.kind = kind
        self.status = ConsumeConcurrentlyStatus.RECONSUME_LATER.value


class BatchDelivery(Delivery):
    """N workers, each with a batch: of ``batch_size`` messages, of ``max_bytes`` (of stored records; 0: any), or of
    what has come when the oldest has waited for ``max_wait`` seconds."""

    def __init__(
        self, handler: Handler, *, max_wait: float, max_bytes: int, surroundings: Surroundings, **options: Any
    ) -> None:
        super().__init__(handler, surroundings=surroundings, call=BatchCall, **options)
        self._max_wait = max_wait
        self._max_bytes = max_bytes
        self._bytes = 0
        # When the waiting messages came: [time, how many of them are left].
        self._arrivals: deque[list[float]] = deque()
        self._overdue = False
        self._deadline: float | None = None
        self._driver = DeadlineDriver(self._loop, lambda: self._deadline, self._on_overdue)

    def put(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        self._ready.extend(messages)
        if self._max_bytes:
            self._bytes += sum(message.size for message in messages)
        self._arrivals.append([self._loop.time(), len(messages)])
        if len(self._arrivals) == 1:
            self._look_at_oldest()
        if self._full():
            self.workers.wake(max(1, len(self._ready) // self._batch_size))

    @property
    def backlog(self) -> int:
        """Nothing while a batch is being filled: what it waits for are more messages, so they must be pulled."""
        return len(self._ready) if self._full() else 0

    async def drain(self, timeout: float) -> bool:
        self._arrivals.clear()
        self._bytes = 0
        self._driver.close()
        return await super().drain(timeout)

    def _full(self) -> bool:
        return (
            self._overdue
            or len(self._ready) >= self._batch_size
            or (self._max_bytes > 0 and self._bytes >= self._max_bytes)
        )

    def _take(self) -> list[Message]:
        ready, size, limit = self._ready, self._batch_size, self._max_bytes
        batch: list[Message] = []
        while not batch and ready and self._full():
            taken = used = 0
            while ready and len(batch) < size:
                message = ready[0]
                if limit and batch and used + message.size > limit:
                    break
                ready.popleft()
                taken += 1
                if limit:
                    self._bytes -= message.size
                if message.settled:
                    self._counters.dropped += 1
                    continue
                if limit:
                    used += message.size
                batch.append(message)
            self._took(taken)
        if batch and self._full() and ready:
            self.workers.wake(1)
        return batch

    def _took(self, taken: int) -> None:
        arrivals = self._arrivals
        while taken:
            oldest = arrivals[0]
            if oldest[1] > taken:
                oldest[1] -= taken
                break
            taken -= int(oldest[1])
            arrivals.popleft()
        self._look_at_oldest()

    def _look_at_oldest(self) -> None:
        """Set when the batch that is being filled must go."""
        self._overdue = False
        self._deadline = None
        if self._arrivals:
            due = self._arrivals[0][0] + self._max_wait
            if due <= self._loop.time():
                self._overdue = True
            else:
                self._deadline = due
        self._driver.update()

    def _on_overdue(self, now: float) -> None:
        self._deadline = None
        self._overdue = True
        self.workers.wake(1)
