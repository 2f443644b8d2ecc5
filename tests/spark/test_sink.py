"""The sink's writers against a broker, driven as Spark drives them."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from aiorocket.errors import SendError, UsageError
from aiorocket.model import Queue
from aiorocket.spark.outgoing_rows import RowError
from aiorocket.spark.sink import batch_writer, stream_writer
from tests.spark.producing import create_topic
from tests.spark.writing import BODY, Stream, bodies, schema, stored, task, values, write_batch


def test_every_row_is_acknowledged_before_the_task_ends(nameserver: str, topic: str) -> None:
    create_topic(nameserver, topic)
    writer = batch_writer(BODY, {"nameServer": nameserver, "topic": topic}, False)
    sent = [f"{number:05}" for number in range(3000)]
    with task(1):
        written = writer.write(iter([bodies(*sent[:1000]), bodies(), bodies(*sent[1000:])]))
    assert values(nameserver, topic) == sent and written.rows == 3000
    writer.commit([written, None])
    assert len({view.properties["UNIQ_KEY"] for view in stored(nameserver, topic)}) == 3000


def test_columns_reach_the_broker(nameserver: str, topic: str) -> None:
    create_topic(nameserver, topic)
    other = topic + "-other"
    frame = pa.RecordBatch.from_pydict({
        "body": ["plain", "pinned", "keyed", "x" * 5000, "late"],
        "topic": [None, None, other, None, None],
        "keys": [["a", "b"], None, None, None, None],
        "tags": ["t", None, None, None, None],
        "properties": pa.array([[("p", "ü")], None, None, None, None], pa.map_(pa.string(), pa.string())),
        "queueId": pa.array([None, 2, None, None, None], pa.int32()),
        "shardingKey": [None, "k", "s", None, None],
        "delayLevel": pa.array([None, None, None, None, 18], pa.int32()),
    })  # fmt: skip
    types = schema(
        body="string", topic="string", keys="array<string>", tags="string", properties="map<string,string>",
        queueId="int", shardingKey="string", delayLevel="int",
    )  # fmt: skip
    write_batch(nameserver, frame, types, topic=topic)
    found = {view.body.decode()[:6]: view for view in stored(nameserver, topic)}
    assert set(found) == {"plain", "pinned", "xxxxxx"}  # the late one waits for two hours
    plain = found["plain"]
    assert (plain.keys, plain.tag, plain.properties["p"]) == (["a", "b"], "t", "ü")
    assert (found["pinned"].queue_id, found["pinned"].properties["__SHARDINGKEY"]) == (2, "k")
    assert found["xxxxxx"].sys_flag & 1 and len(found["xxxxxx"].raw_body) < 100
    (keyed,) = stored(nameserver, other)
    assert keyed.properties["__SHARDINGKEY"] == "s"


def test_rows_of_a_sharding_key_or_queue_keep_their_order(nameserver: str, topic: str) -> None:
    create_topic(nameserver, topic)
    keys = [None if number % 5 == 0 else f"key-{number % 7}" for number in range(500)]
    queues = [3 if number % 5 == 0 else None for number in range(500)]
    body = [f"{number:03}" + ("x" * 5000 if number % 50 == 1 else "") for number in range(500)]
    frame = pa.RecordBatch.from_pydict({"body": body, "shardingKey": keys, "queueId": pa.array(queues, pa.int32())})
    types = schema(body="string", shardingKey="string", queueId="int")
    for mode in ("atLeastOnce", "exactlyOnce"):
        name = topic if mode == "atLeastOnce" else topic + "-tx"
        create_topic(nameserver, name)
        write_batch(nameserver, frame, types, topic=name, sinkMode=mode, batchSize="16", ledgerTopic=topic + "-ledger")
        order: dict[object, list[bytes]] = defaultdict(list)
        for view in stored(nameserver, name):
            order[view.properties.get("__SHARDINGKEY", view.queue_id)].append(view.body)
        assert sum(map(len, order.values())) == 500
        assert all(seen == sorted(seen) for seen in order.values())
        assert len(order[3]) == 100


def test_a_batch_of_large_rows_stays_below_the_limit_of_brokers(nameserver: str, topic: str) -> None:
    write_batch(nameserver, bodies(*[bytes([65 + n]) * 300_000 for n in range(20)]), BODY, topic=topic,
                compressOver="1000000")  # fmt: skip
    assert len(stored(nameserver, topic)) == 20


def test_a_queue_that_is_not_there_is_named_before_anything_is_sent(nameserver: str, topic: str) -> None:
    create_topic(nameserver, topic, 2)
    frame = pa.RecordBatch.from_pydict({"body": ["1", "2"], "queueId": pa.array([0, 2], pa.int32())})
    with pytest.raises(RowError, match=r"partition 0, row 1, column queueId: .* no writable queue 2; there are .*:0, "):
        write_batch(nameserver, frame, schema(body="string", queueId="int"), topic=topic)
    (queue, _) = create_topic(nameserver, topic, 2)
    frame = pa.RecordBatch.from_pydict(
        {"body": ["1", "2"], "queueId": pa.array([0, 1], pa.int32()), "brokerName": [queue.broker_name, "nobody"]}
    )
    types = schema(body="string", queueId="int", brokerName="string")
    with pytest.raises(RowError, match="no writable queue nobody:1"):
        write_batch(nameserver, frame, types, topic=topic)
    assert stored(nameserver, topic) == []
    write_batch(nameserver, frame.slice(0, 1), types, topic=topic)
    assert [Queue(topic, queue.broker_name, view.queue_id) for view in stored(nameserver, topic)] == [queue]


def test_a_deliver_timestamp_that_the_broker_refuses_is_the_row_s_error(nameserver: str, topic: str) -> None:
    create_topic(nameserver, topic)
    frame = pa.RecordBatch.from_pydict(
        {"body": ["now", "later"], "deliverTimestamp": [None, datetime(2040, 1, 1, tzinfo=UTC)]}
    )
    with pytest.raises(SendError, match=r"partition 0, row 1 .*not be bigger than the max delay") as failed:
        write_batch(nameserver, frame, schema(body="string", deliverTimestamp="timestamp"), topic=topic)
    assert not failed.value.may_be_stored
    assert values(nameserver, topic) == ["now"]  # the others have ended; the failed task sends them again


def test_a_broker_that_does_not_know_timers_gets_no_row_with_one(
    nameserver: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(nameserver, topic)
    monkeypatch.setattr("aiorocket.client.sending.timed.VERSION_WITH_TIMERS", 9999)
    frame = pa.RecordBatch.from_pydict({"body": ["1", "2"], "deliverTimestamp": pa.array([None, 2_000_000_000_000])})
    with pytest.raises(RowError, match=r"row 1, column deliverTimestamp: .* it would deliver at once"):
        write_batch(nameserver, frame, schema(body="string", deliverTimestamp="bigint"), topic=topic)
    assert stored(nameserver, topic) == []


def test_the_first_row_that_fails_is_named_when_the_others_have_ended(nameserver: str, topic: str) -> None:
    create_topic(nameserver, topic)
    frame = pa.RecordBatch.from_pydict(
        {"body": ["1", "2", "3"], "deliverTimestamp": pa.array([None, 2_000_000_000_000, 2_000_000_000_000])}
    )
    with pytest.raises(SendError, match=r"row 1 for topic .*; 1 more requests failed"):
        write_batch(nameserver, frame, schema(body="string", deliverTimestamp="bigint"), topic=topic)
    assert values(nameserver, topic) == ["1"]


def test_properties_that_a_namespace_makes_too_long_are_the_rows_error(nameserver: str, topic: str) -> None:
    long = [("a", "x" * (32_767 - len("UNIQ_KEY\x01") - 33 - len("a\x01\x02")))]
    frame = pa.RecordBatch.from_pydict(
        {"body": ["1", "2"], "properties": pa.array([None, long], pa.map_(pa.string(), pa.string()))}
    )
    types = schema(body="string", properties="map<string,string>")
    with pytest.raises(SendError, match=r"partition 0, rows 0 to 1 .*properties of 327\d\d bytes; at most 32767"):
        write_batch(nameserver, frame, types, topic=topic, namespace="ns")


def test_idempotent_rows_have_the_same_name_in_every_attempt(nameserver: str, topic: str) -> None:
    stream = Stream(nameserver, topic, "q-1", sinkMode="idempotent")
    for _ in range(2):
        stream.run(7, ["a", "b"], ["c"])
    names = [(view.body, view.properties["SPARK_TXN"]) for view in stored(nameserver, topic)]
    assert len(names) == 6 and set(names) == {(b"a", "q-1/7/0/0"), (b"b", "q-1/7/0/1"), (b"c", "q-1/7/1/0")}
    write_batch(nameserver, bodies("d"), BODY, topic=topic + "-b", sinkMode="idempotent", queryId="nightly")
    assert [view.properties["SPARK_TXN"] for view in stored(nameserver, topic + "-b")] == ["nightly/0/0/0"]


@pytest.mark.parametrize("mode", ["atLeastOnce", "idempotent", "exactlyOnce"])
def test_a_namespace_is_in_front_of_everything(nameserver: str, topic: str, mode: str) -> None:
    stream = Stream(nameserver, topic, f"q-{mode}", sinkMode=mode, namespace="ns", ledgerTopic=topic + "-ledger")
    stream.run(0, ["a"])
    stream.run(1, ["b"])
    assert values(nameserver, f"ns%{topic}") == ["a", "b"] and values(nameserver, topic) == []
    assert len(stored(nameserver, f"ns%{topic}-ledger")) == (5 if mode == "exactlyOnce" else 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "which topic"),
        ({"topic": "a,b"}, "one"),
        ({"topic": "t", "sinkMode": "twice"}, "sinkMode"),
        ({"topic": "t", "queryId": "with blanks"}, "queryId"),
    ],
)
def test_options_that_cannot_work(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        batch_writer(BODY, {"nameServer": "a:1", **options}, False)


def test_a_topic_is_never_overwritten() -> None:
    with pytest.raises(UsageError, match=r"append"):
        batch_writer(BODY, {"nameServer": "a:1", "topic": "t"}, True)
    with pytest.raises(UsageError, match=r"append"):
        stream_writer(BODY, {"nameServer": "a:1", "topic": "t"}, True)
    with pytest.raises(UsageError, match="checkpoint"):
        stream_writer(BODY, {"nameServer": "a:1", "topic": "t", "queryId": "q"}, False)
