"""Bodies of requests and responses as values: heartbeats, groups, locks. (Routes are in routes.py, registrations in
registration.py.)

``encode_body``/``decode_body`` write and read them as JSON under JSON and ROCKETMQ headers, as a msgpack map of the
same keys under msgpack headers. Members that are absent read as their defaults; unknown ones are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import msgpack

from aiorocket_protocol import fastjson, names
from aiorocket_protocol.command import LANGUAGE_NAMES, MSGPACK
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.plain import Plain
from aiorocket_protocol.record_layout import tags_code

if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from aiorocket_protocol.rows import NamedTuple

__all__ = (
    "ClientConnection",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerListBody",
    "GroupListBody",
    "HeartbeatData",
    "KVTable",
    "LockBatchBody",
    "LockBatchResult",
    "MessageQueue",
    "SubscriptionData",
    "decode_body",
    "decode_plain",
    "encode_body",
)


class Body(Protocol):
    """What ``encode_body`` and ``decode_body`` need."""

    def to_plain(self) -> dict[str, Any]: ...

    @classmethod
    def from_plain(cls, value: Any) -> Self: ...


B = TypeVar("B", bound=Body)

_LANGUAGES = tuple(LANGUAGE_NAMES.values())
_pack = msgpack.Packer().pack


def encode_body(value: Body | dict[str, Any] | list[Any], serialize_type: int) -> bytes:
    """``value`` (or a plain dict or list) as the body of a command of that serialize type. ProtocolError when it cannot
    be written."""
    plain = value if isinstance(value, dict | list) else value.to_plain()
    if serialize_type != MSGPACK:
        return fastjson.dumps(plain)
    try:
        return bytes(_pack(plain))
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"cannot be packed: {error}", where=type(value).__name__) from None


def decode_body(body_class: type[B], data: bytes, serialize_type: int, *, lenient: int | None = None) -> B:
    """The body as ``body_class``. ProtocolError names the member that is missing or of another type. ``lenient``: how
    many values JSON that is not standard may have, of which a server reads MAX_LENIENT of anybody."""
    return body_class.from_plain(decode_plain(data, serialize_type, body_class.__name__, lenient=lenient))


def decode_plain(data: bytes, serialize_type: int, where: str = "body", *, lenient: int | None = None) -> Any:
    """A body without a class of its own: what it holds, most often a dict. ProtocolError when it is malformed."""
    if serialize_type != MSGPACK:
        return fastjson.loads(data, most=lenient)
    try:
        return msgpack.unpackb(data, strict_map_key=True, max_ext_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"not msgpack: {str(error) or type(error).__name__}", where=where) from None


class MessageQueue(NamedTuple):
    """A queue of a topic on a broker."""

    topic: str
    broker_name: str
    queue_id: int

    def to_plain(self) -> dict[str, Any]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        """From an object, or from one used as a map key: a tuple of pairs or text that holds the object
        (fastjson.loads)."""
        if type(value) is str:
            value = fastjson.loads(value.encode("utf-8", "replace"))
        elif type(value) is tuple and all(type(pair) is tuple and len(pair) == 2 for pair in value):
            value = dict(value)
        plain = Plain(value, "MessageQueue")
        return cls(plain.text("topic"), plain.text("brokerName"), plain.number("queueId"))


class KVTable(NamedTuple):
    """Answer of GET_KVLIST_BY_NAMESPACE, REGISTER_BROKER and GET_BROKER_RUNTIME_INFO."""

    table: dict[str, str]

    def to_plain(self) -> dict[str, Any]:
        return {"table": self.table}

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        return cls(Plain(value, "KVTable").text_table("table"))


class SubscriptionData(NamedTuple):
    """What a group wants of a topic. ``tags_set`` and ``code_set`` are empty for everything."""

    topic: str
    sub_string: str
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = names.TAG

    @classmethod
    def parse(cls, topic: str, expression: str | None = "*", version: int = 0) -> Self:
        """A tag expression: ``*`` or nothing for all, else tags between ``||``. ProtocolError when ``||`` names no
        tag."""
        if not expression or expression.strip() in ("", "*"):
            return cls(topic, "*", sub_version=version)
        tags = frozenset(tag.strip() for tag in expression.split("||")) - {""}
        if not tags:
            raise ProtocolError(f"{expression!r:.100} names no tag", where="subscription expression")
        return cls(topic, expression, tags, frozenset(map(tags_code, tags)), version)

    def matches_tag(self, tag: str) -> bool:
        """Does a message with this tag match?"""
        return not self.tags_set or tag in self.tags_set

    def to_plain(self) -> dict[str, Any]:
        return {
            "classFilterMode": False,
            "codeSet": sorted(self.code_set),
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": sorted(self.tags_set),
            "topic": self.topic,
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "SubscriptionData")
        return cls(
            plain.text("topic"),
            plain.text("subString", "*"),
            frozenset(plain.texts("tagsSet")),
            frozenset(plain.numbers("codeSet")),
            plain.number("subVersion", 0),
            plain.text("expressionType", names.TAG),  # the Node client leaves it out
        )


class ConsumerData(NamedTuple):
    """One consumer group of a client."""

    group: str
    consume_type: str = names.CONSUME_PASSIVELY
    message_model: str = names.CLUSTERING
    consume_from_where: str = names.CONSUME_FROM_LAST_OFFSET
    subscriptions: list[SubscriptionData] = []  # noqa: RUF012 - a NamedTuple field; never changed in place
    unit_mode: bool = False

    def to_plain(self) -> dict[str, Any]:
        return {
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "groupName": self.group,
            "messageModel": self.message_model,
            "subscriptionDataSet": [subscription.to_plain() for subscription in self.subscriptions],
            "unitMode": self.unit_mode,
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "ConsumerData")
        return cls(
            plain.text("groupName"),
            plain.name("consumeType", names.CONSUME_TYPES, names.CONSUME_PASSIVELY),
            plain.name("messageModel", names.MESSAGE_MODELS, names.CLUSTERING),
            plain.name("consumeFromWhere", names.CONSUME_FROM_WHERE, names.CONSUME_FROM_LAST_OFFSET),
            [SubscriptionData.from_plain(item) for item in plain.items("subscriptionDataSet")],
            plain.flag("unitMode"),
        )


class HeartbeatData(NamedTuple):
    """Body of HEART_BEAT: every group of one client. A ``fingerprint`` other than 0 makes it one of version 2, and
    ``without_sub`` then leaves out subscriptions that the broker has already."""

    client_id: str
    producers: list[str]
    consumers: list[ConsumerData]
    fingerprint: int = 0
    without_sub: bool = False

    def to_plain(self) -> dict[str, Any]:
        return {
            "clientID": self.client_id,
            "consumerDataSet": [consumer.to_plain() for consumer in self.consumers],
            "heartbeatFingerprint": self.fingerprint,
            "producerDataSet": [{"groupName": group} for group in self.producers],
            "withoutSub": self.without_sub,
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "HeartbeatData")
        return cls(
            plain.text("clientID"),
            [Plain(item, "ProducerData").text("groupName") for item in plain.items("producerDataSet")],
            [ConsumerData.from_plain(item) for item in plain.items("consumerDataSet")],
            plain.number("heartbeatFingerprint", 0),
            plain.flag("withoutSub"),
        )


class ConsumerListBody(NamedTuple):
    """Answer of GET_CONSUMER_LIST_BY_GROUP."""

    consumer_ids: list[str]

    def to_plain(self) -> dict[str, Any]:
        return {"consumerIdList": self.consumer_ids}

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        return cls(Plain(value, "ConsumerListBody").texts("consumerIdList"))


class GroupListBody(NamedTuple):
    """Answer of QUERY_TOPIC_CONSUME_BY_WHO."""

    groups: list[str]

    def to_plain(self) -> dict[str, Any]:
        return {"groupList": self.groups}

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        return cls(Plain(value, "GroupListBody").texts("groupList"))


class ClientConnection(NamedTuple):
    """One client of a group as an administrator sees it; ``language`` is its name."""

    client_addr: str
    client_id: str
    language: str
    version: int

    def to_plain(self) -> dict[str, Any]:
        return {
            "clientAddr": self.client_addr,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "ClientConnection")
        return cls(
            plain.text("clientAddr", ""),
            plain.text("clientId"),
            plain.name("language", _LANGUAGES, "OTHER"),
            plain.number("version", 0),
        )


class ConsumerConnection(NamedTuple):
    """Answer of GET_CONSUMER_CONNECTION_LIST."""

    connections: list[ClientConnection]
    subscriptions: dict[str, SubscriptionData]
    consume_type: str
    message_model: str
    consume_from_where: str

    def to_plain(self) -> dict[str, Any]:
        return {
            "connectionSet": [connection.to_plain() for connection in self.connections],
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "messageModel": self.message_model,
            "subscriptionTable": {topic: data.to_plain() for topic, data in self.subscriptions.items()},
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "ConsumerConnection")
        table = plain.table("subscriptionTable")
        return cls(
            [ClientConnection.from_plain(item) for item in plain.items("connectionSet")],
            {str(topic): SubscriptionData.from_plain(item) for topic, item in table.items()},
            plain.name("consumeType", names.CONSUME_TYPES, names.CONSUME_PASSIVELY),
            plain.name("messageModel", names.MESSAGE_MODELS, names.CLUSTERING),
            plain.name("consumeFromWhere", names.CONSUME_FROM_WHERE, names.CONSUME_FROM_LAST_OFFSET),
        )


class LockBatchBody(NamedTuple):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    client_id: str
    consumer_group: str
    queues: list[MessageQueue]

    def to_plain(self) -> dict[str, Any]:
        return {
            "clientId": self.client_id,
            "consumerGroup": self.consumer_group,
            "mqSet": [queue.to_plain() for queue in self.queues],
            "onlyThisBroker": False,
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "LockBatchBody")
        queues = [MessageQueue.from_plain(item) for item in plain.items("mqSet")]
        return cls(plain.text("clientId"), plain.text("consumerGroup"), queues)


class LockBatchResult(NamedTuple):
    """Answer of LOCK_BATCH_MQ: the queues now held. The body is there even when none is. ``epochs`` (same order) are
    our broker's: they rise with each change of a queue's owner; empty from a peer that has none."""

    queues: list[MessageQueue]
    epochs: tuple[int, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"lockOKMQSet": [queue.to_plain() for queue in self.queues]}
        if self.epochs:
            plain["_epochs"] = list(self.epochs)
        return plain

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "LockBatchResult")
        queues = [MessageQueue.from_plain(item) for item in plain.items("lockOKMQSet")]
        epochs = tuple(epoch for epoch in plain.items("_epochs") if type(epoch) is int)
        return cls(queues, epochs if len(epochs) == len(queues) else ())
