"""``rate_limit``: so many messages a second, whatever the kind of listener and however many handlers could run."""

from __future__ import annotations

from typing import Any

import pytest

from aiorocket import Consumer, UsageError
from aiorocket.client.push.batch_listener import BatchDelivery
from aiorocket.client.push.calls import Call
from aiorocket.client.push.delivery import Delivery
from aiorocket.client.push.keyed import KeyedDelivery
from aiorocket.client.push.orderly import OrderlyDelivery
from aiorocket.client.push.sinks import Sink
from aiorocket.model import Queue
from tests.client.deliveries import Assigned, World, run

KINDS = ("single", "list", "batch", "keyed", "orderly", "orderly list")


def make(kind: str, handler: Any, world: World, rate: float) -> Sink:
    options: dict[str, Any] = {"name": kind, "concurrency": 8, "surroundings": world.around, "rate": rate}
    match kind:
        case "batch":
            return BatchDelivery(handler, max_wait=0.1, max_bytes=0, batch_size=4, **options)
        case "keyed":
            return KeyedDelivery(handler, order_by=lambda message: message.key, suspend=1.0, limit=3, **options)
        case "orderly" | "orderly list":
            size = 1 if kind == "orderly" else 4
            return OrderlyDelivery(handler, leases=None, suspend=1.0, batch_size=size, **options)
        case "list":
            return Delivery(handler, call=Call, batch_size=4, **options)
        case _:
            return Delivery(handler, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_so_many_a_second_begin_evenly(kind: str) -> None:
    async def scenario(world: World) -> None:
        begins: list[float] = []
        seen: list[Any] = []

        async def handler(given: Any) -> None:
            messages = list(given) if kind in ("batch", "list", "orderly list") else [given]
            begins.extend([world.loop.time()] * len(messages))
            seen.extend(messages)

        sink = make(kind, handler, world, 20)
        queues = [Assigned(), Assigned(Queue("t", "b", 1))]
        began = world.loop.time()
        for queue in queues:
            sink.put(queue.pull(range(100), key=lambda offset: offset % 5))
        while len(seen) < 200:
            await sleep_one(world)
        # So many in every span of time, but for what may be caught up and for a list that begins at once.
        most = 20 * 0.1 + (4 if kind in ("batch", "list", "orderly list") else 1)
        for first in range(200):
            for last in range(first, 200):
                assert last - first + 1 <= 20 * (begins[last] - begins[first]) + most + 1e-6
        assert 9.5 <= begins[-1] - began <= 10.5
        assert len(set(seen)) == 200 and all(queue.process_queue.count == 0 for queue in queues)
        await sink.drain(0)

    run(scenario)


async def sleep_one(world: World) -> None:
    waiter = world.loop.create_future()
    world.loop.call_later(1.0, waiter.set_result, None)
    await waiter


@pytest.mark.parametrize("kind", KINDS)
def test_an_end_does_not_wait_for_anybodys_turn(kind: str) -> None:
    async def scenario(world: World) -> None:
        seen: list[Any] = []

        async def handler(given: Any) -> None:
            seen.append(given)

        sink = make(kind, handler, world, 0.01)
        sink.put(Assigned().pull(range(50)))
        await sleep_one(world)
        begun, now = len(seen), world.loop.time()
        assert begun == 1
        assert await sink.revoke(Queue("t", "b", 0), 5.0)
        assert await sink.drain(30) and world.loop.time() == now
        await sleep_one(world)
        assert len(seen) == begun

    run(scenario)


@pytest.mark.parametrize("rate", [0, -1, "10", float("inf"), float("nan")])
async def test_what_cannot_be(rate: Any) -> None:
    consumer = Consumer("g", nameservers="127.0.0.1:9876")
    for decorate in (consumer.listener, consumer.batch, consumer.orderly):
        with pytest.raises(UsageError, match="rate_limit="):
            decorate("t", rate_limit=rate)
