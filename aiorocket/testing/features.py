"""What else a broker does than plain delivery, over restarts, kills, power cuts and lost answers: timers and their
recall, transactions, pops, sends that count once, filters, flow control. A seed draws a few of these, so that runs are
short; each is a ``Part`` that has clients of its own and knows what must have come of them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any, ClassVar, Final

from aiorocket import Message, PoppedMessage, Producer, SimpleConsumer, TransactionProducer, TxState
from aiorocket.config import BrokerConfig, ConsumerConfig, ProducerConfig, StoreConfig
from aiorocket.errors import RocketError, SendError
from aiorocket.testing.cluster import SimCluster
from aiorocket.testing.machines import body_of, key_of
from aiorocket.testing.sim import Simulation, simulate
from aiorocket.testing.sim_host import SimHost

__all__ = ("PARTS", "features")

_STORE = StoreConfig(segment_size=256 * 1024, min_free=256 * 1024, tail_cache=64 * 1024, checkpoint_interval=2.0)
#: Seconds of load, and until everything that was under way has ended: a transaction is asked about every 30 s.
_LOAD, _QUIET = 40.0, 150.0


def features(seed: int, *, only: str = "") -> int:
    """Run one seed and return how many messages were looked at. ``only`` names the parts, separated by blanks, where
    the seed should not draw them. AssertionError when something is lost, early, late, twice or invented."""

    async def main(sim: Simulation) -> int:
        draw = random.Random(f"features {seed}")
        names = only.split() or draw.sample(sorted(PARTS), 3)
        cluster = SimCluster(sim, broker=BrokerConfig(store=_STORE))
        await cluster.start()
        parts = [PARTS[name](sim, cluster, random.Random(f"{name} {seed}")) for name in names]
        for part in parts:
            await cluster.create_topic(part.topic, 2)
            await part.start()
        # In some nothing happens: what is owed then has no excuse.
        faults = draw.random() < 0.8
        loads = [asyncio.ensure_future(part.load(sim.loop.time() + _LOAD)) for part in parts]
        while not all(load.done() for load in loads):
            await asyncio.wait(loads, timeout=draw.uniform(3.0, 15.0))
            if faults:
                await _fault(draw, cluster, parts)
        await asyncio.gather(*loads)
        cluster.brokers[0].faults.clear()
        cluster.brokers[0].clock.skew_ms = 0
        await asyncio.sleep(_QUIET)
        for part in parts:
            part.settled()
        # Whatever is over by now is over for good.
        await cluster.brokers[0].restart(power_cut=True, pause=1.0)
        await asyncio.sleep(_QUIET / 2)
        for part in parts:
            part.check()
            await part.stop()
        await cluster.close()
        return sum(part.count for part in parts)

    return simulate(main, seed)


async def _fault(draw: random.Random, cluster: SimCluster, parts: list[Part]) -> None:
    broker = cluster.brokers[0]
    kinds = ["restart", "kill", "power cut", "wire", "wire", "nothing"]
    if all(part.bears_disk_and_clock for part in parts):
        kinds += ["full disk", "clock"]
    kind = draw.choice(kinds)
    if kind == "clock":
        broker.clock.skew_ms = draw.choice((-3000, 0))
        for part in parts:
            part.early = 3.002  # what was sent meanwhile is due by that clock
        if broker.clock.skew_ms:  # and may wait, due before what was delivered already, when the broker stops
            await asyncio.sleep(draw.uniform(0.3, 2.5))
            kind = "restart"
    if kind == "wire":
        plans: tuple[dict[str, Any], ...] = ({"lose_answer": True}, {"duplicate": True}, {"delay": 2.0}, {"drop": True})
        code, plan = draw.choice(draw.choice(parts).codes), draw.choice(plans)
        broker.faults.next(code, times=draw.choice((1, 3)), **plan)
        for part in parts:
            part.sent_twice |= code == "SEND_MESSAGE_V2"  # also by a producer that got no answer
            part.troubled |= code == "CHANGE_MESSAGE_INVISIBLETIME"
            if code == "PULL_MESSAGE":
                part.pulls_lost.append(part.sim.loop.time())
    elif kind == "full disk":
        broker.disk.capacity = sum(map(len, broker.disk.files.values()))
        await asyncio.sleep(draw.uniform(0.5, 3.0))
        broker.disk.capacity = 1 << 40
    elif kind not in ("nothing", "clock"):
        power = {"restart": None, "kill": False, "power cut": True}[kind]
        for part in parts:
            part.broker_ends(power)
        await broker.restart(power_cut=power, pause=draw.uniform(0.05, 3.0))


class Part:
    """One way to use a broker. ``load`` until a time; ``settled`` when all is quiet; ``check`` after one more power
    cut."""

    topic: ClassVar[str]
    #: Time limits of the part leave room for a clock that is set back by seconds and a disk that is full for seconds.
    bears_disk_and_clock: ClassVar[bool] = False
    #: Requests that faults on the wire are for.
    codes: ClassVar[tuple[str, ...]] = ("SEND_MESSAGE_V2",)

    def __init__(self, sim: Simulation, cluster: SimCluster, draw: random.Random) -> None:
        self.sim, self.cluster, self.draw = sim, cluster, draw
        self.count = 0
        self.hosts: list[SimHost] = []
        #: What consumers got: (time, key).
        self.seen: list[tuple[float, str]] = []
        #: When the broker ended, and how: None a clean stop, False a kill, True a power cut.
        self.ends: list[tuple[float, bool | None]] = []
        #: When the wire began to lose pulls, whosever: their clients wait 30 s for the answers.
        self.pulls_lost: list[float] = []
        #: The wire has repeated a send, which only the parts that say so can bear.
        self.sent_twice = False
        #: It has lost or delayed what keeps a popped message invisible.
        self.troubled = False
        #: Seconds that something may come before its time.
        self.early = 0.002
        self._quiet_from = 0.0

    async def start(self) -> None: ...

    async def load(self, end: float) -> None: ...

    def settled(self) -> None:
        self._quiet_from = self.sim.loop.time()

    def check(self) -> None:
        late = [key for at, key in self.seen if at > self._quiet_from]
        assert not late, f"{self.topic}: {late} came long after everything was over"

    async def stop(self) -> None: ...

    def broker_ends(self, power: bool | None) -> None:
        self.ends.append((self.sim.loop.time(), power))

    def host(self) -> SimHost:
        number = sum(map(ord, self.topic)) % 200
        self.hosts.append(self.sim.host(f"10.2.{number}.{len(self.hosts) + 1}"))
        return self.hosts[-1]

    def key(self) -> str:
        self.count += 1
        return f"{self.topic}-{self.count}"

    async def member(self, group: str, **options: Any) -> Any:
        """A consumer that notes what it gets."""

        async def got(message: Message) -> None:
            self.seen.append((self.sim.loop.time(), key_of(message.body)))
            await self.listen(message)

        return await self.cluster.consumer(group, self.topic, got, **options)

    async def listen(self, message: Message) -> None: ...

    async def producer(self, config: ProducerConfig) -> tuple[SimHost, Producer]:
        host = self.host()
        producer = Producer(
            f"{self.topic}-senders", nameservers=self.cluster.endpoints, env=self.sim.env(), config=config
        )
        await host.run(producer.start())
        return host, producer


class _Timers(Part):
    """Each comes once, not before its time and soon after it; what was recalled does not come."""

    topic = "timers"
    codes = ("SEND_MESSAGE_V2", "RECALL_MESSAGE")
    bears_disk_and_clock = True

    async def start(self) -> None:
        self._due: dict[str, float] = {}
        self._recalled: set[str] = set()
        self._asked: set[str] = set()
        await self.member("timed")
        self._host, self._producer = await self.producer(ProducerConfig(retries=0))

    async def load(self, end: float) -> None:
        sends = []
        while self.sim.loop.time() < end:
            for _ in range(self.draw.choice((1, 1, 5))):
                sends.append(self._host.start(self._one(self.key(), self.draw.choice((0.3, 2.0, 8.0, 25.0)))))
            await asyncio.sleep(self.draw.uniform(0.1, 2.0))
        await asyncio.gather(*sends)

    async def _one(self, key: str, after: float) -> None:
        began = self.sim.loop.time()
        try:
            receipt = await self._producer.send(self.topic, key.encode(), after=timedelta(seconds=after))
        except RocketError:
            return
        self._due[key] = began + after
        if self.draw.random() < 0.4:
            await asyncio.sleep(self.draw.uniform(0.0, after * 0.9))
            self._asked.add(key)
            try:
                await self._producer.recall(receipt.recall_handle or "")
            except RocketError:
                return
            self._recalled.add(key)

    def settled(self) -> None:
        super().settled()
        times: defaultdict[str, list[float]] = defaultdict(list)
        for at, key in self.seen:
            times[key].append(at)
        lost = self._due.keys() - times.keys() - self._asked
        assert not lost, f"timers {lost} never came"
        came = self._recalled & times.keys()
        assert not came, f"timers {came} came although they were recalled"
        for key, due in self._due.items():
            for at in times[key]:
                assert at >= due - self.early, f"{key} came {due - at:.3f} s early"
                troubles = [*self.pulls_lost, *(when for when, _ in self.ends)]
                near = any(due - 1.0 < when + 45.0 and when < at for when in troubles)
                assert near or at < due + 8.0, f"{key} came {at - due:.3f} s late"
            crashed = any(power is not None and when > due - 1.0 for when, power in self.ends)
            assert len(times[key]) <= 1 or crashed or self.sent_twice, f"{key} came at {times[key]}"

    async def stop(self) -> None:
        await self._host.run(self._producer.stop())


class _Transactions(Part):
    """Consumers get what was committed, and nothing else; also where the producer never said."""

    topic = "payments"
    codes = ("END_TRANSACTION", "SEND_MESSAGE_V2")

    async def start(self) -> None:
        self._paid: set[str] = set()
        self._failed: set[str] = set()
        self._told: set[str] = set()
        await self.member("shipping")
        self._host = self.host()
        self._producer = TransactionProducer(
            "bank", nameservers=self.cluster.endpoints, env=self.sim.env(), checker=self._state
        )
        await self._host.run(self._producer.start())

    async def _state(self, message: Message) -> TxState:
        return TxState.COMMIT if key_of(message.body) in self._paid else TxState.ROLLBACK

    async def load(self, end: float) -> None:
        while self.sim.loop.time() < end:
            await self._host.run(self._pay(self.key()))
            await asyncio.sleep(self.draw.uniform(0.0, 0.5))

    async def _pay(self, key: str) -> None:
        try:
            async with self._producer.transaction(self.topic, key.encode()) as tx:
                await asyncio.sleep(self.draw.uniform(0.0, 0.5))
                if self.draw.random() < 0.3:
                    self._failed.add(key)
                    raise ValueError("no money")
                self._paid.add(key)
                if self.draw.random() < 0.3:
                    tx.leave_unknown()
        except (ValueError, RocketError):
            if key not in self._paid:
                self._failed.add(key)

    def settled(self) -> None:
        super().settled()
        got = Counter(key for _, key in self.seen)
        assert not self._failed & got.keys(), f"{self._failed & got.keys()} came and was never paid"
        assert self._paid <= got.keys(), f"{self._paid - got.keys()} was paid and never came"
        if not self.sent_twice and not any(power is not None for _, power in self.ends):
            twice = {key for key, count in got.items() if count > 1}
            assert not twice, f"{twice} came twice, and nothing had crashed"

    async def stop(self) -> None:
        await self._host.run(self._producer.stop())


class _Once(Part):
    """What an idempotent producer sends is stored once, however often it was tried."""

    topic = "once"

    async def start(self) -> None:
        self._sent: set[str] = set()
        self._host, self._producer = await self.producer(ProducerConfig(idempotent=True, send_timeout=1.0, retries=8))

    async def load(self, end: float) -> None:
        sends = []
        while self.sim.loop.time() < end:
            sends += [self._host.start(self._one(self.key())) for _ in range(self.draw.choice((1, 4)))]
            await asyncio.sleep(self.draw.uniform(0.05, 1.0))
        await asyncio.gather(*sends)

    async def _one(self, key: str) -> None:
        try:
            await self._producer.send(self.topic, body_of(key, self.draw.choice((0, 5000))), timeout=12.0)
        except SendError:
            return
        self._sent.add(key)

    def check(self) -> None:
        stored = Counter(key_of(view.body) for view in self.cluster.brokers[0].messages(self.topic))
        assert self._sent <= stored.keys(), f"{self._sent - stored.keys()} was acknowledged and is not stored"
        twice = {key: count for key, count in stored.items() if count > 1}
        assert not twice, f"stored more than once: {twice}"

    async def stop(self) -> None:
        await self._host.run(self._producer.stop())


class _Pops(Part):
    """Every message comes until it is acknowledged, to one at a time, and not after that."""

    topic = "pops"
    codes = ("ACK_MESSAGE", "CHANGE_MESSAGE_INVISIBLETIME", "POP_MESSAGE")
    _INVISIBLE = 10.0

    async def start(self) -> None:
        self._end = float("inf")
        self._sent: set[str] = set()
        self._acknowledged: dict[str, float] = {}
        #: Until when nobody else may get it, as the consumer that has it knows.
        self._held: dict[str, float] = {}
        #: With a handler that has it renewed.
        self._working: Counter[str] = Counter()
        self._workers = []
        for _ in range(2):
            host = self.host()
            consumer = SimpleConsumer("poppers", nameservers=self.cluster.endpoints, env=self.sim.env())
            await host.run(consumer.start())
            await host.run(consumer.subscribe(self.topic, start_from="first"))
            self._workers.append((host, consumer, host.start(self._work(consumer))))
        # A send that is tried again may be two messages.
        self._sender = await self.cluster.producer(config=ProducerConfig(retries=0))

    async def load(self, end: float) -> None:
        self._end = end
        while self.sim.loop.time() < end:
            key = self.key()
            if not isinstance(await self._sender.send(self.topic, key), SendError):
                self._sent.add(key)
            await asyncio.sleep(self.draw.uniform(0.0, 0.6))

    async def _work(self, consumer: SimpleConsumer) -> None:
        while True:
            try:
                found = await consumer.receive(self.draw.randrange(1, 9), invisible=self._INVISIBLE, timeout=10.0)
            except RocketError:
                await asyncio.sleep(0.5)
                continue
            now = self.sim.loop.time()
            for message in found:
                key = key_of(message.body)
                self.seen.append((now, key))
                held = self._held.get(key, 0.0)
                crashed = any(power and when > held - self._INVISIBLE - 40.0 for when, power in self.ends)
                assert now >= held - 0.01 or crashed or self.sent_twice, (
                    f"{key} came at {now:.3f}, another has it until {held:.3f}"
                )
                away = self.troubled or self.sent_twice or any(when > now - 40.0 for when, _ in self.ends)
                assert not self._working[key] or away, f"{key} came at {now:.3f}, while a handler had it"
                self._held[key] = message.invisible_until
            await asyncio.gather(*(self._one(message, self.draw.random()) for message in found))

    async def _one(self, message: PoppedMessage, fate: float) -> None:
        key = key_of(message.body)
        if self.sim.loop.time() > self._end:  # what is left is done at once
            fate = 0.4
        try:
            if fate < 0.1:
                return
            if fate < 0.2:
                self._held[key] = 0.0
                await message.retry(after=1.0)
            elif fate < 0.35:
                self._held[key] = self.sim.loop.time() + self._INVISIBLE
                self._working[key] += 1
                try:
                    async with message.process():
                        await asyncio.sleep(self._INVISIBLE * 1.5)
                        if not message.settled:
                            self._held[key] = max(self._held[key], message.invisible_until)
                finally:
                    self._working[key] -= 1
            else:
                await asyncio.sleep(fate)
                if await message.ack():
                    self._acknowledged[key] = self.sim.loop.time()
        except RocketError:
            pass

    def settled(self) -> None:
        super().settled()
        self._look_at_workers()
        seen = {key for _, key in self.seen}
        assert self._sent <= seen, f"{self._sent - seen} was acknowledged and never popped"
        left = self.cluster.brokers[0].broker.popped
        assert left == 0, f"{left} messages are with nobody and nobody gets them"
        if not self.sent_twice and not any(
            power for _, power in self.ends
        ):  # a power cut may tear the log between a copy and its record
            again = [key for at, key in self.seen if at > self._acknowledged.get(key, at)]
            assert not again, f"{again} came again after the acknowledgement"
        offsets = self.cluster.brokers[0].broker.offsets
        behind = self.cluster.brokers[0].lag("poppers", self.topic)
        assert behind == 0, f"the group is {behind} behind: {list(offsets)}"

    async def stop(self) -> None:
        for host, consumer, task in self._workers:
            task.cancel()
            await asyncio.wait([task])
            await host.run(consumer.stop())

    def check(self) -> None:
        super().check()
        self._look_at_workers()

    def _look_at_workers(self) -> None:
        for _, _, task in self._workers:
            if task.done() and (error := task.exception()) is not None:
                raise error


class _Filters(Part):
    """A group gets what its tags or its expression want, all of it; a limit on what waits holds and is released."""

    topic = "filters"
    codes = ("PULL_MESSAGE", "SEND_MESSAGE_V2", "UPDATE_CONSUMER_OFFSET")

    async def start(self) -> None:
        self._sent: dict[str, tuple[str, int]] = {}
        self._wrong: list[str] = []
        self._got: dict[str, set[str]] = {"red": set(), "large": set(), "all": set()}
        self._sender = await self.cluster.producer()
        tight = ConsumerConfig(max_cached_messages=5, max_span=20, pull_batch_size=4, concurrency=2)
        options: dict[str, dict[str, Any]] = {
            "red": {"tags": "red || blue"}, "large": {"sql": "size > 5"}, "all": {"config": tight},
        }  # fmt: skip
        for name, more in options.items():
            await self.cluster.consumer(name, self.topic, self._listener(name), **more)

    def _listener(self, name: str) -> Any:
        async def got(message: Message) -> None:
            key = key_of(message.body)
            tag, size = self._sent[key]
            wanted = {"red": tag in ("red", "blue"), "large": size > 5, "all": True}[name]
            if not wanted:  # what a listener raises is a retry
                self._wrong.append(f"{name} got {key}, whose tag is {tag} and whose size {size}")
            if name == "all":
                await asyncio.sleep(self.draw.uniform(0.0, 0.3))
            self._got[name].add(key)

        return got

    async def load(self, end: float) -> None:
        while self.sim.loop.time() < end:
            for _ in range(self.draw.choice((1, 8))):
                key, tag, size = self.key(), self.draw.choice(("red", "blue", "green")), self.draw.randrange(10)
                self._sent[key] = tag, size
                sent = await self._sender.send(
                    self.topic, key, size=self.draw.choice((0, 9000)), tag=tag, properties={"size": str(size)}
                )
                if isinstance(sent, SendError):
                    self._sent[key] = "green", 0
            await asyncio.sleep(self.draw.uniform(0.0, 1.0))

    def settled(self) -> None:
        assert not self._wrong, self._wrong
        stored = {key_of(view.body) for view in self.cluster.brokers[0].messages(self.topic)}
        red = {key for key, (tag, _) in self._sent.items() if tag != "green" and key in stored}
        large = {key for key, (_, size) in self._sent.items() if size > 5 and key in stored}
        for name, wanted in (("red", red), ("large", large), ("all", stored)):
            assert wanted <= self._got[name], f"{name} never got {wanted - self._got[name]}"
            behind = self.cluster.brokers[0].lag(name, self.topic)
            assert behind == 0 or name != "all", f"{name} is {behind} behind"


PARTS: Final[dict[str, type[Part]]] = {
    "timers": _Timers,
    "transactions": _Transactions,
    "once": _Once,
    "pops": _Pops,
    "filters": _Filters,
}
