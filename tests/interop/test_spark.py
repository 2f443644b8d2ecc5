"""The Spark source and sink with Apache RocketMQ: answers of 32 messages, JSON headers, another broker's records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiorocket.model import OutgoingMessage
from aiorocket.spark.pytest_plugin import spark_for_tests
from tests.interop.peers import Server
from tests.spark.producing import send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: py4j leaves sockets of its pool, and of threads that ended, to the garbage collector, whenever that runs.
pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore:unclosed <socket.*:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]
_COUNT = 5_000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_for_tests() as session:
        yield session


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Spark keeps its threads as long as the process; tests/spark watches what ours leave."""


def test_reads_streams_and_writes_at_apache(spark: SparkSession, apache: Server, tmp_path: Path) -> None:
    topic, copies = "SparkReads", "SparkWrites"
    messages = [
        OutgoingMessage(topic=topic, body=b"%d" % number, tag="even" if number % 2 == 0 else "odd", keys=[f"k{number}"])
        for number in range(_COUNT)
    ]
    receipts = send(apache.nameserver, topic, messages, queues=4)
    at = {(receipt.queue.queue_id, receipt.offset): number for number, receipt in enumerate(receipts)}

    rows = spark.read.format("rocketmq").options(nameServer=apache.nameserver, topic=topic, verifyCrc="true").load()
    found = rows.select("queueId", "queueOffset", "body", "tags", "keys", "msgId", "brokerName").collect()
    assert len(found) == _COUNT
    for row in found:
        number = at.pop((row.queueId, row.queueOffset))
        assert (bytes(row.body), row.keys, row.msgId) == (b"%d" % number, f"k{number}", receipts[number].msg_id)
    assert not at

    even = spark.read.format("rocketmq").options(nameServer=apache.nameserver, topic=topic, tags="even").load()
    assert even.count() == _COUNT // 2

    stream = spark.readStream.format("rocketmq").options(
        nameServer=apache.nameserver, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="2000"
    )
    query = (
        stream.load()
        .select("body", "keys", "tags", "queueId")
        .writeStream.format("rocketmq")
        .options(nameServer=apache.nameserver, topic=copies, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    send(apache.nameserver, copies, [b"first"], queues=4)
    running = query.start()
    assert running.awaitTermination(120)
    assert len([each for each in running.recentProgress if each.numInputRows]) == 3
    written = spark.read.format("rocketmq").options(nameServer=apache.nameserver, topic=copies).load()
    bodies = sorted(bytes(row.body) for row in written.select("body").collect())
    assert bodies == sorted([b"first", *(b"%d" % number for number in range(_COUNT))])
