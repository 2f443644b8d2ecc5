"""The sink under Spark itself: a batch write, and a stream that fails, is replayed, and loses its driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from aiorocket.spark import bridge, explain
from aiorocket.spark.ledger import Entry, Mark, Record, decode
from aiorocket.testing import broker_thread
from tests.spark.producing import create_topic, send
from tests.spark.servers import own_temporary
from tests.spark.test_source import alone
from tests.spark.writing import stored, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def asking() -> Iterator[str]:
    """A broker that asks every second, and more often than 15 times: on a busy machine a driver takes that long to
    come back."""
    with broker_thread(broker={"transaction_check_interval": 1.0, "transaction_check_max": 120}) as server:
        try:
            yield server.nameserver_address
        finally:
            bridge.close()


def test_a_batch_write_of_all_columns(spark: SparkSession, nameserver: str, topic: str) -> None:
    create_topic(nameserver, topic)
    columns = "body string, keys array<string>, tags string, properties map<string,string>, queueId int, "
    columns += "shardingKey string, delayLevel int, deliverTimestamp timestamp"
    rows: list[Any] = [
        ("one", ["k1", "k2"], "t", {"p": "v"}, 3, None, None, None),
        ("two", None, None, None, None, "s", 0, None),
        ("late", None, None, None, None, None, 18, None),
    ]
    frame = spark.createDataFrame(rows, columns).coalesce(1)
    frame.write.format("rocketmq").mode("append").options(nameServer=nameserver, topic=topic).save()
    one, two = sorted(stored(nameserver, topic), key=lambda view: view.body)
    assert (one.body, one.keys, one.tag, one.properties["p"], one.queue_id) == (b"one", ["k1", "k2"], "t", "v", 3)
    assert (two.body, two.properties["__SHARDINGKEY"]) == (b"two", "s")
    bad = spark.createDataFrame([(*rows[0][:7], datetime(2040, 1, 1, tzinfo=UTC))], columns)
    with pytest.raises(Exception, match=r"SendError.*row 0.*not be bigger than the max delay") as caught:
        bad.write.format("rocketmq").mode("append").options(nameServer=nameserver, topic=topic).save()
    alone(caught.value)


@pytest.mark.spark_long
def test_a_topic_is_copied_as_it_was_read(spark: SparkSession, asking: str, topic: str) -> None:
    source = spark.createDataFrame(
        [(f"{number}", ["a", "b"], "t", {"p": "v"}) for number in range(3)],
        "body string, keys array<string>, tags string, properties map<string,string>",
    )
    where = {"nameServer": asking, "ledgerTopic": topic + "-ledger"}
    for origin, target, mode in (("", "-1", "exactlyOnce"), ("-1", "-2", "atLeastOnce")):
        rows = source
        if origin:
            rows = spark.read.format("rocketmq").options(nameServer=asking, topic=topic + origin).load()
        chosen = rows.select("body", "keys", "tags", "properties")
        create_topic(asking, topic + target)
        chosen.write.format("rocketmq").mode("append").options(topic=topic + target, sinkMode=mode, **where).save()
    first, second = (sorted(stored(asking, topic + each), key=lambda view: view.body) for each in ("-1", "-2"))
    assert "PGROUP" in first[0].properties and "PGROUP" not in second[0].properties
    assert [(view.body, view.keys, view.tag, view.properties["p"]) for view in second] == [
        (f"{number}".encode(), ["a", "b"], "t", "v") for number in range(3)
    ]
    ids = [{view.properties["UNIQ_KEY"] for view in views} for views in (first, second)]
    assert len(ids[0] | ids[1]) == 6


def test_what_ends_a_stream_is_told_in_a_line(spark: SparkSession, nameserver: str, topic: str, tmp_path: Path) -> None:
    send(nameserver, topic, ["a"], queues=1)
    cause = "partition 0, row 0, column properties: 'DELAY' is reserved by RocketMQ"
    rows = spark.readStream.format("rocketmq").options(nameServer=nameserver, topic=topic, startingOffsets="earliest")
    bad = rows.load().selectExpr("body", "map('DELAY', '3') AS properties")
    place = {"nameServer": nameserver, "topic": topic, "checkpointLocation": str(tmp_path)}
    query = bad.writeStream.format("rocketmq").options(**place).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="column properties") as caught:
        query.awaitTermination(100)
    assert explain(caught.value).startswith(cause) and "\n" not in explain(caught.value)
    # Behind it Spark shows the query and its plan.
    said = str(caught.value).partition("=== Streaming Query ===")[0]
    alone(RuntimeError(said))


def test_a_batch_write_that_cannot_work_says_why(spark: SparkSession, nameserver: str) -> None:
    writer = spark.range(1).selectExpr("id AS body").write.format("rocketmq").options(nameServer=nameserver, topic="t")
    with pytest.raises(Exception, match="column body is of type bigint"):
        writer.mode("append").save()


class Copy:
    """A stream from one topic to another, exactly once."""

    def __init__(self, nameserver: str, topic: str, directory: Path, immunity: str = "60s") -> None:
        self.source = {"nameServer": nameserver, "topic": topic, "startingOffsets": "earliest"}
        self.sink = {
            "nameServer": nameserver, "topic": topic + "-copy", "sinkMode": "exactlyOnce",
            "ledgerTopic": topic + "-ledger", "checkImmunity": immunity, "checkRound": "10s",
            "checkpointLocation": str(directory / "checkpoint"),
        }  # fmt: skip

    def start(self, spark: SparkSession, condition: str = "true") -> StreamingQuery:
        rows = spark.readStream.format("rocketmq").options(**self.source).option("maxOffsetsPerTrigger", "40").load()
        rows = rows.select("body", "tags").where(condition)
        return rows.writeStream.format("rocketmq").options(**self.sink).trigger(availableNow=True).start()

    def run(self, spark: SparkSession) -> None:
        assert self.start(spark).awaitTermination(200)

    def forget_newest_commit(self) -> None:
        commits = Path(self.sink["checkpointLocation"], "commits")
        newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        newest.unlink()
        (commits / f".{newest.name}.crc").unlink(missing_ok=True)


@pytest.mark.spark_long
def test_a_stream_that_fails_and_is_replayed_writes_each_row_once(
    spark: SparkSession, asking: str, topic: str, tmp_path: Path
) -> None:
    rows = [f"{number:03}" for number in range(60)]
    send(asking, topic, rows, 2)
    create_topic(asking, topic + "-copy")
    copy = Copy(asking, topic, tmp_path)
    # One task has written and the other fails.
    failing = copy.start(spark, "if(body = encode('017', 'utf-8'), raise_error('a task fails'), true)")
    with pytest.raises(Exception, match="a task fails"):
        failing.awaitTermination(200)
    assert values(asking, topic + "-copy") == []
    copy.run(spark)
    assert values(asking, topic + "-copy") == rows
    copy.forget_newest_commit()
    send(asking, topic, ["060"], 2)
    copy.run(spark)
    assert values(asking, topic + "-copy") == [*rows, "060"]


_DRIVER = """
import os, signal, sys
sys.path[:0] = {paths!r}
from aiorocket.spark import exactly_once, sink
from aiorocket.spark.session import spark_session
from aiorocket.spark.source import RocketMQDataSource

