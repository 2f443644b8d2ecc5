"""A request that names thousands of topics and groups is judged in turns of the loop, each of them before anything of
it has effect, and what came behind it on its connection waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from ipaddress import IPv4Network
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from aiorocket.access import handlers
from aiorocket.access.core import accounts as accounts_module
from aiorocket.access.core import addresses, judge, requests, rights
from aiorocket.access.core.accounts import Account, Accounts, FromFile, entry_from_plain
from aiorocket.access.core.judge import _A_NAME, _A_TURN, _AN_ADDRESS, judging
from aiorocket.access.core.rights import Entry, Rights, Want, parse_resource
from aiorocket.broker import Broker
from aiorocket.config import BrokerConfig, Limits
from aiorocket.runtime.env import memory_env
from aiorocket_protocol import (
    JSON,
    MAX_ACKS,
    MSGPACK,
    ConsumerData,
    GetConsumerListByGroupRequestHeader,
    HeartbeatData,
    LockBatchBody,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    SubscriptionData,
    UnregisterClientRequestHeader,
    decode_plain,
    encode_body,
    fastjson,
)
from aiorocket_protocol.plain import Plain
from aiorocket_protocol.signing import Signer
from tests.broker.peer import Peer

SECRET = "s3cret-of-the-test"
#: What a user may whose rights take long to be looked through.
ENTRIES = (*(f"Topic:x{number}*" for number in range(38)), "Topic:t*", "Group:g*")


def user(*more: Entry) -> Account:
    made = [Entry(resource, ("Sub",)) for resource in map(parse_resource, ENTRIES) if resource is not None]
    return Account("me", SECRET, rights=Rights((*made, *more)))


def denied(name: str) -> Entry:
    resource = parse_resource(name)
    assert resource is not None
    return Entry(resource, ("Sub",), allow=False)


def signed(command: RemotingCommand) -> RemotingCommand:
    Signer("me", SECRET).sign(command)
    return command


def heartbeat(groups: int = 500, topics: int = 10, client: str = "c", oneway: bool = False) -> RemotingCommand:
    """Of 500 groups 0.7 MB and 5,500 names."""
    consumers = [
        ConsumerData(f"g{group}", subscriptions=[SubscriptionData(f"t{group}-{topic}", "*") for topic in range(topics)])
        for group in range(groups)
    ]
    body = encode_body(HeartbeatData(client, ["p"], consumers), JSON)
    return signed(RemotingCommand.request(RequestCode.HEART_BEAT, body=body, oneway=oneway))


def locks(topics: int = 5_000, queues: int = 1) -> RemotingCommand:
    named = [MessageQueue(f"t{topic}", "b", queue) for topic in range(topics) for queue in range(queues)]
    body = LockBatchBody("c", "g", named)
    return signed(RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, body=encode_body(body, JSON)))


def acks() -> RemotingCommand:
    """As many as a batch may have."""
    named = [{"c": f"g{number}", "t": f"t{number}"} for number in range(MAX_ACKS)]
    body = {"brokerName": "b" * 100_000, "acks": named}
    return signed(RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, body=encode_body(body, JSON)))


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Entries that were looked at, in each turn."""
    looked, decide = [0], rights.decide

    def counted(having: Rights, want: Want, source: str) -> str | None:
        looked[-1] += len(having.custom)
        return decide(having, want, source)

    monkeypatch.setattr(judge, "decide", counted)
    return looked


@pytest.mark.parametrize(("make", "names"), [(heartbeat, 5_000), (locks, 5_000), (acks, 2 * MAX_ACKS)])
def test_few_entries_are_looked_at_in_a_turn(
    make: Callable[[], RemotingCommand], names: int, looked: list[int]
) -> None:
    """5,500 names of a heartbeat took 180 ms."""
    accounts = Accounts(FromFile({"me": user()}))
    work = judging(accounts, make(), "10.0.0.1", "C", lambda place: None)
    assert next(work, 0) is None and looked == [0]  # nor is it read in the turn that brings it
    with pytest.raises(StopIteration) as end:
        while True:
            looked.append(0)
            next(work)
    assert end.value.value.refusal is None and len(end.value.value.wants) >= names
    assert sum(looked) >= names * len(ENTRIES) and max(looked) <= _A_TURN + len(ENTRIES)


