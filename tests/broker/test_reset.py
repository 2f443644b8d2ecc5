"""Resetting a group's offsets (222): kept for its next pull as in RocketMQ 5, or pushed to its clients as in 4.9."""

from __future__ import annotations

import asyncio
import errno
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.broker import Broker
from aiorocket.broker.core.offsets import ConsumerOffsets
from aiorocket.runtime.env import memory_env
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import (
    MSGPACK,
    PULL_COMMIT,
    PULL_SUBSCRIPTION,
    REVIVE_GROUP,
    CloneGroupOffsetRequestHeader,
    MessageQueue,
    RemotingCommand,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    encode_body,
    revive_topic,
)
from tests.broker.peer import Peer, pull_header, records, running, span
from tests.broker.test_calls import asked, consumer
from tests.broker.test_pop import pop_header
from tests.broker.test_sim import SimPeer, config, kill, started


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("T", "broker-a", queue_id)


def header(timestamp: int = 0, force: bool = True, **changes: Any) -> ResetOffsetRequestHeader:
    return ResetOffsetRequestHeader("T", "g", timestamp, force)._replace(**changes)


async def commit(peer: Peer, offset: int, queue_id: int = 0) -> RemotingCommand:
    return await peer.call(15, None, consumerGroup="g", topic="T", queueId=str(queue_id), commitOffset=str(offset))


async def filled(peer: Peer, count: int = 5) -> list[int]:
    """``count`` messages in queue 0 of T; when they were stored."""
    await peer.create_topic("T", 2)
    for number in range(count):
        await peer.send(b"%d" % number)
        await asyncio.sleep(0.002)
    return [record.store_timestamp for record in records(await peer.pull())]


# ---- as 5.x


async def test_a_reset_is_learned_by_the_next_pull_and_cannot_be_overwritten_before(peer: Peer) -> None:
    stamps = await filled(peer)
    await commit(peer, 5)
    answer = await peer.call(222, header(stamps[2]))
    assert answer.code == 0 and answer.body == encode_body({"offsetTable": {queue(0): 2, queue(1): 0}}, 0)
    assert await peer.committed("g", "T") == 2
    late = await commit(peer, 5)  # of what was consumed before
    assert late.code == 0 and "reset" in (late.remark or "") and await peer.committed("g", "T") == 2
    moved = await peer.call(11, pull_header(offset=5, sys_flag=1 | 2 | 4, commit_offset=5))
    assert moved.code == 21 and moved.remark == "OFFSET_RESET"
    assert span(moved)[:4] == (0, 2, 0, 5)
    assert await peer.committed("g", "T") == 2
    # From then on everything is as always: also Apache's client, which drops the queue and commits what it was told.
    assert (await commit(peer, 2)).remark is None
    assert [record.body for record in records(await peer.pull(offset=2))] == [b"2", b"3", b"4"]
    assert (await commit(peer, 5)).code == 0 and await peer.committed("g", "T") == 5


async def test_a_reset_waits_until_somebody_pulls_from_there_because_an_answer_can_be_lost(peer: Peer) -> None:
    """The member that was told left without having heard it, and stores its old position as it goes."""
    await filled(peer)
    assert (await peer.call(222, header(0))).code == 0
    assert (await peer.pull(offset=5)).code == 21
    late = await commit(peer, 5)
    assert late.code == 0 and "reset" in (late.remark or "") and await peer.committed("g", "T") == 0
    assert (await peer.pull(offset=3)).code == 21  # the next member, which had read the position before
    assert (await commit(peer, 0)).remark is None  # what it is set to is no news, and no refusal
    assert (await peer.pull(offset=3)).code == 21
    assert len(records(await peer.pull(offset=0))) == 5
    assert (await commit(peer, 5)).remark is None and await peer.committed("g", "T") == 5
    assert (await peer.pull(offset=5, suspend_timeout_millis=0)).code == 19


