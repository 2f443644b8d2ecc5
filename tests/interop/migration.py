"""The way from Apache's mqadmin to our command line: the table of ``docs/operating.md``, and what both print of one
cluster. ``python -m tests.interop.migration`` prints the table, and a test compares it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ("ROWS", "Row", "table")

Facts = set[tuple[str, ...]]


class Row(NamedTuple):
    """``mqadmin`` and ``ours`` are commands as people write them: ``{T}`` and the like are what they put there. ``say``
    and ``rows`` read the same facts of what the first of each prints, the latter of our ``--json``. Where ``shows`` is
    given, our first command changes something that this command of mqadmin shows then, by the pattern; where ``seen``,
    it is the other way round, and the pattern is in our ``--json``. Rows with none of these have their reason beside
    them."""

    mqadmin: tuple[str, ...]
    ours: tuple[str, ...]
    say: Callable[[str], Facts] | None = None
    rows: Callable[[list[dict[str, Any]]], Facts] | None = None
    shows: tuple[str, str] | None = None
    seen: tuple[str, str] | None = None


def _found(pattern: str) -> Callable[[str], Facts]:
    """The groups of each match, a line at a time."""

    def say(text: str) -> Facts:
        return {match.groups() for match in re.finditer(pattern, text, re.MULTILINE)}

    return say


def _fields(*names: str) -> Callable[[list[dict[str, Any]]], Facts]:
    return lambda rows: {tuple(str(row[name]) for name in names) for row in rows}


def _route(text: str) -> Facts:
    return set(re.findall(r'"(readQueueNums|writeQueueNums)":(\d+)', text)) | {
        ("address", each) for each in re.findall(r'0:"([^"]+)"', text)
    }


def _our_route(rows: list[dict[str, Any]]) -> Facts:
    found: Facts = set()
    for row in rows:
        found |= {("readQueueNums", str(row["read_queues"])), ("writeQueueNums", str(row["write_queues"]))}
        found |= {("address", each) for each in row["addresses"].values()}
    return found


def _of(group: str, *names: str) -> Callable[[list[dict[str, Any]]], Facts]:
    return lambda rows: {tuple(str(row[name]) for name in names) for row in rows if row["group"] == group}


def _settings_of_member(rows: list[dict[str, Any]]) -> Facts:
    return {(row["name"], row["value"]) for row in rows if row["of"] == "setting" and row["name"].startswith("PROP_")}


def _done(rows: list[dict[str, Any]]) -> Facts:
    return {("success",) for _ in rows}


_MESSAGE = _found(r"^OffsetID: +(\S+)$")

ROWS = (
    Row(
        ("topicList", "topicList -c"), ("topic list --system", "topic list"),
        _found(r"^([\w%-]+)[ \r]*$"), _fields("topic"),
    ),
    Row(
        ("updateTopic -t {N} -r 8 -w 8",), ("topic create {N} --queues 8", "topic update {N} --read-queues 8"),
        shows=("topicRoute -t {N}", r'"readQueueNums":8'),
    ),
    Row(
        ("updateTopicPerm -t {N} -p 4",), ("topic update {N} --permission R",),
        shows=("topicRoute -t {N}", r'"perm":4'),
    ),
    Row(("deleteTopic -t {N}",), ("topic delete {N} --yes",), shows=("topicRoute -t {N}", "No topic route info")),
    Row(
        ("topicStatus -t {T}",), ("topic status {T}",),
        _found(r"^(\S+) +(\d+) +(\d+) +(\d+) "), _fields("broker", "queue", "begin", "end"),
    ),
    Row(("topicRoute -t {T}",), ("topic route {T}",), _route, _our_route),
    Row(("topicClusterList -t {T}",), ("topic route {T}",), _found(r"^(\w+)$"), _fields("cluster")),
    Row(("statsAll",), ("top",), _found(r"^orders +(online-group) +(\d+) "), _of("online-group", "group", "lag")),
    Row(
        ("updateSubGroup -g {O} -r 3",), ("group create {O} --retries 3",),
        shows=("getConsumerConfig -g {O}", r"retryMaxTimes += +3"),
    ),
    Row(
        ("getConsumerConfig -g {O}",), ("group list",),
        _found(r"retryMaxTimes += +(\d+)"), _of("made-group", "retries"),
    ),
    Row(
        ("deleteSubGroup -g {O}",), ("group delete {O} --yes",),
        shows=("getConsumerConfig -g {O}", r"\A(?![\s\S]*retryMaxTimes)"),
    ),
    Row(
        ("consumerProgress", "brokerConsumeStats -b {B}"), ("top",),
        _found(r"^(online-group) +\d+ +\S+ +\S+ +\S+ +\S+ +(\d+)"), _of("online-group", "group", "lag"),
    ),
    Row(
        ("consumerProgress -g {G}",), ("group lag {G}",),
        _found(r"^(\S+) +(\S+) +(\d+) +(\d+) +(\d+) +(\d+) "),
        _fields("topic", "broker", "queue", "end", "offset", "lag"),
    ),
    Row(
        ("consumerConnection -g {G}",), ("group members {G}",),
        _found(r"(\S+@\S+) +(\S+:\d+) +(\w+) "), _fields("client_id", "address", "language"),
    ),
    # mqadmin has nothing that shows how a group consumes, and writes what is popped to a file.
    Row(("setConsumeMode -t {T} -g {A} -m POP -q 0", "exportPopRecord"), ("group mode {A} {T} POP", "group popped")),
    Row(
        ("consumerStatus -g {G} -i {C} -s",), ("group info {G} {C} --stacks",),
        _found(r"^(PROP_\w+) *: (.*?) *$"), _settings_of_member,
    ),
    Row(
        ("producerConnection -g {P} -t {T}",), ("cluster producers {P}",),
        _found(r"(\S+@\S+) +(\S+:\d+) +(\w+) "), _fields("client_id", "address", "language"),
    ),
    Row(
        ("cloneGroupOffset -s {G} -d {A} -t {T}",), ("offsets clone {G} {A} {T}",),
        shows=("consumerProgress -g {A}", r"{T} +broker-a +0 +10 +10 +0 "),
    ),
    Row(
        ("resetOffsetByTime -g {A} -t {T} -s 0",), ("offsets reset {A} {T} --to first",),
        shows=("consumerProgress -g {A}", r"{T} +broker-a +0 +10 +0 +10 "),
    ),
    Row(
        ("skipAccumulatedMessage -g {A} -t {T}",), ("offsets reset {A} {T} --to last",),
        shows=("consumerProgress -g {A}", r"{T} +broker-a +0 +10 +10 +0 "),
    ),
    Row(("queryMsgById -t {T} -i {I}", ), ("message get {I}",), _MESSAGE, _fields("offset_msg_id")),
    Row(
        ("queryMsgByUniqueKey -t {T} -i {U}",), ("message get {U} --topic {T}",),
        _found(r"^Queue ID: +(\d+)\n(?:.*\n)*?Queue Offset: +(\d+)$"), _fields("queue", "offset"),
    ),
    Row(
        ("queryMsgByKey -t {T} -k {K}",), ("message key {T} {K}",),
        _found(r"^([0-9A-F]{32}) +(\d+) +(\d+)"), _fields("msg_id", "queue", "offset"),
    ),
    Row(
        ("queryMsgByOffset -t {T} -b {W} -i 0 -o 3",), ("message at {T} {W} 0 3",),
        _MESSAGE, _fields("offset_msg_id"),
    ),
    Row(
        ("printMsg -t {T} -b {M}",), ("message list {T} --since {M}",),
        _found(r"^MSGID: (\w+)"), _fields("msg_id"),
    ),
    # After this one mqadmin's process ends.
    Row(("queryMsgById -i {I} -g {G} -d {C}",), ("message consume {G} {C} {I}",)),
    Row(("sendMessage -t {Q} -p BODY",), ("send {Q} BODY",), shows=("printMsg -t {Q} -d true", r"BODY: BODY")),
    # Ours prints bodies as they are, a line each.
    Row(("consumeMessage -t {T} -g {G}",), ("consume {T} --group {G}", "message tail {T}")),
    Row(("queryMsgTraceById -i {U}",), ("trace {U}",), _found(r"^(Pub) +(\S+)"), _fields("kind", "group")),
    Row(
        ("clusterList",), ("cluster list",),
        _found(r"^(\w+) +([\w-]+) +(\d+) +(\S+:\d+) "), _fields("cluster", "name", "id", "address"),
    ),
    Row(("brokerStatus -b {B}",), ("cluster status {B}",), _found(r"^(\S+?) *: "), _fields("name")),
    Row(
        ("getBrokerConfig -b {B}",), ("cluster config {B}",),
        _found(r"^(\w+) += +(.*?) *$"), _fields("name", "value"),
    ),
    Row(
        ("updateBrokerConfig -b {B} -k transactionCheckMax -v 9",), ("cluster set {B} transactionCheckMax=9",),
        shows=("getBrokerConfig -b {B}", r"transactionCheckMax += +9"),
    ),
    Row(
        ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"),
        ("cluster clean queues", "cluster clean topics", "cluster clean messages"),
        _found(r"(success)"), _done,
    ),
    Row(
        ("wipeWritePerm -b {B} -n {S}",), ("cluster write {B} off",), shows=("topicRoute -t {T}", r'"perm":4'),
    ),
    Row(("addWritePerm -b {B} -n {S}",), ("cluster write {B} on",), shows=("topicRoute -t {T}", r'"perm":6')),
    Row(("createUser -u {E} -p PASSWORD",), ("acl create-user {E}",), shows=("listUser -b {B}", r"(?m)^{E} +")),
    Row(("listUser -b {B}",), ("acl users",), _found(r"^([\w-]+) +\S+ +\S+ +\S+ *$"), _fields("name")),
    Row(
        ("createAcl -s User:{E} -r Topic:{T} -a Pub -d Allow",), ("acl grant {E} Topic:{T} Pub",),
        shows=("listAcl -b {B} -s User:{E}", r"User:{E} +.*Topic:{T} +.*Pub"),
    ),
    Row(
        ("listAcl -b {B} -s User:{E}",), ("acl rights {E}",),
        _found(r"User:([\w-]+) +\S+ +(\S+) +"), _fields("user", "resource"),
    ),
    Row(
        ("deleteAcl -s User:{E}",), ("acl revoke {E}",),
        shows=("listAcl -b {B} -s User:{E}", r"\A(?![\s\S]*Topic:{T})"),
    ),
    Row(
        ("deleteUser -u {E}",), ("acl delete-user {E} --yes",), shows=("listUser -b {B}", r"\A(?![\s\S]*^{E} )"),
    ),
    Row(
        ("updateKvConfig -s SPACE -k KEY -v VALUE",), ("cluster names put SPACE KEY VALUE",),
        seen=("cluster names values SPACE", r"'key': 'KEY', 'value': 'VALUE'"),
    ),
    Row(
        ("deleteKvConfig -s SPACE -k KEY",), ("cluster names delete SPACE KEY --yes",),
        seen=("cluster names values SPACE", r"\[\]"),
    ),
    Row(
        ("getNamesrvConfig",), ("cluster names config {S}",),
        _found(r"^(\w+) += +(.*?) *$"), _fields("name", "value"),
    ),
    Row(
        ("updateNamesrvConfig -k orderMessageEnable -v false",), ("cluster names set orderMessageEnable=false",),
        shows=("getNamesrvConfig", r"orderMessageEnable += +false"),
    ),
)  # fmt: skip


#: What docs have in place of the names.
_SHOWN = {
    "T": "T", "N": "T", "G": "G", "O": "G", "A": "OTHER", "P": "P", "B": "B", "C": "C", "I": "ID", "U": "ID", "K": "K",
    "S": "NAMESERVER", "W": "B", "E": "USER", "M": "TIME", "Q": "T",
}  # fmt: skip


def table() -> str:
    """As ``docs/operating.md`` has it."""

    def shown(commands: tuple[str, ...]) -> str:
        return ", ".join(f"`{each.format_map(_SHOWN)}`" for each in commands)

    lines = [f"| {shown(row.mqadmin)} | {shown(row.ours)} |" for row in ROWS]
    return "\n".join(("| mqadmin | aiorocket |", "|---|---|", *lines)) + "\n"


if __name__ == "__main__":
    print(table(), end="")
