"""What each request needs: one table of request codes for brokers and name servers.

As RocketMQ 5's, stricter where that asks for nothing: whatever changes or shows something that is not the asker's own
needs a right on the cluster, and users are made and changed by administrators alone. A code without a line is for
administrators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from aiorocket.access.core.rights import Want
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    MAX_ACKS,
    MAX_CHECKS_TOPIC,
    MAX_LENIENT,
    OP_TOPIC,
    PROPERTY_REAL_TOPIC,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    REVIVE_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    ConsumeMessageDirectlyResultRequestHeader,
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    RecordView,
    RemotingCommand,
    RequestCode,
    decode_plain,
    forms,
    parse_offset_msg_id,
)
from aiorocket_protocol.plain import Plain

__all__ = (
    "RULES",
    "RecordAt",
    "Rule",
    "is_administration",
    "is_registration",
    "names_many",
    "want_of_record",
    "wants_of",
)

Fields = Mapping[str, str | None]
Needs = Callable[[RemotingCommand, Fields], Iterator[Want]]
#: The message that stands at a place in the log, as it is stored; None where none does.
RecordAt = Callable[[int], bytes | None]

_GET, _UPDATE, _SUB, _PUB = ("Get",), ("Update",), ("Sub",), ("Pub",)
_SUB_OR_GET, _SUB_OR_UPDATE = ("Sub", "Get"), ("Sub", "Update")


class Record(NamedTuple):
    """A message that a request names by ``place``, its place in the log, and what is wanted of its topic: such a number
    anybody can guess."""

    place: Callable[[RemotingCommand], int]
    actions: tuple[str, ...]


class Rule(NamedTuple):
    """``needs`` gives what a request wants, and ``record`` what it wants besides. Without access control,
    ``administration`` is served on this machine only, and ``registration`` is what brokers ask of a name server.
    ``super_only``: no right but that of an administrator will do. ``many``: its body may name thousands."""

    needs: Needs
    administration: bool = False
    registration: bool = False
    super_only: bool = False
    record: Record | None = None
    many: bool = False


#: The broker's own topics that hold messages of all others: delayed ones, timers, halves of transactions.
_OF_ALL = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, MAX_CHECKS_TOPIC))


def _topic(name: str, actions: tuple[str, ...]) -> Want:
    """A retry topic belongs to its group, POP's ``%RETRY%GROUP+TOPIC`` too: no group has a ``+`` in its name. To read
    where messages of all topics wait is a look at the cluster, whatever a policy for ``*`` says."""
    if name.startswith(RETRY_PREFIX):
        return Want("Group", name.removeprefix(RETRY_PREFIX).partition("+")[0], actions)
    if (name in _OF_ALL or name.startswith(REVIVE_TOPIC_PREFIX)) and not {"Sub", "Get"}.isdisjoint(actions):
        return Want("Cluster", "", _GET)
    return Want("Topic", name, actions)


def _group(name: str, actions: tuple[str, ...]) -> Want:
    return Want("Group", name.removeprefix(RETRY_PREFIX), actions)


def _on(*, topic: str = "", group: str = "", actions: tuple[str, ...]) -> Needs:
    """``actions`` on the topic and on the group that these fields name."""

    def needs(_command: RemotingCommand, fields: Fields) -> Iterator[Want]:
        if topic:
            yield _topic(fields.get(topic) or "", actions)
        if group:
            yield _group(fields.get(group) or "", actions)

    return needs


def _on_named(*, topic: str = "", group: str = "", actions: tuple[str, ...]) -> Needs:
    """The same, of fields that may be absent."""

    def needs(_command: RemotingCommand, fields: Fields) -> Iterator[Want]:
        if topic and (name := fields.get(topic)):
            yield _topic(name, actions)
        if group and (name := fields.get(group)):
            yield _group(name, actions)

    return needs


def _cluster(*actions: str, field: str = "") -> Needs:
    """``actions`` on the cluster, which ``field`` names or is the server's own."""

    def needs(_command: RemotingCommand, fields: Fields) -> Iterator[Want]:
        yield Want("Cluster", (fields.get(field) or "") if field else "", actions)

    return needs


def _nothing(_command: RemotingCommand, _fields: Fields) -> Iterator[Want]:
    """Everybody who has signed in may."""
    return iter(())


# ---- requests with a rule of their own


