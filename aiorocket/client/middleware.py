"""Middleware: what is wrapped around sends and around calls of listeners, and may change the messages of both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from aiorocket.client.message import Message
from aiorocket.model import OutgoingMessage, SendReceipt

__all__ = ("ConsumeNext", "Middleware", "PublishNext", "Step", "consuming", "publishing", "through", "watchers")

M = TypeVar("M")
R = TypeVar("R")

#: Sends the messages; the receipts, none of ``send_oneway``, which nobody acknowledges, and of ``request``.
PublishNext = Callable[[list[OutgoingMessage]], Awaitable[Sequence[SendReceipt]]]
#: Calls the listener; what that returned.
ConsumeNext = Callable[[list[Message]], Awaitable[Any]]
#: ``publish`` or ``consume`` of a middleware.
Step = Callable[..., Awaitable[Any]]


class Middleware:
    """Derive from it and override ``publish``, ``consume`` or both; what is not overridden costs nothing::

        class Audit(aiorocket.Middleware):
            async def consume(self, messages, call_next):
                log.info("%d messages of %s", len(messages), messages[0].topic)
                return await call_next(messages)

    ``middleware=[Audit()]`` of a ``Client`` is for all that it makes, of a ``Producer``, ``Consumer`` or ``Router`` for
    these. The first of a list is outermost; a client's are outside of a consumer's, these outside of a router's. What
    it raises, and what ``call_next`` raises through it, is the end of that send, or of that call of the listener. One
    object serves many calls at once.
    """

    def attached(self, client: Any) -> None:
        """A ``Client`` whose middleware this is has started."""

    async def publish(self, messages: list[OutgoingMessage], call_next: PublishNext) -> Any:
        """Around a send: one message, or those of a ``send_batch``. Others may be given to ``call_next``
        (``dataclasses.replace(message, properties={**message.properties, "tenant": "a"})``), as many, of the same
        topic. A message that is delivered once a transaction commits passes when it is stored as a half message.

        The send returns what the last ``call_next`` gave; one that never called it is a UsageError. Of one sharding
        key the order is that in which ``call_next`` is called. Replies and Spark's sink do not pass here."""
        return await call_next(messages)

    def retrying(self, topic: str, error: Exception) -> None:
        """A send to ``topic`` is tried again, because of ``error``. Called in the task of the send, inside of
        ``publish``; it must not raise."""

    async def consume(self, messages: list[Message], call_next: ConsumeNext) -> Any:
        """Around a call of a listener, with its messages: one, unless it takes several. They are changed in place
        (``message.body = ...``, ``message.properties["tenant"] = ...``); what the broker has stays as it is, and a
        further call begins with that.

        The listener's answer stands whatever is returned here. To return without ``call_next`` is success. In a
        listener with ``batch_size``, or a batch listener, an exception is that of all messages that were not marked.
        Messages that are taken from an iterator, ``fetch`` or ``receive`` do not pass here."""
        return await call_next(messages)


def publishing(middleware: Iterable[Middleware]) -> tuple[Step, ...]:
    """The steps of a send, innermost first."""
    return _steps(middleware, "publish")


def watchers(middleware: Iterable[Middleware]) -> tuple[Callable[[str, Exception], None], ...]:
    """Who is told of repetitions of a send."""
    return tuple(each.retrying for each in middleware if type(each).retrying is not Middleware.retrying)


def consuming(
    middleware: Iterable[Middleware], handler: Callable[..., Awaitable[object]], success: object = None
) -> Step:
    """``handler`` with the steps of a consumption around it; itself when there are none. ``success`` is its answer when
    they return without it."""
    steps = _steps(middleware, "consume")
    return partial(_consume, steps, handler, success) if steps else handler


def _steps(middleware: Iterable[Middleware], name: str) -> tuple[Step, ...]:
    plain = getattr(Middleware, name)
    return tuple(getattr(each, name) for each in middleware if getattr(type(each), name) is not plain)[::-1]


async def _consume(
    steps: Sequence[Step], handler: Callable[..., Awaitable[object]], success: object, handed: Any, *context: Any
) -> object:
    messages = [handed] if isinstance(handed, Message) else list(handed)
    for message in messages:
        message._forget_changes()  # of an earlier call: some are tried again here
    ends = await through(steps, messages, lambda _: handler(handed, *context))
    return ends[-1] if ends else success


async def through(steps: Sequence[Step], messages: list[M], last: Callable[[list[M]], Awaitable[R]]) -> list[R]:
    """``last(messages)`` inside of ``steps``: what it gave, each time that it was called and did not raise."""
    ends: list[R] = []

    async def innermost(messages: list[M]) -> R:
        ends.append(await last(messages))
        return ends[-1]

    async def outside(step: Step, call_next: Callable[[list[M]], Awaitable[Any]], messages: list[M]) -> R | None:
        await step(messages, call_next)
        return ends[-1] if ends else None  # whether or not it returned what it got

    call: Callable[[list[M]], Awaitable[Any]] = innermost
    for step in steps:
        call = partial(outside, step, call)
    await call(messages)
    return ends
