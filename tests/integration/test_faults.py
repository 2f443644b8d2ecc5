"""Brokers and name servers that go away in the middle of things."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aiorocket import (
    Client,
    ClientConfig,
    ConsumerConfig,
    Embedded,
    Message,
    NameServerConfig,
    Producer,
    ProducerConfig,
    SendError,
    SendReceipt,
    embed,
)
from aiorocket.nameserver import NameServer
from aiorocket.runtime import memory_env

Until = Callable[[Callable[[], bool]], Awaitable[None]]

_BROKER = """
import asyncio, sys
from aiorocket import BrokerConfig, run
from aiorocket.broker import Broker
from aiorocket.runtime import real_env

async def main():
    port, nameserver, data = sys.argv[1:]
    config = BrokerConfig(port=int(port), nameservers=(nameserver,), data=data, register_interval=0.5)
    broker = Broker(real_env(), config)
    await broker.start()
    print(broker.port, flush=True)
    await asyncio.Event().wait()

run(main())
"""


@asynccontextmanager
async def nameserver(port: int = 0) -> AsyncIterator[NameServer]:
    env = memory_env()
    server = NameServer(env, NameServerConfig(port=port))
    await server.start()
    try:
        yield server
    finally:
        await server.close()
        await env.disk.close()


async def broker_process(port: int, names: NameServer, data: Path) -> tuple[asyncio.subprocess.Process, int]:
    search = os.pathsep.join(path for path in sys.path if path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _BROKER, str(port), names.address, str(data),
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": search},
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(60):
        return process, int(await process.stdout.readline())


@pytest.mark.crash
async def test_a_broker_killed_while_sends_are_in_flight_loses_nothing_acknowledged(
    tmp_path: Path, until: Until
) -> None:
    acknowledged: dict[bytes, SendReceipt] = {}
    uncertain: set[bytes] = set()
    surely_not: set[bytes] = set()
    consumed: set[bytes] = set()
    async with nameserver() as names:
        process, port = await broker_process(0, names, tmp_path)
        try:
            # One attempt each, so that every outcome speaks of one request.
            producer = Producer("p", nameservers=names.address, config=ProducerConfig(retries=0))
            async with producer:
                await producer.send("t", b"first")
                stopping = False

                async def sender(number: int) -> None:
                    count = 0
                    while not stopping:
                        body = b"%d-%d" % (number, count)
                        count += 1
                        try:
                            acknowledged[body] = await producer.send("t", body, timeout=1)
                        except SendError as error:
                            (uncertain if error.may_be_stored else surely_not).add(body)

                senders = [asyncio.ensure_future(sender(number)) for number in range(64)]
                await until(lambda: len(acknowledged) > 500)
                process.send_signal(signal.SIGKILL)
                await process.wait()
                await until(lambda: bool(uncertain) and bool(surely_not))
                process, _ = await broker_process(port, names, tmp_path)
                before = len(acknowledged)
                await until(lambda: len(acknowledged) > before + 200)
                stopping = True
                await asyncio.wait_for(asyncio.gather(*senders), 30)
                assert producer.in_flight == 0
            async with Client(nameservers=names.address) as client:
                consumer = client.consumer("g")

                @consumer.listener("t", start_from="first")
                async def on_message(message: Message) -> None:
                    consumed.add(message.body)

                async with consumer:
                    await until(lambda: acknowledged.keys() <= consumed)
        finally:
            process.kill()
            await process.wait()
    assert not surely_not & consumed
    assert consumed <= acknowledged.keys() | uncertain | {b"first"}


async def test_consumers_come_back_after_the_brokers_restart(durable: Embedded, until: Until) -> None:
    await durable.create_topic("t", queues=2)
    seen: list[bytes] = []
    config = ConsumerConfig(pull_error_delay=0.1)
    consumer = durable.consumer("g", config=config)

    @consumer.listener("t", start_from="first")
    async def on_message(message: Message) -> None:
        seen.append(message.body)

    async with consumer, durable.producer() as producer:
        await producer.send("t", b"before")
        await until(lambda: seen == [b"before"])
        await consumer.commit()
        await durable.restart()
        await producer.send("t", b"after", timeout=30)
        await until(lambda: seen == [b"before", b"after"])
        await consumer.commit()


async def test_a_name_server_that_is_away_stops_nothing_that_runs(until: Until) -> None:
    seen: list[bytes] = []
    async with embed(broker={"register_interval": 0.2}) as mq:
        await mq.create_topic("t", queues=2)
        port = mq.nameserver.port
        config = ClientConfig(nameservers=mq.nameservers, route_interval=0.1)
        async with Client(config=config, group="g") as client:
            consumer = client.consumer(config=ConsumerConfig(rebalance_interval=0.1))

            @consumer.listener("t", start_from="first")
            async def on_message(message: Message) -> None:
                seen.append(message.body)

            async with consumer, client.producer() as producer:
                await producer.send("t", b"1")
                await mq.nameserver.close()
                await asyncio.sleep(0.4)  # several refreshes and rebalances find nobody
                await producer.send("t", b"2")
                await until(lambda: seen == [b"1", b"2"])
                assert len(consumer.held()) >= 2
                with pytest.raises(SendError, match="no name server answers") as caught:
                    await producer.send("new", b"x", timeout=0.3)
                assert not caught.value.may_be_stored
                late = asyncio.ensure_future(producer.send("new", b"x", timeout=30))
                async with nameserver(port):
                    # The topic is sent to as soon as the broker has registered again.
                    assert (await late).offset == 0
                    await producer.send("t", b"3")
                    await until(lambda: seen == [b"1", b"2", b"3"])


async def test_two_brokers_of_one_topic_and_one_dies(tmp_path: Path, until: Until) -> None:
    async with embed(broker={"name": "broker-a", "register_interval": 0.3}) as first:
        from aiorocket import BrokerConfig
        from aiorocket.broker import Broker

        await first.create_topic("t", queues=1)
        env = memory_env()
        settings = BrokerConfig(name="broker-b", port=0, nameservers=first.nameservers, register_interval=0.3)
        second = Broker(env, settings)
        await second.start()
        try:
            async with first.client() as client:
                from aiorocket_protocol import CreateTopicRequestHeader, RequestCode

                header = CreateTopicRequestHeader("t", "TBW102", 1, 1, 6, "SINGLE_TAG", False)
                await client.session.call(second.address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            async with first.producer() as producer:
                receipts = [await producer.send("t", b"x") for _ in range(10)]
                assert {receipt.queue.broker_name for receipt in receipts} == {"broker-a", "broker-b"}
                await second.close()
                receipts = [await producer.send("t", b"x") for _ in range(10)]
                assert {receipt.queue.broker_name for receipt in receipts} == {"broker-a"}
        finally:
            await second.close()
            await env.disk.close()


async def test_an_offset_the_broker_does_not_have_is_repaired(mq: Embedded, until: Until) -> None:
    from aiorocket_protocol import RequestCode, UpdateConsumerOffsetRequestHeader

    await mq.create_topic("t", queues=1)
    seen: list[bytes] = []
    async with mq.client(group="g") as client, client.producer() as producer:
        for number in range(3):
            await producer.send("t", b"%d" % number)
        header = UpdateConsumerOffsetRequestHeader("g", "t", 0, 1000)
        consumer = client.consumer(config=ConsumerConfig(offset_illegal_delay=0.05))

        @consumer.listener("t", start_from="first")
        async def on_message(message: Message) -> None:
            seen.append(message.body)

        await client.session.call(mq.broker.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        async with consumer:
            state = consumer.state
            await until(lambda: any(queue.queue.topic == "t" and queue.next_offset == 3 for queue in state().queues))
            await producer.send("t", b"new")
            await until(lambda: seen == [b"new"])
            await consumer.commit()
            assert next(queue.committed for queue in state().queues if queue.queue.topic == "t") == 4
