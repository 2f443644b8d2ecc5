"""A broker that is killed again and again under load, and what its clients saw.

    python -m tests.harness.crash --cycles 10000 --data DIR       goes on where an earlier run in DIR stopped

The broker is a process (``crash_broker.py``); name server, producers and consumers live in this one and see only the
wire. A cycle ends with SIGKILL at a random moment, or at a named place when it is reached for the n-th time; now and
then the broker, or all clients here, stand still for longer than every lease (SIGSTOP, a blocked loop), and with
``--clocks`` the next broker's wall clock is an hour off. One consumer of each group is a process of its own
(``crash_member.py``), which stands still alone every few seconds, over ends of brokers and while one lives: others take
its queues, and then it goes on.

Eight producers send single messages, keyed ones, delayed ones, timers, transactions and idempotent ones; three members
consume concurrently, three in order, two pop, forget and give back. Every outcome and every delivery is a line of
``history-N.jsonl``; ``check`` knows nothing else. After ``ROUND`` cycles everything has to have arrived, the history
is checked, and the next round begins with a topic of its own in the same store.
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
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from aiorocket import (
    Admin,
    Client,
    Message,
    NameServerConfig,
    Producer,
    ProducerConfig,
    RocketError,
    SendError,
    SimpleConsumer,
    TransactionProducer,
    TxState,
)
from aiorocket.nameserver import NameServer
from aiorocket.runtime import memory_env
from tests.harness.crash_broker import POINTS
from tests.harness.crash_history import History, check, taken_over
from tests.harness.crash_member import STILL, client_config, consume, member_process

__all__ = ("ROUND", "Load", "broker_process", "run")

#: Cycles until everything has to have arrived.
ROUND = 50
_HOUR = 3600.0
#: Seconds for which a popped message stays with its member.
_INVISIBLE = 2.0
#: Longer than every lease of the configuration: locks 4 s, members 3 s, invisible times 2 s.
_STOP = 4.5
#: Messages that may be under way before the producers wait: retention must not overtake a consumer.
_UNDER_WAY = 400


class Load:
    """Producers and consumers of one round, and what they tell the history."""

    def __init__(self, history: History, topic: str, nameserver: str, draw: random.Random) -> None:
        self.history = history
        self.topic = topic
        self._nameserver = nameserver
        self._draw = draw
        self._stamp = f"{time.time_ns():x}"
        self._decided: dict[str, TxState] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        #: A number of the broker's life, to be counted on when it serves and when it has died.
        self.life = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everybody at work; ``stop_sending`` ends the producers, leaving the block the rest."""
        config = client_config(self._nameserver)
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(config=config)) for _ in range(2)]
            for number, client in enumerate(clients):
                await consume(stack, client, self.topic, f"client {number}", self.history.add)
                popper = await stack.enter_async_context(SimpleConsumer("popping", client=client))
                await popper.subscribe(self.topic, start_from="first")
                self._tasks.append(asyncio.ensure_future(self._pop(popper)))
            self._tasks.append(asyncio.ensure_future(self._positions(clients[0])))
            plain = ProducerConfig(retries=0)
            sender = await stack.enter_async_context(clients[0].producer("senders", config=plain))
            once = await stack.enter_async_context(
                clients[1].producer("once", config=ProducerConfig(retries=5, idempotent=True))
            )
            half = TransactionProducer("halves", client=clients[1], config=plain, checker=self._outcome)
            await stack.enter_async_context(half)
            kinds: list[tuple[Callable[..., Awaitable[None]], Any]] = [
                (self._plain, sender), (self._batch, sender), (self._keyed, sender), (self._keyed, sender),
                (self._delayed, sender), (self._timed, sender), (self._transaction, half), (self._idempotent, once),
            ]  # fmt: skip
            sending = [
                asyncio.ensure_future(self._send(number, kind, producer))
                for number, (kind, producer) in enumerate(kinds)
            ]
            self._sending = sending
            try:
                yield
            finally:
                for task in (*sending, *self._tasks):
                    task.cancel()
                await asyncio.gather(*sending, *self._tasks, return_exceptions=True)

    async def stop_sending(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._sending)

    # ---- producers

    async def _send(self, number: int, kind: Callable[..., Awaitable[None]], producer: Any) -> None:
        count = 0
        while not self._stopping:
            body = f"{self._stamp}-{number}-{count}"
            count += 1
            try:
                await kind(producer, body)
            except SendError as error:
                self.history.add("unknown" if error.may_be_stored else "fail", body)
                await asyncio.sleep(0.05)
            except RocketError:  # there is no route: the broker is away
                self.history.add("fail", body)
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.005)
            while not self._stopping and max(map(len, self.history.waiting.values())) > _UNDER_WAY:
                await asyncio.sleep(0.05)

    async def _plain(self, producer: Producer, body: str) -> None:
        receipt = await producer.send(self.topic, body.encode(), timeout=1.0)
        self.history.add("ok", body, receipt.queue.queue_id, receipt.offset)

    async def _batch(self, producer: Producer, body: str) -> None:
        bodies = [f"{body}.{index}" for index in range(3)]
        try:
            receipts = await producer.send_batch(self.topic, [one.encode() for one in bodies], timeout=1.0)
        except RocketError as error:
            unknown = isinstance(error, SendError) and error.may_be_stored
            for one in bodies:
                self.history.add("unknown" if unknown else "fail", one)
            raise
        for one, receipt in zip(bodies, receipts, strict=True):
            self.history.add("ok", one, receipt.queue.queue_id, receipt.offset)

    async def _keyed(self, producer: Producer, body: str) -> None:
        receipt = await producer.send(self.topic, body.encode(), sharding_key=body.split("-")[1], timeout=1.0)
        self.history.add("ok", body, receipt.queue.queue_id, receipt.offset)

    async def _delayed(self, producer: Producer, body: str) -> None:
        await producer.send(self.topic, body.encode(), delay_level=1, timeout=1.0)
        self.history.add("ok", body, None, None)

    async def _timed(self, producer: Producer, body: str) -> None:
        seconds = self._draw.choice([0.2, 1.0, 3.0, 6.0])
        self.history.add("due", body, round((time.time() + seconds) * 1000) - 2)
        await producer.send(self.topic, body.encode(), after=timedelta(seconds=seconds), timeout=1.0)
        self.history.add("ok", body, None, None)

    async def _transaction(self, producer: TransactionProducer, body: str) -> None:
        end = self._draw.choice([TxState.COMMIT, TxState.COMMIT, TxState.ROLLBACK])
        try:
            async with producer.transaction(self.topic, body.encode(), timeout=1.0) as tx:
                self._decided[body] = end
                if end is TxState.ROLLBACK:
                    tx.rollback()
        except RocketError as error:
            # Also one whose half message may be stored: whoever asks is told to roll it back.
            raise SendError(str(error), may_be_stored=False) from error
        if end is TxState.COMMIT:
            self.history.add("ok", body, None, None)
        else:
            self.history.add("fail", body)

    def _outcome(self, message: Message) -> TxState:
        return self._decided.get(message.body.decode(), TxState.ROLLBACK)

    async def _idempotent(self, producer: Producer, body: str) -> None:
        self.history.add("once", body)
        receipt = await producer.send(self.topic, body.encode(), timeout=5.0)
        self.history.add("ok", body, receipt.queue.queue_id, receipt.offset)

    # ---- consumers

    async def _positions(self, client: Client) -> None:
        """Where the orderly group is, a few times a second."""
        async with Admin(client=client) as admin:
            while True:
                await asyncio.sleep(0.2)
                life = self.life
                with suppress(RocketError):  # nobody knows
                    for each in await admin.groups.lag("in-order", self.topic):
                        if self.life == life:
                            self.history.add("position", "", life, each.queue, each.offset)

    async def _pop(self, popper: SimpleConsumer) -> None:
        while True:
            found = await popper.receive(16, invisible=_INVISIBLE, timeout=2.0)
            over = time.monotonic() + _INVISIBLE / 2  # the broker counts from before its answer
            for message in found:
                now = round(time.time() * 1000)
                self.history.add("got", message.body.decode(), "popping", message.queue.queue_id, message.offset, now)
            for message in found:
                fate = self._draw.random()
                try:
                    if fate < 0.05:
                        continue  # forgotten: it comes again by its retry topic
                    if fate < 0.1:
                        await message.retry(after=0.3)
                    elif await message.ack() and time.monotonic() < over:
                        # Later its copy may be on its way, stored by a broker that died before it said so.
                        self.history.add("acked", message.body.decode())
                except RocketError:
                    pass  # nobody knows


