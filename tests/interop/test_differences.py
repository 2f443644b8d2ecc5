"""Codes that we serve, in legal and illegal variants, asked of our servers and of Apache's 4.9.7 and 5.5.0: response
code, fields and the shape of the body. Where they differ, ``differences.toml`` says so and why; nothing else may."""

from __future__ import annotations

import asyncio
import json
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aiorocket import embed
from aiorocket.fuzz import compare
from aiorocket.fuzz.differences import differences, matches, said
from aiorocket_protocol import encode_batch, encode_properties
from tests.interop.peers import (
    NEWEST,
    OLDER,
    Server,
    apache_server,
    fetch_jars,
    our_server,
    wait_for_statistics,
)
from tests.interop.raw import Answer, Raw
from tests.interop.test_access import access_file, credentials, signed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

#: What brokers ask of name servers: one of Apache's does in ``test_access.py``.
OF_BROKERS = {103, 104, 322, 904}
TABLE = Path(__file__).resolve().parent / "differences.toml"


#: What was answered to the cases before, by name.
Answers = Mapping[str, Answer | None]


class Case(NamedTuple):
    """``name`` begins with the code; what varies follows it. What depends on earlier answers is a function of them.
    ``at`` is "broker" or "nameserver", or "guarded": a broker of ours with access control. Of the field ``exact`` the
    value counts too."""

    name: str
    fields: dict[str, Any] | Callable[[Answers], dict[str, Any]] | None = None
    body: bytes | Callable[[Answers], bytes] = b""
    at: str = "broker"
    exact: str = ""

    @property
    def code(self) -> int:
        return int(self.name.split()[0])


def topic(name: str, **changes: Any) -> dict[str, Any]:
    return {"topic": name, "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", **changes}  # fmt: skip


def send(name: str = "D", **changes: Any) -> dict[str, Any]:
    fields = {"a": "diff-producer", "b": name, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1700000000000, "h": 0,
              "i": "", "j": 0, "k": "false", "m": "false"}  # fmt: skip
    return {**fields, **changes}


def long_send(name: str = "D") -> dict[str, Any]:
    return {"producerGroup": "diff-producer", "topic": name, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
            "queueId": 0, "sysFlag": 0, "bornTimestamp": 1700000000000, "flag": 0, "properties": "",
            "reconsumeTimes": 0, "unitMode": "false", "batch": "false"}  # fmt: skip


def pull(name: str = "D", **changes: Any) -> dict[str, Any]:
    return {"consumerGroup": "diff", "topic": name, "queueId": 0, "queueOffset": 0, "maxMsgNums": 8, "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
            "expressionType": "TAG", **changes}  # fmt: skip


def queue(**changes: Any) -> dict[str, Any]:
    return {"topic": "D", "queueId": 0, **changes}


def body(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def heartbeat(group: str) -> bytes:
    subscription = {"topic": "D", "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": [],
                    "classFilterMode": False, "expressionType": "TAG"}  # fmt: skip
    consumer = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
                "subscriptionDataSet": [subscription]}  # fmt: skip
    return body({"clientID": "diff-client", "producerDataSet": [{"groupName": "diff-producer"}],
                 "consumerDataSet": [consumer]})  # fmt: skip


def lock(group: str) -> bytes:
    return body({"consumerGroup": group, "clientId": "diff-client", "mqSet": [
        {"topic": "D", "brokerName": "broker-a", "queueId": 0}]})  # fmt: skip


def pop(name: str = "P", **changes: Any) -> Callable[[Answers], dict[str, Any]]:
    """A pop that is too old when it comes is not served."""
    return lambda _: {"consumerGroup": "popper", "topic": name, "queueId": 0, "maxMsgNums": 1, "invisibleTime": 60_000,
                      "pollTime": 0, "bornTime": round(time.time() * 1000), "initMode": 0, "expType": "TAG",
                      "exp": "*", "order": "false", **changes}  # fmt: skip


