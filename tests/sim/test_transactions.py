"""Transactions in virtual time, with producers and a broker that die in the middle: what happened by the application's
database is what consumers get, and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from aiorocket.broker import Broker
from aiorocket.client.message import Message
from aiorocket.client.push.consumer import Consumer
from aiorocket.client.sending.transaction import TransactionProducer
from aiorocket.config import BrokerConfig, NameServerConfig, StoreConfig
from aiorocket.errors import RocketError
from aiorocket.model import TxState
from aiorocket.nameserver import NameServer
from aiorocket.testing import SimDisk, SimHost, Simulation, simulate

NAMES = "10.0.0.1:9876"
PAYMENTS = 60


class Bank:
    """The application's database, and what was certainly never to be."""

    def __init__(self) -> None:
        self.paid: set[str] = set()
        self.failed: set[str] = set()

    async def check(self, message: Message) -> TxState:
        # Whoever is not paid by now never will be: the broker asks after 6 s at the earliest, a payment takes less.
        return TxState.COMMIT if message.keys[0] in self.paid else TxState.ROLLBACK


async def pay(producer: TransactionProducer, bank: Bank, key: str, dice: random.Random) -> None:
    try:
        async with producer.transaction("payments", key.encode(), keys=[key]) as tx:
            await asyncio.sleep(dice.random())
            if dice.random() < 0.3:
                bank.failed.add(key)
                raise ValueError("no money")
            bank.paid.add(key)
            if dice.random() < 0.3:
                tx.leave_unknown()
    except (ValueError, RocketError):
        if key not in bank.paid:
            bank.failed.add(key)


async def start_broker(sim: Simulation, disk: SimDisk) -> tuple[SimHost, Broker]:
    host = sim.host("10.0.0.2")
    store = StoreConfig(segment_size=64 * 1024, min_free=64 * 1024)
    config = BrokerConfig(host="10.0.0.2", port=10911, data="store", nameservers=(NAMES,), store=store)
    broker = Broker(sim.env(disk=disk), config)
    await host.run(broker.start())
    return host, broker


@pytest.mark.seeds(8)
def test_consumers_get_what_was_paid_and_nothing_else(seed: int) -> None:
    async def main(sim: Simulation) -> None:
        dice, bank, disk = random.Random(seed), Bank(), sim.disk()
        names_host = sim.host("10.0.0.1")
        names = NameServer(sim.env(), NameServerConfig(host="10.0.0.1", open_registration=True))
        await names_host.run(names.start())
        broker_host, broker = await start_broker(sim, disk)

        seen: Counter[str] = Counter()
        consumer_host = sim.host("10.0.3.1")
        consumer = Consumer("shipping", nameservers=NAMES, env=sim.env())

        async def ship(message: Message) -> None:
            seen[message.keys[0]] += 1

        consumer.listener("payments", start_from="first")(ship)

        async def pay_all(producer: TransactionProducer, first: int) -> None:
            for number in range(first, PAYMENTS, 2):
                await pay(producer, bank, f"p-{number}", dice)

        producers = []
        for number in range(2):
            host = sim.host(f"10.0.1.{number + 1}")
            producer = TransactionProducer("bank", nameservers=NAMES, env=sim.env(), checker=bank.check)
            await host.run(producer.start())
            producers.append((host, producer))
        await producers[1][0].run(producers[1][1].send("payments", b"hello", keys=["hello"]))
        await consumer_host.run(consumer.start())
        paying = [host.start(pay_all(producer, number)) for number, (host, producer) in enumerate(producers)]

        await asyncio.sleep(2 + dice.random() * 10)
        # One producer dies in the middle of something; later the broker loses power, and comes back.
        producers[0][0].kill(power_cut=True)
        await asyncio.sleep(dice.random() * 5)
        broker_host.kill(power_cut=True)
        disk.crash()
        await asyncio.sleep(dice.random() * 3)
        broker_host, broker = await start_broker(sim, disk)
        await paying[1]
        await asyncio.sleep(300)

        assert set(seen) - {"hello"} == bank.paid
        assert not bank.failed & set(seen)
        assert len(bank.paid) > PAYMENTS / 5

        await producers[1][0].run(producers[1][1].stop())
        await consumer_host.run(consumer.stop())
        await broker_host.run(broker.close())
        await names_host.run(names.close())

    simulate(main, seed)


@pytest.mark.seeds(2)
def test_the_check_of_a_transaction_that_made_its_topic_finds_its_producer(seed: int) -> None:
    """The topic has no route until a broker has made it, and the client looks for routes every 30 s only."""

    async def main(sim: Simulation) -> None:
        bank = Bank()
        names_host, sender_host = sim.host("10.0.0.1"), sim.host("10.0.1.1")
        names = NameServer(sim.env(), NameServerConfig(host="10.0.0.1", open_registration=True))
        await names_host.run(names.start())
        broker_host, broker = await start_broker(sim, sim.disk())
        producer = TransactionProducer("bank", nameservers=NAMES, env=sim.env(), checker=bank.check)
        await sender_host.run(producer.start())

        async def pay_and_forget() -> None:
            async with producer.transaction("payments", b"1", keys=["p-1"]) as tx:
                bank.paid.add("p-1")
                tx.leave_unknown()

        await sender_host.run(pay_and_forget())
        await asyncio.sleep(8)  # asked after 6
        assert sum(broker.store.max_offset("payments", queue) for queue in range(4)) == 1
        await sender_host.run(producer.stop())
        await broker_host.run(broker.close())
        await names_host.run(names.close())

    simulate(main, seed)
