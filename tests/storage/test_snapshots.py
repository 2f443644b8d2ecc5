"""Snapshot: atomic, two generations, newest valid wins."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.errors import StoreCorruptedError
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.storage import Snapshot, snapshots
from aiorocket.testing import SimDisk


def made(disk: MemoryDisk) -> Snapshot:
    disk.makedirs("d")
    return Snapshot(disk, "d/state")


def test_what_is_saved_is_loaded() -> None:
    disk = MemoryDisk()
    snapshot = made(disk)
    assert snapshot.load() is None
    for number in range(5):
        snapshot.save({"number": number, "text": "ü\n\0"})
        assert Snapshot(disk, "d/state").load() == {"number": number, "text": "ü\n\0"}
    assert disk.listdir("d") == ["state.a", "state.b"]


@pytest.mark.parametrize("newest", [True, False])
def test_one_damaged_generation_leaves_the_other(newest: bool) -> None:
    disk = MemoryDisk()
    snapshot = made(disk)
    snapshot.save({"number": 1})  # both
    snapshot.save({"number": 2})  # state.b
    image = {path: bytes(data) for path, data in disk.files.items()}
    path = "/d/state.b" if newest else "/d/state.a"
    good = image[path]
    damaged = [good[:cut] for cut in range(len(good))]
    damaged += [good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :] for at in range(len(good)) for bit in (1, 4, 32)]
    for data in damaged:
        disk.files = {name: bytearray(content) for name, content in image.items()}
        disk.files[path][:] = data
        again = Snapshot(disk, "d/state")
        assert again.load() == ({"number": 1} if newest else {"number": 2})
        again.save({"number": 3})
        assert Snapshot(disk, "d/state").load() == {"number": 3}


@pytest.mark.parametrize("saves", range(1, 5))
@pytest.mark.parametrize("name", "ab")
def test_a_file_that_is_gone_leaves_the_other_or_is_missed(saves: int, name: str) -> None:
    disk = MemoryDisk()
    snapshot = made(disk)
    for number in range(saves):
        snapshot.save({"number": number})
    disk.unlink(f"d/state.{name}")
    again = Snapshot(disk, "d/state")
    assert again.load() == {"number": saves - 1} or "missing" in again.problems[0]


def test_no_valid_generation_is_an_error_that_names_the_files() -> None:
    disk = MemoryDisk()
    snapshot = made(disk)
    snapshot.save({})
    for data in disk.files.values():
        data[:] = b"rubbish"
    with pytest.raises(StoreCorruptedError, match=r"d/state\.b"):
        Snapshot(disk, "d/state").load()


def test_a_failed_save_keeps_the_state_and_the_next_one_works() -> None:
    for call in range(1, 12):
        disk = SimDisk(call)
        snapshot = made(disk)
        snapshot.save({"number": 1})
        disk.fail(call, errno.ENOSPC)
        try:
            snapshot.save({"number": 2})
        except OSError:
            disk.crash()
            assert Snapshot(disk, "d/state").load() in ({"number": 1}, {"number": 2})
        disk.crash()
        disk._failures.clear()
        again = Snapshot(disk, "d/state")
        again.load()
        again.save({"number": 3})
        disk.crash()
        assert Snapshot(disk, "d/state").load() == {"number": 3}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(value=st.dictionaries(st.text(max_size=3), _JSON, max_size=4), piece=st.integers(1, 4))
def test_the_pieces_of_a_state_are_its_json(value: dict[str, Any], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "_A_PIECE", piece)
        assert "".join(snapshots._pieces(value)) == json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize(
    "value",
    [
        {"offsetTable": {f"t{n}@g": {str(queue): 7 for queue in range(8)} for n in range(1_000)}},
        {"queues": {"t": [[queue, 0, 9] for queue in range(5_000)]}, "start": 0},
        {"locks": [["g", "t", "b", queue, "somebody", 3] for queue in range(5_000)], "counter": 5_000},
    ],
)
def test_no_piece_of_a_large_state_is_large(value: dict[str, Any]) -> None:
    """One call of the encoder keeps the interpreter from the loop's thread until it returns."""
    assert max(map(len, snapshots._pieces(value))) < 30_000
