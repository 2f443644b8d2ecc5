"""Transactional messages, as RocketMQ's documentation tells them: a payment and its message happen both or not at all.

The message is stored first as a half message that consumers do not see. Then the local transaction runs. Its end is
told to the broker; when that gets lost, the broker asks, and any producer of the group can answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from aiorocket import ClientConfig, ConsumerConfig, Embedded, Message, Queue, SendError, embed
from aiorocket.client.sending.transaction import Transaction, TransactionProducer
from aiorocket.model import TxState

Until = Callable[[Callable[[], bool]], Awaitable[None]]


class Database:
    """What the application keeps for itself."""

    def __init__(self) -> None:
        self.paid: dict[str, str] = {}
        self.asked: list[str] = []

    async def mark_paid(self, payment: str, message_id: str) -> None:
        self.paid[payment] = message_id


@pytest_asyncio.fixture
async def mq() -> AsyncIterator[Embedded]:
    """A broker that asks soon."""
    settings = {"transaction_timeout": 0.2, "transaction_check_interval": 0.2, "transaction_check_max": 3}
    async with embed(broker=settings) as embedded:
        await embedded.create_topic("payments", queues=2)
        yield embedded


@pytest_asyncio.fixture
async def unhurried() -> AsyncIterator[Embedded]:
    """A broker that asks after RocketMQ's 6 s."""
    async with embed() as embedded:
        await embedded.create_topic("payments", queues=2)
        yield embedded


def transaction_producer(mq: Embedded, db: Database) -> TransactionProducer:
    txp = TransactionProducer("pay", nameservers=mq.nameservers)

    @txp.checker
    async def check(message: Message) -> TxState:
        db.asked.append(message.keys[0])
        return TxState.COMMIT if message.keys[0] in db.paid else TxState.UNKNOWN

    return txp


class Shipping:
    """A consumer that collects what it gets."""

    def __init__(self, mq: Embedded, topic: str = "payments") -> None:
        self.seen: list[Message] = []
        self.consumer = mq.consumer("shipping", config=ConsumerConfig(pull_error_delay=0.2))

        @self.consumer.listener(topic, start_from="first")
        async def ship(message: Message) -> None:
            self.seen.append(message)

    @property
    def payments(self) -> list[str]:
        return [message.keys[0] for message in self.seen]


async def test_a_payment_and_its_message_happen_together(unhurried: Embedded, until: Until) -> None:
    db, shipping = Database(), Shipping(unhurried)
    async with transaction_producer(unhurried, db) as txp, shipping.consumer:
        async with txp.transaction("payments", b"42 EUR", tag="paid", keys=["p-1"]) as tx:
            await db.mark_paid("p-1", tx.id)
            await asyncio.sleep(0.1)
            assert shipping.seen == []  # a half message is nobody's
        await until(lambda: len(shipping.seen) == 1)
    (message,) = shipping.seen
    assert (message.topic, message.body, message.tag, message.keys) == ("payments", b"42 EUR", "paid", ["p-1"])
    assert message.msg_id == tx.id == db.paid["p-1"]
    assert db.asked == []


async def test_a_payment_that_fails_leaves_no_message(mq: Embedded, until: Until) -> None:
    db, shipping = Database(), Shipping(mq)
    async with transaction_producer(mq, db) as txp, shipping.consumer:
        with pytest.raises(ConnectionError):
            async with txp.transaction("payments", b"42 EUR", keys=["p-1"]):
                raise ConnectionError("the database is away")
        async with txp.transaction("payments", b"43 EUR", keys=["p-2"]) as tx:
            await db.mark_paid("p-2", tx.id)
        await until(lambda: len(shipping.seen) == 1)
        db.asked.clear()  # where the machine is busy, a block may have lasted longer than the broker waits
        async with txp.transaction("payments", b"44 EUR", keys=["p-3"]) as tx:
            tx.leave_unknown()
        await until(lambda: bool(db.asked))  # the oldest open one first
    assert shipping.payments == ["p-2"]
    assert set(db.asked) == {"p-3"}


async def test_the_broker_asks_for_what_was_left_open(mq: Embedded, until: Until) -> None:
    db, shipping = Database(), Shipping(mq)
    async with transaction_producer(mq, db) as txp, shipping.consumer:
        async with txp.transaction("payments", b"42 EUR", keys=["p-1"]) as tx:
            await db.mark_paid("p-1", tx.id)
            tx.leave_unknown()  # as if the commit had been lost on its way
        await until(lambda: len(shipping.seen) == 1)
    assert shipping.seen[0].body == b"42 EUR"
    assert set(db.asked) == {"p-1"}  # once more, if the answer takes longer than the broker waits


