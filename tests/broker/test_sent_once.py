"""Idempotent producers: what is sent again is stored once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.broker import Broker
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.sent_once import PER_PRODUCER, SentOnce, SentTable
from aiorocket.broker.core.turns import whole
from aiorocket.broker.repetitions import Repetitions
from aiorocket.config import Limits, ProducerConfig
from aiorocket.config.server import Flush
from aiorocket.errors import UsageError
from aiorocket.model import SendReceipt
from aiorocket.storage.snapshots import Snapshot
from aiorocket.storage.written import WrittenLog
from aiorocket.testing import SimCluster, Simulation, simulate
from aiorocket_protocol import (
    DeleteTopicRequestHeader,
    RecallMessageRequestHeader,
    RemotingCommand,
    SendMessageResponseHeader,
    encode_batch,
)
from tests.broker.peer import Peer, records_read, send_header
from tests.broker.test_sim import SMALL, SimPeer, config, kill, started


async def send(peer: SimPeer, key: str, once: str = "broker-a", **changes: Any) -> RemotingCommand:
    header = send_header(**{"properties": f"UNIQ_KEY\x01{key}\x02", **changes})
    command = RemotingCommand.request(310, header, body=key.encode(), ext={"_once": once})
    return await peer.host.run(peer.client.request(peer.address, command, 5.0))


def test_all_attempts_of_a_message_get_the_answer_of_the_first() -> None:
    stored = {("t", 0, "old"): (7, 1)}
    once = SentOnce[int](lambda *place: stored.get(place))
    told: list[int] = []
    assert once.begin("t", 0, "old", 1, told.append) is None and told == [7]
    first = once.begin("t", 0, "new", 1, told.append)
    assert first is not None and once.begin("t", 0, "new", 1, told.append) is None
    assert once.begin("t", 1, "new", 1, told.append) is not None  # another queue
    assert callable(first)
    first(8)
    assert told == [7, 8, 8]
    stored["t", 0, "new"] = (8, 1)
    assert once.begin("t", 0, "new", 1, told.append) is None and told[-1] == 8
    assert once.begin("t", 0, "refused", 1, told.append) is not None
    once.failed("t", 0, "refused")
    assert once.begin("t", 0, "refused", 1, told.append) is not None


def test_two_producers_with_one_id_are_told() -> None:
    """The second message is not the first: "stored" would lose it."""

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)

        async def sent(body: bytes, **changes: Any) -> RemotingCommand:
            header = send_header(properties="UNIQ_KEY\x01same\x02", **changes)
            command = RemotingCommand.request(310, header, body=body, ext={"_once": "broker-a"})
            return await peer.host.run(peer.client.request(peer.address, command, 5.0))

        first, second = await asyncio.gather(sent(b"one"), sent(b"another"))  # the first is under way
        assert first.code == 0
        for answer in (second, await sent(b"another")):
            assert answer.code == 13 and "another message was sent with the UNIQ_KEY 'same'" in (answer.remark or "")
        assert (await sent(b"another", queue_id=1)).code == 0  # elsewhere an id is its queue's own
        await peer.close()
        kill(host, disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        assert (await sent(b"another")).code == 13
        # Of one content there are many compressed forms.
        assert (await sent(b"one")).code == (await sent(b"compressed", sys_flag=1)).code == 0
        assert await peer.drain() == [b"one"]  # of the first queue
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def key(producer: str, number: int) -> str:
    return f"{producer}{number:012X}"


def test_so_many_repetitions_wait_and_no_more() -> None:
    once = SentOnce[int](lambda *place: None, most=5)
    told: list[int] = []
    for _ in range(2):
        first = once.begin("t", 0, "new", 1, told.append)
        assert first is not None
        answers = [once.begin("t", 0, "new", 1, told.append) for _ in range(7)]
        assert answers[:5] == [None] * 5 and isinstance(answers[6], Refusal)
        assert answers[6].remark == "a repetition cannot wait: the broker's limit repetitions=5 is reached"
        assert callable(first)
        first(1)
        assert len(told) == 6
        told.clear()


def test_others_do_not_push_a_message_out() -> None:
    table = SentTable()
    table.keep("t", 0, key("quiet", 0), 5)
    for number in range(3 * PER_PRODUCER):
        table.keep("t", 0, key("busy", number), number)
        table.keep("t", number % 7, key(f"p{number}", 0), number)
    assert table.offset("t", 0, key("quiet", 0)) == 5
    assert table.offset("t", 0, key("busy", 2 * PER_PRODUCER - 1)) is None
    assert table.offset("t", 0, key("busy", 2 * PER_PRODUCER)) == 2 * PER_PRODUCER
    most = Limits().sent_once
    for number in range(most):
        table.keep("t", 1, key(f"other{number}", 0), number)
    assert len(table) == most and table.offset("t", 0, key("quiet", 0)) is None  # it was quiet for too long


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from("ab"), st.integers(0, 9)), max_size=60))
def test_what_is_known_is_saved(sends: list[tuple[int, str, int]]) -> None:
    """With what comes while it is saved, or so that it is behind ``at``."""
    table, saved = SentTable(4, 10), []
    table.begin(lambda: 100 * len(sends), lambda: saved.append(len(table)))
    for offset, (queue_id, producer, number) in enumerate(sends):
        table.keep("t", queue_id, key(producer, number), offset)
    assert saved == [1] * bool(sends)
    known = {(each, unique): offset for each, stored in table._stored.items() for unique, offset in stored.items()}
    assert len(table) == len(known) <= 10
    found = SentTable(4, 10)
    saving = table.in_turns()
    found.load(json.loads(json.dumps(whole(saving))))
    assert list(found._stored) == list(table._stored) and len(found) == len(table) and found.at == 100 * len(sends)
    for ((topic, queue_id, _), unique), offset in known.items():
        assert found.offset(topic, queue_id, unique) == offset


@pytest.mark.parametrize("power", [False, True])
def test_a_repetition_is_stored_once_over_restarts(power: bool) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        answers = await asyncio.gather(*(send(peer, key) for key in ("a", "a", "b", "a", "b")))
        places = [answer.read(SendMessageResponseHeader)[:3] for answer in answers]
        assert places[0] == places[1] == places[3] and places[2] == places[4] and len(set(places)) == 2
        assert (await send(peer, "c", properties="UNIQ_KEY\x01c\x02DELAY\x013\x02")).code == 0
        kill(host, disk, power=power)
        await peer.close()
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        assert (await send(peer, "b")).read(SendMessageResponseHeader)[:3] == places[2]
        assert (await send(peer, "c", properties="UNIQ_KEY\x01c\x02DELAY\x013\x02")).code == 0
        await asyncio.sleep(15)
        assert sorted(await peer.drain()) == [b"a", b"b", b"c"]
        elsewhere = await send(peer, "d", once="broker-b")
        assert elsewhere.code == 29 and "broker-b" in (elsewhere.remark or "")
        assert (await send(peer, "e", batch=True)).code == 13
        assert len(await peer.drain()) == 3
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("end", ["none", "stop", "kill", "kill at once", "cut", "the state is lost"])
def test_a_repetition_behind_many_of_others_is_stored_once(end: str) -> None:
    """What others send to its queue meanwhile pushes nothing out, nor does a restart."""
    others = 600

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        place = (await send(peer, "mine")).read(SendMessageResponseHeader)[:3]
        for _ in range(others // 100):
            batch = encode_batch([(b"other", 0, b"")] * 100)
            assert (await peer.call(320, send_header(batch=True), batch)).code == 0
        if end not in ("none", "stop", "kill at once"):
            await asyncio.sleep(6)  # it is saved
        await peer.close()
        if end == "stop":
            await host.run(broker.close())
        elif end != "none":
            kill(host, disk, power=end == "cut")
        if end == "the state is lost":
            for path in [path for path in disk.files if "config/sent." in path]:
                disk.unlink(path)
        if end != "none":
            host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        assert (await send(peer, "mine")).read(SendMessageResponseHeader)[:3] == place
        assert (await peer.drain()).count(b"mine") == 1
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_start_after_a_kill_lets_others_push_no_producer_out() -> None:
    """What was stored since it was saved does not say who was idempotent."""

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config(limits=Limits(sent_once=50)))
        peer = SimPeer(sim, broker.address)
        places = [(await send(peer, key("mine", 1))).read(SendMessageResponseHeader)[:3]]
        await asyncio.sleep(6)  # it is saved
        places.append((await send(peer, key("mine", 2))).read(SendMessageResponseHeader)[:3])
        for number in range(100):
            await peer.send(b"other", properties=f"UNIQ_KEY\x01{key(f'other{number}', 0)}\x02")
        await peer.close()
        kill(host, disk)
        host, broker = await started(sim, env, config(limits=Limits(sent_once=50)))
        peer = SimPeer(sim, broker.address)
        for number, place in enumerate(places, 1):
            assert (await send(peer, key("mine", number))).read(SendMessageResponseHeader)[:3] == place
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("busy", [False, True])
def test_the_first_of_all_is_known_when_the_broker_dies_with_its_answer(busy: bool, seed: int, flush: Flush) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config(store=replace(SMALL, flush=flush)))
        peer = SimPeer(sim, broker.address)
        await peer.send(b"not idempotent")
        await asyncio.sleep(6)  # it is saved that there is none
        sends = [asyncio.ensure_future(peer.send(b"other")) for _ in range(20 * busy)]
        sends.append(asyncio.ensure_future(send(peer, "first")))
        while broker.store.max_offset("T", 0) < 2 + 20 * busy:
            await asyncio.sleep(1e-6)
        kill(host, disk)
        await asyncio.gather(*sends, return_exceptions=True)
        await peer.close()
        host, broker = await started(sim, env, config(store=replace(SMALL, flush=flush)))
        peer = SimPeer(sim, broker.address)
        assert (await send(peer, "first")).code == 0
        assert (await peer.drain()).count(b"first") == 1
        await peer.close()
        await host.run(broker.close())

    simulate(main, seed)


def test_much_that_others_send_before_a_kill_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a start reads when the record is lost: in five seconds that is soon sent."""
    monkeypatch.setattr("aiorocket.broker.repetitions._WITHOUT", 4096)

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        await asyncio.sleep(6)  # it is saved that there is none
        assert (await send(peer, "mine")).code == 0
        for _ in range(20):
            await peer.send(bytes(1000))
        assert broker.store.max_physical > 4 * 4096
        await peer.close()
        kill(host, disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        assert (await send(peer, "mine")).code == 0
        assert (await peer.drain()).count(b"mine") == 1
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("full", [False, True])
def test_what_retention_took_before_it_was_saved_is_not_stored_again_after_a_kill(full: bool) -> None:
    """On a disk that is too full it takes what came seconds ago. A save that fails does not keep it from that."""

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        settings = config(store=replace(SMALL, max_log_bytes=64 * 1024))
        host, broker = await started(sim, env, settings)
        peer = SimPeer(sim, broker.address)
        await send(peer, "another")
        await asyncio.sleep(6)  # it is saved
        assert (await send(peer, "mine")).code == 0
        for _ in range(4):
            await peer.send(bytes(40_000))
        if full:
            assert broker.parts is not None

            async def fails(name: str) -> None:
                raise OSError(28, f"no space left for {name}")

            broker.parts._state.save = fails  # type: ignore[assignment,method-assign]
        assert await host.run(broker.store.retention.sweep()) > 0
        assert broker.store.min_offset("T", 0) > 1
        await peer.close()
        kill(host, disk)
        host, broker = await started(sim, env, settings)
        peer = SimPeer(sim, broker.address)
        end = broker.store.max_offset("T", 0)
        assert (await send(peer, "mine")).code == 0
        assert broker.store.max_offset("T", 0) == end + full
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_what_others_send_for_long_makes_no_start_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is saved again when the log has grown by much, also when nobody was idempotent meanwhile."""
    monkeypatch.setattr("aiorocket.broker.core.sent_once._MUCH", 4096)

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        assert (await send(peer, "mine")).code == 0
        await asyncio.sleep(6)  # it is saved
        for _ in range(20):
            await peer.send(bytes(1000))
        await asyncio.sleep(6)
        saved = Snapshot(disk, "/store/config/sent").load()
        assert saved is not None and saved["at"] == broker.store.max_physical
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_record_of_which_the_newest_is_damaged_hides_no_first_send() -> None:
    """The one before may say that nobody was idempotent."""

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        await asyncio.sleep(6)
        assert (await send(peer, "mine")).code == 0
        await peer.close()
        kill(host, disk)
        paths = [path for path in disk.files if "config/sent." in path]
        newest = max(paths, key=lambda path: int(bytes(disk.files[path]).split(b"\n")[0].split()[-1]))
        assert b'"used":true' in disk.files[newest]
        disk.files[newest][-3] ^= 1
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        assert (await send(peer, "mine")).code == 0
        assert (await peer.drain()).count(b"mine") == 1
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_start_that_is_closed_reads_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would close the files, and a table that is half made is not saved as if nothing were missing."""

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        for queue_id in range(4):
            assert (await send(peer, key("p", queue_id), queue_id=queue_id)).code == 0
        await peer.close()
        await host.run(broker.close())
        for path in [path for path in disk.files if "config/sent." in path]:
            disk.unlink(path)
        broker, read_end, closing = Broker(env, config()), Repetitions._read_end, []

        async def long(self: Repetitions, *args: Any) -> None:
            await read_end(self, *args)
            if not closing:
                closing.append(host.start(broker.close()))
            await asyncio.sleep(1)

        monkeypatch.setattr(Repetitions, "_read_end", long)
        with pytest.raises(UsageError, match="closed while it started"):
            await host.run(broker.start())
        await closing[0]
        assert not broker.store._files._files
        host, broker = await started(sim, env, config())
        assert len(broker._tables.sent) == 4
        await host.run(broker.close())

    simulate(main)


def test_a_start_after_a_kill_compares_no_page_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, reads = WrittenLog.checked, list[int]()

    def counted(self: WrittenLog, offset: int, size: int) -> bytes:
        reads.append(size)
        return checked(self, offset, size)

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        for number in range(300):
            await peer.send(properties=f"UNIQ_KEY\x01{key('other', number)}\x02")
        await peer.close()
        kill(host, disk)
        monkeypatch.setattr(WrittenLog, "checked", counted)
        host, broker = await started(sim, env, config())
        assert 0 < len(reads) < 30
        await host.run(broker.close())

    simulate(main)


def test_a_start_after_a_clean_stop_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much others sent since the last idempotent one."""
    read: list[int] = []
    records = Repetitions._records

    def counted(*args: Any) -> Any:
        for found in records(*args):
            read.append(1)
            yield found

    monkeypatch.setattr(Repetitions, "_records", counted)

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        assert (await send(peer, key("p", 1))).code == 0
        for stop in ("clean", "clean", "kill"):
            await asyncio.sleep(20)  # it was saved
            for number in range(50):
                await peer.send(properties=f"UNIQ_KEY\x01{key('other', number)}\x02")
            if stop == "clean":
                await host.run(broker.close())
            else:
                kill(host, disk)
            host, broker = await started(sim, env, config())
            assert len(read) == (0 if stop == "clean" else 50)
        await peer.close()
        peer = SimPeer(sim, broker.address)
        assert (await send(peer, key("p", 1))).code == 0
        assert len(await peer.drain()) == 1 + 3 * 50
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("damage", ["record", "unit"])
def test_a_repetition_before_what_is_damaged_is_stored_once(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start looks past what the log has lost, and waits for a unit that is made again."""
    monkeypatch.setattr("aiorocket.broker.repetitions._A_TURN", 2)

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        assert (await send(peer, "mine")).code == 0
        for body in (b"lost" * 10, b"2", b"3"):
            assert (await peer.send(body)).code == 0
        await peer.close()
        await host.run(broker.close())
        for path in [path for path in disk.files if "config/sent." in path]:
            disk.unlink(path)
        log, units = disk.files["/store/commitlog/" + "0" * 20], disk.files["/store/consumequeue/T/0/" + "0" * 20]
        if damage == "unit":
            units[27] ^= 0x40
        else:
            log[log.index(b"lostlost")] ^= 0x40
            units.clear()  # it is made from the log again
        host, broker = await started(sim, env, config())
        assert (broker.store.entries("T", 0, 1, 1)[0][0] < 0) == (damage == "record")
        peer = SimPeer(sim, broker.address)
        assert (await send(peer, "mine")).code == 0
        assert broker.store.max_offset("T", 0) == 4
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_deleted_topic_leaves_no_messages_behind() -> None:
    table = SentTable()
    for topic in ("T", "U"):
        for number in range(3):
            table.keep(topic, number % 2, key("p", number), number)
    table.delete_topics({"T"})
    assert len(table) == 3 and table.offset("T", 0, key("p", 0)) is None and table.offset("U", 0, key("p", 0)) == 0


async def test_what_is_known_of_a_topic_ends_with_it(peer: Peer) -> None:
    async def sent() -> tuple[int, str]:
        header = send_header(properties=f"UNIQ_KEY\x01{key('p', 1)}\x02")
        answer = await peer.call(310, header, b"x", _once="broker-a")
        return answer.code, answer.read(SendMessageResponseHeader).msg_id

    code, place = await sent()
    assert code == 0 and await sent() == (0, place)
    assert (await peer.call(215, DeleteTopicRequestHeader("T"))).code == 0
    code, again = await sent()
    assert code == 0 and again != place and await sent() == (0, again)


async def test_a_key_that_is_too_long_to_be_remembered(peer: Peer) -> None:
    long = await peer.call(310, send_header(properties=f"UNIQ_KEY\x01{'k' * 129}\x02"), b"x", _once="broker-a")
    assert long.code == 29 and "129 characters" in (long.remark or "")


async def test_a_key_of_other_letters_is_remembered(peer: Peer) -> None:
    letters = send_header(properties=f"UNIQ_KEY\x01{'é' * 100}\x02")
    first, second = [await peer.call(310, letters, b"x", _once="broker-a") for _ in range(2)]
    assert first.code == 0 and first.read(SendMessageResponseHeader) == second.read(SendMessageResponseHeader)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_timer_that_is_due_when_it_is_sent_again_is_stored_once(restarted: bool) -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env(disk=sim.disk())
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        await send(peer, "first")
        timer = f"UNIQ_KEY\x01timer\x02TIMER_DELIVER_MS\x01{env.clock.wall_ms() + 2000}\x02"
        assert (await send(peer, "timer", properties=timer)).code == 0
        for _ in range(3):
            if restarted:
                await host.run(broker.close())
                host, broker = await started(sim, env, config())
            await asyncio.sleep(1.5)
            assert (await send(peer, "timer", properties=timer)).code == 0
        assert await peer.drain() == [b"first", b"timer"]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_recall_by_the_answer_of_a_repetition_holds() -> None:
    """The message is due when its first attempt said, not so many seconds after the second."""

    async def main(sim: Simulation) -> None:
        env = sim.env(disk=sim.disk())
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        timer = "UNIQ_KEY\x01timer\x02TIMER_DELAY_MS\x0110000\x02"

        async def handle() -> str | None:
            return (await send(peer, "timer", properties=timer)).read(SendMessageResponseHeader).recall_handle

        reads = records_read(broker)
        first = await handle()
        assert not sum(reads)  # nothing is looked for that is known
        await asyncio.sleep(3)
        again = await handle()
        assert again is not None and again == first
        assert (await peer.call(370, RecallMessageRequestHeader("T", again, "p"))).code == 0
        await asyncio.sleep(20)
        assert await peer.drain() == [] and await handle() == first
        await peer.close()
        await host.run(broker.close())

    simulate(main)


async def test_a_repetition_of_what_was_no_timer_message_has_no_recall_handle(peer: Peer) -> None:
    """Its properties are all its sender's, and TIMER_OUT_MS need be no number."""
    stored = None
    for timer in ("TIMER_OUT_MS\x01soon\x02", "TIMER_DELAY_MS\x0110000\x02"):
        header = send_header(properties=f"UNIQ_KEY\x01u\x02{timer}")
        answer = await peer.call(310, header, b"x", _once="broker-a")
        receipt = answer.read(SendMessageResponseHeader)
        assert answer.code == 0 and receipt.recall_handle is None and receipt.msg_id == (stored or receipt.msg_id)
        stored = receipt.msg_id


@pytest.mark.parametrize(
    "changes",
    [{"properties": "k\x01v\x02"}, {"queue_id": -1}, {"properties": "UNIQ_KEY\x01u\x02TRAN_MSG\x01true\x02"}],
)
async def test_what_would_be_stored_twice_is_refused(broker: Broker, peer: Peer, changes: dict[str, Any]) -> None:
    await peer.send(b"the topic is there")
    header = send_header(**{"properties": "UNIQ_KEY\x01u\x02", **changes})
    answer = await peer.call(310, header, b"x", _once="broker-a")
    assert answer.code == 13 and "once only" in (answer.remark or "")
    assert broker.store.max_offset("T", 0) == 1 and not broker.transactions


def test_a_delayed_message_is_known_behind_many_of_others() -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env(disk=sim.disk())
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        delayed = "UNIQ_KEY\x01{}\x02DELAY\x014\x02"
        assert (await send(peer, "mine", properties=delayed.format("mine"))).code == 0
        others = range(300)
        await asyncio.gather(*(peer.send(topic="Other", properties=delayed.format(f"o{n}")) for n in others))
        await host.run(broker.close())
        host, broker = await started(sim, env, config())
        assert (await send(peer, "mine", properties=delayed.format("mine"))).code == 0
        await asyncio.sleep(40)
        assert await peer.drain() == [b"mine"]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_producer_whose_answers_are_lost(idempotent: bool) -> None:
    async def main(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            settings = ProducerConfig(idempotent=idempotent, send_timeout=20.0, retries=8)
            sender = await cluster.producer(config=settings)
            broker = cluster.brokers[0]
            for number in range(20):
                cluster.brokers[0].faults.next("SEND_MESSAGE_V2", lose_answer=True)
                sending = asyncio.ensure_future(sender.send("t", f"m{number}"))
                await asyncio.sleep(0.05)
                if number % 5 == 0:
                    await broker.restart(power_cut=False)
                else:
                    cluster.reset(sender.address, broker.address)
                assert isinstance(await sending, SendReceipt)
            found = [record.body for record in broker.messages("t")]
            assert len(set(found)) == 20 and (len(found) == 20) == idempotent

    simulate(main)


async def test_a_message_that_found_no_memory_leaves_no_other_attempt_waiting(broker: Broker, peer: Peer) -> None:
    await peer.send(b"the topic is there")
    sends: Any = broker.server.processors.handler(310)
    sends.__self__._append, append = Mock(side_effect=MemoryError), sends.__self__._append
    header = send_header(properties="UNIQ_KEY\x01u\x02")
    assert (await peer.call(310, header, b"x", _once="broker-a")).code == 1
    sends.__self__._append = append
    answer = await asyncio.wait_for(peer.call(310, header, b"x", _once="broker-a"), 30)
    assert answer.code == 0 and broker.store.max_offset("T", 0) == 2


async def test_a_message_that_cannot_be_stored_leaves_no_other_attempt_waiting(peer: Peer) -> None:
    text = '{"code":310,"opaque":%d,"extFields":{"a":"p","b":"T","c":"TBW102","d":"4","e":"0","f":"0","g":"0","h":"0",'
    text += '"i":"UNIQ_KEY\\u0001u\\u0002k\\u0001\\ud800\\u0002","_once":"broker-a"}}'
    await peer.send(b"the topic is there")
    for opaque in (1, 2):
        header = (text % opaque).encode()
        peer.writer._stream.write((len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        assert (await asyncio.wait_for(peer.answer(), 30)).code != 0
