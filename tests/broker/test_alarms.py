"""Alarms: what raises each, what is said of it, and when that ends."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.broker import alarms as watching
from aiorocket.broker.core.alarms import ALARMS, MOST_NAMED, SAID_EVERY, AlarmBoard, Growing, Rising
from aiorocket.broker.lags import lags
from aiorocket.client.admin.brokers import BrokerRuntime
from aiorocket.client.admin.doctor import _of_runtime
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import KVTable, decode_body
from tests.broker.peer import Peer, heartbeat, running
from tests.broker.test_sim import SimPeer, config, kill, started


def table() -> str:
    """The table of docs/operating.md."""
    rows = [f"| `{name}` | {alarm.when} | {alarm.advice} |" for name, alarm in ALARMS.items()]
    return "\n".join(("| alarm | when | what to do |", "|---|---|---|", *rows)) + "\n"


def test_the_page_has_every_alarm() -> None:
    assert table() in (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")


def test_what_grows_without_falling_is_growing() -> None:
    growing = Growing(looks=3, growth=10)
    assert [growing.look({"g": value, "still": 50}) for value in (0, 5, 5, 9)] == [{}] * 4
    assert growing.look({"g": 10}) == {"g": 10} and growing.look({"g": 12}) == {"g": 12}
    assert growing.look({"g": 11}) == {}, "it catches up"
    assert growing.look({}) == {} and growing.look({"g": 1000}) == {}, "a group that is new has not grown"


@given(st.lists(st.integers(0, 50), max_size=30))
def test_growing_is_what_its_numbers_say(values: list[int]) -> None:
    growing, run = Growing(looks=3, growth=10), list[int]()
    for value in values:
        run = [*run, value] if run and value >= run[-1] else [value]
        grown = run[-1] - run[0]
        assert growing.look({"g": value}) == ({"g": grown} if len(run) > 3 and grown >= 10 else {})


def test_what_rose_is_rising_for_a_while() -> None:
    rising = Rising(recent=100)
    assert rising.look(0, {"g": 0}) == {}
    assert rising.look(10, {"g": 2, "new": 1}) == {"g": 2, "new": 1}
    assert rising.look(100, {"g": 5, "new": 1}) == {"g": 5, "new": 1}
    assert rising.look(111, {"g": 5, "new": 1}) == {"g": 5}
    assert rising.look(201, {"g": 5}) == {} and rising.look(202, {"g": 6}) == {"g": 1}


def test_an_alarm_is_said_once_an_hour_and_again_when_it_comes_back_later() -> None:
    board = AlarmBoard()
    (line,) = board.look(0, {"disk_low": {"": "3.0% of the disk are free"}})
    assert line.startswith("alarm disk_low: 3.0% of the disk are free; what to do: make room")
    assert board.look(1, {"disk_low": {"": "2.9% of the disk are free"}}) == []
    assert board.texts() == ["disk_low: 2.9% of the disk are free"]
    assert board.look(2, {"disk_low": {}}) == [] and board.texts() == []
    assert board.look(3, {"disk_low": {"": "x"}}) == [], "it comes and goes"
    assert len(board.look(SAID_EVERY, {"disk_low": {"": "x"}})) == 1
    assert board.look(2 * SAID_EVERY, {"disk_low": {}}) == [] and not board._said
    many = {f"g{number}": "1 messages" for number in range(MOST_NAMED + 7)}
    assert len(board.look(0, {"dead_letters": many})) == MOST_NAMED + 1 and len(board.texts()) == MOST_NAMED + 1
    assert board.raised["dead_letters"]["..."] == "7 more"
    assert board.report()["alarm_dead_letters"].startswith("g0: 1 messages; g1: ")


async def test_a_broker_watches_itself(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as broker:
        peer = await Peer.connect(broker.port)
        await peer.create_topic("T", 1)
        other = await Peer.connect(broker.port)
        for each, topics in ((peer, ("T",)), (other, ("T", "U"))):
            assert (await each.call(34, None, heartbeat(f"c{len(topics)}", *topics))).code == 0
        broker.counters.dead_letters["g"] += 2
        broker.counters.stale_commits["g"] += 1
        stuck = object()
        store = type(broker.store)
        monkeypatch.setattr(store, "flushing", stuck)
        monkeypatch.setattr(store, "problem", "no space for messages")
        monkeypatch.setattr(broker.store.retention, "space", lambda: (1000, 149))
        monkeypatch.setattr(watching, "_FLUSH_LOOK", 0.01)
        monkeypatch.setattr(watching, "_LOOK", 0.02)
        lag = iter(range(0, 10**9, 100))
        monkeypatch.setattr(watching, "lags", lambda *_: _each((("g", "T"), next(lag))))
        with caplog.at_level(logging.WARNING, "aiorocket.alarms"):
            watch = asyncio.ensure_future(watching.keep_watching(broker))
            async with asyncio.timeout(30):
                while "flush_slow" not in caplog.text or "lag_growing" not in caplog.text:
                    await asyncio.sleep(0.01)
            raised = {name: set(things) for name, things in broker.alarms.raised.items() if things}
            assert raised == {
                "flush_slow": {""}, "write_dead": {""}, "disk_low": {""}, "dead_letters": {"g"},
                "lock_conflicts": {"g"}, "subscriptions_differ": {"g"}, "lag_growing": {"g"},
            }  # fmt: skip
            assert "alarm dead_letters g: 2 messages were given up of late; what to do: `aiorocket dlq" in caplog.text
            values = decode_body(KVTable, (await peer.call(28)).body, 0).table
            found = {each.check: each for each in _of_runtime(BrokerRuntime("broker-a", "", "", values), 0)}
            assert found["store"].level == "error" and "no space" in found["store"].finding
            assert found["alarm flush_slow"].advice == ALARMS["flush_slow"].advice
            assert "alarm disk_low" not in found, "of which there is a finding for every broker"
            monkeypatch.setattr(store, "problem", None)
            async with asyncio.timeout(30):
                while broker.alarms.raised["write_dead"]:
                    await asyncio.sleep(0.01)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        await peer.close()
        await other.close()


async def _each(*things: Any) -> AsyncIterator[Any]:
    for thing in things:
        yield thing


async def test_a_disk_that_does_not_say_how_full_it_is_ends_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is when an operator needs it."""

    def gone(disk: MemoryDisk, path: str) -> int:
        raise OSError(5, "Input/output error")

    async with running() as broker:
        monkeypatch.setattr(MemoryDisk, "free_bytes", gone)
        monkeypatch.setattr(type(broker.store), "problem", "the disk failed")
        monkeypatch.setattr(watching, "_FLUSH_LOOK", 0.01)
        monkeypatch.setattr(watching, "_LOOK", 0.01)
        watch = asyncio.ensure_future(watching.keep_watching(broker))
        async with asyncio.timeout(30):
            while not watch.done() and not broker.alarms.raised["write_dead"]:
                await asyncio.sleep(0.01)
        assert not watch.done() and not broker.alarms.raised["disk_low"]
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def test_pairs_that_nobody_asks_the_lag_of_are_counted_in_turns() -> None:
    """Tens of thousands of groups and topics do not hold the loop, each minute, however few of them are looked at."""
    topic = SimpleNamespace(read_queues=1)
    broker: Any = SimpleNamespace(
        store=SimpleNamespace(min_offset=lambda *_: 0, max_offset=lambda *_: 5),
        configs=[SimpleNamespace(name="g")],
        offsets=SimpleNamespace(pairs=lambda: [("g", f"t{number}") for number in range(10_000)], query=lambda *_: 1),
        topics=SimpleNamespace(get=lambda name: topic),
        consumers={},
    )
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    found = [lag async for _, lag in lags(broker, 3)]
    counting.cancel()
    assert found == [4] * 3 + [0] * 9_997 and turns >= 15


