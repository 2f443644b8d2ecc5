"""Where pulled messages go: one kind of sink per way to deliver, chosen by the listener."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from aiorocket.client.push.batch_listener import BatchDelivery
from aiorocket.client.push.calls import Call, SingleCall, StatusCall
from aiorocket.client.push.delivery import Delivery, Surroundings
from aiorocket.client.push.keyed import KeyedDelivery
from aiorocket.client.push.listener_state import check_state
from aiorocket.client.push.orderly import OrderlyDelivery

if TYPE_CHECKING:
    from aiorocket.client.group.member import Deliverer
    from aiorocket.client.message import Message
    from aiorocket.client.push.router import Listener
    from aiorocket.model import Queue
    from aiorocket.runtime.tasks import TaskScope

__all__ = ("Sink", "end_work", "make_sink")


class Sink(Protocol):
    """Takes runs of messages from the fetchers and brings them to a listener."""

    def start(self, scope: TaskScope) -> None:
        """Start what works on the messages, in ``scope``."""

    def put(self, messages: Sequence[Message]) -> None:
        """Take messages of one queue, ascending. Hot: one call per pull answer."""

    def set_concurrency(self, concurrency: int) -> None:
        """So many handlers at once from now on; nothing that runs is interrupted, nothing that waits is lost."""

    @property
    def in_work(self) -> int:
        """Messages a handler has now."""

    @property
    def backlog(self) -> int:
        """Messages that wait for a worker and for nothing else; those behind a suspended queue or key do not count."""

    async def revoke(self, queue: Queue, timeout: float) -> bool:
        """The queue is being given up and nothing more of it is put: begin no further message of it, and wait up to
        ``timeout`` seconds for those that must end before somebody else may begin. True when none runs."""

    async def drain(self, timeout: float) -> bool:
        """Begin nothing more, wait for the handlers that run, at most ``timeout`` seconds, then cancel them and wait a
        little for that. True when every handler ended by itself."""

    async def sweep(self, now: float, limit: float) -> None:
        """Give up on messages whose handler has run for ``limit`` seconds (the consume timeout)."""


def make_sink(listener: Listener, consumer: Deliverer) -> Sink:
    """The sink for ``listener``; not started."""
    check_state(listener)
    if listener.mode == "orderly":
        return OrderlyDelivery(listener, consumer)
    around = Surroundings(
        group=consumer.group,
        failure=consumer.settlement,
        counters=consumer.counters,
        stats=consumer.stats,
        clock=consumer.client.env.clock,
        hooks=consumer.hooks,
        namespace=consumer.client.config.namespace,
        consume_timeout=consumer.config.consume_timeout,
        moved=consumer.backlog.tell,
    )
    options: dict[str, Any] = {
        "name": f"listener-{listener.topic}",
        "concurrency": listener.concurrency or consumer.config.concurrency,
        "surroundings": around,
        "timeout": listener.timeout,
        "max_attempts": listener.max_attempts,
    }
    size = listener.batch_size or consumer.config.batch_size
    if listener.mode == "batch":
        return BatchDelivery(
            listener.handler, max_wait=listener.max_wait, max_bytes=listener.max_bytes, batch_size=size, **options
        )
    if listener.order_by is not None:
        return KeyedDelivery(
            listener.handler,
            order_by=listener.order_by,
            suspend=listener.suspend or consumer.config.suspend,
            limit=listener.max_attempts or consumer.config.max_attempts,
            call=StatusCall if listener.status else SingleCall,
            **options,
        )
    if listener.status:
        call: type[Call] = StatusCall
    else:
        call = Call if size > 1 else SingleCall
    return Delivery(listener.handler, batch_size=size, call=call, one_queue=listener.status, **options)


async def end_work(sinks: Iterable[Sink], scope: TaskScope) -> None:
    """Begin nothing more and end what still runs in ``scope``, at once: what was to be waited for has been. Without the
    sinks' part a worker whose handler swallows its cancellation would go on to the next message."""
    try:
        await asyncio.gather(*(sink.drain(0.0) for sink in sinks))
    finally:
        await scope.close()
