"""Latency fault tolerance (sendLatencyFaultEnable), as RocketMQ's documentation tells it: a producer leaves a broker
that failed or was slow alone for a while, as long as there is another."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from aiorocket import BrokerConfig, Embedded, Producer, ProducerConfig, SendError
from aiorocket.broker import Broker
from aiorocket.testing.faults import WireFaults
from aiorocket_protocol import CreateTopicRequestHeader, RequestCode

Until = Callable[[Callable[[], bool]], Awaitable[None]]
TOLERANT = ProducerConfig(send_latency_fault=True, send_timeout=60)


@pytest_asyncio.fixture
async def weak(mq: Embedded) -> AsyncIterator[WireFaults]:
    """A second broker, broker-b, which refuses or is slow when told so; topic orders is on both."""
    faults = WireFaults()
    other = Broker(mq.env, BrokerConfig(name="broker-b", port=0, nameservers=mq.nameservers))
    faults.attach(other.server)
    await other.start()
    try:
        async with mq.client() as client:
            for address in (mq.broker.address, other.address):
                header = CreateTopicRequestHeader("orders", "TBW102", 2, 2, 6, "SINGLE_TAG", False)
                await client.session.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        yield faults
    finally:
        await other.close()


async def send(producer: Producer, count: int) -> Counter[str]:
    """Which broker got how many."""
    return Counter([(await producer.send("orders", b"x")).queue.broker_name for _ in range(count)])


async def test_without_it_a_failing_broker_is_tried_again_and_again(mq: Embedded, weak: WireFaults) -> None:
    """Each message that meets it is saved by a retry on the other one."""
    weak.next("SEND_MESSAGE_V2", times=100, reply="SYSTEM_BUSY")
    async with mq.producer("shop") as shop:
        assert await send(shop, 20) == {"broker-a": 20}
    assert weak.struck[RequestCode.SEND_MESSAGE_V2] >= 5


async def test_a_broker_that_failed_is_left_alone(mq: Embedded, weak: WireFaults) -> None:
    weak.next("SEND_MESSAGE_V2", reply="SYSTEM_BUSY")
    async with mq.producer("shop", config=TOLERANT) as shop:
        assert await send(shop, 20) == {"broker-a": 20}
    assert weak.struck[RequestCode.SEND_MESSAGE_V2] == 1


async def test_a_broker_that_was_slow_is_left_alone(mq: Embedded, weak: WireFaults) -> None:
    """An answer after 0.55 s costs two seconds without messages; slower ones cost more."""
    weak.next("SEND_MESSAGE_V2", delay=0.6)
    async with mq.producer("shop", config=TOLERANT) as shop:
        # Both in turn, until the slow answer comes; afterwards one.
        first = await send(shop, 4)
        assert first["broker-b"] == 1
        assert await send(shop, 10) == {"broker-a": 10}


async def test_where_there_is_no_other_it_is_tried_all_the_same(mq: Embedded, weak: WireFaults) -> None:
    weak.next("SEND_MESSAGE_V2", times=3, reply="SYSTEM_BUSY")
    await mq.broker.close()
    async with mq.producer("shop", config=TOLERANT) as shop:
        with pytest.raises(SendError):
            await shop.send("orders", b"1")
        assert await send(shop, 4) == {"broker-b": 4}
