"""Rights: which entry decides, what each request needs, whose signature it is, and the file that says so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.access.core.accounts import Account, Accounts, FromFile, entry_from_plain, entry_to_plain
from aiorocket.access.core.addresses import check_addresses, matches_any
from aiorocket.access.core.judge import judge
from aiorocket.access.core.requests import RULES, is_administration, is_registration
from aiorocket.access.core.rights import (
    ACTIONS,
    Entry,
    Rights,
    Want,
    decide,
    entry_of_permission,
    parse_resource,
)
from aiorocket.access.file import read_access_file
from aiorocket.errors import ConfigError
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket_protocol import (
    HALF_TOPIC,
    JSON,
    MAX_CHECKS_TOPIC,
    MSGPACK,
    OP_TOPIC,
    ROCKETMQ,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    AckMessageRequestHeader,
    ConsumerData,
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    HeartbeatData,
    LockBatchBody,
    MessageQueue,
    ProtocolError,
    PullMessageRequestHeader,
    RemotingCommand,
    RequestCode,
    SendMessageRequestHeaderV2,
    SubscriptionData,
    decode,
    encode_body,
    encode_head,
    offset_msg_id,
)
from aiorocket_protocol.signing import Signer

SECRET = "s3cret-of-the-test"


def entry(text: str, actions: str, *, allow: bool = True, sources: tuple[str, ...] = ()) -> Entry:
    resource = parse_resource(text)
    assert resource is not None
    return Entry(resource, tuple(actions.split()), sources, allow)


def allowed(rights: Rights, want: str, action: str, source: str = "10.0.0.1") -> bool:
    kind, _, name = want.partition(":")
    return decide(rights, Want(kind, name, (action,)), source) is None


@pytest.mark.parametrize(
    ("entries", "want", "action", "expected"),
    [
        ((), "Topic:a", "Pub", False),
        (("Topic:a Pub",), "Topic:a", "Pub", True),
        (("Topic:a Pub",), "Topic:a", "Sub", False),
        (("Topic:a Pub",), "Topic:b", "Pub", False),
        (("Topic:a Pub",), "Group:a", "Pub", False),
        (("Topic:a* Pub",), "Topic:ab", "Pub", True),
        (("Topic:* All",), "Topic:ab", "Delete", True),
        (("* All",), "Cluster:c", "Update", True),
        (("Topic:* All", "-Topic:a All"), "Topic:a", "Pub", False),
        (("-Topic:* All", "Topic:a Pub"), "Topic:a", "Pub", True),
        (("-Topic:a* All", "Topic:ab* Pub"), "Topic:abc", "Pub", True),
        (("Topic:a* Pub", "-Topic:ab* Pub"), "Topic:abc", "Pub", False),
        (("Topic:a Pub", "-Topic:a Pub"), "Topic:a", "Pub", False),
        (("-Topic:a Pub", "Topic:a Pub"), "Topic:a", "Pub", False),
        (("-* All", "Topic:* Pub"), "Topic:a", "Pub", True),
    ],
)
def test_the_narrowest_entry_decides_and_of_two_alike_the_one_that_denies(
    entries: tuple[str, ...], want: str, action: str, expected: bool
) -> None:
    made = tuple(entry(*text.removeprefix("-").split(" ", 1), allow=not text.startswith("-")) for text in entries)
    assert allowed(Rights(made), want, action) is expected
    assert allowed(Rights(default=made), want, action) is expected


def test_defaults_count_where_nothing_else_fits_and_sources_narrow() -> None:
    rights = Rights((entry("Topic:a", "Pub", sources=("10.0.0.0/8",)),), (entry("Topic:*", "Sub"),))
    assert allowed(rights, "Topic:a", "Pub") and not allowed(rights, "Topic:a", "Pub", "11.0.0.1")
    assert allowed(rights, "Topic:a", "Sub") and allowed(rights, "Topic:b", "Sub", "11.0.0.1")
    denied = Rights((entry("Topic:a", "Sub", allow=False),), (entry("Topic:*", "Sub"),))
    assert not allowed(denied, "Topic:a", "Sub")


@given(
    st.sampled_from(["*", "Topic:*", "Topic:a", "Group:b*", "Cluster:C"]),
    st.sets(st.sampled_from(ACTIONS), min_size=1),
    st.sets(st.sampled_from(["10.0.0.0/8", "::1", "10.0.0.*"])),
    st.booleans(),
)
def test_an_entry_comes_back_from_its_text(resource: str, actions: set[str], sources: set[str], allow: bool) -> None:
    made = entry(resource, " ".join(sorted(actions)), allow=allow, sources=tuple(sorted(sources)))
    assert entry_from_plain(entry_to_plain(made)) == made


@pytest.mark.parametrize(
    ("permission", "actions", "allow"),
    [("PUB", "Pub", True), ("SUB", "Sub", True), (" pub | sub ", "Pub Sub", True), ("SUB|PUB", "Pub Sub", True),
     ("ANY", "All", True), ("DENY", "All", False)],
)  # fmt: skip
def test_permissions_of_rocketmq_4(permission: str, actions: str, allow: bool) -> None:
    assert entry_of_permission("Topic", "a", permission) == entry("Topic:a", actions, allow=allow)
    assert entry_of_permission("Topic", "a", "WRITE") is None


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        ("10.0.0.1", "10.0.0.1", "10.0.0.2"),
        ("10.0.0.0/30", "10.0.0.3", "10.0.0.4"),
        ("10.0.1-3.*", "10.0.2.200", "10.0.4.1"),
        ("10.0.0.{1,5}", "10.0.0.5", "10.0.0.2"),
        ("::1", "0:0:0:0:0:0:0:1", "::2"),
        ("fd00::/8", "fd12::1", "fe80::1"),
        ("10.0.0.1", "::ffff:10.0.0.1", "::ffff:10.0.0.2"),
        ("10.0.0.*", "10.0.0.9", "nobody"),
        ("10.0.0.*", "10.0.0.9", "::1"),
    ],
)
def test_addresses(rule: str, inside: str, outside: str) -> None:
    assert check_addresses([rule, "*"]) is None
    assert matches_any([rule], inside) and not matches_any([rule], outside)
    assert matches_any(["*"], outside) and not matches_any([], inside)


@pytest.mark.parametrize("rule", ["", "10.0.0", "10.0.0.{1", "host", "10.0.0.1/33", "1.2.3.4.5"])
def test_what_is_no_address_is_named(rule: str) -> None:
    assert repr(rule) in (check_addresses([rule]) or "")


# ---- who asks, and for what


def accounts(rights: Rights = Rights(), **more: Any) -> Accounts:  # noqa: B008 - an empty value
    return Accounts(FromFile({"me": Account("me", SECRET, rights=rights, **more)}))


def signed(command: RemotingCommand, kind: int = JSON, name: str = "me", secret: str = SECRET) -> RemotingCommand:
    """As it arrives, in any codec: the signature is over the text that JSON gives the fields."""
    Signer(name, secret).sign(command)
    frame = encode_head(command, kind)
    return decode(kind, frame[8:], command.body)


def send(topic: str = "T", **ext: str) -> RemotingCommand:
    header = SendMessageRequestHeaderV2("p", topic, "TBW102", 4, 0, 0, 1_700_000_000_000, 0, unit_mode=False)
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body=b"body", ext=ext)


def refusal(who: Accounts, command: RemotingCommand, source: str = "10.0.0.1") -> str | None:
    return judge(who, command, source, "C").refusal


PUB = Rights((entry("Topic:T", "Pub"),))


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ, MSGPACK])
def test_a_signature_is_checked_in_every_codec(kind: int) -> None:
    assert refusal(accounts(PUB), signed(send(), kind)) is None
    assert "check signature" in (refusal(accounts(PUB), signed(send(), kind, secret=SECRET + "x")) or "")
    changed = signed(send(), kind)
    changed.body = b"other"
    assert "check signature" in (refusal(accounts(PUB), changed) or "")
    changed = signed(send(), kind)
    changed.ext = {**(changed.ext or {}), "z": "added"}
    assert "check signature" in (refusal(accounts(PUB), changed) or "")


def test_unknown_disabled_and_wrong_are_told_the_same_and_unsigned_something_else() -> None:
    texts = {
        refusal(accounts(PUB), signed(send(), secret="another")),
        refusal(accounts(PUB, enabled=False), signed(send())),
        (refusal(accounts(PUB), signed(send(), name="you")) or "").replace("'you'", "'me'"),
    }
    assert len(texts) == 1
    assert "AccessKey is missing" in (refusal(accounts(PUB), send()) or "")
    half = signed(send())
    half.ext = {**(half.ext or {}), "Signature": "\ud83d"}
    assert "check signature" in (refusal(accounts(PUB), half) or "")


def test_a_field_that_4_9_signs_and_does_not_check() -> None:
    command = signed(send())
    command.ext = {**(command.ext or {}), "_UNIQUE_KEY_QUERY": "true"}
    assert refusal(accounts(PUB), command) is None
    assert refusal(accounts(PUB), signed(send(_UNIQUE_KEY_QUERY="true"))) is None


def test_trusted_addresses_and_administrators() -> None:
    assert refusal(Accounts(FromFile({}, ("10.0.0.0/8",))), send()) is None
    assert refusal(Accounts(FromFile({}, ("11.0.0.0/8",))), send()) is not None
    named = send(AccessKey="me")
    assert refusal(accounts(trusted=("10.0.0.1",)), named) is None
    assert refusal(accounts(trusted=("10.0.0.2",)), named) is not None
    assert refusal(accounts(trusted=("10.0.0.1",), enabled=False), named) is not None
    assert refusal(accounts(admin=True), signed(send())) is None


def command_of(code: int) -> RemotingCommand:
    """A request that names everything a rule may look at."""
    names = ("topic", "group", "consumerGroup", "groupName", "srcGroup", "destGroup", "clusterName", "cluster", "b")
    body: dict[str, Any] = {"topic": "x", "consumerGroup": "x", "groupName": "x", "acks": [{"c": "x", "t": "x"}]}
    if code == RequestCode.HEART_BEAT:
        consumers = [ConsumerData("x", subscriptions=[SubscriptionData.parse("x", "*", 1)])]
        return RemotingCommand.request(code, body=encode_body(HeartbeatData("c", [], consumers), JSON))
    if code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        locks = LockBatchBody("c", "x", [MessageQueue("x", "b", 0)])
        return RemotingCommand.request(code, body=encode_body(locks, JSON))
    if code == RequestCode.CONSUMER_SEND_MSG_BACK:
        return RemotingCommand.request(code, ConsumerSendMsgBackRequestHeader(7, "x", 0))
    if code == RequestCode.END_TRANSACTION:
        return RemotingCommand.request(code, EndTransactionRequestHeader("x", 0, 7, 8, "x", topic="x"))
    ext = {**dict.fromkeys(names, "x"), "msgId": offset_msg_id(bytes(8), 7)}
    return RemotingCommand.request(code, ext=ext, body=encode_body(body, JSON))


#: What everybody who has signed in may.
FREE = {RequestCode.CHECK_CLIENT_CONFIG}


@pytest.mark.parametrize("code", sorted(RULES), ids=lambda code: RequestCode(code).name)
def test_every_code_needs_a_right_and_has_enough_with_all(code: int) -> None:
    who = accounts()
    refused = refusal(who, signed(command_of(code)))
    assert (refused is None) == (code in FREE), refused
    everything = accounts(Rights((entry("*", "All"),)))
    assert (refusal(everything, signed(command_of(code))) is None) == (not RULES[code].super_only)
    assert refusal(accounts(admin=True), signed(command_of(code))) is None


def test_a_code_without_a_line_is_an_administrators() -> None:
    everything = accounts(Rights((entry("*", "All"),)))
    assert "no administrator" in (refusal(everything, signed(RemotingCommand.request(9999))) or "")
    assert refusal(accounts(admin=True), signed(RemotingCommand.request(9999))) is None
    assert is_administration(9999) and not is_registration(9999)


def test_what_consumers_need() -> None:
    group, topic = entry("Group:g", "Sub"), entry("Topic:T", "Sub")
    pull = RemotingCommand.request(
        RequestCode.PULL_MESSAGE, PullMessageRequestHeader("g", "T", 0, 0, 32, 0, 0, 0, 0, subscription="*")
    )
    assert refusal(accounts(Rights((group, topic))), signed(pull)) is None
    assert "Topic:T (Sub)" in (refusal(accounts(Rights((group,))), signed(pull)) or "")
    assert "Group:g (Sub)" in (refusal(accounts(Rights((topic,))), signed(pull)) or "")
    retry = RemotingCommand.request(
        RequestCode.PULL_MESSAGE, PullMessageRequestHeader("g", "%RETRY%other", 0, 0, 32, 0, 0, 0, 0, subscription="*")
    )
    assert "Group:other" in (refusal(accounts(Rights((group, topic))), signed(retry)) or "")
    mine = [SubscriptionData.parse(name, "*", 1) for name in ("T", "%RETRY%g")]
    beat = RemotingCommand.request(
        RequestCode.HEART_BEAT, body=encode_body(HeartbeatData("c", [], [ConsumerData("g", subscriptions=mine)]), JSON)
    )
    assert refusal(accounts(Rights((group, topic))), signed(beat)) is None
    assert refusal(accounts(Rights((group,))), signed(beat)) is not None


@pytest.mark.parametrize(
    "topic",
    [SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, MAX_CHECKS_TOPIC, "rmq_sys_REVIVE_LOG_C"],
)
def test_topics_that_hold_messages_of_all_are_no_topics_to_a_policy(topic: str) -> None:
    """Who may read all topics but one would read that one's messages where they wait."""
    pull = RemotingCommand.request(
        RequestCode.PULL_MESSAGE, PullMessageRequestHeader("g", topic, 0, 0, 32, 0, 0, 0, 0, subscription="*")
    )
    find = RemotingCommand.request(RequestCode.QUERY_MESSAGE, ext={"topic": topic, "key": "k"})
    most = (entry("Group:*", "All"), entry("Topic:*", "All"), entry("Topic:secret", "All", allow=False))
    for command in (pull, find):
        assert "Cluster:C (Get)" in (refusal(accounts(Rights(most)), signed(command)) or "")
        assert refusal(accounts(Rights((*most, entry("Cluster:C", "Get")))), signed(command)) is None


