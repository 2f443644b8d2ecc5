"""Queue locks: one owner at a time, also across restarts, failed saves and lost records."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aiorocket.broker import Broker
from aiorocket.broker.core import topics
from aiorocket.broker.core.locks import FORGET_AFTER, LockTable, QueueKey, QueueLock
from aiorocket.broker.core.topics import Topic
from aiorocket.config import BrokerConfig
from aiorocket.errors import ConfigError, RocketError
from aiorocket.runtime.env import Env, memory_env
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import (
    MSGPACK,
    LockBatchBody,
    LockBatchResult,
    MessageQueue,
    RemotingCommand,
    decode_body,
    encode_body,
)
from tests.broker.peer import Peer, pull_header, records, running
from tests.broker.test_sim import SimPeer, config, kill, started

LEASE, TRUST, GRACE = 60.0, 30.0, 30.0
Q0, Q1, Q2 = (QueueKey("T", "broker-a", number) for number in range(3))


def fresh(now: float = 0.0, **changes: Any) -> LockTable:
    table = LockTable(LEASE, GRACE)
    table.start(now, **{"lost": False, "floor": 0, **changes})
    return table


def take(table: LockTable, client: str, *queues: QueueKey, now: float, group: str = "g") -> list[QueueLock]:
    """A lock request whose change of owner is recorded at once."""
    if table.lock(group, client, queues, now):
        table.recorded(table.counter, now)
    return table.held(group, client, queues, now)


def restarted(table: LockTable, now: float, *, lost: bool = False, floor: int = 0) -> LockTable:
    after = LockTable(LEASE, GRACE)
    if not lost:
        after.load(table.to_dict())
    after.start(now, lost=lost, floor=floor)
    return after


# ---- the table


def test_a_claim_is_no_lock_before_it_is_recorded() -> None:
    table = fresh()
    assert table.lock("g", "a", [Q0, Q1], 0) and table.held("g", "a", [Q0, Q1], 0) == []
    assert not table.has_locks("g", 0)
    assert not table.lock("g", "b", [Q0], 1) and table.held("g", "b", [Q0], 1) == []
    table.recorded(table.counter, 2)
    assert table.held("g", "a", [Q1, Q0, Q2], 2) == [QueueLock(Q1, 2), QueueLock(Q0, 1)]
    assert table.has_locks("g", 2) and not table.has_locks("other", 2)


def test_whether_a_group_consumes_in_order_is_known_without_a_look_at_its_queues() -> None:
    """Of 190,000 that were given back each message that came to be consumed again took 11 ms."""

    class Loud(dict[QueueKey, Any]):
        def values(self) -> Any:
            raise AssertionError("all of them are looked at")

    table = fresh()
    take(table, "a", Q0, Q1, now=0)
    table._groups["g"] = Loud(table._groups["g"])
    assert table.has_locks("g", 59) and not table.has_locks("g", 60)
    table.unlock("g", "a", [Q0], 1)
    assert table.has_locks("g", 1)
    assert take(table, "b", Q1, now=70) == [QueueLock(Q1, 3)]
    assert table.has_locks("g", 129) and not table.has_locks("other", 70)
    table.unlock("g", "b", [Q1], 71)
    assert not table.has_locks("g", 71)
    assert take(table, "a", Q1, now=72) and table.has_locks("g", 72)
    after = restarted(table, 1_000.0)
    assert after.has_locks("g", 1_059) and not after.has_locks("g", 1_060)


def test_a_renewal_writes_nothing_and_keeps_the_epoch() -> None:
    table = fresh()
    assert take(table, "a", Q0, now=0) == [QueueLock(Q0, 1)]
    version = table.version
    for now in (20, 40, 99, 500):  # the last one long after it ran out: nobody else was the owner since
        assert not table.lock("g", "a", [Q0], now)
        assert table.held("g", "a", [Q0], now) == [QueueLock(Q0, 1)]
    assert table.version == version


def test_a_lock_is_taken_over_in_the_moment_it_runs_out_and_under_a_new_epoch() -> None:
    table = fresh()
    take(table, "a", Q0, Q1, now=0)
    assert take(table, "b", Q0, now=59.9) == []
    assert take(table, "b", Q0, now=60) == [QueueLock(Q0, 3)]
    assert take(table, "a", Q0, Q1, now=61) == [QueueLock(Q1, 2)]
    assert table.is_stale("g", Q0, 1) and not table.is_stale("g", Q0, 3) and not table.is_stale("g", Q1, 2)
    assert not table.is_stale("other", Q0, 1)


def test_the_old_owner_cannot_renew_while_its_successor_is_being_recorded() -> None:
    table = fresh()
    take(table, "a", Q0, now=0)
    assert table.lock("g", "b", [Q0], 70)
    assert not table.lock("g", "a", [Q0], 71) and table.held("g", "a", [Q0], 71) == []
    table.recorded(table.counter, 72)
    assert table.held("g", "b", [Q0], 72) == [QueueLock(Q0, 2)]


def test_a_failed_save_grants_nothing_and_its_epoch_is_not_used_again() -> None:
    table = fresh()
    take(table, "a", Q0, now=0)
    assert table.lock("g", "b", [Q0, Q1], 70)
    covered = table.counter
    table.lock("g", "c", [Q2], 71)  # came while the save ran, so the next one covers it
    table.failed(covered)
    assert table.held("g", "b", [Q0, Q1], 72) == [] and not table.is_stale("g", Q0, 1)
    table.recorded(table.counter, 73)
    assert table.held("g", "c", [Q2], 73) == [QueueLock(Q2, 4)]
    assert take(table, "b", Q0, now=74) == [QueueLock(Q0, 5)]


def test_what_is_unlocked_is_free_at_once_and_only_its_owner_can() -> None:
    table = fresh()
    take(table, "a", Q0, Q1, now=0)
    assert table.unlock("g", "b", [Q0], 1) == 0 and table.unlock("nobody", "a", [Q0], 1) == 0
    assert table.unlock("g", "a", [Q0, Q2], 1) == 1
    assert take(table, "b", Q0, Q1, now=1) == [QueueLock(Q0, 3)]
    assert table.is_stale("g", Q0, 1)


def test_an_unlock_withdraws_a_claim() -> None:
    table = fresh()
    table.lock("g", "a", [Q0], 0)
    covered = table.counter
    assert table.unlock("g", "a", [Q0], 0) == 1
    table.recorded(covered, 1)
    assert table.held("g", "a", [Q0], 1) == [] and take(table, "b", Q0, now=1) == [QueueLock(Q0, 2)]


@pytest.mark.parametrize("how", ["failed", "withdrawn"])
def test_an_owner_whose_lease_ran_out_is_recorded_anew_after_a_claim_that_came_to_nothing(how: str) -> None:
    """The disk may have that claim: without a new record, a restart would give the queue to the claimant while the
    owner trusts its renewal."""
    table = fresh()
    take(table, "a", Q0, now=0)
    assert table.lock("g", "b", [Q0], 61)
    covered, disk = table.counter, table.to_dict()
    if how == "withdrawn":
        table.unlock("g", "b", [Q0], 61)
        table.recorded(covered, 61)
    else:
        table.failed(covered)
    assert table.lock("g", "a", [Q0], 62) and table.held("g", "a", [Q0], 62) == []
    after = LockTable(LEASE, GRACE)  # a crash before the new record: nobody trusts a lock
    after.load(disk)
    after.start(63, lost=False, floor=0)
    assert after.held("g", "b", [Q0], 63) and not after.lock("g", "a", [Q0], 63)
    table.recorded(table.counter, 63)
    assert table.held("g", "a", [Q0], 63) == [QueueLock(Q0, 3)]
    assert restarted(table, 64).held("g", "a", [Q0], 64) == [QueueLock(Q0, 3)]


def test_groups_do_not_share_locks() -> None:
    table = fresh()
    assert take(table, "a", Q0, now=0, group="g1") and take(table, "b", Q0, now=0, group="g2")
    assert [(group, owner) for group, _, owner, _ in table.holders(1)] == [("g1", "a"), ("g2", "b")]


def test_after_a_restart_recorded_owners_have_a_fresh_lease_and_epochs_go_on() -> None:
    before = fresh()
    take(before, "a", Q0, now=1000)
    take(before, "a", Q1, now=1000)
    before.unlock("g", "a", [Q1], 1000)
    table = restarted(before, 5)  # a new process, perhaps a new machine: its monotonic clock has another zero
    assert table.held("g", "a", [Q0], 5) == [QueueLock(Q0, 1)]
    assert take(table, "b", Q0, Q1, now=64.9) == [QueueLock(Q1, 3)]
    assert take(table, "b", Q0, now=65) == [QueueLock(Q0, 4)]
    assert restarted(table, 0).to_dict() == table.to_dict()


def test_a_lost_record_costs_half_a_minute_and_epochs_rise_above_all_that_were() -> None:
    table = restarted(fresh(), 100, lost=True, floor=1_000_000)
    assert not table.lock("g", "b", [Q0], 129.9) and table.closed_for(129.9) == pytest.approx(0.1)
    assert take(table, "b", Q0, now=130) == [QueueLock(Q0, 1_000_001)]


def test_a_second_restart_while_nobody_is_granted_waits_as_long_again() -> None:
    waiting = restarted(fresh(), 100, lost=True)
    table = restarted(waiting, 105)  # the record it saved says nothing of the locks that clients still trust
    assert take(table, "b", Q0, now=134) == [] and take(table, "b", Q0, now=135)
    assert take(restarted(table, 140), "c", Q1, now=141)


def test_an_older_record_is_no_record() -> None:
    old = fresh()
    take(old, "a", Q0, now=0)
    table = LockTable(LEASE, GRACE)
    table.load(old.to_dict())
    table.start(0, lost=True, floor=50)
    assert table.held("g", "a", [Q0], 1) == [] and take(table, "a", Q0, now=29) == []
    assert take(table, "c", Q0, now=30) == [QueueLock(Q0, 51)]


def test_groups_that_died_are_forgotten_and_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    table = fresh()
    for number in range(100):
        take(table, "a", Q0, Q1, now=0, group=f"g{number}")
    assert len(table) == 200
    take(table, "a", Q0, now=LEASE + FORGET_AFTER - 1, group="g0")
    assert len(table) == 200
    assert take(table, "b", Q2, now=LEASE + FORGET_AFTER + 60, group="new") == [QueueLock(Q2, 201)]
    assert len(table) == 2 and {group for group, *_ in table.holders(LEASE + FORGET_AFTER + 58)} == {"g0", "new"}
    monkeypatch.setattr(table, "most", 3)
    assert len(take(table, "b", Q0, Q1, Q2, now=LEASE + FORGET_AFTER + 61, group="more")) == 1


def test_a_full_table_is_not_searched_for_every_queue_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    table = fresh()
    monkeypatch.setattr(table, "most", 2)
    assert len(take(table, "a", Q0, Q1, now=0)) == 2
    sweeps: list[float] = []
    sweep = table._sweep

    def counted(now: float) -> None:
        sweeps.append(now)
        sweep(now)

    monkeypatch.setattr(table, "_sweep", counted)
    assert take(table, "b", *(QueueKey("T", "broker-a", number) for number in range(10, 1010)), now=30) == []
    assert len(sweeps) == 1
    for number in range(64):  # nor for each of many requests in one turn: with 200,000 locks a search takes 15 ms
        assert take(table, "b", Q2, now=30 + number * 1e-4) == []
    assert len(sweeps) == 1
    after = LEASE + FORGET_AFTER
    assert take(table, "b", Q2, now=after) == [QueueLock(Q2, 3)]


@pytest.mark.parametrize(
    "data",
    [{}, {"counter": 1}, {"counter": 1, "locks": [[1]]}, {"counter": "x", "locks": []}, {"counter": 1, "locks": []}],
)
def test_what_is_no_record_is_told_from_one(data: dict[str, Any]) -> None:
    table = LockTable(LEASE, GRACE)
    with pytest.raises((LookupError, TypeError, ValueError)):
        table.load(data)
    assert len(table) == 0


def test_a_lease_shorter_than_clients_trust_theirs_is_refused() -> None:
    with pytest.raises(ConfigError, match="lock_lease=20"):
        BrokerConfig(lock_lease=20)


# ---- the difference to Apache's


class ApachesTable:
    """RebalanceLockManager as it is: queue → (client, time of the last request), in memory."""

    def __init__(self) -> None:
        self.locks: dict[QueueKey, tuple[str, float]] = {}

    def take(self, client: str, queue: QueueKey, now: float) -> bool:
        owner, since = self.locks.get(queue, (client, now))
        if owner != client and now - since <= LEASE:
            return False
        self.locks[queue] = (client, now)
        return True


class OurTable:
    def __init__(self, table: LockTable | None = None, now: float = 0.0) -> None:
        self.table = fresh() if table is None else restarted(table, now)

    def take(self, client: str, queue: QueueKey, now: float) -> bool:
        return bool(take(self.table, client, queue, now=now))


@pytest.mark.parametrize("apache", [True, False])
def test_a_restart_gives_a_queue_two_owners_at_apaches_broker_and_not_at_ours(apache: bool) -> None:
    table: ApachesTable | OurTable = ApachesTable() if apache else OurTable()
    assert table.take("a", Q0, 0)
    a_trusts_until = 0 + TRUST
    table = ApachesTable() if isinstance(table, ApachesTable) else OurTable(table.table, 5)  # restart at 5 s
    b_has_it = table.take("b", Q0, 6)
    assert b_has_it is apache and a_trusts_until > 6
    if not apache:
        assert table.take("a", Q0, 20)  # and the owner goes on as if nothing had happened
        assert not table.take("b", Q0, 79) and table.take("b", Q0, 80)


class OneOwner(RuleBasedStateMachine):
    """Clients that trust a lock for 30 s from before they asked, a broker that saves, crashes and loses its record,
    messages that take their time: at no instant two clients trust the same queue."""

    queues = (Q0, Q1)

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.wall = 1_000_000
        self.table = fresh()
        self.disk: dict[str, Any] | None = self.table.to_dict()
        self.saving: tuple[int, dict[str, Any]] | None = None
        #: Requests on their way, requests that wait for a save, answers on their way: (client, asked at, queues).
        self.requests: list[tuple[str, float, tuple[QueueKey, ...]]] = []
        self.waiting: list[tuple[str, float, tuple[QueueKey, ...]]] = []
        self.answers: list[tuple[str, float, list[QueueLock]]] = []
        self.trust: dict[tuple[str, QueueKey], float] = {}
        self.gave_up: dict[tuple[str, QueueKey], float] = {}
        self.epochs: dict[int, tuple[str, QueueKey]] = {}

    @rule(seconds=st.sampled_from([0.1, 10.0, 29.0, 31.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.wall += int(seconds * 1000)

    @rule(client=st.sampled_from("ab"), queues=st.sampled_from([(Q0,), (Q1,), (Q0, Q1)]), prompt=st.booleans())
    def ask(self, client: str, queues: tuple[QueueKey, ...], prompt: bool) -> None:
        self.requests.append((client, self.now, queues))
        if prompt:  # nothing comes between, so that what matters happens often
            self.arrive(-1)
            if self.waiting and self.saving is None:
                self.save()
                self.saved(True, False)
            if self.answers:
                self.learn(-1)

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 5))
    def arrive(self, which: int) -> None:
        client, asked, queues = self.requests.pop(which % len(self.requests))
        if self.table.lock("g", client, queues, self.now):
            self.waiting.append((client, asked, queues))
        else:
            self.answer(client, asked, queues)

    def answer(self, client: str, asked: float, queues: tuple[QueueKey, ...]) -> None:
        held = self.table.held("g", client, queues, self.now)
        for lock in held:
            assert self.epochs.setdefault(lock.epoch, (client, lock.queue)) == (client, lock.queue)
        self.answers.append((client, asked, held))

    @precondition(lambda self: self.saving is None)
    @rule()
    def save(self) -> None:
        self.saving = (self.table.counter, self.table.to_dict())

    @precondition(lambda self: self.saving is not None)
    @rule(written=st.booleans(), failed=st.booleans())
    def saved(self, written: bool, failed: bool) -> None:
        assert self.saving is not None
        counter, data = self.saving
        self.saving = None
        if written or not failed:
            self.disk = data
        if failed:
            self.table.failed(counter)
        else:
            self.table.recorded(counter, self.now)
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            # A request that came during the save waits for the next one; asking "held" early grants it nothing.
            self.answer(*request)

    @precondition(lambda self: self.answers)
    @rule(which=st.integers(0, 5))
    def learn(self, which: int) -> None:
        client, asked, held = self.answers.pop(which % len(self.answers))
        for lock in held:
            key = client, lock.queue
            if asked > self.gave_up.get(key, -1.0):
                self.trust[key] = max(self.trust.get(key, 0.0), asked + TRUST)

    @rule(client=st.sampled_from("ab"), queue=st.sampled_from(queues))
    def give_up(self, client: str, queue: QueueKey) -> None:
        self.trust.pop((client, queue), None)
        self.gave_up[client, queue] = self.now
        self.table.unlock("g", client, [queue], self.now)

    @rule(written=st.booleans())
    def crash(self, written: bool) -> None:
        if self.saving is not None and written:
            self.disk = self.saving[1]
        self.restart(self.disk)

    @rule()
    def crash_and_lose_the_record(self) -> None:
        self.restart(None)

    def restart(self, data: dict[str, Any] | None) -> None:
        self.saving, self.waiting, self.requests = None, [], []
        self.now += 0.001
        self.wall += 1
        self.table = LockTable(LEASE, GRACE)
        if data is not None:
            self.table.load(data)
        self.table.start(self.now, lost=data is None, floor=self.wall)
        self.disk = self.table.to_dict()

    @invariant()
    def one_owner(self) -> None:
        for queue in self.queues:
            trusting = [client for (client, name), end in self.trust.items() if name == queue and end > self.now]
            assert len(trusting) <= 1, f"{trusting} both trust their lock of {queue} at {self.now}"


OneOwner.TestCase.settings = settings(
    max_examples=2 * settings.default.max_examples,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestOneOwner = OneOwner.TestCase


# ---- over the wire


@pytest.fixture(autouse=True)
def _topic_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues that are locked here: others are granted to nobody."""
    built_in = topics._built_in
    monkeypatch.setattr(topics, "_built_in", lambda *args: [*built_in(*args), topics.Topic("T", 64, 64)])