GROUP = os.getpgid(0)


class Dying(RocketMQDataSource):
    def streamWriter(self, schema, overwrite):
        from aiorocket.spark.exactly_once import HalfSink

        async def end(*args):
            # The ledger has the entry, and no transaction is ended. Everything of this application dies at once.
            os.killpg(GROUP, signal.SIGKILL)
            os.killpg(0, signal.SIGKILL)

        HalfSink.end = end
        return super().streamWriter(schema, overwrite)


spark = spark_session(app_name="dies", master="local[2]", conf={conf!r})
spark.dataSource.register(Dying)
rows = spark.readStream.format("rocketmq").options(**{source!r}).load().select("body", "tags")
rows.writeStream.format("rocketmq").options(**{sink!r}).trigger(availableNow=True).start().awaitTermination(200)
os._exit(3)
"""


@pytest.mark.spark_long
def test_a_driver_that_is_killed_between_the_ledger_and_the_end(
    spark: SparkSession, asking: str, topic: str, tmp_path: Path
) -> None:
    from aiorocket.spark.pytest_plugin import TEST_CONF

    rows = [f"{number:03}" for number in range(60)]
    send(asking, topic, rows, 2)
    create_topic(asking, topic + "-copy")
    copy = Copy(asking, topic, tmp_path, immunity="3s")
    paths = [str(_ROOT), str(_ROOT / "protocol"), str(_ROOT / "aiorocket" / "spark" / "autoload")]
    code = _DRIVER.format(paths=paths, conf=TEST_CONF, source=copy.source, sink=copy.sink)
    with own_temporary() as env:
        died = subprocess.run(
            [sys.executable, "-c", code], start_new_session=True, capture_output=True, text=True, timeout=250,
            check=False, cwd=tmp_path, env={**os.environ, **env},
        )  # fmt: skip
    assert died.returncode == -9, died.stderr[-3000:]
    assert values(asking, topic + "-copy") == []
    assert [type(record) for record in _records(asking, topic) if record and record.query] == [Entry]
    copy.run(spark)
    assert values(asking, topic + "-copy") == rows
    assert [type(record) for record in _records(asking, topic) if record and record.query] == [Entry, Mark]


def _records(nameserver: str, topic: str) -> list[Record | None]:
    return [decode(view.body) for view in stored(nameserver, topic + "-ledger")]