def _send(topic: str) -> Needs:
    def needs(_command: RemotingCommand, fields: Fields) -> Iterator[Want]:
        name = fields.get(topic) or ""
        if name.startswith(RETRY_PREFIX):  # what a consumer sends back itself
            yield _group(name, _SUB)
        elif name != TRACE_TOPIC:  # traces are everybody's, as of RocketMQ 4
            yield Want("Topic", name, _PUB)

    return needs


def _reply(topic: str) -> Needs:
    """A reply goes to who asked: whoever could read the question may. It is stored too, which in a topic that is not
    for replies would be a message like any other; what a group retries, or gave up, is none for replies."""

    def needs(_command: RemotingCommand, fields: Fields) -> Iterator[Want]:
        name = fields.get(topic) or ""
        if not name.endswith(REPLY_SUFFIX) or name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            yield _topic(name, _PUB)

    return needs


def _route(_command: RemotingCommand, fields: Fields) -> Iterator[Want]:
    name = fields.get("topic") or ""
    if name.startswith(RETRY_PREFIX):
        yield _topic(name, _SUB_OR_GET)
    elif name not in (AUTO_CREATE_TOPIC, TRACE_TOPIC):  # where a topic may be made, or a trace go, shows nothing
        yield Want("Topic", name, ("Pub", "Sub", "Get"))


def _heartbeat(command: RemotingCommand, _fields: Fields) -> Iterator[Want]:
    if not command.body:
        return
    # The names alone, as HeartbeatData reads them: all of it takes four times as long, and its handler does that.
    plain = decode_plain(command.body, command.serialize_type, "HeartbeatData", lenient=MAX_LENIENT)
    for item in Plain(plain, "HeartbeatData").items("consumerDataSet"):
        consumer = Plain(item, "ConsumerData")
        yield _group(consumer.text("groupName"), _SUB)
        for subscription in consumer.items("subscriptionDataSet"):
            yield _topic(Plain(subscription, "SubscriptionData").text("topic"), _SUB)


def _body(command: RemotingCommand) -> dict[str, Any]:
    plain = decode_plain(command.body, command.serialize_type, lenient=MAX_LENIENT) if command.body else None
    return plain if isinstance(plain, dict) else {}


def _text(value: object) -> str:
    """As handlers read it: a number is a name too."""
    try:
        return forms.text(value) or ""
    except ValueError:
        return ""


def _locks(command: RemotingCommand, _fields: Fields) -> Iterator[Want]:
    # The names alone, as of heartbeats.
    body = Plain(decode_plain(command.body, command.serialize_type, lenient=MAX_LENIENT), "LockBatchBody")
    yield _group(body.text("consumerGroup"), _SUB)
    for queue in body.items("mqSet"):
        yield _topic(Plain(queue, "MessageQueue").text("topic"), _SUB)


def _assignment(actions: tuple[str, ...]) -> Needs:
    def needs(command: RemotingCommand, _fields: Fields) -> Iterator[Want]:
        body = _body(command)
        yield _topic(_text(body.get("topic")), actions)
        yield _group(_text(body.get("consumerGroup")), actions)

    return needs


def _acks(command: RemotingCommand, _fields: Fields) -> Iterator[Want]:
    acks = _body(command).get("acks")
    # Of more its handler does none: to look at 260,000 without a name, which fit into msgpack, took 0.1 s.
    for ack in acks[:MAX_ACKS] if isinstance(acks, list | tuple) else ():
        if not isinstance(ack, dict):
            continue
        # Short names and long ones are read; of both, either.
        yield from (_group(_text(ack[name]), _SUB) for name in ("c", "consumerGroup") if name in ack)
        yield from (_topic(_text(ack[name]), _SUB) for name in ("t", "topic") if name in ack)


def _group_config(command: RemotingCommand, _fields: Fields) -> Iterator[Want]:
    yield _group(_text(_body(command).get("groupName")), ("Create", "Update"))


def _clone(_command: RemotingCommand, fields: Fields) -> Iterator[Want]:
    yield _group(fields.get("srcGroup") or "", _GET)
    yield _group(fields.get("destGroup") or "", _UPDATE)


def _sent_back(command: RemotingCommand) -> int:
    return command.read(ConsumerSendMsgBackRequestHeader).offset


def _ended(command: RemotingCommand) -> int:
    return command.read(EndTransactionRequestHeader).commit_log_offset


def _consumed(command: RemotingCommand) -> int:
    return parse_offset_msg_id(command.read(ConsumeMessageDirectlyResultRequestHeader).msg_id or "")[2]


