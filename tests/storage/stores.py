"""Shared by the storage tests: a short way to append, read back and look at records."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from aiorocket.config import StoreConfig
from aiorocket.runtime.disk import Disk
from aiorocket.runtime.env import Env, memory_env
from aiorocket.storage import MessageStore, PutResult, ReadStatus
from aiorocket.storage.checksums import PAGE, encode_head, load, read_entries
from aiorocket_protocol import RecordView, encode_properties, split_records, tags_code

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
HOST_V6 = bytes(15) + b"\1" + (10911).to_bytes(4, "big")
SMALL: dict[str, Any] = {"segment_size": 65_536, "min_free": 0, "checkpoint_interval": 0.05, "flush_interval": 0.01}


def config(**changes: Any) -> StoreConfig:
    return StoreConfig(**{**SMALL, **changes})


async def opened(env: Env | None = None, directory: str = "store", **changes: Any) -> MessageStore:
    return await MessageStore.open(env or memory_env(), config(**changes), directory, store_host=HOST)


def put(
    store: MessageStore, topic: str = "T", queue_id: int = 0, body: bytes = b"x", tag: str = "", **more: Any
) -> asyncio.Future[PutResult]:
    """Append and get a future of the result; refusals raise at once."""
    future: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()
    properties = encode_properties({"TAGS": tag}) if tag else b""
    values: dict[str, Any] = {
        "flag": 0, "sys_flag": 0, "born_timestamp": 7, "born_host": HOST, "tags_code": tags_code(tag), **more
    }  # fmt: skip
    store.append(topic, queue_id, body, properties, done=future.set_result, **values)
    return future


def put_batch(
    store: MessageStore, bodies: Sequence[bytes], topic: str = "T", queue_id: int = 0
) -> asyncio.Future[PutResult]:
    future: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()
    store.append_batch(
        topic,
        queue_id,
        [(body, 0, b"") for body in bodies],
        [0] * len(bodies),
        sys_flag=0,
        born_timestamp=7,
        born_host=HOST,
        done=future.set_result,
    )
    return future


def everything(
    store: MessageStore, topic: str = "T", queue_id: int = 0, step: int = 32, max_bytes: int = 1 << 20
) -> list[RecordView]:
    """All visible records of a queue, read the way a consumer does; checks that the offsets are dense."""
    views: list[RecordView] = []
    offset = store.min_offset(topic, queue_id)
    while True:
        result = store.read(topic, queue_id, offset, step, max_bytes)
        if result.status is not ReadStatus.FOUND:
            assert offset == store.max_offset(topic, queue_id), result
            return views
        found = split_records(result.data)
        assert len(found) == result.count
        for view in found:
            assert view.queue_offset == offset and view.queue_id == queue_id and view.topic == topic
            offset += 1
        assert result.next_offset == offset
        views += found


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0, step: int = 32) -> list[bytes]:
    return [view.raw_body for view in everything(store, topic, queue_id, step)]


def intact(store: MessageStore, topic: str = "T", queue_id: int = 0, step: int = 32) -> dict[int, bytes]:
    """Bodies by queue offset, read over gaps as a consumer does."""
    found: dict[int, bytes] = {}
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.read(topic, queue_id, offset, step, 1 << 20)
        assert result.next_offset > offset, result
        if result.status is ReadStatus.FOUND:
            for view in split_records(result.data):
                assert (view.topic, view.queue_id, view.queue_offset) == (topic, queue_id, offset)
                found[offset] = view.raw_body
                offset += 1
        else:
            assert result.status is ReadStatus.MESSAGE_WAS_REMOVING, result
        offset = result.next_offset
    return found


def as_format_2(disk: Disk, directory: str = "store/commitlog") -> None:
    """Checksum files as a program of format 2 would have written them: they say nothing of queues."""
    for name in [name for name in disk.listdir(directory) if name.endswith(".sums")]:
        path, base = f"{directory}/{name}", int(name[:20])
        entries, sums = read_entries(disk, path, base), load(disk, path, base)
        assert entries is not None
        begins = [0, *entries.ends][:-1]
        rows = [(end - begin, crc) for begin, end, crc in zip(begins, entries.ends, entries.crcs, strict=True)]
        data = encode_head(base, 2) + _old_block(rows, base, entries.durable, entries.replay)
        if sums is not None:
            pages = [(PAGE, crc) for crc in sums.pages]
            last = [(sums.last[0] % PAGE, sums.last[1])] if sums.last[0] % PAGE else []
            summary = _old_block(pages + last, base, entries.durable, entries.replay)
            data += summary + len(summary).to_bytes(4, "big")
        disk.replace(path, data)


def _old_block(rows: Sequence[tuple[int, int]], base: int, durable: int, replay: int) -> bytes:
    rest = struct.pack(">IQQQ", len(rows), base, durable, replay) + b"".join(struct.pack(">II", *row) for row in rows)
    return crc32(rest).to_bytes(4, "big") + rest
