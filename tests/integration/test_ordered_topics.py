"""Ordered messages, as RocketMQ's documentation tells them: in order per key, in order altogether, and order topics,
whose keys stay where they are when a broker goes away."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

import pytest

from aiorocket import Embedded, Message, OutgoingMessage, Producer, Queue, Router, SendError, embed
from aiorocket.broker.broker import Broker
from aiorocket.client.app import Client
from aiorocket.config import BrokerConfig, ClientConfig
from aiorocket_protocol import CreateTopicRequestHeader, PutKVConfigRequestHeader, RequestCode

Until = Callable[[Callable[[], bool]], Awaitable[None]]


async def test_a_stream_of_steps_is_sent_at_full_speed_and_stays_in_order(mq: Embedded) -> None:
    await mq.create_topic("order-steps", queues=4)
    stream = [
        OutgoingMessage(topic="order-steps", body=b"%d" % step, sharding_key=f"o-{order}")
        for step in range(20)
        for order in range(10)
    ]
    async with mq.producer("shop") as producer:
        outcomes = [outcome async for outcome in producer.send_many("order-steps", stream, ordered=True)]
    places = defaultdict(list)
    for message, outcome in zip(stream, outcomes, strict=True):
        assert outcome.receipt is not None
        places[message.sharding_key].append(outcome.receipt)
    for receipts in places.values():
        assert len({receipt.queue for receipt in receipts}) == 1
        assert [receipt.offset for receipt in receipts] == sorted(receipt.offset for receipt in receipts)


async def test_everything_in_order_takes_one_queue(mq: Embedded, until: Until) -> None:
    await mq.create_topic("ledger", queues=1)
    seen: list[int] = []
    router = Router("audit")

    @router.orderly("ledger", start_from="first")
    async def audit(message: Message) -> None:
        seen.append(int(message.body))

    async with mq.producer("bank") as producer, mq.consumer("audit", router=router):
        for number in range(100):
            await producer.send("ledger", b"%d" % number)
        await until(lambda: len(seen) == 100)
    assert seen == list(range(100))


async def test_a_selector_decides(mq: Embedded) -> None:
    await mq.create_topic("regions", queues=3)

    def by_region(queues: Sequence[Queue], message: OutgoingMessage, region: str) -> Queue:
        return queues[("eu", "us", "asia").index(region)]

    async with mq.producer("shop") as producer:
        for region, queue in (("asia", 2), ("eu", 0), ("us", 1)):
            receipt = await producer.send("regions", b"x", select=by_region, arg=region)
            assert receipt.queue.queue_id == queue


async def test_an_order_topic_keeps_its_keys_while_a_broker_is_away(until: Until) -> None:
    """The name server knows from its KV configuration which queues an order topic has, present or not."""
    often = {"register_interval": 0.2}
    async with embed(broker=often) as mq:
        other = Broker(mq.env, BrokerConfig(name="broker-b", port=0, nameservers=mq.nameservers, register_interval=0.2))
        await other.start()
        config = ClientConfig(nameservers=mq.nameservers, route_interval=0.1)
        try:
            async with Client(config=config) as client, Producer("shop", client=client) as producer:
                for address in (mq.broker.address, other.address):
                    header = CreateTopicRequestHeader("order-steps", "TBW102", 2, 2, 6, "SINGLE_TAG", False)
                    await client.session.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
                order = PutKVConfigRequestHeader("ORDER_TOPIC_CONFIG", "order-steps", "broker-a:2;broker-b:2")
                await client.session.call(mq.nameserver_address, RequestCode.PUT_KV_CONFIG, order)

                keys = [f"o-{number}" for number in range(16)]
                before = {key: (await producer.send("order-steps", b"1", sharding_key=key)).queue for key in keys}
                assert {queue.broker_name for queue in before.values()} == {"broker-a", "broker-b"}
                await other.close()
                await until(lambda: client.session.routes.known("order-steps").master("broker-b") is None)  # type: ignore[union-attr]
                for key, queue in before.items():
                    if queue.broker_name == "broker-a":
                        assert (await producer.send("order-steps", b"2", sharding_key=key)).queue == queue
                    else:
                        with pytest.raises(SendError, match="no master"):
                            await producer.send("order-steps", b"2", sharding_key=key, timeout=0.05)
        finally:
            await other.close()