@pytest.mark.parametrize("said", [{"offset": "none"}, {}])
def test_a_place_that_cannot_be_read_is_no_way_in(said: dict[str, str]) -> None:
    command = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext={"group": "g", "delayLevel": "0", **said})
    with pytest.raises(ProtocolError, match="offset"):
        refusal(accounts(Rights((entry("Group:g", "Sub"),))), signed(command))


@pytest.mark.parametrize(
    ("code", "field"), [(RequestCode.SEND_REPLY_MESSAGE, "topic"), (RequestCode.SEND_REPLY_MESSAGE_V2, "b")]
)
def test_replies_go_to_topics_of_replies(code: RequestCode, field: str) -> None:
    def reply(topic: str) -> RemotingCommand:
        return signed(RemotingCommand.request(code, ext={field: topic}))

    assert refusal(accounts(), reply("C_REPLY_TOPIC")) is None
    assert "Topic:T (Pub)" in (refusal(accounts(), reply("T")) or "")
    assert refusal(accounts(PUB), reply("T")) is None
    assert "Group:C_REPLY_TOPIC (Pub)" in (refusal(accounts(), reply("%RETRY%C_REPLY_TOPIC")) or "")
    assert "Topic:%DLQ%C_REPLY_TOPIC (Pub)" in (refusal(accounts(), reply("%DLQ%C_REPLY_TOPIC")) or "")


