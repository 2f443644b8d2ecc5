"""Lines of ``Limits`` of which one connection, or one group, gets no more than leaves something to others; and why the
other lines have no such share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from typing import Any

import pytest

from aiorocket.broker import Broker
from aiorocket.broker.core import shares
from aiorocket.broker.core.names import Refusal
from aiorocket.config import BrokerConfig, Limits
from aiorocket_protocol import (
    EndTransactionRequestHeader,
    LockBatchBody,
    MessageQueue,
    RecordView,
    RemotingCommand,
    UpdateConsumerOffsetRequestHeader,
    encode_body,
)
from tests.broker.peer import Peer, pull_header, running, send_header
from tests.broker.test_limits import heartbeat
from tests.broker.test_pop import pop_header
from tests.broker.test_pop import popped as messages

#: Why a line has no share of one connection.
ALONE = {
    "attributes": "set by administrators",
    "forbidden": "set by administrators",
    "members": "groups_per_connection is the share",
    "groups_per_connection": "is a share",
    "subscriptions": "of one group",
    "filter_length": "of one expression",
    "filter_tags": "of one subscription",
    "parked_pulls": "RemotingConfig.max_in_flight is the share",
    "parked_per_queue": "is a share",
    "parked_pops": "RemotingConfig.max_in_flight is the share",
    "parked_pops_per_group": "is a share of a group",
    "pops_under_way": "taken for some turns of the loop, in which all of them go on",
    "modes": "set by administrators",
    "deliveries": "nobody is refused: what is more is counted for the group alone",
    "client_id": "of one client",
    "sent_once": "nobody is refused: those of who was quiet longest are forgotten",
    "repetitions": "RemotingConfig.max_in_flight is the share",
    "batch": "of one request",
    "brokers": "of a name server, where brokers register that may",
    "broker_topics": "of one broker",
    "routes": "of a name server, where brokers register that may",
    "key_values": "set by administrators",
    "users": "set by administrators",
    "rights": "of one user",
    "all_rights": "set by administrators",
    "route_queues": "of one topic",
}
#: A line -> a program by which a connection floods it, and another one goes on.
SHARED: dict[str, Callable[[], Awaitable[None]]] = {}
#: The same of a group, whose members come on one connection after another.
OF_GROUPS: dict[str, Callable[[], Awaitable[None]]] = {}

Make = Callable[[int], tuple[Any, ...]]
HALF = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U\x02"
TIMER = "TIMER_DELAY_SEC\x0160\x02"
WIDE = Limits(**{each.name: 10_000 for each in fields(Limits) if each.name not in ("filter_memory", "attributes")})


def shared(run: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    SHARED[run.__name__] = run
    return run


def of_groups(run: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    OF_GROUPS[run.__name__.removesuffix("_of_a_group")] = run
    return run


@asynccontextmanager
async def broker(**limits: int) -> AsyncIterator[tuple[Broker, Peer, Peer]]:
    """With a topic "T" of 100 queues and two connections; the first one made that topic."""
    async with running(BrokerConfig(port=0, limits=replace(WIDE, **limits))) as server:
        peers = [await Peer.connect(server.port) for _ in range(2)]
        try:
            await peers[1].create_topic("T", 100)
            yield server, peers[0], peers[1]
        finally:
            for peer in peers:
                await peer.close()


def is_served(answer: RemotingCommand) -> bool:
    return answer.code == 0


async def flood(
    limit: str, most: int, peer: Peer, make: Make, served: Callable[[RemotingCommand], bool] = is_served,
    owner: str = "this connection",
) -> int:  # fmt: skip
    """How many are served until one is refused in words, and so are all after it."""
    for number in range(most + 1):
        answer = await peer.call(*make(number))
        if not served(answer):
            said = answer.remark or ""
            assert re.search(rf"the broker's limit {limit}={most} is nearly reached, {owner} has \d+ of it", said), said
            assert not served(await peer.call(*make(number + 1)))
            return number
    raise AssertionError("it was never refused")


async def flooded(
    limit: str, most: int, peers: tuple[Peer, Peer], make: Make,
    served: Callable[[RemotingCommand], bool] = is_served, least: int = 30,
) -> None:  # fmt: skip
    """One connection goes on until it is refused, and another one is served."""
    first, second = peers
    assert await flood(limit, most, first, make, served) >= least
    answer = await second.call(*make(1_000))
    assert served(answer), answer


def commit(group: str, queue_id: int) -> tuple[int, Any]:
    return 15, UpdateConsumerOffsetRequestHeader(group, "T", queue_id, 7)


@shared
async def topics() -> None:
    async with broker(topics=100) as (server, *peers):
        await flooded("topics", 100, (peers[0], peers[1]), lambda n: (310, send_header(f"topic-{n}"), b"x"))
        assert len(server.topics) < 100


@shared
async def queues() -> None:
    async with broker(queues=3_000) as (_, *peers):
        await flooded("queues", 3_000, (peers[0], peers[1]), lambda n: (310, send_header(f"q-{n}"), b"x"))


@shared
async def groups() -> None:
    async with broker(groups=40) as (server, *peers):
        await flooded("groups", 40, (peers[0], peers[1]), lambda n: commit(f"group-{n}", 0))
        assert len(list(server.configs)) < 40


@shared
async def offsets() -> None:
    async with broker(offsets=40) as (server, *peers):
        await flooded("offsets", 40, (peers[0], peers[1]), lambda n: commit(f"group-{n}", n % 100))
        assert len(server.offsets) < 40
        assert (await peers[0].call(*commit("group-0", 0))).code == 0  # what is known goes on
        pull = pull_header(queue_id=99, consumer_group="none", sys_flag=1 | 4, commit_offset=1)
        assert (await peers[0].call(11, pull)).code == 19 and server.offsets.query("none", "T", 99) is None
    async with broker(offsets=40) as (server, *peers):  # a pop stores where its group begins
        await flooded(
            "offsets", 40, (peers[0], peers[1]),
            lambda n: (200050, pop_header(consumer_group=f"group-{n}", queue_id=n)), lambda answer: answer.code != 2,
        )  # fmt: skip
        assert len(server.offsets) < 40


@of_groups
async def offsets_of_a_group() -> None:
    async with broker(offsets=40) as (server, first, second):
        for number in range(30):
            peer = await Peer.connect(server.port)
            assert (await peer.call(*commit("g", number))).code == 0
            await peer.close()
        assert await flood("offsets", 40, second, lambda n: commit("g", 30 + n), owner="the group") < 10
        assert (await first.call(*commit("another", 0))).code == 0


def lock(group: str, client: str, *queues: int) -> tuple[int, None, bytes]:
    asked = [MessageQueue("T", "broker-a", queue) for queue in queues]
    return 41, None, encode_body(LockBatchBody(client, group, asked), 0)


def is_locked(answer: RemotingCommand) -> bool:
    assert answer.code == 0
    return b'"queueId"' in answer.body


@shared
async def locks() -> None:
    """Those that are too many are not granted, and the answer says why."""
    async with broker(locks=40) as (server, *peers):
        await flooded("locks", 40, (peers[0], peers[1]), lambda n: lock(f"group-{n}", "c", n % 100), is_locked)
        assert len(server.locks) < 40
        assert is_locked(await peers[0].call(*lock("group-0", "c", 0)))  # what is held is renewed


@of_groups
async def locks_of_a_group() -> None:
    async with broker(locks=40) as (server, first, second):
        for number in range(30):
            peer = await Peer.connect(server.port)
            assert is_locked(await peer.call(*lock("g", f"c{number}", number)))
            await peer.close()
        assert await flood("locks", 40, second, lambda n: lock("g", "c", 30 + n), is_locked, "the group") < 10
        assert is_locked(await first.call(*lock("another", "c", 0)))


@shared
async def filter_memory() -> None:
    expression = f"tag{0:050d}||b||c"
    async with broker(filter_memory=20_000) as (server, *peers):
        beat = [lambda n: (34, None, heartbeat("c", f"g{n}", topics=1, expression=expression))]
        await flooded("filter_memory", 20_000, (peers[0], peers[1]), beat[0], least=15)
        assert server.consumers._weight < 20_000
    async with broker(filter_memory=20_000) as (server, first, second):
        for _ in range(60):
            await first.ask(11, pull_header(subscription=expression))
        refused = 0
        while refused + server.parked_pulls < 60:
            said = (await first.answer()).remark or ""
            assert "filter_memory=20000 is nearly reached, this connection has" in said
            refused += 1
        before = server.parked_pulls
        assert before > 15
        await second.ask(11, pull_header(subscription=expression))
        while server.parked_pulls == before:
            await asyncio.sleep(0)


@shared
async def popped() -> None:
    async with broker(popped=40) as (server, *peers):
        await peers[1].send()
        await flooded(
            "popped", 40, (peers[0], peers[1]),
            lambda n: (200050, pop_header(consumer_group=f"group-{n}", max_msg_nums=1)),
        )  # fmt: skip
        assert server.popped < 40


@of_groups
async def popped_of_a_group() -> None:
    async with broker(popped=40) as (server, first, second):
        for _ in range(50):
            await second.send()
        for _ in range(30):
            peer = await Peer.connect(server.port)
            assert (await peer.call(200050, pop_header(max_msg_nums=1))).code == 0
            await peer.close()
        one = 200050, pop_header(max_msg_nums=1)
        assert await flood("popped", 40, second, lambda n: one, owner="the group") < 10
        assert (await first.call(200050, pop_header(consumer_group="another", max_msg_nums=1))).code == 0


@shared
async def transactions() -> None:
    async with broker(transactions=40) as (server, *peers):
        half = 310, send_header(properties=HALF), b"half"
        await flooded("transactions", 40, (peers[0], peers[1]), lambda n: half)
        assert len(server.transactions) < 40


@shared
async def timers() -> None:
    async with broker(timers=40) as (_, *peers):
        timer = 310, send_header(properties=TIMER), b"x"
        await flooded("timers", 40, (peers[0], peers[1]), lambda n: timer)


def test_every_limit_has_a_share_or_a_reason_for_none() -> None:
    assert sorted([*SHARED, *ALONE]) == sorted(each.name for each in fields(Limits))
    assert {*OF_GROUPS} <= {*SHARED} and all(ALONE.values())


@pytest.mark.parametrize("name", SHARED)
async def test_a_connection_that_floods_leaves_something_to_others(name: str) -> None:
    await SHARED[name]()


@pytest.mark.parametrize("name", OF_GROUPS)
async def test_a_group_that_floods_leaves_something_to_others(name: str) -> None:
    await OF_GROUPS[name]()


@pytest.mark.parametrize("more", [1, 7])
@pytest.mark.parametrize("most", [1, 3, 10, 40, 500_000])
def test_nobody_is_refused_before_nine_tenths_and_something_is_left_behind_each(most: int, more: int) -> None:
    used = 0
    for _ in range(3):
        holds: shares.Holds = {}
        before, refused = used, None
        while refused is None:
            refused = shares.refusal("x", most, used, "it", holds, more=more)
            if refused is None:
                used += more
                shares.take(holds, "x", more)
                assert used <= most
        assert isinstance(refused, Refusal)
        assert used + more > shares.begins(most)  # nobody needs to look before
        left = most - before
        assert used < most or left < 10 * more
        assert used - before > 0.8 * left - more  # and it got most of what was there
    assert shares.refusal("x", most, used, "the broker's own", None, more=max(0, most - used)) is None


def test_what_was_made_and_is_gone_is_not_taken_for_more_than_there_is() -> None:
    """A connection that makes and deletes topics for months may go on."""
    assert shares.refusal("topics", 100, 80, "it", {"topics": 1_000_000}) is None
    assert shares.refusal("topics", 100, 90, "it", {"topics": 1_000_000}) is not None
    assert shares.refusal("topics", 100, 90, "it", {"topics": 50}) is None


async def test_legitimate_uses_of_one_connection_are_far_from_a_share() -> None:
    """400,000 offsets that are restored, ten thousands of topics, a million timers: lines in whole."""
    most = Limits()
    for limit, use in (("offsets", 400_000), ("topics", 40_000), ("timers", 1_000_000), ("locks", 150_000)):
        assert shares.refusal(limit, getattr(most, limit), use, "it", {limit: use}, of_group=use) is None


async def test_a_list_of_topics_counts_whole() -> None:
    async with broker(topics=30) as (server, first, _):
        before = len(server.topics)
        for count, code in ((31 - before, 2), (5, 0)):
            items = [{"topicName": f"l{n}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for n in range(count)]
            answer = await first.call(18, None, encode_body({"topicConfigList": items}, 0))
            assert answer.code == code and ("topics=30" in (answer.remark or "")) == (code == 2)
        assert len(server.topics) == before + 5


async def test_what_goes_leaves_its_connection() -> None:
    async with broker() as (server, first, _):
        (connection, *_) = server.server.connections
        await first.send()
        (one,) = messages(await first.call(200050, pop_header(queue_id=0)))
        changed = await first.call(200053, one.change(60_000))
        assert changed.code == 0 and connection.holds["popped"] == 1 == server.popped
        await first.call(310, send_header(properties=HALF), b"half")
        assert connection.holds["transactions"] == 1
        record = server.store.read_record(next(iter(server.transactions._open.values())).physical)
        assert record is not None
        view = RecordView(record, 0, len(record))
        end = EndTransactionRequestHeader("p", view.queue_offset, view.physical_offset, 12, False, "", None)
        assert (await first.call(37, end)).code == 0
        assert connection.holds["transactions"] == 0
        await first.call(310, send_header(properties="TIMER_DELAY_MS\x011\x02"), b"x")
        while connection.holds["timers"]:  # it is delivered at once
            await asyncio.sleep(0)
        await first.call(310, send_header(properties=TIMER), b"x")
        assert connection.holds["timers"] == 1 and server._parts is not None
        holders = server._parts.timers._schedule._holders
        assert list(holders.values()) == [connection.holds]
        await first.close()
        while holders:
            await asyncio.sleep(0)
