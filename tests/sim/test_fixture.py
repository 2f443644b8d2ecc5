"""The pytest plugin's fixtures: a real broker in the test's loop, whose wall clock and wire the test controls."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import aiorocket
from aiorocket import Client, Producer, WrongLoopError
from aiorocket.client.exits import Retry
from aiorocket.client.message import Message
from aiorocket.client.push.router import Router
from aiorocket.config import DELAY_LEVELS, ConsumerConfig
from aiorocket.errors import RocketError, SendError, StoreLockedError, UsageError
from aiorocket.runtime import Entropy
from aiorocket.runtime.threads import loop_in_thread
from aiorocket.testing import broker_thread, pytest_plugin
from aiorocket.testing.local import LocalRocketMQ
from aiorocket.testing.pytest_plugin import rocketmq as rocketmq
from aiorocket.testing.pytest_plugin import rocketmq_durable as rocketmq_durable


async def test_hours_of_retries_and_the_dead_letter_at_their_end(rocketmq: LocalRocketMQ) -> None:
    router = Router("billing")
    attempts: list[int] = []

    @router.listener("orders", start_from="first")
    async def on_order(message: Message) -> None:
        attempts.append(message.attempt)
        raise Retry

    await rocketmq.create_topic("orders", queues=2)
    async with rocketmq.consumer(router):
        await rocketmq.send("orders", b"boom", keys=["o-1"])
        # Fourteen pauses end by then: 10 s, 30 s, 1 to 10 minutes, 20 and 30 minutes, 1 hour.
        await rocketmq.clock.advance(hours=2.5)
        assert attempts == list(range(1, 16))
        assert sum(DELAY_LEVELS[2:16]) < 2.5 * 3600 < sum(DELAY_LEVELS[2:17])
        await rocketmq.clock.advance(hours=3)
        dead = await rocketmq.wait_dead_letter("billing", timeout=2)
    assert attempts == list(range(1, 18))
    assert (dead.body, dead.reconsume_times, dead.keys) == (b"boom", 17, ["o-1"])
    rocketmq.assert_committed("billing", "orders", lag=0)
    with pytest.raises(TimeoutError, match="no further dead letter"):
        await rocketmq.wait_dead_letter("billing", timeout=0.02)


async def test_the_clock_stands_still_between_two_steps(rocketmq: LocalRocketMQ) -> None:
    seen: list[bytes] = []
    consumer = rocketmq.consumer("g")

    @consumer.listener("t", start_from="first")
    async def on_message(message: Message) -> None:
        seen.append(message.body)

    await rocketmq.create_topic("t", queues=1)
    async with consumer:
        await rocketmq.send("t", b"in an hour", delay_level=17)
        await rocketmq.send("t", b"in ten minutes", delay_level=14)
        await rocketmq.clock.advance(minutes=9)
        assert seen == []
        await rocketmq.clock.advance(minutes=2)
        assert seen == [b"in ten minutes"]
        await rocketmq.clock.advance(hours=1)
        assert seen == [b"in ten minutes", b"in an hour"]


async def test_committed_counts_what_is_left(rocketmq: LocalRocketMQ) -> None:
    for number in range(3):
        await rocketmq.send("t", b"%d" % number)
    rocketmq.assert_committed("nobody", "t", lag=3)
    with pytest.raises(AssertionError, match="'nobody' is 3 messages behind in topic 't', expected 0"):
        rocketmq.assert_committed("nobody", "t")


async def test_planned_faults_reach_the_client(rocketmq: LocalRocketMQ) -> None:
    await rocketmq.send("t", b"the route is known now")
    rocketmq.faults.next("SEND_MESSAGE_V2", reply="NO_PERMISSION", times=3)
    with pytest.raises(SendError, match="planned by a test"):
        await rocketmq.send("t", b"refused", queue=(await rocketmq.send("u", b"x")).queue._replace(topic="t"))
    rocketmq.faults.clear()
    await rocketmq.send("t", b"and known again, after a refusal")
    rocketmq.faults.next("SEND_MESSAGE_V2", lose_answer=True, times=10)
    with pytest.raises(SendError) as caught:
        await rocketmq.send("t", b"stored, and nobody says so", timeout=0.2)
    assert caught.value.may_be_stored
    rocketmq.faults.clear()
    assert (await rocketmq.send("t", b"back to normal")).offset >= 0
    with pytest.raises(ValueError, match="'MAKE_COFFEE' is no RequestCode"):
        rocketmq.faults.next("MAKE_COFFEE")
    with pytest.raises(ValueError, match="exclude each other"):
        rocketmq.faults.next("HEART_BEAT", drop=True, duplicate=True)


@pytest.mark.parametrize("kill", [False, True])
async def test_what_was_acknowledged_is_there_after_a_restart(rocketmq_durable: LocalRocketMQ, kill: bool) -> None:
    rocketmq = rocketmq_durable
    seen: set[bytes] = set()
    consumer = rocketmq.consumer("g", config=ConsumerConfig(pull_error_delay=0.1))

    @consumer.listener("t", start_from="first")
    async def on_message(message: Message) -> None:
        seen.add(message.body)

    await rocketmq.create_topic("t", queues=2)
    sent = {b"%d" % number for number in range(50)}
    for body in sorted(sent):
        await rocketmq.send("t", body)
    await rocketmq.send("t", b"later", delay_level=5)
    await rocketmq.restart(kill=kill)
    async with consumer:
        await rocketmq.send("t", b"after", timeout=5)
        await rocketmq.settled()
        assert seen == sent | {b"after"}
        await rocketmq.restart(kill=kill)
        await rocketmq.clock.advance(minutes=1)
        async with asyncio.timeout(5):
            while b"later" not in seen:
                await asyncio.sleep(0.01)


async def test_a_broker_in_memory_cannot_restart(rocketmq: LocalRocketMQ) -> None:
    with pytest.raises(UsageError, match="rocketmq_durable"):
        await rocketmq.restart()


async def test_an_embedded_broker_is_killed_too(tmp_path: Path) -> None:
    async with aiorocket.embed(str(tmp_path / "store")) as mq, mq.producer() as producer:
        await mq.create_topic("t", queues=1)
        assert [(await producer.send("t", b"%d" % number)).offset for number in range(3)] == [0, 1, 2]
        port = mq.broker.port
        for expected in (3, 4):
            await mq.restart(kill=True)
            assert mq.broker.port == port
            assert (await producer.send("t", b"after", timeout=5)).offset == expected
    assert os.listdir(tmp_path) == ["store"]
    async with aiorocket.embed() as mq:
        with pytest.raises(UsageError, match="in memory"):
            await mq.restart(kill=True)


async def test_a_killed_broker_lets_nobody_in_while_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would acknowledge what its files are thrown away with."""
    async with aiorocket.embed(str(tmp_path / "store")) as mq:
        closes, tried = mq.broker.close, []
        # As a file that is renamed between being seen and being copied.
        (tmp_path / "store" / "config" / "x.b.tmp").symlink_to("nothing")

        async def close() -> None:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", mq.broker.port)
            tried.append(mq.broker)
            await closes()

        monkeypatch.setattr(mq.broker, "close", close)
        await mq.restart(kill=True)
        assert tried and mq.broker not in tried


