"""Transactions: the table alone, through a connection, and in virtual time over restarts, kills and power cuts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.broker import Broker
from aiorocket.broker.core.transactions import (
    HalfState,
    Stored,
    TransactionTable,
    decode_op,
    encode_op,
    immunity,
    is_transactional,
)
from aiorocket.config import BrokerConfig, Limits, RemotingConfig, StoreConfig
from aiorocket.remoting import RemotingClient
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.runtime.env import Env
from aiorocket.storage.results import StoreBusyError
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    HeartbeatData,
    RecordView,
    RemotingCommand,
    ResumeCheckHalfMessageRequestHeader,
    SendMessageResponseHeader,
    encode_body,
    encode_properties,
    parse_offset_msg_id,
    split_records,
)
from tests.broker.peer import Peer, pull_header, records, records_read, running, send_header

HALF, OP, TOO_OFTEN = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


def table(**changes: Any) -> TransactionTable:
    return TransactionTable(**{"timeout": 6.0, "interval": 30.0, "max_checks": 15, **changes})


# ---- the table


def test_when_a_producer_is_asked() -> None:
    one = table(max_checks=2)
    assert one.next_due() is None
    assert one.add(0, 0, 100.0, None)
    assert not one.add(1, 500, 100.0, 60.0)  # asks to be left alone for a minute
    assert one.next_due() == 106.0 and not one.take_due(105.9, 10)
    (half,) = one.take_due(106.0, 10)
    one.begin(half, HalfState.COPYING)
    assert one.next_due() == 160.0
    assert one.copied(half, 2, 900, 106.1) and one.next_due() == 136.1
    assert not one.is_hopeless(half)
    one.begin(half, HalfState.COPYING)
    one.begin(half, HalfState.ENDING)  # the producer's end came while the copy was on its way
    assert not one.copied(half, 3, 1300, 136.2) and half.offset == 3 and one.is_hopeless(half)
    one.ended(half, 0)
    assert one.get(0) is None and one.next_due() == 160.0 and len(one) == 1


def test_what_failed_is_looked_at_again() -> None:
    one = table()
    one.add(0, 0, 0.0, None)
    half = one.get(0)
    assert half is not None
    one.begin(half, HalfState.ENDING)
    assert one.next_due() is None
    assert one.reopen(half, 3.0, HalfState.DELIVERED) and one.next_due() == 3.0
    assert one.take_due(3.0, 5) == [half] and half.state is HalfState.DELIVERED
    one.forget(half)
    assert one.next_due() is None and one.to_dict() == {"half": 1, "op": 0, "opEnd": 0}


def test_what_ended_before_it_was_to_be_asked_about_is_forgotten() -> None:
    """A sender may want not to be asked for years; while another transaction was open each left its moment there."""
    table = TransactionTable(timeout=6, interval=30, max_checks=15)
    table.add(0, 0, 0.0, None)
    for offset in range(1, 20_000):
        table.add(offset, offset, 0.0, 86_400.0 * offset)
        half = table.get(offset)
        assert half is not None
        table.begin(half, HalfState.ENDING)
        table.ended(half, offset)
    assert len(table) == 1 and table.next_due() == 6 and len(table._queue) < 5_000


def test_due_times_after_a_restart() -> None:
    one = table()
    wall = 1_000_000_000
    one.restore(
        [
            Stored(0, 0, 0, 0, wall - 2_000, None),  # 4 s left, but producers must come back first
            Stored(1, 1, 1, 0, wall - 2_000, 20.0),
            Stored(2, 2, 2, 3, wall - 10_000, None),
            Stored(3, 3, 3, 0, wall + 99_000_000, None),  # the clock was set back
            Stored(4, 4, 4, 0, wall, None),
            Stored(5, 5, 5, 0, wall, None),
            Stored(6, 6, 5, 1, wall, None),  # a copy of the one before
        ],
        [(0, [4, 4])],
        now=50.0,
        wall_ms=wall,
    )
    due = {name: half.due for name in range(6) if (half := one.get(name)) is not None}
    assert due == {0: 56.0, 1: 68.0, 2: 70.0, 3: 56.0, 5: 80.0}


def test_a_snapshot_that_knows_more_than_the_queues_is_not_believed() -> None:
    for half, op in (((0, 9), (0, 5)), ((0, 10), (0, 4))):
        one = table()
        one.load({"half": 10, "op": 3, "opEnd": 5})
        assert one.starts(half, op) == (0, 0)
    one = table()
    one.load({"half": 10, "op": 3, "opEnd": 5})
    assert one.starts((2, 12), (4, 7)) == (10, 4)
    assert one.to_dict()["opEnd"] == 7


def test_bodies_of_op_records() -> None:
    one = table()
    one.add(7, 0, 0.0, None)
    half = one.get(7)
    assert half is not None and encode_op(half) == b"7,"
    half.offset = 12
    assert encode_op(half) == b"7,12," and decode_op(b"7,12,") == [7, 12]
    assert decode_op(b"7") == [7] and decode_op(b"x,,-1,5") == [5]  # 4.9 writes one number


def test_what_properties_say() -> None:
    assert is_transactional({"TRAN_MSG": "True"}, retried=False)
    assert not is_transactional({"TRAN_MSG": "true"}, retried=True) and not is_transactional({}, retried=False)
    found = [immunity({"CHECK_IMMUNITY_TIME_IN_SECONDS": text}) for text in ("12", "-1", "x", "٣", "9" * 30)]
    assert found == [12.0, None, None, None, None] and immunity({}) is None


class Queues:
    """The half and op queues as lists, with a table beside them that hears of everything."""

    def __init__(self) -> None:
        self.halves: list[tuple[int, int]] = []  # name, checks
        self.ops: list[list[int]] = []
        self.table = table()

    def rebuilt(self, saved: dict[str, Any]) -> dict[int, int]:
        again = table()
        again.load(saved)
        first, op = again.starts((0, len(self.halves)), (0, len(self.ops)))
        again.restore(
            [Stored(at, at, *self.halves[at], 0, None) for at in range(first, len(self.halves))],
            [(at, self.ops[at]) for at in range(op, len(self.ops))],
            now=0.0,
            wall_ms=0,
        )
        return {name: half.offset for name in range(len(self.halves)) if (half := again.get(name)) is not None}


@given(st.lists(st.tuples(st.sampled_from(["add", "copy", "end", "race", "save"]), st.integers(0, 30)), max_size=80))
def test_a_restart_finds_exactly_what_is_open(steps: list[tuple[str, int]]) -> None:
    queues = Queues()
    opened: dict[int, int] = {}
    saved: dict[str, Any] = {}
    for step, number in steps:
        names = list(opened)
        if step == "add":
            at = len(queues.halves)
            queues.halves.append((at, 0))
            queues.table.add(at, at, 0.0, None)
            opened[at] = at
        elif step == "save":
            saved = queues.table.to_dict()
        elif names:
            name = names[number % len(names)]
            half = queues.table.get(name)
            assert half is not None
            if step == "copy":
                queues.table.begin(half, HalfState.COPYING)
                queues.halves.append((name, half.checks + 1))
                opened[name] = len(queues.halves) - 1
                queues.table.copied(half, opened[name], opened[name], 0.0)
            else:
                queues.ops.append(decode_op(encode_op(half)))
                if step == "race":  # the op record is on its way when the copy of a check is stored
                    queues.table.begin(half, HalfState.COPYING)
                    queues.table.begin(half, HalfState.ENDING)
                    queues.halves.append((name, half.checks + 1))
                    queues.table.copied(half, len(queues.halves) - 1, 0, 0.0)
                queues.table.ended(half, len(queues.ops) - 1)
                del opened[name]
    assert queues.rebuilt({}) == queues.rebuilt(saved) == queues.rebuilt(queues.table.to_dict()) == opened


def test_a_restart_reads_little() -> None:
    one = table()
    for at in range(2000):
        one.add(at, at, 0.0, None)
        half = one.get(at)
        assert half is not None
        if at != 1500:
            one.ended(half, at if at < 1500 else at - 1)
    assert one.to_dict() == {"half": 1500, "op": 1280, "opEnd": 1999}  # op records are counted in runs of 256


# ---- through a connection


def transactional(**more: str) -> dict[str, str]:
    return {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "K1", **more}


async def half(peer: Peer, body: bytes = b"paid", **changes: Any) -> SendMessageResponseHeader:
    answer = await peer.send(body, **{"properties": transactional(), "queue_id": 2, "sys_flag": 4, **changes})
    assert answer.code == 0, answer.remark
    return answer.read(SendMessageResponseHeader)


def ending(receipt: SendMessageResponseHeader, outcome: int, **changes: Any) -> EndTransactionRequestHeader:
    place = parse_offset_msg_id(receipt.msg_id)[2]
    return EndTransactionRequestHeader("shop", receipt.queue_offset, place, outcome, "K1")._replace(**changes)


async def end(peer: Peer, receipt: SendMessageResponseHeader, outcome: int, **changes: Any) -> RemotingCommand:
    return await peer.call(37, ending(receipt, outcome, **changes))


async def stored(peer: Peer, topic: str, queue_id: int = 0) -> list[RecordView]:
    return records(await peer.pull(topic, queue_id, suspend_timeout_millis=0))


async def test_a_half_message_waits_where_nobody_looks(peer: Peer) -> None:
    await peer.create_topic("T", 4)
    receipt = await half(peer, properties=transactional(TAGS="red", DELAY="1", TRANSACTION_CHECK_TIMES="9"))
    assert receipt.queue_id == 2 and receipt.queue_offset == 0
    assert not await stored(peer, "T", 2)
    (record,) = await stored(peer, HALF)
    assert record.physical_offset == parse_offset_msg_id(receipt.msg_id)[2]
    assert record.sys_flag & 0x0C == 0  # stored without its transaction bits
    properties = record.properties
    assert (properties["REAL_TOPIC"], properties["REAL_QID"], properties["__transactionId__"]) == ("T", "2", "K1")
    assert "DELAY" not in properties and "TRANSACTION_CHECK_TIMES" not in properties
    assert not await stored(peer, "SCHEDULE_TOPIC_XXXX")


async def test_commit(broker: Broker, peer: Peer) -> None:
    await peer.create_topic("T", 4)
    receipt = await half(peer, b"body", properties=transactional(TAGS="red", mine="1"), flag=7, sys_flag=5)
    assert (await end(peer, receipt, COMMIT)).code == 0
    (record,) = await stored(peer, "T", 2)
    assert record.raw_body == b"body" and record.flag == 7 and record.sys_flag & 0x0F == 9
    assert record.prepared_transaction_offset == parse_offset_msg_id(receipt.msg_id)[2]
    assert record.properties["mine"] == "1" and record.properties["UNIQ_KEY"] == "K1"
    assert record.properties["TRAN_MSG"] == "true"  # by which Java's consumers know its transaction's id
    assert not {"REAL_TOPIC", "REAL_QID"} & set(record.properties)
    assert records(await peer.pull("T", 2, subscription="red"))
    (op,) = await stored(peer, OP)
    assert op.body == b"0," and op.tag == "d"
    assert len(broker.transactions) == 0 and broker.transactions.next_due() is None  # and so no timer
    answer = await end(peer, receipt, COMMIT)
    assert answer.code == 1 and "ended" in (answer.remark or "")
    assert (await end(peer, receipt, ROLLBACK)).code == 1
    assert len(await stored(peer, "T", 2)) == 1


async def test_what_waits_for_a_queue_that_its_topic_has_no_more_goes_to_another(peer: Peer) -> None:
    """Delayed, timed or half: nobody reads the queue that it was sent to."""
    receipt = await half(peer, b"half", queue_id=3)
    await peer.send(b"delayed", {"DELAY": "2"}, queue_id=3)
    await peer.send(b"timed", {"TIMER_DELAY_MS": "50"}, queue_id=3)
    await peer.create_topic("T", 2)
    assert (await end(peer, receipt, COMMIT)).code == 0
    seen: set[bytes] = set()
    async with asyncio.timeout(10):
        while len(seen) < 3:
            seen |= {record.body for record in records(await peer.pull("T", 1, len(seen)))}
    assert seen == {b"half", b"delayed", b"timed"}


async def test_rollback(peer: Peer) -> None:
    await peer.create_topic("T", 4)
    receipt = await half(peer)
    assert (await end(peer, receipt, ROLLBACK, from_transaction_check=True)).code == 0
    assert [record.body for record in await stored(peer, OP)] == [b"0,"]
    assert (await end(peer, receipt, COMMIT)).code == 1
    assert not await stored(peer, "T", 2)


async def test_unknown_changes_nothing_and_one_way_gets_no_answer(broker: Broker, peer: Peer) -> None:
    await peer.create_topic("T", 4)
    receipt = await half(peer)
    assert (await end(peer, receipt, UNKNOWN)).code == 0 and len(broker.transactions) == 1
    await peer.ask(37, ending(receipt, COMMIT), oneway=True)
    answer = await peer.pull("T", 2)  # the next answer on the connection is that of the pull
    assert [record.body for record in records(answer)] == [b"paid"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"producer_group": "other"}, "producer group wrong"),
        ({"tran_state_table_offset": 5}, "state table offset wrong"),
        ({"commit_log_offset": 3}, "no half message"),
        ({"commit_log_offset": 1 << 40}, "no half message"),
        ({"commit_or_rollback": 4}, "commitOrRollback=4"),
    ],
)
async def test_an_end_that_does_not_fit(broker: Broker, peer: Peer, changes: dict[str, Any], words: str) -> None:
    await peer.send()
    receipt = await half(peer)
    answer = await end(peer, receipt, COMMIT, **changes)
    assert answer.code != 0 and words in (answer.remark or "")
    assert len(broker.transactions) == 1 and not await stored(peer, OP)


async def test_an_ordinary_message_cannot_be_committed(peer: Peer) -> None:
    answer = await peer.send(properties=transactional(TRAN_MSG="no", REAL_TOPIC="T", REAL_QID="0"))
    receipt = answer.read(SendMessageResponseHeader)
    assert (await end(peer, receipt, COMMIT)).code == 1
    assert len(await stored(peer, "T")) == 1


async def test_a_transaction_that_was_given_up_begins_anew() -> None:
    changes = {"transaction_timeout": 0.05, "transaction_check_interval": 0.05, "transaction_check_max": 1}
    async with running(**changes) as broker:
        peer = await Peer.connect(broker.port)
        await half(peer, properties=transactional(mine="1"))
        async with asyncio.timeout(30):
            while not (found := records(await peer.pull(TOO_OFTEN, 0))):
                await asyncio.sleep(0.01)
        (dead,) = found
        broker.transactions.interval = 60  # from here on it has time
        data = HeartbeatData("c1", ["shop"], [])
        assert (await peer.call(34, body=encode_body(data, 0))).code == 0
        resumed = ResumeCheckHalfMessageRequestHeader(msg_id=dead.offset_msg_id)
        assert (await peer.call(323, resumed)).code == 0
        asked = await peer.read()
        check = asked.read(CheckTransactionStateRequestHeader)
        (record,) = split_records(asked.body)
        assert asked.code == 39 and record.properties["TRANSACTION_CHECK_TIMES"] == "1"
        place = check.tran_state_table_offset, check.commit_log_offset
        assert (await peer.call(37, EndTransactionRequestHeader("shop", *place, COMMIT, "K1", True))).code == 0
        (paid,) = await stored(peer, "T", 2)
        assert paid.body == b"paid" and paid.properties["mine"] == "1" and len(broker.transactions) == 0
        await peer.close()


async def test_what_begins_anew_counts_for_the_limit_of_transactions() -> None:
    changes = {"transaction_timeout": 0.05, "transaction_check_interval": 0.05, "transaction_check_max": 1}
    async with running(limits=Limits(transactions=2), **changes) as broker:
        peer = await Peer.connect(broker.port)
        await half(peer)
        async with asyncio.timeout(30):
            while not (found := records(await peer.pull(TOO_OFTEN, 0))):
                await asyncio.sleep(0.01)
        broker.transactions.timeout = 60  # those from here on stay
        resumed = ResumeCheckHalfMessageRequestHeader(msg_id=found[0].offset_msg_id)
        assert [(await peer.call(323, resumed)).code for _ in range(2)] == [0, 0]
        answer = await peer.call(323, resumed)
        assert answer.code == 2 and "transactions=2" in (answer.remark or "") and len(broker.transactions) == 2
        await peer.close()


@pytest.mark.parametrize("wrong", ["", "7F", "7F00000100002A9F00000000000F4240", "a half message"])
async def test_only_what_was_given_up_is_asked_about_again(peer: Peer, wrong: str) -> None:
    receipt = await half(peer)
    header = ResumeCheckHalfMessageRequestHeader(msg_id=receipt.msg_id if " " in wrong else wrong)
    answer = await peer.call(323, header)
    assert answer.code == 1 and "msgId" in (answer.remark or "")


async def test_ends_that_come_together_deliver_once(peer: Peer) -> None:
    await peer.create_topic("T", 4)
    receipt = await half(peer)
    for _ in range(3):
        await peer.ask(37, ending(receipt, COMMIT))
    codes = [(await peer.answer()).code for _ in range(3)]
    assert sorted(codes) == [0, 1, 1] and len(await stored(peer, "T", 2)) == 1


async def test_a_late_end_of_a_message_with_an_immunity(peer: Peer) -> None:
    receipt = await half(peer, properties=transactional(CHECK_IMMUNITY_TIME_IN_SECONDS="60"))  # born long ago
    answer = await end(peer, receipt, COMMIT)
    assert answer.code == 604 and "CHECK_IMMUNITY_TIME_IN_SECONDS" in (answer.remark or "")
    assert (await end(peer, receipt, COMMIT, from_transaction_check=True)).code == 0


async def test_a_retried_message_is_an_ordinary_one(broker: Broker, peer: Peer) -> None:
    answer = await peer.send(topic="%RETRY%g", properties=transactional(DELAY="1"), reconsume_times=1)
    assert answer.code == 0 and len(broker.transactions) == 0
    answer = await peer.send(topic="%RETRY%g", properties=transactional(), reconsume_times=17, max_reconsume_times=16)
    assert answer.code == 0 and len(broker.transactions) == 0 and len(await stored(peer, "%DLQ%g")) == 1


async def test_transactions_can_be_refused() -> None:
    async with running(reject_transactions=True) as broker:
        peer = await Peer.connect(broker.port)
        answer = await peer.send(properties=transactional())
        assert answer.code == 16 and "transaction" in (answer.remark or "")
        await peer.close()


async def test_a_topic_that_takes_no_messages_takes_no_transactions(broker: Broker, peer: Peer) -> None:
    await peer.create_topic("ReadOnly", 1, perm=4)
    assert (await peer.send(topic="ReadOnly", properties=transactional())).code == 16
    assert not await stored(peer, HALF) and len(broker.transactions) == 0
    receipt = await half(peer)
    await peer.create_topic("T", 4, perm=4)  # withdrawn meanwhile: what was promised is kept
    assert (await end(peer, receipt, COMMIT)).code == 0 and len(await stored(peer, "T", 2)) == 1


async def test_a_half_message_may_be_as_large_as_any_and_no_larger(peer: Peer) -> None:
    limit = 4 * 1024 * 1024
    assert (await peer.send(bytes(limit + 1), properties=transactional())).code == 13
    assert (await end(peer, await half(peer, bytes(limit)), COMMIT)).code == 0
    assert [len(record.raw_body) for record in await stored(peer, "T", 2)] == [limit]


async def test_sizes_leave_room_for_the_checks(peer: Peer) -> None:
    for size in (32_600, 32_660):
        assert (await peer.send(properties=transactional(big="x" * size))).code == 13


async def test_a_sender_without_a_key_gets_one(peer: Peer) -> None:
    receipt = await half(peer, properties={"TRAN_MSG": "true", "PGROUP": "shop"})
    assert receipt.transaction_id
    (record,) = await stored(peer, HALF)
    assert record.properties["UNIQ_KEY"] == receipt.transaction_id


async def test_a_failing_disk_leaves_the_transaction_open(broker: Broker, peer: Peer, monkeypatch: Any) -> None:
    await peer.create_topic("T", 4)
    receipt = await half(peer)
    append = broker.store.append
    busy = True

    def refusing(topic: str, *args: Any, **options: Any) -> None:
        if busy and topic == OP:
            raise StoreBusyError("too much waits")
        append(topic, *args, **options)

    monkeypatch.setattr(broker.store, "append", refusing)
    assert (await end(peer, receipt, ROLLBACK)).code == 2 and len(broker.transactions) == 1
    assert (await end(peer, receipt, COMMIT)).code == 2  # delivered, but without its op record
    assert len(await stored(peer, "T", 2)) == 1
    assert (await end(peer, receipt, ROLLBACK)).code == 1
    busy = False
    assert (await end(peer, receipt, COMMIT)).code == 0
    assert len(await stored(peer, "T", 2)) == 1 and len(broker.transactions) == 0


# ---- in virtual time

SMALL = StoreConfig(segment_size=64 * 1024, min_free=64 * 1024)


def config(**changes: Any) -> BrokerConfig:
    base = {"host": "10.0.0.1", "port": 10911, "data": "store", "store": SMALL, "channel_expiry": 86_400.0}
    return BrokerConfig(**{**base, **changes})


async def started(sim: Simulation, env: Env, **changes: Any) -> tuple[Any, Broker]:
    host = sim.host("10.0.0.1")
    broker = Broker(env, config(**changes))
    await host.run(broker.start())
    return host, broker


class Shop:
    """A producer of group shop that writes down what it is asked. ``outcomes`` are its answers, by message body."""

    def __init__(self, sim: Simulation, host: str = "10.0.0.9") -> None:
        processors = ProcessorTable()
        processors.add(39, self._asked)
        self.sim = sim
        self.host = sim.host(host)
        self.client = RemotingClient(sim.env(), RemotingConfig(serializer="json"), processors=processors)
        self.asked: list[tuple[float, CheckTransactionStateRequestHeader, RecordView]] = []
        self.outcomes: dict[bytes, int] = {}

    def _asked(self, connection: Connection, command: RemotingCommand) -> None:
        header = command.read(CheckTransactionStateRequestHeader)
        (record,) = split_records(command.body)
        self.asked.append((self.sim.loop.time(), header, record))
        outcome = self.outcomes.get(record.body)
        if outcome is not None:
            answer = EndTransactionRequestHeader(
                "shop", header.tran_state_table_offset, header.commit_log_offset, outcome, header.msg_id or "", True
            )
            connection.oneway(RemotingCommand.request(37, answer, oneway=True))

    async def call(self, code: int, header: Any = None, body: bytes = b"", timeout: float = 5.0) -> RemotingCommand:
        request = RemotingCommand.request(code, header, body=body)
        return await self.host.run(self.client.request("10.0.0.1:10911", request, timeout))

    async def register(self) -> None:
        data = HeartbeatData(self.host.address, ["shop"], [])
        assert (await self.call(34, body=encode_body(data, 0))).code == 0

    async def half(self, body: bytes, **more: str) -> SendMessageResponseHeader:
        text = encode_properties(transactional(**more)).decode()
        answer = await self.call(310, send_header(properties=text), body)
        assert answer.code == 0, answer.remark
        return answer.read(SendMessageResponseHeader)

    async def end(self, receipt: SendMessageResponseHeader, outcome: int) -> int:
        return (await self.call(37, ending(receipt, outcome))).code

    async def drain(self, topic: str = "T") -> list[RecordView]:
        found: list[RecordView] = []
        while True:
            header = pull_header(topic, 0, len(found), max_msg_nums=1024, suspend_timeout_millis=0)
            answer = await self.call(11, header)
            if answer.code != 0:
                return found
            found += records(answer)

    async def close(self) -> None:
        await self.host.run(self.client.close())


@pytest.mark.parametrize("seed", range(3))
def test_fifteen_checks_at_their_moments_and_then_the_dead_end(seed: int) -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        host, broker = await started(sim, env)
        shop = Shop(sim)
        await shop.register()
        receipt = await shop.half(b"paid", mine="1")
        begun = sim.loop.time()
        await asyncio.sleep(6 + 4 * 30 + 10)  # after the fifth check, a restart of ten seconds
        await host.run(broker.close())
        await asyncio.sleep(10)
        host, broker = await started(sim, env)
        await shop.register()
        await asyncio.sleep(20 * 30)
        moments = [round(at - begun, 1) for at, _, _ in shop.asked]
        assert moments == [6.0 + 30 * n for n in range(15)]
        offsets = []
        for number, (_, header, record) in enumerate(shop.asked, 1):
            assert record.topic == "T" and record.queue_id == 0 and record.body == b"paid"
            assert record.properties["TRANSACTION_CHECK_TIMES"] == str(number)
            assert record.properties["TRAN_PREPARED_QUEUE_OFFSET"] == str(receipt.queue_offset)
            assert (record.queue_offset, record.physical_offset) == (
                header.tran_state_table_offset, header.commit_log_offset
            )  # fmt: skip
            assert header.msg_id == header.transaction_id == "K1" and header.topic == "T"
            assert parse_offset_msg_id(header.offset_msg_id or "")[2] == header.commit_log_offset
            offsets.append(header.tran_state_table_offset)
        assert offsets == list(range(1, 16))
        (dead,) = await shop.drain(TOO_OFTEN)
        assert dead.body == b"paid" and dead.properties["REAL_TOPIC"] == "T" and dead.properties["mine"] == "1"
        assert not await shop.drain() and len(broker.transactions) == 0
        assert broker.transactions.next_due() is None
        assert await shop.end(receipt, COMMIT) == 1  # too late
        await shop.close()
        await host.run(broker.close())

    simulate(main, seed)


def test_a_check_is_answered_by_any_producer_of_the_group_in_turn() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env())
        shops = [Shop(sim, f"10.0.0.{n}") for n in (7, 8, 9)]
        for shop in shops:
            await shop.register()
        receipt = await shops[0].half(b"paid")
        await asyncio.sleep(6 + 3 * 30 - 1)
        assert [len(shop.asked) for shop in shops] == [1, 1, 1]
        await shops[0].close()
        for shop in shops:
            shop.outcomes[b"paid"] = COMMIT
        await asyncio.sleep(30)
        (record,) = await shops[1].drain()
        assert record.sys_flag & 0x0C == 8 and len(broker.transactions) == 0
        assert await shops[1].end(receipt, COMMIT) == 1  # by its first half message, which is ended too
        await asyncio.sleep(600)
        assert len(await shops[1].drain()) == 1
        for shop in shops[1:]:
            await shop.close()
        await host.run(broker.close())

    simulate(main)


def test_of_transactions_that_are_due_together_few_are_read_in_a_turn() -> None:
    """15 of 4 MiB held the loop for 89 ms."""

    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env())
        shop = Shop(sim)
        await shop.half(b"")
        await asyncio.gather(*[shop.half(b"%d" % number) for number in range(20)])
        read = records_read(broker)
        await asyncio.sleep(10)
        assert sum(read) == 21 and max(read) == 2
        await shop.close()
        await host.run(broker.close())

    simulate(main)


def test_an_immunity_delays_the_first_check_and_nobody_there_costs_a_check() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), transaction_check_max=2)
        shop = Shop(sim)
        await shop.half(b"later", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
        await asyncio.sleep(99)
        assert len(await shop.drain(HALF)) == 1
        await asyncio.sleep(2)
        assert len(await shop.drain(HALF)) == 2 and not shop.asked  # it never sent a heartbeat
        await asyncio.sleep(90)
        assert [record.body for record in await shop.drain(TOO_OFTEN)] == [b"later"]
        await shop.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("restarted", [False, True])
def test_an_immunity_of_years_keeps_nothing_longer_than_retention_does(restarted: bool) -> None:
    """It kept every half message that came behind it, and every op record."""

    async def main(sim: Simulation) -> None:
        env, store = sim.env(), replace(SMALL, file_reserved_time=1)
        host, broker = await started(sim, env, store=store)
        shop = Shop(sim)
        await shop.half(b"later", CHECK_IMMUNITY_TIME_IN_SECONDS="999999999")
        if restarted:
            await host.run(broker.close())
            host, broker = await started(sim, env, store=store)
        await asyncio.sleep(3590)
        await shop.register()
        assert not shop.asked
        shop.outcomes[b"later"] = COMMIT
        await asyncio.sleep(20)
        assert len(shop.asked) == 1 and [record.body for record in await shop.drain()] == [b"later"]
        assert len(broker.transactions) == 0
        await shop.close()
        await host.run(broker.close())

    simulate(main)


def test_what_the_store_refuses_is_tried_again_by_the_broker_itself() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env())
        shop = Shop(sim)
        await shop.register()
        delivered, lost = await shop.half(b"delivered"), await shop.half(b"asked")
        append, refused = broker.store.append, {OP, HALF}

        def refusing(topic: str, *args: Any, **options: Any) -> None:
            if topic in refused:
                raise StoreBusyError("too much waits")
            append(topic, *args, **options)

        broker.store.append = refusing  # type: ignore[method-assign]
        assert await shop.end(delivered, COMMIT) == 2  # the message is there, its op record is not
        await asyncio.sleep(20)
        assert len(broker.transactions) == 2 and not shop.asked
        refused.clear()
        await asyncio.sleep(2)
        assert len(broker.transactions) == 1 and [record.body for _, _, record in shop.asked] == [b"asked"]
        assert await shop.end(lost, ROLLBACK) == 0
        assert [record.body for record in await shop.drain()] == [b"delivered"]
        await shop.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("error", [StoreBusyError("too much waits"), MemoryError()], ids=repr)
def test_what_finds_no_room_for_a_while_is_given_up_then_and_told_once(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """It was logged each second as in a topic where it was not; for want of memory it waited for the next start."""

    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), transaction_check_max=1)
        shop = Shop(sim)
        await shop.register()
        await shop.half(b"lost")
        append, refused = broker.store.append, {TOO_OFTEN}

        def refusing(topic: str, *args: Any, **options: Any) -> None:
            if topic in refused:
                raise error
            append(topic, *args, **options)

        broker.store.append = refusing  # type: ignore[method-assign]
        await asyncio.sleep(6 + 30 + 20)
        assert "checks without an answer" not in caplog.text and not await shop.drain(TOO_OFTEN)
        refused = {OP}
        await asyncio.sleep(20)
        assert len(broker.transactions) == 1
        refused.clear()
        await asyncio.sleep(2)
        assert [record.body for record in await shop.drain(TOO_OFTEN)] == [b"lost"] and not len(broker.transactions)
        assert caplog.text.count("checks without an answer") == 1
        await shop.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("place", ["read_record", "append"])
def test_a_check_that_finds_no_memory_comes_later(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env())
        shop = Shop(sim)
        await shop.register()
        receipts = [await shop.half(str(number).encode()) for number in range(5)]
        with monkeypatch.context() as patch:
            patch.setattr(broker.store, place, Mock(side_effect=MemoryError))
            await asyncio.sleep(10)
            assert not shop.asked
            if place == "append":
                assert await shop.end(receipts[0], COMMIT) == 1
        await asyncio.sleep(2)
        assert len(shop.asked) == 5
        assert [await shop.end(receipt, COMMIT) for receipt in receipts] == [0] * 5
        await shop.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("end", ["close", "kill", "power"])
@pytest.mark.seeds(8)
def test_outcomes_survive_the_end_of_the_broker(seed: int, end: str) -> None:
    """Each transaction has an outcome its producer knows. What was answered stands; what was not is asked about."""

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        # Checks begin early, so that copies are on their way when the broker ends.
        timing = {"transaction_timeout": 0.2, "transaction_check_interval": 0.5, "offset_flush_interval": 0.1}
        host, broker = await started(sim, env, **timing)
        outcomes: dict[bytes, int] = {}
        answered: set[bytes] = set()

        async def work(number: int) -> None:
            shop = Shop(sim, f"10.0.1.{number}")
            shop.outcomes = outcomes
            draw = sim.loop.random
            try:
                await shop.register()
                for count in range(60):
                    body = b"%d-%d" % (number, count)
                    outcome = draw.choice([COMMIT, ROLLBACK])
                    receipt = await shop.half(body)
                    outcomes[body] = outcome
                    if draw.random() < 0.7:
                        code = await shop.end(receipt, outcome)
                        assert code in (0, 1)  # 1: a check was quicker
                        if code == 0:
                            answered.add(body)
            except Exception:  # noqa: BLE001 - the broker went away; whatever was sent last is in doubt
                pass
            await shop.close()

        tasks = [asyncio.create_task(work(number)) for number in range(3)]
        await asyncio.sleep(0.1 + sim.loop.random.random() * 0.6)
        if end == "close":
            await host.run(broker.close())
        else:
            host.kill(power_cut=end == "power")
            disk.crash() if end == "power" else disk.process_died()
        await asyncio.wait(tasks)
        assert answered and len(answered) < len(outcomes)
        host, broker = await started(sim, env, **timing)
        shop = Shop(sim)
        shop.outcomes = outcomes
        await shop.register()
        await asyncio.sleep(30)
        assert len(broker.transactions) == 0
        found = [record.body for record in await shop.drain()]
        wanted = {body for body, outcome in outcomes.items() if outcome == COMMIT}
        assert wanted <= set(found)
        assert not {body for body, outcome in outcomes.items() if outcome == ROLLBACK} & set(found)
        for body in answered & wanted:
            assert found.count(body) == 1
        await shop.close()
        await host.run(broker.close())

    simulate(main, seed)


def test_a_broker_starts_with_a_damaged_unit_of_a_half_message() -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env)
        shop = Shop(sim, "10.0.1.1")
        await shop.register()
        for number in range(3):
            await shop.half(b"%d" % number)
        await host.run(broker.close())
        (units,) = [data for path, data in disk.files.items() if "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC" in path]
        units[27] ^= 0x40
        host, broker = await started(sim, env)
        assert len(broker.transactions) == 3
        await shop.close()
        await host.run(broker.close())

    simulate(main)
