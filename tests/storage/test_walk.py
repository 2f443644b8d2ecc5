"""Runs of records that are plain are read at once; that finds what reading them one by one finds."""

from __future__ import annotations

from array import array

import pytest

from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.storage import walk
from aiorocket.storage.checksums import PAGE, Checksums, Entries
from aiorocket.storage.walk import Bad, Found
from aiorocket_protocol import encode_blank, encode_record
from tests.storage.stores import HOST, HOST_V6

BASE = 1 << 20
#: Bytes of the body and of the topic (a long one has another magic), and the host.
RECORDS = [
    (5, 3, HOST), (0, 1, HOST), (300, 127, HOST), (7, 9, HOST_V6), (5, 3, HOST), (5, 200, HOST), (PAGE, 3, HOST),
    (5, 3, HOST), (5, 3, HOST),
]  # fmt: skip


def segment(number: int = -1, at: int = 0, byte: int = 0, *, vouched: bool = False) -> tuple[bytearray, Entries]:
    """A log, and the checksums of all but its last record. One byte of one record is another: since it was written, or
    from the beginning (``vouched``)."""
    data, sums, rows = bytearray(), Checksums(), list[int]()
    for each, (body, topic, host) in enumerate(RECORDS):
        written = encode_record(
            b"T" * topic, bytes([each]) * body, b"TAGS\1a", 3, each, BASE + len(data), 0, 0, 5, host, 9, host
        )
        changed = bytearray(written)
        if each == number:
            changed[at] = byte
        if each < len(RECORDS) - 1:
            rows += sums.add([bytes(changed) if vouched else written])
        data += changed
    ends, end = array("Q"), 0
    for size in rows[::2]:
        end += size
        ends.append(end)
    return data + encode_blank(64), Entries(ends, array("I", rows[1::2]), BASE, BASE, 0, False)


def disk_of(data: bytearray) -> MemoryDisk:
    disk = MemoryDisk()
    disk.files["/segment"] = data
    return disk


def found(data: bytearray, entries: Entries, durable: int | None = None) -> list[object]:
    items = list[object]()
    for item in walk.walk(disk_of(data), "/segment", BASE, len(data), entries, BASE, durable):
        if isinstance(item, Found):
            end = item.start + item.size
            items.append((item[:6], item.buffer[item.start : end], item.buffer[item.properties : end]))
        else:
            items.append(item)
    return items


def test_every_record_is_found_in_runs() -> None:
    data, entries = segment()
    items = list(walk.walk_runs(disk_of(data), "/segment", BASE, len(data), entries, BASE))
    assert [len(item) for item in items if not isinstance(item, Bad)] == [3, 1, 1, 1, 2, 1]
    assert [row[4] for item in items if not isinstance(item, Bad) for row in item] == list(range(len(RECORDS)))


@pytest.mark.parametrize("vouched", [False, True])
@pytest.mark.parametrize("number", [0, 2, 3, 7, 8])
@pytest.mark.seeds(4)  # each one byte of four
def test_a_changed_byte_is_found_as_one_by_one(
    number: int, vouched: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "_WINDOW", PAGE)
    for at in range(-9 + seed, 94, 4):
        # (No topic here that is not UTF-8: whoever reads runs looks at it.)
        for byte in (0, 1, 16, 48, 127, *([255] if 0 <= at < 88 else [])):
            data, entries = segment(number, at, byte, vouched=vouched)
            for durable in (None, BASE + 100):
                at_once = found(data, entries, durable)
                with monkeypatch.context() as patch:
                    patch.setattr(walk, "_plain", lambda *_: [])
                    assert at_once == found(data, entries, durable), (number, at, byte)