def test_what_came_back_after_a_pop_is_its_groups_to_acknowledge() -> None:
    def ack(topic: str) -> RemotingCommand:
        header = AckMessageRequestHeader("g", topic, 0, "handle", 0)
        return signed(RemotingCommand.request(RequestCode.ACK_MESSAGE, header))

    mine = accounts(Rights((entry("Group:g", "Sub"),)))
    assert refusal(mine, ack("%RETRY%g+T")) is None
    assert "Group:other" in (refusal(mine, ack("%RETRY%other+T")) or "")


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": 7}),
        (RequestCode.QUERY_ASSIGNMENT, {"topic": "T", "consumerGroup": 7}),
        (RequestCode.BATCH_ACK_MESSAGE, {"acks": [{"c": 7, "t": "T"}]}),
    ],
)
def test_a_number_in_a_body_is_the_name_that_it_is_read_as(code: RequestCode, body: dict[str, Any]) -> None:
    kept_out = accounts(Rights((entry("Group:7", "All", allow=False), entry("*", "All"))))
    command = signed(RemotingCommand.request(code, body=encode_body(body, JSON)))
    assert "Group:7 denies it" in (refusal(kept_out, command) or "")


def test_nothing_shows_a_secret() -> None:
    shown = repr(Account("me", SECRET)) + repr(accounts().get("me")) + repr(signed(send()).remark)
    assert SECRET not in shown


