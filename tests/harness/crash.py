"""A broker that is killed again and again under load, and what its clients saw.

    python -m tests.harness.crash --cycles 2000 --data DIR       goes on where an earlier run in DIR stopped

The broker is a process; name server, producers and consumers live in this one and see only the wire. Producers send
single messages, keyed ones and delayed ones; one group consumes concurrently, one in order. Every outcome and every
delivery is a line of ``history.jsonl``; the checks at the end know nothing else:

* what was acknowledged is delivered to both groups, and what surely was not stored is not;
* a queue offset is one message, whoever gets it and how often;
* the orderly group gets the messages of a queue for the first time in the order of their offsets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

from aiorocket import (
    Client,
    ConsumerConfig,
    Message,
    NameServerConfig,
    Producer,
    ProducerConfig,
    RocketError,
    SendError,
)
from aiorocket.nameserver import NameServer
from aiorocket.runtime import memory_env

__all__ = ("check", "run")

TOPIC = "crash"
GROUPS = ("concurrent", "in-order")
_PRODUCERS = 8

_BROKER = """
import sys
from aiorocket import BrokerConfig, run
from aiorocket.broker import Broker
from aiorocket.config import StoreConfig
from aiorocket.runtime import real_env
import asyncio

async def main():
    port, nameserver, data, flush = sys.argv[1:]
    store = StoreConfig(flush=flush, segment_size=1 << 20, min_free=1 << 20, checkpoint_interval=0.5)
    config = BrokerConfig(
        port=int(port), nameservers=(nameserver,), data=data, register_interval=0.5, store=store, delay_levels=(0.3,),
        default_topic_queues=4, offset_flush_interval=0.5,
    )
    broker = Broker(real_env(), config)
    await broker.start()
    print(broker.port, flush=True)
    await asyncio.Event().wait()

