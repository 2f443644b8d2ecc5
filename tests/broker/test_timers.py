"""Timer messages and their recall: due to the millisecond, over restarts, power cuts and wall clocks that are set."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.timers import ROLL, TimerSchedule, deletes, due_of, is_rolled, wait_code
from aiorocket.config import Limits, StoreConfig
from aiorocket.storage.results import StoreBusyError
from aiorocket.testing import SimDisk, Simulation, simulate
from aiorocket_protocol import (
    RecallHandle,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    RecordView,
    RemotingCommand,
    SendMessageResponseHeader,
    split_records,
)
from tests.broker.test_sim import SimPeer, config, kill, started

DAY = 86_400_000
TIMER_TOPIC = "rmq_sys_wheel_timer"


def recall_handle(answer: RemotingCommand) -> str:
    handle = answer.read(SendMessageResponseHeader).recall_handle
    assert handle is not None
    return handle


async def recall(peer: SimPeer, handle: str, topic: str = "T") -> RemotingCommand:
    return await peer.call(370, RecallMessageRequestHeader(topic, handle, "p"))


async def delivered(peer: SimPeer) -> list[RecordView]:
    """Records of queue 0 of T; one pull may end where memory begins."""
    found: list[RecordView] = []
    while True:
        answer = await peer.pull("T", 0, len(found), max_msg_nums=1024, suspend_timeout_millis=0)
        if answer.code != 0:
            return found
        found += split_records(answer.body)


# ---- decisions


@pytest.mark.parametrize(
    ("values", "due"),
    [
        ({}, 0),
        ({"TIMER_DELIVER_MS": "1007"}, 1007),
        ({"TIMER_DELIVER_MS": "1000"}, 0),
        ({"TIMER_DELIVER_MS": "-5"}, 0),
        ({"TIMER_DELAY_MS": "+7"}, 1007),
        ({"TIMER_DELAY_SEC": "7"}, 8000),
        ({"TIMER_DELAY_SEC": "7", "TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": "1"}, 8000),
        ({"TIMER_DELAY_MS": "7", "TIMER_OUT_MS": "1"}, 0),
    ],
)
def test_when_a_message_is_due(values: dict[str, str], due: int) -> None:
    assert due_of(values, 1000, 50_000) == due


@pytest.mark.parametrize(
    "values",
    [
        {"TIMER_DELIVER_MS": "51001"},
        {"TIMER_DELAY_SEC": "51"},
        {"TIMER_DELAY_MS": "soon"},
        {"TIMER_DELAY_MS": ""},
        {"TIMER_DELAY_MS": "9" * 19},
        {"TIMER_DELIVER_MS": "1000", "TIMER_DEL_UNIQKEY": "T+1"},
    ],
)
def test_what_no_timer_can_keep_is_13(values: dict[str, str]) -> None:
    refusal = due_of(values, 1000, 50_000)
    assert isinstance(refusal, Refusal) and refusal.code == 13 and "timer message illegal" in refusal.remark


@given(left=st.integers(1, 40 * DAY))
def test_a_long_wait_is_in_stages_that_each_end_half_a_roll_before_it_is_over(left: int) -> None:
    now, out, stages = 1_700_000_000_000, 1_700_000_000_000 + left, 0
    while is_rolled(code := wait_code({"TIMER_OUT_MS": str(out)}, now)):
        assert now < code >> 2 <= now + ROLL and out - (code >> 2) >= ROLL // 2
        now, stages = code >> 2, stages + 1
    assert code >> 2 == out and stages <= 20


class Model:
    """A queue, a schedule over it, and what was delivered of it."""

    def __init__(self) -> None:
        self.queue: list[tuple[int, int, int]] = []
        self.schedule = TimerSchedule()
        self.delivered: list[int] = []
        self.now = 1000

    def put(self, after: int) -> None:
        code = wait_code({"TIMER_OUT_MS": str(self.now + after)}, self.now)
        self.queue.append((len(self.queue), 100, code))
        self.schedule.add(self.queue[self.schedule.next :])

    def deliver(self, room: int = 1000) -> None:
        for code, place in self.schedule.take(self.now, room):
            assert code >> 2 <= self.now
            self.delivered.append(place)
            self.schedule.stored(code, place)

    def restart(self, saved: dict[str, Any]) -> None:
        self.schedule = TimerSchedule()
        self.schedule.load(saved)
        self.schedule.start(0, len(self.queue))
        self.schedule.add(self.queue[self.schedule.next :])


STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 500)),
    st.tuples(st.just("pass"), st.integers(-300, 400)),
    st.tuples(st.just("deliver"), st.integers(1, 8)),
    st.tuples(st.just("stop"), st.just(0)),
)


def test_a_recall_is_known_over_a_stop_between_it_and_its_message() -> None:
    model = Model()
    model.schedule.start(0, 0)
    model.queue = [(0, 9, 2000 << 2 | 2), (1, 9, 2000 << 2 | 1)]
    model.schedule.add(model.queue)
    ((code, place),) = model.schedule.take(2000, 1)  # there is room for one
    model.schedule.recall(deletes("T", "u"), 2000)
    model.schedule.stored(code, place)
    model.restart(model.schedule.to_dict())
    ((_, place),) = model.schedule.take(2000, 9)
    assert place == 0 and model.schedule.is_recalled({"UNIQ_KEY": "u"}, "T")


@given(steps=st.lists(STEPS, max_size=60))
def test_over_stops_and_clocks_that_are_set_each_is_delivered_once_and_none_early(
    steps: list[tuple[str, int]],
) -> None:
    model = Model()
    for step, number in steps:
        if step == "put":
            model.put(number)
        elif step == "pass":
            model.now += number
        elif step == "deliver":
            model.deliver(number)
        else:
            model.restart(model.schedule.to_dict())
    model.now += 10_000
    model.deliver()
    assert sorted(model.delivered) == list(range(len(model.queue)))
    model.restart(model.schedule.to_dict())
    assert len(model.schedule) == 0 and model.schedule.next_due() is None and model.schedule.oldest is None


@given(steps=st.lists(STEPS, max_size=60), keep=st.integers(0, 60))
def test_after_a_crash_none_is_lost(steps: list[tuple[str, int]], keep: int) -> None:
    model = Model()
    saved = model.schedule.to_dict()
    for at, (step, number) in enumerate(steps):
        if at == keep:
            saved = model.schedule.to_dict()
        if step == "put":
            model.put(number)
        elif step == "pass":
            model.now += abs(number)
        else:
            model.deliver(number or 1)
    model.restart(saved)
    model.now += 10_000
    model.deliver()
    assert set(model.delivered) == set(range(len(model.queue)))


def test_a_million_that_wait_take_less_than_200_mb() -> None:
    """56 bytes each; a hundredth of them here."""
    import sys

    schedule = TimerSchedule()
    base = 1_700_000_000_000
    schedule.add([(place << 20, 300, (base + place * 7919 % (40 * DAY)) << 2 | 2) for place in range(10_000)])
    kept = sum(sys.getsizeof(key) + 8 for key in schedule._pending)
    assert len(schedule) == 10_000 and kept * 100 < 100_000_000


# ---- in a broker


def test_delivered_at_its_millisecond_with_what_apaches_consumers_see() -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        due = env.clock.wall_ms() + 12_345
        answer = await peer.send(b"timed", properties=f"TIMER_DELIVER_MS\x01{due}\x02UNIQ_KEY\x01U1\x02TAGS\x01a\x02")
        assert answer.code == 0 and answer.read(SendMessageResponseHeader).queue_id == 0
        assert RecallHandle.parse(recall_handle(answer)) == RecallHandle("T", "broker-a", due, "U1")
        await asyncio.sleep((due - env.clock.wall_ms() - 1) / 1000)
        assert broker.store.max_offset("T", 0) == 0
        await asyncio.sleep(0.05)
        (record,) = await delivered(peer)
        assert record.body == b"timed" and record.tag == "a" and due <= record.store_timestamp < due + 20
        found = record.properties
        assert (found["TIMER_DELIVER_MS"], found["TIMER_OUT_MS"]) == (str(due), str(due))
        assert (found["REAL_TOPIC"], found["REAL_QID"]) == ("T", "0")
        assert int(found["TIMER_ENQUEUE_MS"]) < due <= int(found["TIMER_DEQUEUE_MS"])
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_however_many_wait_one_deadline_is_armed() -> None:
    async def main(sim: Simulation) -> None:
        def armed() -> list[float]:
            """When those of the timers are."""
            driver = broker._parts.timers._driver
            handles = [handle for *_, handle in sim.loop._timers if not handle.cancelled()]
            return [each.when() for each in handles if getattr(each._callback, "__self__", None) is driver]

        host, broker = await started(sim, sim.env(), config())
        peer = SimPeer(sim, broker.address)
        assert armed() == []
        for seconds in (9, 3, 7, *range(20, 320)):
            assert (await peer.send(properties=f"TIMER_DELAY_SEC\x01{seconds}\x02")).code == 0
            assert len(armed()) == 1
        assert len(broker.timers) == 303 and armed() == [pytest.approx(3, abs=0.1)], "for the earliest"
        await asyncio.sleep(100)
        assert len(broker.timers) > 200 and len(armed()) == 1
        await asyncio.sleep(300)
        assert len(broker.timers) == 0 and armed() == []
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_forms_of_a_timer_and_what_is_due_already() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer = SimPeer(sim, broker.address)
        assert (await peer.send(b"past", properties="TIMER_DELIVER_MS\x015\x02")).code == 0
        assert (await peer.send(b"level", properties="DELAY\x011\x02TIMER_DELAY_SEC\x0160\x02")).code == 0
        assert (await peer.send(b"ms", properties="TIMER_DELAY_MS\x012500\x02")).code == 0
        assert (await peer.send(b"sec", properties="TIMER_DELAY_SEC\x013\x02")).code == 0
        assert (await peer.send(b"far", properties=f"TIMER_DELAY_SEC\x01{40 * 86_400 + 1}\x02")).code == 13
        assert (await peer.send(b"x", topic=TIMER_TOPIC)).code == 16
        assert await peer.drain() == [b"past"]
        await asyncio.sleep(1.5)
        assert await peer.drain() == [b"past", b"level"]
        assert not any(name.startswith("TIMER_") for name in (await delivered(peer))[1].properties)
        await asyncio.sleep(2)
        assert await peer.drain() == [b"past", b"level", b"ms", b"sec"]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_days_over_restarts_with_everything_in_the_newest_part_of_the_log() -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        settings = config(offset_flush_interval=3600)
        host, broker = await started(sim, env, settings)
        peer = SimPeer(sim, broker.address)
        for days in (6, 3, 1):
            assert (await peer.send(b"%d" % days, properties=f"TIMER_DELAY_SEC\x01{days * 86_400}\x02")).code == 0
        for day in range(1, 7):
            await asyncio.sleep(86_400)
            if day in (2, 5):
                await host.run(broker.close())
                await asyncio.sleep(60)
                host, broker = await started(sim, env, settings)
                assert len(broker.timers) == sum(days > day for days in (6, 3, 1))
        await asyncio.sleep(1)
        assert [record.body for record in await delivered(peer)] == [b"1", b"3", b"6"]
        assert (await delivered(peer))[2].properties["TIMER_ROLL_TIMES"] == "2"
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.seeds(4)
def test_none_is_lost_or_early_when_a_broker_dies(seed: int, power: bool) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        due: dict[bytes, int] = {}
        recalled: set[bytes] = set()
        for turn in range(4):
            peer = SimPeer(sim, broker.address)
            for number in range(40):
                body = b"%d-%d" % (turn, number)
                at = env.clock.wall_ms() + sim.loop.random.randrange(1, 30_000)
                answer = await peer.send(body, properties=f"TIMER_DELIVER_MS\x01{at}\x02")
                due[body] = at
                handle = answer.read(SendMessageResponseHeader).recall_handle
                if number % 7 == 0 and handle and (await recall(peer, handle)).code == 0:
                    recalled.add(body)
            await asyncio.sleep(sim.loop.random.uniform(0, 12))
            kill(host, disk, power=power)
            await peer.close()
            host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        await asyncio.sleep(40)
        records = await delivered(peer)
        assert {record.body for record in records} == set(due) - recalled
        assert all(record.store_timestamp >= due[record.body] for record in records)
        await host.run(broker.close())
        host, broker = await started(sim, env, config())
        await asyncio.sleep(40)
        assert len(await delivered(peer)) == len(records)  # a clean stop repeats nothing
        await peer.close()
        await host.run(broker.close())

    simulate(main, seed)


@pytest.mark.parametrize("wait", ["DELAY\x013\x02", "TIMER_DELAY_SEC\x0110\x02"])
def test_of_large_messages_that_are_due_together_few_are_read_in_a_turn(
    wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 of 4 MiB that had been sent back took 0.9 s, and once more a second later when the store took no more."""

    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config(store=StoreConfig(segment_size=64 << 20)))
        peer = SimPeer(sim, broker.address)
        for _ in range(24):
            assert (await peer.send(bytes(400_000), properties=wait)).code == 0
        read, busy = [0], True
        read_record, append = broker.store.read_record, broker.store.append

        def noted(place: int) -> bytes | None:
            if not read[-1]:
                asyncio.get_running_loop().call_soon(read.append, 0)
            data = read_record(place)
            read[-1] += len(data or b"")
            return data

        def refused(*args: Any, **options: Any) -> None:
            if busy:
                raise StoreBusyError("the disk is too slow for this rate")
            append(*args, **options)

        monkeypatch.setattr(broker.store, "read_record", noted)
        monkeypatch.setattr(broker.store, "append", refused)
        await asyncio.sleep(15)
        assert 400_000 <= sum(read) <= 10 * 401_000  # one a second
        busy = False
        await asyncio.sleep(2)
        assert len(await peer.drain()) == 24
        assert sum(read) >= 24 * 400_000 and max(read) <= 5_000_000
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("wait", ["DELAY\x013\x02", "TIMER_DELAY_SEC\x0110\x02"])
@pytest.mark.parametrize("place", ["read_record", "append"])
@pytest.mark.parametrize("error", [MemoryError(), AssertionError("nobody expects it")], ids=repr)
def test_what_could_not_be_delivered_for_want_of_memory_comes_again(
    wait: str, place: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was in flight until the broker's next start."""

    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer = SimPeer(sim, broker.address)
        for number in range(20):
            assert (await peer.send(str(number).encode(), properties=wait)).code == 0
        with monkeypatch.context() as patch:
            patch.setattr(broker.store, place, Mock(side_effect=error))
            await asyncio.sleep(15)
            tried = getattr(broker.store, place).call_count
        await asyncio.sleep(2)
        assert sorted(await peer.drain(), key=int) == [str(number).encode() for number in range(20)]
        if isinstance(error, MemoryError):
            assert tried <= 6
        await peer.close()
        await host.run(broker.close())

    simulate(main)
    assert 4 <= caplog.text.count("could not be delivered yet") <= 6  # one a second


def test_a_stop_while_many_are_due_repeats_none_and_loses_none() -> None:
    """They are moved in turns of the loop."""

    async def main(sim: Simulation) -> None:
        env = sim.env()
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        sent = [str(number).encode() for number in range(500)]
        due = env.clock.wall_ms() + 60_000
        for body in sent:
            assert (await peer.send(body, properties=f"TIMER_DELIVER_MS\x01{due}\x02")).code == 0
        begun, read_record = asyncio.Event(), broker.store.read_record

        def noted(place: int) -> bytes | None:
            begun.set()
            return read_record(place)

        broker.store.read_record = noted  # type: ignore[method-assign]  # its host ends here
        await begun.wait()
        assert broker.timers.in_flight == 500 and broker.store.max_offset("T", 0) == 0
        await peer.close()
        await host.run(broker.close())
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        await asyncio.sleep(40)
        assert sorted(await peer.drain()) == sorted(sent)
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_wall_clock_that_is_set_makes_none_early_and_repeats_none() -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        clock: Any = env.clock
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        await peer.send(b"hour", properties="TIMER_DELAY_SEC\x013600\x02")
        clock.skew_ms += 3_700_000
        await asyncio.sleep(11)
        assert await peer.drain() == [b"hour"]
        clock.skew_ms -= 3_700_000
        await peer.send(b"minute", properties="TIMER_DELAY_SEC\x0160\x02")
        await asyncio.sleep(30)
        await host.run(broker.close())
        host, broker = await started(sim, env, config())
        await asyncio.sleep(25)
        assert await peer.drain() == [b"hour"]
        await asyncio.sleep(10)
        assert await peer.drain() == [b"hour", b"minute"]
        await asyncio.sleep(4000)
        assert await peer.drain() == [b"hour", b"minute"]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_wait_code_of_another_moment_is_no_damage(caplog: pytest.LogCaptureFixture) -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        clock: Any = env.clock
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        await peer.send(b"now")
        clock.skew_ms -= 10_000  # the store's time stands still until the clock is as far again
        assert (await peer.send(b"long", properties=f"TIMER_DELAY_SEC\x01{10 * 86_400}\x02")).code == 0
        await host.run(broker.close())
        host, broker = await started(sim, env, config())
        assert len(broker.timers) == 1
        await peer.close()
        await host.run(broker.close())

    simulate(main)
    assert "contradicted the log" not in caplog.text


def test_a_broker_starts_with_a_damaged_wait_code() -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        assert (await peer.send(b"minute", properties="TIMER_DELAY_SEC\x0160\x02")).code == 0
        await host.run(broker.close())
        (units,) = [data for path, data in disk.files.items() if TIMER_TOPIC in path]
        units[15] ^= 0x40
        host, broker = await started(sim, env, config())
        await asyncio.sleep(61)
        assert await peer.drain() == [b"minute"]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("seed", range(3))
def test_a_recalled_message_is_not_delivered_also_when_the_broker_slept_over_both(seed: int) -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        host, broker = await started(sim, env, config(offset_flush_interval=3600))
        peer = SimPeer(sim, broker.address)
        handles = {}
        for name, seconds in ((b"short", 5), (b"kept", 5), (b"long", 10 * 86_400), (b"long kept", 10 * 86_400)):
            answer = await peer.send(
                name, properties=f"TIMER_DELAY_SEC\x01{seconds}\x02UNIQ_KEY\x01{name.decode()}\x02".replace(" ", "_")
            )
            handles[name] = recall_handle(answer)
        await asyncio.sleep(sim.loop.random.random())
        taken = await recall(peer, handles[b"short"])
        assert taken.code == 0 and taken.read(RecallMessageResponseHeader).msg_id == "short"
        await asyncio.sleep(6)
        assert await peer.drain() == [b"kept"]
        await asyncio.sleep(sim.loop.random.uniform(0, 86_400))
        assert (await recall(peer, handles[b"long"])).code == 0
        await asyncio.sleep(sim.loop.random.uniform(0, 3))
        await host.run(broker.close())
        await asyncio.sleep(30 * 86_400)
        host, broker = await started(sim, env, config())
        await asyncio.sleep(5)
        assert await peer.drain() == [b"kept", b"long kept"] and len(broker.timers) == 0
        await peer.close()
        await host.run(broker.close())

    simulate(main, seed)


def test_a_recall_is_met_before_its_message_also_when_the_store_refuses_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second passes while messages that are due are moved in turns: what the store refused in the first of them,
    and all that followed it, was tried again behind the last, and so the recall came after what it recalled."""
    monkeypatch.setattr("aiorocket.broker.due.RETRY_AFTER", 0.0)

    async def main(sim: Simulation) -> None:
        env = sim.env()
        clock: Any = env.clock
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        due = env.clock.wall_ms() + 3_600_000
        await peer.send(b"first", properties=f"TIMER_DELIVER_MS\x01{due - 1}\x02")
        others = [str(number).encode() for number in range(600)]
        for body in others:
            await peer.send(body, properties=f"TIMER_DELIVER_MS\x01{due}\x02")
        answer = await peer.send(b"recalled", properties=f"TIMER_DELIVER_MS\x01{due}\x02")
        assert (await recall(peer, recall_handle(answer))).code == 0
        append, refusals = broker.store.append, [StoreBusyError("the disk is too slow for this rate")]

        def refused(*args: Any, **options: Any) -> None:
            if refusals:
                raise refusals.pop()
            append(*args, **options)

        monkeypatch.setattr(broker.store, "append", refused)
        clock.skew_ms += 3_700_000  # all of it is due together
        await asyncio.sleep(15)
        assert sorted(await peer.drain()) == sorted([b"first", *others]) and not refusals
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("wait", ["DELAY\x011\x02", "TIMER_DELAY_SEC\x011\x02"])
def test_a_topic_that_is_being_deleted_holds_no_other_message_up(wait: str) -> None:
    """Whatever was due behind one for it came a second later, and again a second later while it went on."""

    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer = SimPeer(sim, broker.address)
        await peer.send(b"now", topic="going")
        await peer.send(b"going", topic="going", properties=wait)
        await peer.send(b"other", properties=wait)
        until: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone = broker.store.delete_topics("going", behind=until)
        await asyncio.sleep(1.5)
        assert await peer.drain() == [b"other"] and not gone.done()
        until.set_result(None)
        await gone
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_what_a_sender_writes_into_properties_stops_no_timer() -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        due = f"TIMER_DELIVER_MS\x01{env.clock.wall_ms() + 10 * 86_400_000}\x02"
        await peer.send(b"kept", properties=f"{due}UNIQ_KEY\x01u\x02TIMER_ROLL_TIMES\x01many\x02")
        await peer.send(b"another's", topic="U", properties=f"{due}TIMER_DEL_UNIQKEY\x01T+u\x02")
        await host.run(broker.close())
        await asyncio.sleep(11 * 86_400)
        host, broker = await started(sim, env, config())
        await asyncio.sleep(5)
        assert await peer.drain() == [b"kept"]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize(
    ("handle", "topic", "code"),
    [
        ("", "T", 604),
        ("!", "T", 604),
        (str(RecallHandle("T", "broker-a", 5, "u")), "T", 604),
        (str(RecallHandle("T", "broker-b", 5, "u")), "T", 604),
        (str(RecallHandle("U", "broker-a", 5, "u")), "T", 604),
        (str(RecallHandle("U", "broker-a", 5, "u")), "U", 17),
    ],
)
def test_a_recall_that_can_do_nothing_is_refused_as_by_apaches(handle: str, topic: str, code: int) -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer = SimPeer(sim, broker.address)
        await peer.send()
        answer = await recall(peer, handle, topic)
        assert answer.code == code and answer.remark
        assert broker.store.max_offset(TIMER_TOPIC, 0) == 0
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_recall_of_apaches_proxy_names_no_group_of_producers() -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        due = env.clock.wall_ms() + 5_000
        answer = await peer.send(b"timed", properties=f"TIMER_DELIVER_MS\x01{due}\x02UNIQ_KEY\x01U1\x02")
        recalled = await peer.call(370, RecallMessageRequestHeader("T", recall_handle(answer)))
        assert recalled.code == 0, recalled.remark
        await asyncio.sleep(10)
        assert broker.store.max_offset("T", 0) == 0
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_timers_wait_for_room_on_a_full_disk_and_have_a_limit() -> None:
    async def main(sim: Simulation) -> None:
        disk: SimDisk = sim.disk(capacity=1_000_000)
        store = StoreConfig(segment_size=64 * 1024, min_free=64 * 1024)
        host, broker = await started(sim, sim.env(disk=disk), config(store=store, limits=Limits(timers=1)))
        peer = SimPeer(sim, broker.address)
        taken = await peer.send(b"later", properties="TIMER_DELAY_SEC\x0160\x02")
        assert taken.code == 0
        for refused in (
            await peer.send(b"more", properties="TIMER_DELAY_SEC\x0160\x02"),
            await recall(peer, recall_handle(taken)),  # it would wait, too
        ):
            assert refused.code == 1 and "timers=1 " in (refused.remark or "")
        while (await peer.send(bytes(10_000), queue_id=1)).code == 0:
            pass
        full = 0
        while full < 5:
            full = full + 1 if (await peer.send(b"", queue_id=1)).code else 0
            await asyncio.sleep(0.3 if full else 0)
        await asyncio.sleep(70)
        assert await peer.drain() == [] and broker.timers.in_flight == 1
        disk.capacity += 10_000_000
        await asyncio.sleep(5)
        assert await peer.drain() == [b"later"]
        await peer.close()
        await host.run(broker.close())

    simulate(main)
