"""What runs inside a child process of a product scenario: the public API, driven by JSON lines on standard input.

    {"do": "send", "count": 1000, "in_flight": 256, "batch": 1, "size": 1024}    producer
    {"do": "expect", "count": 1000} · {"do": "stop"}        consumer
    {"do": "first", "count": 20}                                                  fresh: consumers one after the other
    {"do": "park", "connections": 10000} · {"do": "wake", "count": 1000}          parked
    {"do": "count"}                                                               any, with --instrument calls
    {"do": "begin"}                                                               any, with --instrument profile

``--instrument calls`` counts entered Python frames (resumptions of coroutines included) of the loop's thread,
``--instrument profile`` writes a cProfile file to ``--profile`` at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiorocket
from aiorocket.runtime.loop import run
from bench.parked import park, wake


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


class Instrument:
    """Counting is cProfile's own, in C: it adds no noise to the number of calls of Python functions."""

    def __init__(self, kind: str, path: str | None) -> None:
        self.path = path if kind == "profile" else None
        # Calls of C functions are not seen: their time belongs to the caller then, and the profile costs a third.
        self.profiler = cProfile.Profile(builtins=False) if kind != "none" else None

    def enable(self) -> None:
        if self.profiler is not None:
            self.profiler.enable()

    def begin(self) -> None:
        """Forget what was recorded until now."""
        if self.profiler is not None:
            self.profiler.disable()
            self.profiler.clear()
            self.profiler.enable()

    def counts(self) -> dict[str, int]:
        """Calls so far by ``file:line function``, the bench's own left out."""
        assert self.profiler is not None
        self.profiler.disable()
        found: dict[str, int] = {}
        for entry in self.profiler.getstats():
            code = entry.code
            if isinstance(code, str) or f"{os.sep}bench{os.sep}" in code.co_filename:
                continue
            place = "/".join(code.co_filename.split(os.sep)[-3:])
            key = f"{place}:{code.co_firstlineno} {code.co_qualname}"
            found[key] = found.get(key, 0) + entry.callcount
        self.profiler.enable()
        return found

    def finish(self) -> None:
        if self.profiler is not None:
            self.profiler.disable()
            if self.path:
                self.profiler.dump_stats(self.path)


