"""Middleware around sends and around calls of listeners: what it sees and changes, in which order, and how it ends."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import aiorocket
from aiorocket import (
    Batch,
    Client,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    DeadLetter,
    Embedded,
    Message,
    Middleware,
    OutgoingMessage,
    Retry,
    Router,
    SendReceipt,
    TxState,
    UsageError,
)


class Stamp(Middleware):
    """Writes its name into properties and bodies, on the way out and in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.receipts: list[SendReceipt] = []

    async def publish(self, messages: list[OutgoingMessage], call_next: Any) -> Any:
        self.receipts += await call_next(
            [
                dataclasses.replace(
                    each, body=each.body + self.name.encode(), properties={**each.properties, f"by-{self.name}": "1"}
                )
                for each in messages
            ]
        )

    async def consume(self, messages: list[Message], call_next: Any) -> Any:
        for message in messages:
            message.body += self.name.upper().encode()
            message.properties["seen"] = message.properties.get("seen", "") + self.name
        await call_next(messages)


async def test_around_every_way_to_send(rocketmq: Embedded) -> None:
    await rocketmq.create_topic("t", queues=1)
    a, b = Stamp("a"), Stamp("b")
    async with (
        Client(nameservers=rocketmq.nameserver_address, group="g", middleware=[a]) as client,
        aiorocket.Producer("p", client=client, middleware=[b]) as producer,
        aiorocket.TransactionProducer("x", client=client, checker=lambda _: TxState.COMMIT) as transactions,
    ):
        receipts = [await client.send("t", b"1"), await producer.send("t", b"2", sharding_key="k")]
        receipts += await producer.send_batch("t", [b"3", OutgoingMessage(topic="t", body=b"4", tag="x")])
        receipts.append(await producer.send("t", b"5", select=lambda queues, message, arg: queues[arg], arg=0))
        async for outcome in producer.send_many("t", [b"6"]):
            assert outcome.receipt is not None
            receipts.append(outcome.receipt)
        async with transactions.transaction("t", b"7") as transaction:
            assert transaction.receipt is not None
            receipts.append(transaction.receipt)
        assert a.receipts == receipts and b.receipts == receipts[1:6]
        ids = [await client.send_oneway("t", b"8"), await producer.send_oneway("t", b"9", sharding_key="k")]
        assert a.receipts == receipts
        assert (await producer.send_batch("t", [])) == []
        async with asyncio.timeout(30):
            while len(rocketmq.messages("t")) < 9:  # nobody acknowledges the last ones
                await asyncio.sleep(0.01)
        stored = {each.body: each for each in rocketmq.messages("t")}
        assert sorted(stored) == [b"1a", b"2ab", b"3ab", b"4ab", b"5ab", b"6ab", b"7a", b"8a", b"9ab"]
        assert stored[b"4ab"].tag == "x" and stored[b"4ab"].properties["by-b"] == "1"
        assert [stored[b"8a"].msg_id, stored[b"9ab"].msg_id] == ids


class Refusing(Middleware):
    def __init__(self, what: str) -> None:
        self.what = what

    async def publish(self, messages: list[OutgoingMessage], call_next: Any) -> Any:
        if self.what == "raise":
            raise PermissionError("not today")
        if self.what == "more":
            await call_next(messages * 2)
        if self.what == "other":
            await call_next([dataclasses.replace(each, topic="u") for each in messages])


@pytest.mark.parametrize("what", ["raise", "nothing", "more", "other"])
async def test_a_send_that_is_refused(rocketmq: Embedded, what: str) -> None:
    await rocketmq.create_topic("t")
    expected = PermissionError if what == "raise" else UsageError
    async with Client(nameservers=rocketmq.nameserver_address, group="g", middleware=[Refusing(what)]) as client:
        with pytest.raises(expected):
            await client.send("t", b"1")
        with pytest.raises(expected):
            await client.send_oneway("t", b"1")
    assert rocketmq.messages("t") == []


