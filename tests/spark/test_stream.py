"""Streams through Spark: batches, restarts and crashes, against a broker in this process."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.functions import col

from aiorocket.embedded import Embedded, embed
from aiorocket.runtime.threads import loop_in_thread
from aiorocket.spark import DataLossError, bridge, cluster, explain
from aiorocket.spark.failures import raised
from aiorocket.spark.offsets import from_nested
from aiorocket.spark.options import SourceOptions
from tests.spark.producing import create_topic, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture(scope="module")
def mq() -> Iterator[Embedded]:
    """A broker that a test can reach into."""
    with loop_in_thread(embed()) as made:
        yield made


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def archive(
    spark: SparkSession, nameserver: str, lake: Path, topic: str | None, **options: Any
) -> tuple[StreamingQuery, list[dict[str, Any]]]:
    """Read what there is into Parquet, from the checkpoint if there is one; the query, ended, and its batches."""
    given = {"nameServer": nameserver, "startingOffsets": "earliest", **({"topic": topic} if topic else {}), **options}
    frame = spark.readStream.format("rocketmq").options(**given).load()
    rows = frame.select("topic", "brokerName", "queueId", "queueOffset", col("body").cast("string").alias("body"))
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{lake}-checkpoint")
    query = writer.trigger(availableNow=True).start(str(lake))
    try:
        assert query.awaitTermination(200)
    finally:
        query.stop()
    return query, [json.loads(each.json) for each in query.recentProgress]


def archived(spark: SparkSession, lake: Path) -> list[str]:
    rows = spark.read.parquet(str(lake)).collect()
    places = Counter((row.topic, row.brokerName, row.queueId, row.queueOffset) for row in rows)
    assert max(places.values()) == 1, "a message came twice"
    return sorted(row.body for row in rows)


def sizes(progress: list[dict[str, Any]]) -> list[int]:
    return [each["numInputRows"] for each in progress if each["numInputRows"]]


def names(*numbers: int) -> list[str]:
    return [f"m{number:04d}" for number in range(*numbers)]


def test_batches_restart_and_a_crash_before_the_last_commit(
    spark: SparkSession, nameserver: str, topic: str, lake: Path
) -> None:
    send(nameserver, topic, names(0, 110), queues=4)
    options = {"maxOffsetsPerTrigger": "40", "groupId": "archive", "commitOffsets": "true"}
    _, progress = archive(spark, nameserver, lake, topic, **options)
    assert sizes(progress) == [40, 40, 30]
    source = progress[0]["sources"][0]
    behind = from_nested(source["latestOffset"]), from_nested(source["endOffset"])
    assert sum(behind[0].values()) - sum(behind[1].values()) == 70, "the lag after the first batch"

    assert forget_last_commit(Path(f"{lake}-checkpoint")) == 2
    send(nameserver, topic, names(110, 135))
    _, progress = archive(spark, nameserver, lake, topic, **options)
    assert sizes(progress) == [25], "Parquet's log has the last batch, and it is not read again"
    assert archived(spark, lake) == names(0, 135)
    assert committed(nameserver, topic, "archive") == 135


def forget_last_commit(checkpoint: Path) -> int:
    """As if a batch was written, and Spark died before it recorded that; the batch's number."""
    commits = checkpoint / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink()
    return last


@pytest.mark.spark_long
def test_a_batch_that_is_replayed_has_the_same_messages(
    spark: SparkSession, nameserver: str, topic: str, tmp_path: Path
) -> None:
    seen: list[tuple[int, list[str]]] = []

    def keep(frame: DataFrame, number: int) -> None:
        seen.append((number, sorted(bytes(row.body).decode() for row in frame.select("body").collect())))

    def run() -> None:
        frame = spark.readStream.format("rocketmq").options(nameServer=nameserver, topic=topic)
        rows = frame.options(startingOffsets="earliest", maxOffsetsPerTrigger="20").load()
        query = rows.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(keep)
        assert query.trigger(availableNow=True).start().awaitTermination(200)

    send(nameserver, topic, names(0, 30), queues=2)
    run()
    assert forget_last_commit(tmp_path) == 1
    send(nameserver, topic, names(30, 35))
    run()
    assert [number for number, _ in seen] == [0, 1, 1, 2]
    assert seen[1] == seen[2]
    assert sorted(body for _, bodies in (*seen[:2], seen[3]) for body in bodies) == names(0, 35)


def committed(nameserver: str, topic: str, group: str) -> int:
    async def ask() -> int:
        options = SourceOptions.parse({"nameServer": nameserver, "topic": topic})
        client = await bridge.client(options.connection)
        offsets = await cluster.committed(client, group, await cluster.queues(client, options))
        return sum(offset or 0 for offset in offsets.values())

    return bridge.call(ask)


