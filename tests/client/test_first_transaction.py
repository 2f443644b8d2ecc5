"""A transaction on a topic that its own half message creates: its broker knows the producer group at once."""

from __future__ import annotations

import asyncio

from aiorocket.client.message import Message
from aiorocket.client.sending.transaction import TransactionProducer
from aiorocket.config import BrokerConfig
from aiorocket.model import TxState
from aiorocket.testing import SimCluster, Simulation, simulate
from aiorocket.testing.cluster import SMALL_STORE


def test_the_check_back_is_answered_before_the_next_heartbeat_is_due() -> None:
    async def main(sim: Simulation) -> None:
        settings = BrokerConfig(store=SMALL_STORE, transaction_timeout=1.0, transaction_check_interval=1.0)
        async with SimCluster(sim, brokers=2, broker=settings) as cluster:
            host, asked = sim.host("10.2.0.1"), list[float]()

            async def check(message: Message) -> TxState:
                asked.append(asyncio.get_running_loop().time())
                return TxState.COMMIT

            async def scene() -> None:
                producer = TransactionProducer("pay", nameservers=cluster.endpoints, env=sim.env(), checker=check)
                async with producer:
                    await asyncio.sleep(5)  # the heartbeat of the start had nobody to go to
                    begun = asyncio.get_running_loop().time()
                    async with producer.transaction("never-heard-of", b"42 EUR") as tx:
                        tx.leave_unknown()
                    await asyncio.sleep(5)
                    assert len(asked) == 1 and asked[0] - begun < 5

            await host.run(scene())

    simulate(main)