async def test_a_clone_of_another_group_takes_the_place_of_a_reset_that_waits(peer: Peer) -> None:
    await filled(peer)
    await peer.call(15, UpdateConsumerOffsetRequestHeader("other", "T", 0, 3))
    await commit(peer, 5)
    assert (await peer.call(222, header(0))).code == 0
    assert (await peer.call(314, CloneGroupOffsetRequestHeader("other", "g", "T", True))).code == 0
    assert await peer.committed("g", "T") == 3
    assert [record.body for record in records(await peer.pull(offset=3))] == [b"3", b"4"]


async def test_a_clone_of_a_group_to_itself_takes_no_resets_place(peer: Peer) -> None:
    await filled(peer)
    await commit(peer, 5)
    assert (await peer.call(222, header(0))).code == 0
    assert (await peer.call(314, CloneGroupOffsetRequestHeader("g", "g", "T", True))).code == 0
    await commit(peer, 5)
    assert await peer.committed("g", "T") == 0


async def test_who_is_already_there_is_told_all_the_same(broker: Broker, peer: Peer) -> None:
    """It has pulled everything, and its listener is stuck at the first of it: what it has cached counts no more. Over a
    new connection it is told again, the first answer may not have come."""
    await filled(peer)
    await peer.ask(11, pull_header(offset=5))
    admin = await Peer.connect(broker.port)
    while not broker.parked_pulls:
        await asyncio.sleep(0)
    assert (await admin.call(222, header(-1))).code == 0
    assert (await peer.answer()).code == 21
    again = await Peer.connect(broker.port)
    assert (await again.pull(offset=5)).code == 21
    assert (await again.pull(offset=5, suspend_timeout_millis=0)).code == 19
    assert (await peer.pull(offset=5, suspend_timeout_millis=0)).code == 19
    await again.close()
    await admin.close()


async def test_who_reads_the_offset_of_a_reset_need_not_be_told_again(broker: Broker, peer: Peer) -> None:
    await filled(peer)
    assert (await peer.call(222, header(0))).code == 0
    newcomer = await Peer.connect(broker.port)
    assert await newcomer.committed("g", "T") == 0
    assert len(records(await newcomer.pull(offset=0))) == 5
    assert not broker.offsets.waiting_reset("g", "T", 0) and broker.offsets.waiting_reset("g", "T", 1) == 0
    assert (await peer.call(215, None, topic="T")).code == 0
    assert not broker.offsets.resets
    await newcomer.close()


async def test_a_waiting_pull_of_the_group_learns_at_once_and_others_wait_on(broker: Broker, peer: Peer) -> None:
    await filled(peer)
    other = await Peer.connect(broker.port)
    await peer.ask(11, pull_header(offset=5))
    await other.ask(11, pull_header(offset=5, consumer_group="h"))
    while broker.parked_pulls < 2:
        await asyncio.sleep(0)
    admin = await Peer.connect(broker.port)
    assert (await admin.call(222, header(0))).code == 0
    moved = await peer.answer()
    assert moved.code == 21 and span(moved).next_begin_offset == 0
    assert broker.parked_pulls == 1
    await admin.send(b"new")
    assert len(records(await other.answer())) == 1
    assert len(records(await peer.pull(offset=0))) == 6
    await admin.close()
    await other.close()


async def test_one_queue_a_time_and_an_offset(peer: Peer) -> None:
    stamps = await filled(peer)
    await commit(peer, 4)

    async def reset(**changes: Any) -> tuple[int, Any]:
        answer = await peer.call(222, header(**changes))
        return answer.code, answer.body.decode() or answer.remark

    def table(offset: int, queue_id: int = 0) -> str:
        return encode_body({"offsetTable": {queue(queue_id): offset}}, 0).decode()

    assert await reset(queue_id=0, offset=3) == (0, table(3))
    assert await reset(queue_id=0, offset=6) == (0, table(6))  # up to one behind the end, as RocketMQ has it
    assert await reset(queue_id=0, timestamp=stamps[1]) == (0, table(1))
    assert await reset(queue_id=0, timestamp=-1) == (0, table(5))
    assert await reset(queue_id=0, offset=-1, timestamp=0) == (0, table(0))
    assert await reset(queue_id=1, timestamp=0) == (0, table(0, 1))
    code, remark = await reset(queue_id=0, offset=7)
    assert code == 1 and "not in consume queue range [0-5]" in remark
    assert (await reset(queue_id=2))[0] == 29
    assert (await reset(group="unheard"))[0] == 26
    assert (await reset(topic="Unknown"))[0] == 17
    assert await peer.committed("g", "T") == 0


