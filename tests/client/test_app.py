"""A Client as the whole of a service's messaging: include, running, send, health."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from aiorocket import (
    Client,
    ClientConfig,
    ConsumerConfig,
    Embedded,
    Message,
    NotConnectedError,
    Router,
    TopicNotFoundError,
    TxState,
    UsageError,
    embed,
)
from aiorocket.broker import Broker
from aiorocket.client.health import ConsumerHealth
from aiorocket.config import BrokerConfig, NameServerConfig, StoreConfig
from aiorocket.nameserver import NameServer
from aiorocket.testing import Simulation, simulate


@pytest_asyncio.fixture
async def mq() -> AsyncIterator[Embedded]:
    async with embed() as embedded:
        for topic in ("t", "u"):
            await embedded.create_topic(topic, queues=2)
        yield embedded


class Seen:
    """What listeners were called with; ``some`` waits for that many calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, Any]] = []
        self._more = asyncio.Event()

    def add(self, message: Message, state: Any = None) -> None:
        self.calls.append((message.body, state))
        self._more.set()

    async def some(self, count: int) -> list[tuple[bytes, Any]]:
        async with asyncio.timeout(30):
            while len(self.calls) < count:
                self._more.clear()
                await self._more.wait()
        return sorted(self.calls, key=lambda call: call[0])


async def test_routers_run_together_each_with_its_state(mq: Embedded) -> None:
    seen, loop = Seen(), asyncio.get_running_loop()
    one, two, other = Router(), Router("g"), Router("h")

    @one.listener("t", "a", start_from="first")
    async def with_state(message: Message, state: Any) -> None:
        seen.add(message, state)

    @two.listener("t", "b", start_from="first")
    def in_a_thread(message: Message, *, state: Any) -> None:
        loop.call_soon_threadsafe(seen.add, message, state)

    @other.listener("t", start_from="first")
    async def without(message: Message) -> None:
        seen.add(message)

    async with mq.client("g") as client:
        client.include(one, state="first")
        client.include(two, state="second")
        client.include(other, state="not asked for")
        async with client.running():
            assert [each.group for each in client.health().consumers] == ["g", "h"]
            await client.send("t", b"1", tag="a")
            await client.send_oneway("t", b"2", tag="b")
            assert [call for call in await seen.some(4) if call[1]] == [(b"1", "first"), (b"2", "second")]
        assert [body for body, state in await seen.some(4) if state is None] == [b"1", b"2"]


async def test_one_producer_whoever_is_first(mq: Embedded) -> None:
    async with mq.client("g") as client:
        receipts = await asyncio.gather(*(client.send("t", b"%d" % number) for number in range(20)))
        assert len({receipt.msg_id for receipt in receipts}) == 20
        assert list(client.session.producers) == ["g"]
        with pytest.raises(UsageError, match="must be bytes"):
            await client.send("t", "text")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        await client.send("t", b"late")
    async with mq.client() as nameless:
        with pytest.raises(UsageError, match="group"):
            await nameless.send("t", b"x")


async def test_what_a_client_sends_for_later_it_takes_back(mq: Embedded) -> None:
    async with mq.client("app") as client:
        receipt = await client.send("t", b"x", after=timedelta(hours=1))
        assert receipt.recall_handle is not None
        assert await client.recall(receipt.recall_handle) == receipt.msg_id


async def test_what_cannot_run_is_refused_when_it_is_included(mq: Embedded) -> None:
    router = Router()

    @router.listener("t")
    async def needs_one(message: Message, state: Any) -> None: ...

    client = mq.client("g")
    with pytest.raises(UsageError, match=r"'needs_one' of topic 't' takes a state.*include"):
        client.include(router)
    with pytest.raises(UsageError, match="takes a state"):
        await mq.consumer("g", router=router).start()
    with pytest.raises(UsageError, match="which group"):
        mq.client().include(router, state=1)
    client.include(router, state=1, config=ConsumerConfig(concurrency=2))
    with pytest.raises(UsageError, match="another config"):
        client.include(router, state=1, config=ConsumerConfig(concurrency=3))
    with pytest.raises(UsageError, match="not started"):
        async with client.running():
            pass
    await client.stop()


