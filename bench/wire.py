"""The few requests a measurement makes itself, in plain JSON frames: a second opinion on what the product reports."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from bench.processes import BenchError

GET_MAX_OFFSET, QUERY_CONSUMER_OFFSET, UPDATE_TOPIC, ROUTE = 30, 14, 17, 105


def request(port: int, code: int, timeout: float = 5.0, /, **fields: object) -> tuple[dict[str, Any], bytes]:
    """Header and body of the answer. OSError when nobody listens."""
    ext = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}
    header = json.dumps(
        {"code": code, "flag": 0, "language": "OTHER", "opaque": 1, "version": 479, "extFields": ext}
    ).encode()
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        with connection.makefile("rb") as stream:
            length, word = struct.unpack(">II", _exactly(stream, 8))
            answer = json.loads(_exactly(stream, word & 0xFFFFFF))
            body = _exactly(stream, length - 4 - (word & 0xFFFFFF))
    if not isinstance(answer, dict):
        raise BenchError(f"port {port} answered request {code} with {answer!r:.200}")
    return answer, body


def _exactly(stream: Any, size: int) -> bytes:
    data: bytes = stream.read(size)
    if len(data) != size:
        raise ConnectionError(f"the connection ended {size - len(data)} bytes early")
    return data


def number(port: int, code: int, name: str, **fields: object) -> int:
    answer, _ = request(port, code, **fields)
    if answer["code"] != 0:
        raise BenchError(f"request {code} {fields} was answered with code {answer['code']}: {answer.get('remark')}")
    return int(answer["extFields"][name])


def create_topic(nameserver: int, broker: int, topic: str, queues: int) -> None:
    """Make the topic; its route is known to the name server when this returns."""
    answer, _ = request(
        broker, UPDATE_TOPIC, topic=topic, defaultTopic="TBW102", readQueueNums=queues, writeQueueNums=queues,
        perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False,
    )  # fmt: skip
    if answer["code"] != 0:
        raise BenchError(f"creating {topic} was answered with code {answer['code']}: {answer.get('remark')}")
    for _ in range(200):
        if request(nameserver, ROUTE, topic=topic)[0]["code"] == 0:
            return
    raise BenchError(f"the name server has no route of {topic} after it was created")


def stored(broker: int, topic: str, queues: int) -> list[int]:
    """The number of messages each queue has ever held."""
    return [number(broker, GET_MAX_OFFSET, "offset", topic=topic, queueId=queue) for queue in range(queues)]


def committed(broker: int, topic: str, queues: int, group: str) -> list[int]:
    return [
        number(broker, QUERY_CONSUMER_OFFSET, "offset", consumerGroup=group, topic=topic, queueId=queue)
        for queue in range(queues)
    ]