def popped(answers: Answers) -> dict[str, str]:
    """Fields of the pop that found a message; made up where nobody pops."""
    found = answers["200050 found"]
    return found.fields if found is not None and found.code == 0 else {"popTime": "1", "reviveQid": "0"}


def handle(**changes: Any) -> Callable[[Answers], dict[str, Any]]:
    """Of the message that was popped."""

    def fields(answers: Answers) -> dict[str, Any]:
        words = 0, popped(answers)["popTime"], 60_000, popped(answers)["reviveQid"], 0, "broker-a", 0, 0
        return {"consumerGroup": "popper", "topic": "P", "queueId": 0, "offset": 0,
                "extraInfo": " ".join(map(str, words)), **changes}  # fmt: skip

    return fields


def acks(answers: Answers) -> bytes:
    found = popped(answers)
    ack = {"c": "popper", "t": "P", "r": "0", "so": 0, "q": 0, "rq": int(found["reviveQid"]),
           "pt": int(found["popTime"]), "it": 60_000, "b": "AQ=="}  # fmt: skip
    return body({"brokerName": "broker-a", "acks": [ack]})


def assignment(**changes: Any) -> bytes:
    return body({"topic": "D", "consumerGroup": "diff", "clientId": "diff-client", "strategyName": "AVG",
                 "messageModel": "CLUSTERING", **changes})  # fmt: skip


def recall_of(answers: Answers) -> str:
    """The handle of the timer message."""
    sent = answers["310 timer"]
    return sent.fields.get("recallHandle", "none") if sent is not None else "none"


def acl(subject: str = "User:u", *, actions: Any = ("Pub",), decision: str = "Allow") -> bytes:
    entry = {"resource": "Topic:D", "actions": list(actions), "decision": decision, "sourceIps": []}
    return body({"subject": subject, "policies": [{"policyType": "Custom", "entries": [entry]}]})


def just_after_the_first(answers: Answers) -> dict[str, Any]:
    """A millisecond after the first message of the topic, which is long before its second."""
    first = answers["32 first of two"]
    assert first is not None
    return {"topic": "Times", "queueId": 0, "timestamp": int(first.fields["timestamp"]) + 1}