async def test_running_is_entered_once_at_a_time_and_can_be_entered_again(mq: Embedded) -> None:
    router, seen = Router(), Seen()

    @router.listener("t", start_from="first")
    async def take(message: Message) -> None:
        seen.add(message)

    async with mq.client("g") as client:
        client.include(router)
        assert client.health().reasons == ("consumer 'g' is not started",)
        for number in range(2):
            async with client.running():
                assert client.health().ready
                with pytest.raises(UsageError, match="running already"):
                    async with client.running():
                        pass
                with pytest.raises(UsageError, match="before that"):
                    client.include(router)
                await client.send("t", b"%d" % number)
                await seen.some(number + 1)
            assert client.health().reasons == ("consumer 'g' is not running",)
    assert [body for body, _ in seen.calls] == [b"0", b"1"]
    assert client.health().reasons == ("the client is not running",)


async def test_when_one_consumer_cannot_start_none_runs(mq: Embedded) -> None:
    good, bad = Router("good"), Router("bad")

    @good.listener("t")
    async def take(message: Message) -> None: ...

    @bad.listener("nowhere")
    async def never(message: Message) -> None: ...

    config = ClientConfig(nameservers=mq.nameservers, start_timeout=1, missing_topics="error")
    async with Client(config=config, group="g") as client:
        client.include(good)
        client.include(bad)
        with pytest.raises(TopicNotFoundError, match="nowhere"):
            async with client.running():
                pytest.fail("it started")
        assert not client.session.consumers
        assert not client.health().ready


def test_nobody_there_fails_the_start() -> None:
    router, address = Router("g"), "10.0.0.1:9876"

    @router.listener("t")
    async def never(message: Message) -> None: ...

    async def start(sim: Simulation) -> None:
        async with Client(config=ClientConfig(nameservers=(address,)), env=sim.env()) as client:
            client.include(router)
            with pytest.raises(NotConnectedError, match=address):
                async with client.running():
                    pytest.fail("it started")

    simulate(lambda sim: sim.host("10.2.0.1").run(start(sim)))


async def test_leaving_waits_for_listeners_up_to_the_bound(mq: Embedded) -> None:
    router, began, ended = Router("g"), asyncio.Event(), []

    @router.listener("t", start_from="first")
    async def work(message: Message, state: Client) -> None:
        began.set()
        await asyncio.sleep(float(message.body))
        await state.send("u", message.body)
        ended.append(message.body)

    async def leave_during(body: bytes, bound: float) -> float:
        began.clear()
        async with mq.client("p") as client:
            client.include(router, state=client)
            async with client.running(drain_timeout=bound):
                await client.send("t", body)
                await asyncio.wait_for(began.wait(), 30)
                left = client.session.loop.time()
            return client.session.loop.time() - left

    await leave_during(b"0.2", 30)
    assert ended == [b"0.2"]
    assert 0.4 <= await leave_during(b"60", 0.5) < 30 and ended == [b"0.2"]
    assert sum(mq.broker.offsets.queues("g", "t").values()) == 1


async def test_a_block_that_fails_drains_too(mq: Embedded) -> None:
    router = Router("g")

    @router.listener("t")
    async def take(message: Message) -> None: ...

    async with mq.client("p") as client:
        client.include(router)
        with pytest.raises(ZeroDivisionError):
            async with client.running():
                raise ZeroDivisionError
        assert not client.session.consumers


async def test_health_is_plain_and_names_what_is_wrong(mq: Embedded) -> None:
    router = Router("g")

    @router.listener("t")
    async def take(message: Message) -> None: ...

    async with mq.client("p") as client:
        assert client.health().ready and client.health().brokers == ()
        client.include(router)
        async with client.running():
            health = client.health()
            assert json.loads(json.dumps(health.as_dict()))["consumers"][0]["group"] == "g"
            assert health.ready and health.client_id == client.client_id
            await mq.broker.close()
            async with asyncio.timeout(30):
                while (health := client.health()).ready:
                    await asyncio.sleep(0.01)
            assert f"no broker is connected: {mq.broker.address}" in health.reasons


