"""Request and reply against brokers that answer, answer late, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import cast

import pytest

from aiorocket.client.message import Message
from aiorocket.client.pushed import from_record
from aiorocket.client.sending.producer import Producer
from aiorocket.client.sending.request_reply import Requests
from aiorocket.config import ProducerConfig
from aiorocket.errors import RequestTimeoutError, SendError, UsageError
from aiorocket.model import OutgoingMessage, Queue
from aiorocket.runtime.entropy import Entropy
from aiorocket_protocol import RemotingCommand, ReplyMessageRequestHeader, RequestCode, ResponseCode
from tests.client.fake_broker import NAMES, FakeBroker, FakeCluster, Kept, run_with

Scenario = Callable[[FakeCluster, Producer], Awaitable[None]]


def run(scenario: Scenario, brokers: int = 1, *, namespace: str = "", config: ProducerConfig | None = None) -> None:
    run_with(scenario, lambda client: Producer("asker", client=client, config=config), brokers, namespace)


async def push(broker: FakeBroker, request: Kept, body: bytes = b"pong", *, through: FakeBroker | None = None) -> None:
    """The reply to ``request`` as a broker pushes it, over a connection its requester's heartbeat came over."""
    given = request.properties
    text = f"MSG_TYPE\x01reply\x02CORRELATION_ID\x01{given['CORRELATION_ID']}\x02answer\x01yes"
    header = ReplyMessageRequestHeader(
        "replier", "c_REPLY_TOPIC", "TBW102", 4, 0, 0, 5, 0, "/10.0.9.9:4711", broker.address, 6, text
    )
    connection = (through or broker).connections[-1]
    command = RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, body=body)
    answer = await connection.request(command, 3.0)
    assert answer.code == 0


def answering(broker: FakeBroker, after: float = 0.01, body: bytes = b"pong") -> Callable[[Kept], RemotingCommand]:
    loop = asyncio.get_running_loop()

    def answer(kept: Kept) -> RemotingCommand:
        loop.call_later(after, lambda: broker.host.start(push(broker, kept, body)))
        return broker.stored()

    return answer


def test_a_request_gets_its_reply() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        (broker,) = cluster.brokers
        broker.on_send = answering(broker)
        reply = await producer.request("t", b"ping", keys=["k"], timeout=5)
        assert (reply.topic, reply.body, reply.properties["answer"]) == ("c_REPLY_TOPIC", b"pong", "yes")
        assert int(reply.properties["ARRIVE_TIME"]) > 1_700_000_000_000
        assert (reply.born_host, reply.store_host) == ("10.0.9.9:4711", broker.address)
        assert reply.queue == Queue("c_REPLY_TOPIC", "broker-a", 0)
        (kept,) = broker.kept
        assert kept.properties["REPLY_TO_CLIENT"] == producer.client.client_id
        assert kept.properties["REPLY_TO_CLIENT"] == broker.told[-1].client_id
        assert (kept.properties["TTL"], kept.properties["KEYS"]) == ("5000", "k")
        assert producer.in_flight == 0
        assert len(producer._requests) == 0

    run(scenario)


def test_a_request_behind_a_stop_that_was_cancelled_ends() -> None:
    """A stop waits for it; what was cancelled instead forgot the request's deadline, and it waited for ever."""

    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        asking = asyncio.ensure_future(producer.request("t", b"ping", timeout=60))
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await producer.stop()
        async with asyncio.timeout(120):
            with pytest.raises(RequestTimeoutError, match="its producer stopped before a reply"):
                await asking

    run(scenario)


def test_many_requests_each_get_their_own() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        (broker,) = cluster.brokers

        def answer(kept: Kept) -> RemotingCommand:
            number = int(kept.body)
            cluster.sim.loop.call_later(
                (100 - number) * 0.001, lambda: broker.host.start(push(broker, kept, b"to %d" % number))
            )
            return broker.stored()

        broker.on_send = answer
        replies = await asyncio.gather(*(producer.request("t", b"%d" % number, timeout=2) for number in range(100)))
        assert [reply.body for reply in replies] == [b"to %d" % number for number in range(100)]
        assert producer.late_replies == 0

    run(scenario)


