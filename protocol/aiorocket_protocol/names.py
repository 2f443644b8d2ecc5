"""Names and small numbers that both sides of the wire must write alike: RocketMQ's own words, each in one place.

Names of message properties are in ``properties``, bits of a message's sysFlag in ``record_layout`` and ``compression``.
"""

from __future__ import annotations

__all__ = (
    "ALL_TAGS",
    "AUTO_CREATE_TOPIC",
    "BENCHMARK_TOPIC",
    "BROADCASTING",
    "BROKER_PORT",
    "CLUSTERING",
    "CONSUME_ACTIVELY",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
    "CONSUME_FROM_WHERE",
    "CONSUME_PASSIVELY",
    "CONSUME_TYPES",
    "DEFAULT_CLUSTER",
    "DEFAULT_REGION",
    "DLQ_PREFIX",
    "EXT_ACCEPT",
    "EXT_EPOCH",
    "EXT_ONCE",
    "EXT_UNIQUE_KEY_QUERY",
    "FIRST_RETRY_LEVEL",
    "HALF_TOPIC",
    "INNER_PRODUCER",
    "MASTER_ID",
    "MAX_CHECKS_TOPIC",
    "MESSAGE_MODELS",
    "NAMESERVER_PORT",
    "NAME_CHARACTER",
    "OFFSET_MOVED_TOPIC",
    "OFFSET_RESET",
    "OP_TOPIC",
    "PERM_ALL",
    "PERM_INHERIT",
    "PERM_READ",
    "PERM_READ_WRITE",
    "PERM_WRITE",
    "PULL_CLASS_FILTER",
    "PULL_COMMIT",
    "PULL_LITE",
    "PULL_SUBSCRIPTION",
    "PULL_SUSPEND",
    "REPLY_SUFFIX",
    "RETRY_PREFIX",
    "SCHEDULE_TOPIC",
    "SELF_TEST_TOPIC",
    "SINGLE_TAG",
    "SQL92",
    "SYSTEM_GROUPS",
    "SYSTEM_GROUP_PREFIX",
    "SYSTEM_TOPICS",
    "SYSTEM_TOPIC_PREFIX",
    "TAG",
    "TOOLS_GROUP",
    "TIMER_TOPIC",
    "TOPIC_FILTER_TYPES",
    "TRACE_TOPIC",
    "VERSION",
    "VERSION_NAME",
    "VERSION_WITH_MAX_RECONSUME",
    "VERSION_WITH_SQL92",
    "VERSION_WITH_TIMERS",
    "dlq_topic",
    "reply_topic",
    "retry_topic",
)

# ---- Versions: ordinals of RocketMQ's MQVersion

#: What clients and servers of ours say they are: peers decide on features by it, so it is never 0.
VERSION = 479
VERSION_NAME = "V5_3_3"
#: 3.4.9, the first whose consumers send a maxReconsumeTimes that means anything.
VERSION_WITH_MAX_RECONSUME = 121
#: 4.1.0, the first that filters by SQL92; older ones take any expression for tags.
VERSION_WITH_SQL92 = 232
#: 5.0.0, the first that knows TIMER_ properties; older ones deliver at once.
VERSION_WITH_TIMERS = 413

# ---- Topics

#: What topics and groups may be called, as a regular expression for one character; limits.py says of how many.
NAME_CHARACTER = r"[%|a-zA-Z0-9_-]"
#: In front of a group: its topic of messages to be delivered again, and of those given up.
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
#: Behind a cluster.
REPLY_SUFFIX = "_REPLY_TOPIC"
#: The template of topics that a broker creates by itself; it has a route exactly when some broker does so.
AUTO_CREATE_TOPIC = "TBW102"
#: Messages that wait for their delay level.
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
#: Half messages of transactions, the records that end them, and those that were checked too often.
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
MAX_CHECKS_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC = "BenchmarkTest"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
#: Messages that wait for a time of their own, and recalls of such.
TIMER_TOPIC = "rmq_sys_wheel_timer"
#: What every broker has, whoever uses it; so has every topic with the prefix.
SYSTEM_TOPICS = frozenset(
    (
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        MAX_CHECKS_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        BENCHMARK_TOPIC,
        TRACE_TOPIC,
        TIMER_TOPIC,
    )
)
SYSTEM_TOPIC_PREFIX = "rmq_sys_"

#: Bits of a topic's perm. INHERIT: it may be the template of others.
PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
PERM_READ_WRITE = PERM_READ | PERM_WRITE
PERM_ALL = PERM_READ | PERM_WRITE | PERM_INHERIT
#: topicFilterType in the order of Java's ordinals; only the first is in use.
TOPIC_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
SINGLE_TAG = "SINGLE_TAG"


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Where answers to requests of producers are sent."""
    return cluster + REPLY_SUFFIX


# ---- Groups

#: The group of administration tools; a pull needs a group that exists, and this one does everywhere.
TOOLS_GROUP = "TOOLS_CONSUMER"
#: The producer inside every client; brokers and tools expect to see it.
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
SYSTEM_GROUPS = frozenset(
    (
        TOOLS_GROUP,
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        SYSTEM_GROUP_PREFIX + "TRANS",
    )
)

#: The delay level of the first retry; each further one is a level longer.
FIRST_RETRY_LEVEL = 3

# ---- What a heartbeat says of a group

CONSUME_PASSIVELY, CONSUME_ACTIVELY = "CONSUME_PASSIVELY", "CONSUME_ACTIVELY"
CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"
CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
# Each in the order of Java's ordinals, which C++ clients send.
CONSUME_TYPES = (CONSUME_ACTIVELY, CONSUME_PASSIVELY, "CONSUME_POP")
MESSAGE_MODELS = (BROADCASTING, CLUSTERING, "LITE_SELECTIVE")
CONSUME_FROM_WHERE = (
    CONSUME_FROM_LAST_OFFSET,
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    CONSUME_FROM_FIRST_OFFSET,
    CONSUME_FROM_TIMESTAMP,
)
#: What came of a message that one member consumed on its own (309); Go sends ordinals.
CONSUME_RESULTS = ("CR_SUCCESS", "CR_LATER", "CR_ROLLBACK", "CR_COMMIT", "CR_THROW_EXCEPTION", "CR_RETURN_NULL")

# ---- Pulls

#: Bits of a pull's sysFlag: the commitOffset counts, wait for messages, the subscription is in the request, it names a
#: filter class, the pull is that of a pull consumer (code 361).
PULL_COMMIT = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4
PULL_CLASS_FILTER = 8
PULL_LITE = 16
#: The remark of an answer that passes on an administrator's reset of the group.
OFFSET_RESET = "OFFSET_RESET"

#: expressionType: tags ("a || b", "*" for all) or an SQL92 condition.
TAG, SQL92 = "TAG", "SQL92"
ALL_TAGS = "*"

# ---- Brokers and connections

#: The id of a broker that takes messages; others are copies of it.
MASTER_ID = 0
#: Where they listen unless told otherwise.
NAMESERVER_PORT, BROKER_PORT = 9876, 10911
#: What MSG_REGION says, and the cluster of a broker, where nothing else is configured.
DEFAULT_REGION = "DefaultRegion"
DEFAULT_CLUSTER = "DefaultCluster"
#: Ext fields of our own: "my answers may be msgpack", and the lease in which a queue was read or its offset committed.
EXT_ACCEPT = "_accept"
EXT_EPOCH = "_epoch"
#: Of a send that is stored once, however often it comes: the broker that it belongs to.
EXT_ONCE = "_once"
#: A look-up by key (12) is for one message by its UNIQ_KEY when this is "true".
EXT_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
