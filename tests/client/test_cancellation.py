"""Cancel at the k-th await, for every k of a scripted run: whatever a consumer or producer was at, nothing of it is
left, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import pytest

from aiorocket.client.app import Client
from aiorocket.client.exits import Retry
from aiorocket.client.group.rebalance_hooks import RebalanceHooks
from aiorocket.client.message import Message
from aiorocket.client.pull.pull_consumer import PullConsumer
from aiorocket.client.push.batch_listener import Batch
from aiorocket.client.push.consumer import Consumer
from aiorocket.client.push.router import Router
from aiorocket.client.sending.transaction import Transaction, TransactionProducer
from aiorocket.config import ClientConfig, ConsumerConfig, PullConsumerConfig
from aiorocket.model import Queue, TxState
from aiorocket.runtime.env import Env
from aiorocket.testing import SimCluster, SimHost, Simulation, simulate

T = TypeVar("T")

#: What is sent before each run, by queue; "bad" fails at its first attempt.
SENT = {0: ("a", "bad", "b"), 1: ("c", "d")}
BODIES = sorted(body for bodies in SENT.values() for body in bodies)
ADDRESS = "10.5.5.5"


def third(seed: int) -> range:
    """Of all waits; a plain run has the first of the three."""
    return range(1 + seed, 1000, 3)


class Cut:
    """Throws CancelledError into ``coro`` where it waits for the k-th time, as a task's cancel() does; with
    ``for_good`` also where it waits after that, as anyio's cancel scopes do. ``reached``: it waited k times."""

    def __init__(self, k: int, for_good: bool) -> None:
        self.k, self.for_good = k, for_good
        self.reached = False

    async def run(self, coro: Coroutine[Any, Any, T]) -> T:
        cut = self

        class Steps:
            def __await__(self) -> Any:
                inner, waits = coro.__await__(), 0
                try:
                    waiting = inner.send(None)
                    while True:
                        waits += 1
                        if waits == cut.k or (waits > cut.k and cut.for_good):
                            cut.reached = True
                            task = asyncio.current_task()
                            assert task is not None
                            task.cancel()
                        try:
                            result = yield waiting
                        except BaseException as error:  # noqa: BLE001 - whatever ended it is handed on as it is
                            waiting = inner.throw(error)
                        else:
                            waiting = inner.send(result)
                except StopIteration as stop:
                    return stop.value

        result: T = await Steps()
        return result


class Seen:
    """What a member's listener has finished; ``some`` is set when ``b`` is left, which takes a while. A stubborn one
    swallows its cancellation."""

    def __init__(self, stubborn: bool = False) -> None:
        self.stubborn = stubborn
        self.finished: list[str] = []
        self.attempts: dict[str, int] = {}
        self.some = asyncio.Event()

    async def work(self, message: Message) -> None:
        body = message.body.decode()
        self.attempts[body] = self.attempts.get(body, 0) + 1
        try:
            await asyncio.sleep(0.5 if body == "b" else 0.001)
        except asyncio.CancelledError:
            if self.stubborn:
                return
            raise
        if body == "bad" and self.attempts[body] == 1:
            raise Retry(after=0.05)  # as a rest in place; a broker makes it the shortest delay, 1 s
        self.finish(body)

    async def batch(self, batch: Batch) -> None:
        await asyncio.sleep(0.1)
        for index, message in enumerate(batch):
            body = message.body.decode()
            self.attempts[body] = self.attempts.get(body, 0) + 1
            if body == "bad" and self.attempts[body] == 1:
                batch.fail([index], retry_after=0.05)
            else:
                self.finish(body)

    def finish(self, body: str) -> None:
        self.finished.append(body)
        if {"a", "c", "d"} <= set(self.finished):
            self.some.set()


def concurrent(consumer: Consumer, seen: Seen) -> None:
    consumer.listener("t", start_from="first", concurrency=2, timeout=30)(seen.work)


def orderly(consumer: Consumer, seen: Seen) -> None:
    consumer.orderly("t", start_from="first", timeout=30)(seen.work)


