"""Metrics, spans and log lines of a client, from what an application does to what their readers get."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry, generate_latest

from aiorocket import Admin, Client, DeadLetter, Message, Producer, Retry, Router, SendError, Skip, UsageError
from aiorocket.client.health import BrokerHealth, Health
from aiorocket.client.sending.outgoing import property_text
from aiorocket.runtime.threads import in_thread
from aiorocket.telemetry import prometheus
from aiorocket.telemetry.logs import JsonLines, MessageContext, current_message
from aiorocket.telemetry.message_trace import (
    TRACE_TOPIC,
    MessageTrace,
    TraceRecord,
    read_trace,
    trace_of,
    write_trace,
)
from aiorocket.telemetry.otel import OpenTelemetry
from aiorocket.telemetry.prometheus import Prometheus
from aiorocket.testing import LocalRocketMQ
from tests.storage.stores import HOST

Handler = Callable[[Message], None]


async def ends(message: Message) -> None:
    if message.body == b"dead":
        raise DeadLetter("no use")
    if message.body == b"skip":
        raise Skip
    if message.body == b"again" and message.attempt == 1:
        raise Retry(after=1)


async def test_metrics(rocketmq: LocalRocketMQ) -> None:
    await rocketmq.create_topic("t", queues=1)
    registry, router = CollectorRegistry(), Router("g")
    router.listener("t", start_from="first")(ends)
    metrics = Prometheus(registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"rocketmq_client_{name}", labels)

    client = Client(nameservers=rocketmq.nameserver_address, group="p", middleware=[metrics])
    client.include(router)
    assert "rocketmq_client_lag_messages{" not in generate_latest(registry).decode()
    async with client, client.running():
        for body in (b"good", b"dead", b"skip", b"again"):
            await client.send("t", body)
        with pytest.raises(UsageError):
            await client.send("t", b"")
        await rocketmq.settled()
        await rocketmq.clock.advance(minutes=1)
        assert (value("sent_messages_total", topic="t"), value("send_seconds_count", topic="t")) == (4, 5)
        assert value("send_errors_total", topic="t", error="UsageError") == 1
        assert value("sends_in_flight", topic="t") == value("consuming", group="g", topic="t") == 0
        consumed = {
            end: value("consumed_messages_total", group="g", topic="t", end=end)
            for end in ("done", "dead_letter", "skipped", "failed")
        }
        assert consumed == {"done": 2, "dead_letter": 1, "skipped": 1, "failed": 1}
        assert value("redelivered_messages_total", group="g", topic="t") == 1
        assert value("consume_seconds_count", group="g", topic="t") == 5
        assert value("dead_lettered_messages_total", group="g") == value("retried_messages_total", group="g") == 1
        assert value("lag_messages", group="g", topic="t", broker="broker-a", queue="0") == 0
        assert value("held_queues", group="g") == 2  # its retry topic's is one
        assert value("consumer_running", group="g") == value("ready", client=client.client_id) == 1
        assert value("broker_connected", address=rocketmq.broker.address) == 1
        assert "rocketmq_client_lag_messages{" in (await in_thread(generate_latest, registry)).decode()
    assert value("held_queues", group="g") is None


async def test_spans(rocketmq: LocalRocketMQ) -> None:
    await rocketmq.create_topic("t", queues=1)
    await rocketmq.create_topic("many", queues=1)
    exporter, provider, router = InMemorySpanExporter(), TracerProvider(), Router("g")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    router.listener("t", start_from="first")(ends)
    router.listener("many", batch_size=8, start_from="first")(lambda messages: None)
    client = Client(nameservers=rocketmq.nameserver_address, group="p", middleware=[OpenTelemetry(provider)])
    client.include(router)
    async with client, client.producer("other") as producer:
        await client.send("t", b"again", tag="a", keys=["k"], sharding_key="s", properties={"own": "1"})
        await client.send("t", b"dead")
        with pytest.raises(UsageError):
            await client.send("t", b"")
        await producer.send_batch("many", [b"1", b"2"])
        async with client.running():
            await rocketmq.settled()
            await rocketmq.clock.advance(minutes=1)
    spans = exporter.get_finished_spans()

    def named(name: str) -> list[ReadableSpan]:
        return [each for each in spans if each.name == name]

    def said(span: ReadableSpan) -> dict[str, Any]:
        return {name.removeprefix("messaging."): value for name, value in (span.attributes or {}).items()}

    again, _, refused = named("send t")
    first, *_ = deliveries = [each for each in named("process t") if each.context.trace_id == again.context.trace_id]
    assert [each.parent and each.parent.span_id for each in deliveries] == [again.context.span_id] * 2
    assert [each.kind for each in (again, first)] == [SpanKind.PRODUCER, SpanKind.CONSUMER]
    assert [each.status.status_code for each in deliveries] == [StatusCode.ERROR, StatusCode.UNSET]
    assert [said(each)["rocketmq.message.reconsume_times"] for each in deliveries] == [0, 1]
    stored = rocketmq.messages("t")[0]
    common = {
        "system": "rocketmq", "destination.name": "t", "message.id": stored.msg_id, "message.body.size": 5,
        "destination.partition.id": "0", "rocketmq.message.tag": "a", "rocketmq.message.keys": ("k",),
        "rocketmq.message.group": "s",
    }  # fmt: skip
    send = {"operation.name": "send", "operation.type": "send", "rocketmq.message.type": "fifo"}
    assert said(again) == common | send
    process = {"operation.name": "process", "operation.type": "process", "consumer.group.name": "g"}
    assert said(first) == common | process | {"rocketmq.message.reconsume_times": 0, "error.type": "Retry"}
    assert stored.properties["own"] == "1" and "traceparent" in stored.properties
    assert said(refused)["error.type"] == "UsageError" and refused.status.status_code is StatusCode.ERROR
    assert [said(each)["error.type"] for each in named("process t") if each not in deliveries] == ["DeadLetter"]

    created, [sent], [processed] = named("create many"), named("send many"), named("process many")
    ids = [each.context.span_id for each in created]
    assert len(ids) == 2 and [each.context.span_id for each in sent.links] == ids and sent.kind is SpanKind.CLIENT
    assert [each.context.span_id for each in processed.links] == ids and processed.parent is None
    assert said(processed)["batch.message_count"] == said(sent)["batch.message_count"] == 2


async def test_repetitions_of_a_send_are_seen(rocketmq: LocalRocketMQ) -> None:
    await rocketmq.create_topic("t", queues=1)
    exporter, provider, registry = InMemorySpanExporter(), TracerProvider(), CollectorRegistry()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    middleware = [OpenTelemetry(provider), Prometheus(registry)]
    async with Client(nameservers=rocketmq.nameserver_address, group="p", middleware=middleware) as client:
        await client.send("t", b"1")
        rocketmq.faults.next("SEND_MESSAGE_V2", reply="SYSTEM_BUSY", times=2)
        await client.send("t", b"2")
    quiet, busy = exporter.get_finished_spans()
    assert not quiet.events
    told = [(each.name, (each.attributes or {})["error.type"]) for each in busy.events]
    assert told == [("retry", "BrokerBusyError")] * 2
    labels = {"topic": "t", "error": "BrokerBusyError"}
    assert registry.get_sample_value("rocketmq_client_send_retries_total", labels) == 2


async def test_message_trace(rocketmq: LocalRocketMQ) -> None:
    """Written while the application works, found by the id of a message."""
    await rocketmq.create_topic("t", queues=1)
    router, address = Router("g"), rocketmq.nameserver_address
    router.listener("t", start_from="first")(ends)
    async with (
        Producer("tracing", nameservers=address) as producer,
        MessageTrace(producer, group="p", interval=0.01) as trace,
        Client(nameservers=address, group="p", middleware=[trace]) as client,
    ):
        client.include(router)
        receipt = await client.send("t", b"again", tag="a", keys=["k1", "k2"], sharding_key="s")
        await client.send("t", b"other")
        async with client.running():
            await rocketmq.settled()
            await rocketmq.clock.advance(minutes=1)
    assert trace.dropped == 0
    async with Admin(nameservers=address) as admin:
        pub, *calls = await trace_of(admin, receipt.msg_id)
    assert pub == TraceRecord(
        "Pub", receipt.msg_id, pub.timestamp, "DefaultRegion", "p", "t", "a", "k1 k2", rocketmq.broker.address, 5,
        pub.cost, 4, receipt.offset_msg_id,
    )  # fmt: skip
    assert [(each.kind, each.retry_times, each.success, each.context_code) for each in calls] == [
        ("SubBefore", 0, True, 0), ("SubAfter", 0, False, 4), ("SubBefore", 1, True, 0), ("SubAfter", 0, True, 0),
    ]  # fmt: skip
    assert {each.group for each in calls} == {"g"} and {each.keys for each in calls} == {"k1 k2"}
    assert calls[0].request_id == calls[1].request_id != calls[2].request_id == calls[3].request_id


async def test_a_trace_that_cannot_be_written_costs_nothing(rocketmq: LocalRocketMQ) -> None:
    await rocketmq.create_topic("t", queues=1)
    address = rocketmq.nameserver_address
    producer = Producer("tracing", nameservers=address)
    async with producer:
        trace = MessageTrace(producer, most=3)
        async with Client(nameservers=address, group="p", middleware=[trace]) as client:
            for number in range(5):
                await client.send("t", b"%d" % number)
    await trace.flush()  # its producer has stopped
    assert trace.dropped == 5


TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"])).filter("null".__ne__)


@given(st.lists(TEXT, min_size=7, max_size=7), st.integers(0, 2**62))
def test_a_trace_is_read_as_it_was_written(texts: list[str], timestamp: int) -> None:
    msg_id, *rest = texts
    record = TraceRecord("Pub", msg_id, timestamp, *rest, cost=3, message_type=4, offset_msg_id=msg_id, success=False)
    assert read_trace((write_trace(record) * 2).encode()) == [record, record]


@given(st.binary())
def test_any_bytes_are_a_trace_or_none(body: bytes) -> None:
    read_trace(body)
    read_trace(b"\x02".join(b"\x01".join([kind, body, body]) for kind in (b"Pub", b"SubBefore", b"SubAfter")))


def test_the_traces_of_other_clients_are_read() -> None:
    """Java's of 5.x, its older form of twelve fields, and one with the client's host."""
    java = "Pub|1700000000000|DefaultRegion|P|t|ID|tag|key|1.2.3.4:10911|5|3|0|OFFSET|true"
    older = "Pub|1700000000000|DefaultRegion|P|t|ID|tag|key|1.2.3.4:10911|5|3|0|true"
    before = "SubBefore|1700000000001||G|R|ID|2|null"
    after = "SubAfter|R|ID|7|false|key|2|1700000000009|G"
    text = "~".join((java, f"{java}|9.9.9.9", older, before, after, "Pub|x", "Other|1", ""))
    records = read_trace(text.replace("|", "\x01").replace("~", "\x02").encode())
    first, hosted, old, begun, ended = records
    assert first == TraceRecord(
        "Pub", "ID", 1700000000000, "DefaultRegion", "P", "t", "tag", "key", "1.2.3.4:10911", 5, 3, 0, "OFFSET", True
    )
    assert hosted == first._replace(client_host="9.9.9.9") and old == first._replace(offset_msg_id="")
    assert (begun.retry_times, begun.keys, begun.group) == (2, "", "G")
    assert (ended.cost, ended.success, ended.context_code, ended.timestamp) == (7, False, 2, 1700000000009)


@pytest.mark.parametrize("plain", [False, True])
async def test_log_lines_name_their_message(rocketmq: LocalRocketMQ, plain: bool) -> None:
    await rocketmq.create_topic("t", queues=1)
    context, text, log = MessageContext(), StringIO(), logging.getLogger("shop")
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonLines())
    handler.addFilter(context)
    log.addHandler(handler)
    router = Router("g", middleware=[context])

    async def listener(message: Message) -> None:
        try:
            raise ValueError(message.body.decode())
        except ValueError:
            log.warning("%d left", 3, exc_info=True)

    if plain:
        router.listener("t", start_from="first")(lambda message: log.warning("%d left", 3))
    else:
        router.listener("t", start_from="first")(listener)
    try:
        async with rocketmq.consumer(router):
            receipt = await rocketmq.send("t", b"x")
            await rocketmq.settled()
        log.warning("after")
    finally:
        log.removeHandler(handler)
    line, after = map(json.loads, text.getvalue().splitlines())
    assert line.pop("time") and ("ValueError: x" in line.pop("error", "") or plain)
    assert line == {
        "level": "WARNING", "logger": "shop", "text": "3 left", "group": "g", "topic": "t",
        "broker": receipt.queue.broker_name, "queue": 0, "offset": 0, "message_id": receipt.msg_id, "attempt": 1,
    }  # fmt: skip
    assert after.keys() == {"time", "level", "logger", "text"} and current_message() == {}


class Taking:
    """A producer of trace messages: what it got, and when it goes on."""

    group = "tracing"

    def __init__(self, error: Exception | None = None) -> None:
        self.sent: list[tuple[list[TraceRecord], list[str]]] = []
        self.goes_on = asyncio.Event()
        self.error = error

    async def send(self, topic: str, body: bytes, *, keys: list[str]) -> None:
        self.sent.append((read_trace(body), keys))
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error


async def _call(trace: MessageTrace, msg_id: str, keys: Sequence[str] = (), topic: str = "t") -> None:
    message: Any = SimpleNamespace(
        msg_id=msg_id, keys=keys, topic=topic, properties={}, group="g", reconsume_times=0, tag="", sharding_key=None
    )  # fmt: skip

    async def listener(messages: list[Message]) -> None: ...

    await trace.consume([message], listener)


async def test_what_comes_while_the_last_records_are_sent_is_sent_too() -> None:
    producer: Any = Taking()
    async with MessageTrace(producer, interval=0.001) as trace:
        await _call(trace, "1")
        async with asyncio.timeout(30):
            while not producer.sent:
                await asyncio.sleep(0.001)
        await _call(trace, "2")
        asyncio.get_running_loop().call_later(0.01, producer.goes_on.set)
    assert [[each.msg_id for each in records] for records, _ in producer.sent] == [["1"] * 2, ["2"] * 2]
    assert trace.dropped == 0


async def test_the_end_does_not_wait_for_a_broker_that_is_away() -> None:
    """Of 2,048 records each message would take as long as its producer tries."""
    producer: Any = Taking(SendError("nobody is there", may_be_stored=False))
    async with MessageTrace(producer, interval=100) as trace:
        for number in range(1024):
            await _call(trace, str(number))
        producer.goes_on.set()
    assert len(producer.sent) == 1 and trace.dropped == 2048


async def test_keys_of_others_lose_no_record() -> None:
    """Whatever ids and keys a message came with, those of its trace can be stored."""
    producer: Any = Taking()
    producer.goes_on.set()
    async with MessageTrace(producer, interval=100) as trace:
        await _call(trace, "two words")
        for number in range(4):
            await _call(trace, str(number), ["\u4e2d" * 2500, "k"])
    assert sum(len(records) for records, _ in producer.sent) == 10
    for _, keys in producer.sent:
        property_text("id", "", keys, None, None, 0)


async def test_a_trace_is_not_traced(rocketmq: LocalRocketMQ) -> None:
    """Where traces are consumed there would be no end of them."""
    await rocketmq.create_topic("t", queues=1)
    router, bodies, address = Router("g"), list[bytes](), rocketmq.nameserver_address

    @router.listener(TRACE_TOPIC, start_from="first")
    async def listener(message: Message) -> None:
        bodies.append(message.body)

    async with Producer("tracing", nameservers=address) as producer:
        trace = MessageTrace(producer)
        await producer.send(TRACE_TOPIC, b"the first one creates it")
        async with Client(nameservers=address, group="p", middleware=[trace]) as client:
            client.include(router)
            async with client.running():
                await client.send("t", b"x")
                for _ in range(3):
                    await trace.flush()
                    await rocketmq.settled()
                await client.send(TRACE_TOPIC, bodies[0])
        await trace.flush()
    assert len(rocketmq.messages(TRACE_TOPIC)) == 3 and trace.dropped == 0


async def test_two_clients_of_one_group_are_one_series(rocketmq: LocalRocketMQ) -> None:
    """What is exposed twice Prometheus takes once, or refuses."""
    await rocketmq.create_topic("t", queues=2)
    registry, routers = CollectorRegistry(), (Router("g"), Router("g"))
    metrics, address = Prometheus(registry), rocketmq.nameserver_address
    first, second = (Client(nameservers=address, group="p", middleware=[metrics]) for _ in range(2))
    for client, router in zip((first, second), routers, strict=True):
        router.listener("t", start_from="first")(ends)
        client.include(router)
    async with first, second, first.running(), second.running():
        await first.send("t", b"dead")
        await rocketmq.settled()
        text = generate_latest(registry).decode()
        series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
        assert sorted(series) == sorted(set(series))
        states = first.consumer_states() + second.consumer_states()
        held = registry.get_sample_value("rocketmq_client_held_queues", {"group": "g"})
        assert held == sum(len(each.queues) for each in states) > len(states[0].queues)
        assert registry.get_sample_value("rocketmq_client_dead_lettered_messages_total", {"group": "g"}) == 1
        assert registry.get_sample_value("rocketmq_client_consumer_running", {"group": "g"}) == 1


@pytest.mark.parametrize("connected", [(True, False), (False, True)])
def test_a_broker_that_one_of_several_clients_reaches_is_connected(
    connected: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them is looked at last."""
    healths = [
        Health(ready=True, reasons=(), client_id=str(number), consumers=(),
               brokers=(BrokerHealth(address="mq:10911", connected=each),))
        for number, each in enumerate(connected)
    ]  # fmt: skip
    registry = CollectorRegistry()
    metrics, clients = Prometheus(registry), [Client(nameservers="mq:9876") for _ in range(2)]
    for client in clients:
        metrics.attached(client)
    monkeypatch.setattr(prometheus, "_look", lambda _: ([], healths.pop(0)))
    assert 'rocketmq_client_broker_connected{address="mq:10911"} 1.0' in generate_latest(registry).decode()


