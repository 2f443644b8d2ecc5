"""Where pulled messages go: one kind of sink per way to deliver, chosen by the listener."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from aiorocket.client.core.stats import SAMPLE_INTERVAL, ConsumeStats
from aiorocket.client.group.leases import Leases
from aiorocket.client.message import Message
from aiorocket.client.middleware import consuming
from aiorocket.client.push.batch_listener import BatchCall, BatchDelivery
from aiorocket.client.push.calls import Call, SingleCall, StatusCall, Surroundings
from aiorocket.client.push.delivery import Delivery
from aiorocket.client.push.keyed import KeyedDelivery
from aiorocket.client.push.listener_state import check_state
from aiorocket.client.push.orderly import OrderlyDelivery
from aiorocket.client.push.plain import in_pool
from aiorocket.client.push.router import Listener
from aiorocket.client.push.workers import Workers
from aiorocket.config import ConsumerConfig
from aiorocket.model import Queue
from aiorocket.runtime.tasks import TaskScope
from aiorocket.runtime.threads import Executor, pool

__all__ = ("Sink", "end_work", "make_sink", "sample_forever", "sweep_forever")

log = logging.getLogger("aiorocket.client")

_LONGEST_SWEEP = 60.0


class Sink(Protocol):
    """Takes runs of messages from the fetchers and brings them to a listener."""

    @property
    def workers(self) -> Workers: ...

    def put(self, messages: Sequence[Message]) -> None:
        """Take messages of one queue, ascending. Hot: one call per pull answer."""

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


def make_sink(listener: Listener, config: ConsumerConfig, surroundings: Surroundings, leases: Leases | None) -> Sink:
    """The sink for ``listener``, its workers at work. ``leases`` are for an orderly one."""
    check_state(listener)
    concurrency = listener.concurrency or config.concurrency

    def threads() -> Executor:
        surroundings.pools.append(pool(concurrency, f"aiorocket-{surroundings.group}-{listener.topic}"))
        return surroundings.pools[-1]

    middleware = (*surroundings.middleware, *listener.middleware)
    handler = consuming(middleware, in_pool(listener.handler, threads), listener.success)
    listener = replace(listener, handler=handler)
    options: dict[str, Any] = {
        "name": f"listener-{listener.topic}",
        "concurrency": concurrency,
        "surroundings": surroundings,
        "timeout": listener.timeout,
        "rate": listener.rate_limit,
        "max_attempts": listener.max_attempts,
    }
    size = listener.batch_size or config.batch_size
    if listener.mode == "orderly":
        options["name"] = f"orderly-{listener.topic}"
        if listener.on_exhausted != "dead_letter":
            options["max_attempts"] = None
        suspend = config.suspend if listener.suspend is None else listener.suspend
        return OrderlyDelivery(
            listener.handler, leases=leases, suspend=suspend, status=listener.status, batch_size=size, **options
        )
    if listener.mode == "batch":
        return BatchDelivery(
            listener.handler, max_wait=listener.max_wait, max_bytes=listener.max_bytes, batch_size=size, **options
        )
    if listener.order_by is not None:
        return KeyedDelivery(
            listener.handler,
            order_by=listener.order_by,
            suspend=listener.suspend or config.suspend,
            limit=listener.max_attempts or config.max_attempts,
            call=StatusCall if listener.status else SingleCall,
            **options,
        )
    if listener.status:
        call: type[Call] = StatusCall
    elif listener.takes_batch:
        call = BatchCall
    else:
        call = Call if size > 1 else SingleCall
    return Delivery(listener.handler, batch_size=size, call=call, one_queue=listener.status, **options)


async def sweep_forever(sinks: Iterable[Sink], limit: float) -> None:
    """Look for handlers that run longer than ``limit`` seconds."""
    while True:
        await asyncio.sleep(min(_LONGEST_SWEEP, limit / 10))
        now = asyncio.get_running_loop().time()
        for sink in sinks:
            await sink.sweep(now, limit)


async def sample_forever(stats: ConsumeStats) -> None:
    """The statistics' one timer."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SAMPLE_INTERVAL)
        stats.sample(loop.time())


async def end_work(sinks: Iterable[Sink], scope: TaskScope, pools: Iterable[Executor] = ()) -> None:
    """Begin nothing more and end what still runs in ``scope``, at once: what was to be waited for has been. Without the
    sinks' part a worker whose handler swallows its cancellation would go on to the next message. A handler that
    swallows each is left to itself; its messages are others' by now, and what it ends with counts for nothing."""
    try:
        await asyncio.gather(*(sink.drain(0.0) for sink in sinks))
    finally:
        for each in pools:
            each.shutdown(wait=False, cancel_futures=True)  # what runs on there has no effect any more
        left = [worker.task for sink in sinks for worker in sink.workers.all if worker.task is not None]
        await scope.close(besides=left)
    if left:
        names = ", ".join(task.get_name() for task in left)
        log.warning("stopped, and left to themselves handlers that do not let themselves be cancelled: %s", names)