def test_few_addresses_are_looked_at_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 names with 500 addresses beside each entry were seconds in one turn."""
    looked, matches = [0], addresses._matches

    def counted(rule: Any, address: Any) -> bool:
        looked[-1] += 1
        return matches(rule, address)

    monkeypatch.setattr(addresses, "_matches", counted)
    from_many = (*(f"10.1.{number}.0/24" for number in range(250)), "10.0.0.0/8")
    made = [
        Entry(resource, ("Sub",), from_many) for resource in map(parse_resource, ("Topic:t*", "Group:g*")) if resource
    ]
    accounts = Accounts(FromFile({"me": Account("me", SECRET, rights=Rights(tuple(made)))}))
    work = judging(accounts, heartbeat(100), "10.0.0.1", "C", lambda place: None)
    with pytest.raises(StopIteration) as end:
        while True:
            next(work)
            looked.append(0)
    assert end.value.value.refusal is None
    assert sum(looked) >= 1_000 * len(from_many) and max(looked) <= _A_TURN // _AN_ADDRESS + len(from_many)


def test_an_address_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes ten times as long as to look whether another is in it."""
    read = []

    def counted(rule: str, strict: bool) -> IPv4Network:
        read.append(rule)
        return IPv4Network(rule, strict)

    monkeypatch.setattr(addresses, "ip_network", counted)
    addresses._read.cache_clear()
    assert addresses.check_addresses(["10.9.0.0/16"]) is None
    assert [addresses.matches_any(["10.9.0.0/16"], f"10.{number}.0.1") for number in (9, 10)] == [True, False]
    assert read == ["10.9.0.0/16"]
    assert "2000 characters" in (addresses.check_addresses(["1" * 2000]) or "")