async def test_a_connection_to_a_broker_without_topics_in_use_makes_nobody_ready(mq: Embedded) -> None:
    async with embed() as other, mq.client("p") as client:
        await client.send("t", b"x")
        await client.session.connection(other.broker.address)
        assert [each.address for each in client.health().brokers] == [mq.broker.address]
        await mq.broker.close()
        async with asyncio.timeout(30):
            while (health := client.health()).ready:
                await asyncio.sleep(0.01)
        assert health.reasons == (f"no broker is connected: {mq.broker.address}",)


async def test_everything_a_client_makes_is_of_its_group_and_counts_for_its_health(mq: Embedded) -> None:
    async def check(message: Message) -> TxState:
        return TxState.UNKNOWN

    async with mq.client("g") as client:
        payments, reader = client.transaction_producer(checker=check), client.pull_consumer()
        listening = client.consumer("h")
        made = (client.producer(), payments, reader, listening)
        assert [each.group for each in made] == ["g", "g", "g", "h"]
        assert all(each.client is client.session for each in made)
        async with payments, reader, listening:
            assert [each.group for each in client.health().consumers] == ["h"]  # one that reads nothing is no member
            await reader.subscribe("t")
            health = client.health()
            assert health.ready and {(each.group, each.queues) for each in health.consumers} == {("g", 2), ("h", 0)}
            await mq.broker.close()
            async with asyncio.timeout(30):
                while sum("reads none of its 2 queues" in reason for reason in client.health().reasons) != 1:
                    await asyncio.sleep(0.01)
        assert client.health().consumers == ()


@pytest.mark.seeds(4)  # each one moment of four
def test_cancelled_at_any_moment_a_service_leaves_nothing_behind(seed: int) -> None:
    """In virtual time, cut off after each half millisecond of its life: start, a message, drain, end. ``simulate``
    fails when a task is left."""
    names = "10.0.0.1:9876"

    async def life(sim: Simulation, after: float) -> bool:
        hosts = [sim.host(f"10.0.0.{number}") for number in (1, 2, 3)]
        nameserver = NameServer(sim.env(), NameServerConfig(host="10.0.0.1", open_registration=True))
        await hosts[0].run(nameserver.start())
        store = StoreConfig(segment_size=64 * 1024, min_free=64 * 1024)
        broker = Broker(
            sim.env(), BrokerConfig(host="10.0.0.2", port=10911, data="store", nameservers=(names,), store=store)
        )
        await hosts[1].run(broker.start())
        consumers = []

        async def service() -> None:
            router, done = Router("g"), asyncio.Event()

            @router.listener("t", start_from="first")
            async def take(message: Message, state: Client) -> None:
                await state.send("u", message.body)
                done.set()

            client = Client(nameservers=names, group="p", env=sim.env())
            async with client:
                await client.send("t", b"x")
                client.include(router, state=client)
                async with client.running(drain_timeout=1):
                    consumers.append(client)
                    await done.wait()

        async def bounded() -> bool:
            try:
                async with asyncio.timeout(after):
                    await service()
            except TimeoutError:
                return False
            return True

        whole: bool = await hosts[2].run(bounded())
        assert all(not client.session.consumers and not client.session.started for client in consumers)
        await hosts[1].run(broker.close())
        await hosts[0].run(nameserver.close())
        return whole

    after, whole = 0.0005 * (1 + seed), False
    while not whole:
        assert after < 2, "it never came to its end"
        whole = simulate(lambda sim, after=after: life(sim, after))  # type: ignore[misc]
        after += 0.002


def test_a_consumer_is_healthy_while_it_can_read_something() -> None:
    def health(**changes: Any) -> ConsumerHealth:
        values = {
            "group": "g", "running": True, "queues": 4, "failing": 0, "cached": 0, "in_work": 0, "consumed": 0,
            "retried": 0, "dead_lettered": 0, "last_error": None,
        }  # fmt: skip
        return ConsumerHealth(**SimpleNamespace(**{**values, **changes}).__dict__)

    assert health().healthy and health(failing=3).healthy and health(queues=0).healthy
    assert not health(failing=4).healthy and not health(running=False).healthy
