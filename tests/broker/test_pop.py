"""POP through a connection and in virtual time: what goes out, comes back, and what a kill leaves of it."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from math import inf
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from aiorocket.broker import Broker, pop_looks
from aiorocket.broker.core import pops
from aiorocket.broker.handlers.pop import PopHandlers
from aiorocket.config import BrokerConfig, StoreConfig
from aiorocket.runtime.env import real_env
from aiorocket.storage.housekeeping import Housekeeping
from aiorocket.storage.results import PutResult, PutStatus, StoreBusyError
from aiorocket.storage.snapshots import Snapshot
from aiorocket.storage.store import MessageStore
from aiorocket.testing import SimDisk, Simulation, simulate
from aiorocket.testing.sim import SimClock
from aiorocket_protocol import (
    AckMessageRequestHeader,
    BatchAck,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopHandle,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    RecordView,
    RemotingCommand,
    UpdateConsumerOffsetRequestHeader,
    decode_properties,
    encode_batch,
    encode_body,
    encode_properties,
    read_offset_lists,
    read_offsets,
    retry_mark,
    set_of_offsets,
    split_records,
)
from tests.broker.peer import Peer, heartbeat, records_read, running, send_header
from tests.broker.test_sim import SimPeer, config, kill, started


def pop_header(topic: str = "T", queue_id: int = -1, **changes: Any) -> PopMessageRequestHeader:
    header = PopMessageRequestHeader("g", topic, queue_id, 32, 60_000, 0, 0, 0, "TAG", "*", False)
    return header._replace(**changes)


class Popped:
    """A message and its handle, made as Java's client makes it."""

    def __init__(self, view: RecordView, header: PopMessageResponseHeader) -> None:
        self.view = view
        self.body = view.body
        self.topic = view.topic
        mark, queue = retry_mark(view.topic), str(view.queue_id)
        assert view.queue_offset in read_offset_lists(header.msg_offset_info)[mark, queue]
        start = read_offsets(header.start_offset_info)[mark, queue]
        self.handle = PopHandle(
            start, header.pop_time, header.invisible_time, header.revive_qid, mark, "broker-a",
            view.queue_id, view.queue_offset,
        )  # fmt: skip

    @property
    def ack(self) -> AckMessageRequestHeader:
        return AckMessageRequestHeader("g", self.topic, self.view.queue_id, self.handle.to_text(), self.handle.offset)

    def change(self, ms: int) -> ChangeInvisibleTimeRequestHeader:
        return ChangeInvisibleTimeRequestHeader(*self.ack, ms)


def popped(answer: RemotingCommand) -> list[Popped]:
    if answer.code != 0:
        assert answer.code == 210, answer
        return []
    header = answer.read(PopMessageResponseHeader)
    return [Popped(view, header) for view in split_records(answer.body)]


def bodies(found: list[Popped]) -> list[bytes]:
    return sorted(one.body for one in found)


async def test_a_pop_takes_from_all_queues_and_an_acknowledged_message_is_done(peer: Peer) -> None:
    for queue_id in (0, 0, 1, 2):
        await peer.send(b"%d" % queue_id, queue_id=queue_id)
    found = popped(await peer.call(200050, pop_header()))
    assert bodies(found) == [b"0", b"0", b"1", b"2"]
    assert popped(await peer.call(200050, pop_header())) == []
    assert await peer.committed("g", "T", 0) == 0
    for one in found:
        assert (await peer.call(200051, one.ack)).code == 0
    assert [await peer.committed("g", "T", queue_id) for queue_id in range(3)] == [2, 1, 1]
    assert (await peer.call(200051, found[0].ack)).code == 0  # again: it was in time


async def test_what_pops_take_counts_as_delivered(peer: Peer, broker: Broker) -> None:
    for queue_id in (0, 0, 1):
        await peer.send(queue_id=queue_id)
    await peer.call(200050, pop_header(max_msg_nums=2))
    await peer.call(200050, pop_header())
    assert broker.counters.delivered["T", "g"] == 3 and broker.counters.gets_found == 2


async def test_one_queue_few_messages_and_the_rest(peer: Peer) -> None:
    for number in range(5):
        await peer.send(b"%d" % number, queue_id=1)
    answer = await peer.call(200050, pop_header(queue_id=1, max_msg_nums=2))
    assert bodies(popped(answer)) == [b"0", b"1"]
    header = answer.read(PopMessageResponseHeader)
    assert (header.rest_num, header.start_offset_info, header.msg_offset_info) == (3, "0 1 0", "0 1 0,1")
    assert popped(await peer.call(200050, pop_header(queue_id=0))) == []


async def test_tags_and_sql_select(peer: Peer) -> None:
    for number in range(4):
        await peer.send(b"%d" % number, {"TAGS": "ab"[number % 2], "n": str(number)})
    assert bodies(popped(await peer.call(200050, pop_header(exp="b")))) == [b"1", b"3"]
    sql = pop_header(consumer_group="h", exp="n > 1", exp_type="SQL92")
    assert bodies(popped(await peer.call(200050, sql))) == [b"2", b"3"]
    assert (await peer.call(200050, pop_header(exp="n >", exp_type="SQL92"))).code == 23


async def test_where_a_new_group_begins(peer: Peer) -> None:
    for number in range(3):
        await peer.send(b"%d" % number)
    assert bodies(popped(await peer.call(200050, pop_header(consumer_group="h")))) == [b"0", b"1", b"2"]
    # Young, so nothing is left out although it begins at the end.
    assert bodies(popped(await peer.call(200050, pop_header(init_mode=1)))) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"max_msg_nums": 33}, 29),
        ({"max_msg_nums": 0}, 29),
        ({"invisible_time": 0}, 29),
        ({"invisible_time": 13 * 3600 * 1000}, 29),
        ({"topic": "Nowhere"}, 17),
        ({"queue_id": 99}, 29),
        ({"consumer_group": "g" * 248, "topic": "T"}, 29),
    ],
)
async def test_what_cannot_be_popped(peer: Peer, changes: dict[str, Any], code: int) -> None:
    await peer.send()
    assert (await peer.call(200050, pop_header(**changes))).code == code


