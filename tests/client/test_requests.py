"""What brokers ask of a client, asked through a real broker where it passes the question on, and by hand where the form
of a body matters."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from aiorocket import (
    Client,
    ClientConfig,
    Consumer,
    ConsumerConfig,
    DeadLetter,
    Embedded,
    Message,
    PullConsumerConfig,
    Retry,
    Router,
    embed,
)
from aiorocket.client.answering.consumer_requests import ResetOffsetBody, handlers
from aiorocket.client.answering.running_info import task_dump
from aiorocket.client.push.status import ConsumeConcurrentlyStatus, ConsumeOrderlyContext, ConsumeOrderlyStatus
from aiorocket.client.session import HasSession
from aiorocket.config import RemotingConfig
from aiorocket.model import Queue
from aiorocket_protocol import (
    MSGPACK,
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    MessageQueue,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    ResetOffsetRequestHeader,
    decode_body,
    encode_body,
    fastjson,
)

JSON = 0


@pytest_asyncio.fixture
async def mq() -> AsyncIterator[Embedded]:
    async with embed() as embedded:
        await embedded.create_topic("orders", queues=2)
        yield embedded


@dataclass
class Asker:
    """The other end of a connection, as far as handlers look at it."""

    kind: int = JSON
    peer: str = "10.0.0.9:10911"
    answers: list[RemotingCommand] = field(default_factory=list)

    def reply_type(self, command: RemotingCommand) -> int:
        return self.kind


async def ask(client: HasSession, code: int, header: Any, body: bytes = b"", kind: int = JSON) -> RemotingCommand:
    """The client's own answer."""
    session = client.session
    found: Any = handlers(session.consumers, session.config, session.env.clock, session._scope)[code]
    # As it comes from the wire: its header is read from text.
    command = RemotingCommand.request(code, header, body=body)
    answer = found(Asker(kind), command)
    return cast("RemotingCommand", await answer if asyncio.iscoroutine(answer) else answer)


class Plain(dict[str, Any]):
    def to_plain(self) -> dict[str, Any]:
        return self

    @classmethod
    def from_plain(cls, value: Any) -> Plain:
        return cls(value)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def queues_of(table: dict[Any, Any]) -> dict[Queue, Any]:
    return {Queue(*MessageQueue.from_plain(key)): value for key, value in table.items()}


