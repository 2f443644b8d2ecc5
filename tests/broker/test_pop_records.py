"""What a broker loses with its power passes over no message that somebody had popped: whatever the store refused,
failed or had not made durable, the message is out again, or comes again, or was done."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from aiorocket.broker.core.pops import Pop, PopTable, QueueKey
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.pop_log import PopLog
from aiorocket.broker.revive import PopRevival
from aiorocket.config import BrokerConfig
from aiorocket.errors import StoreError
from aiorocket.storage.results import PutResult, PutStatus, StoreBusyError
from aiorocket_protocol import encode_record, revive_topic

RECORDS = revive_topic("DefaultCluster")
KEYS = [QueueKey("T", "g", 0), QueueKey("U", "h", 0)]
#: Places of the log: those of records, and those of messages, behind them.
_MESSAGES = 1 << 20


class Log:
    """A store that makes durable what it is told to, and refuses or fails when it is told to."""

    store_host = bytes(8)

    def __init__(self, records: list[bytes]) -> None:
        self.records = records
        #: Messages that are stored in a retry topic.
        self.moved: set[tuple[str, int]] = set()
        self.waiting: list[tuple[str, bytes, Callable[[PutResult], None]]] = []
        self.refuses = False

    def append(
        self, topic: str, queue_id: int, body: bytes, properties: bytes, *, done: Callable[[PutResult], None], **_: Any
    ) -> None:
        if self.refuses:
            raise StoreBusyError("too much waits")
        self.waiting.append((topic, bytes(body), done))

    def sync(self, count: int) -> None:
        some, self.waiting = self.waiting[:count], self.waiting[count:]
        for topic, body, done in some:
            self.keep(topic, body)
            done(PutResult(PutStatus.OK, 0, len(self.records) - 1, 0))

    def fail(self) -> None:
        some, self.waiting = self.waiting, []
        for _, _, done in some:
            done(PutResult(PutStatus.FULL, -1, -1, 0))

    def keep(self, topic: str, body: bytes) -> None:
        if topic == RECORDS:
            self.records.append(body)
        else:
            name, _, offset = body.decode().partition(" ")
            self.moved.add((name, int(offset)))

    def after_a_power_cut(self, count: int) -> Log:
        """``count`` of those that wait have come so far."""
        log = Log(list(self.records))
        log.moved = set(self.moved)
        for topic, body, _ in self.waiting[:count]:
            log.keep(topic, body)
        return log

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self.records)

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        if topic == RECORDS:
            return [(at, 0, 0) for at in range(offset, min(len(self.records), offset + count))]
        return [((1 + [key.topic for key in KEYS].index(topic)) * _MESSAGES + offset, 0, 0)]

    def read_record(self, place: int) -> bytes:
        topic, offset = divmod(place, _MESSAGES)
        body = b"%s %d" % (KEYS[topic - 1].topic.encode(), offset) if topic else self.records[place]
        return encode_record(
            topic=b"T", body=body, properties=b"", queue_id=0, queue_offset=offset, physical_offset=place, flag=0,
            sys_flag=0, born_timestamp=0, born_host=bytes(8), store_timestamp=0, store_host=bytes(8),
        )  # fmt: skip


class Walk:
    """A broker's pops, and steps that are drawn."""

    def __init__(self, seed: int, in_order: bool | None) -> None:
        self.draw = random.Random(seed)
        self.in_order = in_order
        self.now = 1000.0
        self.log = Log([])
        self.tables, self.revival = self.begin(self.log, {})
        self.saved = self.tables.offsets.to_dict()
        self.done: set[tuple[QueueKey, int]] = set()
        self.given: dict[QueueKey, int] = dict.fromkeys(KEYS, 0)

    def begin(self, log: Log, saved: dict[str, Any]) -> tuple[Tables, PopRevival]:
        tables = Tables.of(BrokerConfig())
        tables.offsets.load(saved)
        never = SimpleNamespace(cancel=lambda: None, when=lambda: 0.0)
        loop: Any = SimpleNamespace(time=lambda: self.now, call_at=lambda *_: never, call_soon=lambda *_: None)
        clock: Any = SimpleNamespace(wall_ms=lambda: round(self.now * 1000))
        store: Any = log
        return tables, PopRevival(loop, clock, tables, store, cluster="DefaultCluster", topics_changed=lambda: None)

    def pop(self, key: QueueKey) -> None:
        table, offsets = self.revival.table, self.tables.offsets
        in_order = self.draw.random() < 0.5 if self.in_order is None else self.in_order
        if not in_order:
            self.revival.unordered(key)
        first, count = table.next_offset(key, offsets.query(*key[1::-1], 0) or 0), self.draw.randint(1, 3)
        if in_order:
            if table.is_blocked(key, "", self.now):
                return
            if (again := table.again(key)) is not None:
                first, count = again[0], min(count, again[1])
        some = list(range(first, first + count))
        invisible = self.draw.choice([1, 1000, 20_000])
        pop = table.take(
            key, some, some[-1] + 1, pop_time=round(self.now * 1000), invisible_ms=invisible, now=self.now,
            in_order=in_order,
        )  # fmt: skip
        self.given[key] = max(self.given[key], some[-1] + 1)
        offsets.commit(key.group, key.topic, 0, table.first_out(key) or 0)
        self.revival.took(pop)

    def settle(self, key: QueueKey, *, acknowledge: bool) -> None:
        queue = self.revival.table._queues.get(key)
        if queue is None:
            return
        offset, pop = self.draw.choice(list(queue.out.items()))
        if acknowledge:
            if self.revival.acknowledge(key, [offset], pop.pop_time, lambda result: None):
                self.done.add((key, offset))
            return
        changed = self.revival.table.change(
            key, offset, pop.pop_time, wall_ms=round(self.now * 1000), invisible_ms=self.draw.choice([0, 30_000]),
            now=self.now,
        )  # fmt: skip
        if changed is not None:
            self.revival.changed(changed, lambda result: None)

    def step(self) -> None:
        key = self.draw.choice([*KEYS, KEYS[0]])
        what = self.draw.choice(
            ["pop"] * 5 + ["ack", "change", "sync"] * 4 + ["save"] * 3 + ["fail", "full", "due", "room"]
        )
        self.now += self.draw.choice([0, 0.01, 0.5])
        try:
            if what == "pop":
                self.pop(key)
            elif what in ("ack", "change"):
                self.settle(key, acknowledge=what == "ack")
            elif what == "sync":
                self.log.sync(self.draw.randint(1, 5))
            elif what == "save":
                self.saved = self.tables.offsets.to_dict()
            elif what == "due":
                self.now += self.draw.choice([0, 1, 5])
                self.revival._due(self.now)
            else:
                self.log.refuses = what != "room"
                if what == "fail":
                    self.log.fail()
        except StoreError:
            pass  # as whoever asked is told

    async def passed_over(self) -> list[tuple[QueueKey, int]]:
        """What nobody would get any more if the power failed now."""
        log = self.log.after_a_power_cut(self.draw.randint(0, len(self.log.waiting)))
        tables, revival = self.begin(log, self.saved)
        await revival.start()
        lost = []
        for key in KEYS:
            end = revival.table.next_offset(key, tables.offsets.query(key.group, key.topic, 0) or 0)
            for offset in range(min(end, self.given[key])):
                settled = (key, offset) in self.done or (key.topic, offset) in log.moved
                if not settled and not revival.table.is_out(key, offset):
                    lost.append((key, offset))
        return lost


