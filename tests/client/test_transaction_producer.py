"""Transactions from the producer's side: what is stored, what the broker is told, what it is answered when it asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from aiorocket.client.app import Client
from aiorocket.client.message import Message
from aiorocket.client.sending.transaction import Transaction, TransactionProducer
from aiorocket.config import ProducerConfig
from aiorocket.errors import SendError, UsageError
from aiorocket.model import OutgoingMessage, TxState
from aiorocket.runtime.env import memory_env
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)
from tests.client.fake_broker import NAMES, FakeBroker, FakeCluster, run_with

Scenario = Callable[[FakeCluster, TransactionProducer], Awaitable[None]]


async def dont_know(message: Message) -> TxState:
    return TxState.UNKNOWN


def run(
    scenario: Scenario,
    *,
    checker: Callable[[Message], Awaitable[TxState]] = dont_know,
    brokers: int = 1,
    namespace: str = "",
    config: ProducerConfig | None = None,
) -> None:
    def make(client: Client) -> TransactionProducer:
        return TransactionProducer("pay", client=client, config=config, checker=checker)

    run_with(scenario, make, brokers, namespace)


async def ends(broker: FakeBroker) -> list[EndTransactionRequestHeader]:
    """What the broker was told, once it is there."""
    await asyncio.sleep(1)
    return [header for header, _ in broker.ends]


# -- the block


def test_a_normal_end_commits_and_the_half_message_says_what_it_is() -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        async with producer.transaction("t", b"42 EUR", tag="paid", keys=["p-1"], properties={"x": "y"}) as tx:
            (half,) = broker.kept
            assert half.properties == {
                "UNIQ_KEY": tx.id, "TAGS": "paid", "KEYS": "p-1", "x": "y", "TRAN_MSG": "true", "PGROUP": "pay",
            }  # fmt: skip
            assert half.header.sys_flag == 4
            assert half.code == RequestCode.SEND_MESSAGE_V2
            assert await ends(broker) == []
            assert tx.state is None
        assert tx.state is TxState.COMMIT
        # The fake's first message: queue offset 1, commit log offset 1000.
        assert await ends(broker) == [EndTransactionRequestHeader("pay", 1, 1000, 8, tx.id, False, tx.id, "t")]

    run(scenario)


def test_an_exception_rolls_back_and_goes_on() -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction("t", b"x"):
                _ = 1 // 0
        assert [header.commit_or_rollback for header in await ends(broker)] == [12]
        assert "ZeroDivisionError" in str(broker.ends[0][1])

    run(scenario)


def test_what_can_be_said_inside_the_block() -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        async with producer.transaction("t", b"x") as tx:
            tx.leave_unknown()
        async with producer.transaction("t", b"x") as tx:
            tx.rollback()
        with pytest.raises(ValueError, match="whatever"):
            async with producer.transaction("t", b"x") as tx:
                tx.leave_unknown()
                raise ValueError("whatever")
        assert [header.commit_or_rollback for header in await ends(broker)] == [0, 12, 0]

    run(scenario)


def test_a_cancelled_block_is_left_to_the_checker() -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        async def work() -> None:
            async with producer.transaction("t", b"x"):
                await asyncio.sleep(100)

        task = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [header.commit_or_rollback for header in await ends(cluster.brokers[0])] == [0]

    run(scenario)


@pytest.mark.parametrize("code", [10, 11, 12])
def test_a_half_message_with_a_promise_missing_is_rolled_back_before_the_block(code: int) -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        broker.on_send = lambda kept: broker.stored(code)
        with pytest.raises(SendError, match=r"rolled back.*is not stored"):
            async with producer.transaction("t", b"x"):
                raise AssertionError("the block must not run")
        result = await producer.send_in_transaction("t", b"x", local=never)
        assert (result.state, result.receipt.status.value) == (TxState.ROLLBACK, code)
        assert [header.commit_or_rollback for header in await ends(broker)] == [12, 12]

    async def never(tx: Transaction) -> TxState:
        raise AssertionError("the local transaction must not run")

    run(scenario)


def test_a_half_message_that_is_not_stored_begins_nothing() -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        broker.on_send = lambda kept: RemotingCommand.response(ResponseCode.NO_PERMISSION, remark="no transactions")
        with pytest.raises(SendError, match="no transactions"):
            async with producer.transaction("t", b"x", timeout=1):
                raise AssertionError("the block must not run")
        assert await ends(broker) == []

    run(scenario)


def test_the_end_goes_to_the_broker_of_the_half_message() -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        for _ in range(8):
            async with producer.transaction("t", b"x"):
                pass
        async with producer.transaction("t", b"x", sharding_key="k") as tx:
            assert tx.receipt is not None
            where = tx.receipt.queue.broker_name
        for broker in cluster.brokers:
            told = await ends(broker)
            assert [header.msg_id for header in told] == [kept.properties["UNIQ_KEY"] for kept in broker.kept]
            assert (told[-1].msg_id == tx.id) is (broker.name == where)

    run(scenario, brokers=2)


def test_an_end_that_does_not_arrive_is_nobodys_error(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        async with producer.transaction("t", b"x") as tx:
            await broker.stop()
            await asyncio.sleep(1)
        assert tx.state is TxState.COMMIT
        async with asyncio.timeout(60):
            await broker.start()
        assert await ends(broker) == []

    run(scenario)
    assert "COMMIT of message" in caplog.text
    assert "will ask the checker" in caplog.text


def test_transactions_cannot_be_delayed_or_entered_twice() -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        with pytest.raises(UsageError, match="cannot be delayed"):
            producer.transaction(OutgoingMessage(topic="t", body=b"x", delay_level=3))
        tx = producer.transaction("t", b"x")
        with pytest.raises(UsageError, match="has not begun"):
            _ = tx.id
        async with tx:
            pass
        with pytest.raises(UsageError, match="has begun already"):
            async with tx:
                pass
        with pytest.raises(UsageError, match="empty body"):
            async with producer.transaction("t", b""):
                pass
        assert len(cluster.brokers[0].kept) == 1

    run(scenario)


def test_a_namespace_is_on_topic_and_group() -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        cluster.topics = {"ns%t": cluster.brokers}
        (broker,) = cluster.brokers
        async with producer.transaction("t", b"x"):
            pass
        (end,) = await ends(broker)
        assert (end.producer_group, end.topic) == ("ns%pay", "ns%t")
        assert broker.kept[0].properties["PGROUP"] == "ns%pay"
        ask(broker)
        assert [header.producer_group for header in await ends(broker)] == ["ns%pay"] * 2

    seen: list[str] = []

    async def check(message: Message) -> TxState:
        seen.append(message.topic)
        return TxState.COMMIT

    run(scenario, namespace="ns", checker=check)
    assert seen == ["t"]


def test_cancelled_anywhere_it_leaves_the_producer_as_it_was() -> None:
    """Whatever moment it is: no send is left under way, no key stays taken, and the broker is told nothing that did not
    happen."""

    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        finished: set[str] = set()

        async def work() -> None:
            async with producer.transaction("t", b"x", sharding_key="k") as tx:
                await asyncio.sleep(0.002)
                finished.add(tx.id)

        moments = [number * 0.0002 for number in range(60)]
        for moment in moments:
            task = asyncio.ensure_future(work())
            await asyncio.sleep(moment)
            task.cancel()
            await asyncio.wait([task])
            assert producer.in_flight == 0
        assert (await producer.send("t", b"y", sharding_key="k", timeout=1)).offset == len(broker.kept)
        halves = {kept.properties["UNIQ_KEY"] for kept in broker.kept}
        assert 0 < len(finished) < len(halves) <= len(moments) + 1
        for header in await ends(broker):
            assert header.msg_id in halves
            assert header.commit_or_rollback == (8 if header.msg_id in finished else 0)

    run(scenario)


# -- as Java has it


@pytest.mark.parametrize("state", list(TxState))
def test_send_in_transaction_tells_what_the_local_transaction_returns(state: TxState) -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        async def local(tx: Transaction) -> TxState:
            assert tx.id == cluster.brokers[0].kept[0].properties["UNIQ_KEY"]
            return state

        result = await producer.send_in_transaction("t", b"x", local=local)
        assert result.state is state
        assert [header.commit_or_rollback for header in await ends(cluster.brokers[0])] == [state.value]

    run(scenario)


def test_a_local_transaction_that_fails_or_talks_nonsense_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        async def fails(tx: Transaction) -> TxState:
            raise ValueError("database away")

        async def nonsense(tx: Transaction) -> TxState:
            return "COMMIT"  # type: ignore[return-value]

        for local in (fails, nonsense):
            result = await producer.send_in_transaction("t", b"x", local=local)
            assert result.state is TxState.UNKNOWN
        assert [header.commit_or_rollback for header in await ends(cluster.brokers[0])] == [0, 0]
        assert "database away" in str(cluster.brokers[0].ends[0][1])

    run(scenario)
    assert "is not a TxState" in caplog.text


# -- check-back


def ask(broker: FakeBroker, *, number: int = 0, at: tuple[int, int] = (70, 7000), times: int = 1) -> None:
    """The broker asks for its ``number``th half message, of which it has made a copy at ``at`` since."""
    half = broker.kept[number]
    header = CheckTransactionStateRequestHeader(
        at[0], at[1], half.properties["UNIQ_KEY"], half.properties["UNIQ_KEY"], "F" * 32, half.header.topic
    )
    record = broker.record(half, queue_offset=at[0], physical_offset=at[1])
    for _ in range(times):
        command = RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header, body=record, oneway=True)
        half.connection.oneway(command)


@pytest.mark.parametrize("state", list(TxState))
def test_the_checker_answers_with_the_offsets_it_was_asked_with(state: TxState) -> None:
    asked: list[Message] = []

    async def check(message: Message) -> TxState:
        asked.append(message)
        return state

    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        body = b"long " * 1000
        async with producer.transaction("t", body, keys=["p-1"], tag="x") as tx:
            tx.leave_unknown()
        await ends(broker)
        broker.ends.clear()
        ask(broker)
        expected = EndTransactionRequestHeader("pay", 70, 7000, state.value, tx.id, True, tx.id, "t")
        assert await ends(broker) == [expected]
        (message,) = asked
        assert (message.topic, message.body, message.keys, message.tag) == ("t", body, ["p-1"], "x")
        assert (message.msg_id, message.queue) == (tx.id, tx.receipt.queue if tx.receipt else None)
        assert message.settled
        assert not await message.ack()
        with pytest.raises(UsageError, match="nothing to settle"):
            await message.retry()

    run(scenario, checker=check)


def no_such_payment(message: Message) -> Awaitable[TxState]:  # a plain function, run beside the loop
    raise KeyError("no such payment")


async def cancelled_elsewhere(message: Message) -> TxState:
    answer: asyncio.Future[TxState] = asyncio.get_running_loop().create_future()
    answer.cancel("no such payment")
    return await answer


@pytest.mark.parametrize("check", [no_such_payment, cancelled_elsewhere])
def test_a_checker_that_fails_does_not_know_and_says_why(
    check: Callable[[Message], Awaitable[TxState]], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        async with producer.transaction("t", b"x") as tx:
            tx.leave_unknown()
        await ends(broker)
        broker.ends.clear()
        ask(broker)
        assert [header.commit_or_rollback for header in await ends(broker)] == [0]
        assert "no such payment" in str(broker.ends[0][1])

    run(scenario, checker=check)
    assert "the check of transactional message" in caplog.text


def test_checks_run_side_by_side_up_to_a_bound_and_wait_up_to_another() -> None:
    running = most = 0

    async def check(message: Message) -> TxState:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return TxState.COMMIT

    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        async with producer.transaction("t", b"x"):
            pass
        ask(broker, times=15)
        await asyncio.sleep(10)
        assert most == 3
        assert producer.dropped_checks == 5
        assert len(broker.ends) == 11

    run(scenario, checker=check, config=ProducerConfig(check_concurrency=3, max_waiting_checks=10))


def test_another_producer_of_the_group_answers_for_one_that_has_gone() -> None:
    async def main(sim: Simulation) -> None:
        async with FakeCluster(sim) as cluster:
            (broker,) = cluster.brokers
            first_host, second_host = sim.host("10.0.1.1"), sim.host("10.0.1.2")
            first = TransactionProducer("pay", nameservers=NAMES, env=sim.env(), checker=dont_know)
            asked: list[bytes] = []

            async def check(message: Message) -> TxState:
                asked.append(message.body)
                return TxState.COMMIT

            second = TransactionProducer("pay", nameservers=NAMES, env=sim.env(), checker=check)

            async def begin() -> None:
                async with first, first.transaction("t", b"orphan") as tx:
                    tx.leave_unknown()

            await first_host.run(begin())
            await second_host.run(second.start())
            await second_host.run(second.send("t", b"ordinary"))
            await asyncio.sleep(1)
            broker.kept[0].connection = broker.connections[-1]
            broker.ends.clear()
            ask(broker)
            await asyncio.sleep(1)
            assert asked == [b"orphan"]
            assert [header.commit_or_rollback for header, _ in broker.ends] == [8]
            await second_host.run(second.stop())

    simulate(main)


class Wordless(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__


ODD = [Wordless(), ValueError("\ud800"), ValueError("x" * 20_000_000)]


@pytest.mark.parametrize("error", [*ODD, GeneratorExit()])
def test_whatever_a_checker_raises_the_broker_is_told_that_it_is_unknown(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    caplog.set_level(logging.CRITICAL, "aiorocket.client")  # pytest cannot hand on half a pair from process to process

    async def check(message: Message) -> TxState:
        raise error

    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        async with producer.transaction("t", b"x") as tx:
            tx.leave_unknown()
        await ends(broker)
        ask(broker)
        assert [header.commit_or_rollback for header in await ends(broker)] == [0, 0]
        remark = broker.ends[1][1]
        assert remark is not None and remark.startswith("checker: ") and len(remark) <= 500

    run(scenario, checker=check)


def test_a_question_that_comes_while_a_check_is_cancelled_is_left_to_the_next_round() -> None:
    """It was an error of the handler: nothing could be started any more."""
    asked = 0

    async def check(message: Message) -> TxState:
        nonlocal asked
        asked += 1
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)  # what it needs to let go
        return TxState.COMMIT

    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        async with producer.transaction("t", b"x") as tx:
            tx.leave_unknown()
        ask(broker)
        await asyncio.sleep(1)
        stopping = asyncio.ensure_future(producer.stop())
        await asyncio.sleep(0.5)
        ask(broker)
        await stopping
        assert asked == 1
        assert [header.commit_or_rollback for header in await ends(broker)] == [0]

    run(scenario, checker=check)


@pytest.mark.parametrize("error", ODD)
def test_whatever_ends_a_block_rolls_back(error: Exception) -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        with pytest.raises(type(error)):
            async with producer.transaction("t", b"x"):
                raise error
        assert [header.commit_or_rollback for header in await ends(cluster.brokers[0])] == [12]

    run(scenario)


def test_questions_nobody_can_answer_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        await producer.send("t", b"ordinary")  # no PGROUP
        ask(broker)
        broker.kept[0].connection.oneway(
            RemotingCommand.request(
                RequestCode.CHECK_TRANSACTION_STATE, CheckTransactionStateRequestHeader(1, 1), body=b"rubbish"
            )
        )
        assert await ends(broker) == []
        async with producer.transaction("t", b"x"):
            pass
        assert len(await ends(broker)) == 1

    run(scenario)
    assert "which is none here" in caplog.text


# -- life


async def test_a_checker_is_mandatory_and_there_is_one() -> None:
    producer = TransactionProducer("pay", nameservers=NAMES, env=memory_env())
    with pytest.raises(UsageError, match=r"no checker: decorate a function with @producer.checker"):
        await producer.start()
    producer.checker(dont_know)
    with pytest.raises(UsageError, match="has a checker already"):
        producer.checker(dont_know)
    with pytest.raises(UsageError, match="must be a function"):
        TransactionProducer("pay", nameservers=NAMES, env=memory_env(), checker=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not started"):
        async with producer.transaction("t", b"x"):
            pass
    await producer.start()
    await producer.stop()


def test_stopping_cancels_checks_that_run() -> None:
    started = cancelled = 0

    async def check(message: Message) -> TxState:
        nonlocal started, cancelled
        started += 1
        try:
            await asyncio.sleep(1000)
        finally:
            cancelled += 1
        return TxState.COMMIT

    async def scenario(cluster: FakeCluster, producer: TransactionProducer) -> None:
        (broker,) = cluster.brokers
        async with producer.transaction("t", b"x"):
            pass
        ask(broker, times=3)
        await asyncio.sleep(1)

    run(scenario, checker=check)
    assert (started, cancelled) == (3, 3)
