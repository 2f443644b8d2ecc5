"""A stream under continuous producing, while the broker is stopped, killed and started again, and the query is too."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiorocket.client.sending.producer import Producer
from aiorocket.errors import RocketError
from aiorocket.model import Queue
from aiorocket.runtime import run
from tests.spark.producing import create_topic
from tests.spark.servers import standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

#: Acknowledged before it ends; 400 a second come where the machine can.
MESSAGES = int(os.environ.get("AIOROCKET_STREAM_MESSAGES", "16000"))
pytestmark = [pytest.mark.spark_long, pytest.mark.timeout(MESSAGES / 40 + 240)]
_QUEUES = 4
_RATE = 100  # a second and queue


class Traffic:
    """Numbers 0, 1, 2 … into each queue, one after the other: a number is sent again until it is acknowledged."""

    def __init__(self, nameserver: str, queues: list[Queue]) -> None:
        self._nameserver = nameserver
        self._queues = queues
        self._stop = threading.Event()
        self.acknowledged = dict.fromkeys((queue.queue_id for queue in queues), 0)
        self.in_doubt = 0
        self._thread = threading.Thread(target=lambda: run(self._all()), name="traffic")

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_for(self, count: int) -> None:
        """Return when so many are acknowledged."""
        while sum(self.acknowledged.values()) < count:
            assert self._thread.is_alive()
            time.sleep(0.05)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    async def _all(self) -> None:
        async with Producer("traffic", nameservers=self._nameserver) as producer:
            await asyncio.gather(*(self._one(producer, queue) for queue in self._queues))

    async def _one(self, producer: Producer, queue: Queue) -> None:
        loop = asyncio.get_running_loop()
        number, due = 0, loop.time()
        while not self._stop.is_set():
            try:
                await producer.send(queue.topic, b"%d" % number, queue=queue)
            except RocketError as error:
                self.in_doubt += bool(getattr(error, "may_be_stored", False))
                await asyncio.sleep(0.2)
                continue
            number += 1
            self.acknowledged[queue.queue_id] = number
            due = max(due + 1 / _RATE, loop.time() - 1)
            await asyncio.sleep(max(0.0, due - loop.time()))


def test_a_stream_over_restarts_of_broker_and_query(spark: SparkSession, tmp_path: Path) -> None:
    topic, out, checkpoint = "restarts", str(tmp_path / "out"), str(tmp_path / "checkpoint")
    with standalone(tmp_path / "broker") as server:
        queues = create_topic(server.nameserver, topic, _QUEUES)
        rows = (
            spark.readStream.format("rocketmq")
            .options(nameServer=server.nameserver, topic=topic, startingOffsets="earliest", pullTimeout="60s")
            .load()
            .select("queueId", "queueOffset", "body")
        )

        def start(available_now: bool = False) -> StreamingQuery:
            writer = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint).option("path", out)
            return (writer.trigger(availableNow=True) if available_now else writer).start()

        query = start()
        with Traffic(server.nameserver, queues) as traffic:
            # A clean stop, a kill, and a restart of the query itself, a quarter of the messages apart.
            for number, how in enumerate((signal.SIGTERM, signal.SIGKILL, None), start=1):
                traffic.wait_for(MESSAGES * number // 4)
                if how is not None:
                    server.end(how)
                    time.sleep(2)  # sends and pulls find nobody there
                    server.start()
                else:
                    query.stop()
                    query = start()
            traffic.wait_for(MESSAGES)
            traffic.stop()
            assert query.exception() is None
            query.stop()
        last = start(available_now=True)
        assert last.awaitTermination(120)
        found: dict[int, dict[int, int]] = {queue.queue_id: {} for queue in queues}
        repeats = 0
        for row in spark.read.parquet(out).collect():
            repeats += row.queueOffset in found[row.queueId]
            found[row.queueId][row.queueOffset] = int(row.body)
    assert repeats == 0, f"{repeats} rows came more than once"
    sent = sum(traffic.acknowledged.values())
    stored = sum(len(each) for each in found.values())
    for queue_id, each in found.items():
        assert sorted(each) == list(range(len(each))), f"queue {queue_id} has gaps"
        numbers = [each[offset] for offset in range(len(each))]
        # A number that was in doubt was sent again: it may stand twice in the log, one behind the other.
        assert numbers == sorted(numbers), f"queue {queue_id} is out of order"
        assert set(numbers) >= set(range(traffic.acknowledged[queue_id])), f"queue {queue_id} lacks some"
    assert MESSAGES <= sent <= stored <= sent + traffic.in_doubt + _QUEUES