@pytest.mark.parametrize("in_order", [False, True, None], ids=["no order", "order", "both"])
@pytest.mark.seeds(100)
async def test_no_message_is_passed_over(seed: int, in_order: bool | None) -> None:
    for number in range(8):
        walk = Walk(8 * seed + number, in_order)
        await walk.revival.start()
        for _ in range(50):
            walk.step()
            if walk.draw.random() < 0.3:
                assert await walk.passed_over() == []


def test_what_was_popped_again_in_order_is_on_record_before_what_was_popped_in_none_meanwhile() -> None:
    table, log = PopTable(), Log([])
    env: Any = SimpleNamespace(call_soon=lambda *_: None, wall_ms=lambda: 0)
    store: Any = log
    records = PopLog(env, env, store, RECORDS, table, lambda: None)
    log.refuses = True
    for number, (offset, in_order) in enumerate([(0, True), (1, False), (0, True)]):
        pop = table.take(
            KEYS[0], [offset], offset + 1, pop_time=number, invisible_ms=1, now=float(number), in_order=in_order
        )
        with pytest.raises(StoreBusyError):
            records.append(table.encode_pop(pop), pop, None)
    log.refuses = False
    records.append(b"{}", None, None)
    log.sync(9)
    assert [json.loads(record).get("ol") for record in log.records] == [[0], [1], [0], None]


