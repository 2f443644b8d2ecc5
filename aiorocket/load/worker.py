"""One process of the load: its share of producers, consumers and idle connections, told what to do in JSON lines.

    in:   {"scenario": {...}, "config": {...}, "number": 0, "brokers": [...], "run": "0f"}
          {"go": nanoseconds}   {"look": true}   {"bits": true}   {"stop": true}
    out:  {"ready": true}   {"second": ...} while it runs   {"sent": true} after the last send   {"result": ...}

Times are of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import sys
import time
import zlib
from contextlib import AsyncExitStack
from typing import Any

from hdrh.histogram import HdrHistogram

import aiorocket
from aiorocket.load.scenario import HEAD, Scenario
from aiorocket.runtime.loop import run

__all__ = ("main",)

#: Producer, number, and when it was due, in front of a body.
_STAMP = struct.Struct(">QQQ")
assert _STAMP.size == HEAD
#: Microseconds, up to an hour, three digits.
_RANGE = 1, 3_600_000_000, 3
_LAG_EVERY = 0.01
#: Nanoseconds by which a timer may be late: loops count milliseconds, and round up.
_TIMER = 1_000_000


def _histogram() -> Any:
    return HdrHistogram(*_RANGE)


class _Worker:
    def __init__(self, order: dict[str, Any]) -> None:
        self.scenario = Scenario(**order["scenario"])
        tls = order["config"]["tls"]
        config = {**order["config"], "tls": aiorocket.TlsConfig(**tls) if isinstance(tls, dict) else tls}
        self.config = aiorocket.ClientConfig(**config)
        self.number: int = order["number"]
        self.brokers: list[str] = order["brokers"]
        self.run: str = order["run"]
        self.sends, self.services, self.ends, self.lags = (_histogram() for _ in range(4))
        self.acknowledged = self.failed = self.received = self.behind = 0
        self.errors: dict[str, int] = {}
        #: Of a producer's messages which were acknowledged, of a group's which came, one bit each.
        self.sent_bits: dict[int, bytearray] = {}
        self.came_bits: dict[tuple[int, int], bytearray] = {}
        self.duplicates = 0
        self.last_offset: dict[tuple[int, str, str, int], int] = {}
        self.out_of_order = 0
        self.seconds: dict[int, list[int]] = {}
        self.start = self.measured_from = self.measured_to = 0
        self.cpu = 0.0
        self.measured = self.measured_received = 0

    # ---- sending

    def _second(self, now: int) -> list[int]:
        """Acknowledged, received and slowest send of a second of the run."""
        return self.seconds.setdefault((now - self.start) // 1_000_000_000, [0, 0, 0])

    async def produce(self, producer: aiorocket.Producer, who: int) -> None:
        scenario = self.scenario
        topics = scenario.topic_names()
        self.sent_bits[who] = bytearray()
        step = 1e9 * scenario.producers * scenario.batch / scenario.rate if scenario.rate else 0.0
        end = self.measured_to
        loop_now = time.perf_counter_ns
        count = 0
        padding = bytes(scenario.size - HEAD)

        async def one() -> None:
            nonlocal count
            while True:
                turn = count
                due = self.start + int((turn + (who & 0xFFFFFFFF) / scenario.producers) * step) if step else loop_now()
                if due >= end:
                    return
                count += 1
                if step and (wait := due - loop_now()) > 0:
                    await asyncio.sleep(max(0, wait - _TIMER) / 1e9)
                began = loop_now()
                due = min(due, began)  # rather one millisecond too early: late, the timer would be in the latency
                first = turn * scenario.batch
                bodies = [_STAMP.pack(who, first + n, due) + padding for n in range(scenario.batch)]
                try:
                    await self._send(producer, topics[turn % len(topics)], bodies, first)
                except aiorocket.RocketError as error:
                    self.failed += len(bodies)
                    name = type(error).__name__
                    self.errors[name] = self.errors.get(name, 0) + 1
                    continue
                self._acknowledged(who, first, len(bodies), due, began, loop_now())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(scenario.in_flight):
                tasks.create_task(one())

    async def _send(self, producer: aiorocket.Producer, topic: str, bodies: list[bytes], first: int) -> None:
        scenario = self.scenario
        tag = f"t{first % scenario.tags}" if scenario.tags else ""
        keys = [f"k{first % scenario.keys}"] if scenario.keys else []
        if scenario.batch == 1:
            sharding = keys[0] if keys and scenario.orderly else None
            await producer.send(topic, bodies[0], tag=tag, keys=keys, sharding_key=sharding)
        else:
            await producer.send_batch(
                topic, [aiorocket.OutgoingMessage(topic=topic, body=body, tag=tag, keys=keys) for body in bodies]
            )

    def _acknowledged(self, who: int, first: int, count: int, due: int, began: int, now: int) -> None:
        self.acknowledged += count
        bits = self.sent_bits[who]
        for number in range(first, first + count):
            mark(bits, number)
        if self.measured_from <= now < self.measured_to:
            self.measured += count
        if due >= self.measured_from:
            waited = (now - due) // 1000
            self.sends.record_value(max(1, waited))
            self.services.record_value(max(1, (now - began) // 1000))
            self.behind = max(self.behind, began - due)
            second = self._second(now)
            second[0] += count
            second[2] = max(second[2], waited)

    # ---- receiving

    def take(self, group: int, message: aiorocket.Message) -> None:
        body = message.body
        if len(body) < HEAD:
            return
        now = time.perf_counter_ns()
        who, number, due = _STAMP.unpack_from(body)
        if who >> 32 != int(self.run, 16):
            return  # of another run
        bits = self.came_bits.setdefault((group, who), bytearray())
        if mark(bits, number):
            self.duplicates += 1
        elif self.scenario.orderly:
            queue = message.queue
            place = group, queue.topic, queue.broker_name, queue.queue_id
            if message.queue_offset <= self.last_offset.get(place, -1):
                self.out_of_order += 1
            self.last_offset[place] = message.queue_offset
        self.received += 1
        if self.measured_from <= now < self.measured_to:
            self.measured_received += 1
        if due >= self.measured_from:
            self.ends.record_value(max(1, (now - due) // 1000))
            self._second(now)[1] += 1

    def consumer(self, client: aiorocket.Client, group: int) -> aiorocket.Consumer:
        consumer = client.consumer(f"{self.scenario.topic}-group-{group}")
        take = self.take

        async def on_message(message: aiorocket.Message) -> None:
            take(group, message)

        for topic in self.scenario.topic_names():
            if self.scenario.orderly:
                consumer.orderly(topic, start_from="first")(on_message)
            else:
                consumer.listener(topic, start_from="first")(on_message)
        return consumer

    # ---- the run

    async def watch(self) -> None:
        """How late the loop is, each 10 ms, and what was done, each second."""
        said = 0
        while True:
            began = time.perf_counter_ns()
            await asyncio.sleep(_LAG_EVERY)
            now = time.perf_counter_ns()
            if began >= self.measured_from:
                self.lags.record_value(max(1, (now - began) // 1000 - int(_LAG_EVERY * 1e6)))
            if (now - self.start) // 1_000_000_000 > said:
                said = (now - self.start) // 1_000_000_000
                say(second=said, acknowledged=self.acknowledged, received=self.received, failed=self.failed)

    async def measure_cpu(self) -> None:
        await asyncio.sleep(max(0.0, (self.measured_from - time.perf_counter_ns()) / 1e9))
        before = time.process_time()
        await asyncio.sleep(max(0.0, (self.measured_to - time.perf_counter_ns()) / 1e9))
        self.cpu = time.process_time() - before

    def mine(self, count: int, before: int) -> range:
        """This process' share of so many, the first of which goes to the process behind those ``before`` them."""
        return range((self.number - before) % self.scenario.processes, count, self.scenario.processes)

    async def work(self, lines: asyncio.StreamReader) -> None:
        scenario = self.scenario
        async with AsyncExitStack() as stack:
            members = scenario.consumers * scenario.groups
            for number in self.mine(members, scenario.producers):
                client = await stack.enter_async_context(aiorocket.Client(config=self.config))
                await stack.enter_async_context(self.consumer(client, number % scenario.groups))
            producers = []
            for number in self.mine(scenario.producers, 0):
                client = await stack.enter_async_context(aiorocket.Client(config=self.config))
                producer = client.producer(f"{scenario.topic}-producer-{number}")
                producers.append((await stack.enter_async_context(producer), int(self.run, 16) << 32 | number))
            for number in self.mine(scenario.idle, scenario.producers + members):
                host, _, port = self.brokers[number % len(self.brokers)].rpartition(":")
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
                stack.callback(writer.close)
            say(ready=True)
            self.start = json.loads(await lines.readline())["go"]
            self.measured_from = self.start + int(scenario.warmup * 1e9)
            self.measured_to = self.measured_from + int(scenario.seconds * 1e9)
            await asyncio.sleep(max(0.0, (self.start - time.perf_counter_ns()) / 1e9))
            watching = asyncio.ensure_future(self.watch())
            cpu = asyncio.ensure_future(self.measure_cpu())
            async with asyncio.TaskGroup() as tasks:
                for producer, who in producers:
                    tasks.create_task(self.produce(producer, who))
            await cpu
            say(sent=True, acknowledged=self.acknowledged)
            while "stop" not in (wanted := json.loads(await lines.readline())):
                if "bits" in wanted:
                    say(bits=self.bits())
                    continue
                say(received=self.received, acknowledged=self.acknowledged, failed=self.failed)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        say(result=self.result())

    def bits(self) -> dict[str, dict[str, str]]:
        return {
            "sent_bits": {str(who): packed(bits) for who, bits in self.sent_bits.items()},
            "came_bits": {f"{group}/{who}": packed(bits) for (group, who), bits in self.came_bits.items()},
        }

    def result(self) -> dict[str, Any]:
        return {
            "acknowledged": self.acknowledged, "failed": self.failed, "errors": self.errors, "received": self.received,
            "measured": self.measured, "measured_received": self.measured_received, "cpu": self.cpu,
            "behind_ms": self.behind / 1e6, "duplicates": self.duplicates, "out_of_order": self.out_of_order,
            **self.bits(),
            "histograms": {name: each.encode().decode() for name, each in (
                ("send", self.sends), ("service", self.services), ("end_to_end", self.ends), ("lag", self.lags))},
            "seconds": {str(second): values for second, values in self.seconds.items()},
        }  # fmt: skip


def mark(bits: bytearray, number: int) -> bool:
    """Set bit ``number``; was it set?"""
    place, bit = number >> 3, 1 << (number & 7)
    if place >= len(bits):
        bits.extend(bytes(max(1024, place + 1 - len(bits))))
    before = bits[place] & bit
    bits[place] |= bit
    return before != 0


def packed(bits: bytearray) -> str:
    return base64.b64encode(zlib.compress(bytes(bits), 1)).decode()


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def _main() -> None:
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        worker = _Worker(json.loads(await reader.readline()))
        try:
            await worker.work(reader)
        except (aiorocket.RocketError, OSError) as error:
            say(error=f"{type(error).__name__}: {error}")
    finally:
        transport.close()


def main() -> None:
    run(_main())


if __name__ == "__main__":
    main()
