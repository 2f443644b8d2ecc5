"""Listeners, collected without a consumer: a module declares them, the application decides where they run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar

from aiorocket.client.core.start_from import StartFrom, parse_start
from aiorocket.client.core.subscriptions import check_tags
from aiorocket.errors import UsageError
from aiorocket.model import check_group, check_topic
from aiorocket.runtime.threads import in_thread

__all__ = ("Handler", "Listener", "Mode", "Router")

Mode = Literal["concurrent", "batch", "orderly"]

#: Takes a Message; or a list of them where ``batch_size`` is above 1.
Handler = Callable[[Any], Awaitable[object]]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One registered handler; None means the consumer's default."""

    topic: str
    tags: frozenset[str]
    handler: Handler
    concurrency: int | None
    batch_size: int | None
    max_attempts: int | None
    timeout: float | None
    start_from: StartFrom
    #: "concurrent": a message (or a list) a call; "batch": a Batch a call; "orderly": one call at a time per queue.
    mode: Mode = "concurrent"
    #: The handler takes ``(messages, context)`` and returns RocketMQ's status, as a Java listener does.
    status: bool = False
    #: Concurrent only: messages with equal keys are handled one after the other (None as key: no order).
    order_by: Callable[[Any], object] | None = None
    #: Batch only: seconds to wait for a fuller batch, bytes of bodies that make it full.
    max_wait: float = 0.0
    max_bytes: int = 0
    #: Orderly only: seconds a queue rests after a failure (None: ``ConsumerConfig.suspend``), and what follows the last
    #: attempt: "dead_letter", or "suspend" (try for ever).
    suspend: float | None = None
    on_exhausted: Literal["dead_letter", "suspend"] = "dead_letter"
    #: A SQL92 expression instead of tags.
    sql: str | None = None


class Router:
    """A group's listeners. ``Consumer(router=...)`` or ``consumer.include(router)`` runs them."""

    def __init__(self, group: str | None = None) -> None:
        self.group = None if group is None else check_group(group)
        self.listeners: list[Listener] = []

    def listener(
        self,
        topic: str,
        tags: str = "*",
        *,
        concurrency: int | None = None,
        batch_size: int | None = None,
        max_attempts: int | None = None,
        timeout: float | None = None,
        start_from: str | datetime | int = "last",
    ) -> Callable[[H], H]:
        """Decorate ``async def handler(message)`` (a plain function runs in a thread): called for messages of
        ``topic`` with one of ``tags`` (``"a || b"``, ``"*"``).

        Returning is success; Retry, DeadLetter and Skip are explicit exits; any other exception is a retry.
        ``concurrency`` handlers run at once (default 16). With ``batch_size`` above 1 the handler gets a list of up
        to that many messages, perhaps of several queues, which succeed or fail together. ``max_attempts`` counts
        deliveries with the first one, the last failure goes to the dead letters. ``timeout`` (seconds) cancels the
        handler, which is a retry. ``start_from`` ("last", "first", an aware datetime, milliseconds) matters only in
        queues the group has no offset for.
        """
        check_topic(topic)
        for name, value in (("concurrency", concurrency), ("batch_size", batch_size), ("max_attempts", max_attempts)):
            if value is not None and not 1 <= value <= 1024:
                raise UsageError(f"{name}={value}: 1 to 1024")
        if timeout is not None and timeout <= 0:
            raise UsageError(f"timeout={timeout}: above 0 seconds")
        wanted = check_tags(tags)
        start = parse_start(start_from)

        def register(handler: H) -> H:
            self.add(
                Listener(
                    topic=topic,
                    tags=wanted,
                    handler=_awaitable(handler),
                    concurrency=concurrency,
                    batch_size=batch_size,
                    max_attempts=max_attempts,
                    timeout=timeout,
                    start_from=start,
                )
            )
            return handler

        return register

    def add(self, listener: Listener) -> None:
        self.listeners.append(listener)


def _awaitable(handler: Handler) -> Handler:
    """``handler`` itself when it is ``async def``; a plain function is called in a thread, so that it cannot stop the
    loop."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        return handler
    if not callable(handler):
        raise UsageError(f"a listener must be a function, {handler!r} is not")

    async def call(messages: Any) -> object:
        result = await in_thread(handler, messages)
        # Whatever calls an `async def` for us (a lambda, a wrapper) gave its coroutine back unawaited.
        return await result if inspect.isawaitable(result) else result

    return call
