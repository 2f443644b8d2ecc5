"""Bodies of requests, drawn: of each code the one it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from aiorocket_protocol import fastjson
from aiorocket_protocol.batch import encode_batch
from aiorocket_protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchBody,
    MessageQueue,
    SubscriptionData,
    encode_body,
)
from aiorocket_protocol.command import MSGPACK
from aiorocket_protocol.fuzzing.chance import Draw, pick, some_bytes
from aiorocket_protocol.fuzzing.words import Words
from aiorocket_protocol.headers import RegisterBrokerRequestHeader
from aiorocket_protocol.registration import DataVersion, RegisterBrokerBody, TopicConfig

__all__ = ("WITH_BODY", "body_of")

#: Where a registration says that its body is compressed.
_COMPRESSED = RegisterBrokerRequestHeader._fields.index("compressed")


def _plain(value: Any, kind: int) -> bytes:
    return msgpack.packb(value) if kind == MSGPACK else fastjson.dumps(value)


def _message(draw: Draw, _words: Words, _kind: int, _values: Sequence[Any]) -> bytes:
    return some_bytes(draw, int(draw.random() * 64))


def _batch(draw: Draw, _words: Words, _kind: int, _values: Sequence[Any]) -> bytes:
    return encode_batch([(b"body", 0, b"TAGS\x01a\x02")] * (1 + int(draw.random() * 4)))


def _heartbeat(draw: Draw, words: Words, kind: int, _values: Sequence[Any]) -> bytes:
    topic, group = pick(draw, words["topic"]), pick(draw, words["group"])
    wanted = [SubscriptionData.parse(topic, pick(draw, ("*", "a||b", "x")), int(draw.random() * 1000))]
    consumer = ConsumerData(group, subscriptions=wanted)
    return encode_body(HeartbeatData(pick(draw, words["clientId"]), ["fuzz-producer"], [consumer]), kind)


def _queues(draw: Draw, words: Words, kind: int, _values: Sequence[Any]) -> bytes:
    topic, broker = pick(draw, words["topic"]), pick(draw, words["brokerName"])
    queues = [MessageQueue(topic, broker, number) for number in range(int(draw.random() * 4))]
    return encode_body(LockBatchBody(pick(draw, words["clientId"]), pick(draw, words["group"]), queues), kind)


def _topics(draw: Draw, words: Words, kind: int, _values: Sequence[Any]) -> bytes:
    configs = [TopicConfig(pick(draw, words["topic"]), 4, 4).to_plain() for _ in range(2)]
    return _plain({"topicConfigList": configs}, kind)


def _group(draw: Draw, words: Words) -> dict[str, Any]:
    return {"groupName": pick(draw, words["group"]), "consumeEnable": draw.random() < 0.9,
            "consumeMessageOrderly": draw.random() < 0.2, "retryQueueNums": 1, "retryMaxTimes": 3,
            "brokerId": 0}  # fmt: skip


def _group_config(draw: Draw, words: Words, kind: int, _values: Sequence[Any]) -> bytes:
    return _plain(_group(draw, words), kind)


def _group_configs(draw: Draw, words: Words, kind: int, _values: Sequence[Any]) -> bytes:
    return _plain({"groupConfigList": [_group(draw, words) for _ in range(2)]}, kind)


def _registration(draw: Draw, words: Words, kind: int, values: Sequence[Any]) -> bytes:
    topics = [TopicConfig(pick(draw, words["topic"]), 4, 4) for _ in range(int(draw.random() * 3))]
    body = RegisterBrokerBody(DataVersion(1_700_000_000_000, int(draw.random() * 9)), topics)
    return body.compressed() if values[_COMPRESSED] else encode_body(body, kind)


def _client_config(draw: Draw, words: Words, kind: int, _values: Sequence[Any]) -> bytes:
    subscription = {"topic": pick(draw, words["topic"]), "subString": pick(draw, ("*", "a > 3", "a > >")),
                    "expressionType": pick(draw, ("TAG", "SQL92"))}  # fmt: skip
    return _plain({"clientId": pick(draw, words["clientId"]), "group": pick(draw, words["group"]), "namespace": "",
                   "subscriptionData": subscription}, kind)  # fmt: skip


def _acks(draw: Draw, words: Words, kind: int, _values: Sequence[Any]) -> bytes:
    ack = {"c": pick(draw, words["group"]), "t": pick(draw, words["topic"]), "r": "0", "so": 0, "q": 0, "rq": 0,
           "pt": 1_700_000_000_000, "it": 60_000, "b": pick(draw, ("AQ==", "Bw==", ""))}  # fmt: skip
    return _plain({"brokerName": pick(draw, words["brokerName"]), "acks": [ack] * int(draw.random() * 3)}, kind)


def _assignment(draw: Draw, words: Words, kind: int, _values: Sequence[Any]) -> bytes:
    return _plain({"topic": pick(draw, words["topic"]), "consumerGroup": pick(draw, words["group"]),
                   "clientId": pick(draw, words["clientId"]), "strategyName": pick(draw, ("AVG", "AVG_BY_CIRCLE", "X")),
                   "messageModel": pick(draw, ("CLUSTERING", "BROADCASTING"))}, kind)  # fmt: skip


def _mode(draw: Draw, words: Words, kind: int, _values: Sequence[Any]) -> bytes:
    return _plain({"topic": pick(draw, words["topic"]), "consumerGroup": pick(draw, words["group"]),
                   "mode": pick(draw, ("POP", "PULL")), "popShareQueueNum": int(draw.random() * 3)}, kind)  # fmt: skip


def _user(draw: Draw, _words: Words, kind: int, _values: Sequence[Any]) -> bytes:
    return _plain({"username": "fuzz-user", "password": "a-s3cret-of-fuzz", "userType": "Normal",
                   "userStatus": pick(draw, ("enable", "disable"))}, kind)  # fmt: skip


def _acl(draw: Draw, _words: Words, kind: int, _values: Sequence[Any]) -> bytes:
    entry = {"resource": "Topic:fuzz", "actions": ["Pub"], "decision": pick(draw, ("Allow", "Deny")), "sourceIps": []}
    return _plain({"subject": "User:fuzz-user", "policies": [{"policyType": "Custom", "entries": [entry]}]}, kind)


def _properties(draw: Draw, _words: Words, _kind: int, _values: Sequence[Any]) -> bytes:
    return pick(draw, (b"", b"fuzz=1\n", b"# nothing\n"))


_BODIES: dict[int, Callable[[Draw, Words, int, Sequence[Any]], bytes]] = {
    10: _message, 310: _message, 320: _batch, 324: _message, 325: _message, 34: _heartbeat, 41: _queues, 42: _queues,
    18: _topics, 200: _group_config, 225: _group_configs, 103: _registration, 46: _client_config, 200151: _acks,
    400: _assignment, 401: _mode, 3001: _user, 3002: _user, 3006: _acl, 3007: _acl, 25: _properties, 318: _properties,
}  # fmt: skip


#: Codes whose requests have one.
WITH_BODY = frozenset(_BODIES)


def body_of(draw: Draw, code: int, words: Words, kind: int, values: Sequence[Any]) -> bytes:
    """The body of a request of one of ``WITH_BODY`` whose header has these values."""
    return _BODIES[code](draw, words, kind, values)
