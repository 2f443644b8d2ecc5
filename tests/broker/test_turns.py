"""Tables of hundreds of thousands of entries are saved in turns: few entries in each, and nothing that was there when a
save began is missing. So are long answers made, and what name servers are told."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiorocket.broker import Broker
from aiorocket.broker.core import long_poll, sql92
from aiorocket.broker.core.group_configs import GroupConfig, GroupConfigs
from aiorocket.broker.core.groups import Subscription
from aiorocket.broker.core.locks import LockTable, QueueKey
from aiorocket.broker.core.offsets import ConsumerOffsets
from aiorocket.broker.core.pops import QueueKey as PopKey
from aiorocket.broker.core.record_filter import FILTER_WORK, RecordFilter, Selected
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.topics import Topic
from aiorocket.broker.core.turns import A_SHORT_TURN, A_TURN, whole
from aiorocket.broker.handlers import calls as calls_module
from aiorocket.broker.lags import lags
from aiorocket.broker.parts import _ENDED_AS_ONE
from aiorocket.broker.pop_looks import _A_QUEUE, A_SLICE, POP_WORK, PopLooks
from aiorocket.broker.state import BrokerState, LargeTable
from aiorocket.config import BrokerConfig, NameServerConfig, RateLimits
from aiorocket.errors import NotConnectedError, RequestTimeoutError
from aiorocket.nameserver import NameServer
from aiorocket.remoting.server import _ENDED_AT_ONCE
from aiorocket.runtime.env import memory_env
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.storage import Snapshot
from aiorocket_protocol import (
    JSON,
    MSGPACK,
    REVIVE_GROUP,
    CloneGroupOffsetRequestHeader,
    ConsumerData,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetTopicStatsInfoRequestHeader,
    HeartbeatData,
    LockBatchBody,
    MessageQueue,
    NotificationRequestHeader,
    PeekMessageRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    RemotingCommand,
    ResetOffsetRequestHeader,
    SubscriptionData,
    TopicConfig,
    UnregisterClientRequestHeader,
    decode_plain,
    encode_body,
    pop_retry_topic,
    revive_topic,
)
from tests.broker.peer import Peer, pull_header, running, span
from tests.broker.test_pop import pop_header

MANY = 10 * A_TURN


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted here holds also of a machine on which no request takes long."""
    monkeypatch.setattr("aiorocket.remoting.connection._TURN_TIME", inf)


def offsets(a_topic: int) -> ConsumerOffsets:
    table = ConsumerOffsets()
    for number in range(MANY):
        table.commit("g", f"t{number // a_topic}", number % a_topic, number)
    return table


def locks(a_group: int) -> LockTable:
    table = LockTable(60.0, 30.0)
    for first in range(0, MANY, a_group):
        queues = [QueueKey(f"t{number}", "b", 0) for number in range(first, first + a_group)]
        table.lock(f"g{first}", "client", queues, 0.0)
    table.recorded(table.counter, 0.0)
    return table


@pytest.mark.parametrize(("make", "most"), [(offsets, 1), (offsets, 8), (locks, 50), (locks, MANY)])
def test_few_entries_are_read_in_a_turn(make: Callable[[int], LargeTable], most: int) -> None:
    table = make(most)
    turns = sum(1 for _ in table.in_turns())
    assert turns + 1 >= MANY // (A_TURN + 50)
    assert whole(table.in_turns()) == table.to_dict()


async def test_a_large_table_is_saved_in_turns_and_small_ones_meanwhile() -> None:
    disk = MemoryDisk()
    table, small = offsets(8), ConsumerOffsets()
    state = BrokerState(disk, "d", {"offsets": table, "small": small})
    await state.load()
    table.version += 1
    small.commit("g", "t", 0, 1)
    first = state.save("offsets")
    await state.save("small")
    assert not first.done()
    table.commit("g", "t0", 0, 4711)  # into the same file or the next
    second = state.save("offsets")
    begun = state._saved["offsets"].running
    third = state.save("offsets")
    assert state._saved["offsets"].running is begun
    await asyncio.gather(first, second, third)
    saved = Snapshot(disk, "d/offsets").load()
    assert saved == table.to_dict() and saved["offsetTable"]["t0@g"]["0"] == 4711
    await state.save_all()


async def test_a_save_does_not_overtake_one_that_takes_turns() -> None:
    """Also when the table has become small meanwhile."""
    disk = MemoryDisk()
    table = offsets(8)
    state = BrokerState(disk, "d", {"offsets": table})
    await state.load()
    table.version += 1
    first = state.save("offsets")
    await asyncio.sleep(0)
    table.delete_group("g")
    table.commit("g2", "t", 0, 1)
    await asyncio.gather(first, state.save("offsets"))
    assert Snapshot(disk, "d/offsets").load() == {"offsetTable": {"t@g2": {"0": 1}}}


def test_what_others_are_made_from_is_read_before_them() -> None:
    """Pops of a group are made again from its records behind an offset; of what was acknowledged meanwhile that offset
    must not be later than the group's."""
    table = offsets(8)
    table.commit("records", "log", 0, 1)
    table.read_first = "records", "log"
    reading = table.in_turns()
    next(reading)
    table.commit("records", "log", 0, 2)
    table.commit("g", f"t{MANY // 8 - 1}", 0, 10**9)
    saved: dict[str, Any] = whole(reading)
    assert saved["offsetTable"]["log@records"] == {"0": 1}
    assert saved["offsetTable"][f"t{MANY // 8 - 1}@g"]["0"] == 10**9


async def turns_of(broker: Broker, code: int, header: Any = None) -> tuple[int, RemotingCommand]:
    (connection,) = broker.server.connections
    serving: Any = broker.server.processors.handler(code)(connection, RemotingCommand.request(code, header))
    task, turns = asyncio.ensure_future(serving), 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return turns, task.result()


async def test_answers_of_whole_tables_are_made_in_turns(broker: Broker, peer: Peer) -> None:
    """Of 50,000 topics code 21 took half a second, of as many offsets 317 minutes."""
    await peer.create_topic("wide", queues=2_000)
    for number in range(3_000):
        broker.topics.put(Topic(f"t{number}", 4, 4))
        broker.configs.ensure(f"g{number}")
        broker.offsets.commit(f"g{number}", f"t{number}", 0, 5)
        broker.offsets.commit("all", f"t{number}", 0, 5)
        broker.offsets.commit("g0", "wide", number, 5)
        broker.offsets.commit(f"g{number}", "t0", 0, 5)
    for code, header, least, member, entries in (
        (21, None, 3, "topicConfigTable", 3_000),
        (201, None, 8, "subscriptionGroupTable", 3_000),
        (43, None, 2, "offsetTable", 9_000),
        (202, GetTopicStatsInfoRequestHeader("wide"), 30, "offsetTable", 2_000),
        (208, GetConsumeStatsRequestHeader("all", ""), 180, "offsetTable", 12_000),
        (303, QueryConsumeTimeSpanRequestHeader("wide", "g"), 30, "consumeTimeSpanSet", 2_000),
        (317, GetConsumeStatsInBrokerHeader(False), 330, "consumeStatsList", 3_000),
        (300, QueryTopicConsumeByWhoRequestHeader("t0"), 6, "groupList", 3_001),
        (343, QueryTopicsByConsumerRequestHeader("all"), 6, "topicList", 3_000),
    ):
        turns, answer = await turns_of(broker, code, header)
        assert answer.code == 0 and turns > least, code
        plain = decode_plain(answer.body, 0)
        assert len(plain[member]) >= entries, code


