"""Batch reads of the embedded broker through Spark: what comes out is what was sent."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from aiorocket.errors import UsageError
from aiorocket.model import OutgoingMessage, Queue
from aiorocket.spark import DataLossError, cluster
from aiorocket.spark import bridge as spark_bridge
from aiorocket.spark import partition as task
from aiorocket.spark.batch import BatchReader
from aiorocket.spark.columns import LEGACY_COLUMNS, ROW_COLUMNS, arrow_schema, spark_schema
from aiorocket.spark.offsets import time_text
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.partition import QueuePartition
from aiorocket.spark.planner import QueueRange
from aiorocket.spark.source import RocketMQDataSource
from tests.spark.producing import create_topic, send

if TYPE_CHECKING:
    import pyarrow as pa

_PAUSE = 0.005


def read(spark: SparkSession, nameserver: str, topic: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameServer", nameserver)
    if topic is not None:
        reader = reader.option("topic", topic)
    schema = options.pop("schema", None)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.options(**options).load()


def bodies(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


# -- the same without Spark: most of what a reader does needs no JVM --


def reader(nameserver: str, topic: str | None = None, *, names: str = "", **options: str) -> BatchReader:
    given = {"nameServer": nameserver, **({"topic": topic} if topic else {}), **options}
    source = RocketMQDataSource(given)
    made = source.reader(spark_schema(names.split()) if names else source.schema())
    assert isinstance(made, BatchReader)
    return made


def alone(error: BaseException) -> None:
    """Beside what Spark says there is the cause, and of the way it came the one line that Python always has."""
    lines = str(error).splitlines()
    assert len(lines) <= 5 and sum(line.startswith('  File "') for line in lines) == 1, str(error)


def batches(reader: BatchReader) -> Iterator[pa.RecordBatch]:
    for partition in reader.partitions():
        # As Spark does it: both travel to the task.
        again: BatchReader = pickle.loads(pickle.dumps(reader))
        yield from again.read(pickle.loads(pickle.dumps(partition)))


def values(reader: BatchReader, column: str = "body") -> list[Any]:
    found = [value for batch in batches(reader) for value in batch.column(column).to_pylist()]
    return sorted(value.decode() if isinstance(value, bytes) else value for value in found)


def ranges(reader: BatchReader) -> dict[int, tuple[int, int]]:
    """By queue id, of a topic whose queues are not split."""
    return {part.queue.queue_id: (part.begin, part.end) for each in reader.partitions() for part in each.value}


def test_brokers_are_reached_under_other_addresses(
    nameserver: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(nameserver, topic, ["a", "b"], queues=1)
    assert values(reader("names.invalid:1", topic, addressMap=f"names.invalid:1={nameserver}")) == ["a", "b"]
    monkeypatch.setenv("AIOROCKET_ADDRESS_MAP", f"names.invalid:2={nameserver}")
    assert values(reader("names.invalid:2", topic)) == ["a", "b"]


def test_all_columns_are_what_was_sent(spark: SparkSession, nameserver: str, topic: str) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    sent = [
        OutgoingMessage(
            topic="", body=b"body %d" % number, tag=f"t{number % 3}" if number % 3 else "", keys=[f"k{number}", "all"],
            properties={"colour": "grün", "number": str(number)}, flag=number,
        )
        for number in range(20)
    ]  # fmt: skip
    receipts = send(nameserver, topic, sent, queues=3)
    rows = read(spark, nameserver, topic).collect()
    assert rows[0].__fields__ == list(ROW_COLUMNS)
    found = {bytes(row.body): row for row in rows}
    assert len(rows) == len(found) == 20
    for message, receipt in zip(sent, receipts, strict=True):
        row = found[message.body]
        assert (row.topic, row.brokerName, row.queueId) == receipt.queue
        assert row.queueOffset == receipt.offset
        assert row.msgId == receipt.msg_id
        assert row.keys == " ".join(message.keys)
        assert row.tags == (message.tag or None)
        assert row.flag == message.flag
        assert {"colour": "grün", "number": str(message.flag)}.items() <= row.properties.items()
        assert row.reconsumeTimes == 0 and row.preparedTransactionOffset == 0
        born, stored = row.bornTimestamp.astimezone(UTC), row.storeTimestamp.astimezone(UTC)
        assert before <= born <= datetime.now(UTC) and before <= stored <= datetime.now(UTC)
        assert row.bornHost.startswith("127.0.0.1:") and row.storeHost.startswith("127.0.0.1:")
    assert len({row.physicalOffset for row in rows}) == 20


def test_sql_and_plans_need_no_register(spark: SparkSession, nameserver: str, topic: str) -> None:
    send(nameserver, topic, ["a", "b", "c", "d"], queues=2)
    view = f"view_{topic.replace('-', '_')}"
    spark.sql(
        f"CREATE TEMPORARY VIEW {view} USING rocketmq OPTIONS (nameServer '{nameserver}', topic '{topic}', "
        "columns 'queueId, body')"
    )
    found = spark.sql(f"SELECT queueId, count(*), max(CAST(body AS STRING)) FROM {view} GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in found.collect()] == [(0, 2, "c"), (1, 2, "d")]
    spark.catalog.dropTempView(view)


def test_a_table_of_the_catalogue_is_told_to_be_a_view(spark: SparkSession, nameserver: str, topic: str) -> None:
    send(nameserver, topic, ["a"], queues=1)
    table = f"table_{topic.replace('-', '_')}"
    spark.sql(f"CREATE TABLE {table} USING rocketmq OPTIONS (nameServer '{nameserver}', topic '{topic}')")
    try:
        with pytest.raises(AnalysisException) as caught:
            spark.sql(f"SELECT count(*) FROM {table}").collect()
    finally:
        spark.sql(f"DROP TABLE {table}")
    assert str(caught.value).count("CREATE TEMPORARY VIEW") == 1
    alone(caught.value)


def test_a_schema_and_the_option_columns_choose_columns(spark: SparkSession, nameserver: str, topic: str) -> None:
    send(nameserver, topic, ["a", "b"], queues=1)
    chosen = read(spark, nameserver, topic, schema="body BINARY, queueOffset LONG")
    assert [(bytes(row[0]), row[1]) for row in chosen.collect()] == [(b"a", 0), (b"b", 1)]
    assert reader(nameserver, topic, columns="queueOffset,body").names == ("queueOffset", "body")
    with pytest.raises(PySparkException, match=r"queueOfset.*queueOffset"):
        read(spark, nameserver, topic, schema="body BINARY, queueOfset LONG").collect()
    with pytest.raises(UsageError, match="body is BINARY"):
        from pyspark.sql.types import StringType, StructType

        RocketMQDataSource({"nameServer": nameserver, "topic": topic}).reader(StructType().add("body", StringType()))


def test_the_schemas_are_sparks_own(nameserver: str, topic: str) -> None:
    send(nameserver, topic, [OutgoingMessage(topic="", body=b"x", tag="t"), b"y"], queues=1)
    legacy_tags = {"legacySchema": "true", "tags": "t"}
    for options in ({}, {"includeProperties": "false"}, {"legacySchema": "true"}, legacy_tags):
        made = reader(nameserver, topic, **options)
        expected = arrow_schema(SourceOptions.parse({"nameServer": nameserver, "topic": topic, **options}))
        assert all(batch.schema.equals(expected) for batch in batches(made))
        assert values(made) == (["x"] if "tags" in options else ["x", "y"])
    legacy = next(batches(reader(nameserver, topic, legacySchema="true")))
    assert legacy.schema.names == list(LEGACY_COLUMNS)
    assert json.loads(legacy.column("properties")[0].as_py())["TAGS"] == "t"


def test_several_topics_and_a_pattern(spark: SparkSession, nameserver: str, topic: str) -> None:
    for name in ("a", "b", "other"):
        send(nameserver, f"{topic}-{name}", [f"{name}1", f"{name}2"], queues=2)
    frame = read(spark, nameserver, f"{topic}-a, {topic}-b")
    counts = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {f"{topic}-a": 2, f"{topic}-b": 2}
    assert values(reader(nameserver, topicPattern=f"{topic}-.")) == ["a1", "a2", "b1", "b2"]
    assert values(reader(nameserver, topicPattern=f"{topic}-nothing.*")) == []
    one = json.dumps({f"{topic}-a": {"broker-a": [1]}})
    assert values(reader(nameserver, assign=one)) == ["a2"]


def test_an_empty_topic_has_no_rows(spark: SparkSession, nameserver: str, topic: str) -> None:
    create_topic(nameserver, topic, queues=2)
    frame = read(spark, nameserver, topic)
    assert frame.columns == list(ROW_COLUMNS)
    assert frame.count() == 0
    # Spark plans a partition of its own where a reader has none.
    assert list(reader(nameserver, topic).read(InputPartition(None))) == []


def test_an_unknown_topic_is_named(spark: SparkSession, nameserver: str, topic: str) -> None:
    with pytest.raises(PySparkException, match=f"TopicNotFoundError.*{topic}"):
        read(spark, nameserver, topic).count()


def test_a_queue_that_does_not_exist_is_data_loss(nameserver: str, topic: str) -> None:
    send(nameserver, topic, ["a", "b"], queues=2)
    wrong = json.dumps({topic: {"broker-a": [1, 7]}})
    with pytest.raises(DataLossError, match=r"1 of 2 queues.*/broker-a/7"):
        reader(nameserver, assign=wrong).partitions()
    assert values(reader(nameserver, assign=wrong, failOnDataLoss="false")) == ["b"]


def test_an_unknown_option_is_refused_with_the_nearest_name(spark: SparkSession, nameserver: str, topic: str) -> None:
    # Spark gives option names in lower case.
    with pytest.raises(PySparkException, match=r"startingoffset'.*did you mean startingOffsets\?"):
        read(spark, nameserver, topic, startingOffset="earliest")
    with pytest.raises(UsageError, match="startingOffsets=latest"):
        reader(nameserver, topic, startingOffsets="latest")


def test_offsets_as_json(nameserver: str, topic: str) -> None:
    send(nameserver, topic, [f"{number:02}" for number in range(20)], queues=2)  # even ones in queue 0

    def offsets(first: int, second: int) -> str:
        return json.dumps({topic: {"broker-a": {"0": first, "1": second}}})

    made = reader(nameserver, topic, startingOffsets=offsets(3, -2), endingOffsets=offsets(6, 2))
    assert ranges(made) == {0: (3, 6), 1: (0, 2)}
    assert values(made) == ["01", "03", "06", "08", "10"]
    at_the_end = reader(nameserver, topic, startingOffsets=offsets(10, 9), endingOffsets=offsets(-1, -1))
    assert ranges(at_the_end) == {1: (9, 10)}
    with pytest.raises(UsageError, match=rf"leaves out {topic}/broker-a/1.*-2"):
        one = json.dumps({topic: {"broker-a": {"0": 3}}})
        reader(nameserver, topic, startingOffsets=one).partitions()
    with pytest.raises(UsageError, match=rf"names {topic}/broker-a/2, which is not read"):
        three = json.dumps({topic: {"broker-a": {"0": 3, "1": 0, "2": 0}}})
        reader(nameserver, topic, startingOffsets=three).partitions()


def test_offsets_outside_of_the_queue_are_data_loss(nameserver: str, topic: str) -> None:
    send(nameserver, topic, ["a", "b"], queues=1)
    beyond = json.dumps({topic: {"broker-a": {"0": 5}}})
    with pytest.raises(DataLossError, match=r"ending offset 5 .* 0 to 2"):
        reader(nameserver, topic, endingOffsets=beyond).partitions()
    assert values(reader(nameserver, topic, endingOffsets=beyond, failOnDataLoss="false")) == ["a", "b"]


def test_timestamps(nameserver: str, topic: str) -> None:
    send(nameserver, topic, ["a", "b"], queues=2)
    stored = max(row.as_py() for batch in batches(reader(nameserver, topic)) for row in batch.column("storeTimestamp"))
    _until_the_clock_shows_more_than(stored)
    send(nameserver, topic, ["c", "d", "e"], queue_id=0)
    middle = str(_millis(stored) + 1)
    said = time_text(int(middle))
    with pytest.raises(UsageError, match=rf"nothing was stored at {said}.*{topic}/broker-a/1.*=latest"):
        reader(nameserver, topic, startingTimestamp=middle).partitions()
    later = {"startingOffsetsByTimestampStrategy": "latest"}
    assert values(reader(nameserver, topic, startingTimestamp=middle, **later)) == ["c", "d", "e"]
    assert values(reader(nameserver, topic, endingTimestamp=middle)) == ["a", "b"]
    by_topic = json.dumps({topic: int(middle)})
    assert values(reader(nameserver, topic, startingOffsetsByTimestamp=by_topic, **later)) == ["c", "d", "e"]
    by_queue = json.dumps({topic: {"broker-a": {"0": int(middle), "1": 0}}})
    assert values(reader(nameserver, topic, startingOffsetsByTimestamp=by_queue)) == ["b", "c", "d", "e"]
    with pytest.raises(UsageError, match="leaves out"):
        one = json.dumps({topic: {"broker-a": {"0": int(middle)}}})
        reader(nameserver, topic, startingOffsetsByTimestamp=one).partitions()


def _millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _until_the_clock_shows_more_than(moment: datetime) -> None:
    import time

    while time.time() * 1000 <= _millis(moment) + 1:
        time.sleep(_PAUSE)


def test_a_group_says_where_to_start(nameserver: str, topic: str) -> None:
    send(nameserver, topic, [str(number) for number in range(8)], queues=2)

    async def commit() -> None:
        options = SourceOptions.parse({"nameServer": nameserver, "topic": topic})
        client = await spark_bridge.client(options.connection)
        await cluster.commit(client, "readers", {Queue(topic, "broker-a", 0): 3})

    spark_bridge.call(commit)
    assert ranges(reader(nameserver, topic, startingOffsets="group", groupId="readers")) == {0: (3, 4), 1: (0, 4)}
    assert ranges(reader(nameserver, topic, endingOffsets="group", groupId="readers")) == {0: (0, 3)}


def test_tags_are_compared_and_not_their_hashes_alone(nameserver: str, topic: str) -> None:
    # "Aa" and "BB" have the same hash in Java, and in the consume queue.
    sent = [OutgoingMessage(topic="", body=f"of {tag}".encode(), tag=tag) for tag in ("Aa", "BB", "Aa", "C", "")]
    send(nameserver, topic, sent, queues=1)
    assert values(reader(nameserver, topic, tags="Aa || C")) == ["of Aa", "of Aa", "of C"]
    assert values(reader(nameserver, topic, tags="BB", names="body")) == ["of BB"]
    assert values(reader(nameserver, topic, tags="none")) == []
    assert values(reader(nameserver, topic, sqlFilter="TAGS = 'BB' OR TAGS = 'C'")) == ["of BB", "of C"]


def test_two_queries_on_one_frame_get_their_own_rows(spark: SparkSession, nameserver: str, topic: str) -> None:
    send(nameserver, topic, [str(n) for n in range(40)], queues=4)
    frame = read(spark, nameserver, topic)
    assert len(bodies(frame.where("queueId = 1 AND queueOffset < 5"))) == 5
    assert len(bodies(frame)) == 40
    with pytest.raises(UsageError, match=r"pushDown is no option any more.* next query on it would lack rows"):
        reader(nameserver, topic, pushDown="true")


def test_an_error_is_its_text_and_not_the_way_it_came(spark: SparkSession, nameserver: str, topic: str) -> None:
    send(nameserver, topic, ["a"], queues=1)
    for options, said in (
        ({"endingOffsets": '{"none":{"b":{"0":1}}}'}, "endingOffsets"),
        ({"sqlFilter": "(("}, "code 23"),
    ):
        with pytest.raises(Exception, match=said) as caught:
            read(spark, nameserver, topic, **options).collect()
        alone(caught.value)


def test_planning_keeps_its_connection_however_soon_idle_ones_go(nameserver: str, topic: str) -> None:
    send(nameserver, topic, ["a"], queues=1)
    assert values(reader(nameserver, topic, idleTimeout="1us")) == ["a"]


def test_one_large_queue_is_split_without_loss_or_repeat(spark: SparkSession, nameserver: str, topic: str) -> None:
    send(nameserver, topic, [b"%d" % number for number in range(5_000)], queues=1)
    frame = read(spark, nameserver, topic, minPartitions="3", schema="queueOffset LONG, body BINARY")
    assert frame.rdd.getNumPartitions() == 3
    rows = sorted((row.queueOffset, int(bytes(row.body))) for row in frame.collect())
    assert rows == [(number, number) for number in range(5_000)]
    parts = reader(nameserver, topic, rowsPerPartition="1000").partitions()
    assert [(part.begin, part.end) for each in parts for part in each.value] == [
        (at, at + 1000) for at in range(0, 5000, 1000)
    ]


def test_a_batch_is_with_the_jvm_while_the_next_is_decoded(
    nameserver: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's own writer with the buffer of a worker: what has left it whenever a batch is decoded."""
    import pyarrow as pa

    send(nameserver, topic, [str(number) for number in range(9)], queues=3)
    sent, before, decode = io.BytesIO(), [], task._decoded

    def decoding(*args: Any) -> pa.RecordBatch:
        before.append(sent.getvalue())
        return decode(*args)

    monkeypatch.setattr(task, "_decoded", decoding)
    made = reader(nameserver, topic)
    (one,) = made.partitions()  # its three queues are a batch each
    writer = cast("Any", ArrowStreamSerializer())  # PySpark's types are not those that it is called with
    writer.dump_stream(made.read(one), io.BufferedWriter(sent, 65_536))
    assert [len(pa.ipc.open_stream(each).read_all().to_batches()) for each in before[1:]] == [1, 2]


def test_short_queues_share_a_partition(nameserver: str, topic: str) -> None:
    send(nameserver, topic, [str(number) for number in range(64)], queues=16)
    made = reader(nameserver, topic)
    partitions = made.partitions()
    assert [len(each.value) for each in partitions] == [16]
    assert len(values(made)) == 64


def test_secrets_are_in_no_text(nameserver: str, topic: str) -> None:
    secrets = {"accessKey": "me", "secretKey": "hush", "securityToken": "psst"}
    source = RocketMQDataSource({"nameServer": nameserver, "topic": topic, **secrets})
    made = source.reader(source.schema())
    part = QueuePartition([QueueRange(Queue(topic, "broker-a", 0), 0, 1)])
    assert isinstance(made, BatchReader)
    for text in (repr(source), repr(made), repr(part), repr(made.options), str(made.options.connection)):
        assert "hush" not in text and "psst" not in text