async def commands(instrument: Instrument) -> AsyncIterator[dict[str, Any]]:
    """The parent's words until it closes the pipe; those that every role answers alike are answered here."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            command = json.loads(line)
            if command["do"] == "count":
                say(calls=instrument.counts())
            elif command["do"] == "begin":
                instrument.begin()
                say(begun=True)
            else:
                yield command
    finally:
        transport.close()


async def server(options: argparse.Namespace, instrument: Instrument) -> None:
    """Name server and broker as ``aiorocket standalone`` runs them, where an instrument must be in the same process."""
    from aiorocket.broker.broker import Broker
    from aiorocket.config import BrokerConfig, NameServerConfig, StoreConfig
    from aiorocket.nameserver.server import NameServer
    from aiorocket.runtime.env import real_env

    env = real_env()
    names = NameServer(env, NameServerConfig(port=0))
    await names.start()
    config = BrokerConfig(
        port=0, data=options.data, nameservers=(f"127.0.0.1:{names.port}",), store=StoreConfig(flush=options.flush)
    )
    broker = Broker(env, config)
    await broker.start()
    instrument.enable()
    say(nameserver=names.port, broker=broker.port)
    async for _ in commands(instrument):
        pass
    await broker.close()
    await names.close()
    await env.disk.close()


async def producer(options: argparse.Namespace, instrument: Instrument) -> None:
    async with aiorocket.Producer("bench-producer", nameservers=options.nameserver) as rocket:
        instrument.enable()
        say(ready=True)
        async for command in commands(instrument):
            await send(rocket, options.topic, command)


async def send(rocket: aiorocket.Producer, topic: str, command: dict[str, Any]) -> None:
    count, batch = command["count"], command["batch"]
    body = os.urandom(command["size"])
    bodies = [body] * batch
    requests = count // batch
    sent = acknowledged = 0

    async def sender() -> None:
        nonlocal sent, acknowledged
        while sent < requests:
            sent += 1
            await rocket.send(topic, body)
            acknowledged += 1

    async def batch_sender() -> None:
        nonlocal sent, acknowledged
        while sent < requests:
            sent += 1
            await rocket.send_batch(topic, bodies)
            acknowledged += 1

    cpu, started = time.process_time(), time.monotonic()
    await asyncio.gather(*((sender if batch == 1 else batch_sender)() for _ in range(command["in_flight"])))
    ended = time.monotonic()
    used = time.process_time() - cpu
    say(sent=sent * batch, acknowledged=acknowledged * batch, started=started, ended=ended, cpu=used)


def percentiles(times: list[float]) -> dict[str, float]:
    """Milliseconds of a sorted list."""
    last = len(times) - 1
    parts = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {name: round(times[int(last * part)], 3) for name, part in parts.items()}


def groups_of(name: str, count: int) -> list[str]:
    """The groups of a consumer process: one with this name, or so many with names of their own."""
    return [name] if count == 1 else [f"{name}-{number}" for number in range(count)]


async def consumer(options: argparse.Namespace, instrument: Instrument) -> None:
    loop = asyncio.get_running_loop()
    names = groups_of(options.group, options.groups)
    rockets = [aiorocket.Consumer(name, nameservers=options.nameserver) for name in names]
    consumed, target, first = 0, -1, 0.0
    arrived = asyncio.Event()

    async def count(message: aiorocket.Message) -> None:
        nonlocal consumed, first
        consumed += 1
        if consumed == target:
            arrived.set()
        elif consumed == 1:
            first = time.monotonic()

    async def count_batch(messages: list[aiorocket.Message]) -> None:
        nonlocal consumed, first
        if not consumed:
            first = time.monotonic()
        consumed += len(messages)
        if consumed == target:
            arrived.set()

    for rocket in rockets:
        if options.orderly:
            handler = count_batch if options.orderly > 1 else count
            rocket.orderly(options.topic, batch_size=options.orderly, start_from="first")(handler)
        else:
            rocket.listener(options.topic, start_from="first")(count)
        if options.paused:
            rocket.pause()
    cpu = time.process_time()
    starting = loop.time()
    if options.wait and not options.paused:
        say(ready=True)
    else:
        await asyncio.gather(*(rocket.start() for rocket in rockets))
        instrument.enable()
        say(ready=True)
    async for command in commands(instrument):
        if command["do"] == "expect":
            target = command["count"]
            if options.wait and not consumed:
                cpu, starting = time.process_time(), time.monotonic()
                instrument.enable()
                if options.paused:
                    for rocket in rockets:
                        rocket.resume()
                else:
                    await asyncio.gather(*(rocket.start() for rocket in rockets))
            if consumed < target:
                await arrived.wait()
            arrived.clear()
            ended = time.monotonic()
            used = time.process_time() - cpu
            say(consumed=consumed, first=first, started=starting, ended=ended, cpu=used)
            cpu = time.process_time()
        elif command["do"] == "stop":
            await asyncio.gather(*(rocket.stop() for rocket in rockets))
            say(consumed=consumed)


async def fresh(options: argparse.Namespace, instrument: Instrument) -> None:
    """Consumers of groups nobody knows, one after the other: milliseconds from ``start()`` to the first message."""
    say(ready=True)
    async for command in commands(instrument):
        times = []
        for number in range(command["count"]):
            rocket = aiorocket.Consumer(f"fresh-{os.getpid()}-{number}", nameservers=options.nameserver)
            arrived = asyncio.Event()

            @rocket.listener(options.topic, start_from="first")
            async def on_message(message: aiorocket.Message, arrived: asyncio.Event = arrived) -> None:
                arrived.set()

            began = time.monotonic()
            await rocket.start()
            await arrived.wait()
            times.append(round((time.monotonic() - began) * 1e3, 2))
            await rocket.stop()
        say(times=times)


async def parked(options: argparse.Namespace, instrument: Instrument) -> None:
    say(ready=True)
    pullers = []
    async for command in commands(instrument):
        if command["do"] == "park":
            pullers = await park(options.broker, command["connections"], options.topic)
            say(parked=len(pullers))
        else:
            times = await wake(options.broker, pullers, command["count"])
            say(woken=len(times), **percentiles(sorted(times)))
    for each in pullers:
        each.transport.abort()


ROLES = {"server": server, "producer": producer, "consumer": consumer, "fresh": fresh, "parked": parked}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=tuple(ROLES))
    parser.add_argument("--nameserver")
    parser.add_argument("--topic", default="bench")
    parser.add_argument("--group", default="bench-consumer")
    parser.add_argument("--groups", type=int, default=1, help="so many groups, each of which gets everything")
    parser.add_argument("--data")
    parser.add_argument("--flush", default="async")
    parser.add_argument("--wait", action="store_true", help="start the consumer at the first 'expect', not at once")
    parser.add_argument("--paused", action="store_true", help="with --wait: get the queues at once, pull then")
    parser.add_argument("--orderly", type=int, default=0, help="an orderly listener with batches of this size")
    parser.add_argument("--broker", type=int)
    parser.add_argument("--instrument", choices=("none", "calls", "profile"), default="none")
    parser.add_argument("--profile")
    options = parser.parse_args()
    instrument = Instrument(options.instrument, options.profile)
    run(ROLES[options.role](options, instrument))
    instrument.finish()


if __name__ == "__main__":
    main()