async def test_what_cannot_be_acknowledged(peer: Peer) -> None:
    await peer.send()
    (one,) = popped(await peer.call(200050, pop_header()))
    assert (await peer.call(200051, one.ack._replace(topic="Nowhere"))).code == 17
    assert (await peer.call(200051, one.ack._replace(queue_id=99))).code == 13
    assert (await peer.call(200051, one.ack._replace(offset=99))).code == 208
    assert (await peer.call(200051, one.ack._replace(extra_info="what"))).code == 1
    assert (await peer.call(200053, one.change(-1))).code == 29
    assert (await peer.call(200151, body=b"{}")).code == 208
    assert (await peer.call(200151, body=encode_body({"acks": [{}] * 1025}, 0))).code == 29
    assert (await peer.call(200051, one.ack)).code == 0
    assert (await peer.call(200053, one.change(1000))).code == 208


async def test_a_batch_of_acknowledgements(peer: Peer) -> None:
    for number in range(20):
        await peer.send(b"%d" % number, queue_id=number % 2)
    found = popped(await peer.call(200050, pop_header()))
    acks = [
        BatchAck(
            "g", "T", "0", 0, queue_id, 0, found[0].handle.pop_time, 60_000, set_of_offsets(0, range(9))
        ).to_plain()
        for queue_id in range(2)
    ]
    assert (await peer.call(200151, body=encode_body({"acks": acks, "brokerName": "broker-a"}, 0))).code == 0
    assert [await peer.committed("g", "T", queue_id) for queue_id in range(2)] == [9, 9]


async def test_a_batch_names_so_many_messages_however_few_are_out(peer: Peer) -> None:
    """Each of 1,024 acks was compared with each message that is out."""
    for number in range(3):
        await peer.send(b"%d" % number)
    found = popped(await peer.call(200050, pop_header()))

    def batch(*offsets: int) -> bytes:
        wanted = sorted(offsets)
        bits = set_of_offsets(wanted[0], wanted)
        ack = BatchAck("g", "T", "0", wanted[0], 0, 0, found[0].handle.pop_time, 60_000, bits).to_plain()
        return encode_body({"acks": [ack] * 2, "brokerName": "broker-a"}, 0)

    answer = await peer.call(200151, body=batch(*range(4097)))
    assert answer.code == 29 and "more than 8192 messages" in (answer.remark or "")
    assert (await peer.call(200151, body=batch(-5, 1, 400_000))).code == 0
    assert (await peer.call(200151, body=batch(*range(-4000, 1)))).code == 0
    assert await peer.committed("g", "T", 0) == 2


async def test_a_batch_that_names_a_message_twice_or_too_late_is_answered(peer: Peer, broker: Broker) -> None:
    await peer.send(b"x")
    await peer.send(b"y")
    one, two = popped(await peer.call(200050, pop_header()))

    def batch(at: int) -> bytes:
        ack = BatchAck("g", "T", "0", 0, 0, 0, one.handle.pop_time, 60_000, set_of_offsets(0, [at])).to_plain()
        return encode_body({"acks": [ack, ack], "brokerName": "broker-a"}, 0)

    assert (await asyncio.wait_for(peer.call(200151, body=batch(0)), 30)).code == 0
    assert broker._parts is not None
    (being_revived,) = broker._parts.revival.table.take_due(float("inf"), 1)
    assert being_revived[1] == [two.handle.offset]
    assert (await asyncio.wait_for(peer.call(200151, body=batch(1)), 30)).code == 0
    broker._parts.revival.table.give_back(being_revived[0], None)


async def test_an_attempt_may_have_any_name(peer: Peer) -> None:
    await peer.send(b"x")
    text = '{"code":200050,"opaque":7,"extFields":{"consumerGroup":"g","topic":"T","queueId":"0","maxMsgNums":"1",'
    text += '"invisibleTime":"60000","pollTime":"0","bornTime":"0","initMode":"0","attemptId":"\\ud800"}}'
    header = text.encode()
    frame = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    peer.writer._stream.write(frame)
    assert len(popped(await asyncio.wait_for(peer.answer(), 30))) == 1


async def test_a_pop_of_no_topic_makes_no_group(peer: Peer, broker: Broker) -> None:
    for code, header in ((200050, pop_header("Unknown")), (200055, PollingInfoRequestHeader("g", "Unknown", 0))):
        assert (await peer.call(code, header)).code == 17
    assert broker.configs.get("g") is None


async def test_how_many_wait_is_said_of_what_could_be_popped(peer: Peer) -> None:
    await peer.create_topic("T")
    for group, topic, queue_id, code in (
        ("g", "T", -1, 0),
        ("g", "T", 0, 0),
        ("g", "Unknown", 0, 17),
        ("g", "T", 99, 29),
        ("no group", "T", 0, 26),
    ):
        assert (await peer.call(200055, PollingInfoRequestHeader(group, topic, queue_id))).code == code, (group, topic)


async def test_a_parked_pop_is_answered_when_a_message_arrives_the_oldest_first(peer: Peer, broker: Broker) -> None:
    await peer.send()
    (one,) = popped(await peer.call(200050, pop_header()))
    await peer.call(200051, one.ack)
    others = [await Peer.connect(broker.port) for _ in range(3)]
    for other, queue_id, waiting in zip(others, (-1, 2, -1), (1, 1, 2), strict=True):
        await other.ask(200050, pop_header(queue_id=queue_id, poll_time=10_000))
        found = -1
        while found != waiting:
            answer = await peer.call(200055, PollingInfoRequestHeader("g", "T", queue_id))
            found = answer.read(PollingInfoResponseHeader).polling_num
    await peer.send(b"first", queue_id=0)
    assert bodies(popped(await others[0].answer())) == [b"first"]
    await peer.send(b"second", queue_id=2)
    assert bodies(popped(await others[1].answer())) == [b"second"]
    await others[0].ask(200054, NotificationRequestHeader("g", "T", -1, 10_000, 0))
    await peer.send(b"third", queue_id=2)
    assert bodies(popped(await others[2].answer())) == [b"third"]
    await others[0].close()
    assert (await peer.call(200050, pop_header(poll_time=1))).code == 210
    for other in others[1:]:
        await other.close()