def lock_body(client: str, *queues: int, group: str = "g", kind: int = 0) -> bytes:
    body = LockBatchBody(client, group, [MessageQueue("T", "broker-a", number) for number in queues])
    return encode_body(body, kind)


def granted(answer: RemotingCommand) -> dict[int, int]:
    """Queue id → epoch."""
    assert answer.code == 0, answer.remark
    result = decode_body(LockBatchResult, answer.body, answer.serialize_type)
    return {queue.queue_id: epoch for queue, epoch in zip(result.queues, result.epochs, strict=True)}


async def test_locks_are_granted_renewed_refused_and_given_back(broker: Broker, peer: Peer) -> None:
    first = await peer.call(41, body=lock_body("a", 0, 1))
    assert granted(first) == {0: 1, 1: 2}
    assert granted(await peer.call(41, body=lock_body("a", 0, 1))) == {0: 1, 1: 2}
    other = await Peer.connect(broker.port, "msgpack")
    refused = await other.call(41, body=lock_body("b", 1, 2, kind=MSGPACK))
    assert granted(refused) == {2: 3}
    none = await other.call(41, body=lock_body("b", 0, kind=MSGPACK))
    assert granted(none) == {} and none.body  # a body even so: Java reads it without a check
    assert (await peer.call(42, body=lock_body("a", 1))).code == 0
    await peer.ask(42, body=lock_body("a", 0), oneway=True)
    await peer.members()  # one-way, and so answered by nobody: whatever follows it has passed it
    assert granted(await other.call(41, body=lock_body("b", 0, 1, kind=MSGPACK))) == {0: 4, 1: 5}
    await other.close()