def test_records_that_were_refused_are_stored_in_turns() -> None:
    """A disk that was full for a while leaves as many as messages are out: 500,000 would take seconds of one turn."""
    table, log, later = PopTable(), Log([]), list[Callable[[], None]]()
    env: Any = SimpleNamespace(call_soon=later.append, wall_ms=lambda: 0)
    store: Any = log
    records = PopLog(env, env, store, RECORDS, table, lambda: None)
    log.refuses = True
    for number in range(1_000):
        pop = table.take(KEYS[0], [number], number + 1, pop_time=1, invisible_ms=60_000, now=0.0)
        with pytest.raises(StoreBusyError):
            records.append(table.encode_pop(pop), pop, None)
    log.refuses = False
    turns = []
    with pytest.raises(StoreBusyError, match="800 records"):
        records.append(b"{}", None, None)
    with pytest.raises(StoreBusyError):
        records.append(b"{}", None, None)
    while later:
        turns.append(len(log.waiting))
        later.pop()()
    assert turns == [200, 400, 600, 800]
    records.append(b"{}", None, None)
    log.sync(2_000)
    assert [json.loads(record).get("ol") for record in log.records] == [*([at] for at in range(1_000)), None]


def test_a_pop_that_was_asked_for_again_and_again_while_the_disk_filled_up_is_recorded_in_little_time() -> None:
    """In order, by the same attempt: 400 such pops, none of which came to the disk, held the loop for 5 s."""
    table, log, looked = PopTable(), Log([]), [0]
    env: Any = SimpleNamespace(call_soon=lambda *_: None, wall_ms=lambda: 0)
    store: Any = log

    class Olds(list[Pop]):
        def __iter__(self) -> Iterator[Pop]:
            for one in super().__iter__():
                looked[0] += 1
                yield one

    records = PopLog(env, env, store, RECORDS, table, lambda: None)
    for number in range(100):
        pop = table.take(
            KEYS[0], list(range(32)), 32, pop_time=number, invisible_ms=60_000, now=0.0, in_order=True, attempt="a"
        )
        records.append(table.encode_pop(pop), pop, None)
        pop.olds = Olds(pop.olds)
    log.fail()
    looked[0] = 0
    records.append(b"{}", None, None)
    assert len(log.waiting) == 101 and looked[0] <= 100 * 100 * 2
    log.sync(101)
    assert [len(json.loads(record).get("ol", ())) for record in log.records] == [32] * 100 + [0]
    assert table.begin() == 99 and len(table._recorded) == 1


