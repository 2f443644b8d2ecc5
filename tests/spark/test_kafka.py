"""Jobs that come from Kafka: rows in its columns and back, and its options by habit."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from aiorocket.errors import UsageError
from aiorocket.model import OutgoingMessage
from aiorocket.spark import kafka_as_rocketmq, rocketmq_as_kafka
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.outgoing_rows import Columns
from tests.spark.producing import send
from tests.spark.row_frames import at, frame, row


def test_rows_as_kafka_has_them(spark: SparkSession) -> None:
    properties = {"colour": "grün", "__SHARDINGKEY": "customer-1"}
    rows = frame(spark, [row(3, queue=2, keys="k", born=1.0, properties=properties), row(4, queue=2, keys="k2")])
    found = rocketmq_as_kafka(rows)
    # Names and types as Spark's Kafka guide has them.
    assert [(name, kind) for name, kind in found.dtypes if name != "brokerName"] == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"),
        ("timestamp", "timestamp"), ("timestampType", "int"), ("headers", "array<struct<key:string,value:binary>>"),
    ]  # fmt: skip
    first, second = found.withColumn("ms", F.unix_millis("timestamp")).orderBy("offset").collect()
    assert (bytes(first.key), bytes(second.key), bytes(first.value)) == (b"customer-1", b"k2", b"x")
    assert (first.topic, first.partition, first.offset, first.timestampType) == ("orders", 2, 3, 0)
    assert (first.ms, first.brokerName) == (round(at(1.0).timestamp() * 1000), "broker-a")
    assert {each.key: bytes(each.value).decode() for each in first.headers} == properties
    with pytest.raises(UsageError, match="needs the columns properties"):
        rocketmq_as_kafka(rows.drop("properties"))


@pytest.mark.spark_long
def test_a_stream_as_kafka_has_it(spark: SparkSession, nameserver: str, topic: str, tmp_path: Path) -> None:
    send(nameserver, topic, [OutgoingMessage(topic="", body=b"v", keys=["k"], properties={"h": "1"})], queues=1)
    place = {"nameServer": nameserver, "topic": topic, "startingOffsets": "earliest"}
    rows = rocketmq_as_kafka(spark.readStream.format("rocketmq").options(**place).load())
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
    assert query.awaitTermination(100)
    [found] = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert (bytes(found.key), bytes(found.value)) == (b"k", b"v")
    assert (found.topic, found.partition, found.offset) == (topic, 0, 0)
    assert ("h", b"1") in [(each.key, bytes(each.value)) for each in found.headers]


@pytest.mark.spark_long
def test_rows_made_for_kafkas_sink_are_what_ours_takes(spark: SparkSession) -> None:
    made = spark.createDataFrame(
        [(b"k", b"v", [("h", b"1"), ("i", b"2"), ("h", b"3")]), (None, b"w", None)],
        "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>",
    )
    found = kafka_as_rocketmq(made)
    Columns(found.columns, [kind for _, kind in found.dtypes], topic="t", transactional=False)
    first, second = found.collect()
    assert (first.keys, first.shardingKey, bytes(first.body)) == ("k", "k", b"v")
    assert first.properties == {"h": "3", "i": "2"}
    assert (second.keys, second.shardingKey, second.properties) == (None, None, None)
    with pytest.raises(UsageError, match="timestamp: Kafka's sink takes headers, key"):
        kafka_as_rocketmq(made.withColumn("timestamp", F.current_timestamp()))
    with pytest.raises(UsageError, match=r"'value'.*kafka_as_rocketmq"):
        Columns(["key", "value"][1:], ["binary"], topic="t", transactional=False)


@pytest.mark.spark_long
def test_a_row_with_a_partition_goes_there_and_keeps_its_key(spark: SparkSession) -> None:
    """It was sent without its sharding key."""
    made = spark.createDataFrame(
        [(b"a", b"v", 2), (b"a", b"v", None), (None, b"v", 1)], "key BINARY, value BINARY, partition INT"
    )
    found = kafka_as_rocketmq(made)
    columns = Columns(found.columns, [kind for _, kind in found.dtypes], topic="t", transactional=False)
    sent = [row for batch in found.toArrow().to_batches() for row in columns.rows(batch)]
    keyed = "KEYS\x01a\x02__SHARDINGKEY\x01a\x02"
    assert [(row.queue_id, row.sharding_key, row.tail) for row in sent] == [
        (2, "a", keyed), (None, "a", keyed), (1, None, ""),
    ]  # fmt: skip


@pytest.mark.spark_long
def test_an_empty_key_is_none(spark: SparkSession) -> None:
    """Kafka takes one; RocketMQ's sharding key is not empty, and the job would end with its row."""
    made = spark.createDataFrame([(b"", b"v", 0), (b"", b"v", None)], "key BINARY, value BINARY, partition INT")
    for rows in (made, made.drop("partition")):
        found = kafka_as_rocketmq(rows)
        columns = Columns(found.columns, [kind for _, kind in found.dtypes], topic="t", transactional=False)
        sent = [row for batch in found.toArrow().to_batches() for row in columns.rows(batch)]
        assert [(row.sharding_key, row.tail) for row in sent] == [(None, "")] * 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("kafka.bootstrap.servers", "called nameServer"),
        ("subscribe", "called topic"),
        ("subscribePattern", "called topicPattern"),
        ("kafka.group.id", "called groupId"),
        ("kafka.sasl.jaas.config", "called accessKey, with secretKey"),
        ("kafka.max.poll.records", "called pullBatchSize"),
        ("kafka.isolation.level", "one of Kafka's clients"),
    ],
)
def test_kafkas_options_get_the_name_of_ours(given: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SourceOptions.parse({given: "x"})