async def test_a_reset_waits_over_a_restart() -> None:
    env = memory_env()
    async with running(env=env, data="store") as broker:
        peer = await Peer.connect(broker.port)
        await filled(peer)
        await commit(peer, 5)
        await peer.call(222, header(0))
        await peer.close()
    async with running(env=env, data="store") as broker:
        peer = await Peer.connect(broker.port)
        assert (await commit(peer, 5)).remark and await peer.committed("g", "T") == 0
        assert (await peer.pull(offset=5)).code == 21
        assert (await peer.pull(offset=0)).code == 0
        await peer.close()
    await env.disk.close()


def test_a_reset_that_was_answered_survives_a_kill_and_a_power_cut() -> None:
    async def main(sim: Simulation, power: bool) -> None:
        disk = sim.disk()

        settings = config(host="127.0.0.1", advertise="10.0.0.1")  # bound to loopback, so that it is administered
        host, broker = await started(sim, sim.env(disk=disk), settings)
        peer = SimPeer(sim, broker.address)
        for number in range(5):
            await peer.send(b"%d" % number)
        fields = UpdateConsumerOffsetRequestHeader("g", "T", 0, 5)
        assert (await peer.call(15, fields)).code == 0
        await asyncio.sleep(10)  # saved
        assert (await peer.call(222, header(0))).code == 0
        kill(host, disk, power=power)
        await peer.close()
        host, broker = await started(sim, sim.env(disk=disk), settings)
        peer = SimPeer(sim, broker.address, "10.0.0.8")
        moved = await peer.pull(offset=5)
        assert moved.code == 21 and span(moved).next_begin_offset == 0
        await peer.close()
        await host.run(broker.close())

    for power in (False, True):
        simulate(lambda sim, power=power: main(sim, power))  # type: ignore[misc]


async def test_a_reset_that_cannot_be_recorded_says_so(monkeypatch: Any) -> None:
    env = memory_env()
    async with running(env=env, data="store") as broker:
        peer = await Peer.connect(broker.port)
        await filled(peer)
        await commit(peer, 5)
        replace = env.disk.replace

        def failing(path: str, data: bytes) -> None:
            if "/offsets" in path:
                raise OSError(errno.EIO, "broken")
            replace(path, data)

        monkeypatch.setattr(env.disk, "replace", failing)
        answer = await peer.call(222, header(0))
        assert answer.code == 1 and "could not be recorded" in (answer.remark or "")
        assert (await peer.pull(offset=5)).code == 21  # set all the same, until the broker stops
        monkeypatch.undo()
        await peer.close()
    await env.disk.close()


@pytest.mark.parametrize("options", [{"subscription": "A"}, {"subscription": "a = 1", "expression_type": "SQL92"}])
async def test_a_waiting_pull_with_a_filter_learns_of_a_reset_and_of_the_end_of_its_topic(
    broker: Broker, peer: Peer, options: dict[str, Any]
) -> None:
    await filled(peer, 1)
    other = await Peer.connect(broker.port)

    async def parked() -> None:
        await other.ask(11, pull_header(offset=1, **options))
        while not broker.parked_pulls:
            await asyncio.sleep(0)

    await parked()
    assert (await peer.call(222, header(queue_id=0, offset=2))).code == 0  # one behind the end
    moved = await other.answer()
    assert moved.code == 21 and moved.remark == "OFFSET_RESET" and span(moved).next_begin_offset == 2
    back = await other.call(11, pull_header(offset=2))
    assert back.code == 21 and span(back).next_begin_offset == 1  # nothing is there: the client goes to the end
    await parked()
    await peer.send(b"not wanted", {"TAGS": "B", "a": "2"})
    assert broker.parked_pulls == 1
    assert (await peer.call(215, None, topic="T")).code == 0
    gone = await other.answer()
    assert gone.code == 17 and "deleted" in (gone.remark or "") and broker.parked_pulls == 0
    await other.close()


