"""Groups whose listeners take long: orderly ones whose calls outlast their locks and once in a while keep the loop for
that long, on links that are slow and then away, and broadcasting members, each of which reads everything and goes on
where its own file says."""

from __future__ import annotations

import asyncio
import random

from aiorocket import Message
from aiorocket.config import ClientConfig, ConsumerConfig
from aiorocket.testing import checkers
from aiorocket.testing.cluster import SimCluster
from aiorocket.testing.history import History
from aiorocket.testing.machines import key_of
from aiorocket.testing.sim import Simulation, simulate

__all__ = ("broadcasting", "long_calls")

_TOPIC, _GROUP = "t", "g"
_READER = ConsumerConfig(message_model="broadcasting", offset_store_dir="offsets")
#: The file belongs to the client id, which must be the same after a restart.
_STABLE = ClientConfig(instance="reader")
#: A position is in its file after this long.
_SAVED = 15.0


def long_calls(seed: int) -> int:
    """Run one seed and return how many calls there were. AssertionError when two members have a queue at once, or one
    has it longer than its lock."""

    async def main(sim: Simulation) -> int:
        draw = random.Random(f"long calls {seed}")

        # What keeps one loop keeps all of them here, so calls of others end late as well.
        blocking = draw.random() < 0.4
        kept: set[str] = set()

        async def listen(message: Message) -> None:
            key = key_of(message.body)
            kind = key.partition("-")[0]
            if kind == "blocks" and key not in kept:
                kept.add(key)
                sim.loop.block(draw.uniform(28.0, 40.0))
            elif kind == "long":
                await asyncio.sleep(draw.uniform(10.0, 60.0))
            else:
                await asyncio.sleep(draw.choice((0.0, 0.1)))

        cluster = SimCluster(sim)
        await cluster.start()
        await cluster.create_topic(_TOPIC, 2)
        config = ConsumerConfig(drain_timeout=3.0)
        members = [await cluster.consumer(_GROUP, _TOPIC, listen, config=config, orderly=True) for _ in range(2)]
        sender = await cluster.producer()
        for number in range(12):
            kind = draw.choices(("short", "long", "blocks"), (5, 4, 2 * blocking))[0]
            await sender.send(_TOPIC, f"{kind}-{number}", timeout=60.0)
        for _ in range(3):
            await asyncio.sleep(draw.uniform(1.0, 20.0))
            member = draw.choice(members)
            fate = draw.random()
            if fate < 0.6:
                if fate < 0.4:  # the last that is heard of the broker was long on its way
                    cluster.slow_link(member.address, cluster.brokers[0].address, 0.5, 2.9)
                    await asyncio.sleep(draw.uniform(15.0, 45.0))
                cluster.partition([member.address], [cluster.brokers[0].address])
                await asyncio.sleep(draw.uniform(20.0, 50.0))
                cluster.heal()
            else:
                await member.stop()
                await member.start_again()
        await cluster.settled({_GROUP: (_TOPIC,)}, within=3600.0)
        await cluster.close()
        history = cluster.history
        found = checkers.leases_in_time(history, _GROUP) + checkers.one_at_a_time(history, _GROUP)
        found += checkers.orderly(history, _GROUP) + checkers.leases_exclusive(history)
        if not blocking:
            found += checkers.calls_end_in_time(history, _GROUP)
        if found:
            raise checkers.HistoryError(history, found)
        return len(history.of("delivered"))

    return simulate(main, seed)


def broadcasting(seed: int) -> int:
    """Run one seed and return how many messages were sent. AssertionError when a member misses one, gets them in
    another order, or gets again what it had long since."""

    async def main(sim: Simulation) -> int:
        draw = random.Random(f"broadcasting {seed}")

        async def read(message: Message) -> None:
            await asyncio.sleep(draw.uniform(0.0, 1.0))

        cluster = SimCluster(sim)
        await cluster.start()
        await cluster.create_topic(_TOPIC, 2)
        sender = await cluster.producer()
        members = [await cluster.consumer(_GROUP, _TOPIC, read, config=_READER, client=_STABLE) for _ in range(2)]
        for number in range(40):
            await sender.send(_TOPIC, f"m{number}", timeout=10.0)
            if number % 8 == 5:
                member = draw.choice(members)
                if draw.random() < 0.3:
                    await member.stop()
                else:
                    member.kill(power_cut=draw.random() < 0.7)
                await asyncio.sleep(draw.uniform(0.0, 20.0))
                await member.start_again()
            await asyncio.sleep(draw.uniform(0.0, 3.0))
        await asyncio.sleep(60.0 + _SAVED)
        since = sim.loop.time()
        for member in members:
            member.kill(power_cut=True)
            await member.start_again()
        await asyncio.sleep(30.0)
        await cluster.close()
        found = checkers.settled_for_good(cluster.history, since)
        for member in members:
            own = [each for each in cluster.history if each.what == "acknowledged" or each.host == member.address]
            for checker in (checkers.no_message_lost, checkers.order_per_queue, checkers.offsets_stable):
                found += checker(History(events=own))
        if found:
            raise checkers.HistoryError(cluster.history, found)
        return len(cluster.history.keys("acknowledged"))

    return simulate(main, seed)
