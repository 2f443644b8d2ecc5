"""Where pulled messages go: one kind of sink per way to deliver, chosen by the listener."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from aiorocket.client.delivery import Delivery

if TYPE_CHECKING:
    from aiorocket.client.consumer import Consumer
    from aiorocket.client.message import Message
    from aiorocket.client.router import Listener
    from aiorocket.model import Queue
    from aiorocket.runtime.tasks import TaskScope

__all__ = ("Sink", "make_sink")


class Sink(Protocol):
    """Takes runs of messages from the fetchers and brings them to a listener."""

    def start(self, scope: TaskScope) -> None:
        """Start what works on the messages, in ``scope``."""

    def put(self, messages: Sequence[Message]) -> None:
        """Take messages of one queue, ascending. Hot: one call per pull answer."""

    @property
    def in_work(self) -> int:
        """Messages a handler has now."""

    async def revoke(self, queue: Queue, timeout: float) -> bool:
        """The queue is being given up and nothing more of it is put: begin no further message of it, and wait up to
        ``timeout`` seconds for those that must end before somebody else may begin. True when none runs."""

    async def drain(self, timeout: float) -> bool:
        """Begin nothing more, wait for the handlers that run, at most ``timeout`` seconds, then cancel them. True when
        every handler ended by itself."""

    async def sweep(self, now: float, limit: float) -> None:
        """Give up on messages whose handler has run for ``limit`` seconds (the consume timeout)."""


def make_sink(listener: Listener, consumer: Consumer) -> Sink:
    """The sink for ``listener``; not started."""
    return Delivery(
        listener.handler,
        name=f"listener-{listener.topic}",
        concurrency=listener.concurrency or consumer.config.concurrency,
        batch_size=listener.batch_size or consumer.config.batch_size,
        timeout=listener.timeout,
        max_attempts=listener.max_attempts,
        failure=consumer.settlement,
        counters=consumer.counters,
    )
