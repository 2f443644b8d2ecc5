"""Every line of ``Limits``: a hostile client reaches it, is refused by its name, and what is kept stays."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from typing import Any

import pytest

from aiorocket.access.core.accounts import Account, Accounts
from aiorocket.access.core.rights import Entry, Rights, parse_resource
from aiorocket.access.handlers import AccessHandlers
from aiorocket.broker import Broker
from aiorocket.broker.core import topics as topic_table
from aiorocket.client.core.routes import check_route
from aiorocket.config import BrokerConfig, Limits, NameServerConfig
from aiorocket.nameserver import NameServer
from aiorocket.remoting import ProcessorTable
from aiorocket.runtime.env import memory_env
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import (
    EXT_ONCE,
    JSON,
    MAX_CONTROL_BODY,
    MAX_HEADER,
    MAX_LENIENT,
    MSGPACK,
    CloneGroupOffsetRequestHeader,
    ConsumerData,
    CreateTopicRequestHeader,
    DataVersion,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    FrameSplitter,
    HeartbeatData,
    KVTable,
    LockBatchBody,
    LockBatchResult,
    MessageQueue,
    NotificationRequestHeader,
    NotificationResponseHeader,
    ProtocolError,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueueData,
    RegisterBrokerBody,
    RegisterBrokerRequestHeader,
    RemotingCommand,
    SendMessageResponseHeader,
    SubscriptionData,
    TopicConfig,
    TopicRouteData,
    UpdateConsumerOffsetRequestHeader,
    UpdateGroupForbiddenRequestHeader,
    decode_body,
    encode_batch,
    encode_body,
)
from tests.broker.peer import Peer, pull_header, running, send_header
from tests.broker.test_pop import pop_header
from tests.broker.test_pop import popped as messages

#: Small ones, so that each is reached at once.
SMALL = Limits(
    topics=40, groups=5, offsets=3, locks=3, members=4, groups_per_connection=3, subscriptions=3, filter_length=200,
    filter_tags=5, filter_memory=20_000, parked_pulls=6, parked_per_queue=4, popped=4, modes=3, deliveries=3,
    client_id=20, batch=10, attributes=1_000, parked_pops=6, parked_pops_per_group=4, pops_under_way=4, timers=3,
    transactions=3, queues=2_000, brokers=3, broker_topics=4, routes=7, key_values=2_000, route_queues=100,
    users=3, rights=4, all_rights=6, forbidden=3, sent_once=8, repetitions=3,
)  # fmt: skip
#: A limit -> a program that goes on until it is refused, and says by which answer.
ATTACKS: dict[str, Callable[[int], Awaitable[str]]] = {}


def attack(run: Callable[[int], Awaitable[str]]) -> Callable[[int], Awaitable[str]]:
    ATTACKS[run.__name__] = run
    return run


def heartbeat(client: str, *groups: str, producer: bool = False, topics: int = 0, expression: str = "*") -> bytes:
    wanted = [SubscriptionData.parse(f"t{n}", expression, 1) for n in range(topics)]
    data = [] if producer else [ConsumerData(group, subscriptions=wanted) for group in groups]
    return encode_body(HeartbeatData(client, list(groups) if producer else [], data), 0)


@asynccontextmanager
async def broker(**changes: Any) -> AsyncIterator[tuple[Broker, Peer]]:
    async with running(BrokerConfig(port=0, limits=replace(SMALL, **changes))) as broker:
        peer = await Peer.connect(broker.port)
        try:
            yield broker, peer
        finally:
            await peer.close()


async def runtime_info(peer: Peer, name: str) -> str:
    return decode_body(KVTable, (await peer.call(28)).body, 0).table.get(name, "")


async def refused(peer: Peer, count: int, make: Callable[[int], tuple[Any, ...]]) -> str:
    """The first refusal among so many requests; all after it are refused, too."""
    said = ""
    for number in range(count):
        answer = await peer.call(*make(number))
        assert answer.code or not said, f"served after a refusal: {answer}"
        said = said or (answer.remark or "" if answer.code else "")
    return said


@attack
async def topics(count: int) -> str:
    async with broker() as (server, peer):
        said = await refused(peer, count, lambda n: (310, send_header(f"topic-{n}"), b"x"))
        assert len(server.topics) <= SMALL.topics
        assert "topics=40" in ((await peer.create_topic("one-more")).remark or "")
        return said


@attack
async def queues(count: int) -> str:
    async with broker(topics=1000) as (_, peer):

        def topic(name: str, queues: int) -> tuple[int, Any]:
            return 17, CreateTopicRequestHeader(name, "TBW102", queues, queues, 6, "SINGLE_TAG", order=False)

        def several(*queues: int) -> tuple[int, None, bytes]:
            items = [{"topicName": f"l{n}", "readQueueNums": many, "writeQueueNums": 1, "perm": 6}
                     for n, many in enumerate(queues)]  # fmt: skip
            return 18, None, encode_body({"topicConfigList": items}, 0)

        assert "queues=2000" in ((await peer.call(*several(400, 2_000))).remark or "")
        assert (await peer.call(*topic("l0", 1))).code == 0  # all of a list or nothing
        said = await refused(peer, count, lambda n: topic(f"t{n}", 100))
        assert "queues=2000" in ((await peer.call(*topic("t0", 2_000))).remark or "")
        assert (await peer.call(*topic("t0", 3))).code == 0  # fewer are well, and are others'
        assert (await peer.call(*topic("one-more", 50))).code == 0
        assert (await peer.call(215, DeleteTopicRequestHeader("t1"))).code == 0
        assert (await peer.call(*topic("and-one", 100))).code == 0
        sends = await refused(peer, count, lambda n: (310, send_header(f"s{n}"), b"x"))
        assert "queues=2000" in sends
        return said


@attack
async def attributes(count: int) -> str:
    def topic(name: str, size: int) -> tuple[int, Any]:
        return 17, CreateTopicRequestHeader(
            name, "TBW102", 1, 1, 6, "SINGLE_TAG", order=False, attributes=f"+a={'x' * size}"
        )

    def group(name: str, size: int) -> tuple[int, None, bytes]:
        return 200, None, encode_body({"groupName": name, "attributes": {"a": "x" * size}}, 0)

    makes: list[Callable[[str, int], tuple[Any, ...]]] = [topic, group]
    for make in makes:
        async with broker(topics=1000, groups=1000) as (server, peer):
            assert [(await peer.call(*make(f"t{n}", 450))).code for n in range(2)] == [0, 0]
            answer = await peer.call(*make("t2", 450))
            said = answer.remark or ""
            assert answer.code and "attributes=1000" in said
            # All of a list or nothing.
            items = [{"topicName": f"l{n}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                      "attributes": {"+a": "x" * 40}} for n in range(3)]  # fmt: skip
            if make is topic:
                assert (await peer.call(18, None, encode_body({"topicConfigList": items}, 0))).code
                assert "l0" not in server.topics
            # What has them may lose them, and others get them then; what goes takes its own along.
            assert (await peer.call(*make("t0", 50))).code == 0
            assert (await peer.call(*make("t3", 400))).code == 0
            assert (await peer.call(*make("t4", 400))).code
            if make is topic:
                assert (await peer.call(215, DeleteTopicRequestHeader("t1"))).code == 0
            else:
                assert (await peer.call(207, DeleteSubscriptionGroupRequestHeader("t1"))).code == 0
            assert (await peer.call(*make("t4", 400))).code == 0
            one = await peer.call(*make("big", 5_000))
            assert "4096 are allowed" in (one.remark or "")
    return said


@attack
async def groups(count: int) -> str:
    async with broker(offsets=1000) as (server, peer):
        await peer.create_topic("T")
        said = await refused(peer, count, lambda n: commit(f"group-{n}", 0))
        return said if len(list(server.configs)) <= SMALL.groups else "more are kept"


def commit(group: str, queue_id: int) -> tuple[int, Any]:
    return 15, UpdateConsumerOffsetRequestHeader(group, "T", queue_id, 7)


@attack
async def forbidden(count: int) -> str:
    async with broker() as (server, peer):
        said = await refused(
            peer, count, lambda n: (353, UpdateGroupForbiddenRequestHeader("g", f"t{n}", readable=False))
        )
        return said if len(server.configs.forbidden) == SMALL.forbidden else "more are kept"


@attack
async def offsets(count: int) -> str:
    async with broker() as (server, peer):
        await peer.create_topic("T", queues=count)
        said = await refused(peer, count, lambda n: commit("g", n))
        nowhere = await peer.call(*commit("g", 1 << 30))
        assert "has no queue 1073741824" in (nowhere.remark or "")
        # A pull that commits is served all the same, and its offset is not kept.
        assert (await peer.call(11, pull_header(queue_id=count - 1, sys_flag=1 | 4, commit_offset=1))).code == 19
        assert len(list(server.offsets)) == SMALL.offsets
        assert (await peer.call(*commit("g", 0))).code == 0  # what is known goes on
        clone = await peer.call(314, CloneGroupOffsetRequestHeader("g", "h", "T", True))
        assert clone.code == 2 and "group h, topic T, queue 0 is not kept" in (clone.remark or "")
        return said


@attack
async def locks(count: int) -> str:
    """Locks are not refused but not granted, as when somebody else holds them; the answer says why."""
    async with broker() as (server, peer):
        await peer.create_topic("T", queues=count)
        asked = [MessageQueue("T", "broker-a", n) for n in range(count)]
        asked += [MessageQueue("nowhere", "broker-a", 0), MessageQueue("T", "another", 0)]
        answer = await peer.call(41, None, encode_body(LockBatchBody("c", "g", asked), 0))
        granted = decode_body(LockBatchResult, answer.body, 0).queues
        assert len(granted) == SMALL.locks == len(server.locks) and answer.code == 0
        return answer.remark or ""


@attack
async def members(count: int) -> str:
    async with broker(groups_per_connection=1000, groups=1000) as (server, peer):
        said = await refused(peer, count, lambda n: (34, None, heartbeat("c", f"group-{n}")))
        producers = await refused(peer, count, lambda n: (34, None, heartbeat("c", f"group-{n}", producer=True)))
        assert "members=4" in producers
        return said if len(list(server.consumers)) == SMALL.members else "more are kept"


@attack
async def groups_per_connection(count: int) -> str:
    async with broker(members=1000) as (_, peer):
        return await refused(peer, count, lambda n: (34, None, heartbeat("c", f"group-{n}", producer=True)))


async def test_of_a_heartbeat_with_too_many_groups_no_more_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    from_plain = ConsumerData.from_plain.__func__  # type: ignore[attr-defined]  # a class method's own function

    def counted(cls: type[ConsumerData], value: Any) -> ConsumerData:
        read.append(value)
        return from_plain(cls, value)

    monkeypatch.setattr(ConsumerData, "from_plain", classmethod(counted))
    async with broker(members=1000, groups=1000) as (server, peer):
        answer = await peer.call(34, None, heartbeat("c", *(f"group-{n}" for n in range(500))))
        assert "groups_per_connection=3" in (answer.remark or "")
        kept = [f"group-{n}" for n in range(500) if server.consumers.get(f"group-{n}") is not None]
        assert kept == ["group-0", "group-1", "group-2"] and len(read) == 4


@attack
async def subscriptions(count: int) -> str:
    async with broker() as (_, peer):
        return await refused(peer, 1, lambda n: (34, None, heartbeat("c", "g", topics=count)))


@attack
async def filter_length(count: int) -> str:
    async with broker() as (_, peer):
        await peer.create_topic("T")
        in_heartbeat = await refused(peer, 1, lambda n: (34, None, heartbeat("c", "g", topics=1, expression="x" * 201)))
        assert "filter_length=200" in in_heartbeat
        for kind in ("TAG", "SQL92"):
            header = pull_header(subscription="a = 1 " + " " * count * 10, expression_type=kind)
            said = await refused(peer, 1, lambda n, header=header: (11, header))
        return said


@attack
async def filter_tags(count: int) -> str:
    async with broker() as (_, peer):
        await peer.create_topic("T")
        tags = "||".join(f"t{n}" for n in range(10))
        in_heartbeat = await refused(peer, 1, lambda n: (34, None, heartbeat("c", "g", topics=1, expression=tags)))
        assert "filter_tags=5" in in_heartbeat
        return await refused(peer, 1, lambda n: (11, pull_header(subscription=tags)))


@attack
async def filter_memory(count: int) -> str:
    wide = {"parked_pulls": 999, "parked_per_queue": 999, "members": 999, "groups": 999, "groups_per_connection": 999}
    async with broker(**wide) as (server, peer):
        await peer.create_topic("T")
        for n in range(count):
            await peer.ask(11, pull_header(subscription=f"tag{n:050d}||b||c", offset=0))
        said = (await peer.answer()).remark or ""
        assert server.parked_pulls < count
        body = [heartbeat("c", f"g{n}", topics=3, expression=f"tag{n:050d}||b||c") for n in range(count)]
        other = await Peer.connect(server.port)
        assert "filter_memory=20000" in await refused(other, count, lambda n: (34, None, body[n]))
        await other.close()
        return said


@attack
async def parked_pulls(count: int) -> str:
    async with broker(parked_per_queue=1000) as (server, peer):
        await peer.create_topic("T")
        for _ in range(count):
            await peer.ask(11, pull_header())
        said = (await peer.answer()).remark or ""
        return said if server.parked_pulls == SMALL.parked_pulls else "more are kept"


@attack
async def parked_per_queue(count: int) -> str:
    async with broker() as (server, peer):
        await peer.create_topic("T")
        for _ in range(count):
            await peer.ask(11, pull_header())
        said = (await peer.answer()).remark or ""
        return said if server.parked_pulls == SMALL.parked_per_queue else "more are kept"


@attack
async def parked_pops(count: int) -> str:
    async with broker(offsets=1000, parked_pops_per_group=1000, parked_per_queue=1000) as (server, peer):
        return await _parked_pops(server, peer, count, SMALL.parked_pops)


@attack
async def parked_pops_per_group(count: int) -> str:
    async with broker(offsets=1000) as (server, peer):
        return await _parked_pops(server, peer, count, SMALL.parked_pops_per_group)


async def _parked_pops(server: Broker, peer: Peer, count: int, most: int) -> str:
    await peer.create_topic("T")
    for _ in range(count):
        await peer.ask(200050, pop_header(poll_time=60_000))
    answers = [await peer.answer() for _ in range(count - most)]
    assert {answer.code for answer in answers} == {209} and server._parts is not None
    assert server._parts.pops.polls.count == most
    return answers[0].remark or ""


@attack
async def pops_under_way(count: int) -> str:
    async with broker(queues=50_000, offsets=1_000_000, groups=1_000) as (server, peer):
        await peer.create_topic("T", 4_000)
        assert server.parts is not None
        server.parts.pops._rounds._most = 0  # so that none is at its end before it is looked at
        for number in range(count):
            await peer.ask(200054, NotificationRequestHeader(f"g{number}", "T", -1, 0, 0))
            await peer.ask(200050, pop_header(consumer_group=f"g{number}"))
        first, second = await peer.answer(), await peer.answer()
        assert first.read(NotificationResponseHeader) == NotificationResponseHeader(False, True)
        return second.remark or "" if len(server.parts.pops._rounds) <= SMALL.pops_under_way else "more are kept"


@attack
async def popped(count: int) -> str:
    async with broker(offsets=1000, groups=1000) as (server, peer):
        await peer.send()
        said = await refused(peer, count, lambda n: (200050, pop_header(consumer_group=f"g{n}", max_msg_nums=1)))
        return said if server.popped <= SMALL.popped else "more are kept"


@attack
async def transactions(count: int) -> str:
    async with broker() as (server, peer):
        half = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U\x02"
        said = await refused(peer, count, lambda n: (310, send_header(properties=half), b"half"))
        await peer.send()  # what is no transaction is taken
        return said if len(server.transactions) <= SMALL.transactions else "more are kept"


@attack
async def modes(count: int) -> str:
    def body(number: int) -> bytes:
        return encode_body({"consumerGroup": f"g{number}", "mode": "POP", "topic": "T"}, 0)

    async with broker(groups=1000) as (_, peer):
        await peer.send()
        return await refused(peer, count, lambda n: (401, None, body(n)))


@attack
async def deliveries(count: int) -> str:
    """They are not refused but counted for the group alone, and the runtime information says so."""
    async with broker(topics=1000) as (server, peer):
        assert not await runtime_info(peer, "limit_deliveries")
        for n in range(count):
            assert (await peer.call(310, send_header(f"t{n}"), b"x")).code == 0
            assert (await peer.call(11, pull_header(f"t{n}", queue_id=0, offset=0))).code == 0
        counted = server.counters.delivered
        assert len(counted) == SMALL.deliveries + 1 and sum(counted.values()) == count
        assert [topic for topic, _ in counted] == ["t0", "t1", "t2", ""]
        return await runtime_info(peer, "limit_deliveries")


@attack
async def client_id(count: int) -> str:
    async with broker() as (_, peer):
        await peer.create_topic("T")
        asked = LockBatchBody("c" * 30, "g", [MessageQueue("T", "broker-a", 0)])
        assert "client_id=20" in await refused(peer, 1, lambda n: (41, None, encode_body(asked, 0)))
        return await refused(peer, 1, lambda n: (34, None, heartbeat("c" * count, "g")))


@attack
async def timers(count: int) -> str:
    async with broker() as (_, peer):
        header = send_header(properties="TIMER_DELAY_SEC\x0160\x02")
        return await refused(peer, count, lambda n: (310, header, b"x"))


@attack
async def sent_once(count: int) -> str:
    """They are not refused: those of who was quiet longest are forgotten, and the runtime information says so."""
    async with broker() as (server, peer):
        assert not await runtime_info(peer, "limit_sent_once")
        await peer.create_topic("T")
        for n in range(count):
            own = f"UNIQ_KEY\x01{n:020X}{n:012X}\x02"  # a producer and its number there
            assert (await peer.call(310, send_header(properties=own), b"x", **{EXT_ONCE: "broker-a"})).code == 0
        assert server._parts is not None
        assert len(server._parts.repetitions._table) == SMALL.sent_once
        return await runtime_info(peer, "limit_sent_once")


@attack
async def repetitions(count: int) -> str:
    async with broker() as (server, peer):
        await peer.create_topic("T")
        assert server.parts is not None
        unique = f"{0:032X}"
        once = server.parts.repetitions._once
        first = once.begin("T", 0, unique, None, lambda result: None)
        assert callable(first)
        for _ in range(count):
            await peer.ask(310, send_header(properties=f"UNIQ_KEY\x01{unique}\x02"), b"x", **{EXT_ONCE: "broker-a"})
        answers = [await peer.answer() for _ in range(count - SMALL.repetitions)]
        assert {answer.code for answer in answers} == {1}
        first(PutResult(PutStatus.OK, 0, 7, 0))  # and those that wait are answered
        waited = [await peer.answer() for _ in range(SMALL.repetitions)]
        assert {answer.read(SendMessageResponseHeader).queue_offset for answer in waited} == {7}
        return answers[0].remark or ""


@attack
async def batch(count: int) -> str:
    async with broker() as (_, peer):
        body = encode_batch([(b"x", 0, b"")] * count)
        return await refused(peer, 1, lambda n: (320, send_header(batch=True), body))


async def test_the_largest_batch_has_its_ids_in_the_answer() -> None:
    async with broker(batch=Limits().batch) as (_, peer):
        answer = await peer.call(320, send_header(batch=True), encode_batch([(b"x", 0, b"")] * Limits().batch))
        assert answer.code == 0 and len(answer.read(SendMessageResponseHeader).msg_id.split(",")) == Limits().batch


@asynccontextmanager
async def name_server() -> AsyncIterator[Peer]:
    server = NameServer(memory_env(), NameServerConfig(port=0, limits=SMALL))
    await server.start()
    peer = await Peer.connect(server.port)
    try:
        yield peer
    finally:
        await peer.close()
        await server.close()


def register(name: str, *topics: str) -> tuple[Any, ...]:
    body = RegisterBrokerBody(DataVersion(1, 1), [TopicConfig(topic) for topic in topics])
    header = RegisterBrokerRequestHeader(name, f"{name}:1", "C", "", 0)
    return 103, header, encode_body(body, 0)


@attack
async def brokers(count: int) -> str:
    async with name_server() as peer:
        return await refused(peer, count, lambda n: register(f"b{n}"))


@attack
async def broker_topics(count: int) -> str:
    async with name_server() as peer:
        return await refused(peer, 1, lambda n: register("b", *(f"t{n}" for n in range(count))))


@attack
async def routes(count: int) -> str:
    async with name_server() as peer:
        return await refused(peer, 3, lambda n: register(f"b{n}", *(f"t{n}-{m}" for m in range(4))))


@attack
async def key_values(count: int) -> str:
    async with name_server() as peer:
        return await refused(peer, count, lambda n: (100, PutKVConfigRequestHeader("n", f"k{n}", "v" * 300)))


async def changed_access(codes: dict[int, Any], code: int, body: bytes = b"", **ext: str) -> str:
    answer = await codes[code](None, RemotingCommand.request(code, ext=ext, body=body))
    return answer.remark or "" if answer.code else ""


def access() -> tuple[Accounts, dict[int, Any]]:
    async def save() -> None:
        pass

    accounts = Accounts()
    return accounts, AccessHandlers(accounts, save, SMALL, "b", "c", "127.0.0.1:1").codes()


@attack
async def users(count: int) -> str:
    accounts, codes = access()
    body = b'{"password": "12345678"}'
    said = [await changed_access(codes, 3001, body, username=f"u{n}") for n in range(count)]
    assert said[:3] == ["", "", ""] and len(accounts.all()) == 3
    assert "users=3" in await changed_access(codes, 50, accessKey="one-more", secretKey="12345678")
    assert await changed_access(codes, 3002, body, username="u0") == ""
    return said[-1]


@attack
async def rights(count: int) -> str:
    accounts, codes = access()
    for number in (4, count):
        perms = ",".join(f"t{n}=DENY" for n in range(number))
        said = await changed_access(codes, 50, accessKey="one", secretKey="12345678", topicPerms=perms)
        assert (number == 4) == (said == "")
    entry = {"resource": "*", "actions": ["All"], "decision": "Allow"}
    from_many = {**entry, "sourceIps": ["10.0.0.1"] * count}
    for policies in (
        [{"entries": [entry] * count}],
        [{"entries": [from_many]}],
        [{"entries": [{**entry, "actions": ["All"] * 10 * count}]}],
        [{"entries": [entry]}] * count,
        [{}] * count,
    ):
        body = encode_body({"policies": policies}, JSON)
        assert "rights=4" in await changed_access(codes, 3006, body, subject="User:one")
    white = ",".join(["10.0.0.0/8"] * count)
    assert "rights=4" in await changed_access(codes, 50, accessKey="one", whiteRemoteAddress=white)
    assert accounts.all()[0].rights.count() <= 4 and not accounts.all()[0].trusted
    return said


@attack
async def all_rights(count: int) -> str:
    accounts, codes = access()
    perms = "a=DENY,b=DENY,c=DENY"
    said = [
        await changed_access(codes, 50, accessKey=f"u{n}", secretKey="12345678", topicPerms=perms) for n in range(3)
    ]
    assert said[:2] == ["", ""] and accounts.entries == 6 and len(accounts.names()) == 2
    assert "all_rights=6" in await changed_access(codes, 50, accessKey="u0", topicPerms=f"{perms},d=DENY")
    assert await changed_access(codes, 50, accessKey="u0", topicPerms="a=DENY") == "" and accounts.entries == 4
    return said[-1]


async def test_a_user_with_more_entries_than_may_be_can_still_be_disabled_and_have_less() -> None:
    """Of an earlier version's, whose addresses did not count, or from before the limit was lowered."""
    accounts, codes = access()
    named = map(parse_resource, ("Topic:a", "Topic:b", "Topic:c"))
    entries = (Entry(resource, ("Sub",), ("10.0.0.1", "10.0.0.2")) for resource in named if resource)
    accounts.put(Account("one", "12345678", rights=Rights(tuple(entries))))
    assert accounts.entries == 9 > SMALL.all_rights > SMALL.rights
    assert await changed_access(codes, 3002, b'{"userStatus": "disable"}', username="one") == ""
    assert not accounts.all()[0].enabled
    perms = ",".join(f"{name}=DENY" for name in "defgh")
    assert "rights=4" in await changed_access(codes, 50, accessKey="one", topicPerms=perms)
    assert await changed_access(codes, 3008, subject="User:one", resource="Topic:a") == "" and accounts.entries == 6


