"""Calls of a listener: what it is given, and what the end of a call means for each message.

A class per way to listen. ``run`` calls the handler and lets its exception through; ``failed`` says what an exception
(or a timeout) means. Both answer with the messages that failed and why; all others are done. ``Caller`` adds what is
the same for all of them: hooks, statistics, deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from aiorocket.client.core.stats import ConsumeStats
from aiorocket.client.exits import DeadLetter, Retry, Skip
from aiorocket.client.message import Message
from aiorocket.client.middleware import Middleware
from aiorocket.client.push.hooks import ConsumeContext, ConsumeHook, ConsumeReturnType, run_after, run_before
from aiorocket.client.push.settlement import Settlement
from aiorocket.client.push.status import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, Handler
from aiorocket.client.push.workers import Worker, Workers
from aiorocket.client.state import Counters
from aiorocket.runtime.clock import Clock
from aiorocket.runtime.tasks import TaskScope
from aiorocket.runtime.threads import Executor

__all__ = ("Call", "Caller", "Failures", "SingleCall", "StatusCall", "Surroundings")

Failures = Sequence[tuple[Message, Exception]]


class Call:
    """The handler takes the list; its messages succeed or fail together."""

    __slots__ = ("handler", "kind", "messages", "status")

    def __init__(self, handler: Handler, messages: list[Message]) -> None:
        self.handler = handler
        self.messages = messages
        self.kind = ConsumeReturnType.SUCCESS
        #: RocketMQ's name for the result.
        self.status = ConsumeConcurrentlyStatus.CONSUME_SUCCESS.value

    async def run(self) -> Failures:
        await self.handler(self.messages)
        return ()

    def failed(self, error: Exception) -> Failures:
        if isinstance(error, Skip):
            return self.all(error)
        later = isinstance(error, Retry | DeadLetter)
        return self.again(ConsumeReturnType.FAILED if later else ConsumeReturnType.EXCEPTION, error)

    def again(self, kind: ConsumeReturnType, error: Exception) -> Failures:
        """Every message goes back."""
        self.kind = kind
        self.status = ConsumeConcurrentlyStatus.RECONSUME_LATER.value
        return self.all(error)

    def all(self, error: Exception) -> Failures:
        return [(message, error) for message in self.messages]


class SingleCall(Call):
    """The handler takes one message."""

    __slots__ = ()

    async def run(self) -> Failures:
        await self.handler(self.messages[0])
        return ()


class StatusCall(Call):
    """The handler takes ``(messages, context)`` of one queue and returns a ConsumeConcurrentlyStatus."""

    __slots__ = ()

    async def run(self) -> Failures:
        messages = self.messages
        context = ConsumeConcurrentlyContext(messages[0].queue)
        status = await self.handler(messages, context)
        level = context.delay_level
        error = Retry(delay_level=level) if level >= 0 else DeadLetter(f"delay_level={level}")
        if status is None:
            return self.again(ConsumeReturnType.RETURNNULL, error)
        if status is ConsumeConcurrentlyStatus.RECONSUME_LATER:
            return self.again(ConsumeReturnType.FAILED, error)
        if status is not ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
            raise TypeError(f"a listener in status mode returned {status!r}: a ConsumeConcurrentlyStatus or None")
        last = context.ack_index
        if last is None or last >= len(messages) - 1:
            return ()
        return [(message, error) for message in messages[max(0, last + 1) :]]


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """What the deliveries of one consumer share."""

    group: str
    settlement: Settlement
    counters: Counters
    stats: ConsumeStats
    clock: Clock
    #: Whose tasks the workers are.
    scope: TaskScope
    hooks: Sequence[ConsumeHook] = ()
    #: The client's and the consumer's; listeners have some of their routers' too.
    middleware: Sequence[Middleware] = ()
    namespace: str = ""
    consume_timeout: float = inf
    #: Called now and then when messages have left the line; see backlog.py.
    moved: Callable[[], None] = lambda: None
    #: Of listeners that are plain functions: each has one of its own.
    pools: list[Executor] = field(default_factory=list)


class Caller:
    """Calls one listener of ``workers``. ``call`` is how it takes its messages, ``max_attempts`` counts deliveries
    (None: the consumer's)."""

    def __init__(
        self,
        handler: Handler,
        call: Callable[[Handler, list[Message]], Call],
        workers: Workers,
        surroundings: Surroundings,
        max_attempts: int | None,
    ) -> None:
        self._handler = handler
        self._new_call = call
        self._workers = workers
        self._around = surroundings
        self._max_attempts = max_attempts
        self._time = asyncio.get_running_loop().time

    async def call(self, worker: Worker, messages: list[Message]) -> Failures:
        """One call of the handler with its hooks and statistics; what failed of it."""
        around, workers = self._around, self._workers
        worker.work = messages
        call = self._new_call(self._handler, messages)
        context: ConsumeContext | None = None
        if around.hooks:
            context = ConsumeContext(
                around.namespace, around.group, messages[0].queue, messages, around.clock.wall_ms()
            )
            run_before(around.hooks, context)
        began = self._time()
        for message in messages:
            message._begun = began
        workers.arm(worker)
        try:
            failures = await call.run()
        except BaseException as error:  # noqa: BLE001 - any failure of a listener is a retry
            failures = call.failed(worker.failure(error))
        workers.disarm(worker)
        worker.work = None
        elapsed = self._time() - began
        failed = sum(not isinstance(error, Skip) for _, error in failures)
        source = messages[0]._source
        source.last_consume = began + elapsed
        around.stats.consumed(source.queue.topic, len(messages) - failed, failed, 1000 * elapsed)
        if context is not None:
            kind = call.kind
            if elapsed >= around.consume_timeout and kind in (ConsumeReturnType.SUCCESS, ConsumeReturnType.FAILED):
                kind = ConsumeReturnType.TIME_OUT
            context.status = call.status
            context.success = call.kind is ConsumeReturnType.SUCCESS
            run_after(around.hooks, context, kind)
        return failures

    async def settle(self, messages: list[Message], failures: Failures) -> None:
        """Finish the messages of a call, and send back what failed of them."""
        failed = {message for message, _ in failures}
        for message in messages:
            if message not in failed:
                process_queue = message._process_queue
                if process_queue is None or not process_queue.done(message):
                    self._around.counters.late += 1
        for message, error in failures:
            await self.failed(message, error)

    async def failed(self, message: Message, error: Exception) -> bool:
        """Finish a message that is skipped, send back any other. False when it was skipped, or is left as it is: what
        fails because we cancel it at our own end is not the message's fault."""
        if isinstance(error, Skip):
            self._around.counters.skipped += 1
            process_queue = message._process_queue
            if process_queue is not None:
                process_queue.done(message)
            return False
        if self._workers.cancelling:
            return False
        await self._around.settlement.failed(message, error, self._max_attempts)
        return True