def few_queues_a_turn(broker: Broker, queues: int) -> PopHandlers:
    """Of which all looks together look at so many in a turn of the loop."""
    assert broker.parts is not None
    pops = broker.parts.pops
    pops._rounds._most = pops._rounds._slice = queues * pop_looks._A_QUEUE
    return pops


async def test_groups_that_wait_for_one_message_have_their_turns(peer: Peer, broker: Broker) -> None:
    """3,000 groups that waited for one message held the loop for 0.2 s when it came."""
    polls, sender = few_queues_a_turn(broker, 16).polls, await Peer.connect(broker.port)
    await sender.create_topic("T")
    for number in range(60):
        await peer.ask(200050, pop_header(consumer_group=f"g{number}", poll_time=60_000))
    while polls.count < 60:
        await asyncio.sleep(0)
    left = [60]
    await sender.ask(310, send_header(), b"news")
    while left[-1]:
        await asyncio.sleep(0)
        left.append(polls.count)
    assert max(before - after for before, after in itertools.pairwise(left)) <= 8
    assert [split_records((await peer.answer()).body)[0].body for _ in range(60)] == [b"news"] * 60
    await sender.close()


async def test_few_groups_that_wait_are_looked_for_in_a_turn(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 that waited for a topic held the loop for 141 ms, with each message that came."""
    pops, wake, woken = few_queues_a_turn(broker, 16), PopHandlers._wake, [0]

    def counted(self: PopHandlers, key: tuple[str, str], queue_id: int) -> None:
        woken[-1] += 1
        wake(self, key, queue_id)

    monkeypatch.setattr(PopHandlers, "_wake", counted)
    await peer.create_topic("T", 2)
    gone = await Peer.connect(broker.port)
    for number in range(200):
        header = pop_header(consumer_group=f"g{number}", queue_id=number % 2, poll_time=60_000)
        await (gone if number in (150, 151) else peer).ask(200050, header)
    while pops.polls.count < 200:
        await asyncio.sleep(0)
    sender = await Peer.connect(broker.port)

    async def send() -> None:
        for queue_id in range(2):
            assert (await sender.send(b"news", queue_id=queue_id)).code == 0

    sending = asyncio.ensure_future(send())
    while not woken[-1]:  # they are told of the first one
        await asyncio.sleep(0)
    broker.server.connections[1].abort("it is gone")
    left = [pops.polls.count]
    while left[-1]:
        await asyncio.sleep(0)
        woken.append(0)
        left.append(pops.polls.count)
    await sending
    assert max(woken) <= 16 * 40 // 8
    assert max(before - after for before, after in itertools.pairwise(left)) <= 4  # two of them have gone
    # One that comes behind the news does not wait for those who are told.
    assert (await sender.call(200050, pop_header(consumer_group="late", queue_id=1))).code == 0
    assert [split_records((await peer.answer()).body)[0].body for _ in range(198)] == [b"news"] * 198
    await gone.close()
    await sender.close()


async def test_waiting_pops_that_find_nothing_do_not_keep_those_behind_them_from_their_turn(
    peer: Peer, broker: Broker
) -> None:
    """65 of them, each with a queue of its own, had the first 64 tried again and again, for as long as they waited."""
    pops, waiting = few_queues_a_turn(broker, 4), await Peer.connect(broker.port)
    await peer.create_topic("T", 12)
    for body in (b"0", b"1"):
        await peer.send(body, queue_id=11)
    ordered = {"order": True, "max_msg_nums": 1}
    (first,) = popped(await peer.call(200050, pop_header(queue_id=11, **ordered)))
    for queue_id in range(12):
        await waiting.ask(200050, pop_header(queue_id=queue_id, poll_time=60_000, **ordered))
    while pops.polls.count < 12:
        await asyncio.sleep(0)
    assert (await peer.call(200051, first.ack)).code == 0
    assert bodies(popped(await asyncio.wait_for(waiting.answer(), 60))) == [b"1"]
    for _ in range(10):
        await asyncio.sleep(0)
    assert not pops._news and pops.polls.count == 11
    await waiting.close()


async def under_way(peer: Peer, pops: PopHandlers, **changes: Any) -> None:
    """A pop of a topic of 500 queues, with a message in the last, is in the midst of them."""
    await peer.create_topic("T", 500)
    pops._looks._turn = 499  # the next begins with the first
    await peer.send(b"last", queue_id=499)
    await peer.ask(200050, pop_header(**changes))
    while not len(pops._rounds):
        await asyncio.sleep(0)


async def test_what_comes_behind_a_look_is_found(peer: Peer, broker: Broker) -> None:
    pops, sender = few_queues_a_turn(broker, 1), await Peer.connect(broker.port)
    await under_way(peer, pops, poll_time=60_000)
    while (table := broker.offsets.query("g", "T", 5)) is None:
        await asyncio.sleep(0)
    assert table == 0 and len(pops._rounds) == 1
    await sender.send(b"behind", queue_id=0)
    assert bodies(popped(await peer.answer())) == [b"last"]
    assert bodies(popped(await peer.call(200050, pop_header(poll_time=60_000)))) == [b"behind"]
    # And where nothing is found at first.
    await peer.ask(200050, pop_header(poll_time=60_000))
    while not len(pops._rounds):
        await asyncio.sleep(0)
    await sender.send(b"then", queue_id=pops._looks._turn % 500)
    assert bodies(popped(await asyncio.wait_for(peer.answer(), 5))) == [b"then"]
    await sender.close()


@pytest.mark.parametrize("parked", [False, True])
@pytest.mark.parametrize("end", ["deleted", "group", "closed", "lost", "expired"])
async def test_a_look_that_ends_in_its_midst_is_answered_once(
    peer: Peer, broker: Broker, end: str, parked: bool
) -> None:
    pops, other = few_queues_a_turn(broker, 1), await Peer.connect(broker.port)
    if parked:
        await peer.create_topic("T", 500)
        await peer.ask(200050, pop_header(poll_time=60_000))
        while not pops.polls.count or len(pops._rounds):
            await asyncio.sleep(0)
        pops.wake("T", "g")
        while not pops._looking:
            await asyncio.sleep(0)
    else:
        await under_way(peer, pops, poll_time=60_000 if end != "expired" else 0)
    if end == "deleted":
        assert (await other.call(215, DeleteTopicRequestHeader("T"))).code == 0
    elif end == "group":
        assert (await other.call(207, DeleteSubscriptionGroupRequestHeader("g", clean_offset=True))).code == 0
    elif end == "closed":
        await pops.close()
    elif end == "expired" and parked:
        pops._end(pops.polls.expire(inf))
    elif end == "lost":
        await peer.close()
    while len(pops._rounds):
        await asyncio.sleep(0)
    assert not pops._looking and not pops._news and not pops._weight
    await other.close()
    if end == "lost":
        assert not pops.polls.count
        return
    expected = {"deleted": 17, "closed": 210, "expired": 210 if parked else 0}
    if end in expected:
        assert (await peer.answer()).code == expected[end]
    if end == "group":
        assert [broker.offsets.query("g", "T", queue_id) for queue_id in (400, 499)] == [None, None]
    assert (await peer.call(28)).code == 0  # nothing else is answered


async def test_a_pop_of_any_queue_is_for_topics_of_some_thousand(peer: Peer) -> None:
    """The first of 65,536 queues held the loop for 0.6 s."""
    await peer.create_topic("large", 5000)
    answer = await peer.call(200050, pop_header("large"))
    assert answer.code == 29 and "has 5000 queues: a pop of any looks at 4096 at most" in (answer.remark or "")
    await peer.send(b"x", topic="large", queue_id=4999)
    assert (await peer.call(200050, pop_header("large", 4999))).code == 0
    await peer.create_topic("as-large-as-may-be", 4096)
    assert (await peer.call(200050, pop_header("as-large-as-may-be"))).code == 210


async def test_notifications_and_peeks_take_nothing(peer: Peer) -> None:
    await peer.send(b"x")
    peeked = await peer.call(200052, PeekMessageRequestHeader("g", "T", -1, 32))
    assert [view.body for view in split_records(peeked.body)] == [b"x"]
    answer = await peer.call(200054, NotificationRequestHeader("g", "T", -1, 0, 0))
    assert answer.read(NotificationResponseHeader).has_msg is True
    (one,) = popped(await peer.call(200050, pop_header()))
    answer = await peer.call(200054, NotificationRequestHeader("g", "T", -1, 0, 0))
    assert answer.read(NotificationResponseHeader).has_msg is False
    assert (await peer.call(200052, PeekMessageRequestHeader("g", "T", 0, 32))).code == 19
    assert (await peer.call(200052, PeekMessageRequestHeader("g", "T", 0, 33))).code == 29
    await peer.call(200051, one.ack)


async def test_a_deleted_topic_ends_what_waits_for_it(peer: Peer, broker: Broker) -> None:
    await peer.create_topic("D")
    other = await Peer.connect(broker.port)
    await other.ask(200050, pop_header("D", poll_time=10_000))
    while not broker._parts or not broker._parts.pops.polls.count:
        await asyncio.sleep(0)
    await peer.call(215, None, topic="D")
    assert (await other.answer()).code == 17
    await other.close()


async def test_a_deleted_topic_takes_along_what_groups_get_of_it_again(peer: Peer, broker: Broker) -> None:
    retries = "%RETRY%g+T", "%RETRY%g+aT"
    for topic in retries:
        broker.topics.ensure(topic, 1)
        broker.offsets.commit("g", topic, 0, 1)
    assert (await peer.call(215, DeleteTopicRequestHeader("T"))).code == 0
    assert [topic in broker.topics for topic in retries] == [False, True]
    assert [broker.offsets.query("g", topic, 0) for topic in retries] == [None, 1]


async def test_a_topic_is_deleted_behind_the_offsets_in_it(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets are saved in turns when there are thousands; a crash between the two would bring back theirs."""
    order: list[str] = []
    save, checkpoint = Snapshot.save, Housekeeping._checkpoint

    def saved(self: Snapshot, value: dict[str, Any]) -> None:
        save(self, value)
        order.append(self.path.rpartition("/")[2])

    async def without_it(self: Housekeeping, *, clean: bool) -> bool:
        order.append("deletion")
        return await checkpoint(self, clean=clean)

    await peer.create_topic("T", 1)
    await peer.send()
    for number in range(50_000):
        broker.offsets.commit("g", f"T{number}", 0, 1)
    broker.offsets.commit("g", "T", 0, 1)
    monkeypatch.setattr(Snapshot, "save", saved)
    monkeypatch.setattr(Housekeeping, "_checkpoint", without_it)
    assert (await peer.call(215, DeleteTopicRequestHeader("T"))).code == 0
    assert order.index("offsets") < order.index("deletion")


async def test_nobody_writes_records_but_the_broker(peer: Peer) -> None:
    assert (await peer.send(topic="rmq_sys_REVIVE_LOG_DefaultCluster")).code == 16


async def test_modes_and_assignments(peer: Peer) -> None:
    await peer.create_topic("T", 2)
    ask = {"clientId": "c", "consumerGroup": "g", "messageModel": "CLUSTERING", "strategyName": "AVG", "topic": "T"}
    assert (await peer.call(400, body=encode_body(ask, 0))).body == b"{}"
    await peer.call(34, body=heartbeat("c", "T"))
    answer = await peer.call(400, body=encode_body(ask, 0))
    queue = b'{"brokerName":"broker-a","queueId":%d,"topic":"T"}'
    assert answer.body == (
        b'{"messageQueueAssignments":[{"attachments":null,"messageQueue":%s,"mode":"PULL"},'
        b'{"attachments":null,"messageQueue":%s,"mode":"PULL"}]}' % (queue % 0, queue % 1)
    )
    mode = {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0, "topic": "T"}
    assert (await peer.call(401, body=encode_body(mode, 0))).code == 0
    assert b'"queueId":-1' in (await peer.call(400, body=encode_body(ask, 0))).body
    assert (await peer.call(401, body=encode_body({**mode, "topic": "Nowhere"}, 0))).code == 17
    assert (await peer.call(401, body=encode_body({**mode, "topic": "%RETRY%g"}, 0))).code == 16
    broadcast = {**ask, "messageModel": "BROADCASTING", "clientId": "x"}
    assert b'"queueId":1' in (await peer.call(400, body=encode_body(broadcast, 0))).body


# ---- virtual time


class Popper(SimPeer):
    async def pop(self, topic: str = "T", **changes: Any) -> list[Popped]:
        return popped(await self.call(200050, pop_header(topic, **changes)))

    async def again(self, sim: Simulation, broker: Broker) -> Popper:
        """A peer of the broker that was started in place of the last one."""
        await self.close()
        return Popper(sim, broker.address, "10.0.0.8")

    async def ack(self, one: Popped) -> int:
        return (await self.call(200051, one.ack)).code


async def killed(sim: Simulation, host: Any, disk: SimDisk, *, power: bool, **changes: Any) -> tuple[Any, Broker]:
    kill(host, disk, power=power)
    return await started(sim, sim.env(disk=disk), config(**changes))


def test_a_handle_whose_message_came_again_is_over_although_the_wall_clock_is_a_little_behind() -> None:
    """Messages come again by the loop's clock, which on a busy loop is some milliseconds ahead of the handle's."""

    async def main(sim: Simulation) -> None:
        env = sim.env()
        host, broker = await started(sim, env, config())
        peer = Popper(sim, broker.address)
        await peer.send(b"x")
        (one,) = await peer.pop(invisible_time=1000)
        await asyncio.sleep(1.1)
        (again,) = await peer.pop()
        assert isinstance(env.clock, SimClock)
        env.clock.skew_ms = -150
        assert await peer.ack(one) == 208
        assert await peer.ack(again) == 0
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_what_is_not_acknowledged_comes_again_and_at_last_to_the_dead_letters() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config(retry_max_times=2))
        peer = Popper(sim, broker.address)
        await peer.send(b"x", properties="KEYS\x01k\x02UNIQ_KEY\x01U\x02")
        for attempt in range(3):
            (one,) = await peer.pop(invisible_time=1000)
            assert (one.view.reconsume_times, one.topic) == (attempt, "%RETRY%g+T" if attempt else "T")
            assert await peer.pop() == []
            if attempt == 1:
                # Longer: then it comes when that is over.
                answer = await peer.call(200053, one.change(30_000))
                later = answer.read(ChangeInvisibleTimeResponseHeader)
                assert later.invisible_time == 30_000
                await asyncio.sleep(29.9)
                assert await peer.pop() == []
                assert await peer.ack(one) == 208
                await asyncio.sleep(0.2)
            else:
                await asyncio.sleep(1.1)
            assert await peer.ack(one) == 208
        assert await peer.pop() == []
        (dead,) = split_records((await peer.pull("%DLQ%g", suspend_timeout_millis=0)).body)
        assert dead.body == b"x" and dead.reconsume_times == 3
        properties = decode_properties(dead.raw_properties)
        assert properties["RETRY_TOPIC"] == "T" and properties["UNIQ_KEY"] == "U" and properties["KEYS"] == "k"
        assert broker.popped == 0 and broker.counters.dead_letters["g"] == 1
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_what_retention_takes_from_consumers_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main(sim: Simulation) -> None:
        store = StoreConfig(segment_size=64 * 1024, min_free=64 * 1024, file_reserved_time=1, tail_cache=0)
        host, broker = await started(sim, sim.env(), config(store=store))
        peer = Popper(sim, broker.address)
        for number in range(5):
            await peer.send(b"%d" % number)
        assert len(await peer.pop(invisible_time=3 * 3_600_000, max_msg_nums=3)) == 3
        for _ in range(4):
            await peer.send(bytes(20_000))
        await asyncio.sleep(3.1 * 3600)
        assert broker.popped == 0 and {one.body for one in await peer.pop()} == {bytes(20_000)}
        gone, overtaken = [each for each in caplog.messages if each.startswith("topic T queue 0")]
        assert "3 messages from offset 0 on are gone from the log while group g had popped them" in gone
        low = broker.store.min_offset("T", 0)
        assert f"retention has taken {low - 3} messages from offset 3 on that group g had not popped" in overtaken
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_in_order_what_retention_takes_blocks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It had gone out, and nobody asked for it while it could be had."""

    async def main(sim: Simulation) -> None:
        store = StoreConfig(segment_size=64 * 1024, min_free=64 * 1024, file_reserved_time=1, tail_cache=0)
        host, broker = await started(sim, sim.env(), config(store=store))
        peer = Popper(sim, broker.address)
        for _ in range(3):
            await peer.send(b"old")
        assert len(await peer.pop(order=True, max_msg_nums=2, invisible_time=10_000)) == 2
        for _ in range(4):
            await peer.send(bytes(20_000), queue_id=1)
        await asyncio.sleep(3.1 * 3600)
        await peer.send(b"new")
        assert broker.store.min_offset("T", 0) == 3 and broker.popped == 2
        for body in (b"new", b"newer"):
            (one,) = await peer.pop(order=True, queue_id=0)
            assert one.body == body and await peer.ack(one) == 0
            await peer.send(b"newer")
        assert "2 messages from offset 0 on are gone from the log while group g had popped them" in caplog.text
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_in_order_the_next_message_comes_after_the_one_before() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config(retry_max_times=2))
        peer = Popper(sim, broker.address)
        for number in range(3):
            await peer.send(b"%d" % number)
        ordered = {"order": True, "invisible_time": 1000, "max_msg_nums": 2}
        answer = await peer.call(200050, pop_header(attempt_id="a", **ordered))
        zero, one = popped(answer)
        header = answer.read(PopMessageResponseHeader)
        assert header.revive_qid == 999 and header.order_count_info == "0 0 0"
        assert await peer.pop(**ordered) == []
        assert bodies(await peer.pop(attempt_id="a", **ordered)) == [b"0", b"1"]  # the answer may have been lost
        zero, one = await peer.pop(attempt_id="a", **ordered)
        assert await peer.ack(one) == 0 and await peer.pop(**ordered) == []
        waiting = asyncio.create_task(peer.pop(poll_time=20_000, **ordered))
        before = sim.loop.time()
        (zero,) = await waiting
        assert zero.body == b"0" and 0.8 <= sim.loop.time() - before <= 1.2
        # Backoff: not before ten seconds, and nothing else meanwhile.
        await peer.call(200053, zero.change(10_000))
        await asyncio.sleep(9.5)
        assert await peer.pop(**ordered) == []
        await asyncio.sleep(0.6)
        answer = await peer.call(200050, pop_header(**ordered))
        assert answer.read(PopMessageResponseHeader).order_count_info == "0 qo0%0 2;0 0 2"
        await asyncio.sleep(1.1)  # twice again is enough: a dead letter, and the queue goes on
        (two,) = await peer.pop(**ordered)
        assert two.body == b"2" and await peer.ack(two) == 0
        (dead,) = split_records((await peer.pull("%DLQ%g", suspend_timeout_millis=0)).body)
        assert dead.body == b"0"
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_in_order_a_new_filter_does_not_stop_the_queue() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer = Popper(sim, broker.address)
        await peer.send(b"a", properties="TAGS\x01a\x02")
        assert bodies(await peer.pop(order=True, invisible_time=1000, exp="a")) == [b"a"]
        await peer.send(b"b", properties="TAGS\x01b\x02")
        await asyncio.sleep(2)
        (one,) = await peer.pop(order=True, exp="b")
        assert one.body == b"a" and await peer.ack(one) == 0
        assert bodies(await peer.pop(order=True, exp="b")) == [b"b"]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("later", [0, 30])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_popped_in_order_comes_again_to_a_group_that_pops_in_none(later: float, restarts: bool) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        host, broker = await started(sim, sim.env(disk=disk), config())
        peer = Popper(sim, broker.address)
        for number in range(3):
            await peer.send(b"%d" % number)
        first, *_ = await peer.pop(order=True, invisible_time=10_000)
        assert await peer.ack(first) == 0
        await asyncio.sleep(later)  # their time is over, or not
        if restarts:
            await host.run(broker.close())
            host, broker = await started(sim, sim.env(disk=disk), config())
            peer = await peer.again(sim, broker)
        assert await peer.pop() == []
        await asyncio.sleep(11)
        again = await peer.pop()
        assert bodies(again) == [b"1", b"2"] and broker.popped == 2
        for one in again:
            assert await peer.ack(one) == 0
        assert await peer.pop() == [] and broker.popped == 0
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
def test_a_kill_forgets_neither_what_is_out_nor_what_is_done(power: bool, in_order: bool) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        host, broker = await started(sim, sim.env(disk=disk), config())
        peer = Popper(sim, broker.address)
        for number in range(10):
            await peer.send(b"%d" % number, queue_id=number % 2)
        asked = {"invisible_time": 20_000, "order": in_order}
        found = await peer.pop(**asked)
        done, left = found[:7], found[7:]
        for one in done:
            assert await peer.ack(one) == 0
        host, broker = await killed(sim, host, disk, power=power)
        peer = await peer.again(sim, broker)
        assert broker.popped == 3
        assert await peer.pop(**asked) == []
        assert await peer.ack(left[0]) == 0  # the handle holds
        await asyncio.sleep(25)
        again = await peer.pop(**asked)
        assert bodies(again) == bodies(left[1:])
        for one in again:
            assert await peer.ack(one) == 0
        await asyncio.sleep(60)
        host, broker = await killed(sim, host, disk, power=power)
        peer = await peer.again(sim, broker)
        await asyncio.sleep(60)
        assert await peer.pop(**asked) == [] and broker.popped == 0
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("damage", ["unit", "record", "both"])
@pytest.mark.parametrize("in_order", [False, True])
def test_damaged_records_refuse_no_start_and_lose_no_message(
    damage: str, in_order: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three pops the second is not on record any more."""

    async def main(sim: Simulation) -> None:
        disk: SimDisk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        for number in range(6):
            await peer.send(b"%d" % number, queue_id=number % 2 if in_order else 0)
        pops = [popped(await peer.call(200050, pop_header(max_msg_nums=2, order=in_order))) for _ in range(3)]
        held = sum(map(len, pops))
        await host.run(broker.close())
        topic = "rmq_sys_REVIVE_LOG_DefaultCluster"
        (units,) = [data for path, data in disk.files.items() if f"consumequeue/{topic}" in path]
        (log,) = [data for path, data in disk.files.items() if "/commitlog/" in path and path.endswith("0")]
        second = [at for at in range(0, len(units), 20) if b'"ol"' in _record(log, units, at)][1]
        place = int.from_bytes(units[second : second + 8], "big")
        if damage != "unit":
            log[place + 90] ^= 0x40
        if damage != "record":
            units[second + 7] ^= 0x40
        await peer.close()
        host, broker = await started(sim, env, config())
        assert broker.popped == held if damage == "unit" else broker.popped < held
        if damage != "unit":
            assert "comes again" in caplog.text or in_order
        peer = SimPeer(sim, broker.address)
        found: set[bytes] = set()
        for _ in range(12):
            for one in popped(await peer.call(200050, pop_header(invisible_time=10_000, order=in_order))):
                found.add(one.body)
                assert (await peer.call(200051, one.ack)).code == 0
            await asyncio.sleep(30)
        assert found == {b"%d" % number for number in range(6)}
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def _record(log: bytearray, units: bytearray, at: int) -> bytes:
    place, size = int.from_bytes(units[at : at + 8], "big"), int.from_bytes(units[at + 8 : at + 12], "big")
    return bytes(log[place : place + size])