@attack
async def route_queues(count: int) -> str:
    route = TopicRouteData([QueueData("b", count, 4, 6)], [], None)
    with pytest.raises(ProtocolError) as raised:
        check_route("T", route, SMALL.route_queues)
    ordered = TopicRouteData([], [], f"b:{count}")
    with pytest.raises(ProtocolError, match="route_queues=100"):
        check_route("T", ordered, SMALL.route_queues)
    return str(raised.value)


def test_every_limit_has_its_attack() -> None:
    assert list(ATTACKS) == [each.name for each in fields(Limits)]


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_hostile_client_meets_the_limit_by_its_name(name: str) -> None:
    limit = getattr(SMALL, name)
    said = await ATTACKS[name](max(limit + 5, 30) if limit < 1000 else 40)
    assert re.search(rf"\b{name}={limit}\b", said), said


async def test_the_subscriptions_of_those_that_left_are_forgotten() -> None:
    async with broker(groups=1000) as (server, peer):
        for n in range(100):
            other = await Peer.connect(server.port)
            answer = await other.call(34, None, heartbeat("c", f"g{n}", topics=3, expression="tag"))
            assert answer.code == 0, answer.remark
            await other.close()
            while list(server.consumers):
                assert (await peer.call(38, None)).code
        assert server.consumers._weight == 0


