"""What messages and topics cost a store: memory, loop time and open files with few and with many of both.

    python -m bench.queues                                       10^5 in one topic to 10^7 messages in 1,000 topics
    python -m bench.queues --long                                and 10^8 in 5,000
    python -m bench.queues --messages 10000000 --topics 5000     one of one's own

    python -m bench.queues --broker                              the same as sends to a broker, 10^5 and 10^6

Each case has a process of its own. The store is in a temporary directory (--data: elsewhere), ``flush="async"``,
messages of 100 bytes, a queue for each topic, a checkpoint every 5 s. None may cost 1.3 times the CPU or memory of the
first, which is a floor. With ``--broker`` a client has 256 single sends
under way, and CPU and memory are those of the broker's process, once it knows the topics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

from rich.console import Console

from aiorocket.broker import Broker
from aiorocket.cli.serving import spare_the_collector
from aiorocket.config import BrokerConfig, RemotingConfig, StoreConfig
from aiorocket.remoting import RemotingClient
from aiorocket.runtime import memory_env, new_event_loop
from aiorocket.runtime.env import real_env
from aiorocket.storage import StoreBusyError
from aiorocket.storage.store import MessageStore
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    RemotingCommand,
    RequestCode,
    SendMessageRequestHeaderV2,
    encode_properties,
)
from bench.processes import Child
from bench.report import Floor, table_of

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
BODY = bytes(100)


async def run(directory: str, messages: int, topics: int) -> None:
    env = real_env()
    config = StoreConfig(flush="async", min_free=0, max_pending=8 << 20)
    store = await MessageStore.open(env, config, directory, store_host=HOST)
    properties = encode_properties({"TAGS": "bench", "KEYS": "k"})
    names = [f"topic-{number}" for number in range(topics)]
    begun, busy = time.perf_counter(), time.process_time()
    number = 0
    while number < messages:
        try:
            store.append(
                names[number % topics], 0, BODY, properties, flag=0, sys_flag=0, born_timestamp=1, born_host=HOST,
                tags_code=0, done=_ignore,
            )  # fmt: skip
        except StoreBusyError:  # what waits for a slow disk is not what is measured
            await asyncio.sleep(0.001)
            continue
        number += 1
        if number % 256 == 0:
            await asyncio.sleep(0)
    took, busy = time.perf_counter() - begun, time.process_time() - busy
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else -1
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    await store.close()
    await env.disk.close()
    _say(messages, busy, took, rss, open_files=files)


async def serve(directory: str) -> None:
    """A broker until standard input ends."""
    store = StoreConfig(flush="async", min_free=0)
    broker = Broker(real_env(), BrokerConfig(port=0, data=directory, store=store))
    await broker.start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, ended.set)
    spare_the_collector()  # as `aiorocket broker` does
    print(json.dumps({"port": broker.port}), flush=True)
    await ended.wait()
    await broker.close()


async def send(broker: Child, messages: int, topics: int) -> None:
    client = RemotingClient(memory_env(), RemotingConfig())
    link = await client.connect(f"127.0.0.1:{broker.answer()['port']}")
    properties = encode_properties({"TAGS": "bench", "KEYS": "k"}).decode()
    turns = iter(range(topics + messages))

    async def one_after_the_other(last: int) -> None:
        for number in turns:
            topic = f"topic-{number % topics}"
            header = SendMessageRequestHeaderV2("bench", topic, AUTO_CREATE_TOPIC, 4, 0, 0, 1, 0, properties)
            answer = await link.request(RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body=BODY), 60)
            assert answer.code == 0, answer.remark
            if number >= last:
                break

    for last in (topics, topics + messages):
        begun, busy = time.perf_counter(), broker.cpu()
        await asyncio.gather(*(one_after_the_other(last) for _ in range(256)))
    took, busy = time.perf_counter() - begun, broker.cpu() - busy
    _say(messages, busy, took, broker.rss_mib("VmHWM"))
    await client.close()


def _say(messages: int, busy: float, took: float, rss: float, **more: int) -> None:
    cost = {"cpu_us": round(busy * 1e6 / messages, 2), "us": round(took * 1e6 / messages, 2)}
    print(json.dumps({**cost, "rss_mib": round(rss, 1), **more}), flush=True)


def _ignore(result: object) -> None:
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--data", help="directory for the store; made and removed")
    parser.add_argument("--broker", action="store_true", help="sends to a broker")
    parser.add_argument("--long", action="store_true", help="10^8 messages too: half an hour, 25 GB of disk")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a floor is missed")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        new_event_loop().run_until_complete(serve(options.serve))
        return
    if options.messages is not None:
        with tempfile.TemporaryDirectory(dir=options.data) as directory:
            if options.broker:
                with (
                    Child("broker", "-m", "bench.queues", "--serve", directory) as broker,
                    asyncio.Runner(loop_factory=new_event_loop) as runner,
                ):
                    runner.run(send(broker, options.messages, options.topics))
            else:
                asyncio.run(run(directory, options.messages, options.topics))
        return
    cases = [(100_000, 1), (100_000, 1_000), (1_000_000, 5_000), (10_000_000, 1_000)]
    cases += [(100_000_000, 5_000)] * options.long
    floors, first = [], dict[str, float]()
    for messages, topics in cases:
        command = [sys.executable, "-m", "bench.queues", "--messages", str(messages), "--topics", str(topics)]
        more = ["--broker"] * options.broker + (["--data", options.data] if options.data else [])
        found = json.loads(subprocess.run([*command, *more], check=True, stdout=subprocess.PIPE).stdout)
        name = f"{messages:,} messages, {topics:,} topics"
        print(f"{name:>36}: {found}", flush=True)
        first = first or found
        for figure, unit in (("cpu_us", "us of CPU"), ("rss_mib", "MiB")):
            floors.append(Floor(name, found[figure], round(1.3 * first[figure], 2), False, unit))
    Console().print(table_of(floors[2:]))
    if options.check and not all(floor.met for floor in floors):
        sys.exit(1)


if __name__ == "__main__":
    main()
