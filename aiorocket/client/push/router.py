"""Listeners, collected without a consumer: a module declares them, the application decides where they run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar, Unpack, overload

from aiorocket.client.core.subscriptions import Wanted, wanted
from aiorocket.client.message import Message
from aiorocket.client.middleware import Middleware
from aiorocket.client.push.handlers import (
    ListenerOptions,
    OrderlyListHandler,
    OrderlyOptions,
    TakesBatch,
    TakesList,
    TakesOne,
    TakesOrderlyOne,
)
from aiorocket.client.push.plain import PlainHandler
from aiorocket.client.push.status import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Handler,
    takes_context,
)
from aiorocket.client.push.typed import OnBadBody, TypedHandler, TypedListHandler, typed
from aiorocket.config import MissingTopics
from aiorocket.errors import UsageError
from aiorocket.model import check_group
from aiorocket.runtime.threads import in_thread, in_thread_to_end

__all__ = ("Handler", "Listener", "Mode", "Router")

Mode = Literal["concurrent", "batch", "orderly"]

H = TypeVar("H", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One registered handler; None means the consumer's default."""

    topic: str
    wanted: Wanted
    handler: Handler
    concurrency: int | None
    batch_size: int | None
    max_attempts: int | None
    timeout: float | None
    #: Messages a second; None is no limit.
    rate_limit: float | None = None
    #: "concurrent": a message (or a list) a call; "batch": a Batch a call; "orderly": one call at a time per queue.
    mode: Mode = "concurrent"
    #: The handler takes ``(messages, context)`` and returns RocketMQ's status, as a Java listener does.
    status: bool = False
    #: Concurrent only: messages with equal keys are handled one after the other (None as key: no order).
    order_by: Callable[[Message], object] | None = None
    #: Batch only: seconds to wait for a fuller batch, bytes of bodies that make it full.
    max_wait: float = 0.0
    max_bytes: int = 0
    #: Orderly: seconds a queue rests after a failure; with ``order_by``, a key (None: ``ConsumerConfig.suspend``).
    suspend: float | None = None
    #: Orderly only: what follows the last attempt, "dead_letter", or "suspend" (try for ever).
    on_exhausted: Literal["dead_letter", "suspend"] = "dead_letter"
    #: The handler takes a Batch, whatever the mode: it is one of values.
    takes_batch: bool = False
    #: Around each call, of the router that it was declared in.
    middleware: tuple[Middleware, ...] = ()

    @property
    def success(self) -> ConsumeConcurrentlyStatus | ConsumeOrderlyStatus | None:
        """What its handler returns when all is well."""
        if not self.status:
            return None
        orderly = self.mode == "orderly"
        return ConsumeOrderlyStatus.SUCCESS if orderly else ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class Router:
    """A group's listeners. ``Consumer(router=...)`` or ``consumer.include(router)`` runs them."""

    def __init__(self, group: str | None = None, *, middleware: Iterable[Middleware] = ()) -> None:
        self.group = None if group is None else check_group(group)
        self._middleware = tuple(middleware)
        self.listeners: list[Listener] = []

    @overload
    def listener(
        self, topic: str, tags: str = "*", *, batch_size: None = None, **options: Unpack[ListenerOptions]
    ) -> TakesOne: ...
    @overload
    def listener(
        self, topic: str, tags: str = "*", *, batch_size: int, **options: Unpack[ListenerOptions]
    ) -> TakesList: ...
    def listener(
        self,
        topic: str,
        tags: str = "*",
        *,
        concurrency: int | None = None,
        batch_size: int | None = None,
        max_attempts: int | None = None,
        timeout: float | None = None,
        rate_limit: float | None = None,
        start_from: str | datetime | int = "last",
        order_by: Callable[[Message], object] | None = None,
        suspend: float | None = None,
        sql: str | None = None,
        missing_topics: MissingTopics | None = None,
        on_bad_body: OnBadBody = "dead_letter",
    ) -> Callable[[H], H]:
        """Decorate ``async def handler(message)`` (a plain function runs in a thread): called for messages of
        ``topic`` with one of ``tags`` (``"a || b"``, ``"*"``), or that match the SQL92 expression ``sql`` over their
        properties (``"amount > 5 AND region IS NOT NULL"``).

        Returning is success; Retry, DeadLetter and Skip are explicit exits; any other exception is a retry.
        ``concurrency`` handlers run at once (default 16). With ``batch_size`` above 1 the handler gets a list of up
        to that many messages, perhaps of several queues, which succeed or fail together. ``max_attempts`` counts
        deliveries with the first one, the last failure goes to the dead letters. ``timeout`` (seconds) cancels the
        handler, which is a retry. ``rate_limit`` is how many messages a second this listener begins, in this process;
        others wait, and pulls stop where too many do. ``start_from`` ("last", "first", an aware datetime, milliseconds)
        matters only in queues the group has no offset for. ``missing_topics`` ("wait", "create", "error"; default
        ``ClientConfig.missing_topics``) is what happens when nobody has the topic.

        ``order_by=lambda message: message.sharding_key`` handles messages with equal keys one after the other, in the
        order of their queue, and different keys in parallel (None as key: no order). A failure makes its key rest for
        ``suspend`` seconds (default ``ConsumerConfig.suspend``; ``Retry(after=...)`` says it for once) and is tried
        again here, so that nothing of that key overtakes it; meanwhile the queue's committed offset stays behind it.

        A first parameter of another type than Message gets the body: ``async def f(order: Order)`` with an Order that
        is a dataclass, msgspec's Struct, pydantic's model, a dict or bytes. It is read as JSON, or as msgpack where the
        property contentType says so; a further parameter of type Message gets the message. With ``batch_size`` that is
        ``list[Order]``. A body that cannot be read is ``on_bad_body``: a "dead_letter" with the reason, a "skip", or
        "raise", the listener's failure (BodyError).

        A handler that takes ``(messages, context)`` is in status mode, as a Java listener: it gets a list of one
        queue's messages and a ConsumeConcurrentlyContext and returns a ConsumeConcurrentlyStatus.
        """
        _check_numbers(concurrency=concurrency, batch_size=batch_size, max_attempts=max_attempts)
        _check_seconds(timeout=timeout, suspend=suspend)
        _check_rate(rate_limit)
        if order_by is None and suspend is not None:
            raise UsageError("suspend= is for listeners with order_by=: others send back what fails")
        if order_by is not None and batch_size not in (None, 1):
            raise UsageError(f"batch_size={batch_size} with order_by=: messages in order come one at a time")
        what = wanted(topic, tags, sql, start_from, missing_topics)

        def register(handler: H) -> H:
            values = typed(handler, batch_size is not None, on_bad_body)
            self._add(
                Listener(
                    topic=topic, wanted=what,
                    # By key nothing may overtake a function that was cancelled and runs on.
                    handler=_awaitable(handler, in_thread_to_end if order_by is not None else in_thread, values),
                    concurrency=concurrency, batch_size=batch_size or (1 if values else None),
                    max_attempts=max_attempts, timeout=timeout, rate_limit=rate_limit,
                    status=values is None and takes_context(handler), order_by=order_by, suspend=suspend,
                    middleware=self._middleware, takes_batch=isinstance(values, TypedListHandler),
                )
            )  # fmt: skip
            return handler

        return register

    def batch(
        self,
        topic: str,
        tags: str = "*",
        *,
        max_messages: int = 256,
        max_wait: float = 0.1,
        max_bytes: int = 0,
        concurrency: int | None = None,
        max_attempts: int | None = None,
        timeout: float | None = None,
        rate_limit: float | None = None,
        start_from: str | datetime | int = "last",
        sql: str | None = None,
        missing_topics: MissingTopics | None = None,
        on_bad_body: OnBadBody = "dead_letter",
    ) -> TakesBatch:
        """Decorate ``async def handler(batch)``: called with a ``Batch`` of up to ``max_messages`` messages, perhaps of
        several queues. A batch is handed over when it is full, when its records fill ``max_bytes`` (as stored, with
        their properties; 0 is no limit), or when its oldest message has waited for ``max_wait`` seconds.

        When the handler returns, every message it did not ``batch.fail(...)`` is done. When it raises, every message it
        did not mark is delivered again. ``concurrency`` batches are worked on at once (default
        ``ConsumerConfig.concurrency``). Up to ``ConsumerConfig.max_cached_messages`` messages of a queue wait here, so
        a larger batch can only be filled from several queues. The other options are those of ``listener``.
        """
        _check_numbers(concurrency=concurrency, max_attempts=max_attempts)
        _check_numbers(65_536, max_messages=max_messages)
        _check_seconds(timeout=timeout)
        _check_rate(rate_limit)
        if not (isinstance(max_wait, int | float) and 0 <= max_wait < float("inf")):
            raise UsageError(f"max_wait={max_wait!r}: 0 seconds or more")
        if not (isinstance(max_bytes, int) and max_bytes >= 0):
            raise UsageError(f"max_bytes={max_bytes!r}: 0 (no limit) or more")
        what = wanted(topic, tags, sql, start_from, missing_topics)

        def register(handler: H) -> H:
            values = typed(handler, True, on_bad_body)
            if values is None and takes_context(handler):
                raise UsageError("a batch listener takes one argument, its Batch: what fails is said with batch.fail()")
            self._add(
                Listener(
                    topic=topic, wanted=what, handler=_awaitable(handler, in_thread, values), concurrency=concurrency,
                    batch_size=max_messages, max_attempts=max_attempts, timeout=timeout, rate_limit=rate_limit,
                    mode="batch", max_wait=max_wait, max_bytes=max_bytes, middleware=self._middleware,
                    takes_batch=values is not None,
                )
            )  # fmt: skip
            return handler

        return register

    @overload
    def orderly(
        self, topic: str, tags: str = "*", *, batch_size: None = None, **options: Unpack[OrderlyOptions]
    ) -> TakesOrderlyOne: ...
    @overload
    def orderly(
        self, topic: str, tags: str = "*", *, batch_size: int, **options: Unpack[OrderlyOptions]
    ) -> Callable[[OrderlyListHandler], OrderlyListHandler]: ...
    def orderly(
        self,
        topic: str,
        tags: str = "*",
        *,
        concurrency: int | None = None,
        batch_size: int | None = None,
        max_attempts: int | None = None,
        on_exhausted: Literal["dead_letter", "suspend"] = "dead_letter",
        suspend: float | None = None,
        timeout: float | None = None,
        rate_limit: float | None = None,
        start_from: str | datetime | int = "last",
        sql: str | None = None,
        missing_topics: MissingTopics | None = None,
        on_bad_body: OnBadBody = "dead_letter",
    ) -> Callable[[H], H]:
        """Decorate ``async def handler(message)``: called for the messages of each queue one at a time, in the order of
        their offsets, by one member of the group at any time (RocketMQ's queue lock).

        Queues run in parallel, up to ``concurrency`` (default 16). With ``batch_size`` above 1 the handler gets a list
        of one queue's messages. Any exception makes the queue rest for ``suspend`` seconds (default 1, from 0.01 to 30;
        ``Retry(after=...)`` says it for once) and brings the same messages again before anything later, with
        ``attempt`` one higher: for ever, unless ``max_attempts`` is set and ``on_exhausted`` is "dead_letter"; then
        the last failure goes to the dead letters and the queue goes on. DeadLetter does that at once; Skip goes on
        without. ``timeout`` (seconds) cancels the handler, which is a failure; ``rate_limit`` is as of ``listener``.
        When the lock is lost the call is cancelled (see ``LeaseLost``); a plain function runs in a thread to its end
        all the same.

        A handler that takes ``(messages, context)`` is in status mode: it gets a list and a ConsumeOrderlyContext and
        returns a ConsumeOrderlyStatus. Two orderly listeners of one topic are each in order by themselves. A group is
        orderly or concurrent as a whole; its retry topic is covered too. ``sql`` is as of ``listener``.
        """
        _check_numbers(concurrency=concurrency, batch_size=batch_size, max_attempts=max_attempts)
        _check_seconds(timeout=timeout, suspend=suspend)
        _check_rate(rate_limit)
        if on_exhausted not in ("dead_letter", "suspend"):
            raise UsageError(f"on_exhausted={on_exhausted!r}: 'dead_letter' or 'suspend'")
        what = wanted(topic, tags, sql, start_from, missing_topics)

        def register(handler: H) -> H:
            values = typed(handler, False, on_bad_body, listed=batch_size is not None)
            if values is not None and batch_size is not None:
                raise UsageError(f"batch_size={batch_size}: in order, values come one at a time")
            self._add(
                Listener(
                    topic=topic, wanted=what, handler=_awaitable(handler, in_thread_to_end, values),
                    concurrency=concurrency, batch_size=batch_size or (1 if values else None),
                    max_attempts=max_attempts, timeout=timeout, rate_limit=rate_limit, mode="orderly",
                    status=values is None and takes_context(handler), suspend=suspend, on_exhausted=on_exhausted,
                    middleware=self._middleware,
                )
            )  # fmt: skip
            return handler

        return register

    def _add(self, listener: Listener) -> None:
        self.listeners.append(listener)