def test_no_reply_is_a_timeout_and_a_late_one_is_counted() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        (broker,) = cluster.brokers
        broker.on_send = answering(broker, after=2.5)
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(RequestTimeoutError, match=r"topic 't', request [0-9A-F]{32}: no reply within 2 s"):
            await producer.request("t", b"ping", timeout=2)
        assert loop.time() - started == pytest.approx(2, abs=0.01)
        assert producer.late_replies == 0
        await asyncio.sleep(1)
        assert producer.late_replies == 1

    run(scenario)


def test_a_reply_to_a_request_of_nobody_here_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        (broker,) = cluster.brokers
        other = Producer("other", client=producer.client)

        def answer(kept: Kept) -> RemotingCommand:
            kept.properties["CORRELATION_ID"] = "F" * 32
            asyncio.get_running_loop().call_later(0.01, lambda: broker.host.start(push(broker, kept)))
            return broker.stored()

        broker.on_send = answer
        async with other:
            with pytest.raises(RequestTimeoutError):
                await producer.request("t", b"ping", timeout=1)
        assert producer.late_replies == other.late_replies == 0

    run(scenario)
    assert "brought a reply to request 'FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF', which none here has sent" in caplog.text


def test_a_request_takes_one_place_among_the_sends_and_its_time_is_that_of_the_call() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        (broker,) = cluster.brokers
        broker.on_send = answering(broker)
        cluster.topics["TBW102"] = [broker]
        assert (await producer.request("created-by-it", b"ping", timeout=2)).body == b"pong"
        # Another request has the place for 1.5 s of the time.
        broker.on_send = lambda kept: broker.stored()
        loop = asyncio.get_running_loop()
        first = asyncio.ensure_future(producer.request("t", b"ping", timeout=1.5))
        await asyncio.sleep(0)
        started = loop.time()
        with pytest.raises(RequestTimeoutError, match="no reply within 2 s"):
            await producer.request("t", b"ping", timeout=2)
        assert loop.time() - started == pytest.approx(2, abs=0.01)
        assert isinstance(await asyncio.gather(first, return_exceptions=True), list)

    run(scenario, config=ProducerConfig(max_in_flight=1))


def test_a_request_that_cannot_be_sent_says_so() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        cluster.brokers[0].on_send = lambda kept: RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, remark="bad")
        with pytest.raises(SendError, match="bad"):
            await producer.request("t", b"ping", timeout=2)
        with pytest.raises(UsageError, match="would only time out"):
            await producer.request(OutgoingMessage(topic="t", body=b"x", delay_level=1))
        assert len(producer._requests) == 0

    run(scenario)


def test_a_reply_counts_though_the_acknowledgement_was_lost() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        (broker,) = cluster.brokers
        stored = answering(broker)

        def answer(kept: Kept) -> None:
            stored(kept)

        broker.on_send = answer
        reply = await producer.request("t", b"ping", timeout=1)
        assert reply.body == b"pong"

    run(scenario)


@pytest.mark.parametrize("number", ["", "00000000000000_1", "ZZZZZZZZZZZZZZZZ", "0" * 15, "0" * 17, "é" * 16])
def test_correlation_ids_of_others_are_not_ours(number: str) -> None:
    requests, reply = Requests(Entropy(1)), cast(Message, None)
    other = f"{Entropy(2).token(8).hex().upper()}{1:016X}"
    with closing(asyncio.new_event_loop()) as loop:
        own = loop.run_until_complete(first_id(requests))
    assert not requests.complete(own[:16] + number, reply)
    assert not requests.complete(other, reply)
    assert requests.late == 0
    assert requests.complete(own, reply)
    assert requests.late == 1


async def first_id(requests: Requests) -> str:
    with requests.waiting(5.0) as (correlation_id, _):
        requests.close()
        return correlation_id


def test_cancelled_requests_leave_nothing_behind() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        asking = asyncio.ensure_future(producer.request("t", b"ping", timeout=5))
        await asyncio.sleep(1)
        assert len(producer._requests) == 1
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (len(producer._requests), producer.in_flight) == (0, 0)
        await push(cluster.brokers[0], cluster.brokers[0].kept[0])
        assert producer.late_replies == 1

    run(scenario)


def test_stopping_waits_for_the_replies() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        cluster.brokers[0].on_send = answering(cluster.brokers[0], after=1)
        asking = asyncio.ensure_future(producer.request("t", b"ping", timeout=5))
        await asyncio.sleep(0.1)
        await producer.stop()
        assert (await asking).body == b"pong"

    run(scenario)