# ---- the file


def read(text: str, name: str = "a.toml") -> FromFile:
    disk = MemoryDisk()
    disk.replace(name, text.encode())
    return read_access_file(disk, name)


def test_a_file() -> None:
    found = read(
        f"""
        trusted = ["127.0.0.1"]
        [users.ops]
        secret = "{SECRET}"
        admin = true
        [users.shop]
        secret = "{SECRET}"
        topics = {{ orders = "PUB|SUB", "log-*" = "PUB", secret = "DENY" }}
        groups = {{ billing = "SUB" }}
        default_group = "SUB"
        [[users.shop.policies]]
        resource = "Cluster:*"
        actions = ["Get"]
        from = ["10.0.0.0/8"]
        """
    )
    assert found.trusted == ("127.0.0.1",) and found.accounts["ops"].admin
    rights = found.accounts["shop"].rights
    assert allowed(rights, "Topic:orders", "Sub") and allowed(rights, "Topic:log-a", "Pub")
    assert not allowed(rights, "Topic:secret", "Pub") and not allowed(rights, "Topic:other", "Pub")
    assert allowed(rights, "Group:any", "Sub") and allowed(rights, "Cluster:C", "Get", "10.1.1.1")
    assert not allowed(rights, "Cluster:C", "Get", "11.1.1.1")