async def test_another_producer_of_the_group_answers_for_one_that_died(mq: Embedded, until: Until) -> None:
    db, shipping = Database(), Shipping(mq)
    async with transaction_producer(mq, db) as first, first.transaction("payments", b"42 EUR", keys=["p-1"]) as tx:
        await db.mark_paid("p-1", tx.id)
        tx.leave_unknown()
    async with transaction_producer(mq, db) as second, shipping.consumer:
        # Brokers know the producers of a group by their heartbeats, which go to the brokers of the topics in use.
        await second.send("payments", b"ordinary", keys=["none"])
        await until(lambda: len(shipping.seen) == 2)
    assert sorted(shipping.payments) == ["none", "p-1"]


async def test_what_nobody_can_answer_ends_after_the_last_check(mq: Embedded, until: Until) -> None:
    db, shipping = Database(), Shipping(mq)
    async with transaction_producer(mq, db) as txp, shipping.consumer:
        async with txp.transaction("payments", b"42 EUR", keys=["p-1"]) as tx:
            tx.leave_unknown()
        await until(lambda: len(db.asked) == 3)
        await asyncio.sleep(1)
    assert db.asked == ["p-1"] * 3
    assert shipping.seen == []


async def test_open_transactions_survive_a_restart_of_the_broker(tmp_path: object, until: Until) -> None:
    settings = {"transaction_timeout": 0.3, "transaction_check_interval": 0.2, "register_interval": 0.3}
    async with embed(str(tmp_path), broker=settings) as mq:
        await mq.create_topic("payments", queues=2)
        db, shipping = Database(), Shipping(mq)
        async with transaction_producer(mq, db) as txp, shipping.consumer:
            async with txp.transaction("payments", b"42 EUR", keys=["p-1"]) as tx:
                await mq.restart()
                await db.mark_paid("p-1", tx.id)
            await until(lambda: len(shipping.seen) == 1)
        assert shipping.payments == ["p-1"]


async def test_as_java_has_it(mq: Embedded, until: Until) -> None:
    db, shipping = Database(), Shipping(mq)
    async with transaction_producer(mq, db) as txp, shipping.consumer:

        async def local(tx: Transaction) -> TxState:
            await db.mark_paid("p-1", tx.id)
            return TxState.COMMIT

        async def refused(tx: Transaction) -> TxState:
            return TxState.ROLLBACK

        result = await txp.send_in_transaction("payments", b"42 EUR", keys=["p-1"], local=local)
        assert result.state is TxState.COMMIT
        result = await txp.send_in_transaction("payments", b"43 EUR", keys=["p-2"], local=refused)
        assert result.state is TxState.ROLLBACK
        await until(lambda: len(shipping.seen) == 1)
        await asyncio.sleep(0.5)
    assert shipping.payments == ["p-1"]


async def test_committed_messages_keep_their_queue(mq: Embedded, until: Until) -> None:
    db, shipping = Database(), Shipping(mq)
    where = Queue("payments", "broker-a", 1)
    async with transaction_producer(mq, db) as txp, shipping.consumer:
        for number in range(3):
            async with txp.transaction("payments", b"x", keys=[f"p-{number}"], queue=where):
                pass
        await until(lambda: len(shipping.seen) == 3)
    assert {message.queue for message in shipping.seen} == {where}


async def test_a_broker_may_refuse_transactions() -> None:
    async with embed(broker={"reject_transactions": True}) as mq:
        await mq.create_topic("payments")
        async with transaction_producer(mq, Database()) as txp:
            with pytest.raises(SendError):
                async with txp.transaction("payments", b"x", keys=["p-1"], timeout=1):
                    raise AssertionError("the block must not run")
            await txp.send("payments", b"ordinary")


async def test_in_a_namespace(mq: Embedded, until: Until) -> None:
    db, seen = Database(), list[Message]()
    async with mq.client(config=ClientConfig(namespace="tenant-1")) as client:
        txp = TransactionProducer("pay", client=client)

        @txp.checker
        async def check(message: Message) -> TxState:
            assert message.topic == "payments"
            db.asked.append(message.keys[0])
            return TxState.COMMIT

        consumer = client.consumer("shipping")

        @consumer.listener("payments", start_from="first")
        async def ship(message: Message) -> None:
            seen.append(message)

        async with txp:
            async with txp.transaction("payments", b"1", keys=["p-1"]):
                pass
            async with txp.transaction("payments", b"2", keys=["p-2"]) as tx:
                tx.leave_unknown()
            async with consumer:
                await until(lambda: len(seen) == 2)
    assert {(message.topic, message.keys[0]) for message in seen} == {("payments", "p-1"), ("payments", "p-2")}
    assert db.asked == ["p-2"]
