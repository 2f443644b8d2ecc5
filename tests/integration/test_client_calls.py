"""Looking into a running consumer, as RocketMQ's documentation tells it (mqadmin's consumerStatus, getConsumerStatus,
consumeMessageDirectly): an administrator asks a broker, the broker asks the consumer, and the answer is the consumer's
own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiorocket import Consumer, Embedded, Message, Queue, RemoteError, embed
from aiorocket_protocol import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    MessageQueue,
    RequestCode,
    ResponseCode,
    decode_body,
)

Until = Callable[[Callable[[], bool]], Awaitable[None]]


class Answer(dict[str, Any]):
    """The body of an answer, as it is."""

    def to_plain(self) -> dict[str, Any]:
        return self

    @classmethod
    def from_plain(cls, value: Any) -> Answer:
        return cls(value)


async def ask(mq: Embedded, code: int, header: Any) -> Answer:
    """What an administrator's tool sends, and what it shows."""
    async with mq.client() as admin:
        answer = await admin.session.call(mq.broker.address, code, header, timeout=15)
        return decode_body(Answer, answer.body, answer.serialize_type)


def queues(table: dict[Any, Any]) -> dict[Queue, Any]:
    """The keys of RocketMQ's tables of queues are objects."""
    return {Queue(*MessageQueue.from_plain(key)): value for key, value in table.items()}


def billing(mq: Embedded, paid: list[bytes], wait: asyncio.Event) -> Consumer:
    consumer = mq.consumer("billing")

    @consumer.listener("orders", tags="paid", start_from="first")
    async def bill(message: Message) -> None:
        if message.body == b"slow":
            await wait.wait()
        paid.append(message.body)

    return consumer


async def test_what_a_consumer_is_doing(mq: Embedded, until: Until) -> None:
    """Its options, its subscriptions, how far each queue is, and where a listener hangs."""
    await mq.create_topic("orders", queues=1)
    paid: list[bytes] = []
    wait = asyncio.Event()
    async with billing(mq, paid, wait) as consumer, mq.producer("shop") as shop:
        for body in (b"1", b"2", b"slow"):
            await shop.send("orders", body, tag="paid")
        await until(lambda: consumer.state().in_work == 1 and len(paid) == 2)
        header = GetConsumerRunningInfoRequestHeader("billing", consumer.client.client_id, jstack_enable=True)
        info = await ask(mq, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        assert info["properties"]["consumeThreadMax"] == "16"
        assert {each["topic"]: each["subString"] for each in info["subscriptionSet"]} == {
            "orders": "paid",
            "%RETRY%billing": "*",
        }
        orders = queues(info["mqTable"])[Queue("orders", mq.config.name, 0)]
        assert (orders["commitOffset"], orders["cachedMsgCount"]) == (2, 1)
        # In the place of Java's stacks of threads: what every task waits for.
        assert "bill(test_client_calls.py:" in info["jstack"]
        wait.set()


async def test_how_far_each_member_is(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=2)
    paid: list[bytes] = []
    wait = asyncio.Event()
    async with billing(mq, paid, wait) as one, billing(mq, paid, wait) as two, mq.producer("shop") as shop:
        await until(lambda: all(sum(q.topic == "orders" for q in each.held()) == 1 for each in (one, two)))
        for number in range(6):
            queue = Queue("orders", mq.config.name, number % 2)
            await shop.send("orders", b"%d" % number, tag="paid", queue=queue)
        await until(lambda: len(paid) == 6 and one.state().in_work == two.state().in_work == 0)
        header = GetConsumerStatusRequestHeader("orders", "billing")
        status = await ask(mq, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
        told = {client_id: queues(table) for client_id, table in status["consumerTable"].items()}
        assert told == {
            member.client.client_id: {queue: 3 for queue in member.held() if queue.topic == "orders"}
            for member in (one, two)
        }


async def test_one_message_to_one_consumer_now(mq: Embedded) -> None:
    """For a message that somebody wants to see handled, whether it has been already or not. The listener runs, its
    result is told, and nothing else changes: no offset, no retry."""
    await mq.create_topic("orders", queues=1)
    paid: list[bytes] = []
    consumer = billing(mq, paid, asyncio.Event())
    async with mq.producer("shop") as shop:
        receipt = await shop.send("orders", b"7", tag="paid")
    consumer.pause()
    async with consumer:
        header = ConsumeMessageDirectlyResultRequestHeader(
            "billing", consumer.client.client_id, receipt.offset_msg_id, mq.config.name
        )
        result = await ask(mq, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        assert (result["consumeResult"], result["order"]) == ("CR_SUCCESS", False)
        assert paid == [b"7"]
        assert mq.broker.offsets.query("billing", "orders", 0) in (None, 0)


async def test_who_does_not_answer_and_who_is_not_there() -> None:
    """A broker waits ten seconds for a client (this one: a moment); of a client it does not know it says so at once."""
    async with embed(broker={"client_call_timeout": 0.1}) as mq:
        await mq.create_topic("orders", queues=1)
        async with mq.producer("shop") as shop:
            receipt = await shop.send("orders", b"slow", tag="paid")
        wait = asyncio.Event()
        consumer = billing(mq, [], wait)
        consumer.pause()
        async with consumer:
            header = ConsumeMessageDirectlyResultRequestHeader(
                "billing", consumer.client.client_id, receipt.offset_msg_id
            )
            with pytest.raises(RemoteError) as caught:
                await ask(mq, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
            assert caught.value.code == ResponseCode.CONSUME_MSG_TIMEOUT
            wait.set()
            with pytest.raises(RemoteError, match="<somebody> not online"):
                await ask(mq, RequestCode.CONSUME_MESSAGE_DIRECTLY, header._replace(client_id="somebody"))
