"""The exactly-once sink in virtual time: drivers, executors and the broker die at every point, tasks run twice, batches
are replayed; readers see each row once, and everything of a batch when its commit has returned."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from aiorocket.broker import Broker
from aiorocket.broker.handlers.transaction import TransactionHandlers
from aiorocket.broker.transaction_check import name_of
from aiorocket.client.app import Client
from aiorocket.client.queue_scan import QueueScan
from aiorocket.config import BrokerConfig, ClientConfig, NameServerConfig, StoreConfig
from aiorocket.errors import RocketError
from aiorocket.model import TxState
from aiorocket.nameserver import NameServer
from aiorocket.spark.exactly_once import HalfSink, Halves
from aiorocket.spark.ledger import Ledger
from aiorocket.spark.options import ConnectionOptions, SinkOptions
from aiorocket.spark.outgoing_rows import ATTEMPT, LEDGER, TXN, OutgoingRow
from aiorocket.testing import SimHost, Simulation, simulate
from aiorocket_protocol import EndTransactionRequestHeader, RecordView

# What a killed process had just begun is never run.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:coroutine '.*' was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings(r"ignore:Exception ignored in. <coroutine:pytest.PytestUnraisableExceptionWarning"),
]

NAMES = "10.0.0.1:9876"
OPTIONS = SinkOptions(
    connection=ConnectionOptions(name_servers=(NAMES,)),
    topic="out",
    mode="exactlyOnce",
    check_immunity=20,
    check_round=35,
)
QUERY = "q"
ROWS = 6
PARTITIONS = 2


class Process:
    """A Python process of the sink: an executor's worker, or a driver's."""

    def __init__(self, sim: Simulation, address: str) -> None:
        self.host: SimHost = sim.host(address)
        self.client = Client(config=ClientConfig(nameservers=(NAMES,)), env=sim.env())

    async def start(self) -> HalfSink:
        async def begin() -> HalfSink:
            await self.client.start()
            return await HalfSink.of(self.client.session, "sink")

        self.sink = await self.host.run(begin())
        return self.sink

    async def run(self, coro: Coroutine[Any, Any, Any], kill_after: float | None = None) -> Any:
        """Its result, or None when the process was killed before."""
        task = self.host.start(coro)
        await asyncio.wait([task], timeout=kill_after)
        if kill_after is not None and not task.done():
            self.host.kill(power_cut=False)
            return None
        return await task

    async def stop(self) -> None:
        if self.host.alive:
            await self.host.run(self.sink.producer.stop())
            await self.host.run(self.client.stop())


class World:
    def __init__(self, sim: Simulation, seed: int) -> None:
        self.sim = sim
        self.dice = random.Random(seed)
        self.disk = sim.disk()
        self.executors: list[Process] = []
        self.attempts = 0
        self.drivers = 0

    async def start(self) -> None:
        self.names_host = self.sim.host("10.0.0.1")
        self.names = NameServer(self.sim.env(), NameServerConfig(host="10.0.0.1", open_registration=True))
        await self.names_host.run(self.names.start())
        await self.start_broker()
        for _ in range(PARTITIONS):
            await self.new_executor()

    async def start_broker(self) -> None:
        self.broker_host = self.sim.host("10.0.0.2")
        store = StoreConfig(segment_size=64 * 1024, min_free=64 * 1024)
        config = BrokerConfig(host="10.0.0.2", port=10911, data="store", nameservers=(NAMES,), store=store)
        self.broker = Broker(self.sim.env(disk=self.disk), config)
        await self.broker_host.run(self.broker.start())

    async def restart_broker(self, pause: float) -> None:
        self.broker_host.kill(power_cut=True)
        self.disk.crash()
        await asyncio.sleep(pause)
        await self.start_broker()

    async def new_executor(self) -> Process:
        process = Process(self.sim, f"10.0.1.{len(self.executors) + 1}")
        await process.start()
        self.executors.append(process)
        return process

    async def new_driver(self) -> Process:
        self.drivers += 1
        process = Process(self.sim, f"10.0.2.{self.drivers}")
        await process.start()
        return process

    async def close(self) -> None:
        for process in self.executors:
            await process.stop()
        await self.broker_host.run(self.broker.close())
        await self.names_host.run(self.names.close())

    # ---- Spark's part

    async def task(self, process: Process, batch: int, partition: int) -> Halves | None:
        """One attempt of a task; None when it found the batch decided."""
        self.attempts += 1
        halves = Halves(f"{partition}-{self.attempts}")
        if (await process.sink.ledger(OPTIONS.ledger_topic).look(QUERY, batch, first=batch == 0)).decided:
            return None
        rows = [
            OutgoingRow(
                number, "out", f"{batch}/{partition}/{number}".encode(),
                f"{ATTEMPT}\x01{halves.attempt}\x02{LEDGER}\x01{OPTIONS.ledger_topic}\x02"
                f"{TXN}\x01{QUERY}/{batch}/{partition}/{number}\x02",
            )
            for number in range(ROWS)
        ]  # fmt: skip
        await process.sink.send(rows, f"partition {partition}", halves, OPTIONS)
        return halves

    async def seen(self) -> Counter[str]:
        """What readers can see now."""
        process = Process(self.sim, "10.0.3.1")
        await process.start()

        async def read() -> Counter[str]:
            found: Counter[str] = Counter()
            route = await process.client.session.route("out")
            for queue in route.subscribe:
                scan = QueueScan(process.client.session, queue, route.reader(queue.broker_name) or "")
                begin, end = await scan.bounds()
                found.update([view.body.decode() async for view in scan.messages(begin, end, RecordView)])
            return found

        found: Counter[str] = await process.run(read())
        await process.stop()
        return found


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What was killed is gone with its warnings, before other tests run."""
    yield
    gc.collect()


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often brokers were told to commit each half message. Ours delivers it once all the same, Apache's do it each
    time."""
    told: Counter[int] = Counter()
    real = TransactionHandlers.end

    def end(self: TransactionHandlers, connection: Any, command: Any) -> Any:
        header = command.read(EndTransactionRequestHeader)
        data = self._store.read_record(header.commit_log_offset)
        if header.commit_or_rollback == TxState.COMMIT.value and data is not None:
            told[name_of(RecordView(data, 0, len(data)))] += 1
        return real(self, connection, command)

    monkeypatch.setattr(TransactionHandlers, "end", end)
    return told


def rows_up_to(batch: int) -> Counter[str]:
    return Counter(
        f"{each}/{partition}/{number}"
        for each in range(batch + 1)
        for partition in range(PARTITIONS)
        for number in range(ROWS)
    )


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.spark_long) for seed in range(3, 20))]
)
def test_every_row_is_seen_once_whatever_dies(seed: int, commits: Counter[int]) -> None:
    async def main(sim: Simulation) -> None:
        world = World(sim, seed)
        dice = world.dice
        await world.start()
        driver = await world.new_driver()
        batch = 0
        for _ in range(60):
            if batch == 6:
                break
            parts: list[Halves] = []
            skipped = failed = False
            for partition in range(PARTITIONS):
                for _ in range(4):
                    process = dice.choice([each for each in world.executors if each.host.alive])
                    try:
                        # A task that dies or loses a speculative race leaves its half messages behind.
                        kill = dice.random() * 0.05 if dice.random() < 0.15 else None
                        if dice.random() < 0.3:  # a send whose acknowledgement is lost: perhaps it is stored
                            network = sim.loop.network
                            sim.loop.call_later(dice.random() * 0.01, network.reset, process.host.address, "10.0.0.2")
                        halves = await process.run(world.task(process, batch, partition), kill)
                        if not process.host.alive:
                            await world.new_executor()
                            continue
                        if dice.random() < 0.2:
                            continue
                    except RocketError:
                        continue
                    if halves is None:
                        skipped = True
                    else:
                        parts.append(halves)
                    break
                else:
                    failed = True
            if failed:
                await driver.run(driver.sink.abort(QUERY, batch, parts, OPTIONS))
                continue
            broker_dies = None
            if dice.random() < 0.25:
                broker_dies = asyncio.ensure_future(world.restart_broker(dice.random() * 10))
                await asyncio.sleep(dice.random() * 0.02)
            kill = dice.random() * 0.05 if dice.random() < 0.5 else None
            try:
                committing = driver.sink.commit(QUERY, batch, parts, skipped, OPTIONS)
                if kill is not None and not skipped and dice.random() < 0.3:
                    # A second one with the same checkpoint, whose tasks have written the same.
                    other = await world.new_driver()
                    try:
                        more = [await other.run(world.task(other, batch, number)) for number in range(PARTITIONS)]
                        await asyncio.gather(
                            driver.run(committing), other.run(other.sink.commit(QUERY, batch, more, False, OPTIONS))
                        )
                    finally:
                        committing.close()
                        await other.stop()
                else:
                    await driver.run(committing, kill)
            except RocketError:
                pass
            else:
                if driver.host.alive:
                    if broker_dies is not None:
                        await broker_dies
                    assert await world.seen() == rows_up_to(batch)  # at once, and not only some time later
                    # Now and then Spark's own commit log is lost, and the batch comes again.
                    batch += dice.random() < 0.8
            if broker_dies is not None:
                await broker_dies
            if not driver.host.alive:
                # Perhaps the whole application died, and with it everybody whom the broker could ask.
                if dice.random() < 0.5:
                    for process in world.executors:
                        process.host.kill(power_cut=False)
                    await asyncio.sleep(dice.random() * 100)
                    await world.new_executor()
                driver = await world.new_driver()
        assert batch == 6
        await asyncio.sleep(600)
        assert await world.seen() == rows_up_to(5)
        assert not len(world.broker.transactions)
        assert max(commits.values()) == 1
        await driver.stop()
        await world.close()

    simulate(main, seed)


#: Where the driver dies: before it looks, before the entry is written, right after, after some ends, before the mark.
POINTS = ("refresh", "decide", "decided", "end 1", "end 5", "end 11", "mark")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("alone", [False, True], ids=["executors live", "everything dies"])
def test_a_driver_that_dies_at(point: str, alone: bool, monkeypatch: pytest.MonkeyPatch, commits: Counter[int]) -> None:
    async def main(sim: Simulation) -> None:
        world = World(sim, 0)
        await world.start()
        driver = await world.new_driver()
        parts = [await each.run(world.task(each, 0, n)) for n, each in enumerate(world.executors)]
        losing = await world.executors[0].run(world.task(world.executors[0], 0, 0))
        assert len(losing) == ROWS
        ledger, sink = driver.sink.ledger(OPTIONS.ledger_topic), driver.sink
        ends = 0

        def dies(owner: object, name: str, after: bool = False) -> None:
            real = getattr(owner, name)

            async def method(*args: Any) -> Any:
                if after:
                    await real(*args)
                driver.host.kill()
                await asyncio.sleep(0)  # never returns: nothing of this host runs any more

            monkeypatch.setattr(owner, name, method)

        async def end(*args: Any) -> bool:
            nonlocal ends
            ends += 1
            if ends > int(point.split()[1]):
                driver.host.kill()
                await asyncio.sleep(0)
            return await HalfSink._end(sink, *args)

        if point.startswith("end"):
            monkeypatch.setattr(sink, "_end", end)
        else:
            dies(ledger, point.removesuffix("d") if point == "decided" else point, after=point == "decided")
        await driver.run(sink.commit(QUERY, 0, parts, False, OPTIONS), 10.0)
        assert not driver.host.alive
        decided = point not in ("refresh", "decide")
        seen = await world.seen()
        assert max(seen.values(), default=1) == 1 and (decided or not seen)
        if alone:
            for process in world.executors:
                process.host.kill()
            await asyncio.sleep(50)
            await world.new_executor()
        driver = await world.new_driver()
        process = world.executors[-1]
        again = [await process.run(world.task(process, 0, n)) for n in range(PARTITIONS)]
        assert (again == [None, None]) is decided
        parts = [halves for halves in again if halves is not None]
        began = sim.loop.time()
        await driver.run(driver.sink.commit(QUERY, 0, parts, decided, OPTIONS))
        assert await world.seen() == rows_up_to(0)
        if point == "refresh":
            assert sim.loop.time() - began < 1
        began = sim.loop.time()
        # A replay of what is finished waits for nobody.
        await driver.run(driver.sink.commit(QUERY, 0, [], True, OPTIONS))
        assert sim.loop.time() - began < 1
        await asyncio.sleep(120)
        assert await world.seen() == rows_up_to(0)
        assert not len(world.broker.transactions)
        assert max(commits.values()) == 1
        await driver.stop()
        await world.close()

    simulate(main, 1)


def test_the_ledger_is_one() -> None:
    """Two processes of one client share what was read."""

    async def main(sim: Simulation) -> None:
        world = World(sim, 0)
        await world.start()
        process = world.executors[0]
        assert await process.host.run(HalfSink.of(process.client.session, "sink")) is process.sink
        assert isinstance(process.sink.ledger("L"), Ledger) and process.sink.ledger("L") is process.sink.ledger("L")
        await world.close()

    simulate(main, 0)
