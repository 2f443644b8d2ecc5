"""Coroutines from plain functions: results, errors, interruption, back-pressure, forks, and clients that are shared."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from aiorocket.client.sending.producer import Producer
from aiorocket.client.session import Session
from aiorocket.config import TlsConfig
from aiorocket.errors import RequestTimeoutError, UsageError
from aiorocket.spark import bridge
from aiorocket.spark.options import ConnectionOptions
from tests.spark.producing import create_topic


@pytest.fixture(autouse=True)
def own_bridge() -> Iterator[None]:
    """A loop for each test, and none afterwards."""
    bridge.close()
    yield
    bridge.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "aiorocket-spark"]


async def where() -> int:
    await asyncio.sleep(0)
    return threading.get_ident()


async def fails() -> None:
    raise LookupError("inside")


def test_results_and_errors_come_through() -> None:
    assert bridge.call(where) == bridge.call(where) != threading.get_ident()
    with pytest.raises(LookupError, match="inside"):
        bridge.call(fails)


def test_threads_that_come_first_together_share_one_loop() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            gate = threading.Barrier(8)

            def one(gate: threading.Barrier) -> int:
                gate.wait()
                return bridge.call(where)

            with ThreadPoolExecutor(8) as pool:
                assert len(set(pool.map(one, [gate] * 8))) == 1
            bridge.close()
    finally:
        sys.setswitchinterval(interval)


def test_a_call_ends_in_its_time() -> None:
    ended: list[bool] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def own_timeout() -> None:
        raise TimeoutError("its own")

    with pytest.raises(RequestTimeoutError, match=r"forever did not end within 0\.01 s"):
        bridge.call(forever, timeout=0.01)
    assert ended == [True]
    with pytest.raises(TimeoutError, match="its own"):
        bridge.call(own_timeout, timeout=30)


def test_the_loop_does_not_wait_for_itself() -> None:
    async def again() -> None:
        with pytest.raises(UsageError, match="await"):
            bridge.call(where)

    bridge.call(again)


class Counter:
    """A generator that says how far it is and whether it was closed."""

    def __init__(self, count: int = 1000) -> None:
        self.count = count
        self.made = 0
        self.closed = threading.Event()
        self.waits = threading.Event()

    async def items(self, fail_at: int = -1) -> AsyncGenerator[int, None]:
        try:
            for number in range(self.count):
                if number == fail_at:
                    raise LookupError(f"at {number}")
                self.made += 1
                yield number
            self.waits.set()
        finally:
            await asyncio.sleep(0)
            self.closed.set()


def test_items_come_in_order_and_only_so_far_ahead() -> None:
    counter = Counter()
    items = bridge.iterate(counter.items, prefetch=3)
    assert counter.made == 0
    assert next(items) == 0
    for number in range(1, 1000):
        assert next(items) == number
        assert counter.made <= number + 1 + 3
    assert list(items) == []
    assert counter.closed.is_set()
    with pytest.raises(UsageError, match="prefetch=0"):
        next(bridge.iterate(counter.items, prefetch=0))


def test_an_error_comes_after_the_items_before_it() -> None:
    counter = Counter()
    items = bridge.iterate(counter.items, 4)
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(LookupError, match="at 4"):
        next(items)
    assert counter.closed.is_set()
    assert list(items) == []


@pytest.mark.parametrize("way", ["close", "drop", "raise"])
def test_ending_early_closes_the_generator(way: str) -> None:
    counter = Counter()
    items = bridge.iterate(counter.items)
    assert next(items) == 0
    if way == "close":
        items.close()
    elif way == "drop":
        del items
        gc.collect()
    else:
        with pytest.raises(KeyboardInterrupt):
            items.throw(KeyboardInterrupt())
    assert counter.closed.is_set()
    assert counter.made < 10


def test_a_generator_that_waits_is_cancelled() -> None:
    closed = threading.Event()

    async def stuck() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    items = bridge.iterate(stuck)
    assert next(items) == 1
    items.close()
    assert closed.is_set()


def test_closing_the_bridge_ends_what_runs_in_it() -> None:
    counter = Counter()
    items = bridge.iterate(counter.items)
    assert next(items) == 0
    bridge.close()
    assert counter.closed.is_set()
    with pytest.raises(UsageError, match="closed in the middle"):
        for _ in range(4):
            next(items)


def test_dropped_in_the_loop_itself_it_does_not_wait() -> None:
    counter = Counter()
    kept = [bridge.iterate(counter.items)]
    assert next(kept[0]) == 0

    async def collect() -> None:
        kept.clear()

    bridge.call(collect, timeout=30)
    assert counter.closed.wait(30)


def connection(nameserver: str, **options: object) -> ConnectionOptions:
    # Each test says which options it wants: no one type fits them all.
    return ConnectionOptions(name_servers=(nameserver,), **options)  # type: ignore[arg-type]


async def same(*connections: ConnectionOptions) -> list[Session]:
    return [await bridge.client(each) for each in connections]


def test_equal_connections_share_a_client(nameserver: str) -> None:
    first, second, other = bridge.call(
        same, connection(nameserver), connection(nameserver), connection(nameserver, namespace="n")
    )
    assert first is second is not other
    assert first.started
    assert other.config.namespace == "n"
    assert bridge.call(same, connection(nameserver))[0] is first
    bridge.close()
    assert not first.started


def test_clients_work_and_go_when_nobody_uses_them(nameserver: str, topic: str) -> None:
    create_topic(nameserver, topic)

    async def use() -> Session:
        client = await bridge.client(connection(nameserver, idle_timeout=0.05))
        with bridge.holding(client):
            await client.route(topic)
            await asyncio.sleep(0.2)
            assert client.started
        producer = Producer("g", client=client)
        await producer.start()
        await asyncio.sleep(0.2)
        assert client.started
        await producer.stop()
        async with asyncio.timeout(30):
            while client.started:
                await asyncio.sleep(0.01)
        assert await bridge.client(connection(nameserver, idle_timeout=0.05)) is not client
        return client

    assert not bridge.call(use).started


def test_the_settings_of_a_client_are_those_of_the_connection() -> None:
    keys = {"access_key": "a", "secret_key": "s", "security_token": "t"}
    config = bridge.client_config(connection("h:1", **keys, tls=True, tls_ca="/ca.pem"))
    assert config.nameservers == ("h:1",)
    assert {name: getattr(config, name) for name in keys} == keys
    assert config.tls == TlsConfig(ca="/ca.pem")
    plain = bridge.client_config(connection("h:1", credentials_file="/keys.json"))
    assert (plain.tls, plain.credentials_file) == (False, "/keys.json")


async def test_a_client_belongs_to_the_bridges_loop() -> None:
    with pytest.raises(UsageError, match="call"):
        await bridge.client(connection("127.0.0.1:1"))


def test_a_forked_child_has_a_loop_of_its_own() -> None:
    """As Spark's daemon does: fork, work, leave without cleaning up. In a process of its own, for the fork's sake."""
    script = """
import os, gc, sys
from aiorocket.spark import bridge
async def pid():
    return os.getpid()
async def numbers():
    for number in range(100):
        yield number
assert bridge.call(pid) == os.getpid()
running = bridge.iterate(numbers)
next(running)
child = os.fork()
if not child:
    assert bridge.call(pid, timeout=30) == os.getpid()
    assert list(bridge.iterate(numbers)) == list(range(100))
    running.close()
    gc.collect()
    grandchild = os.fork()
    if not grandchild:
        os._exit(0 if bridge.call(pid, timeout=30) == os.getpid() else 3)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert list(running) == list(range(1, 100))
left = bridge.iterate(numbers)
next(left)
print("done")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
