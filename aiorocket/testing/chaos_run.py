"""A cluster under faults that are drawn from a seed, and what must be true of it all the same.

``chaos(seed)`` runs producers and consumers for simulated hours while hosts are killed, links break, clocks jump and
brokers refuse; then everything heals, the cluster consumes what is left, and the checkers read the history. The same
seed and options give the same run.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from aiorocket import DeadLetter, Message, Retry
from aiorocket.config import ConsumerConfig
from aiorocket.testing.checkers import (
    CLUSTER,
    HistoryError,
    Violation,
    check,
    dead_letters_exact,
    one_at_a_time,
    orderly,
)
from aiorocket.testing.cluster import SimCluster
from aiorocket.testing.history import History
from aiorocket.testing.machines import SimMember, SimSender, key_of
from aiorocket.testing.sim import Simulation, simulate

__all__ = ("ChaosReport", "SCENARIOS", "Size", "chaos", "size_for")

TOPIC = "work"
GROUPS = ("billing", "audit")
MAX_ATTEMPTS = 4

#: After everything has healed: a broker misses a silent member after 120 s, and two rebalance periods follow.
_QUIET = 180.0

Fault = Callable[["_Run"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """What a run was made of."""

    seed: int
    hours: float
    sent: int
    acknowledged: int
    delivered: int
    dead: int
    faults: int
    #: Seconds from the healing of the last fault until everything was consumed.
    recovery: float
    steps: int
    history: History = field(repr=False)


def chaos(
    seed: int,
    *,
    hours: float = 1.0,
    scenario: str = "mixed",
    consumers: int = 3,
    brokers: int = 1,
    nameservers: int = 1,
    queues: int = 4,
    pause: tuple[float, float] = (10.0, 120.0),
) -> ChaosReport:
    """Run one seed. ``hours`` is how long faults and messages go on; ``consumers`` members share two groups;
    ``scenario`` says which faults (a name of SCENARIOS), and "orderly" that one group consumes in order; ``pause`` is
    the time between two faults in seconds.

    HistoryError when a checker finds something; AssertionError when the cluster does not recover, leaves a task behind
    or lets an error escape; ValueError for a scenario that does not exist.
    """
    if scenario not in SCENARIOS:
        raise ValueError(f"scenario {scenario!r}: one of {', '.join(SCENARIOS)}")

    async def main(sim: Simulation) -> ChaosReport:
        cluster = SimCluster(sim, brokers=brokers, nameservers=nameservers)
        run = _Run(sim, cluster, scenario, pause)
        return await run.run(hours * 3600.0, consumers, queues)

    return simulate(main, seed)


class Size(TypedDict):
    """How large a cluster is, as arguments of ``chaos``."""

    consumers: int
    brokers: int
    nameservers: int
    queues: int


def size_for(seed: int) -> Size:
    """The cluster of a seed: nine of ten are small, because a bug needs few hosts and a
    small cluster runs many times faster; each tenth is larger."""
    if seed % 10 == 9:
        return {"consumers": 8, "brokers": 2, "nameservers": 2, "queues": 6}
    return {"consumers": 2 + seed % 2, "brokers": 1, "nameservers": 1, "queues": 4}


class _Run:
    def __init__(self, sim: Simulation, cluster: SimCluster, scenario: str, pause: tuple[float, float]) -> None:
        self.sim = sim
        self.cluster = cluster
        self.history = cluster.history
        # Its own generator: what is drawn here must not depend on how many pieces a frame arrived in.
        self.draw = random.Random(sim.loop.seed)
        self._faults = SCENARIOS[scenario]
        self._orderly = scenario == "orderly"
        self._pause = pause
        self._count = 0
        self._senders: list[SimSender] = []
        self._sends: list[asyncio.Task[object]] = []

    async def run(self, seconds: float, consumers: int, queues: int) -> ChaosReport:
        cluster, history = self.cluster, self.history
        await cluster.start()
        await cluster.create_topic(TOPIC, queues)
        groups = dict.fromkeys(GROUPS[: 1 if consumers < 3 or self._orderly else 2], (TOPIC,))
        options: dict[str, Any] = {"max_attempts": MAX_ATTEMPTS, "orderly": self._orderly}
        for number in range(consumers):
            # All but one are in the first group, so that there is something to balance.
            group = GROUPS[1] if len(groups) > 1 and number == consumers - 1 else GROUPS[0]
            await cluster.consumer(group, TOPIC, self._listen, config=_CONSUMER, **options)
        self._senders = [await cluster.producer() for _ in range(2)]
        end = self.sim.loop.time() + seconds
        sending = [asyncio.ensure_future(self._send_until(sender, end)) for sender in self._senders]
        while self._faults and (rest := end - self.sim.loop.time()) > 0:
            await asyncio.sleep(min(rest, self.draw.uniform(*self._pause)))
            if self.sim.loop.time() < end:
                await self.draw.choice(self._faults)(self)
        await asyncio.gather(*sending)
        await self._heal_all()
        await asyncio.gather(*self._sends)
        recovery = await cluster.settled(groups)
        await asyncio.sleep(_QUIET)
        violations = self._ownership(groups)
        cluster.note_dead_letters(*groups)
        await cluster.close()
        for group in groups:
            violations += dead_letters_exact(history, group, MAX_ATTEMPTS)
            if self._orderly:
                violations += orderly(history, group, max_attempts=MAX_ATTEMPTS)
                violations += one_at_a_time(history, group)
        if violations:
            raise HistoryError(history, violations)
        check(history, CLUSTER)
        return ChaosReport(
            seed=self.sim.loop.seed, hours=seconds / 3600, sent=len(history.of("sent")),
            acknowledged=len(history.of("acknowledged")), delivered=len(history.of("delivered")),
            dead=len(history.keys("dead")), faults=len(history.of("fault", "killed")), recovery=recovery,
            steps=self.sim.loop.steps, history=history,
        )  # fmt: skip

    # -- load --

    async def _send_until(self, sender: SimSender, end: float) -> None:
        """Bursts of a few messages. The key says how the listener treats a message: ``ok`` in most cases, ``slow``,
        ``f2`` fails twice, ``dead`` always fails, ``letter`` is sent to the dead letters by the listener."""
        draw = random.Random(self.sim.loop.seed * 31 + zlib.crc32(sender.address.encode()))
        while self.sim.loop.time() < end:
            for _ in range(draw.choice((1, 1, 2, 5, 20))):
                self._count += 1
                kind = draw.choices(("ok", "slow", "f1", "f2", "dead", "letter"), (80, 8, 6, 3, 2, 1))[0]
                shard = f"s{draw.randrange(5)}" if draw.random() < 0.3 else None
                sending = sender.send(TOPIC, f"{kind}-{self._count}", sharding_key=shard)
                self._sends.append(asyncio.ensure_future(sending))
            self._sends = [task for task in self._sends if not task.done() or task.result() is None]
            await asyncio.sleep(draw.uniform(1.0, 20.0))

    async def _listen(self, message: Message) -> None:
        kind = key_of(message.body).partition("-")[0]
        if kind == "slow":
            await asyncio.sleep(self.draw.uniform(0.5, 30.0))
        elif kind == "letter":
            raise DeadLetter("as its key says")
        elif kind == "dead" or (kind[0] == "f" and message.attempt <= int(kind[1:])):
            raise Retry
        elif self.draw.random() < 0.2:
            await asyncio.sleep(self.draw.uniform(0.0, 0.5))

    # -- the end --

    async def _heal_all(self) -> None:
        cluster = self.cluster
        cluster.heal()
        for machine in (*cluster.brokers, *cluster.nameservers, *cluster.clients):
            machine.disk.latency = (0.00005, 0.0005)
        for broker in cluster.brokers:
            broker.faults.clear()
        for nameserver in cluster.nameservers:
            if not nameserver.running:
                await nameserver.start()
        for broker in cluster.brokers:
            if not broker.running:
                await broker.start()
        for member in cluster.members:
            if not member.running:
                await member.start_again()

    def _ownership(self, groups: Iterable[str]) -> list[Violation]:
        found = []
        for group in groups:
            for queue, owners in self.cluster.owners(group, TOPIC).items():
                if len(owners) != 1:
                    text = f"{queue} of group {group} is held by {owners or 'nobody'} after {_QUIET:g} s of quiet"
                    found.append(Violation("every_queue_owned_once", text))
        return found


_CONSUMER = ConsumerConfig(concurrency=4, drain_timeout=5.0)


# -- faults. Each begins, lasts, and ends; those that leave something behind leave it to the next one or to the end. --


async def _kill_member(run: _Run) -> None:
    if (member := _member(run)) is not None:
        member.kill(power_cut=run.draw.random() < 0.5)
        await asyncio.sleep(run.draw.uniform(0.0, 90.0))
        await member.start_again()


async def _restart_member(run: _Run) -> None:
    if (member := _member(run)) is not None:
        await member.stop()
        await asyncio.sleep(run.draw.uniform(0.0, 30.0))
        await member.start_again()


async def _restart_broker(run: _Run) -> None:
    broker = run.draw.choice(run.cluster.brokers)
    await broker.restart(power_cut=run.draw.choice((None, False, True)), pause=run.draw.uniform(0.1, 30.0))


async def _restart_nameserver(run: _Run) -> None:
    server = run.draw.choice(run.cluster.nameservers)
    server.kill(power_cut=run.draw.random() < 0.5)
    await asyncio.sleep(run.draw.uniform(1.0, 120.0))
    await server.start()


async def _partition(run: _Run) -> None:
    a, b = _link(run)
    run.cluster.partition([a], [b])
    await asyncio.sleep(run.draw.choice((2.0, 20.0, 100.0, 200.0)) * run.draw.uniform(0.5, 1.0))
    run.cluster.heal()


async def _silence(run: _Run) -> None:
    a, b = _link(run)
    if run.draw.random() < 0.5:
        a, b = b, a
    run.cluster.silence(a, b)
    await asyncio.sleep(run.draw.choice((5.0, 50.0, 200.0)) * run.draw.uniform(0.5, 1.0))
    run.cluster.heal()


async def _flap(run: _Run) -> None:
    a, b = _link(run)
    await run.cluster.flap(a, b, duration=run.draw.uniform(1.0, 20.0), period=run.draw.uniform(0.05, 2.0))


async def _reset(run: _Run) -> None:
    for _ in range(run.draw.choice((1, 1, 5))):
        run.cluster.reset(*_link(run))
        await asyncio.sleep(run.draw.uniform(0.0, 1.0))


async def _slow_link(run: _Run) -> None:
    a, b = _link(run)
    most = run.draw.choice((0.2, 1.0, 5.0))
    run.cluster.slow_link(a, b, 0.0, most)
    await asyncio.sleep(run.draw.uniform(5.0, 60.0))
    run.cluster.heal()


async def _slow_disk(run: _Run) -> None:
    broker = run.draw.choice(run.cluster.brokers)
    run.cluster.fault(broker.address, "a slow disk")
    broker.disk.latency = (0.5, run.draw.choice((1.0, 3.0)))
    await asyncio.sleep(run.draw.uniform(5.0, 30.0))
    broker.disk.latency = (0.00005, 0.0005)
    run.history.add("healed", broker.address)


async def _step_clock(run: _Run) -> None:
    cluster = run.cluster
    machine = run.draw.choice((*cluster.brokers, *cluster.clients))
    machine.step_clock(run.draw.choice((-3600.0, -5.0, 5.0, 3600.0)))


async def _wire(run: _Run) -> None:
    """Lost and duplicated heartbeats, lost answers, late ones, refusals; locks too."""
    broker = run.draw.choice(run.cluster.brokers)
    plans = (
        ("HEART_BEAT", {"drop": True}), ("HEART_BEAT", {"duplicate": True}), ("HEART_BEAT", {"delay": 5.0}),
        ("SEND_MESSAGE_V2", {"lose_answer": True}), ("SEND_MESSAGE_V2", {"reply": "SYSTEM_BUSY"}),
        ("PULL_MESSAGE", {"reply": "SYSTEM_ERROR"}), ("PULL_MESSAGE", {"drop": True}),
        ("UPDATE_CONSUMER_OFFSET", {"drop": True}), ("UPDATE_CONSUMER_OFFSET", {"delay": 4.0}),
        ("CONSUMER_SEND_MSG_BACK", {"reply": "SYSTEM_ERROR"}), ("CONSUMER_SEND_MSG_BACK", {"lose_answer": True}),
        ("GET_CONSUMER_LIST_BY_GROUP", {"drop": True}), ("QUERY_CONSUMER_OFFSET", {"reply": "SYSTEM_ERROR"}),
        ("LOCK_BATCH_MQ", {"lose_answer": True}), ("LOCK_BATCH_MQ", {"delay": 4.0}),
        ("LOCK_BATCH_MQ", {"reply": "SYSTEM_ERROR"}), ("UNLOCK_BATCH_MQ", {"drop": True}),
        ("UNLOCK_BATCH_MQ", {"lose_answer": True}),
    )  # fmt: skip
    code, plan = run.draw.choice(plans)
    run.cluster.fault(broker.address, f"{code}: {plan}")
    broker.faults.next(code, times=run.draw.choice((1, 3, 10)), **plan)


def _member(run: _Run) -> SimMember | None:
    running = [each for each in run.cluster.members if each.running]
    return run.draw.choice(running) if running else None


def _link(run: _Run) -> tuple[str, str]:
    """A client and a server, or the broker and a name server."""
    cluster = run.cluster
    server = run.draw.choice((*cluster.brokers, *cluster.brokers, *cluster.nameservers))
    others = [*cluster.clients, *(cluster.brokers if server in cluster.nameservers else ())]
    return run.draw.choice(others).address, server.address


_NETWORK: Final[tuple[Fault, ...]] = (_partition, _silence, _flap, _reset, _slow_link)

_MIXED: Final[tuple[Fault, ...]] = (
    *_NETWORK, _kill_member, _restart_member, _restart_broker, _restart_nameserver, _slow_disk, _step_clock, _wire,
    _wire,
)  # fmt: skip

#: Which faults a run draws from, by name.
SCENARIOS: Final[dict[str, tuple[Fault, ...]]] = {
    "calm": (),
    "members": (_kill_member, _restart_member),
    "broker": (_restart_broker, _slow_disk),
    "nameserver": (_restart_nameserver,),
    "network": _NETWORK,
    "clock": (_step_clock,),
    "wire": (_wire,),
    "mixed": _MIXED,
    "orderly": _MIXED,
}
