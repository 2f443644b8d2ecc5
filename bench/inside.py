"""The way of a message in one process: the real client, broker, store and frames over a network and a disk in memory.

    python -m bench.inside single 1000        prints {"client": ..., "remoting": ..., ...}: Python calls of each layer

Time is virtual and every draw comes from a seed, so two runs make the same calls. What the simulation itself does is
not counted. ``bench.calls --inside`` takes a short run from a long one: what is left is the cost of a message.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import random
import re
from collections import Counter

from aiorocket.broker.broker import Broker
from aiorocket.client.app import Client
from aiorocket.client.message import Message
from aiorocket.client.push.consumer import Consumer
from aiorocket.client.sending.producer import Producer
from aiorocket.client.topic_admin import configure
from aiorocket.config import BrokerConfig, ClientConfig, NameServerConfig
from aiorocket.nameserver.server import NameServer
from aiorocket.testing.sim import Simulation, simulate

TOPIC = "bench"
BODY = bytes(range(256)) * 4
BATCH = 32
#: Messages under way, as many as fill the groups of a busy broker.
IN_FLIGHT = 256
SCENARIOS = ("single", "batch", "drain")

_LAYER = re.compile(r"(?:aiorocket/(client|broker|storage|remoting|runtime)|(aiorocket_protocol))/")


class Even(random.Random):
    """Every piece is as large as it may be and takes as long as the others: what a loop turn brings is the product's
    choice."""

    def random(self) -> float:
        return 0.5


async def scenario(simulation: Simulation, name: str, count: int) -> None:
    """Send ``count`` messages and consume them; "drain": batches first, then their consumer."""
    simulation.network.random = Even()
    names = NameServer(simulation.env(), NameServerConfig(host="127.0.0.1", port=9876))
    machine = simulation.host("10.0.0.1")
    await machine.run(names.start())
    endpoints = ("10.0.0.1:9876",)
    config = BrokerConfig(host="127.0.0.1", advertise="10.0.0.1", port=10911, nameservers=endpoints)
    broker = Broker(simulation.env(), config)
    await machine.run(broker.start())
    home = simulation.host("10.0.0.2")
    await home.run(client(simulation, endpoints, name, count))
    await machine.run(broker.close())
    await machine.run(names.close())


async def client(simulation: Simulation, endpoints: tuple[str, ...], name: str, count: int) -> None:
    async def connected() -> Client:
        made = Client(nameservers=endpoints, env=simulation.env(), config=ClientConfig())
        await made.start()
        return made

    arrived = asyncio.Event()
    consumed = 0

    async def listen(_message: Message) -> None:
        nonlocal consumed
        consumed += 1
        if consumed == count:
            arrived.set()

    sending, taking = await connected(), await connected()
    await configure(sending.session, "10.0.0.1:10911", TOPIC, 4)
    consumer = Consumer("inside", client=taking)
    consumer.listener(TOPIC, start_from="first")(listen)
    async with Producer("inside-producer", client=sending) as producer:
        if name != "drain":
            await consumer.start()
        await send(producer, count, 1 if name == "single" else BATCH)
        if name == "drain":
            await consumer.start()
        await arrived.wait()
        await consumer.stop()
    await sending.stop()
    await taking.stop()


async def send(producer: Producer, count: int, batch: int) -> None:
    rest = count // batch
    bodies = [BODY] * batch

    async def sender() -> None:
        nonlocal rest
        while rest > 0:
            rest -= 1
            await (producer.send(TOPIC, BODY) if batch == 1 else producer.send_batch(TOPIC, bodies))

    await asyncio.gather(*(sender() for _ in range(IN_FLIGHT // batch)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("count", type=int)
    parser.add_argument("--plain", action="store_true", help="count nothing, for a tool that counts instructions")
    options = parser.parse_args()
    profiler = cProfile.Profile(builtins=False)
    if not options.plain:
        profiler.enable()
    simulate(lambda simulation: scenario(simulation, options.scenario, options.count))
    profiler.disable()
    calls: Counter[str] = Counter()
    for entry in profiler.getstats():
        if not isinstance(entry.code, str) and (found := _LAYER.search(entry.code.co_filename)):
            calls[found[1] or "protocol"] += entry.callcount
    print(json.dumps(calls, sort_keys=True))


if __name__ == "__main__":
    main()
