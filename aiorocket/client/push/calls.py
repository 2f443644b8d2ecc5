"""One call of a listener: what it is given, and what its end means for each message.

A class per way to listen. ``run`` calls the handler and lets its exception through; ``failed`` says what an exception
(or a timeout) means. Both answer with the messages that failed and why; all others are done.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiorocket.client.exits import DeadLetter, Retry, Skip
from aiorocket.client.message import Message
from aiorocket.client.push.hooks import ConsumeReturnType
from aiorocket.client.push.router import Handler
from aiorocket.client.push.status import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus

__all__ = ("Call", "Failures", "SingleCall", "StatusCall")

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