class _Process:
    """The broker of one cycle. ``port`` is 0 when it died before it served."""

    def __init__(self, process: Any, port: int) -> None:
        self.process = process
        self.port = port

    async def killed(self, after: float) -> None:
        """Return when it has died; kill it in ``after`` seconds."""
        try:
            async with asyncio.timeout(after):
                await self.process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):  # it came to its own place to die just now
                self.process.send_signal(signal.SIGKILL)
            await self.process.wait()


@asynccontextmanager
async def broker_process(
    port: int, nameserver: str, data: Path, flush: str, skew: float = 0.0, point: str = "", count: int = 0,
    log_bytes: int = 8 << 20,
) -> AsyncIterator[_Process]:  # fmt: skip
    search = os.pathsep.join(path for path in sys.path if path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.harness.crash_broker", str(port), nameserver, str(data), flush, str(skew), point,
        str(count), str(log_bytes), stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": search},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            line = await process.stdout.readline()
        if not line and not point:
            raise AssertionError("the broker did not start; what it said is above")
        yield _Process(process, int(line or 0))
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def run(
    cycles: int, data: Path, flush: str, seed: int, *, clocks: bool = False, small: bool = False, stops: float = 0.0,
    quiet: bool = False,
) -> list[str]:  # fmt: skip
    """``cycles`` ends of a broker, those that are on record in ``data`` included; what the histories break. With
    ``small`` the store has a small file system to itself, and it is filled up now and then; else of the first cycle of
    a round, and of so many of the others as ``stops`` says, the broker lives for as long as a member stands still."""
    data.mkdir(parents=True, exist_ok=True)
    record = data / "rounds.jsonl"
    rounds = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    broken: list[str] = [line for each in rounds for line in each["broken"]]
    while (done := sum(each["cycles"] for each in rounds)) < cycles:
        number = len(rounds)
        began = time.perf_counter()
        report = await _round(number, min(ROUND, cycles - done), data, flush, seed + number, clocks, small, stops)
        rounds.append(report)
        with record.open("a") as file:
            file.write(json.dumps(report) + "\n")
        broken += report["broken"]
        if not report["broken"]:
            (data / f"history-{number}.jsonl").unlink()
        if not quiet:
            ends = sum((Counter(each["ends"]) for each in rounds), Counter[str]())
            print(
                f"{done + report['cycles']} cycles, {time.perf_counter() - began:.0f} s for the last"
                f" {report['cycles']}: {report['rows']}, {len(broken)} broken promises",
                flush=True,
            )
            if done + report["cycles"] >= cycles:
                print("\n".join(f"{count:6} {end}" for end, count in sorted(ends.items())))
    return broken


async def _fill_up(store: Path, draw: random.Random) -> None:
    """Somebody else fills the file system of the store, and makes room again."""
    filler = store.resolve().parent / "filler"
    found = os.statvfs(store)
    room = found.f_bavail * found.f_frsize - draw.choice([4096, 100_000, 1 << 20])
    try:
        with filler.open("wb") as file, suppress(OSError):  # the broker writes meanwhile: it is full then
            os.posix_fallocate(file.fileno(), 0, max(1, room))
        await asyncio.sleep(draw.random() * 1.5)
    finally:
        filler.unlink()


async def _round(
    number: int, cycles: int, data: Path, flush: str, seed: int, clocks: bool, small: bool, stops: float
) -> dict[str, Any]:
    draw = random.Random(seed)
    history = History(data / f"history-{number}.jsonl")
    env = memory_env()
    names = NameServer(env, NameServerConfig(port=0))
    await names.start()
    store = data / "store"
    topic = f"crash-{number}-{time.time_ns():x}"
    ends: Counter[str] = Counter()
    load = Load(history, topic, names.address, draw)
    try:
        async with (
            broker_process(0, names.address, store, flush) as broker,
            Client(nameservers=names.address) as client,
            client.producer("p") as producer,
        ):
            port = broker.port
            await producer.send(topic, b"first")
            history.add("ok", "first", None, None)
        async with load.running(), member_process(names.address, topic, history, draw) as member:
            for cycle in range(cycles):
                skew = draw.choice([-_HOUR, _HOUR]) if clocks and draw.random() < 0.2 else 0.0
                if skew:
                    history.add("clock", "", skew)
                point, count = "", 0
                how = draw.random()
                still = not cycle or draw.random() < stops
                if how < 0.7 and not still:
                    point = draw.choice(list(POINTS))
                    count = draw.choice([1, 1, 1, 2, 3, 5, 10, 30])
                async with broker_process(port, names.address, store, flush, skew, point, count) as broker:
                    load.life += 1
                    if still and not small:
                        await member.stand_still(STILL[1])
                        ends["a member stopped first"] += 1
                    elif how > 0.98:
                        broker.process.send_signal(signal.SIGSTOP)
                        await asyncio.sleep(_STOP)
                        broker.process.send_signal(signal.SIGCONT)
                        ends["stopped first"] += 1
                    elif how > 0.96:
                        time.sleep(_STOP)  # every client stands still
                        ends["clients stopped first"] += 1
                    elif small and broker.port:
                        await _fill_up(store, draw)
                        ends["a full disk first"] += 1
                    died = broker.process.returncode is not None or not broker.port
                    await broker.killed(1.0 if point else draw.random() * 0.8)
                    load.life += 1  # who asks from now on is answered by the next
                    alive = not died and not point
                    ends["at a random moment" if alive else point] += 1
            await load.stop_sending()
            member.go_on()
            # A clock that is ahead of every time that was waited for.
            async with broker_process(port, names.address, store, flush, 2 * _HOUR if clocks else 0.0):
                await history.arrived(120)
                await asyncio.sleep(1.0)  # what is not to come would come now
    finally:
        await names.close()
        await env.disk.close()
        history.close()
    rows = dict(Counter(row[0] for row in history.rows))
    if taken := taken_over(history.rows):
        ends["queues taken over from a member that stood still"] = taken
    return {"cycles": cycles, "ends": dict(ends), "rows": rows, "broken": check(history.rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a broker under load, again and again.")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--flush", choices=["sync", "async"], default="sync")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clocks", action="store_true", help="set the broker's wall clock an hour off now and then")
    parser.add_argument(
        "--small-disk", action="store_true", help="fill up the file system of DIR/store, which has one to itself"
    )
    parser.add_argument("--stops", type=float, default=0.02, help="of so many cycles a consumer is stopped alone")
    parser.add_argument("--data", help="keep store and history here, and go on with what is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(options.data or temporary)
        more = {"clocks": options.clocks, "small": options.small_disk, "stops": options.stops}
        broken = asyncio.run(run(options.cycles, data, options.flush, options.seed, **more))
    for line in broken[:50]:
        print(line)
    print(f"{len(broken)} broken promises")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