async def test_names_of_others_are_not_kept_for_ever() -> None:
    """A message of a retry topic says itself where it was sent first, and a send may go where a user wants."""
    registry = CollectorRegistry()
    metrics = Prometheus(registry, buckets=[1])

    async def called(messages: list[Any]) -> tuple[()]:
        return ()

    async def use(topic: str) -> None:
        message: Any = SimpleNamespace(group="g", topic=topic, attempt=1)
        await metrics.consume([message], called)
        await metrics.publish([message], called)

    for number in range(1100):
        await use(str(number))
    many = len(generate_latest(registry))
    for number in range(1100, 1200):
        await use("x" * number)
    assert len(generate_latest(registry)) < many + 1000
    for name in ("sent_messages_total", "consume_seconds_count"):
        labels = {"group": "g"} if name.startswith("consume") else {}
        found = [
            registry.get_sample_value(f"rocketmq_client_{name}", labels | {"topic": topic}) for topic in ("7", "other")
        ]
        assert found == [1, 200]


@pytest.mark.parametrize("watching", [OpenTelemetry, Prometheus, MessageContext, MessageTrace])
async def test_properties_that_are_no_text_reach_the_listener(rocketmq: LocalRocketMQ, watching: Any) -> None:
    """Another language's client may send any bytes. Whether they matter is the listener's business."""
    await rocketmq.create_topic("t", queues=1)
    router, got = Router("g"), list[bytes]()

    @router.listener("t", start_from="first")
    async def listener(message: Message) -> None:
        got.append(message.body)

    taking: Any = Taking()
    given = {OpenTelemetry: (TracerProvider(),), Prometheus: (CollectorRegistry(),), MessageTrace: (taking,)}
    middleware = [watching(*given.get(watching, ()))]
    properties = b"own\x01\xff\xfe\x02KEYS\x01\xfa\x02UNIQ_KEY\x01\xfb\x02"
    rocketmq.broker.store.append(
        "t",
        0,
        b"x",
        properties,
        flag=0,
        sys_flag=0,
        born_timestamp=7,
        born_host=HOST,
        tags_code=0,
        done=lambda result: None,
    )
    async with Client(nameservers=rocketmq.nameserver_address, middleware=middleware) as client:
        client.include(router)
        async with client.running():
            await rocketmq.settled()
    assert got == [b"x"]
