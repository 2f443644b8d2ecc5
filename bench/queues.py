"""What messages and topics cost a store: memory, loop time and open files with few and with many of both.

    python -m bench.queues                                       10^5 messages in one topic, 10^6 in 5,000
    python -m bench.queues --messages 10000000 --topics 5000     one of one's own

Each case has a process of its own. The store is in a temporary directory (--data: elsewhere), ``flush="async"``,
messages of 100 bytes, a queue for each topic, a checkpoint every 5 s.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time

from aiorocket.config import StoreConfig
from aiorocket.runtime.env import real_env
from aiorocket.storage.store import MessageStore
from aiorocket_protocol import encode_properties

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
BODY = bytes(100)


async def run(directory: str, messages: int, topics: int) -> None:
    env = real_env()
    config = StoreConfig(flush="async", min_free=0, max_pending=1 << 40)
    store = await MessageStore.open(env, config, directory, store_host=HOST)
    properties = encode_properties({"TAGS": "bench", "KEYS": "k"})
    names = [f"topic-{number}" for number in range(topics)]
    begun, busy = time.perf_counter(), time.process_time()
    for number in range(messages):
        store.append(
            names[number % topics], 0, BODY, properties, flag=0, sys_flag=0, born_timestamp=1, born_host=HOST,
            tags_code=0, done=_ignore,
        )  # fmt: skip
        if number % 256 == 255:
            await asyncio.sleep(0)
    took, busy = time.perf_counter() - begun, time.process_time() - busy
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else -1
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    await store.close()
    await env.disk.close()
    print(
        f"{messages:>10,} messages, {topics:>6,} topics: {busy * 1e6 / messages:6.2f} us of CPU and"
        f" {took * 1e6 / messages:6.2f} us a message, {rss:6.1f} MiB, {files} open files",
        flush=True,
    )


def _ignore(result: object) -> None:
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--data", help="directory for the store; made and removed")
    options = parser.parse_args()
    if options.messages is not None:
        with tempfile.TemporaryDirectory(dir=options.data) as directory:
            asyncio.run(run(directory, options.messages, options.topics))
        return
    for messages, topics in ((100_000, 1), (100_000, 5_000), (1_000_000, 1), (1_000_000, 5_000)):
        command = [sys.executable, "-m", "bench.queues", "--messages", str(messages), "--topics", str(topics)]
        subprocess.run([*command, *(["--data", options.data] if options.data else [])], check=True)


if __name__ == "__main__":
    main()