_AT_TOPIC = _on(topic="topic", actions=_SUB_OR_GET)
_POP = _on(topic="topic", group="consumerGroup", actions=_SUB)
_SHOWS, _CHANGES = _cluster("Get"), _cluster("Update")
_R = RequestCode


def _admin(needs: Needs) -> Rule:
    return Rule(needs, administration=True)


_ADMINISTRATOR = Rule(_CHANGES, administration=True, super_only=True)
_BROKER = Rule(_cluster("Update", field="clusterName"), registration=True)

RULES: dict[int, Rule] = {
    # producers
    _R.SEND_MESSAGE: Rule(_send("topic")),
    _R.SEND_MESSAGE_V2: Rule(_send("b")),
    _R.SEND_BATCH_MESSAGE: Rule(_send("b")),
    _R.END_TRANSACTION: Rule(_on_named(topic="topic", actions=_PUB), record=Record(_ended, _PUB)),
    _R.RECALL_MESSAGE: Rule(_on(topic="topic", actions=_PUB)),
    _R.SEND_REPLY_MESSAGE: Rule(_reply("topic")),
    _R.SEND_REPLY_MESSAGE_V2: Rule(_reply("b")),
    # consumers
    _R.PULL_MESSAGE: Rule(_on(topic="topic", group="consumerGroup", actions=_SUB)),
    _R.LITE_PULL_MESSAGE: Rule(_on(topic="topic", group="consumerGroup", actions=_SUB)),
    _R.QUERY_CONSUMER_OFFSET: Rule(_on(topic="topic", group="consumerGroup", actions=_SUB_OR_GET)),
    _R.UPDATE_CONSUMER_OFFSET: Rule(_on(topic="topic", group="consumerGroup", actions=_SUB_OR_UPDATE)),
    _R.HEART_BEAT: Rule(_heartbeat, many=True),
    _R.UNREGISTER_CLIENT: Rule(_on_named(group="consumerGroup", actions=_SUB)),
    _R.CONSUMER_SEND_MSG_BACK: Rule(_on(group="group", actions=_SUB), record=Record(_sent_back, _SUB)),
    _R.GET_CONSUMER_LIST_BY_GROUP: Rule(_on(group="consumerGroup", actions=_SUB_OR_GET)),
    _R.LOCK_BATCH_MQ: Rule(_locks, many=True),
    _R.UNLOCK_BATCH_MQ: Rule(_locks, many=True),
    _R.CHECK_CLIENT_CONFIG: Rule(_nothing),
    _R.POP_MESSAGE: Rule(_POP),
    _R.PEEK_MESSAGE: Rule(_POP),
    _R.NOTIFICATION: Rule(_POP),
    _R.ACK_MESSAGE: Rule(_POP),
    _R.BATCH_ACK_MESSAGE: Rule(_acks, many=True),
    _R.CHANGE_MESSAGE_INVISIBLETIME: Rule(_POP),
    _R.POP_ROLLBACK: Rule(_POP),
    _R.POLLING_INFO: Rule(_on(topic="topic", group="consumerGroup", actions=_SUB_OR_GET)),
    _R.QUERY_ASSIGNMENT: Rule(_assignment(_SUB_OR_GET)),
    # what topics hold
    _R.SEARCH_OFFSET_BY_TIMESTAMP: Rule(_AT_TOPIC),
    _R.GET_MAX_OFFSET: Rule(_AT_TOPIC),
    _R.GET_MIN_OFFSET: Rule(_AT_TOPIC),
    _R.GET_EARLIEST_MSG_STORETIME: Rule(_AT_TOPIC),
    _R.QUERY_MESSAGE: Rule(_AT_TOPIC),
    # By its place in the log: which topic it is of is seen when it is read.
    _R.VIEW_MESSAGE_BY_ID: Rule(_SHOWS),
    # administration of topics and groups
    _R.UPDATE_AND_CREATE_TOPIC: _admin(_on(topic="topic", actions=("Create", "Update"))),
    _R.UPDATE_AND_CREATE_TOPIC_LIST: _admin(_cluster("Create", "Update")),
    _R.DELETE_TOPIC_IN_BROKER: _admin(_on(topic="topic", actions=("Delete",))),
    _R.GET_TOPIC_STATS_INFO: _admin(_on(topic="topic", actions=_GET)),
    _R.GET_TOPIC_CONFIG: _admin(_on(topic="topic", actions=_GET)),
    _R.QUERY_CONSUME_QUEUE: _admin(_on(topic="topic", actions=_GET)),
    _R.QUERY_TOPIC_CONSUME_BY_WHO: _admin(_on(topic="topic", actions=_GET)),
    _R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _admin(_group_config),
    _R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _admin(_cluster("Create", "Update")),
    _R.DELETE_SUBSCRIPTIONGROUP: _admin(_on(group="groupName", actions=("Delete",))),
    _R.GET_SUBSCRIPTIONGROUP_CONFIG: _admin(_on(group="group", actions=_GET)),
    _R.UPDATE_AND_GET_GROUP_FORBIDDEN: _admin(_on(topic="topic", group="group", actions=_UPDATE)),
    _R.GET_CONSUMER_CONNECTION_LIST: _admin(_on(group="consumerGroup", actions=_SUB_OR_GET)),
    _R.GET_CONSUME_STATS: _admin(_on(group="consumerGroup", actions=_GET)),
    _R.GET_CONSUMER_RUNNING_INFO: _admin(_on(group="consumerGroup", actions=_GET)),
    _R.QUERY_TOPICS_BY_CONSUMER: _admin(_on(group="group", actions=_GET)),
    _R.QUERY_SUBSCRIPTION_BY_CONSUMER: _admin(_on(group="group", actions=_GET)),
    _R.QUERY_CONSUME_TIME_SPAN: _admin(_on(topic="topic", group="group", actions=_GET)),
    _R.QUERY_CORRECTION_OFFSET: _admin(_SHOWS),
    _R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _admin(_on(topic="topic", group="group", actions=_GET)),
    _R.INVOKE_BROKER_TO_RESET_OFFSET: _admin(_on(topic="topic", group="group", actions=_UPDATE)),
    _R.CONSUME_MESSAGE_DIRECTLY: Rule(
        _on(group="consumerGroup", actions=_UPDATE), administration=True, record=Record(_consumed, _SUB_OR_GET)
    ),
    _R.CLONE_GROUP_OFFSET: _admin(_clone),
    _R.SET_MESSAGE_REQUEST_MODE: _admin(_assignment(_UPDATE)),
    _R.GET_ALL_MESSAGE_REQUEST_MODE: _admin(_SHOWS),
    # administration of a broker
    _R.GET_ALL_TOPIC_CONFIG: _admin(_SHOWS),
    _R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _admin(_SHOWS),
    _R.GET_ALL_CONSUMER_OFFSET: _admin(_SHOWS),
    _R.GET_ALL_DELAY_OFFSET: _admin(_SHOWS),
    _R.GET_PRODUCER_CONNECTION_LIST: _admin(_SHOWS),
    _R.GET_ALL_PRODUCER_INFO: _admin(_SHOWS),
    _R.GET_BROKER_RUNTIME_INFO: _admin(_SHOWS),
    _R.GET_BROKER_CONFIG: _admin(_SHOWS),
    _R.UPDATE_BROKER_CONFIG: _admin(_CHANGES),
    _R.GET_BROKER_CONSUME_STATS: _admin(_SHOWS),
    _R.VIEW_BROKER_STATS_DATA: _admin(_SHOWS),
    _R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _admin(_SHOWS),
    _R.GET_BROKER_HA_STATUS: _admin(_SHOWS),
    _R.GET_TIMER_CHECK_POINT: _admin(_SHOWS),
    _R.GET_TIMER_METRICS: _admin(_SHOWS),
    _R.TRIGGER_DELETE_FILES: _admin(_CHANGES),
    _R.CLEAN_EXPIRED_CONSUMEQUEUE: _admin(_CHANGES),
    _R.CLEAN_UNUSED_TOPIC: _admin(_CHANGES),
    _R.DELETE_EXPIRED_COMMITLOG: _admin(_CHANGES),
    _R.RESUME_CHECK_HALF_MESSAGE: _admin(_CHANGES),
    _R.RESET_MASTER_FLUSH_OFFSET: _admin(_CHANGES),
    _R.GET_COLD_DATA_FLOW_CTR_INFO: _admin(_SHOWS),
    _R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _admin(_CHANGES),
    _R.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _admin(_CHANGES),
    _R.SET_COMMITLOG_READ_MODE: _admin(_CHANGES),
    _R.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _admin(_SHOWS),
    _R.EXPORT_ROCKSDB_CONFIG_TO_JSON: _admin(_SHOWS),
    # users and their rights
    _R.UPDATE_AND_CREATE_ACL_CONFIG: _ADMINISTRATOR,
    _R.DELETE_ACL_CONFIG: _ADMINISTRATOR,
    _R.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _ADMINISTRATOR,
    _R.GET_BROKER_CLUSTER_ACL_INFO: _admin(_SHOWS),
    _R.AUTH_CREATE_USER: _ADMINISTRATOR,
    _R.AUTH_UPDATE_USER: _ADMINISTRATOR,
    _R.AUTH_DELETE_USER: _ADMINISTRATOR,
    _R.AUTH_CREATE_ACL: _ADMINISTRATOR,
    _R.AUTH_UPDATE_ACL: _ADMINISTRATOR,
    _R.AUTH_DELETE_ACL: _ADMINISTRATOR,
    _R.AUTH_GET_USER: _admin(_SHOWS),
    _R.AUTH_LIST_USER: _admin(_SHOWS),
    _R.AUTH_GET_ACL: _admin(_SHOWS),
    _R.AUTH_LIST_ACL: _admin(_SHOWS),
    # name servers: what clients ask
    _R.GET_ROUTEINFO_BY_TOPIC: Rule(_route),
    _R.GET_BROKER_CLUSTER_INFO: Rule(_SHOWS),
    _R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Rule(_SHOWS),
    _R.GET_TOPICS_BY_CLUSTER: Rule(_cluster("Get", "List", field="cluster")),
    _R.GET_SYSTEM_TOPIC_LIST_FROM_NS: Rule(_SHOWS),
    _R.GET_UNIT_TOPIC_LIST: Rule(_SHOWS),
    _R.GET_HAS_UNIT_SUB_TOPIC_LIST: Rule(_SHOWS),
    _R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Rule(_SHOWS),
    _R.GET_KV_CONFIG: Rule(_SHOWS),
    _R.GET_KVLIST_BY_NAMESPACE: Rule(_SHOWS),
    _R.GET_BROKER_MEMBER_GROUP: Rule(_SHOWS),
    # name servers: administration
    _R.PUT_KV_CONFIG: _admin(_CHANGES),
    _R.DELETE_KV_CONFIG: _admin(_CHANGES),
    _R.WIPE_WRITE_PERM_OF_BROKER: _admin(_CHANGES),
    _R.ADD_WRITE_PERM_OF_BROKER: _admin(_CHANGES),
    _R.DELETE_TOPIC_IN_NAMESRV: _admin(_on(topic="topic", actions=("Delete",))),
    _R.REGISTER_TOPIC_IN_NAMESRV: _admin(_CHANGES),
    _R.UPDATE_NAMESRV_CONFIG: _admin(_CHANGES),
    _R.GET_NAMESRV_CONFIG: _admin(_SHOWS),
    # name servers: brokers
    _R.REGISTER_BROKER: _BROKER,
    _R.UNREGISTER_BROKER: _BROKER,
    _R.QUERY_DATA_VERSION: _BROKER,
    _R.BROKER_HEARTBEAT: _BROKER,
}