run(main())
"""


class _History:
    """Lines of what happened; ``rows`` has those of earlier runs too."""

    def __init__(self, path: Path) -> None:
        self.rows: list[list[Any]] = []
        if path.exists():
            whole = path.read_text().rpartition("\n")[0]
            self.rows = [json.loads(line) for line in whole.splitlines()]
            path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        self._file: TextIO = path.open("a")

    def add(self, *row: Any) -> None:
        self.rows.append(list(row))
        self._file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        self._file.close()


def check(rows: list[list[Any]]) -> list[str]:
    """What a history breaks."""
    broken: list[str] = []
    acked = {body for what, body, *_ in rows if what == "ok"}
    never = {body for what, body, *_ in rows if what == "fail"}
    sent = {body for what, body, *_ in rows if what in ("ok", "fail", "unknown")}
    places: dict[tuple[int, int], str] = {}
    delivered: dict[str, set[str]] = {group: set() for group in GROUPS}
    last: dict[int, int] = {}
    for what, body, *rest in rows:
        if what == "ok" and rest[0] is not None:
            queue, offset = rest
        elif what == "got":
            group, queue, offset = rest
            delivered[group].add(body)
            if body not in sent:
                broken.append(f"{body} was delivered and never sent")
            if group == "in-order":
                if offset > last.get(queue, -1) + 1 and queue in last:
                    broken.append(f"queue {queue}: offset {offset} came first after {last[queue]}")
                last[queue] = max(last.get(queue, -1), offset)
        else:
            continue
        if places.setdefault((queue, offset), body) != body:
            broken.append(f"queue {queue} offset {offset} is {places[queue, offset]} and {body}")
    for group, bodies in delivered.items():
        broken += [f"{body} was acknowledged and never reached {group}" for body in sorted(acked - bodies)[:20]]
        broken += [f"{body} was refused and reached {group}" for body in sorted(never & bodies)[:20]]
    return broken


@asynccontextmanager
async def _broker(port: int, nameserver: str, data: Path, flush: str) -> AsyncIterator[tuple[Any, int]]:
    search = os.pathsep.join(path for path in sys.path if path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _BROKER, str(port), nameserver, str(data), flush,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": search},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = await process.stdout.readline()
        if not line:
            raise AssertionError("the broker did not start; what it said is above")
        yield process, int(line)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def run(cycles: int, data: Path, flush: str, seed: int, *, quiet: bool = False) -> list[str]:
    """``cycles`` kills; what the history breaks."""
    draw = random.Random(seed)
    data.mkdir(parents=True, exist_ok=True)
    history = _History(data / "history.jsonl")
    stamp = f"{time.time_ns():x}"
    env = memory_env()
    names = NameServer(env, NameServerConfig(port=0))
    await names.start()
    stopping = False

    async def sender(producer: Producer, number: int) -> None:
        count = 0
        options: dict[str, Any] = {"timeout": 1.0}
        if number == 0:
            options["delay_level"] = 1
        elif number < 4:
            options["sharding_key"] = f"k{number}"
        while not stopping:
            body = f"{stamp}-{number}-{count}"
            count += 1
            try:
                receipt = await producer.send(TOPIC, body.encode(), **options)
            except SendError as error:
                history.add("unknown" if error.may_be_stored else "fail", body)
                await asyncio.sleep(0.05)
            except RocketError:  # there is no route: the broker is away
                history.add("fail", body)
                await asyncio.sleep(0.05)
            else:
                place = (None, None) if number == 0 else (receipt.queue.queue_id, receipt.offset)
                history.add("ok", body, *place)
            await asyncio.sleep(0.002)

    began = time.perf_counter()
    port = 0
    try:
        async with (
            _broker(0, names.address, data / "store", flush) as (_, port),
            Client(nameservers=names.address) as client,
            client.producer("p") as producer,
        ):
            await producer.send(TOPIC, b"first")
            history.add("ok", "first", None, None)
        config = ConsumerConfig(pull_error_delay=0.1)
        async with Client(nameservers=names.address) as client:
            concurrent, in_order = (client.consumer(group, config=config) for group in GROUPS)

            async def got(message: Message) -> None:
                history.add("got", message.body.decode(), GROUPS[0], message.queue.queue_id, message.offset)

            async def got_in_order(message: Message) -> None:
                history.add("got", message.body.decode(), GROUPS[1], message.queue.queue_id, message.offset)

            concurrent.listener(TOPIC, start_from="first")(got)
            in_order.orderly(TOPIC, start_from="first")(got_in_order)
            config_p = ProducerConfig(retries=0)
            async with concurrent, in_order, client.producer("senders", config=config_p) as producer:
                senders = [asyncio.ensure_future(sender(producer, number)) for number in range(_PRODUCERS)]
                for cycle in range(cycles):
                    async with _broker(port, names.address, data / "store", flush) as (process, _):
                        await asyncio.sleep(draw.random() * 0.6)
                        process.send_signal(signal.SIGKILL)
                    if not quiet and (cycle + 1) % 50 == 0:
                        print(f"{cycle + 1} cycles, {time.perf_counter() - began:.0f} s", flush=True)
                stopping = True
                await asyncio.gather(*senders)
                async with _broker(port, names.address, data / "store", flush):
                    deadline = time.perf_counter() + 90
                    while time.perf_counter() < deadline:
                        await asyncio.sleep(0.5)
                        acked = {row[1] for row in history.rows if row[0] == "ok"}
                        if all(
                            acked <= {row[1] for row in history.rows if row[0] == "got" and row[2] == group}
                            for group in GROUPS
                        ):
                            break
    finally:
        await names.close()
        await env.disk.close()
        history.close()
    if not quiet:
        print(f"{cycles} kills in {time.perf_counter() - began:.0f} s: {dict(Counter(row[0] for row in history.rows))}")
    return check(history.rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a broker under load, again and again.")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--flush", choices=["sync", "async"], default="sync")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="keep store and history here, and go on with what is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        broken = asyncio.run(run(options.cycles, Path(options.data or temporary), options.flush, options.seed))
    for line in broken[:50]:
        print(line)
    print(f"{len(broken)} broken promises")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