def keyed(consumer: Consumer, seen: Seen) -> None:
    register = consumer.listener("t", start_from="first", order_by=lambda message: message.queue.queue_id, timeout=30)
    register(seen.work)


def batch(consumer: Consumer, seen: Seen) -> None:
    consumer.batch("t", start_from="first", max_messages=2, max_wait=0.01, timeout=30)(seen.batch)


BROADCAST = {"message_model": "broadcasting", "offset_store_dir": "offsets"}
KINDS: dict[str, tuple[Callable[[Consumer, Seen], None], dict[str, Any]]] = {
    "concurrent": (concurrent, {}),
    "concurrent, stubborn": (concurrent, {}),
    "orderly": (orderly, {}),
    "orderly, stubborn": (orderly, {}),
    "keyed": (keyed, {}),
    "keyed, stubborn": (keyed, {}),
    "batch": (batch, {}),
    "broadcasting": (concurrent, BROADCAST),
    "broadcasting orderly": (orderly, BROADCAST),
    "broadcasting batch": (batch, BROADCAST),
}


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("shared", [False, True], ids=["own client", "shared client"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer(kind: str, shared: bool, for_good: bool) -> None:
    """Start, consume, stop: no task, timer, socket or file is left, the group is unregistered, its locks are free, and
    the next member gets at once what was not finished."""
    # Every ninth, and of each kind and way other ones; all are in harness/test_cancellation.py.
    first = 1 + (4 * list(KINDS).index(kind) + 2 * shared + for_good) % 9
    waits_of_a_consumer(kind, shared, for_good, range(first, 1000, 9))


def waits_of_a_consumer(kind: str, shared: bool, for_good: bool, waits: range) -> None:
    _for_every_wait(lambda sim, cut: _a_consumer(sim, cut, kind, shared), for_good, waits)


async def _a_consumer(sim: Simulation, cut: Cut, kind: str, shared: bool) -> bool:
    register, options = KINDS[kind]
    config = ConsumerConfig(drain_timeout=1.0, **options)
    async with _cluster(sim) as cluster:
        host, env, first = sim.host(ADDRESS), sim.env(), Seen(kind.endswith("stubborn"))
        mine = ClientConfig(nameservers=tuple(cluster.endpoints), instance="me")
        mq = Client(config=mine, env=env)
        if shared:
            await host.run(mq.start())
        before = _left(sim, host)

        async def script() -> None:
            if not shared and not options:
                consumer = Consumer("g", nameservers=cluster.endpoints, env=env, config=config)
                register(consumer, first)
                async with consumer:
                    await first.some.wait()
                return
            async with AsyncExitStack() as stack:
                if not shared:
                    await stack.enter_async_context(mq)
                consumer = mq.consumer("g", config=config)
                register(consumer, first)
                await stack.enter_async_context(consumer)
                await first.some.wait()

        await _cut_off(host, cut, script())
        done = set(first.finished)
        await asyncio.sleep(2)  # what was told to close has closed
        assert set(first.finished) == done
        after = _left(sim, host)
        # A shared client stays connected. Who is never let go has its listeners' timers run out by themselves.
        same = 1 if shared else 2 if cut.for_good else 3
        assert after[:same] == before[:same], (cut.k, before, after)
        assert not mq.session.consumers
        assert _members(cluster) == [], cut.k

        # Who comes next: elsewhere, except that a broadcasting member has its file here.
        second = Seen()
        if not shared or not options:
            host, env = (host, env) if options else (sim.host("10.5.5.6"), sim.env())
            other = Client(config=mine, env=env)
            await host.run(other.start())
        else:
            other = mq
        member = other.consumer("g", config=config)
        register(member, second)
        await host.run(member.start())
        # What nobody could give back any more, the broker ends.
        await asyncio.sleep(70 if cut.for_good and kind.startswith("orderly") else 2)
        missing = set(BODIES) - done - set(second.finished)
        assert missing <= {"bad"}, (cut.k, done, second.finished)
        if "bad" in missing and not options:
            await asyncio.sleep(60)
            assert "bad" in second.finished, cut.k
        await host.run(member.stop())
        if other is not mq:
            await host.run(other.stop())
        if shared:
            # The client is as good as new.
            await sim.host(ADDRESS).run(_once_more(mq))
            await sim.host(ADDRESS).run(mq.stop())
        for path in env.disk.listdir("offsets/10.5.5.5@me/g") if options and env.disk.exists("offsets") else ():
            assert path in ("offsets.json", "offsets.json.bak")
    return cut.reached


async def _once_more(client: Client) -> None:
    async with client.consumer("g") as consumer:
        assert consumer.state().running


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.seeds(3)
def test_an_iterator(for_good: bool, seed: int) -> None:
    """A consumer whose messages are settled by hand: also when it is cut off with a message in hands."""

    async def scenario(sim: Simulation, cut: Cut) -> bool:
        async with _cluster(sim) as cluster:
            host, env = sim.host(ADDRESS), sim.env()
            finished: list[str] = []

            async def script() -> None:
                async with Consumer("g", nameservers=cluster.endpoints, env=env) as consumer:
                    await consumer.subscribe("t", start_from="first")
                    async for message in consumer.messages():
                        async with message.process():
                            await asyncio.sleep(0.001)
                            finished.append(message.body.decode())
                        if len(finished) == 3:
                            await consumer.commit()
                        if len(finished) == 4:
                            break

            await _nothing_left(sim, host, cut, script())
            assert _members(cluster) == []
            second = Seen()
            await cluster.consumer("g", "t", second.work)
            await asyncio.sleep(2)
            assert set(finished) | set(second.finished) >= set(BODIES), (cut.k, finished, second.finished)
        return cut.reached

    _for_every_wait(scenario, for_good, third(seed))


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("mode", ["subscribe", "assign", "auto commit"])
@pytest.mark.seeds(3)
def test_a_pull_consumer(mode: str, for_good: bool, seed: int) -> None:
    """What was committed is not fetched again, what was not is; nobody is left in the group."""

    async def scenario(sim: Simulation, cut: Cut) -> bool:
        async with _cluster(sim) as cluster:
            host, env = sim.host(ADDRESS), sim.env()
            fetched: set[str] = set()
            committed: set[str] = set()
            hooks = RebalanceHooks()
            config = PullConsumerConfig(auto_commit=mode == "auto commit")
            queues = [Queue("t", "broker-1", queue_id) for queue_id in SENT]

            async def script() -> None:
                consumer = PullConsumer("g", nameservers=cluster.endpoints, env=env, config=config, hooks=hooks)
                if mode == "assign":
                    await consumer.assign(queues[:1], start_from="first")
                async with consumer:
                    if mode == "assign":
                        await consumer.assign(queues, start_from="first")
                    else:
                        await consumer.subscribe("t", start_from="first")
                    while len(fetched) < len(BODIES):
                        messages = await consumer.fetch(2)
                        bodies = {message.body.decode() for message in messages}
                        if mode == "auto commit":
                            committed.update(fetched)
                        else:
                            # From here on it may be.
                            committed.update(bodies)
                            await consumer.commit(messages)
                        fetched.update(bodies)
                    await consumer.seek_to_begin(queues[0])
                    await consumer.fetch(1)

            await _nothing_left(sim, host, cut, script())
            assert _members(cluster) == []
            again: set[str] = set()

            async def rest() -> None:
                async with PullConsumer("g", nameservers=cluster.endpoints, env=sim.env()) as consumer:
                    await consumer.subscribe("t", start_from="first")
                    while messages := await consumer.fetch():
                        again.update(message.body.decode() for message in messages)

            await sim.host("10.5.5.6").run(rest())
            assert committed | again >= set(BODIES), (cut.k, committed, again)
            if not cut.reached and mode != "auto commit":
                assert not again
        return cut.reached

    _for_every_wait(scenario, for_good, third(seed))


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.seeds(3)
def test_a_transaction_producer(for_good: bool, seed: int) -> None:
    """Start, two transactions, a send, stop. A half message that lost its end is asked about: what was written to the
    database is delivered, what was not is not, and nothing stays open."""

    async def scenario(sim: Simulation, cut: Cut) -> bool:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            host, env = sim.host(ADDRESS), sim.env()
            paid: set[str] = set()

            async def check(message: Message) -> TxState:
                return TxState.COMMIT if message.body.decode() in paid else TxState.ROLLBACK

            def producer(env: Env) -> TransactionProducer:
                return TransactionProducer("pay", nameservers=cluster.endpoints, env=env, checker=check)

            async def script() -> None:
                async with producer(env) as shop:
                    for body in ("a", "b"):
                        async with shop.transaction("t", body.encode(), sharding_key="k"):
                            await asyncio.sleep(0.001)
                            paid.add(body)
                            await asyncio.sleep(0.001)
                    await shop.send_in_transaction("t", b"c", local=_commit(paid))

            await _nothing_left(sim, host, cut, script())
            assert cluster.brokers[0].broker.producers.get("pay") is None
            seen = Seen()
            await cluster.consumer("g", "t", seen.work)
            other, env = sim.host("10.5.5.6"), sim.env()
            shop = producer(env)
            await other.run(shop.start())
            await other.run(shop.send("t", b"open"))  # its heartbeat tells the broker whom to ask
            await asyncio.sleep(200)
            await other.run(shop.stop())
            assert set(seen.finished) == paid | {"open"}, cut.k
            assert len(cluster.brokers[0].broker.transactions) == 0
        return cut.reached

    _for_every_wait(scenario, for_good, third(seed))


def _commit(paid: set[str]) -> Callable[[Transaction], Awaitable[TxState]]:
    async def local(tx: Transaction) -> TxState:
        await asyncio.sleep(0.001)
        paid.add("c")
        return TxState.COMMIT

    return local


@pytest.mark.seeds(3)
def test_an_application(seed: int) -> None:
    """A Client that runs two routers, one of which sends: all of it ends together. (Its task group waits for its tasks
    however often it is cancelled, and virtual time stands still meanwhile.)"""

    async def scenario(sim: Simulation, cut: Cut) -> bool:
        async with _cluster(sim) as cluster:
            await cluster.create_topic("u", 1)
            host, env, seen = sim.host(ADDRESS), sim.env(), Seen()

            async def script() -> None:
                client = Client(nameservers=cluster.endpoints, group="g", env=env)
                takes, also = Router(), Router("h")

                @takes.listener("t", start_from="first")
                async def take(message: Message, state: Client) -> None:
                    await state.send("u", message.body)
                    await seen.work(message)

                also.orderly("t", start_from="first")(Seen().work)
                async with client:
                    client.include(takes, state=client)
                    client.include(also)
                    async with client.running(drain_timeout=1):
                        await seen.some.wait()

            await _nothing_left(sim, host, cut, script())
            assert _members(cluster) == _members(cluster, "h") == []
            assert cluster.brokers[0].broker.producers.get("g") is None
            second, ordered = Seen(), Seen()
            await cluster.consumer("g", "t", second.work)
            await cluster.consumer("h", "t", ordered.work, orderly=True)
            await asyncio.sleep(2)
            assert set(ordered.finished) == set(BODIES), cut.k
            assert {*seen.finished, *second.finished} >= set(BODIES), cut.k
        return cut.reached

    _for_every_wait(scenario, False, third(seed), least=8)


@pytest.mark.parametrize("orderly_ones", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.seeds(3)
def test_a_subscribe_in_the_midst_of_a_rebalance(orderly_ones: bool, seed: int) -> None:
    """Cut off, or out of time, while a queue is given up: the queue is not left half given up, read by nobody, when it
    is this member's again."""

    async def scenario(sim: Simulation, cut: Cut) -> bool:
        async with _cluster(sim) as cluster:
            await cluster.create_topic("u", 1)
            seen, host = Seen(), sim.host(ADDRESS)
            # The only rounds are those of subscribe.
            config = ConsumerConfig(rebalance_interval=3600, rebalance_retry=3600)

            async def reluctant(queues: list[Queue]) -> None:
                await asyncio.sleep(0.01)

            consumer = Consumer("g", nameservers=cluster.endpoints, env=sim.env(), config=config, on_revoked=reluctant)
            (consumer.orderly if orderly_ones else consumer.listener)("t", start_from="first")(seen.work)
            await host.run(consumer.start())
            rebalancer: Any = consumer._membership.rebalancer
            rebalancer.now = lambda: None  # nobody tells it of the other
            other = await cluster.consumer("g", "t", orderly=orderly_ones)
            await _cut_off(host, cut, consumer.subscribe("u"))
            await other.stop()
            await asyncio.sleep(5)
            del rebalancer.now
            consumer._rebalance_now()
            sender = await cluster.producer()
            for queue_id in SENT:
                await sender.send("t", f"later {queue_id}", queue=Queue("t", "broker-1", queue_id))
            await asyncio.sleep(5)
            assert {"later 0", "later 1"} <= set(seen.finished), (cut.k, seen.finished)
            await host.run(consumer.stop())
        return cut.reached

    _for_every_wait(scenario, False, third(seed), least=8)


# -- what they share --


@asynccontextmanager
async def _cluster(sim: Simulation) -> AsyncIterator[SimCluster]:
    """With a topic t of two queues that holds what is to be ``SENT``."""
    async with SimCluster(sim) as cluster:
        await cluster.create_topic("t", 2)
        sender = await cluster.producer()
        for queue_id, bodies in SENT.items():
            for body in bodies:
                await sender.send("t", body, queue=Queue("t", "broker-1", queue_id))
        await sender.stop()
        yield cluster


def _for_every_wait(
    scenario: Callable[[Simulation, Cut], Awaitable[bool]], for_good: bool, waits: range, least: int = 12
) -> None:
    """The scenario with a cut at the first of ``waits``, at the second, and so on to the run that came to its end,
    which was ``least`` or a later one."""
    for k in waits:
        if not simulate(lambda sim, k=k: scenario(sim, Cut(k, for_good))):  # type: ignore[misc]  # k=k has no type
            break
    assert least <= k < waits[-1]


async def _nothing_left(sim: Simulation, host: SimHost, cut: Cut, script: Coroutine[Any, Any, None]) -> None:
    """Run ``script``, whose client is its own, and look what is there a little later."""
    await _cut_off(host, cut, script)
    await asyncio.sleep(2)
    tasks, sockets, timers = _left(sim, host)
    assert (tasks, sockets) == ([], 0), cut.k
    assert not timers or cut.for_good, cut.k


async def _cut_off(host: SimHost, cut: Cut, script: Coroutine[Any, Any, None]) -> None:
    """Run ``script``. A cancellation that came must come out of it."""
    task = host.start(cut.run(script))
    await asyncio.wait([task], timeout=60)
    assert task.done(), cut.k
    assert task.cancelled() is cut.reached, cut.k
    if not cut.reached:
        task.result()


def _left(sim: Simulation, host: SimHost) -> tuple[list[str], int, int]:
    """Tasks, sockets and timers of a host."""
    loop = sim.loop
    tasks = sorted(task.get_name() for task in loop.living_tasks() if loop.host_of(task) is host)
    sockets = [each for each in loop.network._transports if each.host is host]
    timers: list[Any] = [each for *_, each in loop._timers if not each.cancelled()]
    mine = [each for each in timers if each._context.get(SimHost.current) is host]
    return tasks, len(sockets), len(mine)


def _members(cluster: SimCluster, group: str = "g") -> list[str]:
    """Who the broker thinks is in the group."""
    found = cluster.brokers[0].broker.consumers.get(group)
    return [] if found is None else sorted(found.client_ids())
