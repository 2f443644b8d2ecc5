"""Tables of hundreds of thousands of entries are saved in turns: few entries in each, and nothing that was there when a
save began is missing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiorocket.broker.core.locks import LockTable, QueueKey
from aiorocket.broker.core.offsets import ConsumerOffsets
from aiorocket.broker.core.turns import A_TURN, whole
from aiorocket.broker.state import BrokerState, LargeTable
from aiorocket.runtime.disk import MemoryDisk
from aiorocket.storage import Snapshot

MANY = 10 * A_TURN


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


@pytest.mark.parametrize("table", [offsets(1), offsets(8), locks(50), locks(MANY)], ids=["1", "8", "50", "one"])
def test_few_entries_are_read_in_a_turn(table: LargeTable) -> None:
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