@pytest.mark.spark_long
def test_topics_and_queues_that_appear_between_runs(
    spark: SparkSession, nameserver: str, topic: str, lake: Path
) -> None:
    send(nameserver, f"{topic}-a", names(0, 10), queues=2)
    archive(spark, nameserver, lake, None, topicPattern=f"{topic}-.*")
    assert archived(spark, lake) == names(0, 10)
    create_topic(nameserver, f"{topic}-a", 4)
    send(nameserver, f"{topic}-a", names(10, 20))
    send(nameserver, f"{topic}-b", names(20, 25))
    send(nameserver, f"other-{topic}", names(90, 95))
    archive(spark, nameserver, lake, None, topicPattern=f"{topic}-.*")
    assert archived(spark, lake) == names(0, 25)


@pytest.mark.spark_long
def test_a_stream_from_the_latest_offset_remembers_where_it_began(
    spark: SparkSession, nameserver: str, topic: str, lake: Path
) -> None:
    send(nameserver, topic, names(0, 10))
    _, progress = archive(spark, nameserver, lake, topic, startingOffsets="latest")
    assert sizes(progress) == []
    send(nameserver, topic, names(10, 15))
    archive(spark, nameserver, lake, topic, startingOffsets="latest")
    assert archived(spark, lake) == names(10, 15)


@pytest.mark.spark_long
def test_retention_that_passes_the_query(spark: SparkSession, mq: Embedded, topic: str, lake: Path) -> None:
    nameserver = mq.nameserver_address
    send(nameserver, topic, names(0, 10), queues=1)
    archive(spark, nameserver, lake, topic)
    send(nameserver, topic, names(10, 30))
    mq.broker.store._queues[topic, 0].min_offset = 20
    with pytest.raises(StreamingQueryException) as caught:
        archive(spark, nameserver, lake, topic)
    for said in ("DataLossError", f"{topic}/{mq.broker.config.name}/0", "messages 10 to 19", "failOnDataLoss=false"):
        assert said in str(caught.value)
    archive(spark, nameserver, lake, topic, failOnDataLoss="false")
    assert archived(spark, lake) == names(0, 10) + names(20, 30)


def test_what_a_task_raised_is_told_from_what_spark_raises(spark: SparkSession, mq: Embedded, topic: str) -> None:
    send(mq.nameserver_address, topic, names(0, 10), queues=1)
    frame = spark.read.format("rocketmq").options(nameServer=mq.nameserver_address, topic=topic).load()
    assert frame.rdd.getNumPartitions() == 1  # which plans it
    mq.broker.store._queues[topic, 0].min_offset = 5
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    assert raised(caught.value) is DataLossError and "queue 0, offset 0: up to" in explain(caught.value)
    assert raised(ValueError("x")) is ValueError


@pytest.mark.spark_long
def test_a_running_stream_waits_for_enough_and_reports_what_there_is(
    spark: SparkSession, nameserver: str, topic: str, tmp_path: Path
) -> None:
    send(nameserver, topic, names(0, 5), queues=1)
    frame = (
        spark.readStream.format("rocketmq")
        .options(nameServer=nameserver, topic=topic, startingOffsets="earliest")
        .options(minOffsetsPerTrigger="20", maxOffsetsPerTrigger="30", maxTriggerDelay="1h")
        .load()
    )
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        assert sizes([json.loads(each.json) for each in query.recentProgress]) == [5], "the first batch begins at once"
        send(nameserver, topic, names(5, 24))
        query.processAllAvailable()
        assert sizes([json.loads(each.json) for each in query.recentProgress]) == [5], "19 are not enough"
        send(nameserver, topic, names(24, 40))
        query.processAllAvailable()
        progress = [json.loads(each.json) for each in query.recentProgress]
        assert sizes(progress) == [5, 30], "35 are, and 5 of them have to wait again"
        source = [each["sources"][0] for each in progress if each["numInputRows"]][-1]
        (latest,), (end,) = from_nested(source["latestOffset"]).values(), from_nested(source["endOffset"]).values()
        assert (latest, end) == (40, 35)
    finally:
        query.stop()


def test_an_option_that_a_stream_cannot_have_is_refused_with_its_reason(
    spark: SparkSession, nameserver: str, topic: str, lake: Path
) -> None:
    send(nameserver, topic, names(0, 1))
    with pytest.raises(StreamingQueryException, match="endingOffsets: a stream has no end"):
        archive(spark, nameserver, lake, topic, endingOffsets="latest")