async def test_an_administrator_that_speaks_msgpack_gets_queues_as_text(broker: Broker) -> None:
    import msgpack

    peer = await Peer.connect(broker.port, "msgpack")
    await filled(peer, 1)
    await commit(peer, 1)
    answer = await peer.call(222, header(0))
    table = msgpack.unpackb(answer.body)["offsetTable"]
    assert {MessageQueue.from_plain(key): offset for key, offset in table.items()} == {queue(0): 0, queue(1): 0}
    await peer.close()


@given(st.lists(st.tuples(st.sampled_from(["commit", "reset", "take"]), st.integers(0, 9))))
def test_a_reset_is_taken_once_and_nothing_moves_the_offset_before(steps: list[tuple[str, int]]) -> None:
    table = ConsumerOffsets()
    offset: int | None = None
    waiting: int | None = None
    for step, number in steps:
        if step == "reset":
            table.reset("g", "T", 0, number)
            offset = waiting = number
        elif step == "take":
            assert table.take_reset("g", "T", 0) == waiting
            waiting = None
        else:
            table.commit("g", "T", 0, number)
            offset = number if waiting is None else offset
        assert table.query("g", "T", 0) == offset and table.waiting_reset("g", "T", 0) == waiting
        again = ConsumerOffsets()
        again.load(json.loads(json.dumps(table.to_dict())))
        assert again.query("g", "T", 0) == offset and again.take_reset("g", "T", 0) == waiting
        assert bool(table.resets) is (waiting is not None)


async def test_who_learned_of_a_reset_and_went_is_not_kept(broker: Broker, peer: Peer) -> None:
    """A reset waits for ever where nobody pulls."""
    await filled(peer)
    await commit(peer, 5)
    await peer.call(222, header())
    for _ in range(5):
        other = await Peer.connect(broker.port)
        assert await other.committed("g", "T") == 0
        await other.close()
    while len(broker.server.connections) > 1:
        await asyncio.sleep(0)
    assert not broker.offsets._told and not broker.offsets._told_to
    assert await peer.committed("g", "T") == 0


def test_an_end_looks_at_no_resets_that_others_were_told_of() -> None:
    """Of 100,000 told ones each end of a connection walked through all."""

    class Unwalked(dict[Any, Any]):
        def values(self) -> Any:
            raise AssertionError("all were walked through")

        __iter__ = items = values  # type: ignore[assignment]  # none of these may be used

    table = ConsumerOffsets()
    for queue_id in range(3):
        table.reset("g", "T", queue_id, 5)
        for who in ("a", "b"):
            assert table.tell_reset("g", "T", queue_id, who) == 5
    table._told = Unwalked(table._told)
    table.lost("nobody")
    table.lost("a")
    assert table.tell_reset("g", "T", 0, "a", asked=5) == 5  # has to hear of it first
    assert table.tell_reset("g", "T", 0, "b", asked=5) is None and table.waiting_reset("g", "T", 0) is None
    table.lost("b")
    table.lost("a")
    assert len(table._told) == len(table._told_to) == 0


def test_a_deleted_topic_takes_its_resets_along() -> None:
    table = ConsumerOffsets()
    table.reset("g", "T", 0, 5)
    table.delete_topics({"T"})
    assert not table.resets and table.query("g", "T", 0) is None


# ---- as 4.9


