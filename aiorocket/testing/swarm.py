"""Short, dense runs, each with its own few kinds of faults: what a bug needs is rarely a long history, but two or three
faults that meet. A seed draws which faults its run has, so that in some runs nothing else gets in the way of any two.

A run ends with a proof of what is on the disk: when everything is consumed and some seconds have passed, the broker's
power is cut, and nothing may be delivered again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from aiorocket import DeadLetter, Message, Retry
from aiorocket.config import BrokerConfig, ConsumerConfig, StoreConfig
from aiorocket.testing import checkers
from aiorocket.testing.checkers import HistoryError, Violation
from aiorocket.testing.cluster import SimCluster
from aiorocket.testing.history import History
from aiorocket.testing.machines import SimMember, SimSender, key_of
from aiorocket.testing.sim import Simulation, simulate

__all__ = ("FAULTS", "SwarmReport", "faults_of", "swarm")

TOPIC = "work"
GROUP = "billing"
MAX_ATTEMPTS = 3
#: A member is missed after 120 s, a rebalance follows within 20.
_QUIET = 160.0
_FAST = (0.00005, 0.0005)
_STORE = StoreConfig(segment_size=256 * 1024, min_free=256 * 1024, tail_cache=64 * 1024, checkpoint_interval=2.0)


@dataclass(frozen=True, slots=True)
class SwarmReport:
    """What a run was made of; ``faults`` counts how often each kind struck."""

    seed: int
    orderly: bool
    faults: Counter[str]
    acknowledged: int
    delivered: int
    steps: int
    history: History = field(repr=False)


def swarm(seed: int, *, only: str = "", seconds: float = 0.0, members: int = 0) -> SwarmReport:
    """Run one seed; odd ones have an orderly group. ``only`` names the faults to draw from, separated by blanks,
    ``seconds`` says how long they go on, and ``members`` how many consumers there are, where the seed should not.

    HistoryError when a checker finds something; AssertionError when the cluster does not recover, leaves a task behind
    or lets an error escape.
    """

    async def main(sim: Simulation) -> SwarmReport:
        return await _Swarm(sim, only.split(), seconds, members).run()

    return simulate(main, seed)


def faults_of(seed: int) -> list[str]:
    """The faults that a seed draws from."""
    return _faults(random.Random(seed))


def _faults(draw: random.Random) -> list[str]:
    return draw.sample(sorted(FAULTS), draw.randint(2, 5))


class _Swarm:
    def __init__(self, sim: Simulation, only: list[str], seconds: float, members: int) -> None:
        self.sim = sim
        # Its own generator: what is drawn here must not depend on how many pieces a frame arrived in.
        self.draw = draw = random.Random(sim.loop.seed)
        self.orderly = bool(sim.loop.seed & 1)
        # What is drawn is drawn also where it does not count, so that the rest of the run stays what it was.
        drawn = _faults(draw)
        self.names = only or drawn
        drawn_seconds = draw.uniform(120.0, 360.0)
        self.seconds = seconds or drawn_seconds
        self.members = members
        self.queues = draw.choice((1, 2, 4))
        #: How long a listener takes with most messages: a backlog outlives leases and pauses.
        self.work = draw.choice((0.0, 0.05, 0.4, 1.5)) if self.orderly else draw.choice((0.0, 0.05, 0.5))
        self.cluster = SimCluster(sim, brokers=1 + (draw.random() < 0.1), broker=BrokerConfig(store=_STORE))
        self.history = self.cluster.history
        self.struck: Counter[str] = Counter()
        #: From when until when each fault lasted.
        self.troubled: list[tuple[float, float]] = []
        self._count = 0
        self._sends: list[asyncio.Task[object]] = []

    async def run(self) -> SwarmReport:
        cluster, history, loop = self.cluster, self.history, self.sim.loop
        await cluster.start()
        await cluster.create_topic(TOPIC, self.queues)
        options: dict[str, Any] = {"max_attempts": MAX_ATTEMPTS, "orderly": self.orderly}
        drawn = self.draw.choice((2, 2, 3))
        for _ in range(self.members or drawn):
            await cluster.consumer(GROUP, TOPIC, self._listen, config=_CONSUMER, **options)
        senders = [await cluster.producer() for _ in range(2)]
        end = loop.time() + self.seconds
        sending = [asyncio.ensure_future(self._send_until(sender, end)) for sender in senders]
        while (rest := end - loop.time()) > 0:
            await asyncio.sleep(min(rest, self.draw.uniform(1.0, 25.0)))
            if loop.time() < end:
                name = self.draw.choice(self.names)
                self.struck[name] += 1
                began = loop.time()
                await FAULTS[name](self)
                self.troubled.append((began, loop.time()))
        await asyncio.gather(*sending)
        back = await self._heal_all()
        await asyncio.gather(*self._sends)
        await cluster.settled({GROUP: (TOPIC,)}, within=3600.0 + 3.0 * self._count * self.work + back)
        await asyncio.sleep(_QUIET)
        violations = self._ownership()
        since = loop.time()
        for broker in cluster.brokers:
            await broker.restart(power_cut=True, pause=self.draw.uniform(0.1, 5.0))
        await asyncio.sleep(_QUIET / 2)
        cluster.note_dead_letters(GROUP)
        await cluster.close()
        violations += checkers.settled_for_good(history, since) + checkers.no_strays(history)
        violations += checkers.dead_letters_exact(history, GROUP, MAX_ATTEMPTS)
        if self.orderly:
            violations += checkers.orderly(history, GROUP, max_attempts=MAX_ATTEMPTS)
            violations += checkers.leases_in_time(history, GROUP)
            if not self.struck["pause"]:  # the listener of a process that is stopped goes on behind its lease
                violations += checkers.one_at_a_time(history, GROUP)
            violations += checkers.commits_never_back(history, GROUP)
        else:
            violations += checkers.attempts_kept(history, GROUP, MAX_ATTEMPTS, self.troubled)
        for checker in checkers.CLUSTER:
            violations += checker(history)
        if violations:
            raise HistoryError(history, violations)
        return SwarmReport(
            loop.seed, self.orderly, self.struck, len(history.of("acknowledged")), len(history.of("delivered")),
            loop.steps, history,
        )  # fmt: skip

    # -- load --

    async def _send_until(self, sender: SimSender, end: float) -> None:
        """Bursts. The key says how the listener treats a message, as in ``chaos``; ``d`` ones are delayed."""
        draw = random.Random(f"{self.sim.loop.seed} {sender.address}")
        while self.sim.loop.time() < end:
            for _ in range(draw.choice((1, 2, 5, 20))):
                self._count += 1
                kind = draw.choices(("ok", "f1", "f2", "dead", "letter"), (80, 10, 4, 3, 3))[0]
                options: dict[str, Any] = {"size": draw.choice((0, 0, 700, 3000, 9000))}
                late = draw.random()
                if late < 0.15:
                    options["delay_level"] = draw.randint(1, 2)
                elif late < 0.3:
                    options["after"] = timedelta(seconds=draw.uniform(0.1, 20.0))
                elif late < 0.5:
                    options["sharding_key"] = f"s{draw.randrange(5)}"
                self._sends.append(asyncio.ensure_future(sender.send(TOPIC, f"{kind}-{self._count}", **options)))
            self._sends = [task for task in self._sends if not task.done() or task.result() is None]
            await asyncio.sleep(draw.uniform(0.2, 5.0))

    async def _listen(self, message: Message) -> None:
        kind = key_of(message.body).partition("-")[0]
        if self.work and self.draw.random() < 0.8:
            await asyncio.sleep(self.draw.uniform(0.2, 1.0) * self.work)
        if kind == "letter":
            raise DeadLetter("as its key says")
        if kind == "dead" or (kind[0] == "f" and message.attempt <= int(kind[1:])):
            raise Retry

    # -- the end --

    async def _heal_all(self) -> float:
        """How many seconds timers wait for a clock that was set back."""
        cluster = self.cluster
        cluster.heal()
        machines = (*cluster.brokers, *cluster.nameservers, *cluster.clients)
        back = max(0, *(machine.clock.skew_ms for machine in machines)) / 1000
        for machine in machines:
            machine.disk.latency = _FAST
            machine.clock.skew_ms = 0
        for broker in cluster.brokers:
            broker.faults.clear()
            if not broker.running:
                await broker.start()
        for member in cluster.members:
            if not member.running:
                await member.start_again()
        return back

    def _ownership(self) -> list[Violation]:
        return [
            Violation("every_queue_owned_once", f"{queue} is held by {owners or 'nobody'} after {_QUIET:g} s of quiet")
            for queue, owners in self.cluster.owners(GROUP, TOPIC).items()
            if len(owners) != 1
        ]

    # -- what faults pick --

    def member(self) -> SimMember | None:
        running = [each for each in self.cluster.members if each.running]
        return self.draw.choice(running) if running else None

    def link(self) -> tuple[str, str]:
        return self.draw.choice(self.cluster.clients).address, self.draw.choice(self.cluster.brokers).address


_CONSUMER = ConsumerConfig(concurrency=4, drain_timeout=5.0)


# -- faults: each begins, lasts and ends --


async def _cut(run: _Swarm) -> None:
    """The broker dies with much on its way to a slow disk."""
    broker = run.draw.choice(run.cluster.brokers)
    broker.disk.latency = (0.01, run.draw.choice((0.02, 0.3, 2.0)))
    await asyncio.sleep(run.draw.uniform(0.5, 12.0))
    broker.kill(power_cut=run.draw.random() < 0.7)
    broker.disk.latency = _FAST
    await asyncio.sleep(run.draw.uniform(0.05, 10.0))
    await broker.start()


async def _restart(run: _Swarm) -> None:
    broker = run.draw.choice(run.cluster.brokers)
    await broker.restart(pause=run.draw.uniform(0.05, 10.0))


async def _lose_locks(run: _Swarm) -> None:
    """The broker comes back at once, without its record of who holds which queue."""
    broker = run.draw.choice(run.cluster.brokers)
    run.cluster.slow_link(*run.link(), 0.0, 2.5)
    await asyncio.sleep(run.draw.uniform(0.0, 25.0))
    broker.kill()
    for name in [name for name in broker.disk.files if "/config/locks" in name]:
        broker.disk.unlink(name)
    await broker.start()
    await asyncio.sleep(run.draw.uniform(0.0, 40.0))
    run.cluster.heal()


async def _kill_member(run: _Swarm) -> None:
    if (member := run.member()) is not None:
        member.kill(power_cut=run.draw.random() < 0.5)
        await asyncio.sleep(run.draw.uniform(0.0, 40.0))
        await member.start_again()


async def _rejoin(run: _Swarm) -> None:
    if (member := run.member()) is not None:
        await member.stop()
        await asyncio.sleep(run.draw.uniform(0.0, 20.0))
        await member.start_again()


async def _pause(run: _Swarm) -> None:
    """A process is stopped, for longer than leases or heartbeats last."""
    if (member := run.member()) is not None:
        member.pause()
        await asyncio.sleep(run.draw.choice((5.0, 33.0, 70.0, 150.0)) * run.draw.uniform(0.8, 1.1))
        member.resume()


async def _pause_broker(run: _Swarm) -> None:
    broker = run.draw.choice(run.cluster.brokers)
    broker.pause()
    await asyncio.sleep(run.draw.choice((2.0, 12.0, 40.0)) * run.draw.uniform(0.5, 1.0))
    broker.resume()


async def _partition(run: _Swarm) -> None:
    a, b = run.link()
    run.cluster.partition([a], [b])
    await asyncio.sleep(run.draw.choice((3.0, 25.0, 70.0, 140.0)) * run.draw.uniform(0.5, 1.0))
    run.cluster.heal()


async def _silence(run: _Swarm) -> None:
    a, b = run.link()
    run.cluster.silence(*((a, b) if run.draw.random() < 0.5 else (b, a)))
    await asyncio.sleep(run.draw.choice((5.0, 40.0, 70.0)) * run.draw.uniform(0.5, 1.0))
    run.cluster.heal()


async def _stall(run: _Swarm) -> None:
    """What hangs arrives when its sender has another connection long since."""
    run.cluster.stall(*run.link())
    await asyncio.sleep(run.draw.choice((2.0, 10.0, 45.0, 130.0)) * run.draw.uniform(0.5, 1.0))
    run.cluster.heal()


async def _late(run: _Swarm) -> None:
    """Slow in both directions, and then nothing: an answer's way was long, and nothing follows it."""
    a, b = run.link()
    run.cluster.slow_link(a, b, 0.5, 2.9)
    await asyncio.sleep(run.draw.uniform(15.0, 50.0))
    run.cluster.partition([a], [b])
    await asyncio.sleep(run.draw.uniform(20.0, 60.0))
    run.cluster.heal()