def wants_of(command: RemotingCommand, fields: Fields, cluster: str) -> Iterator[Want] | None:
    """All that ``command`` needs by its fields of a server of ``cluster``; None when only an administrator may.
    ProtocolError, while they are given, for a body that cannot be read."""
    rule = RULES.get(command.code)
    if rule is None or rule.super_only:
        return None
    return (_in_cluster(want, cluster) for want in rule.needs(command, fields))


def names_many(command: RemotingCommand) -> bool:
    """Whether its body may name thousands."""
    return RULES[command.code].many


def want_of_record(command: RemotingCommand, record_at: RecordAt, cluster: str) -> Want | None:
    """What ``command`` needs besides of the message that it names by its place. ProtocolError for fields that cannot be
    read; errors of ``record_at`` pass."""
    record = RULES[command.code].record
    data = record_at(record.place(command)) if record is not None else None
    if record is None or data is None:
        return None
    view = RecordView(data, 0, len(data))
    # One that waits is of the topic that it waits for.
    topic = view.properties.get(PROPERTY_REAL_TOPIC, view.topic) if view.topic in _OF_ALL else view.topic
    return _in_cluster(_topic(topic, record.actions), cluster)


def _in_cluster(want: Want, cluster: str) -> Want:
    return want._replace(name=cluster) if want.kind == "Cluster" and not want.name else want


def is_administration(code: int) -> bool:
    """Without access control it is served on this machine only. A code without a line is."""
    rule = RULES.get(code)
    return rule is None or rule.administration


def is_registration(code: int) -> bool:
    """A broker asks it of a name server."""
    rule = RULES.get(code)
    return rule is not None and rule.registration