NS, GUARDED = "nameserver", "guarded"
LATE = 9_999_999_999_999
TIMER = encode_properties({"TIMER_DELAY_SEC": "600", "UNIQ_KEY": "00112233445566778899AABBCCDDEEFF"}).decode()
REPLY = encode_properties({"REPLY_TO_CLIENT": "nobody", "CORRELATION_ID": "c", "MSG_TYPE": "reply"}).decode()
TAGGED = encode_properties({"TAGS": "a", "KEYS": "diff-key", "UNIQ_KEY": "0123456789ABCDEF0123456789ABCDEF"}).decode()
HALF = encode_properties({"TRAN_MSG": "true", "PGROUP": "p"}).decode()
CASES = (
    # ---- topics and groups
    Case("17 create", topic("D")),
    Case("17 again", topic("D")),
    Case("17 illegal name", topic("no good")),
    Case("17 no name", {"readQueueNums": 2}),
    Case("17 system topic", topic("SCHEDULE_TOPIC_XXXX")),
    Case("17 for times", topic("Times")),
    Case("310 first of two", send("Times"), b"1"),
    Case("17 for pops", topic("P", readQueueNums=1, writeQueueNums=1)),
    Case("17 for pops of nothing", topic("Empty", readQueueNums=1, writeQueueNums=1)),
    Case("310 to be popped", send("P"), b"1"),
    Case("351 known", {"topic": "D"}),
    Case("351 unknown", {"topic": "Unknown"}),
    Case("21"),
    Case("200 create", None, body({"groupName": "diff", "consumeEnable": True, "retryMaxTimes": 3})),
    Case("201"),
    Case("352 known", {"group": "diff"}),
    Case("305"),
    # ---- sending
    Case("310 plain", send(i=TAGGED), b"hello"),
    Case("310 second", send(), b"hello"),
    Case("10 plain", long_send(), b"hello"),
    Case("310 made by use", send("MadeByUse"), b"x"),
    Case("310 no template", send("NoTemplate", c="Unknown"), b"x"),
    Case("310 queue out of range", send(e=99), b"x"),
    Case("310 negative queue", send("MadeByUse", e=-1), b"x"),
    Case("310 illegal name", send("no good"), b"x"),
    Case("310 name too long", send("x" * 300), b"x"),
    Case("310 system topic", send("SCHEDULE_TOPIC_XXXX"), b"x"),
    Case("310 delayed", send("MadeByUse", i=encode_properties({"DELAY": "1"}).decode()), b"x"),
    Case("310 half message", send("MadeByUse", f=4, i=HALF), b"x"),
    Case("320 two", send(m="true"), encode_batch([(b"a", 0, b""), (b"b", 0, b"")])),
    Case("37 unknown", {"producerGroup": "p", "tranStateTableOffset": 0, "commitLogOffset": 9999, "commitOrRollback": 8,
                        "fromTransactionCheck": "false", "msgId": "", "transactionId": ""}),
    # ---- clients
    Case("11 no heartbeat", pull(sysFlag=0)),
    Case("34", None, heartbeat("diff")),
    Case("38 known", {"consumerGroup": "diff"}),
    Case("38 unknown", {"consumerGroup": "nobody"}),
    Case("46 tag", None, body({"clientId": "c", "group": "diff", "namespace": "", "subscriptionData": {
        "topic": "D", "subString": "*", "expressionType": "TAG"}})),
    Case("46 sql", None, body({"clientId": "c", "group": "diff", "namespace": "", "subscriptionData": {
        "topic": "D", "subString": "a > 3", "expressionType": "SQL92"}})),
    Case("46 broken sql", None, body({"clientId": "c", "group": "diff", "namespace": "", "subscriptionData": {
        "topic": "D", "subString": "a > >", "expressionType": "SQL92"}})),
    Case("41", None, lock("diff")),
    Case("42", None, lock("diff")),
    # ---- pulling
    Case("11 found", pull()),
    Case("11 at the end", pull(queueOffset=5)),
    Case("11 behind the end", pull(queueOffset=99)),
    Case("11 negative", pull(queueOffset=-1)),
    Case("11 empty queue", pull(queueId=1, queueOffset=3)),
    Case("11 queue out of range", pull(queueId=99)),
    Case("11 unknown topic", pull("Unknown")),
    Case("11 unknown group", pull(consumerGroup="new-group")),
    Case("11 other tag", pull(subscription="z")),
    Case("11 broken sql", pull(subscription="a > >", expressionType="SQL92")),
    Case("11 sql", pull(subscription="TAGS = 'a'", expressionType="SQL92")),
    Case("11 no fields", {}),
    Case("361 found", pull()),
    # A message can be found a moment after it was acknowledged: what is looked for is sent long before.
    Case("310 second of two", send("Times"), b"2"),
    # ---- offsets
    Case("15", {"consumerGroup": "diff", "commitOffset": 1, **queue()}),
    Case("15 unknown topic", {"consumerGroup": "diff", "commitOffset": 1, **queue(topic="Unknown")}),
    Case("14 known", {"consumerGroup": "diff", **queue()}),
    Case("14 young queue", {"consumerGroup": "newcomer", **queue()}),
    Case("14 empty queue", {"consumerGroup": "newcomer", **queue(queueId=1)}),
    Case("14 unknown topic", {"consumerGroup": "diff", **queue(topic="Unknown")}),
    Case("29", queue(timestamp=0)),
    Case("29 unknown topic", queue(topic="Unknown", timestamp=0)),
    Case("30", queue()),
    Case("30 unknown topic", queue(topic="Unknown")),
    Case("31", queue()),
    Case("31 unknown topic", queue(topic="Unknown")),
    Case("32", queue()),
    Case("32 empty", queue(queueId=1)),
    Case("33", {"offset": 0}),
    Case("33 none", {"offset": 123456789}),
    Case("12 key", {"topic": "D", "key": "diff-key", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 9999999999999}),
    Case("12 none", {"topic": "D", "key": "no-key", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 9999999999999}),
    Case("36 no such message", {"offset": 123456789, "group": "diff", "delayLevel": 0, "originTopic": "D",
                                "unitMode": "false", "maxReconsumeTimes": 3}),
    Case("36", {"offset": 0, "group": "diff", "delayLevel": 0, "originTopic": "D", "unitMode": "false",
                "maxReconsumeTimes": 3}),
    # ---- by time
    Case("32 first of two", {"topic": "Times", "queueId": 0}),
    Case("29 before the first", {"topic": "Times", "queueId": 0, "timestamp": 1}, exact="offset"),
    Case("29 nearer the first", just_after_the_first, exact="offset"),
    Case("29 after the last", {"topic": "Times", "queueId": 0, "timestamp": LATE}, exact="offset"),
    Case("29 upper", {"topic": "Times", "queueId": 0, "timestamp": LATE, "boundaryType": "UPPER"}, exact="offset"),
    # ---- POP
    Case("200050 empty", pop("Empty")),
    Case("200050 found", pop()),
    Case("200050 all are out", pop()),
    Case("200050 unknown topic", pop("Unknown")),
    Case("200050 queue out of range", pop(queueId=99)),
    Case("200050 too many", pop(maxMsgNums=33)),
    Case("200050 broken sql", pop(expType="SQL92", exp="a > >")),
    Case("200050 too old", pop(bornTime=1, pollTime=1000)),
    Case("200052", {"consumerGroup": "popper", "topic": "P", "queueId": 0, "maxMsgNums": 1}),
    Case("200053", handle(invisibleTime=30_000)),
    Case("200053 no handle", handle(invisibleTime=30_000, extraInfo="x")),
    Case("200053 unknown topic", handle(invisibleTime=30_000, topic="Unknown")),
    Case("200051", handle()),
    Case("200051 again", handle()),
    Case("200051 no handle", handle(extraInfo="x")),
    Case("200051 unknown topic", handle(topic="Unknown")),
    Case("200051 queue out of range", handle(queueId=99)),
    Case("200051 offset out of range", handle(offset=99)),
    Case("200151", None, acks),
    Case("200151 nothing", None, body({"brokerName": "broker-a", "acks": []})),
    Case("200054", {"consumerGroup": "popper", "topic": "P", "queueId": 0, "pollTime": 0, "bornTime": 1}),
    Case("200055", {"consumerGroup": "popper", "topic": "P", "queueId": 0}),
    Case("400", None, assignment()),
    Case("400 nobody's", None, assignment(consumerGroup="nobody")),
    Case("400 unknown strategy", None, assignment(strategyName="BEST")),
    Case("400 broadcasting", None, assignment(messageModel="BROADCASTING")),
    Case("401", None, body({"topic": "D", "consumerGroup": "modes", "mode": "POP", "popShareQueueNum": 0})),
    Case("401 retry topic", None, body({"topic": "%RETRY%diff", "consumerGroup": "modes", "mode": "POP"})),
    # ---- replies, recalls
    Case("324 nobody waits", {**long_send("DefaultCluster_REPLY_TOPIC"), "properties": REPLY}, b"x"),
    Case("325 nobody waits", send("DefaultCluster_REPLY_TOPIC", i=REPLY), b"x"),
    Case("325 to no one", send("DefaultCluster_REPLY_TOPIC"), b"x"),
    Case("310 timer", send(i=TIMER), b"x"),
    Case("370", lambda answers: {"producerGroup": "p", "topic": "D", "recallHandle": recall_of(answers)}),
    Case("370 no handle", {"producerGroup": "p", "topic": "D", "recallHandle": "x"}),
    Case("370 unknown topic", lambda answers: {"topic": "Unknown", "recallHandle": recall_of(answers)}),
    Case("370 another's topic", lambda answers: {"topic": "P", "recallHandle": recall_of(answers)}),
    # ---- what administrators ask
    Case("43"),
    Case("45"),
    Case("308", {"compareGroup": "diff", "topic": "D"}),
    Case("308 unknown topic", {"compareGroup": "diff", "topic": "Unknown"}),
    Case("323 no such message", {"msgId": "7F00000100002A9F00000000075BCD15"}),
    Case("323 no id", {"msgId": "x"}),
    Case("353", {"group": "diff", "topic": "D"}),
    Case("353 forbid", {"group": "kept-out", "topic": "D", "readable": "false"}),
    Case("11 forbidden", pull(consumerGroup="kept-out")),
    Case("201 with one kept out"),
    Case("353 allow", {"group": "kept-out", "topic": "D", "readable": "true"}),
    Case("353 no topic", {"group": "diff"}),
    Case("28"),
    Case("202", {"topic": "D"}),
    Case("202 unknown", {"topic": "Unknown"}),
    Case("203", {"consumerGroup": "diff"}),
    Case("203 offline", {"consumerGroup": "nobody"}),
    Case("204", {"producerGroup": "diff-producer"}),
    Case("204 offline", {"producerGroup": "nobody"}),
    Case("208", {"consumerGroup": "diff"}),
    Case("208 topic", {"consumerGroup": "diff", "topic": "D"}),
    Case("208 unknown group", {"consumerGroup": "nobody"}),
    Case("300", {"topic": "D"}),
    Case("300 unknown", {"topic": "Unknown"}),
    Case("303", {"topic": "D", "group": "diff"}),
    Case("303 unknown", {"topic": "Unknown", "group": "diff"}),
    Case("307 offline", {"consumerGroup": "diff", "clientId": "nobody", "jstackEnable": "false"}),
    Case("309 offline", {"consumerGroup": "diff", "clientId": "nobody", "msgId": "7F00000100002A9F0000000000000000"}),
    Case("314", {"srcGroup": "diff", "destGroup": "diff-2", "topic": "D", "offline": "true"}),
    Case("315 unknown", {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Unknown"}),
    Case("315", {"statsName": "TOPIC_PUT_NUMS", "statsKey": "D"}),
    Case("317", {"isOrder": "false"}),
    Case("321", {**queue(), "index": 0, "count": 2}),
    Case("321 group", {**queue(), "index": 0, "count": 2, "consumerGroup": "diff"}),
    Case("321 unknown", {**queue(topic="Unknown"), "index": 0, "count": 2}),
    Case("328"),
    Case("343", {"group": "diff"}),
    Case("345", {"group": "diff", "topic": "D"}),
    Case("907"),
    Case("908", {"masterFlushOffset": 0}),
    Case("222", {"topic": "D", "group": "nobody", "timestamp": 0, "isForce": "true"}),
    Case("222 unknown topic", {"topic": "Unknown", "group": "diff", "timestamp": 0, "isForce": "true"}),
    Case("223 offline", {"topic": "D", "group": "nobody", "clientAddr": ""}),
    Case("26"),
    Case("25 nothing"),
    Case("25 path", None, b"brokerConfigPath=/tmp/x\n"),
    Case("18", None, body({"topicConfigList": [
        {"topicName": "L", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}]})),
    Case("225", None, body({"groupConfigList": [{"groupName": "l"}]})),
    Case("35", {"clientID": "diff-client", "producerGroup": "diff-producer", "consumerGroup": "diff"}),
    Case("207", {"groupName": "diff", "cleanOffset": "true"}),
    Case("207 unknown", {"groupName": "nobody"}),
    Case("215", {"topic": "MadeByUse"}),
    Case("215 unknown", {"topic": "Unknown"}),
    # ---- users and their rights
    Case("3001", {"username": "u"}, body({"username": "u", "password": "a-s3cret", "userType": "Normal"}), GUARDED),
    Case("3001 again", {"username": "u"}, body({"username": "u", "password": "a-s3cret"}), GUARDED),
    Case("3001 no password", {"username": "v"}, body({"username": "v"}), GUARDED),
    Case("3002", {"username": "u"}, body({"username": "u", "userStatus": "disable"}), GUARDED),
    Case("3002 unknown", {"username": "x"}, body({"username": "x", "password": "a-s3cret"}), GUARDED),
    Case("3004", {"username": "u"}, at=GUARDED),
    Case("3004 unknown", {"username": "x"}, at=GUARDED),
    Case("3005", {"filter": "u"}, at=GUARDED),
    Case("3006", {"subject": "User:u"}, acl(), GUARDED),
    Case("3006 unknown user", {"subject": "User:x"}, acl("User:x"), GUARDED),
    Case("3006 unknown action", {"subject": "User:u"}, acl(actions=["Fly"]), GUARDED),
    Case("3007", {"subject": "User:u"}, acl(decision="Deny"), GUARDED),
    Case("3009", {"subject": "User:u"}, at=GUARDED),
    Case("3009 unknown", {"subject": "User:x"}, at=GUARDED),
    Case("3010", {"subjectFilter": "u"}, at=GUARDED),
    Case("3008", {"subject": "User:u", "policyType": "Custom", "resource": "Topic:D"}, at=GUARDED),
    Case("3008 unknown", {"subject": "User:x"}, at=GUARDED),
    Case("3003", {"username": "u"}, at=GUARDED),
    Case("3003 unknown", {"username": "x"}, at=GUARDED),
    Case("50", {"accessKey": "user-four", "secretKey": "a-s3cret", "topicPerms": "D=PUB"}, at=GUARDED),
    Case("50 short secret", {"accessKey": "user-five", "secretKey": "x", "admin": "false"}, at=GUARDED),
    Case("52", at=GUARDED),
    Case("53", {"globalWhiteAddrs": "127.0.0.*"}, at=GUARDED),
    Case("51", {"accessKey": "user-four"}, at=GUARDED),
    Case("51 unknown", {"accessKey": "nobody"}, at=GUARDED),
    # Nothing of theirs is so old.
    Case("306"),
    Case("316"),
    Case("329"),
    Case("9999"),
    # ---- name servers
    Case("105", {"topic": "D"}, at=NS),
    Case("105 unknown", {"topic": "Unknown"}, at=NS),
    Case("106", at=NS),
    Case("206", at=NS),
    Case("224", {"cluster": "DefaultCluster"}, at=NS),
    Case("224 unknown", {"cluster": "Unknown"}, at=NS),
    Case("304", at=NS),
    Case("901", {"clusterName": "DefaultCluster", "brokerName": "broker-a"}, at=NS),
    Case("901 unknown", {"clusterName": "DefaultCluster", "brokerName": "nobody"}, at=NS),
    Case("311", at=NS),
    Case("312", at=NS),
    Case("313", at=NS),
    Case("319", at=NS),
    Case("318 path", None, b"kvConfigPath=/tmp/x\n", at=NS),
    Case("100", {"namespace": "n", "key": "k", "value": "v"}, at=NS),
    Case("101", {"namespace": "n", "key": "k"}, at=NS),
    Case("101 unknown", {"namespace": "n", "key": "x"}, at=NS),
    Case("219", {"namespace": "n"}, at=NS),
    Case("219 unknown", {"namespace": "x"}, at=NS),
    Case("102", {"namespace": "n", "key": "k"}, at=NS),
    Case("102 unknown", {"namespace": "x", "key": "k"}, at=NS),
    Case("205 unknown", {"brokerName": "nobody"}, at=NS),
    Case("327 unknown", {"brokerName": "nobody"}, at=NS),
    Case("216 unknown", {"topic": "Unknown"}, at=NS),
    Case("9999 ns", at=NS),
)  # fmt: skip


async def test_every_code_that_we_serve_is_asked() -> None:
    async with embed() as mq:
        served = {*mq.broker.server.processors.codes(), *mq.nameserver._server.processors.codes()}
    assert served - {case.code for case in CASES} == OF_BROKERS


def all_said(server: Server, guarded: Server | None = None) -> dict[str, dict[str, Any]]:
    """Requests to a ``guarded`` broker are signed."""
    places = {
        "broker": Raw(server.broker),
        NS: Raw(server.nameserver, timeout=3),
        GUARDED: Raw((guarded or server).broker),
    }
    answers: dict[str, Answer | None] = {}
    found = {}
    try:
        for case in CASES:
            fields = case.fields(answers) if callable(case.fields) else case.fields
            data = case.body(answers) if callable(case.body) else case.body
            if case.at == GUARDED and guarded is not None:
                fields = signed({name: str(value) for name, value in (fields or {}).items()}, data)
            answers[case.name] = answer = places[case.at].ask(case.code, fields, data)
            found[case.name] = said(answer, case.exact)
        return found
    finally:
        for place in places.values():
            place.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("guarded")
    with our_server(place, both=access_file(place), only_broker=credentials(place), signed=signed) as server:
        yield server


@pytest.fixture(scope="module")
def ours_said(ours: Server, guarded: Server) -> dict[str, dict[str, Any]]:
    return all_said(ours, guarded)


@pytest.fixture(scope="module", params=[NEWEST, OLDER])
def apaches(request: pytest.FixtureRequest) -> tuple[str, Any]:
    server: Server = request.getfixturevalue("apache" if request.param == NEWEST else "apache_older")
    return request.param, all_said(server)


def test_every_difference_is_on_purpose(ours_said: dict[str, Any], apaches: tuple[str, Any]) -> None:
    version, theirs = apaches
    rules = [each for each in tomllib.loads(TABLE.read_text())["difference"] if version in each["from"]]
    used = set()
    unknown = []
    for case in CASES:
        for found in differences(ours_said[case.name], theirs[case.name]):
            hits = {
                (number, case_pattern, what)
                for number, rule in enumerate(rules)
                for case_pattern in rule["cases"]
                for what in rule["what"]
                if matches(case_pattern, case.name) and matches(what, found)
            }
            used |= hits
            if not hits:
                unknown.append((case.name, found))
    assert unknown == [], "not in the table"
    for number, rule in enumerate(rules):
        hits = {hit for hit in used if hit[0] == number}
        assert hits, f"in the table, and not so: {rule}"
        if len(rule["from"]) == 1:
            assert {case for _, case, _ in hits} == set(rule["cases"]), rule
            assert {what for *_, what in hits} == set(rule["what"]), rule


async def test_fuzzed_sessions_differ_as_their_table_says(tmp_path: Path) -> None:
    """Servers of their own: system topics are changed too. Both remember what they were told, so that in a long run a
    few answers differ that no rule foresees."""
    loop_time = asyncio.get_running_loop().time
    (tmp_path / "apache").mkdir()
    with apache_server(fetch_jars(), tmp_path / "apache") as apache, our_server(tmp_path / "ours") as ours:
        wait_for_statistics(apache)
        for role, most in (("broker", 1500), ("nameserver", 500)):
            servers = (ours.broker, apache.broker) if role == "broker" else (ours.nameserver, apache.nameserver)
            found = await compare(
                servers, role, now=round(time.time() * 1000), requests=most, loop_time=loop_time, patience=5
            )
            assert found.requests >= most and found.known
            assert sum(found.unknown.values()) <= most // 200, found.examples