async def _reset(run: _Swarm) -> None:
    for _ in range(run.draw.choice((1, 2, 5))):
        run.cluster.reset(*run.link())
        await asyncio.sleep(run.draw.uniform(0.0, 1.0))


async def _refuse(run: _Swarm) -> None:
    """Neither way back to the broker works for a while."""
    broker = run.draw.choice(run.cluster.brokers)
    run.cluster.fault(broker.address, "what is sent back is refused")
    times = run.draw.choice((2, 10, 30))
    broker.faults.next("CONSUMER_SEND_MSG_BACK", times=times, reply="SYSTEM_ERROR")
    broker.faults.next("SEND_MESSAGE_V2", times=3 * times, reply="SYSTEM_ERROR")
    await asyncio.sleep(run.draw.uniform(5.0, 40.0))
    broker.faults.clear()
    run.history.add("healed", broker.address)


async def _wire(run: _Swarm) -> None:
    """One kind of request is dropped, answered late or handled twice for a while."""
    broker = run.draw.choice(run.cluster.brokers)
    code = run.draw.choice(_CODES)
    plans: tuple[dict[str, Any], ...] = (
        {"drop": True}, {"lose_answer": True}, {"duplicate": True}, {"delay": run.draw.uniform(0.5, 6.0)},
        {"reply": "SYSTEM_ERROR"},
    )  # fmt: skip
    plan = run.draw.choice(plans)
    run.cluster.fault(broker.address, f"{code}: {plan}")
    broker.faults.next(code, times=run.draw.choice((1, 5, 30)), **plan)
    await asyncio.sleep(run.draw.uniform(5.0, 40.0))
    broker.faults.clear()
    run.history.add("healed", broker.address)


async def _step_clock(run: _Swarm) -> None:
    machine = run.draw.choice((*run.cluster.brokers, *run.cluster.clients))
    machine.step_clock(run.draw.choice((-3600.0, -5.0, 5.0, 3600.0)))


_CODES: Final = (
    "HEART_BEAT", "SEND_MESSAGE_V2", "PULL_MESSAGE", "UPDATE_CONSUMER_OFFSET", "CONSUMER_SEND_MSG_BACK",
    "GET_CONSUMER_LIST_BY_GROUP", "QUERY_CONSUMER_OFFSET", "LOCK_BATCH_MQ", "UNLOCK_BATCH_MQ",
)  # fmt: skip

#: What a run draws its faults from, by name.
FAULTS: Final[dict[str, Callable[[_Swarm], Awaitable[None]]]] = {
    "cut": _cut,
    "restart": _restart,
    "lose_locks": _lose_locks,
    "kill_member": _kill_member,
    "rejoin": _rejoin,
    "pause": _pause,
    "pause_broker": _pause_broker,
    "partition": _partition,
    "silence": _silence,
    "stall": _stall,
    "late": _late,
    "reset": _reset,
    "refuse": _refuse,
    "wire": _wire,
    "step_clock": _step_clock,
}