def test_rocketmq_4s_file() -> None:
    found = read(
        f"""
        globalWhiteRemoteAddresses: ["10.10.103.*", "192.168.0.*"]
        accounts:
          - accessKey: RocketMQ
            secretKey: {SECRET}
            whiteRemoteAddress: ""
            admin: false
            defaultTopicPerm: DENY
            defaultGroupPerm: SUB
            topicPerms: ["topicA=DENY", "topicB=PUB|SUB"]
            groupPerms: ["groupA=DENY"]
          - {{accessKey: rocketmq2, secretKey: {SECRET}, whiteRemoteAddress: "192.168.1.*", admin: true}}
        """,
        "plain_acl.yml",
    )
    assert found.trusted == ("10.10.103.*", "192.168.0.*")
    assert found.accounts["rocketmq2"].admin and found.accounts["rocketmq2"].trusted == ("192.168.1.*",)
    rights = found.accounts["RocketMQ"].rights
    assert allowed(rights, "Topic:topicB", "Pub") and not allowed(rights, "Topic:topicC", "Pub")
    assert allowed(rights, "Group:groupB", "Sub") and not allowed(rights, "Group:groupA", "Sub")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no users"),
        (f'users.me.secret = "{SECRET}', "it is not TOML"),
        ("users.me.secret = 'short'", "user 'me': a secret of at least 7"),
        (f"users.me.secret = ' {SECRET}'", "begins or ends with a blank"),
        (f"users.me = {{ secret = '{SECRET}', pub = 1 }}", "user 'me': pub is unknown; known: secret, admin"),
        (f"users.me = {{ secret = '{SECRET}', topics = {{ a = 'WRITE' }} }}", "'WRITE' is none of PUB"),
        (f"users.me = {{ secret = '{SECRET}', trusted = ['host'] }}", "'host' is no address"),
        (f"users.me = {{ secret = '{SECRET}', admin = 'yes' }}", "admin is true or false"),
        (f"users.me = {{ secret = '{SECRET}', policies = [{{ resource = 'T', actions = ['Pub'] }}] }}", "resource 'T'"),
        (f"users.me = {{ secret = '{SECRET}', policies = [{{ resource = '*', actions = ['Write'] }}] }}", "actions"),
        (f"sekret = '{SECRET}'\nusers.me.secret = '{SECRET}'", "sekret is unknown"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_never_quoted(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"access file 'a\.toml'") as caught:
        read(text)
    assert said in str(caught.value) and SECRET not in str(caught.value)
    assert caught.value.__suppress_context__
    with pytest.raises(ConfigError, match="'nowhere' cannot be read"):
        read_access_file(MemoryDisk(), "nowhere")
