"""A broker that ends in the middle of something, as ``test_broker_restarts.py`` and the harness have it."""

from __future__ import annotations

import asyncio
from functools import partial

from aiorocket.client.exits import Retry
from aiorocket.client.message import Message
from aiorocket.remoting.connection import Connection
from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate
from aiorocket_protocol import RemotingCommand, RequestCode

__all__ = ("PHASES", "nothing_acknowledged_is_lost")

PHASES = {
    "send": RequestCode.SEND_MESSAGE_V2,
    "pull": RequestCode.PULL_MESSAGE,
    "commit": RequestCode.UPDATE_CONSUMER_OFFSET,
    "send-back": RequestCode.CONSUMER_SEND_MSG_BACK,
    "heartbeat": RequestCode.HEART_BEAT,
    "rebalance": RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    "locks": RequestCode.LOCK_BATCH_MQ,
    "start": RequestCode.QUERY_CONSUMER_OFFSET,
}


def nothing_acknowledged_is_lost(phase: str, how: bool | None, seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async def listen(message: Message) -> None:
            if message.attempt == 1 and message.queue_offset % 4 == 0:
                raise Retry

        async with SimCluster(sim) as cluster:
            broker = cluster.brokers[0]
            await cluster.create_topic("t", 4)
            orderly = phase == "locks"
            for _ in range(2):
                await cluster.consumer("g", "t", listen, orderly=orderly)
            sender = await cluster.producer()
            left = 1 if phase == "start" else 3 + seed * 4  # requests of the phase until it strikes
            struck = asyncio.Event()

            def watch(connection: Connection, request: RemotingCommand) -> None:
                nonlocal left
                if request.code == PHASES[phase]:
                    left -= 1
                    if left == 0:
                        struck.set()

            broker.faults.watch(watch)

            async def send_all() -> None:
                for number in range(100):
                    await sender.send("t", f"m{number}")
                    await asyncio.sleep(0.4)

            sending = asyncio.ensure_future(send_all())
            if phase == "start":
                third = await cluster.consumer("g", "t", listen, start=False)
                starting = asyncio.ensure_future(third.start())
            await asyncio.wait_for(struck.wait(), 200)
            # Somewhere within the handling: the append, the flush, the answer on its way.
            await asyncio.sleep(sim.loop.random.uniform(0, 0.003))
            await broker.restart(power_cut=how, pause=3)
            await sending
            if phase == "start":
                await starting
            await cluster.settled({"g": ["t"]})
            await asyncio.sleep(40)
            assert all(len(owners) == 1 for owners in cluster.owners("g", "t").values())
            assert len(cluster.history.of("acknowledged")) >= 90
            assert cluster.note_dead_letters("g")["g"] == []
        check(cluster.history, checkers.CLUSTER)
        if orderly:
            check(cluster.history, [partial(checkers.orderly, group="g"), partial(checkers.one_at_a_time, group="g")])

    simulate(scenario, seed)
