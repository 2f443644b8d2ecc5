"""The Spark source that one would write first: a task per queue, one pull of 32 after the other, a tuple per message.

It is what the product is measured against (``bench/spark.py``), so it is as good as it gets without another idea: one
connection per task, one pass of ``struct`` over each answer, properties as a dict, times as datetimes.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bench import wire
from bench.decode import naive_rows

_PULL = 11
_AT_ONCE = 32
_SUBSCRIPTION = 4
SCHEMA = (
    "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, msgId STRING, offsetMsgId STRING, keys STRING, "
    "tags STRING, body BINARY, properties MAP<STRING, STRING>, bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP, "
    "bornHost STRING, storeHost STRING, reconsumeTimes INT, sysFlag INT, flag INT, bodyCrc INT, physicalOffset BIGINT, "
    "preparedTransactionOffset BIGINT"
)


class NaiveSource(DataSource):
    """Options: ``broker`` (port on loopback), ``topic``, ``queues``, ``limit`` (rows a batch read takes per queue)."""

    @classmethod
    def name(cls) -> str:
        return "naive"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return NaiveReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NaiveStreamReader(self.options)


class Range(InputPartition):
    def __init__(self, queue: int, begin: int, end: int) -> None:
        super().__init__((queue, begin, end))
        self.queue, self.begin, self.end = queue, begin, end


class Pulling:
    """What batch and stream share."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.broker, self.topic, self.queues = int(options["broker"]), options["topic"], int(options["queues"])
        self.limit = int(options.get("limit", 1 << 60))

    def ends(self) -> dict[str, int]:
        return {str(queue): end for queue, end in enumerate(wire.stored(self.broker, self.topic, self.queues))}

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        offset = partition.begin
        with socket.create_connection(("127.0.0.1", self.broker)) as connection, connection.makefile("rb") as stream:
            while offset < partition.end:
                fields = {
                    "consumerGroup": "TOOLS_CONSUMER", "topic": self.topic, "queueId": partition.queue,
                    "queueOffset": offset, "maxMsgNums": min(_AT_ONCE, partition.end - offset),
                    "sysFlag": _SUBSCRIPTION, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0,
                    "subscription": "*", "expressionType": "TAG",
                }  # fmt: skip
                ext = {name: str(value) for name, value in fields.items()}
                header = json.dumps(
                    {"code": _PULL, "flag": 0, "language": "OTHER", "opaque": 1, "version": 479, "extFields": ext}
                ).encode()
                connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
                length, word = struct.unpack(">II", stream.read(8))
                answer = json.loads(stream.read(word & 0xFFFFFF))
                body = stream.read(length - 4 - (word & 0xFFFFFF))
                if answer["code"] != 0:
                    raise RuntimeError(f"pull at {offset} of queue {partition.queue}: {answer}")
                yield from naive_rows(body)
                offset = int(answer["extFields"]["nextBeginOffset"])


class NaiveReader(Pulling, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [Range(int(queue), 0, min(end, self.limit)) for queue, end in self.ends().items()]


class NaiveStreamReader(Pulling, DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return dict.fromkeys(self.ends(), 0)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        return self.ends()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Range(int(queue), start[queue], upto) for queue, upto in end.items() if upto > start[queue]]

    def commit(self, end: dict[str, int]) -> None:
        pass