@pytest.mark.parametrize("more", [{"tags_set": frozenset({"x" * 5_000})}, {"expression_type": "x" * 5_000}])
async def test_what_a_heartbeat_says_beside_an_expression_takes_memory_too(more: dict[str, Any]) -> None:
    """900 KB of tags of other names than the expression's counted 302 bytes, for each group of a connection."""
    wanted = SubscriptionData("t", "a", sub_version=1)._replace(**more)
    body = [encode_body(HeartbeatData("c", [], [ConsumerData(f"g{n}", subscriptions=[wanted])]), 0) for n in range(9)]
    async with broker(groups=99, groups_per_connection=99, members=99) as (server, peer):
        assert "filter_memory=20000" in await refused(peer, 9, lambda n: (34, None, body[n]))
        assert len(list(server.consumers)) == 1


def test_a_header_is_bounded_before_it_is_read() -> None:
    frame = (MAX_HEADER + 5).to_bytes(4, "big") + (MAX_HEADER + 1).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match=f"at most {MAX_HEADER} are allowed"):
        FrameSplitter().feed(frame)


def test_a_body_that_holds_no_messages_is_bounded_before_it_is_read() -> None:
    answers: list[RemotingCommand] = []

    class Link:
        peer = "here"

        def reply(self, request: RemotingCommand, answer: RemotingCommand) -> None:
            answers.append(answer)

    def never(connection: Any, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(remark="read")

    async def main() -> None:
        table = ProcessorTable()
        for code in (34, 310):
            table.add(code, never)
            for size, kind in ((MAX_CONTROL_BODY + 1, JSON), (MAX_CONTROL_BODY // 4 + 1, MSGPACK)):
                request = RemotingCommand(code, body=bytes(size), serialize_type=kind)
                table.dispatch(Link(), request)  # type: ignore[arg-type]  # a double
        for code in (400, 322):  # of one topic, of one broker
            table.add(code, never)
            request = RemotingCommand(code, body=bytes(MAX_CONTROL_BODY // 4 + 1), serialize_type=JSON)
            table.dispatch(Link(), request)  # type: ignore[arg-type]  # a double

    asyncio.run(main())
    assert "and for what names one thing" in (answers.pop().remark or "")
    assert "and for what names one thing" in (answers.pop().remark or "")
    assert all("MAX_CONTROL_BODY=1048576" in (answer.remark or "") for answer in answers[:2])
    assert "a quarter of it for msgpack" in (answers[1].remark or "")
    assert [answer.remark for answer in answers[2:]] == ["read"] * 2


#: Read in Python, at a millisecond for a thousand: a mebibyte of it held the loop for half a second.
NOT_STANDARD = b"{" + b"0:0," * 10_000 + b"}"


async def test_of_json_that_is_not_standard_little_is_read() -> None:
    async with broker() as (_, peer):
        for code in (18, 34, 41, 42, 46, 200, 225, 400, 401, 200151):
            answer = await peer.call(code, None, NOT_STANDARD)
            assert f"more than {MAX_LENIENT} values in JSON that is not standard" in (answer.remark or ""), code
    async with name_server() as peer:
        header = QueryDataVersionRequestHeader("b", "b:1", "C", 0)
        answer = await peer.call(322, header, NOT_STANDARD)
        assert f"more than {MAX_LENIENT} values in JSON that is not standard" in (answer.remark or "")


async def test_what_thousands_of_refused_pulls_leave_behind_is_small() -> None:
    """The hostile program of old: 4,000 pulls with a tag expression of 200 KB each, which took 1.6 GiB."""
    async with running() as server:
        peer = await Peer.connect(server.port)
        await peer.create_topic("T")
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for n in range(300):
                answer = await peer.call(11, pull_header(subscription=f"{n}||" + "x" * 200_000))
                assert "filter_length=16384" in (answer.remark or "")
            assert tracemalloc.get_traced_memory()[0] - before < 2 << 20
        finally:
            tracemalloc.stop()
        await peer.close()


async def test_a_group_whose_offset_would_not_be_kept_cannot_pop() -> None:
    async with broker(offsets=2) as (_, peer):
        await peer.send()
        # One offset is the broker's own.
        (one,) = messages(await peer.call(200050, pop_header(queue_id=0)))
        answer = await peer.call(200050, pop_header(queue_id=0, consumer_group="h"))
        assert answer.code == 2 and "offsets=2" in (answer.remark or "")
        assert (await peer.call(200051, one.ack)).code == 0
        assert messages(await peer.call(200050, pop_header(queue_id=0))) == []


async def test_of_pops_that_wait_their_filters_are_counted_and_nothing_else_is_kept() -> None:
    async with broker(
        parked_pulls=999, parked_per_queue=999, parked_pops=999, parked_pops_per_group=999, offsets=999
    ) as (server, peer):
        await peer.create_topic("T")
        await peer.ask(200050, pop_header(poll_time=60_000), body=bytes(1_000_000), junk="j" * 10_000)
        await peer.call(28)
        assert server._parts is not None
        (pull,) = server._parts.pops.polls.waiting(("T", "g"))
        kept = pull.request.command
        assert kept.body == b"" and "junk" not in (kept.ext or {})
        for number in range(50):
            await peer.ask(200050, pop_header(poll_time=60_000, exp=f"tag{number:050d}||b||c"))
        assert "filter_memory=20000" in ((await peer.answer()).remark or "")
        await peer.close()


async def test_of_pulls_and_pops_that_wait_the_remark_is_not_kept() -> None:
    async with broker(offsets=999) as (server, peer):
        await peer.create_topic("T")
        for code, header in ((11, pull_header()), (200050, pop_header(poll_time=60_000))):
            request = RemotingCommand.request(code, header)
            request.remark = "r" * 100_000
            peer.writer.write(request)
        await peer.call(28)
        parts = server._parts
        assert parts is not None
        (pull,) = parts.pulls.polls.waiting(("T", 0))
        (pop,) = parts.pops.polls.waiting(("T", "g"))
        assert pull.request.command.remark is None and pop.request.command.remark is None


async def test_tags_that_are_made_up_fill_one_small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_table, "MAX_TAG_CACHE", 8)
    async with broker(topics=100) as (server, peer):
        for topic in ("T", "U"):
            for number in range(20):
                for tag in (f"{topic}-{number}", f"{topic}-{number}-{'x' * 30_000}"):
                    header = send_header(topic, properties=f"TAGS\x01{tag}\x02")
                    assert (await peer.call(310, header, b"x")).code == 0
        tables = {id(topic.tag_codes): topic.tag_codes for topic in server.topics}
        assert [0 < len(codes) <= 8 for codes in tables.values()] == [True]
        assert all(len(tag) <= topic_table.LONGEST_TAG for codes in tables.values() for tag in codes)


async def test_pops_that_waited_once_leave_nothing_behind() -> None:
    async with broker(offsets=5000, groups=5000, topics=100, parked_pops=5000) as (server, peer):
        await peer.send()
        for number in range(700):
            await peer.ask(200050, pop_header(consumer_group=f"g{number}", poll_time=60_000, exp="none"))
            if number % 5 == 4:
                await peer.close()
                peer = await Peer.connect(server.port)
        parts = server._parts
        assert parts is not None
        await peer.call(28)
        assert sum(map(len, parts.pops.awaited.values())) <= 1100
        await peer.close()


async def test_a_pop_whose_filter_waits_to_be_compiled_is_refused_by_the_limit_that_it_meets() -> None:
    async with broker() as (server, peer):
        assert server.parts is not None
        pops = server.parts.pops
        pops._rounds._most = 0  # nothing is left of any turn
        pops._weight = SMALL.filter_memory
        await peer.ask(200050, pop_header(exp="a = 1", exp_type="SQL92"))
        assert f"filter_memory={SMALL.filter_memory}" in ((await peer.answer()).remark or "")