def _check_numbers(most: int = 1024, /, **numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and not (isinstance(value, int) and 1 <= value <= most):
            raise UsageError(f"{name}={value!r}: 1 to {most}")


def _check_seconds(**durations: float | None) -> None:
    for name, value in durations.items():
        if value is not None and not (isinstance(value, int | float) and 0 < value < float("inf")):
            raise UsageError(f"{name}={value!r}: above 0 seconds")


def _check_rate(rate_limit: float | None) -> None:
    if rate_limit is not None and not (isinstance(rate_limit, int | float) and 0 < rate_limit <= 1e6):
        raise UsageError(f"rate_limit={rate_limit!r}: above 0 and at most 1,000,000 messages a second")


def _awaitable(
    handler: Callable[..., Any], in_thread: Callable[..., Awaitable[object]], values: TypedHandler | None
) -> Handler:
    """``handler`` itself when it is ``async def``; a plain function is called ``in_thread``, so that it cannot stop the
    loop. Where it takes ``values``, that with such a handler."""
    if not callable(handler):
        raise UsageError(f"a listener must be a function, {handler!r} is not")
    if values is None:
        _check_parameters(handler, 1 + takes_context(handler), None)
        return _called(handler, in_thread)
    _check_parameters(handler, 1, values.carrier)
    return values.calling(lambda function: _called(function, in_thread))


def _called(handler: Callable[..., Any], in_thread: Callable[..., Awaitable[object]]) -> Handler:
    called = type(handler).__call__
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called):
        return handler
    if any(map(_is_generator, (handler, called))):  # to call it runs nothing, so every message would be lost
        raise UsageError(f"a listener must not yield, {handler!r} does")
    return PlainHandler(handler, in_thread)


def _check_parameters(handler: Callable[..., object], positional: int, carrier: str | None) -> None:
    """UsageError when it cannot be called with what it will be given."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # one that does not tell
        return
    named = signature.parameters.get("state")
    by_name = {"state": None} if named is not None and named.kind is not named.POSITIONAL_ONLY else {}
    if carrier is not None:
        by_name[carrier] = None
    try:
        signature.bind(*[None] * positional, **by_name)
    except TypeError as error:
        name = getattr(handler, "__name__", repr(handler))
        raise UsageError(
            f"listener {name}{signature} cannot be called: {error}. It takes the message (in status mode the messages "
            "and a context) or what its body is read as, and perhaps a parameter named state"
        ) from None


def _is_generator(function: object) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
