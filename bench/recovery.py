"""How long a broker takes to start, from its process to its first answer: killed with much that no checkpoint knows,
after a clean stop, and killed when as much had come since the checkpoint timer last went off. And its store alone,
without a checkpoint.

    python -m bench.recovery                       10 GiB of 1 KiB messages, 1 GiB of them behind the checkpoint
    python -m bench.recovery --gib 1 --queues 5000

The log is written with ``flush="async"`` and is in the page cache as far as there is room: what is measured is our own
work.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time

from rich.console import Console

from aiorocket.config import StoreConfig
from aiorocket.runtime.env import real_env
from aiorocket.storage import housekeeping
from aiorocket.storage.store import MessageStore
from aiorocket_protocol import encode_properties
from bench.processes import Child
from bench.report import Floor, table_of
from bench.scenarios import COMMAND, answering
from tests.ports import free_port

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))


async def _write(directory: str, count: int, size: int, queues: int, stop: bool, unread: bool) -> None:
    """Without ``stop`` it ends as a killed process does; ``unread`` is without any checkpoint on the way."""
    if unread:
        housekeeping._MOST_LOG = 1 << 62
    interval = 5.0 if stop else 1e6
    config = StoreConfig(flush="async", checkpoint_interval=interval, min_free=0, max_pending=1 << 40)
    store = await MessageStore.open(real_env(), config, directory, store_host=HOST)
    body, properties = os.urandom(size), encode_properties({"TAGS": "bench", "KEYS": "k"})
    items = [(body, 0, properties)] * 32
    last: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    turns = count // len(items)
    for number in range(turns):
        done = last.set_result if number == turns - 1 else _ignore
        store.append_batch(
            "bench", number % queues, items, [0] * len(items), sys_flag=0, born_timestamp=1, born_host=HOST, done=done
        )
        if number % 64 == 0:
            await asyncio.sleep(0)
    await last
    if stop:
        await store.close()


def _ignore(_: object) -> None:
    return None


def _in_child(work: object, *arguments: object) -> None:
    """Run in a forked child that ends without any clean-up."""
    child = os.fork()
    if not child:
        try:
            asyncio.run(work(*arguments))  # type: ignore[operator]  # a coroutine function
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _start(what: str, directory: str) -> float:
    """Seconds from the start of a broker's process to its first answer; it is stopped cleanly."""
    port = free_port()
    argv = ["broker", "--port", str(port), "--nameserver", "127.0.0.1:1", "--data", directory, "--flush", "async"]
    with Child("broker", "-c", COMMAND, *argv, patience=600.0) as broker:
        took = answering(broker, port) / 1e3
        print(f"{what}: a broker answers after {took:.2f} s, {broker.cpu():.2f} s of CPU", flush=True)
        broker.line()
    return took


async def _open(directory: str) -> None:
    env = real_env()
    began, cpu = time.perf_counter(), time.process_time()
    store = await MessageStore.open(env, StoreConfig(flush="async", min_free=0), directory, store_host=HOST)
    took, cpu, found = time.perf_counter() - began, time.process_time() - cpu, store.recovery
    print(
        f"without a checkpoint: the store is open after {took:.2f} s, {cpu:.2f} s of CPU;"
        f" {found.scanned_bytes / (1 << 30):.2f} GiB read, {found.records} records,"
        f" {cpu / max(1, found.records) * 1e6:.2f} us each"
    )
    await store.close()
    await env.disk.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gib", type=float, default=10.0, help="how much there is (10)")
    parser.add_argument("--dirty", type=float, default=1.0, help="how much of it no checkpoint knows (1)")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--check", action="store_true", help="exit with 1 when a floor is missed")
    parser.add_argument("--data", help="where to write (default: a temporary directory)")
    options = parser.parse_args()
    size, queues = options.size, options.queues
    dirty, kept = (int(gib * (1 << 30)) // (size + 120) for gib in (options.dirty, options.gib - options.dirty))
    directory = tempfile.mkdtemp(prefix="aiorocket-recovery-", dir=options.data)
    try:
        if kept > 0:
            _in_child(_write, directory, kept, size, queues, True, False)
        _in_child(_write, directory, dirty, size, queues, False, True)
        floors = [
            Floor(f"killed, {options.dirty:g} GiB unread", _start("killed, all unread", directory), 3.0, False, "s"),
            Floor(f"clean stop, {options.gib:g} GiB", _start("clean stop", directory), 1.0, False, "s"),
        ]
        _in_child(_write, directory, dirty, size, queues, False, False)
        name = f"killed, {options.dirty:g} GiB in an interval"
        floors.append(Floor(name, _start("killed within an interval", directory), 3.0, False, "s"))
        for name in ("checkpoint.a", "checkpoint.b"):
            os.unlink(os.path.join(directory, name))
        asyncio.run(_open(directory))
    finally:
        shutil.rmtree(directory)
    Console().print(table_of(floors))
    if options.check and not all(floor.met for floor in floors):
        sys.exit(1)


if __name__ == "__main__":
    main()