async def test_a_closed_connection_keeps_its_locks(broker: Broker, peer: Peer) -> None:
    other = await Peer.connect(broker.port)
    assert granted(await other.call(41, body=lock_body("a", 0))) == {0: 1}
    await other.close()
    assert granted(await peer.call(41, body=lock_body("b", 0))) == {}
    assert granted(await peer.call(41, body=lock_body("a", 0))) == {0: 1}


async def test_an_unlock_that_was_overtaken_by_a_new_connection_unlocks_nothing(broker: Broker, peer: Peer) -> None:
    """The client gave the queue back, its link hung, and over a new one it took the queue again: what still arrives on
    the old one must not free a queue whose lock is trusted."""
    assert granted(await peer.call(41, body=lock_body("a", 0, 1))) == {0: 1, 1: 2}
    newer = await Peer.connect(broker.port)
    other = await Peer.connect(broker.port)
    assert granted(await newer.call(41, body=lock_body("a", 0))) == {0: 1}
    late = await peer.call(41, body=lock_body("a", 1))  # and a renewal came first
    assert granted(late) == {1: 2}
    assert (await peer.call(42, body=lock_body("a", 0, 1))).code == 0
    assert granted(await other.call(41, body=lock_body("b", 0, 1))) == {}
    assert granted(await newer.call(41, body=lock_body("a", 0, 1))) == {0: 1, 1: 2}
    assert (await other.call(42, body=lock_body("a", 1))).code == 0  # a still newer link of it
    assert granted(await other.call(41, body=lock_body("b", 0, 1))) == {1: 3}
    await newer.close()
    while len(broker.server.connections) > 2:
        await asyncio.sleep(0)
    assert (await peer.call(42, body=lock_body("a", 0))).code == 0
    assert granted(await other.call(41, body=lock_body("b", 0))) == {}  # the client trusts its lock, link or no link
    newest = await Peer.connect(broker.port)
    assert (await newest.call(42, body=lock_body("a", 0))).code == 0
    assert granted(await other.call(41, body=lock_body("b", 0))) == {0: 4}
    await newest.close()
    await other.close()


