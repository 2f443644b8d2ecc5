"""Which queue a message goes to: selectors, sharding keys with every verb, order topics; and who watches it go."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from aiorocket.client.app import Client
from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.sending.producer import Producer
from aiorocket.client.sending.send_hooks import SendContext
from aiorocket.config import ProducerConfig
from aiorocket.errors import ConfigError, SendError, UsageError
from aiorocket.model import OutgoingMessage, Queue
from aiorocket.runtime.env import memory_env
from aiorocket_protocol import (
    BrokerData,
    QueueData,
    RemotingCommand,
    ResponseCode,
    TopicRouteData,
    decode_batch,
    decompress,
    tags_code,
)
from tests.client.fake_broker import NAMES, FakeBroker, FakeCluster, Kept, kept_by, run_with

Scenario = Callable[[FakeCluster, Producer], Awaitable[None]]


def run(scenario: Scenario, brokers: int = 2, *, namespace: str = "", **options: object) -> None:
    def make(client: Client) -> Producer:
        return Producer("p", client=client, **options)  # type: ignore[arg-type]  # each of another type

    run_with(scenario, make, brokers, namespace)


def all_queues(topic: str = "t", brokers: int = 2) -> list[Queue]:
    return [Queue(topic, f"broker-{'ab'[number]}", queue) for number in range(brokers) for queue in range(2)]


# -- selectors


def test_a_selector_sees_the_queues_and_the_message_and_decides() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        asked: list[tuple[Sequence[Queue], OutgoingMessage, object]] = []

        def by_number(queues: Sequence[Queue], message: OutgoingMessage, arg: int) -> Queue:
            asked.append((queues, message, arg))
            return queues[arg % len(queues)]

        for number in range(8):
            receipt = await producer.send("t", b"%d" % number, keys=["k"], select=by_number, arg=number)
            assert receipt.queue == all_queues()[number % 4]
        queues, message, arg = asked[3]
        assert queues == all_queues()
        assert (message.topic, message.body, message.keys, arg) == ("t", b"3", ["k"], 3)
        assert await producer.send_oneway(OutgoingMessage(topic="t", body=b"o"), select=by_number, arg=2)
        await asyncio.sleep(1)
        assert kept_by(cluster)[-1] == ("broker-b", 0, b"o")

    run(scenario)


def test_what_the_look_up_for_a_selector_takes_is_of_the_sends_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        loop, routes = asyncio.get_running_loop(), producer.client.routes
        for _ in cluster.brokers:
            await producer.send("t", b"connected")
        for broker in cluster.brokers:
            broker.on_send = lambda kept: None
        known = await routes.get("t")

        async def slowly(topic: str, *, refresh: bool = False) -> TopicRoute:
            await asyncio.sleep(0.6)
            return known

        monkeypatch.setattr(routes, "get", slowly)
        producer.sender.on_route(known)
        began = loop.time()
        with pytest.raises(SendError) as caught:
            await producer.send("t", b"x", select=lambda queues, message, arg: queues[0], timeout=1.0)
        assert caught.value.may_be_stored and loop.time() - began == pytest.approx(1.0, abs=0.01)

    run(scenario)


def test_what_a_message_has_itself_is_not_given_beside_it() -> None:
    """Ignored in silence, a tag would be missed only by those who wait for it."""

    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        message = OutgoingMessage(topic="t", body=b"x")
        more: list[dict[str, Any]] = [{"body": b"y"}, {"tag": "a"}, {"keys": ["k"]}, {"properties": {"a": "b"}}]
        for each in more:
            for verb in (producer.send, producer.send_oneway, producer.request):
                with pytest.raises(UsageError, match="says all of these itself"):
                    await verb(message, **each)
            for verb in (producer.send, producer.send_oneway):
                with pytest.raises(UsageError, match="says all of these itself"):
                    await verb(message, **each, select=lambda queues, message, arg: queues[0])
        with pytest.raises(UsageError, match="says all of these itself"):
            await producer.send(message, delay_level=3)
        assert (producer.in_flight, kept_by(cluster)) == (0, [])

    run(scenario)


def test_what_a_selector_must_not_do() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        with pytest.raises(UsageError, match="not a writable queue"):
            await producer.send("t", b"x", select=lambda queues, message, arg: Queue("t", "broker-a", 7))
        with pytest.raises(ZeroDivisionError):
            await producer.send("t", b"x", select=lambda queues, message, arg: queues[1 // 0])
        with pytest.raises(UsageError, match="either queue= or select="):
            await producer.send("t", b"x", queue=all_queues()[0], select=lambda queues, message, arg: queues[0])
        assert producer.in_flight == 0
        assert kept_by(cluster) == []

    run(scenario)


def test_a_selected_message_is_retried_on_its_queue_only() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        busy = [True, True]
        a = cluster.brokers[0]
        a.on_send = lambda kept: refusal() if busy and busy.pop() else a.stored()
        receipt = await producer.send("t", b"x", select=lambda queues, message, arg: queues[1])
        assert receipt.queue == Queue("t", "broker-a", 1)
        assert kept_by(cluster) == [("broker-a", 1, b"x")] * 3

    run(scenario)


def refusal() -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.SYSTEM_BUSY, remark="busy")


# -- sharding keys


def queue_of(key: str, queues: int = 4) -> Queue:
    """Java's SelectMessageQueueByHash."""
    return all_queues()[abs(tags_code(key)) % queues]