def test_a_broker_for_code_without_a_loop(tmp_path: Path) -> None:
    async def ask(address: str, timeout: float = 60) -> int:
        async with aiorocket.Producer("g", nameservers=address) as producer:
            return (await producer.send("t", b"x", timeout=timeout)).offset

    with broker_thread(str(tmp_path / "store"), flush="async") as server:
        address = server.nameserver_address
        assert aiorocket.run(ask(address)) == 0
        # Another one meanwhile cannot have the directory, and says so here.
        with pytest.raises(StoreLockedError), broker_thread(str(tmp_path / "store")):
            pass
        assert aiorocket.run(ask(address)) >= 0
    with pytest.raises(RocketError):
        aiorocket.run(ask(address, timeout=0.1))
    with pytest.raises(KeyError, match="mine"), broker_thread():
        raise KeyError("mine")


def test_pytest_finds_the_plugin_under_its_own_name() -> None:
    """Then naming it by ``-p`` as well, as the next test does, registers it once."""
    project = tomllib.loads((Path(aiorocket.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {pytest_plugin.__name__: pytest_plugin.__name__}


THEIRS = """
import sys

import pytest

from aiorocket import Router, WrongLoopError


def test_light():
    assert not any(name.startswith('aiorocket.broker') for name in sys.modules)


@pytest.mark.asyncio
async def test_on_pytest_asyncio(rocketmq):
    await rocketmq.create_topic('t')
    assert (await rocketmq.send('t', b'x')).offset == 0


@pytest.fixture
def anyio_backend():
    return 'asyncio'


@pytest.mark.anyio
async def test_on_anyio(anyio_backend, rocketmq, rocketmq_durable):
    for mq in (rocketmq, rocketmq_durable):
        await mq.create_topic('t')
        assert (await mq.send('t', b'x')).offset == 0
    await rocketmq_durable.restart()
    assert len(rocketmq_durable.messages('t')) == 1


@pytest.mark.parametrize('turn', [0, 1])
def test_without_a_loop(rocketmq_server, turn):
    assert rocketmq_server.send('t', b'x', sharding_key='k').offset == turn  # the same one for all tests


def test_a_fixture_whose_loop_stands_still(rocketmq):
    with pytest.raises(WrongLoopError, match='rocketmq_server'):
        rocketmq.nameserver_address
    with pytest.raises(WrongLoopError, match='rocketmq_server'):
        rocketmq.consumer(Router('g'))
"""


def test_the_plugin_costs_nobody_an_import_and_serves_who_wants_it(tmp_path: Path) -> None:
    """As a project sees it that has aiorocket installed, pytest-asyncio and anyio too."""
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    package = Path(aiorocket.__file__).parents[1]
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "-p", "pytest_asyncio.plugin", "-p", "anyio.pytest_plugin", "-p", "aiorocket.testing.pytest_plugin",
            "-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function",
            "-W", "error", "test_theirs.py",
        ],
        # Without the entry points of this environment: the plugin may be one of them, and is named here.
        env={
            **os.environ, "PYTHONPATH": f"{package}:{package / 'protocol'}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        cwd=tmp_path, capture_output=True, text=True, timeout=140,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


async def test_every_consumer_of_the_broker_is_moved(rocketmq: LocalRocketMQ) -> None:
    """Those of an application's own Client, too."""
    router, attempts = Router("billing"), list[int]()

    @router.listener("orders", start_from="first")
    async def on_order(message: Message) -> None:
        attempts.append(message.attempt)
        raise Retry

    await rocketmq.create_topic("orders", queues=2)
    async with Client(nameservers=rocketmq.nameserver_address) as client:
        client.include(router)
        async with client.running():
            await rocketmq.send("orders", b"boom")
            await rocketmq.clock.advance(hours=6)
            assert attempts == list(range(1, 18))
            assert [each.body for each in rocketmq.dead_letters("billing")] == [b"boom"]
            rocketmq.assert_committed("billing", "orders")  # ten seconds before the consumer tells the broker


async def test_a_router_gets_its_state_and_what_is_done_counts_at_once(rocketmq: LocalRocketMQ) -> None:
    router, seen = Router("billing"), list[object]()

    @router.listener("orders", start_from="first")
    async def on_order(message: Message, state: object) -> None:
        seen.append(state)

    await rocketmq.create_topic("orders", queues=2)
    async with rocketmq.consumer(router, state="the application"):
        await rocketmq.send("orders", b"x")
        await rocketmq.settled()
        rocketmq.assert_committed("billing", "orders")
        assert rocketmq.committed("billing", "orders") == 1
    assert seen == ["the application"]


def test_a_broker_for_synchronous_tests(tmp_path: Path) -> None:
    """Its consumer runs in another loop and thread, as that of an application under a TestClient does."""
    router, bodies = Router("billing"), list[bytes]()

    @router.listener("orders", start_from="first", max_attempts=2)
    async def on_order(message: Message, state: object) -> None:
        bodies.append(message.body)
        if message.body == b"boom":
            raise ValueError("no")

    @asynccontextmanager
    async def application(address: str) -> AsyncIterator[None]:
        async with Client(nameservers=address) as client:
            client.include(router, state=client)
            async with client.running():
                yield

    with broker_thread(str(tmp_path / "store")) as mq:
        mq.create_topic("orders", queues=2)
        with loop_in_thread(application(mq.nameserver_address)):
            assert mq.send("orders", b"good", tag="paid", keys=["o-1"]).msg_id
            assert mq.committed("billing", "orders") == 1
            mq.send("orders", b"boom")
            mq.assert_committed("billing", "orders")
            assert mq.dead_letters("billing") == []
            mq.advance(minutes=1)
            assert mq.wait_dead_letter("billing").body == b"boom"
            mq.faults.next("SEND_MESSAGE_V2", reply="NO_PERMISSION", times=5)
            with pytest.raises(SendError, match="planned by a test"):
                mq.send("orders", b"refused", sharding_key="k")
            mq.faults.clear()
        assert bodies == [b"good", b"boom", b"boom"]
        assert {each.body: (each.tag, each.keys) for each in mq.messages("orders")} == {
            b"good": ("paid", ["o-1"]), b"boom": ("", []),
        }  # fmt: skip
        mq.restart(kill=True)
        assert len(mq.messages("orders")) == 2
        with pytest.raises(AssertionError, match="'nobody' is 2 messages behind"):
            mq.assert_committed("nobody", "orders")


def test_another_loop_is_refused_by_name() -> None:
    """Also that of a forked child, which inherits the objects and none of the loop's threads."""
    with broker_thread() as mq:
        mq.create_topic("t")
        client = Client(nameservers=mq.nameserver_address, group="g")
        producer, etl, consumer = client.producer("p"), client.pull_consumer("etl"), client.consumer("c")

        @asynccontextmanager
        async def started() -> AsyncIterator[None]:
            await etl.subscribe("t")
            async with client, producer, etl, consumer:
                await client.send("t", b"x")
                yield

        async def elsewhere(call: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(WrongLoopError, match=r"was started in another event loop \(or process\)"):
                await call()

        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: client.send("t", b"x"),
            lambda: client.session.route("t"),
            lambda: producer.send("t", b"x"),
            lambda: producer.send("t", b"x", sharding_key="k"),
            lambda: producer.send_oneway("t", b"x"),
            lambda: producer.send_batch("t", [b"x"]),
            lambda: producer.request("t", b"x"),
            lambda: client.producer("other").start(),
            lambda: etl.fetch(),
            lambda: etl.commit(),
            lambda: consumer.commit(),
            lambda: anext(consumer.messages()),
        ]
        with loop_in_thread(started()):
            for call in calls:
                aiorocket.run(elsewhere(call))
            child = os.fork()
            if child == 0:  # it shares the sockets with its parent: nothing may be sent by them
                try:
                    aiorocket.run(elsewhere(calls[0]))
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(mq.messages("t")) == 1


def test_what_was_made_before_a_fork_is_another_client_in_every_child() -> None:
    """As servers do it that load an application and fork then (gunicorn --preload)."""
    with broker_thread() as mq:
        mq.create_topic("t")
        client, entropy, (read, write) = Client(nameservers=mq.nameserver_address), Entropy(), os.pipe()
        alone, made = Producer("alone", nameservers=mq.nameserver_address), client.client_id

        async def drawn() -> None:
            async with client, client.producer("p") as producer, alone:
                sent = [await each.send("t", b"x") for each in (producer, alone)]
                ids = (client.client_id, alone.client.client_id, *(each.msg_id[8:24] for each in sent))
                os.write(write, " ".join((*ids, entropy.token(8).hex(), "")).encode())

        for _ in range(2):
            child = os.fork()
            if child == 0:
                try:
                    aiorocket.run(drawn())
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        aiorocket.run(drawn())
        ids = os.read(read, 4096).decode().split()
        os.close(read)
        os.close(write)
        assert len(ids) == len(set(ids)) == 15 and made in ids  # of the parent, which made it
