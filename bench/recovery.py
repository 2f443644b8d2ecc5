"""How long a store takes to open: after a clean stop, after kill -9 with much unread, and without its checkpoint.

    python -m bench.recovery                       1 GiB of 1 KiB messages
    python -m bench.recovery --gib 10 --queues 64

The log is written by this process with ``flush="async"`` and is in the page cache: what is measured is our own work.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time

from aiorocket.config import StoreConfig
from aiorocket.runtime.env import real_env
from aiorocket.storage.store import MessageStore
from aiorocket_protocol import encode_properties

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))


async def _write(directory: str, count: int, size: int, queues: int, checkpoint: float) -> None:
    """Ends without closing the store, as a killed process does."""
    config = StoreConfig(flush="async", checkpoint_interval=checkpoint, min_free=0, max_pending=1 << 40)
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


def _ignore(_: object) -> None:
    return None


async def _open(directory: str, *, stop: bool) -> tuple[tuple[float, float], MessageStore]:
    env = real_env()
    began, cpu = time.perf_counter(), time.process_time()
    store = await MessageStore.open(env, StoreConfig(flush="async", min_free=0), directory, store_host=HOST)
    took = time.perf_counter() - began, time.process_time() - cpu
    if stop:
        await store.close()
    await env.disk.close()
    return took, store


def _in_child(work: object, *arguments: object) -> None:
    """Run in a forked child that ends without any clean-up."""
    child = os.fork()
    if not child:
        try:
            asyncio.run(work(*arguments))  # type: ignore[operator]  # a coroutine function
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _tell(what: str, took: tuple[float, float], store: MessageStore) -> None:
    found = store.recovery
    text = f"{what}: {took[0]:.2f} s, {took[1]:.2f} s of CPU; {found.scanned_bytes / (1 << 30):.2f} GiB read"
    if found.records:
        text += f", {found.records} records, {took[1] / found.records * 1e6:.2f} us each"
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--data", help="where to write (default: a temporary directory)")
    options = parser.parse_args()
    count = int(options.gib * (1 << 30)) // (options.size + 120)
    directory = tempfile.mkdtemp(prefix="aiorocket-recovery-", dir=options.data)
    try:
        _in_child(_write, directory, count, options.size, options.queues, 1e6)
        _tell("killed", *asyncio.run(_open(directory, stop=True)))
        _tell("clean stop", *asyncio.run(_open(directory, stop=True)))
        for name in ("checkpoint.a", "checkpoint.b"):
            os.unlink(os.path.join(directory, name))
        _tell("without its checkpoint", *asyncio.run(_open(directory, stop=True)))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
