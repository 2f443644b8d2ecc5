"""A scenario on a cluster in virtual time, which has the topic "t"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiorocket.config import BrokerConfig, ClientConfig
from aiorocket.testing import SimCluster, Simulation, simulate

Scenario = Callable[[SimCluster], Awaitable[None]]


def run(
    scenario: Scenario,
    seed: int = 0,
    *,
    queues: int = 1,
    brokers: int = 1,
    broker: BrokerConfig | None = None,
    client: ClientConfig | None = None,
) -> None:
    async def main(sim: Simulation) -> None:
        async with SimCluster(sim, brokers=brokers, broker=broker, client=client) as cluster:
            await cluster.create_topic("t", queues)
            await scenario(cluster)

    simulate(main, seed)