def test_of_records_that_were_refused_few_are_looked_at_each_time() -> None:
    """With 500,000 of them one acknowledgement after another held a full broker for 0.1 s, and then one now and then
    did when nothing was left of them."""
    looked = [0]

    class Looked(Pop):
        __slots__ = ()

        @property
        def left(self) -> int:
            looked[-1] += 1
            return 1

        @left.setter
        def left(self, left: int) -> None: ...

    log = Log([])
    env: Any = SimpleNamespace(call_soon=lambda *_: None, wall_ms=lambda: 0)
    store: Any = log
    records = PopLog(env, env, store, RECORDS, PopTable(), lambda: None)
    log.refuses = True
    for number in range(4_096):
        looked.append(0)
        with pytest.raises(StoreBusyError):
            records.append(b"{}", Looked(KEYS[0], [number], 1, 60_000, 0.0, False, ""), None)
    for _ in range(100):
        looked.append(0)
        with pytest.raises(StoreBusyError):
            records.append(b"{}", None, None)
    assert len(records._missing) == 4_096 and sum(looked) <= 3 * 4_096 and max(looked) <= 5


def test_of_records_that_were_refused_those_of_which_nothing_is_left_go() -> None:
    table, log = PopTable(), Log([])
    env: Any = SimpleNamespace(call_soon=lambda *_: None, wall_ms=lambda: 0)
    store: Any = log
    records = PopLog(env, env, store, RECORDS, table, lambda: None)
    log.refuses = True
    for number in range(10_000):
        pop = table.take(KEYS[0], [number], number + 1, pop_time=1, invisible_ms=60_000, now=0.0)
        with pytest.raises(StoreBusyError):
            records.append(table.encode_pop(pop), pop, None)
        if number % 100:
            table.acknowledge(KEYS[0], number, 1)
    assert len(records._missing) < 2_048
    log.refuses = False
    while len(records._missing):
        records._go_on()
    records.append(b"{}", None, None)
    log.sync(10_000)
    assert [json.loads(record).get("ol") for record in log.records] == [*([at] for at in range(0, 10_000, 100)), None]


async def test_of_what_is_gone_little_is_recorded_at_once() -> None:
    """10,000 that were popped in no order, before their group asked for them in order, took 0.2 s."""
    walk, key = Walk(0, in_order=False), KEYS[0]
    await walk.revival.start()
    for first in range(0, 1_000, 10):
        walk.revival.table.take(
            key, list(range(first, first + 10)), first + 10, pop_time=1, invisible_ms=1, now=walk.now
        )
    steps = []
    while (first_out := walk.revival.table.first_out(key)) is not None and first_out < 990:
        steps.append(walk.revival.gone(key, 990))
    assert sum(steps) == len(walk.log.waiting) == 990 and max(steps) == 32
    assert walk.revival.gone(key, 990) == 0 and walk.revival.table.count == 10


@pytest.mark.parametrize("acknowledged", [0, 2, 5])
@pytest.mark.parametrize("gone", ["topic", "group"])
async def test_a_group_has_no_offset_of_what_was_deleted_after_a_start_for_what_others_read(
    gone: str, acknowledged: int
) -> None:
    """It had 5 in the next topic of that name, whose first messages it got never, where somebody had an older pop."""
    walk, (key, other) = Walk(0, in_order=False), KEYS
    await walk.revival.start()
    for one, count in ((other, 1), (key, 5)):
        pop = walk.revival.table.take(
            one, list(range(count)), count, pop_time=1_000_000, invisible_ms=60_000, now=walk.now
        )
        walk.tables.offsets.commit(one.group, one.topic, 0, 0)
        walk.revival.took(pop)
    if acknowledged:
        walk.revival.acknowledge(key, list(range(acknowledged)), 1_000_000, None)
    if gone == "topic":
        walk.tables.offsets.delete_topics({key.topic})
        walk.revival.forget_topics([key.topic])
    else:
        walk.tables.offsets.delete_group(key.group)
        walk.revival.forget_group(key.group)
    walk.log.sync(9)
    tables, revival = walk.begin(walk.log, walk.tables.offsets.to_dict())
    await revival.start()
    assert tables.offsets.query(key.group, key.topic, 0) is None and revival.table.is_out(other, 0)


def test_what_was_never_popped_leaves_no_record_when_it_is_deleted() -> None:
    walk = Walk(0, in_order=False)
    walk.revival.forget_topics(["T"])
    walk.revival.forget_group("g")
    assert not walk.log.waiting