def test_a_sync_that_fails_ends_writing_until_a_restart_and_raises_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(file: object) -> asyncio.Future[None]:
        (future := asyncio.get_running_loop().create_future()).set_exception(OSError(errno.EIO, "no sync"))
        return future

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        host, broker = await started(sim, sim.env(disk=disk), config())
        peer = SimPeer(sim, broker.address)
        assert (await peer.send(b"kept")).code == 0
        watch = asyncio.ensure_future(watching.keep_watching(broker))
        await asyncio.sleep(30)
        assert not broker.alarms.raised["write_dead"]
        monkeypatch.setattr(disk, "sync", failing)
        assert [(await peer.send(b"unknown")).code for _ in range(3)] == [1, 14, 14]
        await asyncio.sleep(30)
        assert "restart" in str(broker.alarms.raised["write_dead"])
        assert await peer.drain() == [b"kept"] and (await peer.send()).code == 14
        watch.cancel()
        await peer.close()
        kill(host, disk, power=True)
        monkeypatch.undo()
        host, broker = await started(sim, sim.env(disk=disk), config())
        peer = SimPeer(sim, broker.address)
        assert (await peer.send(b"more")).code == 0
        found = await peer.drain()
        assert found[0] == b"kept" and found[-1] == b"more" and len(found) <= 3
        await peer.close()
        await host.run(broker.close())

    simulate(main)
