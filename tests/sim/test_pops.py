"""Consumers that pop, while brokers and consumers die: at least once, and what was acknowledged is done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiorocket.client.pop.popped import PoppedMessage
from aiorocket.client.pop.simple_consumer import SimpleConsumer
from aiorocket.errors import RocketError
from aiorocket.testing import SimCluster, Simulation, simulate


class Worker:
    """A simple consumer on a machine of its own, and what it saw."""

    def __init__(self, sim: Simulation, cluster: SimCluster, number: int, seen: list[tuple[float, str]]) -> None:
        self._sim = sim
        self._seen = seen
        self.host = sim.host(f"10.0.7.{number}")
        self.consumer = SimpleConsumer("g", nameservers=cluster.endpoints, env=sim.env())
        #: What was acknowledged, and when that was certain.
        self.acknowledged: dict[str, float] = {}
        self.task: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        await self.host.run(self.consumer.start())
        await self.consumer.subscribe("t", start_from="first")
        self.task = self.host.start(self._work())

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.host.run(self.consumer.stop())

    async def _work(self) -> None:
        random = self._sim.loop.random
        while True:
            found = await self.consumer.receive(random.randrange(1, 9), invisible=5.0, timeout=10.0)
            now = self._sim.loop.time()
            self._seen += [(now, message.body.decode()) for message in found]
            await asyncio.gather(*(self._one(message, random.random()) for message in found))

    async def _one(self, message: PoppedMessage, fate: float) -> None:
        body = message.body.decode()
        try:
            if fate < 0.1:
                return  # forgotten
            if fate < 0.2:
                await message.retry(after=1.0)
            elif fate < 0.3:
                async with message.process():
                    await asyncio.sleep(8.0)  # longer than it is invisible
                # Whether that was in time is in the log only.
            else:
                await asyncio.sleep(fate / 10)
                if await message.ack():
                    self.acknowledged[body] = self._sim.loop.time()
        except RocketError:
            pass  # nobody knows


@pytest.mark.parametrize("how", [None, False, True], ids=["stop", "kill", "power-cut"])
@pytest.mark.seeds(2)
def test_nothing_is_lost_and_what_was_acknowledged_is_done(how: bool | None, seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        seen: list[tuple[float, str]] = []
        async with SimCluster(sim, brokers=2) as cluster:
            await cluster.create_topic("t", 3)
            workers = [Worker(sim, cluster, number, seen) for number in range(3)]
            for worker in workers:
                await worker.start()
            sender = await cluster.producer()

            async def send_all() -> None:
                for number in range(80):
                    await sender.send("t", f"m{number}")
                    await asyncio.sleep(0.3)

            sending = asyncio.ensure_future(send_all())
            for number in range(2):
                await asyncio.sleep(6 + sim.loop.random.random() * 3)
                await cluster.brokers[number].restart(power_cut=how, pause=2)
            if how is not None:
                workers[0].host.kill(power_cut=how)
                spare = Worker(sim, cluster, 9, seen)
                await spare.start()
                workers.append(spare)
            await sending
            # The longest a message may be with somebody, several times over.
            await asyncio.sleep(200)
            calm = sim.loop.time()
            await asyncio.sleep(60)
            assert [body for at, body in seen if at > calm] == []
            assert all(broker.broker.popped == 0 for broker in cluster.brokers)
            sent = cluster.history.keys("acknowledged")
            assert len(sent) >= 70 and sent <= {body for _, body in seen}
            done = {body: at for worker in workers for body, at in worker.acknowledged.items()}
            if not how:  # a power cut may tear the log between a message that is stored again and the record of that
                again = [body for at, body in seen if at > done.get(body, at)]
                assert again == []
            for worker in workers if how is None else workers[1:]:
                await worker.stop()

    simulate(scenario, seed)


def test_a_message_stays_invisible_while_its_block_runs() -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            sender = await cluster.producer()
            await sender.send("t", "long")
            host = sim.host("10.0.7.1")
            consumer = SimpleConsumer("g", nameservers=cluster.endpoints, env=sim.env())

            async def work() -> None:
                async with consumer:
                    await consumer.subscribe("t", start_from="first")
                    (message,) = await consumer.receive(invisible=10.0, timeout=5)
                    first = message.handle
                    async with message.process():
                        await asyncio.sleep(0.1)  # the record of the pop is durable
                        await cluster.brokers[0].restart(power_cut=True, pause=2)
                        assert await consumer.receive(timeout=100) == []
                    assert message.handle.pop_time >= first.pop_time + 90_000 and message.settled
                    assert await consumer.receive(timeout=30) == []

            await host.run(work())

    simulate(scenario)