async def test_a_pushed_reset_goes_to_every_member_in_its_own_form() -> None:
    async with running(server_side_reset_offset=False) as broker:
        peer = await Peer.connect(broker.port)
        stamps = await filled(peer)
        await commit(peer, 5)
        answer = await peer.call(222, header(stamps[2]))
        assert answer.code == 1 and "queue 1" in (answer.remark or "")  # it has no offset there
        await commit(peer, 0, 1)
        assert (await peer.call(222, header(stamps[2]))).code == 206
        async with (
            consumer(broker, "java", language=0) as java,
            consumer(broker, "cpp", language=1) as cpp,
            consumer(broker, "ours", "msgpack") as ours,
        ):
            answer = await peer.call(222, header(stamps[2]))
            table = {queue(0): 2, queue(1): 0}
            assert answer.code == 0 and answer.body == encode_body({"offsetTable": table}, 0)
            for member in (java, cpp, ours):
                request = await asked(member)
                fields = request.ext_fields()
                assert request.code == 220 and request.is_oneway
                assert (fields["topic"], fields["group"], fields["timestamp"]) == ("T", "g", str(stamps[2]))
                if member is java:
                    assert request.body == encode_body({"offsetTable": table}, 0)
                elif member is cpp:
                    assert json.loads(request.body) == {
                        "offsetTable": [{**key.to_plain(), "offset": offset} for key, offset in table.items()]
                    }
                else:
                    texts = {encode_body(key, 0).decode(): offset for key, offset in table.items()}
                    assert request.body == encode_body({"offsetTable": texts}, MSGPACK)
            # Nothing waits at the broker: setting the offsets is the members' part.
            assert await peer.committed("g", "T") == 5 and not broker.offsets.resets
            assert (await commit(peer, 2)).remark is None
            # Without force, only backwards.
            answer = await peer.call(222, header(-1, False))
            assert answer.body == encode_body({"offsetTable": {queue(0): 2, queue(1): 0}}, 0)
            answer = await peer.call(222, header(-1, True))
            assert answer.body == encode_body({"offsetTable": {queue(0): 5, queue(1): 0}}, 0)
        async with consumer(broker, "old", version=27):
            answer = await peer.call(222, header(0))
            assert answer.code == 1 and "does not support" in (answer.remark or "")
        assert (await peer.call(222, header(0, topic="Unknown"))).code == 17
        await peer.close()


def test_of_resets_so_many_are_remembered_as_told() -> None:
    """One of 65,536 queues, asked for on 1,000 connections, was kept 65 million times."""
    table = ConsumerOffsets(40)
    for queue_id in range(10):
        table.reset("g", "T", queue_id, 5)
        for who in range(8):
            assert table.tell_reset("g", "T", queue_id, who) == 5
            assert sum(map(len, table._told.values())) == sum(map(len, table._told_to.values())) <= 10
    assert table.tell_reset("g", "T", 9, 7, asked=5) is None
    assert table.tell_reset("g", "T", 0, 7, asked=5) == 5  # forgotten: it is told again
    assert table.tell_reset("g", "T", 0, 7, asked=5) is None
    for who in range(8):
        table.lost(who)
    assert table._tellings == len(table._told) == len(table._told_to) == 0


async def test_nobody_sets_the_offset_by_which_a_start_finds_the_records_of_pops(broker: Broker, peer: Peer) -> None:
    topic, own = revive_topic("DefaultCluster"), REVIVE_GROUP
    await peer.send()
    assert (await peer.call(200050, pop_header(poll_time=0))).code == 0
    answers = [
        await peer.call(15, UpdateConsumerOffsetRequestHeader(own, topic, 0, 99)),
        await peer.call(222, header(-1, topic=topic, group=own)),
        await peer.call(314, None, srcGroup="g", destGroup=own, topic=topic, offline="true"),
        await peer.call(200050, pop_header(topic, 0, consumer_group=own, exp="none of them")),
    ]
    assert [answer.code for answer in answers] == [16] * 4 and "broker's own" in (answers[0].remark or "")
    pull = pull_header(topic, consumer_group=own, sys_flag=PULL_COMMIT | PULL_SUBSCRIPTION, commit_offset=99)
    assert (await peer.call(11, pull)).code == 0  # its commit is left out
    assert broker.offsets.query(own, topic, 0) != 99 and not broker.offsets.resets