@pytest.mark.parametrize("how", ["it went during the turns of its request", "it was refused as one too many"])
async def test_what_was_claimed_for_nobody_is_free_after_a_lease(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A claim that nobody had recorded kept the queue from all others, until some other queue had a new owner."""
    await peer.create_topic("wide", queues=2_000)
    (connection,) = broker.server.connections
    queues = [MessageQueue("wide", broker.config.name, number) for number in range(2_000 if "turns" in how else 5)]
    command = RemotingCommand.request(41, body=encode_body(LockBatchBody("g", "a", queues), 0))
    lease = broker.locks.lease
    monkeypatch.setattr(broker.locks, "lease", 0.0)
    serving: Any = broker.server.processors.handler(41)(connection, command)
    if "turns" in how:
        task = asyncio.ensure_future(serving)
        while not len(broker.locks):
            await asyncio.sleep(0)
        connection.close("it went")
        await task
    else:
        serving.close()  # as ProcessorTable does
    assert 0 < len(broker.locks) < 2_000
    async with asyncio.timeout(10):
        while broker.locks._claims:
            await asyncio.sleep(0)
    monkeypatch.setattr(broker.locks, "lease", lease)
    other = await Peer.connect(broker.port)
    answer = await other.call(41, body=encode_body(LockBatchBody("g", "b", queues[:5]), 0))
    assert len(granted(answer)) == 5
    await other.close()


async def test_who_locked_last_is_forgotten_when_it_has_gone(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    # A bound method, which the table knows as a function only.
    handlers: Any = broker.server.processors._handlers[41].__self__  # type: ignore[attr-defined]

    async def come_and_go(left: int) -> int:
        for number in range(20):
            peer = await Peer.connect(broker.port)
            await peer.call(41, body=lock_body(f"c{number}", number))
            await peer.close()
            while len(broker.server.connections) > left:
                await asyncio.sleep(0)
        return len(handlers._locked)

    assert await come_and_go(0) <= 5
    oldest = await Peer.connect(broker.port)
    await oldest.members()
    assert await come_and_go(1) == 20  # what is on its way on that one may be of any of them
    monkeypatch.setattr(broker.locks, "lease", 0.0)
    assert await come_and_go(1) <= 5  # but of locks that have ended
    await oldest.close()


async def test_who_holds_nothing_is_not_remembered(broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody could ask under a new name each time: 9,000 a second, each kept for a minute."""
    handlers: Any = broker.server.processors._handlers[41].__self__  # type: ignore[attr-defined]  # a bound method
    monkeypatch.setattr(broker.locks, "most", 8)
    other = await Peer.connect(broker.port)  # newer than the oldest
    assert granted(await other.call(41, body=lock_body("a", 0))) == {0: 1}
    for number in range(20):
        assert granted(await other.call(41, body=lock_body(f"c{number}", 0))) == {}
    assert list(handlers._locked) == [("g", "a")]
    for number in range(20):  # nor more of those who held something
        assert len(granted(await other.call(41, body=lock_body(f"c{number}", 1)))) == 1
        assert (await other.call(42, body=lock_body(f"c{number}", 1))).code == 0
    assert [client for _, client in handlers._locked] == [f"c{number}" for number in range(12, 20)]
    await other.close()


async def test_a_lock_request_that_cannot_be_is_one_clear_answer(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = await peer.call(41, body=b'{"clientId":"a"}')
    assert answer.code == 1 and "consumerGroup" in (answer.remark or "")
    answer = await peer.call(41, body=lock_body("", 0))
    assert answer.code == 29 and "clientId" in (answer.remark or "")
    monkeypatch.setattr("aiorocket.broker.handlers.locks.MAX_QUEUES", 2)
    answer = await peer.call(41, body=lock_body("a", 0, 1, 2))
    assert answer.code == 29 and "3 queue locks" in (answer.remark or "")


async def test_a_commit_of_a_former_owner_is_refused_and_counted(broker: Broker, peer: Peer) -> None:
    await peer.create_topic("T", 1)
    (epoch,) = granted(await peer.call(41, body=lock_body("a", 0))).values()

    async def commit(offset: int, **ext: Any) -> RemotingCommand:
        return await peer.call(15, None, consumerGroup="g", topic="T", queueId="0", commitOffset=str(offset), **ext)

    assert (await commit(5, _epoch=str(epoch))).code == 0
    await peer.call(42, body=lock_body("a", 0))
    (new,) = granted(await peer.call(41, body=lock_body("b", 0))).values()
    stale = await commit(7, _epoch=str(epoch))
    assert stale.code == 16 and (stale.remark or "").startswith("stale epoch")
    assert await peer.committed("g", "T") == 5
    assert (await commit(6, _epoch=str(new))).code == 0 and (await commit(7)).code == 0  # Apache's clients send none
    wrong = await commit(8, _epoch="x")
    assert wrong.code == 1 and "_epoch" in (wrong.remark or "")
    await peer.send()
    for sent, seen in ((epoch, 7), (new, 1)):
        header = pull_header(sys_flag=1 | 4, commit_offset=1)
        assert len(records(await peer.call(11, header, _epoch=str(sent)))) == 1
        assert await peer.committed("g", "T") == seen
    assert broker.counters.stale_commits == {"g": 2}


async def test_what_an_orderly_group_sends_to_its_retry_topic_is_dead(broker: Broker, peer: Peer) -> None:
    assert (await peer.send(b"later", topic="%RETRY%g", reconsume_times=1)).code == 0
    assert len(records(await peer.pull("%RETRY%g"))) == 1
    await peer.call(41, body=lock_body("a", 0))
    assert (await peer.send(b"dead", {"DELAY": "3"}, topic="%RETRY%g", reconsume_times=1)).code == 0
    (dead,) = records(await peer.pull("%DLQ%g"))
    assert dead.body == b"dead" and broker.counters.dead_letters == {"g": 1}
    await peer.call(42, body=lock_body("a", 0))
    assert (await peer.send(b"later", topic="%RETRY%g", reconsume_times=1)).code == 0
    assert len(records(await peer.pull("%RETRY%g", 0, 1))) == 1


class Failing:
    """A disk whose next state file cannot be written."""

    def __init__(self, env: Env) -> None:
        self.disk = env.disk
        self.fails = False
        self.writes = 0
        self._replace = env.disk.replace
        env.disk.replace = self.replace  # type: ignore[method-assign]

    def replace(self, path: str, data: bytes) -> None:
        if "/locks" in path:
            self.writes += 1
            if self.fails:
                raise OSError(errno.EIO, "broken")
        self._replace(path, data)


async def test_a_failed_save_grants_nothing_and_says_so() -> None:
    env = memory_env()
    disk = Failing(env)
    async with running(env=env, data="store") as broker:
        peer = await Peer.connect(broker.port)
        assert granted(await peer.call(41, body=lock_body("a", 0))) == {0: 1}
        disk.fails = True
        answer = await peer.call(41, body=lock_body("b", 1))
        assert answer.code == 1 and "could not be recorded" in (answer.remark or "")
        answer = await peer.call(41, body=lock_body("a", 0, 1))  # what it has it keeps
        assert granted(answer) == {0: 1} and "could not be recorded" in (answer.remark or "")
        disk.fails = False
        assert granted(await peer.call(41, body=lock_body("b", 1))) == {1: 4}
        await peer.close()
    await env.disk.close()


async def test_many_requests_share_one_save_and_renewals_need_none() -> None:
    env = memory_env()
    disk = Failing(env)
    async with running(env=env, data="store") as broker:
        peer = await Peer.connect(broker.port)
        await peer.members()
        before = disk.writes
        for number in range(50):
            await peer.ask(41, body=lock_body(f"c{number}", number))
        answers = [await peer.answer() for _ in range(50)]
        assert sorted(queue for answer in answers for queue in granted(answer)) == list(range(50))
        assert disk.writes - before <= 10
        before = disk.writes
        for number in range(50):
            assert len(granted(await peer.call(41, body=lock_body(f"c{number}", number)))) == 1
        assert disk.writes == before
        await peer.close()
    await env.disk.close()


@pytest.mark.parametrize("how", ["kept", "gone", "damaged", "one generation"])
def test_after_a_restart_the_owner_stays_or_everybody_waits(how: str) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        await peer.send()
        assert granted(await peer.call(41, body=lock_body("a", 0))) == {0: 1}
        kill(host, disk)
        files = [path for path in ("store/config/locks.a", "store/config/locks.b") if disk.exists(path)]
        newest = max(files, key=lambda path: int(disk.read_bytes(path).split(b" ", 3)[3].partition(b"\n")[0]))
        for path in files if how != "one generation" else [newest]:
            if how == "gone":
                disk.unlink(path)
            elif how != "kept":
                disk.replace(path, b"rubbish")
        await asyncio.sleep(3)
        host, broker = await started(sim, env, config(host="10.0.0.2"))
        start = sim.loop.time()
        peer = SimPeer(sim, broker.address)
        answer = await peer.call(41, body=lock_body("b", 0))
        assert granted(answer) == {}
        if how == "kept":
            assert answer.remark is None
            assert granted(await peer.call(41, body=lock_body("a", 0))) == {0: 1}
        else:
            assert "is granted for another" in (answer.remark or "")
            assert granted(await peer.call(41, body=lock_body("a", 0))) == {}
        while not granted(answer := await peer.call(41, body=lock_body("b", 0))):
            await asyncio.sleep(1)
        waited = sim.loop.time() - start
        assert (60 <= waited <= 62) if how == "kept" else (30 <= waited <= 32)
        assert granted(answer)[0] > 1
        await host.run(broker.close())
        # And what was granted now is on record again.
        host, broker = await started(sim, env, config(host="10.0.0.3"))
        peer = SimPeer(sim, broker.address)
        assert granted(await peer.call(41, body=lock_body("b", 0))) == granted(answer)
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_broker_without_messages_can_lose_its_record_too(damaged: bool) -> None:
    """Queues are locked before the first message comes, and their owners work on it when it does."""

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        broker.topics.put(Topic("T", 1, 1))
        assert granted(await peer.call(41, body=lock_body("a", 0))) == {0: 1}
        await host.run(broker.close())
        for path in ("store/config/locks.a", "store/config/locks.b"):
            if damaged:
                disk.replace(path, b"rubbish")
            else:
                disk.unlink(path)
        host, broker = await started(sim, env, config(host="10.0.0.2"))
        peer = SimPeer(sim, broker.address)
        assert granted(await peer.call(41, body=lock_body("b", 0))) == {}
        await asyncio.sleep(GRACE)
        assert granted(await peer.call(41, body=lock_body("b", 0)))[0] > 1
        await host.run(broker.close())

    simulate(main)


def test_an_empty_store_grants_at_once_and_so_does_a_second_start() -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        for number in range(2):
            host, broker = await started(sim, env, config(host=f"10.0.0.{number + 1}"))
            peer = SimPeer(sim, broker.address)
            assert granted(await peer.call(41, body=lock_body(f"c{number}", number)))
            await peer.send()
            await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("how", ["killed", "power cut", "error, then killed", "error, then power cut"])
def test_a_change_of_owner_that_fails_at_any_call_of_the_disk_makes_no_second_owner(how: str) -> None:
    """Until the script passes: the k-th call of the save fails, or is the last thing the broker did. The owner renews
    whenever it can, and after the restart the one that wanted the queue asks again."""
    outcomes = []

    async def main(sim: Simulation, k: int) -> bool:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        a, b = SimPeer(sim, broker.address, "10.0.1.1"), SimPeer(sim, broker.address, "10.0.1.2")

        def die() -> None:
            kill(host, disk, power="power" in how)

        async def gets_it(peer: SimPeer, client: str) -> bool:
            try:
                answer = await peer.call(41, body=lock_body(client, 0), timeout=3.0)
            except RocketError:
                return False
            return answer.code == 0 and granted(answer) != {}

        assert await gets_it(a, "a")
        await asyncio.sleep(LEASE + 1)
        before = disk.calls
        real = disk.call

        def call(what: str, path: str) -> None:
            if disk.calls + 1 == before + k:
                disk.calls += 1
                if "error" not in how:
                    die()
                raise OSError(errno.EIO, "planned by a test", path)
            real(what, path)

        disk.call = call  # type: ignore[method-assign]
        taken = await gets_it(b, "b")
        untouched = disk.calls < before + k
        disk.call = real  # type: ignore[method-assign]
        kept = await gets_it(a, "a")
        until = sim.loop.time() + TRUST
        assert not (taken and kept)
        if disk.era == 0:
            die()
        host, broker = await started(sim, env, config(host="10.0.0.2"))
        a.address = b.address = broker.address
        taken_after = await gets_it(b, "b")
        assert not (kept and taken_after and sim.loop.time() < until), f"call {k} of the save: two owners"
        assert not (taken_after and await gets_it(a, "a"))
        outcomes.append((taken, kept))
        for peer in (a, b):
            await peer.close()
        await host.run(broker.close())
        return untouched

    for k in range(1, 60):
        if simulate(lambda sim, k=k: main(sim, k)):  # type: ignore[misc]
            break
    assert len(outcomes) >= 6 and outcomes[-1] == (True, False)
    assert ("error" in how) is ((False, True) in outcomes)
