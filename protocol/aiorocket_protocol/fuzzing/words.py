"""What the fields of requests may say: legal values by what they mean, odd and broken ones by their kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiorocket_protocol.limits import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN

__all__ = ("BROKEN_VALUES", "ODD_VALUES", "Words", "meaning_of", "words")

#: Values by meaning. A session adds what it learns: offsets, ids, handles.
Words = dict[str, list[Any]]

#: Keys on the wire that mean the same; what is in none of these lists means itself.
_SAME = {
    "topic": ("b", "originTopic", "topicList"),
    "defaultTopic": ("c",),
    "group": ("a", "consumerGroup", "producerGroup", "groupName", "srcGroup", "destGroup", "compareGroup"),
    "clientId": ("clientID",),
    "brokerName": ("n", "bname"),
    "cluster": ("clusterName",),
    "address": ("brokerAddr", "haServerAddr", "clientAddr", "bornHost", "storeHost"),
    "properties": ("i",),
    "queueId": ("e",),
    "queueNums": ("d", "defaultTopicQueueNums", "readQueueNums", "writeQueueNums"),
    "messageSysFlag": ("f",),
    "bornTimestamp": ("g",),
    "flag": ("h",),
    "reconsumeTimes": ("j",),
    "unitMode": ("k",),
    "maxReconsumeTimes": ("l",),
    "batch": ("m",),
    "offset": ("queueOffset", "commitOffset", "index"),
    "logOffset": ("tranStateTableOffset", "commitLogOffset"),
    "msgId": ("originMsgId", "offsetMsgId"),
    "count": ("maxNum", "maxMsgNums"),
    "heartbeatTimeout": ("heartbeatTimeoutMillis", "heartbeatTimeoutMills"),
    "hold": ("suspendTimeoutMillis", "pollTime"),
    "subject": ("subjectFilter", "resource", "resourceFilter"),
}
_MEANINGS = {wire: meaning for meaning, wires in _SAME.items() for wire in wires}

_LEGAL: Words = {
    "topic": ["fuzz", "fuzz-2", "fuzz-orders", "%RETRY%fuzz-group", "TBW102"],
    "defaultTopic": ["TBW102"],
    "group": ["fuzz-group", "fuzz-group-2", "fuzz-orderly"],
    "clientId": ["fuzz@1", "fuzz@2"],
    "brokerName": ["fuzz-broker"],
    "cluster": ["fuzz-cluster"],
    "address": ["127.0.0.1:1", "127.0.0.1:65535"],
    "properties": ["", "TAGS\1a\2", "KEYS\1k\2TAGS\1b\2", "DELAY\0011\2", "TRAN_MSG\1true\2PGROUP\1fuzz-group\2",
                   "TIMER_DELAY_MS\001200\2", "UNIQ_KEY\0010123456789ABCDEF0123456789ABCDEF\2"],
    "queueId": [0, 0, 0, 1, 2, 3],
    "queueNums": [1, 4, 8],
    "messageSysFlag": [0, 0, 0, 4, 8, 12],
    "sysFlag": [0, 0, 1, 4, 5],
    "topicSysFlag": [0],
    "groupSysFlag": [0],
    "perm": [2, 4, 6],
    "bornTimestamp": [1_700_000_000_000],
    "bornTime": [1_700_000_000_000],
    "timestamp": [0, 1_700_000_000_000, 9_999_999_999_999],
    "beginTimestamp": [0],
    "endTimestamp": [9_999_999_999_999],
    "reconsumeTimes": [0, 1],
    "maxReconsumeTimes": [3, 16],
    "batch": [False],
    "offset": [0, 1, 2, 3],
    "logOffset": [0, 100],
    "msgId": ["7F00000100002A9F0000000000000000"],
    "count": [1, 8, 32],
    "maxMsgBytes": [1024, 1 << 18],
    "hold": [0, 10],
    "invisibleTime": [1000, 60_000],
    "subscription": ["*", "a", "a||b"],
    "expressionType": ["TAG", "SQL92"],
    "exp": ["*", "a"],
    "expType": ["TAG"],
    "topicFilterType": ["SINGLE_TAG"],
    "commitOrRollback": [0, 8, 12],
    "delayLevel": [0, 1, 3, -1],
    "initMode": [0, 1],
    "boundaryType": ["LOWER", "UPPER"],
    "extraInfo": ["0 1700000000000 60000 0 0 fuzz-broker 0 0"],
    "attributes": ["+message.type=NORMAL"],
    "statsName": ["TOPIC_PUT_NUMS"],
    "statsKey": ["fuzz"],
    "namespace": ["fuzz"],
    "key": ["k", "k2"],
    "value": ["v"],
    "brokerId": [0],
    "heartbeatTimeout": [60_000],
    "username": ["fuzz-user"],
    "subject": ["User:fuzz-user", "Topic:fuzz"],
    "policyType": ["Custom"],
    "accessKey": ["fuzz-user"],
    "secretKey": ["a-s3cret-of-fuzz"],
    "bodyCrc32": [0],
}  # fmt: skip
_BY_KIND: dict[str, Sequence[Any]] = {"str": ("x",), "int": (0, 1, 2), "long": (0, 1, 2), "bool": (False, True)}

#: Of the kind, and not what anybody sends.
ODD_VALUES: dict[str, Sequence[Any]] = {
    "str": ("", "x" * 300, "\u0130\U0001f600", "a\0b", "a\nb", "%RETRY%", "%DLQ%x", "SCHEDULE_TOPIC_XXXX", "||", "*",
            "TAGS\1", "a = ", "true", "[]", "{}", "../x", "null"),
    "int": (-1, 7, 100, INT32_MAX, INT32_MIN),
    "long": (-1, 7, 1 << 31, INT64_MAX, INT64_MIN),
    "bool": (False, True),
}  # fmt: skip

#: Not of the kind; text in JSON and ROCKETMQ, in msgpack as they are. None: the field is left out.
BROKEN_VALUES: dict[str, Sequence[Any]] = {
    "str": (None, [], b"\xff", 1.5),
    "int": (None, "x", "", "1e9", 1 << 31, -(1 << 40), "1" * 50, [], 0.5),
    "long": (None, "x", "", " 1", 1 << 63, "1" * 5000, "\u0661", [[]], 1e300),
    "bool": (None, "x", "2", [], -1),
}


def meaning_of(wire: str) -> str:
    """Under which name ``words`` has the values of a field."""
    return _MEANINGS.get(wire, wire)


def words(kinds: dict[str, str]) -> Words:
    """Legal values for all meanings, ``kinds`` by kind where nothing better is known; a copy to add to."""
    found = {meaning_of(wire): list(_BY_KIND[kind]) for wire, kind in kinds.items()}
    return found | {meaning: list(values) for meaning, values in _LEGAL.items()}