async def test_of_many_short_entries_few_are_written_in_a_turn(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 KiB of a turn were 5,000 offsets, and those of one group in 65,536 queues one entry: turns of 140 ms."""
    await peer.create_topic("wide", queues=4_000)
    for number in range(4_000):
        broker.topics.put(Topic(f"t{number}", 1, 1))
        broker.offsets.commit("g", f"t{number}", 0, 5)
        broker.offsets.commit("g", "wide", number, 5)
    written: list[int] = []

    def noted(value: Any, kind: int) -> bytes:
        written[-1] += sum(1 + len(each) if isinstance(each, dict) else 1 for each in value.values())
        return encode_body(value, kind)

    monkeypatch.setattr("aiorocket_protocol.long_bodies.encode_body", noted)
    for code, header, entries in (
        (43, None, 8_001),
        (202, GetTopicStatsInfoRequestHeader("wide"), 4_000),
        (208, GetConsumeStatsRequestHeader("g", ""), 8_000),
        (308, QueryCorrectionOffsetHeader("g", "wide"), 4_000),
    ):
        (connection,) = broker.server.connections
        serving: Any = broker.server.processors.handler(code)(connection, RemotingCommand.request(code, header))
        task = asyncio.ensure_future(serving)
        while not task.done():
            written.append(0)
            await asyncio.sleep(0)
        assert task.result().code == 0 and sum(written) >= entries and max(written) <= 5 * 500 + 100, code
        written.clear()


@pytest.mark.parametrize(("code", "name"), [(18, "topicConfigList"), (225, "groupConfigList")])
async def test_lists_of_topics_and_groups_are_read_and_kept_in_turns(
    code: int, name: str, broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30,000 groups, which fit into a body, took 157 ms; several lists have their turns one after the other."""
    await peer.pull()
    read, kept = [0], [0]

    def counted(count: list[int], call: Any) -> Any:
        def counting(*args: Any, **more: Any) -> Any:
            count[-1] += 1
            return call(*args, **more)

        return counting

    monkeypatch.setattr(TopicConfig, "from_plain", counted(read, TopicConfig.from_plain))
    monkeypatch.setattr(GroupConfig, "from_dict", counted(read, GroupConfig.from_dict))
    monkeypatch.setattr(GroupConfigs, "put", counted(kept, GroupConfigs.put))
    plain = {18: lambda name: TopicConfig(name, 4, 4).to_plain(), 225: lambda name: {"groupName": name}}[code]
    serving: list[Any] = []
    for one in range(3):
        command = RemotingCommand.request(code)
        command.body = encode_body({name: [plain(f"{code}-{one}-{number}") for number in range(1_200)]}, JSON)
        connection: Any = SimpleNamespace(data={}, holds={}, drain=lambda: asyncio.sleep(0), closed=False)
        handler: Any = broker.server.processors.handler(code)
        serving.append(asyncio.ensure_future(handler(connection, command)))
    while not all(task.done() for task in serving):
        await asyncio.sleep(0)
        read.append(0)
        kept.append(0)
    assert all(task.result().code == 0 for task in serving)
    assert sum(read) == 3_600 and max(read) <= 500 and max(kept) <= 500


async def test_a_long_heartbeat_is_registered_in_turns(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """14 filters of 16 KiB, which fit into a quarter of a body, took 114 ms to be compiled."""
    compiled = [0]

    def counted(self: Subscription, data: SubscriptionData) -> None:
        compiled[-1] += len(data.sub_string)
        made(self, data)

    made = Subscription.__init__
    monkeypatch.setattr(Subscription, "__init__", counted)
    sql = " OR ".join(f"a{number} = 'x'" for number in range(1_000))
    groups = [
        ConsumerData(f"g{number}", subscriptions=[SubscriptionData(f"T{n}", sql, expression_type="SQL92") for n in one])
        for number, one in enumerate((range(10), range(5), range(5)))
    ]
    await peer.pull()
    (connection,) = broker.server.connections
    tasks = []
    for client in ("one", "two"):
        command = RemotingCommand.request(34, body=encode_body(HeartbeatData(client, ["p"], groups), JSON))
        serving: Any = broker.server.processors.handler(34)(connection, command)
        tasks.append(asyncio.ensure_future(serving))
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        compiled.append(0)
    assert [task.result().code for task in tasks] == [0, 0] and sum(map(bool, compiled)) >= 20
    assert max(compiled) <= len(sql) and sum(compiled) == 20 * len(sql)
    assert [len(group.members) for group in broker.consumers] == [1] * 3  # of one connection


async def test_of_a_heartbeat_with_three_long_filters_one_is_compiled_in_a_turn(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took 58 ms: it was registered at once up to 64 KiB."""
    compiled, made = [0], Subscription.__init__

    def counted(self: Subscription, data: SubscriptionData) -> None:
        compiled[-1] += len(data.sub_string) > 10_000
        made(self, data)

    monkeypatch.setattr(Subscription, "__init__", counted)
    sql = " OR ".join(f"a{number} = 'x'" for number in range(1_000))
    wanted = [SubscriptionData(f"T{number}", sql, expression_type="SQL92") for number in range(3)]
    body = encode_body(HeartbeatData("c", [], [ConsumerData("g", subscriptions=wanted)]), JSON)
    await peer.pull()
    (connection,) = broker.server.connections
    serving: Any = broker.server.processors.handler(34)(connection, RemotingCommand.request(34, body=body))
    task = asyncio.ensure_future(serving)
    while not task.done():
        await asyncio.sleep(0)
        compiled.append(0)
    assert task.result().code == 0 and sum(compiled) == 3 and max(compiled) == 1 and len(body) < 64 << 10


async def test_a_long_heartbeat_is_read_when_it_is_its_turn(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred of 740 KB that waited, each read already, took 220 MiB."""
    read: list[int] = []

    def noted(cls: type[HeartbeatData], plain: Any) -> HeartbeatData:
        read.append(len(broker.consumers._by_age))
        return from_plain(plain)

    from_plain = HeartbeatData.from_plain
    monkeypatch.setattr(HeartbeatData, "from_plain", classmethod(noted))
    await peer.pull()
    (connection,) = broker.server.connections
    commands = []
    for client in ("a", "b"):
        groups = [ConsumerData(f"{client}{n}", subscriptions=[SubscriptionData("T", "*")]) for n in range(1_000)]
        body = encode_body(HeartbeatData(client, [], groups), JSON)
        commands.append(RemotingCommand.request(34, body=body))
    serving: Any = broker.server.processors.handler(34)
    tasks = [asyncio.ensure_future(serving(connection, command)) for command in commands]
    assert not read
    await asyncio.gather(*tasks)
    assert read == [0, 1_000] and not any(command.body for command in commands)


@pytest.mark.parametrize("tags", [0, 1_000])
async def test_of_a_long_heartbeat_few_subscriptions_are_read_in_a_turn(
    tags: int, broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13,000 took 0.26 s, half a million tags of them 0.3."""
    read = [0]

    def noted(cls: type[SubscriptionData], plain: Any) -> SubscriptionData:
        read[-1] += 20 + len(plain.get("codeSet", ()))
        return from_plain(plain)

    from_plain = SubscriptionData.from_plain
    monkeypatch.setattr(SubscriptionData, "from_plain", classmethod(noted))
    codes = {"codeSet": [1] * tags} if tags else {"subString": "a" * 20}
    wanted = [{"topic": f"t{number}", **codes} for number in range(100 if tags else 900)]
    groups: list[dict[str, Any]] = [{"groupName": f"g{number}", "subscriptionDataSet": wanted} for number in range(3)]
    groups.append({"groupName": "wide", "subscriptionDataSet": [{"topic": "t"}] * 30_000})
    groups.append({"groupName": "tags", "subscriptionDataSet": [{"topic": "t", "codeSet": [1] * 100_000}]})
    body = encode_body({"clientID": "c", "consumerDataSet": groups, "producerDataSet": [{"groupName": "p"}]}, JSON)
    await peer.pull()
    (connection,) = broker.server.connections
    serving: Any = broker.server.processors.handler(34)(connection, RemotingCommand.request(34, body=body))
    task = asyncio.ensure_future(serving)
    while not task.done():
        await asyncio.sleep(0)
        read.append(0)
    assert task.result().code and "wide" in task.result().remark
    assert {group.name for group in broker.consumers} == {"g0", "g1", "g2"} and list(broker.producers)
    assert [len(group.subscriptions) for group in broker.consumers] == [len(wanted)] * 3
    assert sum(read) > 30_000 and max(read) <= 500 * 20


async def test_a_long_heartbeat_of_one_who_went_while_it_was_read_registers_nobody(broker: Broker) -> None:
    other = await Peer.connect(broker.port)
    await other.pull()
    (connection,) = broker.server.connections
    groups = [{"groupName": f"g{number}", "subscriptionDataSet": [{"topic": "T"}] * 10} for number in range(1_000)]
    body = encode_body({"clientID": "one", "consumerDataSet": groups, "producerDataSet": [{"groupName": "p"}]}, JSON)
    command = RemotingCommand.request(34, body=body)
    serving: Any = broker.server.processors.handler(34)(connection, command)
    task = asyncio.ensure_future(serving)
    while command.body:  # it is being read
        await asyncio.sleep(0)
    connection.abort("it is gone")
    await task
    assert not list(broker.consumers) and not list(broker.producers)
    await other.close()


async def test_who_leaves_during_its_long_heartbeat_has_left(broker: Broker, peer: Peer) -> None:
    await peer.pull()
    (connection,) = broker.server.connections
    groups = [ConsumerData(f"g{number}", subscriptions=[SubscriptionData("T", "*")]) for number in range(1_000)]
    heartbeat = RemotingCommand.request(34, body=encode_body(HeartbeatData("one", ["p"], groups), JSON))
    serve = broker.server.processors.handler
    serving: Any = serve(34)(connection, heartbeat)
    task = asyncio.ensure_future(serving)
    while not list(broker.consumers):
        await asyncio.sleep(0)
    assert broker.consumers.get("g999") is None
    leaving: Any = serve(35)(connection, RemotingCommand.request(35, UnregisterClientRequestHeader("one", "p", "g999")))
    assert (await leaving).code == 0 and task.done()
    assert broker.consumers.get("g999") is None and not list(broker.producers)
    assert broker.consumers.get("g998") is not None


async def test_who_leaves_in_the_turn_of_its_long_heartbeat_has_left(broker: Broker, peer: Peer) -> None:
    """It was answered before, and registered again."""
    groups = [ConsumerData(f"g{number}", subscriptions=[SubscriptionData("T", "*")]) for number in range(1_000)]
    peer.writer.write(RemotingCommand.request(34, body=encode_body(HeartbeatData("one", [], groups), JSON)))
    peer.writer.write(RemotingCommand.request(35, UnregisterClientRequestHeader("one", None, "g7")))
    assert [(await peer.answer()).code for _ in range(2)] == [0, 0]
    assert broker.consumers.get("g7") is None and broker.consumers.get("g8") is not None


async def test_a_short_heartbeat_does_not_overtake_the_long_one_before_it(broker: Broker, peer: Peer) -> None:
    """What the long one wanted was wanted again. Nobody else's waits for it."""
    groups = [ConsumerData(f"g{number}", subscriptions=[SubscriptionData("T", "*")]) for number in range(900)]
    before = ConsumerData("g", subscriptions=[SubscriptionData("T", "*"), SubscriptionData("U", "*")])
    after = ConsumerData("g", subscriptions=[SubscriptionData("T", "*")])
    await peer.pull()
    other = await Peer.connect(broker.port)
    await other.pull()
    connection, another = broker.server.connections
    serve: Any = broker.server.processors.handler(34)

    def asked(wanted: list[ConsumerData]) -> RemotingCommand:
        return RemotingCommand.request(34, body=encode_body(HeartbeatData("one", [], wanted), JSON))

    served = [asyncio.ensure_future(serve(connection, asked(wanted))) for wanted in ([*groups, before], [after])]
    assert type(serve(another, asked([]))) is RemotingCommand
    assert {answer.code for answer in await asyncio.gather(*served)} == {0}
    live = broker.consumers.get("g")
    assert live is not None and list(live.subscriptions) == ["T"] and broker.consumers.get("g899") is not None
    await other.close()


async def test_a_long_heartbeat_of_one_who_has_gone_registers_nobody_more(broker: Broker) -> None:
    other = await Peer.connect(broker.port)
    await other.pull()
    (connection,) = broker.server.connections
    groups = [ConsumerData(f"g{number}", subscriptions=[SubscriptionData("T", "*")]) for number in range(1_000)]
    command = RemotingCommand.request(34, body=encode_body(HeartbeatData("one", ["p"], groups), JSON))
    serving: Any = broker.server.processors.handler(34)(connection, command)
    task = asyncio.ensure_future(serving)
    while not list(broker.consumers):
        await asyncio.sleep(0)
    assert not task.done()
    await other.close()
    while not connection.closed:
        await asyncio.sleep(0)
    await task
    while list(broker.consumers) or list(broker.producers):
        await asyncio.sleep(0)


async def test_a_reset_of_many_queues_and_of_those_who_wait_is_done_in_turns(broker: Broker, peer: Peer) -> None:
    await peer.create_topic("wide", queues=2_000)
    broker.configs.ensure("g")
    await peer.send(topic="wide")
    for _ in range(200):
        await peer.ask(11, pull_header("wide", offset=1))
    while broker.parked_pulls < 200:
        await asyncio.sleep(0)
    assert broker.parts is not None
    answered: list[int] = []
    work: Any = broker.server.processors.handler(222)
    (connection,) = broker.server.connections
    command = RemotingCommand.request(222, ResetOffsetRequestHeader("wide", "g", 0, True))
    task, turns = asyncio.ensure_future(work(connection, command)), 0
    while not task.done() or broker.parked_pulls:
        turns += 1
        answered.append(broker.parked_pulls)
        await asyncio.sleep(0)
    assert turns > 2 * 30 and max(before - after for before, after in itertools.pairwise(answered)) <= 16
    assert len(decode_plain(task.result().body, 0)["offsetTable"]) == 2_000
    assert {(await peer.answer()).code for _ in range(200)} == {21}


async def test_who_waits_for_a_deleted_topic_is_told_in_turns(broker: Broker, peer: Peer) -> None:
    await peer.create_topic("wide", queues=2)
    broker.configs.ensure("g")
    for number in range(200):
        await peer.ask(11, pull_header("wide", number % 2))
    while broker.parked_pulls < 200:
        await asyncio.sleep(0)
    delete: Any = broker.server.processors.handler(215)
    (connection,) = broker.server.connections
    command = RemotingCommand.request(215, DeleteTopicRequestHeader("wide"))
    task, parked = asyncio.ensure_future(delete(connection, command)), [200]
    while parked[-1] or not task.done():
        await asyncio.sleep(0)
        parked.append(broker.parked_pulls)
    assert max(before - after for before, after in itertools.pairwise(parked)) <= 16
    told = [await peer.answer() for _ in range(200)]
    assert {(answer.code, answer.remark) for answer in told} == {(17, "topic[wide] was deleted")}


async def test_locks_of_many_queues_are_one_in_a_turn_and_given_back_behind_it(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight requests of 10,000 queues held the loop for 1.1 s, and one for 58 ms to be read, for 59 to be answered."""
    await peer.create_topic("wide", queues=2_000)
    (connection,) = broker.server.connections
    work = [0]

    def counted(call: Any) -> Any:
        def counting(*args: Any) -> Any:
            work[-1] += 1
            return call(*args)

        return counting

    monkeypatch.setattr(MessageQueue, "from_plain", counted(MessageQueue.from_plain))
    monkeypatch.setattr("aiorocket_protocol.long_bodies.encode_body", counted(encode_body))
    queues = [MessageQueue("wide", broker.config.name, number) for number in range(2_000)]
    serving = []
    for code, some in ((41, queues), (41, queues), (42, queues[:5]), (41, queues[5:10])):
        command = RemotingCommand.request(code, body=encode_body(LockBatchBody("g", "c", some), JSON))
        answer: Any = broker.server.processors.handler(code)(connection, command)
        serving.append(asyncio.ensure_future(answer))
        await asyncio.sleep(0)
        work.append(0)
    while not all(task.done() for task in serving):
        await asyncio.sleep(0)
        work.append(0)
    assert sum(work) >= 8_000 and max(work) <= 2 * 500 + 20  # some are read, of another some answered
    locked = [len(decode_plain(task.result().body, JSON)["lockOKMQSet"]) for task in (*serving[:2], serving[3])]
    assert locked[2] == 5 and len(list(broker.locks.holders(asyncio.get_running_loop().time()))) == 1_995
    assert {task.result().code for task in serving} == {0}


async def test_of_many_queues_few_are_locked_in_a_turn(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first 10,000 of a group that held 190,000 took 62 ms."""
    await peer.create_topic("wide", queues=2_000)
    locked, lock = [0], LockTable.lock

    def counted(table: LockTable, group: str, client: str, queues: list[QueueKey], *now: Any) -> bool:
        locked[-1] += len(queues)
        return lock(table, group, client, queues, *now)

    monkeypatch.setattr(LockTable, "lock", counted)
    (connection,) = broker.server.connections
    queues = [MessageQueue("wide", broker.config.name, number) for number in range(1_990)]
    body = encode_body(LockBatchBody("g", "c", [*queues, MessageQueue("none", broker.config.name, 0)]), JSON)
    serving: Any = broker.server.processors.handler(41)(connection, RemotingCommand.request(41, body=body))
    task = asyncio.ensure_future(serving)
    while not task.done():
        await asyncio.sleep(0)
        locked.append(0)
    assert len(decode_plain(task.result().body, JSON)["lockOKMQSet"]) == sum(locked) == 1_990 and max(locked) <= 500


async def test_a_short_unlock_does_not_overtake_the_long_lock_of_its_turn(broker: Broker, peer: Peer) -> None:
    """What it gave back was locked behind it, until the lease was over; and a lock went before what it was to renew."""
    await peer.create_topic("wide", queues=2_000)
    (connection,) = broker.server.connections
    queues = [MessageQueue("wide", broker.config.name, number) for number in range(2_000)]
    held = []
    for requests in (((41, queues), (42, queues[:5])), ((42, queues), (41, queues[:5]))):
        tasks = []
        for code, some in requests:
            command = RemotingCommand.request(code, body=encode_body(LockBatchBody("g", "c", some), JSON))
            answer: Any = broker.server.processors.handler(code)(connection, command)
            if not isinstance(answer, RemotingCommand):
                tasks.append(asyncio.ensure_future(answer))
        await asyncio.gather(*tasks)
        held.append(len(list(broker.locks.holders(asyncio.get_running_loop().time()))))
    assert held == [1_995, 5]


async def test_a_topic_goes_with_all_its_retries_in_one_look_at_each_table(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group that popped it may have made one, and one look at 500,000 offsets takes 20 ms."""
    await peer.create_topic("gone")
    names = ["gone", *(pop_retry_topic(f"g{number}", "gone") for number in range(20))]
    for name in names:
        broker.topics.put(Topic(name, 1, 1))
        broker.offsets.commit("g", name, 0, 5)
    looks = []

    def counted(table: ConsumerOffsets, keys: list[tuple[str, str]]) -> None:
        looks.append(len(keys))
        delete(table, keys)

    delete = ConsumerOffsets._delete
    monkeypatch.setattr(ConsumerOffsets, "_delete", counted)
    assert (await peer.call(215, DeleteTopicRequestHeader("gone"))).code == 0
    assert looks == [len(names)] and not any(name in broker.topics for name in names)


async def test_thousands_of_retries_go_some_in_a_turn_and_their_topic_with_the_last(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 took 155 ms, and with messages for each a look at all queues of the store."""
    await peer.create_topic("gone")
    await peer.send(topic="gone")
    for number in range(2 * A_SHORT_TURN + 10):
        broker.topics.put(Topic(name := pop_retry_topic(f"g{number}", "gone"), 1, 1))
        broker.offsets.commit(f"g{number}", name, 0, 5)
    forgotten: list[tuple[str, ...]] = []

    def delete(*names: str, behind: asyncio.Future[None]) -> asyncio.Future[None]:
        assert not behind.done()
        forgotten.append(names)
        return forget(*names, behind=behind)

    forget = broker.store.delete_topics
    monkeypatch.setattr(broker.store, "delete_topics", delete)
    (connection,) = broker.server.connections
    command = RemotingCommand.request(215, DeleteTopicRequestHeader("gone"))
    deleting: Any = broker.server.processors.handler(215)(connection, command)
    task, topics = asyncio.ensure_future(deleting), [len(broker.topics)]
    while not task.done():
        await asyncio.sleep(0)
        topics.append(len(broker.topics))
    assert task.result().code == 0
    assert [before - after for before, after in itertools.pairwise(topics) if after != before] == [500, 500, 10, 1]
    assert [len(names) for names in forgotten] == [500, 500, 10, 1] and forgotten[-1] == ("gone",)
    assert not broker.offsets.topics("g0") and broker.store.max_offset("gone", 0) == 0


@pytest.mark.parametrize("what", ["topic", "topic nobody waits for", "group"])
async def test_what_is_out_of_what_is_deleted_goes_in_turns_and_offsets_are_saved_behind_it(
    what: str, broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500,000 messages took 188 ms. Offsets say where a start begins to read who has what: saved before that, they had
    it find a topic's pops for the next one of its name where the store had refused to say that they are forgotten."""
    await peer.create_topic("gone")
    await peer.send(topic="gone")
    table, saved = broker.parts.revival.table, list[asyncio.Future[None]]()
    for number in range(MANY):
        key = PopKey("gone", "g", number % 4)
        pop = table.take(key, [number], number + 1, pop_time=1, invisible_ms=60_000, now=1.0)
        table.recorded(pop, table.end)
    broker.offsets.commit("g", "gone", 0, 0)

    def delete(*names: str, behind: asyncio.Future[None]) -> asyncio.Future[None]:
        saved.append(behind)
        return forget(*names, behind=behind)

    forget = broker.store.delete_topics
    monkeypatch.setattr(broker.store, "delete_topics", delete)
    (connection,) = broker.server.connections
    command = (
        RemotingCommand.request(207, DeleteSubscriptionGroupRequestHeader("g", clean_offset=True))
        if what == "group"
        else RemotingCommand.request(215, DeleteTopicRequestHeader("gone"))
    )
    deleting: Any = broker.server.processors.handler(command.code)(connection, command)
    task, out = asyncio.ensure_future(deleting), [table.count]
    while not task.done() or not all(one.done() for one in saved):
        await asyncio.sleep(0)
        out.append(table.count)
        assert not out[-1] or (not (task.done() and what == "group") and not any(one.done() for one in saved))
        if what == "topic nobody waits for" and len(out) == 3:
            task.cancel()
    assert max(before - after for before, after in itertools.pairwise(out)) <= A_TURN and out[-1] == 0
    assert not table.out(PopKey("gone", "g", 0)) and table.begin() == table.end
    assert broker.offsets.query(REVIVE_GROUP, revive_topic("DefaultCluster"), 0) == table.end
    assert task.cancelled() if what == "topic nobody waits for" else task.result().code == 0


async def test_offsets_are_cloned_in_turns_and_none_of_what_is_deleted_meanwhile(broker: Broker, peer: Peer) -> None:
    """500,000 of one group took 280 ms."""
    await peer.pull()
    for name in ("gone", "wide"):
        broker.topics.put(Topic(name, MANY, MANY))
        for number in range(MANY):
            broker.offsets.commit("g", name, number, number)
    (connection,) = broker.server.connections
    clone: Any = broker.server.processors.handler(314)
    command = RemotingCommand.request(314, CloneGroupOffsetRequestHeader("g", "h"))
    task, cloned = asyncio.ensure_future(clone(connection, command)), [len(broker.offsets)]
    while not task.done():
        await asyncio.sleep(0)
        cloned.append(len(broker.offsets))
        if broker.offsets.queues("h", "gone") and "gone" in broker.topics:
            broker.topics.delete("gone")
            broker.offsets.delete_topics({"gone"})
    assert task.result().code == 0
    assert max(after - before for before, after in itertools.pairwise(cloned)) <= A_TURN
    assert not broker.offsets.queues("h", "gone") and broker.offsets.queues("h", "wide") == dict(
        zip(range(MANY), range(MANY), strict=True)
    )


@pytest.mark.parametrize("serialize_type", [JSON, MSGPACK])
async def test_of_one_group_with_many_topics_little_is_written_at_once(
    serialize_type: int, broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        broker.topics.put(Topic(f"t{number}", 8, 8))
        broker.offsets.commit("g", f"t{number}", 0, 5)
    broker.configs.ensure("g")
    await peer.pull()
    pieces: list[int] = []

    def noted(value: Any, kind: int) -> bytes:
        piece = encode_body(value, kind)
        pieces.append(len(piece))
        return piece

    monkeypatch.setattr("aiorocket_protocol.long_bodies.encode_body", noted)
    (connection,) = broker.server.connections
    command = RemotingCommand.request(317, GetConsumeStatsInBrokerHeader(False))
    command.serialize_type = serialize_type
    serving: Any = broker.server.processors.handler(317)(connection, command)
    plain = decode_plain((await serving).body, serialize_type)
    (topics,) = [each["g"] for each in plain["consumeStatsList"] if "g" in each]
    assert len(topics) == 100 and all(len(each["offsetTable"]) == 8 for each in topics)
    assert len(pieces) > 800 and max(pieces) < 500


async def test_an_answer_that_no_frame_holds_is_given_up_when_it_is_too_long(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What thousands of groups have in a wide topic was 2 GiB before that was seen, and 0.16 s to be given up."""
    for module in ("aiorocket.broker.handlers.statistics", "aiorocket_protocol.long_bodies"):
        monkeypatch.setattr(f"{module}.MAX_FRAME", 20_000)
    broker.topics.put(Topic("wide", 100, 100))
    for number in range(50):
        broker.configs.ensure(f"g{number}")
        broker.offsets.commit(f"g{number}", "wide", 0, 5)
    looked: list[int] = []

    def maximum(_topic: str, queue_id: int) -> int:
        looked.append(queue_id)
        return 0

    monkeypatch.setattr(broker.store, "max_offset", maximum)
    answer = await peer.call(317, GetConsumeStatsInBrokerHeader(False))
    assert answer.code == 1 and "larger than 20000 bytes" in (answer.remark or "")
    assert len(looked) <= 300


async def test_how_far_thousands_of_live_groups_are_is_looked_at_in_turns(broker: Broker) -> None:
    looked: list[int] = [0]

    class Live:
        name = "g"

        def without_offset(self, offsets: ConsumerOffsets) -> list[str]:
            looked[-1] += 1
            return ["%RETRY%g"]

    class Lives(list[Live]):
        def get(self, name: str) -> None: ...

    async def look() -> list[Any]:
        return [each async for each in lags(double, 10)]

    double: Any = SimpleNamespace(
        store=broker.store, configs=[], consumers=Lives([Live()] * 3_000), offsets=broker.offsets, topics=broker.topics
    )
    task = asyncio.ensure_future(look())
    while not task.done():
        looked.append(0)
        await asyncio.sleep(0)
    assert sum(looked) == 3_000 and max(looked) <= 512 and task.result() == []


@pytest.mark.parametrize("gone", ["topic", "group"])
async def test_what_is_deleted_while_it_is_reset_in_turns_leaves_no_offsets(
    gone: str, broker: Broker, peer: Peer
) -> None:
    """A new topic of its name begins at 0, and they would pass over its messages."""
    await peer.create_topic("wide", queues=2_000)
    broker.configs.ensure("g")
    await peer.send(topic="wide")
    reset: Any = broker.server.processors.handler(222)
    (connection,) = broker.server.connections
    command = RemotingCommand.request(222, ResetOffsetRequestHeader("wide", "g", -1, True))
    task, behind = (asyncio.ensure_future(reset(connection, command)) for _ in range(2))
    while len(broker.offsets.queues("g", "wide")) < 500:
        await asyncio.sleep(0)
    deletes = {"topic": {"topic": "wide"}, "group": {"groupName": "g", "cleanOffset": "true"}}[gone]
    assert (await peer.call(215 if gone == "topic" else 207, None, **deletes)).code == 0
    assert (await task).code == 1 and (await behind).code == (17 if gone == "topic" else 26)
    assert not broker.offsets.queues("g", "wide") and not broker.offsets.resets


async def test_of_more_topics_than_a_frame_holds_name_servers_are_told_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aiorocket.broker.registration.A_TURN", 100)
    env = memory_env()
    for flagged in (False, True):
        nameserver = NameServer(env, NameServerConfig(port=0))
        await nameserver.start()
        config = BrokerConfig(port=0, nameservers=(nameserver.address,))
        server = Broker(env, config)
        names = [f"{number:0127d}" for number in range(2_000)]
        for number, name in enumerate(names):
            server.topics.put(Topic(name, 4, 5, sys_flag=1 if flagged and not number % 2 else 0))
        await server.start()
        assert set(names) <= set(nameserver.routes.topics())
        route = nameserver.routes.topic_route(names[0])
        assert route is not None and route.queue_datas[0].write_queue_nums == 5
        assert len(whole(nameserver.routes.flagged(1))) == (1_000 if flagged else 0)
        assert not server.parts or not server.parts.registration.failures
        await server.close()
        await nameserver.close()
    await env.disk.close()


async def test_topics_become_ordered_in_turns() -> None:
    table = Tables.of(BrokerConfig()).topics
    for number in range(2_000):
        table.put(Topic(f"t{number}", 4, 4))
    making = table.make_orderly([f"t{number}" for number in range(3_000)])
    assert len(list(making)) >= 5
    assert table.get("t1999").order and not whole(table.make_orderly(["t1", "unknown"]))


@pytest.mark.parametrize("what", ["pulls", "pops", "held"])
async def test_a_stop_answers_all_that_wait_some_in_a_turn(what: str) -> None:
    """200,000 pulls held the loop for 2.4 s."""
    rates = RateLimits(group_messages=1 if what == "held" else 0)
    async with running(rates=rates) as server:
        parts, peer = server.parts, await Peer.connect(server.port)
        await peer.create_topic("T", 10)
        assert parts is not None
        if what == "held":
            parts.rates._messages.spend("g", 10_000, asyncio.get_running_loop().time())
        (connection,) = server.server.connections
        polls = {"pulls": parts.pulls.polls, "pops": parts.pops.polls, "held": parts.rates.held}[what]
        for number in range(2_500):
            if what == "pops":
                header = pop_header(consumer_group=f"g{number % 10}", poll_time=60_000)
                peer.writer.write(RemotingCommand.request(200050, header))
            else:
                peer.writer.write(RemotingCommand.request(11, pull_header("T", number % 10)))
        async with asyncio.timeout(60):
            while polls.count < 2_500:
                await asyncio.sleep(0)
        stop, waiting = asyncio.ensure_future(server.close()), [2_500]
        while not stop.done():
            await asyncio.sleep(0)
            waiting.append(connection.in_flight)
        answered = [before - after for before, after in itertools.pairwise(waiting)]
        assert sum(answered) == 2_500 and max(answered) <= long_poll.A_TURN
        codes = {(await peer.answer()).code for _ in range(2_500)}
        assert codes == {{"pulls": 19, "pops": 210, "held": 20}[what]}
        await peer.close()


@pytest.mark.parametrize("serialize_type", [JSON, MSGPACK])
async def test_members_of_large_groups_are_listed_in_turns(
    serialize_type: int, broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 96,000 producers 328 took 0.7 s, and all of 16,000 consumers ask for 38 when one came, 17 ms each."""
    await peer.pull()
    names = [f"c{number:04}" for number in range(2_000)]
    for number, name in enumerate(names):
        member: Any = number
        broker.consumers.register("g", connection=member, client_id=name, now=0.0)
        broker.producers.register("p", connection=member, client_id=name, now=0.0)
        broker.producers.register(name, connection=member, client_id=name, now=0.0)
    (connection,) = broker.server.connections
    written: list[int] = []

    def noted(value: Any, kind: int) -> bytes:
        written[-1] += isinstance(value, list)
        return encode_body(value, kind)

    monkeypatch.setattr("aiorocket_protocol.long_bodies.encode_body", noted)
    for code, header, member, least in (
        (203, GetConsumerConnectionListRequestHeader("g"), "connectionSet", 2_000),
        (204, GetProducerConnectionListRequestHeader("p"), "connectionSet", 2_000),
        (328, None, "data", 4_000),
        (38, GetConsumerListByGroupRequestHeader("g"), "consumerIdList", 2_000),
        (38, GetConsumerListByGroupRequestHeader("g"), "consumerIdList", 0),
    ):
        command = RemotingCommand.request(code, header)
        command.serialize_type = serialize_type
        serving: Any = broker.server.processors.handler(code)(connection, command)
        task = asyncio.ensure_future(serving)
        written[:] = [0]
        while not task.done():
            await asyncio.sleep(0)
            written.append(0)
        plain = decode_plain(task.result().body, serialize_type)[member]
        assert sum(written) == least and max(written) <= 1_000, code
        shown = plain["p"] if code == 328 else plain
        found = shown if code == 38 else [one["clientId"] for one in shown]
        assert found == names and (code != 328 or len(plain) == 2_001)
    assert broker.consumers.unregister("g", 1_999)  # type: ignore[arg-type] # any key will do
    answer = await peer.call(38, GetConsumerListByGroupRequestHeader("g"))
    assert decode_plain(answer.body, answer.serialize_type)["consumerIdList"] == names[:-1]


class Member:
    """A connection that notes in which turn it is asked or told, and answers at once, later, or not at all."""

    serialize_type, peer = JSON, "peer"

    def __init__(self, number: int, asked: list[int], late: list[asyncio.Future[RemotingCommand]]) -> None:
        self._number, self._asked, self._late = number, asked, late

    def request(self, command: RemotingCommand, timeout: float) -> asyncio.Future[RemotingCommand]:
        self._asked[-1] += 1
        if self._number == 0:
            raise NotConnectedError("it is closed")
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        body = encode_body({"messageQueueTable": {}, "consumerTable": {}}, JSON)
        if self._number == 1:
            answer.set_exception(RequestTimeoutError("it is silent"))
        elif self._number == 2:
            answer.set_result(RemotingCommand.response(1, remark="it will not"))
        elif self._number % 2:
            self._late.append(answer)
        else:
            answer.set_result(RemotingCommand.response(body=body))
        return answer

    def oneway(self, command: RemotingCommand) -> None:
        self._asked[-1] += 1
        if self._number == 0:
            raise NotConnectedError("it is closed")


@pytest.mark.parametrize("serialize_type", [JSON, MSGPACK])
async def test_all_members_of_a_large_group_are_asked_in_turns(
    serialize_type: int, broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """223 of a group of thousands took 247 ms."""
    await peer.pull()
    asked, said = [0], [0]
    late: list[asyncio.Future[RemotingCommand]] = []
    for number in range(3_000):
        member: Any = Member(number, asked, late)
        broker.consumers.register("g", connection=member, client_id=f"c{number}", now=0.0, version=400)
    plain_body = calls_module.plain_body

    def noted(answer: RemotingCommand, **more: Any) -> dict[str, Any]:
        said[-1] += 1
        return plain_body(answer, **more)

    monkeypatch.setattr(calls_module, "plain_body", noted)
    (connection,) = broker.server.connections
    command = RemotingCommand.request(223, None, ext={"topic": "T", "group": "g"})
    command.serialize_type = serialize_type
    serving: Any = broker.server.processors.handler(223)(connection, command)
    task = asyncio.ensure_future(serving)
    while not task.done():
        await asyncio.sleep(0)
        if sum(asked) == 3_000:
            for answer in late:
                answer.set_result(RemotingCommand.response(body=encode_body({"messageQueueTable": {}}, JSON)))
            late.clear()
        asked.append(0)
        said.append(0)
    answer, plain = task.result(), decode_plain(task.result().body, serialize_type)
    assert plain["messageQueueTable"] == {} and list(plain["consumerTable"]) == [f"c{n}" for n in range(3, 3_000)]
    remark = answer.remark or ""
    assert remark.startswith("without c0: it is closed; c1: it is silent; c2: ") and remark.endswith("it will not")
    assert sum(said) == 2_997 and max(said) <= 512 and max(asked) <= 512


async def test_all_members_of_a_large_group_are_told_of_a_reset_in_turns() -> None:
    async with running(server_side_reset_offset=False) as broker:
        peer = await Peer.connect(broker.port)
        await peer.create_topic("T", 2)
        told = [0]
        for number in range(3_000):
            member: Any = Member(number, told, [])
            broker.consumers.register("g", connection=member, client_id=f"c{number}", now=0.0, version=400)
        for queue_id in range(2):
            broker.offsets.commit("g", "T", queue_id, 0)
        (connection,) = broker.server.connections
        command = RemotingCommand.request(222, ResetOffsetRequestHeader("T", "g", -1, True))
        serving: Any = broker.server.processors.handler(222)(connection, command)
        task = asyncio.ensure_future(serving)
        while not task.done():
            await asyncio.sleep(0)
            told.append(0)
        assert task.result().code == 0 and sum(told) == 3_000 and max(told) <= 512
        await peer.close()


LONG = " OR ".join(f"a{number} = 'x'" for number in range(200))


def watch_filters(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What filters look at in each turn of the loop."""
    loop, select, turns = asyncio.get_running_loop(), RecordFilter.select, [0]

    def watched(self: RecordFilter, data: bytes, most: int, size: int, work: int) -> Selected:
        selected = select(self, data, most, size)
        if not turns[-1]:
            loop.call_soon(turns.append, 0)
        turns[-1] += selected.work
        return selected

    monkeypatch.setattr(RecordFilter, "select", watched)
    return turns


async def test_what_the_filters_of_many_pulls_look_at_in_a_turn_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = watch_filters(monkeypatch)
    async with running() as server:
        peer = await Peer.connect(server.port)
        await peer.create_topic("T")
        await peer.send_batch(*[b"x"] * 500)
        for _ in range(40):
            peer.writer.write(RemotingCommand.request(11, pull_header(subscription=LONG, expression_type="SQL92")))
        ends = [span(await peer.answer()).next_begin_offset for _ in range(40)]
        # Who comes when a turn's share is spent is to ask again, from where it was.
        assert ends[0] > 0 and set(ends) == {0, ends[0]}
        assert FILTER_WORK / 2 < max(turns) <= 2 * FILTER_WORK
        await peer.close()


@pytest.mark.parametrize("expression", [LONG, "a = 'x'"])
async def test_what_the_filters_of_many_pops_look_at_in_a_turn_is_bounded(
    monkeypatch: pytest.MonkeyPatch, expression: str
) -> None:
    turns = watch_filters(monkeypatch)
    async with running() as server:
        peer = await Peer.connect(server.port)
        await peer.create_topic("T", 4)
        for queue_id in range(4):
            await peer.send_batch(*[b"x"] * 100, queue_id=queue_id)
        many = 4 if expression == LONG else 40
        for number in range(many):
            header = pop_header(consumer_group=f"g{number}", exp=expression, exp_type="SQL92")
            peer.writer.write(RemotingCommand.request(200050, header))
        assert {(await peer.answer()).code for _ in range(many)} == {210}
        assert sum(turns) > 8 * POP_WORK and max(turns) <= 2 * (POP_WORK + A_SLICE)
        # Each has looked at all.
        assert {server.offsets.query(f"g{number}", "T", 3) for number in range(many)} == {100}
        await peer.close()


@pytest.mark.parametrize("code", [200050, 200052, 200054])
async def test_of_many_queues_few_are_looked_at_in_a_turn(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    loop, start, turns = asyncio.get_running_loop(), PopLooks._start, [0]

    def watched(self: PopLooks, *args: Any, **changes: Any) -> int:
        if not turns[-1]:
            loop.call_soon(turns.append, 0)
        turns[-1] += 1
        return start(self, *args, **changes)

    monkeypatch.setattr(PopLooks, "_start", watched)
    async with running() as server:
        peer = await Peer.connect(server.port)
        await peer.create_topic("T", 1_500)
        header = {
            200050: pop_header(),
            200052: PeekMessageRequestHeader("g", "T", -1, 32),
            200054: NotificationRequestHeader("g", "T", -1, 0, 0),
        }[code]
        for _ in range(3):
            peer.writer.write(RemotingCommand.request(code, header))
        assert [(await peer.answer()).code for _ in range(3)] == [{200050: 210, 200052: 19, 200054: 0}[code]] * 3
        assert sum(turns) == 4_500 and max(turns) <= 2 * POP_WORK / _A_QUEUE
        await peer.close()


async def test_of_looks_that_a_stop_ends_few_end_in_a_turn() -> None:
    """Thousands may be under way, and each is answered."""
    async with running() as server:
        parts, peer = server.parts, await Peer.connect(server.port)
        await peer.create_topic("T", 4_096)
        assert parts is not None
        pops = parts.pops
        for number in range(1_000):
            header = pop_header(consumer_group=f"g{number % 3}", poll_time=60_000)
            peer.writer.write(RemotingCommand.request(200050, header))
        async with asyncio.timeout(60):
            while not server.server.connections or server.server.connections[0].in_flight < 1_000:
                await asyncio.sleep(0)
        assert len(pops._rounds) > 900
        stop, left = asyncio.ensure_future(server.close()), [len(pops._rounds)]
        while not stop.done():
            await asyncio.sleep(0)
            left.append(len(pops._rounds))
        assert left[-1] == 0 and max(before - after for before, after in itertools.pairwise(left)) <= 300
        codes = [(await peer.answer()).code for _ in range(1_000)]
        assert codes == [210] * 1_000
        await peer.close()


async def test_of_pops_that_wait_to_be_compiled_few_are_answered_in_a_turn_of_a_stop(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They got no answer."""
    parser, compiled, answered = sql92._Parser, list[str](), [0]

    def watched(text: str) -> sql92._Parser:
        compiled.append(text)
        return parser(text)

    def noted(command: RemotingCommand, answer: RemotingCommand) -> None:
        assert answer.code == 210 and answer.remark == "NO_MESSAGE_IN_QUEUE"
        answered[-1] += 1

    monkeypatch.setattr(sql92, "_Parser", watched)
    broker.topics.put(Topic("T", 4, 4))
    assert broker.parts is not None
    pops, connection = broker.parts.pops, SimpleNamespace(closed=False, holds={}, reply=noted)
    for number in range(400):
        header = pop_header(exp=f"a = {number}{' OR b>1' * 990}", exp_type="SQL92", poll_time=60_000)
        pops.pop(cast(Any, connection), RemotingCommand.request(200050, header))
    before = len(compiled)
    assert before <= 2 and not sum(answered)
    stop = asyncio.ensure_future(pops.close())
    while not stop.done():
        await asyncio.sleep(0)
        answered.append(0)
    assert sum(answered) == 400 and max(answered) <= 300 and len(compiled) <= before + 2


@pytest.mark.parametrize("code", [11, 46, 200050])
async def test_few_filters_are_compiled_in_a_turn(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """One of 4,000 words takes 25 ms, and 18 of them come in a turn of one connection."""
    loop, parser, turns = asyncio.get_running_loop(), sql92._Parser, [0]

    def watched(text: str) -> sql92._Parser:
        if not turns[-1]:
            loop.call_soon(turns.append, 0)
        turns[-1] += 1
        return parser(text)

    monkeypatch.setattr(sql92, "_Parser", watched)
    async with running() as server:
        peer = await Peer.connect(server.port)
        await peer.create_topic("T")
        for number in range(12):
            sql = f"a = {number}" + " OR b>1" * 990
            if code == 11:
                request = RemotingCommand.request(
                    11, pull_header(sys_flag=4, subscription=sql, expression_type="SQL92")
                )
            elif code == 200050:
                request = RemotingCommand.request(200050, pop_header(exp=sql, exp_type="SQL92"))
            else:
                body = {"subscriptionData": {"topic": "T", "subString": sql, "expressionType": "SQL92"}}
                request = RemotingCommand.request(46, body=encode_body(body, JSON))
            peer.writer.write(request)
        codes = {(await peer.answer()).code for _ in range(12)}
        assert codes == {11: {19, 20}, 46: {0}, 200050: {210}}[code]
        assert max(turns) <= 2 and (code == 11 or sum(turns) == 12)
        await peer.close()


async def test_of_many_who_leave_together_few_members_go_in_a_turn(broker: Broker) -> None:
    """100 connections in 1,000 groups each held the loop for 0.5 s."""
    groups = [ConsumerData(f"g{number}", subscriptions=[SubscriptionData("T", "*")]) for number in range(150)]
    peers = [await Peer.connect(broker.port) for _ in range(8)]
    for number, one in enumerate(peers):
        assert (await one.call(34, None, encode_body(HeartbeatData(f"c{number}", [], groups), JSON))).code == 0
    for connection in broker.server.connections:
        transport: Any = connection._transport
        transport.abort()
    members = [len(broker.consumers._by_age)]
    while members[-1]:
        await asyncio.sleep(0)
        members.append(len(broker.consumers._by_age))
    gone = [before - after for before, after in itertools.pairwise(members)]
    assert sum(gone) == 1_200 and max(gone) <= _ENDED_AS_ONE * _ENDED_AT_ONCE + len(groups)
    for one in peers:
        await one.close()


async def test_of_many_members_that_are_silent_few_are_forgotten_in_a_turn() -> None:
    table = Tables.of(BrokerConfig()).consumers
    for number in range(2 * A_TURN + 1):
        connection: Any = number
        table.register(f"g{number}", connection=connection, client_id="c", now=0.0)
    assert [len(table.expire(1_000.0)) for _ in range(4)] == [A_TURN, A_TURN, 1, 0]
    assert table.next_deadline() is None