def test_a_stop_that_is_cancelled_stops_all_the_same() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        asking = asyncio.ensure_future(producer.request("t", b"ping", timeout=50))
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await producer.stop()
        assert producer.client.producers == {}
        with pytest.raises(UsageError, match="make a new one"):
            await producer.send("t", b"x")
        asking.cancel()

    run(scenario)


def test_every_broker_of_the_topic_knows_the_requester_before_it_asks() -> None:
    """A replier may answer through any broker of the cluster, as Java's do."""

    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        a, b = cluster.brokers
        known: list[bool] = []

        def answer(kept: Kept) -> RemotingCommand:
            known.append(all("asker" in broker.told[-1].producers for broker in cluster.brokers if broker.told))
            known.append(len(a.told) > 0 and len(b.told) > 0)
            cluster.sim.loop.call_later(0.01, lambda: b.host.start(push(a, kept, through=b)))
            return a.stored()

        a.on_send = answer
        reply = await producer.request("t", b"ping", queue=Queue("t", "broker-a", 0), timeout=2)
        assert reply.queue.broker_name == "broker-b"
        assert known == [True, True]

    run(scenario, brokers=2)


def test_a_broker_that_is_down_does_not_use_up_the_time() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        a, b = cluster.brokers
        cluster.sim.network.block("10.0.1.1", "10.0.0.3")
        a.on_send = answering(a)
        reply = await producer.request("t", b"ping", queue=Queue("t", "broker-a", 0), timeout=2)
        assert reply.body == b"pong"
        assert b.told == []
        cluster.sim.network.unblock("10.0.1.1", "10.0.0.3")

    run(scenario, brokers=2)


# -- the other side


def request_at(broker: FakeBroker, producer: Producer, **changes: str) -> Message:
    """A request as a consumer gets it."""
    properties = {"CLUSTER": "c", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "10.0.7.7@x", "TTL": "3000", **changes}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value)
    kept = broker.kept[0]
    kept.header = kept.header._replace(properties=text)
    return from_record("", broker.record(kept, queue_offset=0, physical_offset=0), broker.name)


def test_a_reply_goes_to_the_requests_broker_with_what_the_requester_needs() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        a, b = cluster.brokers
        await producer.send("t", b"ping", queue=Queue("t", "broker-b", 1))
        await producer.reply(request_at(b, producer), b"pong" * 2000, properties={"x": "y"})
        kept = b.kept[-1]
        assert a.kept == []
        assert (kept.code, kept.header.topic) == (RequestCode.SEND_REPLY_MESSAGE_V2, "c_REPLY_TOPIC")
        assert (kept.header.producer_group, kept.header.queue_id, kept.header.sys_flag) == ("asker", 0, 0x301)
        del kept.properties["UNIQ_KEY"]
        assert kept.properties == {
            "MSG_TYPE": "reply", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "10.0.7.7@x", "TTL": "3000", "x": "y",
        }  # fmt: skip

    run(scenario, brokers=2)


@pytest.mark.parametrize("missing", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_what_asks_for_no_reply_gets_none(missing: str) -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        (broker,) = cluster.brokers
        await producer.send("t", b"ping")
        with pytest.raises(UsageError, match="asks for no reply"):
            await producer.reply(request_at(broker, producer, **{missing: ""}), b"pong")
        with pytest.raises(UsageError, match="empty body"):
            await producer.reply(request_at(broker, producer), b"")
        assert len(broker.kept) == 1

    run(scenario)


def test_a_requester_that_has_gone_is_an_error_to_the_replier() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        (broker,) = cluster.brokers
        await producer.send("t", b"ping")
        broker.on_send = lambda kept: RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark="channel not found")
        with pytest.raises(SendError, match=r"the reply to request .* of topic 't'.*channel not found"):
            await producer.reply(request_at(broker, producer), b"pong")
        broker.on_send = lambda kept: None
        with pytest.raises(SendError, match="may be stored"):
            await producer.reply(request_at(broker, producer), b"pong", timeout=0.5)
        assert producer.in_flight == 0

    run(scenario)


async def test_before_the_start() -> None:
    from aiorocket.runtime.env import memory_env

    producer = Producer("p", nameservers=NAMES, env=memory_env())
    with pytest.raises(UsageError, match="not started"):
        await producer.request("t", b"x")