@pytest.mark.parametrize("serializer", ["auto", "json"])
async def test_running_info_through_the_broker(mq: Embedded, serializer: Any) -> None:
    seen: list[bytes] = []
    release = asyncio.Event()
    consumer = mq.consumer("billing", config=ConsumerConfig(concurrency=3, max_attempts=5))

    @consumer.listener("orders", tags="paid || late", start_from="first")
    async def on_order(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"stuck":
            await release.wait()

    config = ClientConfig(nameservers=mq.nameservers, remoting=RemotingConfig(serializer=serializer))
    async with consumer, mq.producer() as producer, Client(config=config) as admin:
        for body in (b"1", b"2", b"stuck"):
            await producer.send("orders", body, tag="paid")
        await until(lambda: len(seen) == 3)
        consumer.stats.sample(asyncio.get_running_loop().time())
        route = await admin.session.route("orders")
        (address,) = route.all_addresses()
        header = GetConsumerRunningInfoRequestHeader("billing", consumer.client.client_id, True)
        answer = await admin.session.call(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        info = decode_body(Plain, answer.body, answer.serialize_type)

        properties = info["properties"]
        assert properties["PROP_CONSUMEORDERLY"] == "false"
        assert properties["PROP_NAMESERVER_ADDR"] == mq.nameserver_address + ";"
        assert int(properties["PROP_CONSUMER_START_TIMESTAMP"]) > 1_600_000_000_000
        options = ("consumeThreadMin", "consumeThreadMax", "maxReconsumeTimes", "consumeTimeout", "messageModel")
        assert [properties[name] for name in options] == ["3", "3", "4", "15", "CLUSTERING"]
        assert properties["pullThresholdSizeForQueue"] == "100"
        assert (properties["pullThresholdSizeForTopic"], properties["rebalanceInterval"]) == ("-1", "20.0")
        # Each option is there, by Java's name or by ours.
        assert len(properties) >= len(dataclasses.fields(ConsumerConfig)) + 9
        assert {each["topic"] for each in info["subscriptionSet"]} == {"orders", "%RETRY%billing"}

        table = queues_of(info["mqTable"])
        assert set(table) == set(consumer.held())
        stuck = next(each for each in table.values() if each["cachedMsgCount"])
        assert stuck["cachedMsgMinOffset"] == stuck["commitOffset"] == stuck["cachedMsgMaxOffset"]
        assert (stuck["droped"], stuck["locked"]) == (False, False)
        assert abs(stuck["lastPullTimestamp"] - consumer.client.env.clock.wall_ms()) < 10_000

        status = info["statusTable"]["orders"]
        assert set(status) == {
            "pullRT", "pullTPS", "consumeRT", "consumeOKTPS", "consumeFailedTPS", "consumeFailedMsgs"
        }  # fmt: skip
        assert status["consumeOKTPS"] == pytest.approx(0.2)
        # What the stuck handler waits for can be read from the dump, as from a thread dump.
        assert "on_order(test_requests.py:" in info["jstack"]
        assert "Event.wait(" in info["jstack"]
        release.set()
        await until(lambda: consumer.state().counters.consumed == 3)


async def test_who_is_not_here_is_said(mq: Embedded) -> None:
    async with Client(nameservers=mq.nameservers) as client:
        for code, header in (
            (RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequestHeader("nobody", "x")),
            (RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeMessageDirectlyResultRequestHeader("nobody")),
            (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ResetOffsetRequestHeader("t", "nobody", -1, True)),
        ):
            answer = await ask(client, code, header)
            assert (answer.code, answer.remark) == (1, "The Consumer Group <nobody> not exist in this consumer")
        answer = await ask(client, 221, GetConsumerStatusRequestHeader("t", "nobody"))
        assert fastjson.loads(answer.body) == {"consumerTable": {}, "messageQueueTable": {}}


@pytest.mark.parametrize("kind", [JSON, MSGPACK])
async def test_consumer_status_is_where_the_member_is(mq: Embedded, kind: int) -> None:
    consumer = mq.consumer("billing")
    seen: list[Message] = []

    @consumer.listener("orders", start_from="first")
    async def on_order(message: Message) -> None:
        seen.append(message)

    async with consumer, mq.producer() as producer:
        receipts = [await producer.send("orders", b"x") for _ in range(5)]
        await until(lambda: consumer.state().counters.consumed == 5)
        answer = await ask(consumer.client, 221, GetConsumerStatusRequestHeader("orders", "billing"), kind=kind)
        table = queues_of(decode_body(Plain, answer.body, kind)["messageQueueTable"])
        wanted = {queue: sum(receipt.queue == queue for receipt in receipts) for queue in consumer.held()}
        assert table == {queue: count for queue, count in wanted.items() if queue.topic == "orders"}


@pytest.mark.parametrize(
    ("body", "result", "remark"),
    [
        (b"fine", "CR_SUCCESS", None),
        (b"retry", "CR_LATER", "retry (after=5, delay_level=None)"),
        (b"dead", "CR_LATER", "hopeless"),
        (b"broken", "CR_THROW_EXCEPTION", "ValueError: broken"),
        (b"slow", "CR_THROW_EXCEPTION", "TimeoutError"),
        (b"by hand", "CR_SUCCESS", None),
    ],
)
async def test_consume_directly_through_the_broker(mq: Embedded, body: bytes, result: str, remark: str | None) -> None:
    async with mq.producer() as producer:
        receipt = await producer.send("orders", body, tag="paid", keys=["o-1"])
    consumer = mq.consumer("billing")
    seen: list[tuple[str, bytes, str, list[str], Queue]] = []

    @consumer.listener("orders", tags="paid", timeout=0.2)
    async def on_order(message: Message) -> None:
        seen.append((message.topic, message.body, message.tag, message.keys, message.queue))
        if message.body == b"retry":
            raise Retry(after=5)
        if message.body == b"dead":
            raise DeadLetter("hopeless")
        if message.body == b"broken":
            raise ValueError("broken")
        if message.body == b"slow":
            await asyncio.sleep(60)
        if message.body == b"by hand":
            assert message.settled
            assert not await message.ack()
            assert not await message.retry()

    consumer.pause("orders")  # what it gets, it gets from the administrator
    async with consumer, Client(nameservers=mq.nameservers) as admin:
        (address,) = (await admin.session.route("orders")).all_addresses()
        before = consumer.state()
        header = ConsumeMessageDirectlyResultRequestHeader(
            "billing", consumer.client.client_id, receipt.offset_msg_id, receipt.queue.broker_name
        )
        answer = await admin.session.call(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        told = decode_body(Plain, answer.body, answer.serialize_type)
        assert (told["consumeResult"], told["order"], told["autoCommit"]) == (result, False, True)
        assert (told["remark"] is None) if remark is None else (remark in told["remark"])
        assert told["spentTimeMills"] >= (200 if body == b"slow" else 0)
        assert seen == [("orders", body, "paid", ["o-1"], receipt.queue)]
        # Nothing was settled: no retry, no dead letter, no offset.
        await asyncio.sleep(0.1)
        after = consumer.state()
        assert (after.counters, after.cached) == (before.counters, before.cached)
        assert [each.committed for each in after.queues] == [each.committed for each in before.queues]


async def direct(mq: Embedded, register: Callable[[Consumer], None], body: bytes = b"x") -> dict[str, Any]:
    """What the listener that ``register`` makes says of a stored message."""
    consumer = mq.consumer("direct")
    register(consumer)
    consumer.pause("orders")
    async with mq.producer() as producer, mq.consumer("reader") as reader:
        await reader.subscribe("orders", start_from="first")
        await producer.send("orders", body)
        async for message in reader.messages():
            record = message.buffer[message.start : message.end]
            await message.ack()
            break
    async with consumer:
        header = ConsumeMessageDirectlyResultRequestHeader("direct", broker_name="b")
        answer = await ask(consumer.client, 309, header, record)
        assert answer.code == 0, answer.remark
        told: dict[str, Any] = fastjson.loads(answer.body)
        return told


async def test_consume_directly_of_other_kinds_of_listeners(mq: Embedded) -> None:
    Status = ConsumeConcurrentlyStatus

    def status(value: object, **context: Any) -> Callable[[Consumer], None]:
        async def handler(messages: Any, ctx: Any) -> object:
            assert ctx.queue.broker_name == "b"
            for name, each in context.items():
                setattr(ctx, name, each)
            return value

        def register(consumer: Consumer) -> None:
            consumer.listener("orders")(handler)

        return register

    async def failing_batch(batch: Any) -> None:
        batch.fail([0], retry_after=1)

    async def batch(batch: Any) -> None:
        assert batch.bodies() == [b"x"]

    def plain(message: Message) -> None:
        assert message.body == b"x"

    async def cancelled(message: Message) -> None:
        raise asyncio.CancelledError

    async def several(messages: list[Message]) -> None:
        assert [message.body for message in messages] == [b"x"]

    cases: list[tuple[Callable[[Consumer], Any], str]] = [
        (status(Status.CONSUME_SUCCESS), "CR_SUCCESS"),
        (status(Status.CONSUME_SUCCESS, ack_index=-1), "CR_LATER"),
        (status(Status.RECONSUME_LATER), "CR_LATER"),
        (status(None), "CR_RETURN_NULL"),
        (status("what"), "CR_THROW_EXCEPTION"),
        (lambda consumer: consumer.listener("orders")(cancelled), "CR_THROW_EXCEPTION"),
        (lambda consumer: consumer.batch("orders")(batch), "CR_SUCCESS"),
        (lambda consumer: consumer.batch("orders")(failing_batch), "CR_LATER"),
        (lambda consumer: consumer.listener("orders", batch_size=8)(several), "CR_SUCCESS"),
        (lambda consumer: consumer.listener("orders", order_by=lambda message: 1)(cast("Any", plain)), "CR_SUCCESS"),
    ]
    for register, result in cases:
        assert (await direct(mq, register))["consumeResult"] == result


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (ConsumeOrderlyStatus.SUCCESS, "CR_SUCCESS"),
        (ConsumeOrderlyStatus.COMMIT, "CR_COMMIT"),
        (ConsumeOrderlyStatus.ROLLBACK, "CR_ROLLBACK"),
        (ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, "CR_LATER"),
        (None, "CR_RETURN_NULL"),
        ("what", "CR_THROW_EXCEPTION"),
    ],
)
async def test_consume_directly_of_an_orderly_listener(mq: Embedded, status: object, result: str) -> None:
    router = Router()

    @router.orderly("orders")
    async def on_orders(messages: list[Message], context: ConsumeOrderlyContext) -> object:
        assert [message.body for message in messages] == [b"x"]
        context.auto_commit = False
        return status

    told = await direct(mq, lambda consumer: consumer.include(router))
    assert (told["consumeResult"], told["order"]) == (result, True)
    assert told["autoCommit"] is False
    assert (status == "what") is ("returned 'what': a ConsumeOrderlyStatus" in (told["remark"] or ""))


async def test_consume_directly_without_a_listener_or_with_rubbish(mq: Embedded) -> None:
    consumer = mq.consumer("direct")

    @consumer.listener("orders")
    async def on_order(message: Message) -> None:
        """Never called."""

    async with consumer:
        with pytest.raises(ProtocolError):
            await ask(consumer.client, 309, ConsumeMessageDirectlyResultRequestHeader("direct"), b"rubbish" * 20)
        with pytest.raises(ProtocolError, match="one record"):
            await ask(consumer.client, 309, ConsumeMessageDirectlyResultRequestHeader("direct"), b"")


@pytest.mark.parametrize("form", ["objects as keys", "list", "text as keys"])
async def test_a_reset_begins_again_backwards_and_forwards(mq: Embedded, form: str) -> None:
    consumer = mq.consumer("billing", config=ConsumerConfig(offset_illegal_delay=0.05))
    seen: list[tuple[int, int]] = []

    @consumer.listener("orders", start_from="first")
    async def on_order(message: Message) -> None:
        seen.append((message.queue.queue_id, message.offset))

    async with consumer, mq.producer() as producer:
        first, other = (queue for queue in consumer.held() if queue.topic == "orders")
        for queue in (first, other):
            for _ in range(4):
                await producer.send("orders", b"x", queue=queue)
        await until(lambda: len(seen) == 8)
        seen.clear()
        wanted = {first: 1, other: 4, Queue("elsewhere", "b", 0): 7}
        kind = JSON
        if form == "list":
            body = fastjson.dumps(ResetOffsetBody(wanted).to_plain())
        elif form == "objects as keys":
            body = fastjson.dumps({"offsetTable": {MessageQueue(*queue): offset for queue, offset in wanted.items()}})
        else:
            text = {fastjson.dumps(MessageQueue(*queue).to_plain()).decode(): value for queue, value in wanted.items()}
            body = fastjson.dumps({"offsetTable": text})
        header = ResetOffsetRequestHeader("orders", "billing", 0, True)
        assert (await ask(consumer.client, 220, header, body, kind)).code == 0
        await until(lambda: len(seen) == 3)
        assert sorted(seen) == [(first.queue_id, offset) for offset in (1, 2, 3)]
        await producer.send("orders", b"x", queue=other)
        await until(lambda: len(seen) == 4)
        assert seen[3] == (other.queue_id, 4)


@pytest.mark.parametrize("kind", [JSON, MSGPACK])
async def test_a_pull_consumer_tells_how_far_it_is(mq: Embedded, kind: int) -> None:
    async with mq.producer() as producer:
        for number in range(6):
            await producer.send("orders", b"%d" % number, sharding_key="one queue")
    async with mq.pull_consumer("etl", config=PullConsumerConfig(max_cached_messages_total=77)) as consumer:
        await consumer.subscribe("orders", start_from="first")
        taken = await consumer.fetch(4)
        await consumer.commit(taken[:3])
        (busy,) = {message.queue for message in taken}
        header = GetConsumerRunningInfoRequestHeader("etl", consumer.client.client_id, False)
        answer = await ask(consumer.client, 307, header, kind=kind)
        info = decode_body(Plain, answer.body, kind)
        properties = info["properties"]
        names = ("PROP_CONSUME_TYPE", "PROP_CONSUMEORDERLY", "messageModel", "pullThresholdForAll", "pullBatchSize")
        assert [properties[name] for name in names] == ["CONSUME_ACTIVELY", "false", "CLUSTERING", "77", "512"]
        assert abs(int(properties["PROP_CONSUMER_START_TIMESTAMP"]) - mq.env.clock.wall_ms()) < 60_000
        assert len(properties) >= len(dataclasses.fields(PullConsumerConfig)) + 9
        assert ([each["topic"] for each in info["subscriptionSet"]], info["statusTable"]) == (["orders"], {})
        table = queues_of(info["mqTable"])
        assert set(table) == set(consumer.assignment())
        wanted = {"cachedMsgCount": 2, "cachedMsgMinOffset": 4, "cachedMsgMaxOffset": 5, "commitOffset": 3}
        assert {name: table[busy][name] for name in wanted} == wanted
        assert (table[busy]["droped"], table[busy]["locked"]) == (False, False)
        assert {value["cachedMsgCount"] for queue, value in table.items() if queue != busy} == {0}

        answer = await ask(consumer.client, 221, GetConsumerStatusRequestHeader("orders", "etl"), kind=kind)
        status = queues_of(decode_body(Plain, answer.body, kind)["messageQueueTable"])
        assert status == {queue: 3 if queue == busy else 0 for queue in consumer.assignment()}
        # It has no listener that could consume a message directly.
        answer = await ask(consumer.client, 309, ConsumeMessageDirectlyResultRequestHeader("etl"))
        assert (answer.code, answer.remark) == (1, "The Consumer Group <etl> not exist in this consumer")


async def test_a_pushed_reset_sets_the_positions_of_a_pull_consumer() -> None:
    async with embed(broker={"server_side_reset_offset": False}) as mq:
        await mq.create_topic("orders", queues=1)
        async with mq.producer() as producer, mq.pull_consumer("etl") as consumer, mq.client() as admin:
            await consumer.subscribe("orders", start_from="first")
            (queue,) = consumer.assignment()
            before = mq.env.clock.wall_ms() - 60_000
            for number in range(5):
                await producer.send("orders", b"%d" % number)
            taken: list[Message] = []
            while len(taken) < 5:
                taken += await consumer.fetch()
            await consumer.commit()
            assert (consumer.committed(queue), consumer.position(queue)) == (5, 5)

            # Back to where its time says, with a pull on its way.
            (address,) = (await admin.session.route("orders")).all_addresses()
            header = ResetOffsetRequestHeader("orders", "etl", before, True)
            await admin.session.call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            await until(lambda: consumer.committed(queue) == 0)
            assert mq.broker.offsets.query("etl", "orders", 0) == 0
            assert [message.offset for message in await consumer.fetch(3)] == [0, 1, 2]
            # What the application took before counts as far as it was taken again.
            await consumer.commit(taken)
            assert consumer.committed(queue) == 3

            # And forwards: what is cached is not handed out.
            body = fastjson.dumps(ResetOffsetBody({queue: 5, Queue("elsewhere", "b", 0): 7}).to_plain())
            assert (await ask(consumer.client, 220, ResetOffsetRequestHeader("orders", "etl", 0, True), body)).code == 0
            await until(lambda: consumer.committed(queue) == 5)
            assert await consumer.fetch(timeout=0.05) == []
            await producer.send("orders", b"news")
            assert [message.offset for message in await consumer.fetch(timeout=30)] == [5]
        assert mq.broker.offsets.query("etl", "orders", 0) == 5


async def test_in_a_namespace_brokers_ask_with_the_names_they_know() -> None:
    config = ClientConfig(namespace="one")
    async with embed(broker={"server_side_reset_offset": False}) as mq:
        for topic in ("one%orders", "orders"):
            await mq.create_topic(topic, queues=1)
        seen: list[tuple[str, str, bytes]] = []
        async with mq.client(config=config) as client, mq.client() as admin, client.producer("p") as producer:
            consumer = client.consumer("billing", config=ConsumerConfig(offset_illegal_delay=0.05))

            @consumer.listener("orders", start_from="first")
            async def on_order(message: Message) -> None:
                seen.append((message.topic, message.queue.topic, message.body))

            before = mq.env.clock.wall_ms() - 60_000
            receipt = await producer.send("orders", b"x")
            assert receipt.queue.topic == "orders"
            async with consumer:
                await until(lambda: consumer.state().counters.consumed == 1)
                await consumer.commit()
                (address,) = (await admin.session.route("one%orders")).all_addresses()
                queue = Queue("one%orders", receipt.queue.broker_name, 0)

                async def call(code: int, header: Any) -> Plain:
                    answer = await admin.session.call(address, code, header)
                    return decode_body(Plain, answer.body, answer.serialize_type)

                info = await call(307, GetConsumerRunningInfoRequestHeader("one%billing", client.client_id, False))
                assert set(queues_of(info["mqTable"])) == {queue, Queue("%RETRY%one%billing", queue.broker_name, 0)}
                assert {each["topic"] for each in info["subscriptionSet"]} == {"one%orders", "%RETRY%one%billing"}
                assert (info["properties"]["consumerGroup"], info["properties"]["namespace"]) == ("one%billing", "one")

                status = await call(223, GetConsumerStatusRequestHeader("one%orders", "one%billing"))
                (offsets,) = status["consumerTable"].values()
                assert queues_of(offsets) == {queue: 1}

                direct = ConsumeMessageDirectlyResultRequestHeader(
                    "one%billing", client.client_id, receipt.offset_msg_id, queue.broker_name
                )
                assert (await call(309, direct))["consumeResult"] == "CR_SUCCESS"
                assert seen == [("orders", "orders", b"x")] * 2

                header = ResetOffsetRequestHeader("one%orders", "one%billing", before, True)
                assert queues_of((await call(222, header))["offsetTable"]) == {queue: 0}
                await until(lambda: len(seen) == 3)
                assert seen[2] == ("orders", "orders", b"x")


async def test_a_reset_counts_while_a_start_still_waits_for_another_topic(mq: Embedded) -> None:
    seen: list[int] = []
    consumer = mq.consumer("billing", config=ConsumerConfig(offset_illegal_delay=0.05))
    for topic in ("orders", "late"):

        @consumer.listener(topic, start_from="first", missing_topics="error")
        async def on_order(message: Message) -> None:
            seen.append(message.offset)

    async with mq.producer() as producer:
        queue = (await producer.send("orders", b"x")).queue
        starting = asyncio.create_task(consumer.start())
        await until(lambda: seen == [0])
        body = fastjson.dumps(ResetOffsetBody({queue: 0}).to_plain())
        header = ResetOffsetRequestHeader("orders", "billing", 0, True)
        assert (await ask(consumer.client, 220, header, body)).code == 0
        await until(lambda: seen == [0, 0])
        assert not starting.done()
        await mq.create_topic("late", queues=1)
        await starting
        await consumer.stop()


Offsets = st.dictionaries(
    st.builds(Queue, st.text(min_size=1), st.text(min_size=1), st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1)
)


@given(Offsets)
def test_both_forms_of_a_reset_say_the_same(table: dict[Queue, int]) -> None:
    assert ResetOffsetBody.from_plain(ResetOffsetBody(table).to_plain()) == table
    keyed = {"offsetTable": {MessageQueue(*queue): offset for queue, offset in table.items()}}
    assert decode_body(ResetOffsetBody, encode_body(keyed, JSON), JSON) == table


@pytest.mark.parametrize(
    "plain",
    [
        {},
        [],
        {"offsetTable": 1},
        {"offsetTable": [1]},
        {"offsetTable": {"{}": 1}},
        {"offsetTable": {"x": "y"}},
        {"offsetTable": [{"topic": "t", "brokerName": "b", "queueId": 0}]},
    ],
)
def test_a_malformed_reset_is_refused(plain: Any) -> None:
    with pytest.raises(ProtocolError):
        ResetOffsetBody.from_plain(plain)


async def test_the_dump_follows_what_is_awaited() -> None:
    async def inner() -> None:
        await asyncio.sleep(60)

    async def outer(wait: Callable[[], Awaitable[None]]) -> None:
        await wait()

    task = asyncio.create_task(outer(inner), name="the waiting one")
    await asyncio.sleep(0)
    dump = task_dump().splitlines()
    at = dump.index("the waiting one")
    assert "outer(test_requests.py:" in dump[at + 1]
    assert "inner(test_requests.py:" in dump[at + 2]
    assert "sleep(tasks.py:" in dump[at + 3]
    task.cancel()
    await asyncio.wait([task])