def test_one_key_one_queue_whatever_the_verb() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        for key in ("o-1", "o-2", "o-3", "", "é"):
            where = queue_of(key)
            before = len(kept_by(cluster))
            assert (await producer.send("t", b"1", sharding_key=key)).queue == where
            assert (await producer.send(OutgoingMessage(topic="t", body=b"2", sharding_key=key))).queue == where
            await producer.send_oneway("t", b"3", sharding_key=key)
            items = [OutgoingMessage(topic="t", body=b"4", sharding_key=key)] * 2
            assert {receipt.queue for receipt in await producer.send_batch("t", items)} == {where}
            outcomes = [outcome async for outcome in producer.send_many("t", [b"5", items[0]], sharding_key=key)]
            assert {outcome.receipt.queue for outcome in outcomes if outcome.receipt} == {where}
            await asyncio.sleep(1)
            new = [kept for broker in cluster.brokers for kept in broker.kept if broker.name == where.broker_name]
            assert len(kept_by(cluster)) == before + 6
            assert {kept.header.queue_id for kept in new[-6:]} == {where.queue_id}
            if key:
                assert [kept.properties.get("__SHARDINGKEY") for kept in new[-6:] if not kept.header.batch] == [key] * 5

    run(scenario)


def test_no_attempt_follows_a_timeout_that_came_a_little_early(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        loop = asyncio.get_running_loop()
        exact = loop.call_at
        # uvloop's timers are of whole milliseconds.
        monkeypatch.setattr(loop, "call_at", lambda when, *args, **options: exact(when - 0.0005, *args, **options))
        for broker in cluster.brokers:
            broker.on_send = lambda kept: None
        with pytest.raises(SendError, match="did not answer"):
            await producer.send("t", b"x", sharding_key="k", timeout=0.5)
        with pytest.raises(SendError, match="did not answer"):
            await producer.send("t", b"y", timeout=0.5)
        await asyncio.sleep(1)
        assert sorted(kept.body for broker in cluster.brokers for kept in broker.kept) == [b"x", b"y"]

    run(scenario)


def test_a_stream_keeps_the_order_of_each_key_though_brokers_stumble() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        for broker in cluster.brokers:
            broker.on_send = stumbling(broker)
        bodies = [b"%d" % number for number in range(60)]
        outcomes = [o async for o in producer.send_many("t", bodies, sharding_key=lambda body: f"k{int(body) % 5}")]
        assert all(outcome.receipt is not None for outcome in outcomes)
        for key in range(5):
            stored = [
                int(kept.body)
                for broker in cluster.brokers
                for kept in broker.kept
                if kept.properties["__SHARDINGKEY"] == f"k{key}" and id(kept) not in refused
            ]
            assert stored == list(range(key, 60, 5))

    refused: set[int] = set()

    def stumbling(broker: FakeBroker) -> Callable[[Kept], RemotingCommand]:
        def answer(kept: Kept) -> RemotingCommand:
            if len(broker.kept) % 7 == 3:
                refused.add(id(kept))
                return refusal()
            return broker.stored()

        return answer

    run(scenario, config=ProducerConfig(retries=20, send_timeout=30))


def test_the_order_of_calls_is_kept_while_a_topic_opens_whatever_the_verb() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        calls: list[asyncio.Future[object]] = []

        def call_all() -> None:
            for verb in (
                lambda body: producer.send("t", body, sharding_key="k"),
                lambda body: producer.send_oneway("t", body, sharding_key="k"),
                lambda body: producer.send_batch("t", [OutgoingMessage(topic="t", body=body, sharding_key="k")]),
                lambda body: producer.request("t", body, sharding_key="k", timeout=2),
            ):
                calls.append(asyncio.ensure_future(verb(b"%d" % len(calls))))

        call_all()
        # When the route comes, those who wait for it do not run at once: others may be there before them.
        producer.client.watch_routes(lambda route: call_all())
        await asyncio.sleep(0)
        await producer.flush()
        await asyncio.gather(*calls, return_exceptions=True)
        [came] = [broker.kept for broker in cluster.brokers if broker.kept]
        bodies = [decode_batch(kept.body)[0][0] if kept.header.batch else kept.body for kept in came]
        assert bodies == [b"%d" % number for number in range(8)]

    run(scenario)


def test_a_batch_has_one_key_or_a_queue() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        mixed = [OutgoingMessage(topic="t", body=b"x", sharding_key=key) for key in "ab"]
        with pytest.raises(UsageError, match="different sharding keys"):
            await producer.send_batch("t", mixed)
        with pytest.raises(UsageError, match="different sharding keys"):
            await producer.send_batch("t", [mixed[0], b"no key"])
        receipts = await producer.send_batch("t", mixed, queue=all_queues()[3])
        assert {receipt.queue for receipt in receipts} == {all_queues()[3]}

    run(scenario)


# -- order topics


def test_an_order_topic_has_exactly_the_queues_of_its_configuration() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        cluster.order["t"] = "broker-b:3;broker-a:1"
        seen: list[Queue] = []

        def look(queues: Sequence[Queue], message: OutgoingMessage, arg: object) -> Queue:
            seen[:] = queues
            return queues[0]

        await producer.send("t", b"x", select=look)
        assert seen == [*(Queue("t", "broker-b", number) for number in range(3)), Queue("t", "broker-a", 0)]

    run(scenario)


def test_a_key_of_an_order_topic_waits_for_its_broker_instead_of_moving() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        a, b = cluster.brokers
        cluster.order["t"] = "broker-a:2;broker-b:2"
        key_of_b = next(f"k{number}" for number in range(99) if queue_of(f"k{number}").broker_name == "broker-b")
        key_of_a = next(f"k{number}" for number in range(99) if queue_of(f"k{number}").broker_name == "broker-a")
        first = await producer.send("t", b"1", sharding_key=key_of_b)
        # The broker goes, and the name server says so.
        cluster.topics["t"] = [a]
        await b.stop()
        await asyncio.sleep(60)
        with pytest.raises(SendError, match="no master") as caught:
            await producer.send("t", b"lost", sharding_key=key_of_b)
        assert not caught.value.may_be_stored
        assert (await producer.send("t", b"x", sharding_key=key_of_a)).queue == queue_of(key_of_a)
        # Messages without a key do not wait.
        assert {(await producer.send("t", b"y")).queue.broker_name for _ in range(4)} == {"broker-a"}
        waiting = asyncio.ensure_future(producer.send("t", b"2", sharding_key=key_of_b, timeout=30))
        await asyncio.sleep(5)
        assert not waiting.done()
        await b.start()
        cluster.topics["t"] = [a, b]
        assert (await waiting).queue == first.queue
        assert [kept.body for kept in b.kept] == [b"1", b"2"]

    run(scenario)


@pytest.mark.parametrize("conf", ["", ";", "broker-a", "broker-a:", ":3", "broker-a:x", "broker-a:-1", "broker-a:²"])
def test_an_order_configuration_nobody_understands_is_none(conf: str) -> None:
    data = TopicRouteData([QueueData("broker-a", 2, 2, 6)], [BrokerData("c", "broker-a", {0: "a:1"})], conf)
    assert TopicRoute.from_data("t", data).publish == (Queue("t", "broker-a", 0), Queue("t", "broker-a", 1))


def test_without_the_configuration_keys_move_with_the_queues() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        cluster.topics["t"] = cluster.brokers[:1]
        moved = {(await producer.send("t", b"x", sharding_key=f"k{number}")).queue for number in range(20)}
        assert moved == set(all_queues(brokers=1))

    run(scenario)


# -- namespaces


def test_a_namespace_is_on_the_wire_and_not_in_the_program() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        cluster.topics = {"ns%t": cluster.brokers}
        seen: list[Queue] = []

        def look(queues: Sequence[Queue], message: OutgoingMessage, arg: object) -> Queue:
            seen[:] = queues
            return queues[0]

        receipt = await producer.send("t", b"1", select=look)
        assert seen == all_queues()
        assert receipt.queue == Queue("t", "broker-a", 0)
        await producer.send("t", b"2")
        await producer.send("t", b"3", sharding_key="k", tag="x")
        await producer.send("ns%t", b"4")
        await producer.send_oneway("t", b"5", queue=receipt.queue)
        await producer.send_batch("t", [b"6", OutgoingMessage(topic="t", body=b"7")])
        await asyncio.sleep(1)
        kept = [kept for broker in cluster.brokers for kept in broker.kept]
        assert len(kept) == 6
        assert {each.header.topic for each in kept} == {"ns%t"}
        assert {each.header.producer_group for each in kept} == {"ns%p"}
        assert [each.properties.get("INSTANCE_ID") for each in kept if not each.header.batch] == ["ns"] * 5
        assert b"INSTANCE_ID\x01ns\x02" in next(each.body for each in kept if each.header.batch)
        groups = {name for data in cluster.brokers[0].told for name in data.producers}
        assert groups == {"ns%p", "CLIENT_INNER_PRODUCER"}
        # A route that changes is noticed under either name.
        cluster.topics["ns%t"] = cluster.brokers[:1]
        await asyncio.sleep(60)
        assert {(await producer.send("t", b"x")).queue.broker_name for _ in range(8)} == {"broker-a"}

    run(scenario, namespace="ns")


# -- compression


@pytest.mark.parametrize(("kind", "bits"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
def test_bodies_are_compressed_as_configured(kind: str, bits: int) -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        await producer.send("t", b"a" * 5000)
        await producer.send("t", b"a" * 4095)
        large, small = sorted(
            (kept for broker in cluster.brokers for kept in broker.kept), key=lambda kept: -kept.header.sys_flag
        )
        assert (large.header.sys_flag, small.header.sys_flag) == (bits, 0)
        assert decompress(large.body, bits & 0x700) == b"a" * 5000
        assert len(large.body) < 1000
        assert kind != "zlib" or zlib.decompress(large.body) == b"a" * 5000

    run(scenario, config=ProducerConfig(compress_type=kind))  # type: ignore[arg-type]


def test_a_compression_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="'zlib', 'lz4' or 'zstd'"):
        ProducerConfig(compress_type="gzip")  # type: ignore[arg-type]


async def test_a_compression_whose_library_is_missing_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    producer = Producer("p", nameservers=NAMES, env=memory_env(), config=ProducerConfig(compress_type="zstd"))
    with pytest.raises(UsageError, match=r"pip install aiorocketmq\[zstd\]"):
        await producer.start()
    await producer.stop()


# -- hooks


class Recorder:
    def __init__(self) -> None:
        self.before_calls: list[SendContext] = []
        self.after_calls: list[SendContext] = []

    def before(self, context: SendContext) -> None:
        self.before_calls.append(context)
        context.props["seen"] = "yes"

    def after(self, context: SendContext) -> None:
        self.after_calls.append(context)


class Broken:
    def before(self, context: SendContext) -> None:
        raise ValueError("before")

    after = before


def test_hooks_see_every_attempt_and_change_nothing() -> None:
    recorder = Recorder()

    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        a = cluster.brokers[0]
        busy = [True]
        a.on_send = lambda kept: refusal() if busy and busy.pop() else a.stored()
        receipt = await producer.send("t", b"x", tag="paid", keys=["k"])
        failed, sent = recorder.after_calls
        assert recorder.before_calls == recorder.after_calls
        assert (failed.receipt, failed.error is not None, sent.receipt, sent.error) == (None, True, receipt, None)
        assert (sent.group, sent.namespace, sent.mode, sent.msg_id) == ("p", "", "sync", receipt.msg_id)
        assert (sent.queue, sent.address, sent.body) == (receipt.queue, a.address, b"x")
        assert sent.properties == {"UNIQ_KEY": receipt.msg_id, "TAGS": "paid", "KEYS": "k"}
        assert sent.props == {"seen": "yes"}
        assert sent.took > 0
        await producer.send_oneway("t", b"o")
        await producer.send_batch("t", [b"1", b"2"])
        assert [context.mode for context in recorder.after_calls[2:]] == ["oneway", "batch"]
        assert recorder.after_calls[2].receipt is None
        assert recorder.after_calls[2].error is None
        with pytest.raises(UsageError):
            await producer.send("t", b"x", tag="a||b")
        assert len(recorder.before_calls) == 4

    run(scenario, brokers=1, hooks=[Broken(), recorder])


def test_a_hook_sees_the_error_of_an_attempt_without_answer() -> None:
    recorder = Recorder()

    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        cluster.brokers[0].on_send = lambda kept: None
        with pytest.raises(SendError):
            await producer.send("t", b"x", timeout=1)
        (context,) = recorder.after_calls
        assert "did not answer" in str(context.error)
        assert context.took == pytest.approx(1, abs=0.1)

    run(scenario, brokers=1, hooks=[recorder])