def test_a_group_that_began_at_the_end_loses_nothing_to_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """It found nothing for it, and so there is no pop that tells where it was."""
    monkeypatch.setattr(MessageStore, "is_young", lambda *_: False)  # else it would begin at the oldest message

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        host, broker = await started(sim, sim.env(disk=disk), config())
        peer = Popper(sim, broker.address)
        for number in range(3):
            await peer.send(b"%d" % number)
        assert await peer.pop(init_mode=1, exp="a") == []
        await asyncio.sleep(0.1)
        host, broker = await killed(sim, host, disk, power=True)
        peer = await peer.again(sim, broker)
        for number in range(3, 6):
            await peer.send(b"%d" % number, properties="TAGS\x01a\x02")
        assert bodies(await peer.pop(init_mode=1, exp="a")) == [b"3", b"4", b"5"]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("refused", ["pop", "ack"])
def test_what_was_done_stays_done_although_the_store_took_no_record_for_a_while(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    refusing = _refusing_records(monkeypatch)

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        host, broker = await started(sim, sim.env(disk=disk), config())
        peer = Popper(sim, broker.address)
        for body in (b"0", b"1"):
            await peer.send(body)
        refusing.extend([True] * (refused == "pop"))
        first, second = await peer.pop()
        if refused == "ack":
            refusing.append(True)
            assert await peer.ack(second) != 0
        refusing.clear()
        assert await peer.ack(second) == 0
        await host.run(broker.close())
        host, broker = await started(sim, sim.env(disk=disk), config())
        peer = await peer.again(sim, broker)
        await asyncio.sleep(61)
        assert bodies(await peer.pop()) == [first.body]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("error", [StoreBusyError("too much waits"), MemoryError()], ids=repr)
@pytest.mark.parametrize("then", ["pop", "change"])
def test_what_is_recorded_passes_over_no_pop_that_the_store_did_not_take(
    monkeypatch: pytest.MonkeyPatch, then: str, error: Exception
) -> None:
    refusing = _refusing_records(monkeypatch, error)

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        host, broker = await started(sim, sim.env(disk=disk), config())
        peer = Popper(sim, broker.address)
        for number in range(6):
            await peer.send(b"%d" % number)
        refusing.append(True)
        found = await peer.pop(max_msg_nums=3)
        refusing.clear()
        if then == "pop":
            assert len(await peer.pop(max_msg_nums=2)) == 2
        else:
            assert (await peer.call(200053, found[1].change(30_000))).code == 0
        await host.run(broker.close())
        host, broker = await started(sim, sim.env(disk=disk), config())
        peer = await peer.again(sim, broker)
        await asyncio.sleep(65)
        assert bodies(await peer.pop()) == [b"%d" % number for number in range(6)]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("then", ["acknowledged", "closed", "killed"])
def test_a_topic_that_is_deleted_while_the_store_takes_nothing_leaves_no_pops(
    monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Also where nobody pops or acknowledges any more, so that nothing else goes to the log."""
    refusing = _refusing_records(monkeypatch)

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        host, broker = await started(sim, sim.env(disk=disk), config(host="127.0.0.1"))
        peer = Popper(sim, broker.address, "127.0.0.1")
        for topic in ("U", "T"):
            for number in range(2):
                await peer.send(b"%d" % number, topic=topic)
        other = await peer.pop("U", invisible_time=3_600_000)  # a start has to read from there on
        await peer.pop()
        refusing.append(True)
        assert (await peer.call(215, DeleteTopicRequestHeader("T"))).code == 0
        refusing.clear()
        await peer.send(b"new")
        if then == "acknowledged":
            assert await peer.ack(other.pop()) == 0
        if then == "killed":
            await asyncio.sleep(5)
            kill(host, disk)
        else:
            await host.run(broker.close())
        host, broker = await started(sim, sim.env(disk=disk), config(host="127.0.0.1"))
        await peer.close()
        peer = Popper(sim, broker.address, "127.0.0.1")
        assert bodies(await peer.pop()) == [b"new"] and broker.popped == 1 + len(other)
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_pop_log_that_finds_no_memory_is_shortened_later_and_keeps_no_broker_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was not rewritten again until the next start, and all of it had to be read there."""
    refusing = _refusing_records(monkeypatch, MemoryError())
    monkeypatch.setattr(pops, "FAR_BEHIND", 20)

    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer = Popper(sim, broker.address)
        assert broker._parts is not None
        revival = broker._parts.revival
        outdated = revival.table.outdated

        def no_memory_then() -> pops.Pop | None:
            found = outdated()
            if found is not None and not failed:
                failed.append(True)
                refusing.append(True)
                sim.loop.call_soon(sim.loop.call_soon, refusing.clear)  # behind the try that begins now
            return found

        failed: list[bool] = []
        revival.table.outdated = no_memory_then  # type: ignore[method-assign]
        await peer.send(b"kept")
        await peer.pop(invisible_time=3_600_000)
        for _ in range(30):
            await peer.send(b"x")
            (one,) = await peer.pop()
            assert await peer.ack(one) == 0
        assert failed and revival.table.end - revival.table.begin() <= 22
        await peer.send(b"y")
        refusing.append(True)
        await peer.pop()
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def _refusing_records(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> list[bool]:
    """While there is something in it the store takes no record of a pop."""
    append, refusing = MessageStore.append, list[bool]()

    def refuse(store: MessageStore, topic: str, *arguments: Any, **more: Any) -> None:
        if refusing and topic.startswith("rmq_sys_REVIVE"):
            raise error or StoreBusyError("too much waits")
        append(store, topic, *arguments, **more)

    monkeypatch.setattr(MessageStore, "append", refuse)
    return refusing


@pytest.mark.parametrize("error", [StoreBusyError("too much waits"), MemoryError(), None], ids=repr)
def test_a_change_that_was_refused_leaves_the_handle_as_it_was(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """By an error, or later by a disk that is full."""
    append = MessageStore.append
    refusing = False

    def refuse(store: MessageStore, topic: str, *arguments: Any, **more: Any) -> None:
        if not refusing:
            append(store, topic, *arguments, **more)
        elif error is not None:
            raise error
        else:
            asyncio.get_running_loop().call_soon(more["done"], PutResult(PutStatus.FULL, -1, -1, 0))

    monkeypatch.setattr(MessageStore, "append", refuse)

    async def main(sim: Simulation) -> None:
        nonlocal refusing
        host, broker = await started(sim, sim.env(), config())
        peer = Popper(sim, broker.address)
        await peer.send(b"x")
        (one,) = await peer.pop()
        refusing = True
        assert (await peer.call(200053, one.change(1000))).code != 0
        refusing = False
        if isinstance(error, MemoryError):
            sim.errors.clear()  # it is reported
        assert (await peer.call(200053, one.change(90_000))).code == 0
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("append", StoreBusyError("too much waits")),
        ("append", MemoryError("none")),
        ("read_record", MemoryError("none")),
    ],
    ids=str,
)
def test_a_store_that_takes_nothing_is_said_once_a_minute(
    method: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = getattr(MessageStore, method)
    busy = False

    def refuse(store: MessageStore, *arguments: Any, **more: Any) -> Any:
        if busy:
            raise error
        return real(store, *arguments, **more)

    monkeypatch.setattr(MessageStore, method, refuse)

    async def main(sim: Simulation) -> None:
        nonlocal busy
        host, broker = await started(sim, sim.env(), config(retry_max_times=1))
        peer = Popper(sim, broker.address)
        for _ in range(20):
            await peer.send(b"x")
        assert len(await peer.pop(invisible_time=1000)) == 20
        busy = True
        await asyncio.sleep(90)
        lines = [record.getMessage() for record in caplog.records if "cannot be brought back" in record.getMessage()]
        assert len(lines) == 2 and "more" not in lines[0] and len(lines[1].split("(")[1].split()[0]) == 4
        busy = False
        await asyncio.sleep(2)
        assert len(await peer.pop(invisible_time=1000)) == 20
        busy = True
        await asyncio.sleep(5)
        busy = False
        await asyncio.sleep(2)
        assert broker.counters.dead_letters["g"] == 20  # each once, however often that was tried
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_message_with_no_room_for_another_property_comes_again_too() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config(retry_max_times=1))
        peer = Popper(sim, broker.address)
        item = b"x", 0, encode_properties({"UNIQ_KEY": "U", "n": "n" * 32_750})
        assert (await peer.call(320, send_header(batch=True), encode_batch([item]))).code == 0
        (one,) = await peer.pop(invisible_time=1000)
        await asyncio.sleep(2)
        (one,) = await peer.pop(invisible_time=1000)
        assert one.view.reconsume_times == 1 and one.body == b"x"
        await asyncio.sleep(2)
        assert broker.popped == 0 and broker.counters.dead_letters["g"] == 1
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_the_wall_clock_may_jump() -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        host, broker = await started(sim, env, config())
        peer = Popper(sim, broker.address)
        await peer.send(b"x")
        (one,) = await peer.pop(invisible_time=10_000)
        env.clock.skew_ms += 3600_000  # type: ignore[attr-defined]  # the simulation's
        await asyncio.sleep(5)
        assert await peer.pop() == []
        assert await peer.ack(one) == 0
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_an_administrators_reset_moves_poppers_too() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer = Popper(sim, broker.address)
        for number in range(4):
            await peer.send(b"%d" % number)
        found = await peer.pop()
        for one in found[:2]:
            await peer.ack(one)
        broker.offsets.reset("g", "T", 0, 1)
        assert bodies(await peer.pop()) == [b"1", b"2", b"3"]
        assert broker.popped == 3 and not broker.offsets.resets
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("deleted", ["topic", "group"])
async def test_what_is_deleted_stays_deleted_after_a_kill(deleted: str, tmp_path: Path) -> None:
    """Old offsets would pass over what a topic of the same name begins with; old pops would make new ones."""
    env = real_env()
    config = BrokerConfig(port=0, data=str(tmp_path / "store"), offset_flush_interval=3600)
    async with running(config, env) as broker:
        peer = await Peer.connect(broker.port)
        await peer.create_topic("T", 1)
        for number in range(5):
            await peer.send(b"%d" % number)
        assert (await peer.call(15, UpdateConsumerOffsetRequestHeader("h", "T", 0, 5))).code == 0
        first = popped(await peer.call(200050, pop_header()))[0]
        assert (await peer.call(200051, first.ack)).code == 0
        await peer.close()
    async with running(config, env) as broker:  # all of that is saved
        assert broker.popped == 4 and broker.offsets.query("g", "T", 0) == 1
        peer = await Peer.connect(broker.port)
        if deleted == "topic":
            assert (await peer.call(215, DeleteTopicRequestHeader("T"))).code == 0
            await peer.create_topic("T", 1)
        else:
            assert (await peer.call(207, DeleteSubscriptionGroupRequestHeader("g", clean_offset=True))).code == 0
        await peer.close()
        copytree(tmp_path / "store", tmp_path / "killed")
    async with running(replace(config, data=str(tmp_path / "killed")), env) as broker:
        assert broker.popped == 0 and broker.offsets.query("g", "T", 0) is None
        assert broker.offsets.query("h", "T", 0) == (5 if deleted == "group" else None)
    await env.disk.close()


def test_a_message_whose_tag_is_no_text_comes_again_too() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer = Popper(sim, broker.address)
        batch = encode_batch([(b"x", 0, b"TAGS\1\xff\2")])
        assert (await peer.call(320, send_header(batch=True), batch)).code == 0
        assert len(await peer.pop(invisible_time=1000)) == 1
        await asyncio.sleep(3)
        assert len(await peer.pop(invisible_time=1000)) == 1
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_of_pops_that_are_over_together_one_is_revived_in_a_turn() -> None:
    """Eleven of 4 MiB were stored again in one callback: 86 ms."""

    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer = SimPeer(sim, broker.address)
        for number in range(10):
            assert (await peer.send(b"%d" % number)).code == 0
        one = pop_header(max_msg_nums=1, invisible_time=10_000, poll_time=0)
        answers = await asyncio.gather(*[peer.call(200050, one) for _ in range(10)])
        assert [answer.code for answer in answers] == [0] * 10
        read = records_read(broker)
        await asyncio.sleep(12)
        assert sum(read) == 10 and max(read) == 1
        await peer.close()
        await host.run(broker.close())

    simulate(main)