async def test_a_request_passes_on_its_way_and_at_its_listener(rocketmq: Embedded) -> None:
    await rocketmq.create_topic("t")
    async with Client(nameservers=rocketmq.nameserver_address, group="g", middleware=[Stamp("a")]) as client:
        producer, consumer = client.producer(), client.consumer("c")

        @consumer.listener("t", start_from="first")
        async def answer(message: Message) -> None:
            await producer.reply(message, message.body + b"!")

        async with producer, consumer:
            assert (await producer.request("t", b"1", timeout=20)).body == b"1aA!"


@pytest.mark.parametrize("kind", ["one", "plain", "list", "status", "batch", "keyed", "orderly"])
async def test_around_every_kind_of_listener(rocketmq: Embedded, kind: str) -> None:
    """The client's middleware is outermost, then the consumer's, then the router's; changes are seen by the listener,
    also by the raw attributes that are read from the properties."""
    await rocketmq.create_topic("t", queues=1)
    router, seen = Router("g", middleware=[Stamp("r")]), []

    def see(*messages: Message) -> None:
        assert {each.group for each in messages} == {"g"}
        seen.extend((each.body, each.properties["seen"]) for each in messages)

    if kind == "one":

        @router.listener("t", start_from="first")
        async def one(message: Message) -> None:
            see(message)
    elif kind == "plain":
        router.listener("t", start_from="first")(lambda message: see(message))
    elif kind == "list":

        @router.listener("t", start_from="first", batch_size=4)
        async def several(messages: list[Message]) -> None:
            see(*messages)
    elif kind == "status":

        @router.listener("t", start_from="first")
        async def status(messages: list[Message], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
            see(*messages)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
    elif kind == "batch":

        @router.batch("t", start_from="first")
        async def batch(batch: Batch) -> None:
            see(*batch)
    elif kind == "keyed":

        @router.listener("t", start_from="first", order_by=lambda message: 1)
        async def keyed(message: Message) -> None:
            see(message)
    else:

        @router.orderly("t", start_from="first")
        async def orderly(message: Message) -> None:
            see(message)

    async with (
        Client(nameservers=rocketmq.nameserver_address, middleware=[Stamp("a")]) as client,
        aiorocket.Consumer(client=client, router=router, middleware=[Stamp("b")]),
    ):
        for body in (b"1", b"2"):
            await rocketmq.send("t", body)
        await rocketmq.settled()
    assert seen == [(b"1ABR", "abr"), (b"2ABR", "abr")]
    assert rocketmq.dead_letters("g") == []


class Dropping(Middleware):
    async def consume(self, messages: list[Message], call_next: Any) -> Any:
        if messages[0].body == b"refused":
            raise DeadLetter("of no use")
        if messages[0].body == b"done":
            return
        try:
            await call_next(messages)
        except ValueError as error:
            raise DeadLetter(f"not twice: {error}") from error


async def test_middleware_ends_a_call_as_a_listener_does(rocketmq: Embedded) -> None:
    await rocketmq.create_topic("t", queues=1)
    router, seen = Router("g", middleware=[Dropping()]), []

    @router.listener("t", start_from="first")
    async def listener(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise ValueError("bad")

    async with rocketmq.consumer(router):
        for body in (b"refused", b"done", b"bad", b"good"):
            await rocketmq.send("t", body)
        await rocketmq.settled()
        dead = {each.body: each.properties for each in rocketmq.dead_letters("g")}
    assert sorted(seen) == [b"bad", b"good"] and sorted(dead) == [b"bad", b"refused"]
    rocketmq.assert_committed("g", "t", lag=0)


def test_what_is_not_overridden_is_not_there() -> None:
    """No middleware, and one of the other direction, is no step: the handler itself is called."""
    from aiorocket.client.middleware import consuming, publishing

    class Publishing(Middleware):
        async def publish(self, messages: list[OutgoingMessage], call_next: Any) -> Any:
            return await call_next(messages)

    async def handler(message: Message) -> None: ...

    assert consuming([], handler) is handler and consuming([Publishing()], handler) is handler
    assert publishing([Middleware()]) == () and len(publishing([Publishing()])) == 1


class Unsealing(Middleware):
    """What is sealed begins with "~"."""

    async def consume(self, messages: list[Message], call_next: Any) -> Any:
        for message in messages:
            assert message.body[:1] == b"~", f"{message.body!r} is not sealed"
            message.body = message.body[1:]
            message.properties["tenant"] = "a"
        return await call_next(messages)


@pytest.mark.parametrize("kind", ["orderly", "status", "keyed"])
async def test_a_repetition_begins_with_what_was_sent(rocketmq: Embedded, kind: str) -> None:
    """What is tried again here is not unsealed twice, and nothing of it gets into what the broker stores."""
    await rocketmq.create_topic("t", queues=1)
    router, seen = Router("g", middleware=[Unsealing()]), []

    def see(message: Message) -> None:
        seen.append((message.body, message.properties["tenant"]))
        if message.attempt < 3:
            raise Retry(after=0.01)
        raise DeadLetter

    if kind == "orderly":

        @router.orderly("t", start_from="first")
        async def orderly(message: Message) -> None:
            see(message)
    elif kind == "keyed":

        @router.listener("t", start_from="first", order_by=lambda message: 1, suspend=0.01)
        async def keyed(message: Message) -> None:
            see(message)
    else:

        @router.orderly("t", start_from="first", suspend=0.01)
        async def status(messages: list[Message], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
            try:
                see(messages[0])
            except Retry:
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
            return ConsumeOrderlyStatus.SUCCESS

    async with rocketmq.consumer(router):
        await rocketmq.send("t", b"~1")
        await rocketmq.settled()
        [dead] = rocketmq.dead_letters("g")
    assert seen == [(b"1", "a")] * 3
    assert dead.body == b"~1" and "tenant" not in dead.properties


class Returning(Middleware):
    async def consume(self, messages: list[Message], call_next: Any) -> Any:
        if messages[0].body == b"pass":
            await call_next(messages)


@pytest.mark.parametrize("orderly", [False, True])
async def test_to_return_is_success_in_status_mode_too(rocketmq: Embedded, orderly: bool) -> None:
    await rocketmq.create_topic("t", queues=1)
    router, seen = Router("g", middleware=[Returning()]), []
    if orderly:

        @router.orderly("t", start_from="first", suspend=0.01)
        async def in_order(messages: list[Message], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
            seen.extend(each.body for each in messages)
            return ConsumeOrderlyStatus.SUCCESS
    else:

        @router.listener("t", start_from="first")
        async def listener(messages: list[Message], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
            seen.extend(each.body for each in messages)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async with rocketmq.consumer(router) as consumer:
        for body in (b"done", b"pass"):
            await rocketmq.send("t", body)
        await rocketmq.settled()
        assert consumer.state().counters.retried == consumer.state().counters.suspended == 0
    assert seen == [b"pass"]
    rocketmq.assert_committed("g", "t", lag=0)


class Replacing(Middleware):
    async def publish(self, messages: list[OutgoingMessage], call_next: Any) -> Any:
        return await call_next([dataclasses.replace(each, body={"was": each.body.decode()}) for each in messages])


async def test_a_value_that_middleware_sends_is_written_as_any(rocketmq: Embedded) -> None:
    await rocketmq.create_topic("t", queues=1)
    async with Client(nameservers=rocketmq.nameserver_address, group="g", middleware=[Replacing()]) as client:
        await client.send("t", b"1")
    [stored] = rocketmq.messages("t")
    assert stored.body == b'{"was":"1"}' and stored.properties["contentType"] == "application/json"


@pytest.mark.parametrize("later", [{"at": datetime.now(UTC)}, {"after": timedelta(1)}, {"delay_level": 3}])
async def test_a_half_message_is_not_made_to_come_later(rocketmq: Embedded, later: dict[str, Any]) -> None:
    """RocketMQ would drop that, and deliver it when it is committed."""

    class Delaying(Middleware):
        async def publish(self, messages: list[OutgoingMessage], call_next: Any) -> Any:
            return await call_next([dataclasses.replace(each, **later) for each in messages])

    await rocketmq.create_topic("t", queues=1)
    async with aiorocket.TransactionProducer(
        "p", nameservers=rocketmq.nameserver_address, middleware=[Delaying()], checker=lambda message: TxState.UNKNOWN
    ) as producer:
        with pytest.raises(UsageError, match="a transactional message"):
            async with producer.transaction("t", b"x"):
                pytest.fail("it was stored")
