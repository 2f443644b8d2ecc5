"""A send against a broker that answers badly, late or not at all: each ends in its time and says whether it may be
stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aiorocket import (
    Producer,
    ProducerConfig,
    SendError,
    SendStatus,
    TopicNotFoundError,
)
from aiorocket_protocol import RemotingCommand, ResponseCode
from tests.client.fake_broker import FakeCluster, Kept
from tests.client.test_selectors import run

if TYPE_CHECKING:
    from tests.client.conftest import Scripted


def refusal(code: int) -> RemotingCommand:
    return RemotingCommand.response(code, remark="scripted")


async def test_a_busy_broker_is_tried_again(scripted: Scripted) -> None:
    scripted.by_turns(refusal(ResponseCode.SYSTEM_BUSY), refusal(ResponseCode.FLOW_CONTROL))
    async with Producer("p", nameservers=scripted.address) as producer:
        receipt = await producer.send("t", b"x")
    assert receipt.status is SendStatus.SEND_OK
    assert len(scripted.sends) == 3


async def test_retries_are_bounded_and_the_verdict_is_kept(scripted: Scripted) -> None:
    scripted.on_send = lambda connection, command: refusal(ResponseCode.SYSTEM_ERROR)
    async with Producer("p", nameservers=scripted.address, config=ProducerConfig(retries=2)) as producer:
        with pytest.raises(SendError, match=r"attempt 3.*scripted.*may be stored") as caught:
            await producer.send("t", b"x")
    assert caught.value.may_be_stored
    assert len(scripted.sends) == 3


async def test_a_refusal_that_is_final_is_not_repeated(scripted: Scripted) -> None:
    scripted.on_send = lambda connection, command: refusal(ResponseCode.MESSAGE_ILLEGAL)
    async with Producer("p", nameservers=scripted.address) as producer:
        with pytest.raises(SendError, match="is not stored") as caught:
            await producer.send("t", b"x")
    assert not caught.value.may_be_stored
    assert len(scripted.sends) == 1


async def test_once_uncertain_always_uncertain(scripted: Scripted) -> None:
    scripted.by_turns(refusal(ResponseCode.SYSTEM_ERROR), refusal(ResponseCode.MESSAGE_ILLEGAL))
    async with Producer("p", nameservers=scripted.address) as producer:
        with pytest.raises(SendError) as caught:
            await producer.send("t", b"x")
    assert caught.value.may_be_stored


@pytest.mark.parametrize("timeout", [0.1, 0.3])
async def test_silence_ends_at_the_timeout(scripted: Scripted, timeout: float) -> None:
    scripted.on_send = lambda connection, command: None
    loop = asyncio.get_running_loop()
    async with Producer("p", nameservers=scripted.address, config=ProducerConfig(send_timeout=100)) as producer:
        started = loop.time()
        with pytest.raises(SendError, match="did not answer") as caught:
            await producer.send("t", b"x", timeout=timeout)
        assert timeout - 0.01 <= loop.time() - started < 50
    assert caught.value.may_be_stored


def test_a_late_loss_of_the_connection_does_not_start_the_time_anew() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        loop = asyncio.get_running_loop()

        def drop(kept: Kept) -> None:
            loop.call_later(0.25, kept.connection.abort, "scripted")

        cluster.brokers[0].on_send = drop
        started = loop.time()
        with pytest.raises(SendError) as caught:
            await producer.send("t", b"x", timeout=0.4)
        assert 0.4 <= loop.time() - started < 0.6  # a hundred times a quarter of a second otherwise
        assert caught.value.may_be_stored

    run(scenario, brokers=1, config=ProducerConfig(retries=100))


async def test_the_other_broker_takes_over(scripted_pair: Scripted) -> None:
    peer = scripted_pair
    bad = peer.brokers[0].address

    def answer(connection: object, command: RemotingCommand) -> RemotingCommand:
        local = connection.local  # type: ignore[attr-defined]
        return refusal(ResponseCode.SERVICE_NOT_AVAILABLE) if local == bad else peer.stored()

    peer.on_send = answer
    async with Producer("p", nameservers=peer.address) as producer:
        receipts = [await producer.send("t", b"x") for _ in range(8)]
    assert {receipt.queue.broker_name for receipt in receipts} == {"broker-1"}


async def test_keyed_and_pinned_messages_stay_on_their_queue(scripted_pair: Scripted) -> None:
    scripted_pair.by_turns(*(refusal(ResponseCode.SYSTEM_BUSY) for _ in range(3)))
    async with Producer("p", nameservers=scripted_pair.address, config=ProducerConfig(retries=5)) as producer:
        first = await producer.send("t", b"x", sharding_key="k")
        second = await producer.send("t", b"y", queue=first.queue)
        third = await producer.send("t", b"z", sharding_key="k")
    assert first.queue.broker_name == second.queue.broker_name == third.queue.broker_name
    assert len({header.broker_name for header in scripted_pair.sends}) == 1
    assert len(scripted_pair.sends) == 6


def test_the_second_of_a_key_waits_for_the_first() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        broker = cluster.brokers[0]
        broker.on_send = lambda kept: broker.stored() if len(broker.kept) > 1 else None
        first = asyncio.ensure_future(producer.send("t", b"1", sharding_key="k", timeout=0.3))
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(producer.send("t", b"2", sharding_key="k", timeout=0.1))
        third = asyncio.ensure_future(producer.send("t", b"3", sharding_key="k"))
        other = await producer.send("t", b"4", sharding_key="other")
        assert other.offset == 2
        with pytest.raises(SendError, match="earlier messages of key 'k'") as caught:
            await second
        assert not caught.value.may_be_stored
        with pytest.raises(SendError):
            await first
        assert (await third).offset == 3
        assert producer.in_flight == 0

    run(scenario, brokers=1)


async def test_cancelled_senders_of_a_key_do_not_block_it(scripted: Scripted) -> None:
    scripted.by_turns(None)
    async with Producer("p", nameservers=scripted.address) as producer:
        tasks = [asyncio.ensure_future(producer.send("t", b"x", sharding_key="k")) for _ in range(4)]
        async with asyncio.timeout(60):
            while not scripted.sends:
                await asyncio.sleep(0.001)
        for task in tasks[:3]:
            task.cancel()
        assert (await tasks[3]).offset == 2
        await asyncio.gather(*tasks[:3], return_exceptions=True)
        assert producer.in_flight == 0


async def test_statuses_short_of_ok_are_receipts(scripted: Scripted) -> None:
    scripted.on_send = lambda connection, command: scripted.stored(ResponseCode.FLUSH_DISK_TIMEOUT)
    async with Producer("p", nameservers=scripted.address) as producer:
        assert (await producer.send("t", b"x")).status is SendStatus.FLUSH_DISK_TIMEOUT


async def test_an_answer_nobody_can_read_may_be_stored(scripted: Scripted) -> None:
    scripted.on_send = lambda connection, command: RemotingCommand.response()
    async with Producer("p", nameservers=scripted.address) as producer:
        with pytest.raises(SendError, match="cannot be read") as caught:
            await producer.send("t", b"x")
    assert caught.value.may_be_stored


async def test_a_topic_without_write_permission(scripted: Scripted) -> None:
    scripted.perm = 4
    async with Producer("p", nameservers=scripted.address) as producer:
        with pytest.raises(TopicNotFoundError, match=r"no queue that can be written.*`topic update t --permission RW`"):
            await producer.send("t", b"x")


async def test_a_stale_route_is_asked_for_again(scripted: Scripted) -> None:
    scripted.by_turns(refusal(ResponseCode.TOPIC_NOT_EXIST))
    async with Producer("p", nameservers=scripted.address) as producer:
        await producer.send("t", b"x")
        assert scripted.route_requests == 2


async def test_many_first_sends_ask_for_the_route_once(scripted: Scripted) -> None:
    async with Producer("p", nameservers=scripted.address) as producer:
        await asyncio.gather(*(producer.send("t", b"x") for _ in range(100)))
    assert scripted.route_requests == 1


async def test_no_name_server() -> None:
    loop = asyncio.get_running_loop()
    config = ProducerConfig(send_timeout=100)
    async with Producer("p", nameservers="127.0.0.1:1;127.0.0.1:2", config=config) as producer:
        started = loop.time()
        with pytest.raises(SendError, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2") as caught:
            await producer.send("t", b"x", timeout=0.5)
        assert loop.time() - started < 50
    assert not caught.value.may_be_stored


async def test_a_broker_that_is_away_is_waited_for_until_the_timeout(scripted: Scripted) -> None:
    loop = asyncio.get_running_loop()
    async with Producer("p", nameservers=scripted.address, config=ProducerConfig(send_timeout=100)) as producer:
        await producer.send("t", b"x")
        await scripted.brokers[0].close(0.0)
        started = loop.time()
        with pytest.raises(SendError, match="is not stored") as caught:
            await producer.send("t", b"x", timeout=0.6)
        assert loop.time() - started < 50
    assert not caught.value.may_be_stored


async def test_stop_waits_for_what_is_under_way(scripted: Scripted) -> None:
    scripted.on_send = lambda connection, command: None
    producer = Producer("p", nameservers=scripted.address)
    await producer.start()
    task = asyncio.ensure_future(producer.send("t", b"x", timeout=0.2))
    await asyncio.sleep(0.05)
    await producer.stop()
    assert task.done()
    assert isinstance(task.exception(), SendError)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_route_with_twenty_million_queues_is_refused_by_its_limit(ordered: bool) -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        if ordered:
            cluster.order["t"] = "broker-a:20000000"
        else:
            cluster.queues["t"] = 20_000_000
        with pytest.raises(SendError, match=r"20000000 queues for topic t; .*limit route_queues=65536 is lower"):
            await producer.send("t", b"x")
        cluster.order.clear()
        cluster.queues.clear()
        await producer.send("t", b"x")
        assert len(cluster.brokers[0].kept) == 1

    run(scenario, brokers=1)