@pytest.mark.parametrize(("code", "most"), [(3005, handlers.A_TURN), (3010, handlers.A_TURN // 5)])
async def test_users_are_listed_in_turns(monkeypatch: pytest.MonkeyPatch, code: int, most: int) -> None:
    """10,000 with 10 entries each took 0.27 s, and 0.2 s where none of 100 was to be shown."""
    shown: list[int] = [0]

    def counted(value: Any, kind: int) -> bytes:
        shown[-1] += 1
        return encode_body(value, kind)

    async def save() -> None: ...

    monkeypatch.setattr(handlers, "encode_body", counted)
    accounts = Accounts()
    codes: dict[int, Any] = handlers.AccessHandlers(accounts, save, Limits(), "b", "c", "127.0.0.1:1").codes()
    for number in range(3_000):
        accounts.put(replace(user(), name=f"u{number:04}", rights=Rights(user().rights.custom[:4])))
    peer = SimpleNamespace(data={}, drain=save, reply_type=lambda command: JSON)
    task = asyncio.ensure_future(codes[code](peer, RemotingCommand.request(code, ext={})))
    while not task.done():
        shown.append(0)
        await asyncio.sleep(0)
    plain = decode_plain(task.result().body, JSON)
    assert len(plain) == sum(shown) == 3_000 and max(shown) <= most


def test_what_is_saved_of_users_is_made_in_the_disks_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took 0.7 s of 10,000 with 100 entries each."""
    accounts, made = Accounts(), []

    def counted(account: Account) -> dict[str, Any]:
        made.append(account)
        return to_plain(account)

    to_plain = accounts_module._to_plain
    monkeypatch.setattr(accounts_module, "_to_plain", counted)
    accounts.put(user())
    later = accounts.later()
    accounts.put(Account("you", SECRET))
    assert not made
    assert [each["name"] for each in later()["users"]] == ["me"] and made == [user()]


def acls(policies: list[dict[str, Any]], code: int = 3006, **ext: str) -> RemotingCommand:
    ext = ext or {"subject": "User:you"}
    return RemotingCommand.request(code, ext=ext, body=encode_body({"policies": policies}, JSON))


async def test_entries_that_are_too_many_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mebibyte of policies with one entry each took 0.7 s, of entries 0.1 s, of addresses 0.4 s."""
    accounts, read = Accounts(), []

    def counted(plain: Any) -> Entry:
        read.append(plain)
        return entry_from_plain(plain)

    async def save() -> None: ...

    monkeypatch.setattr(handlers, "entry_from_plain", counted)
    codes: dict[int, Any] = handlers.AccessHandlers(accounts, save, Limits(), "b", "c", "127.0.0.1:1").codes()
    accounts.put(Account("you", SECRET))
    entry = {"resource": "*", "actions": ["All"], "decision": "Allow"}
    for policies in ([{"entries": [entry] * 1_001}], [{"entries": [entry]}] * 1_001, [{}] * 1_001):
        assert "rights=1000" in (await codes[3006](None, acls(policies))).remark
    assert not read
    assert (await codes[3006](None, acls([{"entries": [entry]}] * 1_000))).code == 0 and len(read) == 1_000


def test_few_queues_of_a_lock_are_read_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000, which a client may have of one topic, took 58 ms."""
    accounts, read, text = Accounts(FromFile({"me": user()})), [0], Plain.text

    def counted(plain: Plain, *args: str) -> str:
        read[-1] += 1
        return text(plain, *args)

    monkeypatch.setattr(Plain, "text", counted)
    work = judging(accounts, locks(1, 10_000), "10.0.0.1", "C", lambda place: None)
    with pytest.raises(StopIteration) as end:
        while True:
            next(work)
            read.append(0)
    assert end.value.value.refusal is None and len(end.value.value.wants) == 2
    assert sum(read) >= 10_000 and max(read) <= _A_TURN // _A_NAME + 1


def test_of_a_batch_of_acks_no_more_are_looked_at_than_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """260,000 without a name, which fit into a body of msgpack, took 0.15 s in one turn."""
    seen, read = [0], requests._text

    def counted(value: object) -> str:
        seen[-1] += 1
        return read(value)

    monkeypatch.setattr(requests, "_text", counted)
    accounts = Accounts(FromFile({"me": user()}))
    body = encode_body({"acks": [{"c": "g", "t": "t"}] * 3 * MAX_ACKS}, MSGPACK)
    command = RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, body=body)
    command.serialize_type = MSGPACK
    assert judge.judge(accounts, signed(command), "10.0.0.1", "C").refusal is None
    assert sum(seen) == 2 * MAX_ACKS


@pytest.mark.parametrize("code", [34, 41, 200151, 401])
async def test_of_json_that_is_not_standard_little_is_read_in_a_turn(
    code: int, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read in Python, and twice in the turn that judges and serves it: 8,192 values took 45 to 60 ms."""
    values, value = [0], fastjson.Tolerant.value

    def counted(text: fastjson.Tolerant, depth: int) -> Any:
        if not values[-1]:
            asyncio.get_running_loop().call_soon(values.append, 0)
        values[-1] += 1
        return value(text, depth)

    monkeypatch.setattr(fastjson.Tolerant, "value", counted)
    guarded.accounts.put(user(Entry(parse_resource("Cluster:*"), ("Update",))))
    answers = []
    for many in (4_000, 9_000):
        body = {"clientID": "c", "clientId": "c", "consumerGroup": "g", "topic": "t", "acks": []}
        text = encode_body(body, JSON)[:-1] + b',"more":[' + b"1," * many + b"]}"
        await guarded.ask(signed(RemotingCommand.request(code, body=text)))
        answers += await guarded.answers(1)
    served, refused = answers
    assert "more than 4096 values" not in (served.remark or "") and "more than 4096 values" in (refused.remark or "")
    assert 4_000 < max(values) <= 2 * 4_097


async def test_what_is_judged_in_turns_is_not_read_twice_in_one(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mebibyte without one name (200151) took 55 to 90 ms: what was to be acknowledged, judged and served at once."""
    read = [0]

    def noted(*args: Any, **options: Any) -> Any:
        if not read[-1]:
            asyncio.get_running_loop().call_soon(read.append, 0)
        read[-1] += 1
        return decode_plain(*args, **options)

    for module in ("aiorocket.access.core.requests", "aiorocket.broker.answers"):
        monkeypatch.setattr(f"{module}.decode_plain", noted)
    body = encode_body({"acks": [], "more": ["x" * 1_000] * 100}, JSON)
    await guarded.ask(signed(RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, body=body)))
    assert [answer.code for answer in await guarded.answers(1)] == [208]
    assert sum(read) == 2 and max(read) == 1


@pytest.mark.parametrize("names", [5, 500])
def test_few_names_are_judged_at_once_unless_there_are_many_entries(names: int) -> None:
    accounts = Accounts(FromFile({"me": user(*(denied(f"Topic:no{number}") for number in range(1_000)))}))
    work = judging(accounts, heartbeat(1, names), "10.0.0.1", "C", lambda place: None)
    assert (next(work, 0) is None) is (names == 500)


class Guarded(NamedTuple):
    broker: Broker
    accounts: Accounts
    peer: Peer

    async def ask(self, *commands: RemotingCommand) -> None:
        """All of them at once."""
        for command in commands:
            self.peer.writer.write(command)
        await self.peer.writer.drain()

    async def answers(self, count: int) -> list[RemotingCommand]:
        return [await self.peer.answer() for _ in range(count)]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0)

    def groups(self) -> int:
        return sum(1 for _ in self.broker.consumers)


@pytest_asyncio.fixture
async def guarded() -> AsyncIterator[Guarded]:
    env, accounts = memory_env(), Accounts()
    accounts.put(user())
    broker = Broker(env, BrokerConfig(port=0), accounts=accounts)
    await broker.start()
    peer = await Peer.connect(broker.port)
    try:
        yield Guarded(broker, accounts, peer)
    finally:
        await peer.close()
        await broker.close()
        await env.disk.close()


def leaving(group: str) -> RemotingCommand:
    return signed(RemotingCommand.request(35, UnregisterClientRequestHeader("c", None, group)))


def members(group: str) -> RemotingCommand:
    return signed(RemotingCommand.request(38, GetConsumerListByGroupRequestHeader(group)))


@pytest.mark.parametrize("oneway", [False, True])
async def test_what_comes_behind_it_on_its_connection_waits(guarded: Guarded, looked: list[int], oneway: bool) -> None:
    guarded.accounts.put(user(*(denied(f"Topic:no{number}") for number in range(2_000))))
    loop = asyncio.get_running_loop()

    def another_turn() -> None:
        looked.append(0)
        if not guarded.groups():
            loop.call_soon(another_turn)

    loop.call_soon(another_turn)
    # Short enough to be registered at once.
    await guarded.ask(heartbeat(10, oneway=oneway), members("g7"), leaving("g9"), members("g9"))
    codes = {answer.opaque: answer.code for answer in await guarded.answers(3 if oneway else 4)}
    assert codes == ({2: 0, 3: 0, 4: 1} if oneway else {1: 0, 2: 0, 3: 0, 4: 1})
    assert guarded.groups() == 9 and max(looked) <= _A_TURN + 2_100 and sum(map(bool, looked)) >= 25


async def test_who_leaves_behind_a_long_heartbeat_has_left(guarded: Guarded) -> None:
    await guarded.ask(heartbeat(), leaving("g499"))
    assert [answer.code for answer in await guarded.answers(2)] == [0, 0]
    assert guarded.groups() == 499 and guarded.broker.consumers.get("g499") is None


async def test_one_name_that_is_denied_keeps_all_out(guarded: Guarded) -> None:
    guarded.accounts.put(user(denied("Topic:t499-9")))
    await guarded.ask(heartbeat(), members("g0"))
    refused, nobody = await guarded.answers(2)
    assert refused.code == 16 and "Topic:t499-9 (Sub)" in (refused.remark or "") and nobody.code == 1
    assert not guarded.groups() and not list(guarded.broker.producers)


@pytest.mark.parametrize("change", ["denied", "gone"])
async def test_rights_that_change_meanwhile_count(guarded: Guarded, looked: list[int], change: str) -> None:
    await guarded.ask(heartbeat())
    await guarded.until(lambda: sum(looked) > 100_000)  # of 220,000
    assert not guarded.groups()
    if change == "denied":
        guarded.accounts.put(user(denied("Group:g0")))
    else:
        guarded.accounts.remove("me")
    (answer,) = await guarded.answers(1)
    assert answer.code == 16 and not guarded.groups()


async def test_of_one_who_has_gone_meanwhile_nothing_is_registered(guarded: Guarded, looked: list[int]) -> None:
    other = await Peer.connect(guarded.broker.port)
    other.writer.write(heartbeat(client="other"))
    await other.writer.drain()
    await guarded.until(lambda: sum(looked) > 100_000)
    connection = guarded.broker.server.connections[1]
    connection.abort("it is gone")
    await guarded.ask(heartbeat(1))
    assert [answer.code for answer in await guarded.answers(1)] == [0]
    await guarded.ask(heartbeat(2, 1_000))  # judged behind it
    assert [answer.code for answer in await guarded.answers(1)] == [0]
    assert {member.client_id for group in guarded.broker.consumers for member in group.members.values()} == {"c"}
    await other.close()
