"""The key index: rules of keys, growth and pauses, restarts, damaged and stale parts."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from aiorocket.runtime.entropy import Entropy
from aiorocket.runtime.env import Env, memory_env
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.storage import MessageStore
from aiorocket.storage.key_part import Cut, Growing, hash_of, places_of
from aiorocket.testing import SimClock, SimDisk, SimLoop
from aiorocket_protocol import (
    SYS_FLAG_TRANSACTION_PREPARED,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    ProtocolError,
    RecordView,
    check_record,
    encode_properties,
    encode_record,
    find_property,
)
from tests.storage.stores import HOST, opened

END = 1 << 62


async def keep(store: MessageStore, body: bytes, topic: str = "T", sys_flag: int = 0, **properties: str) -> int:
    """Append and wait; the log offset."""
    future: Any = asyncio.get_running_loop().create_future()
    store.append(
        topic, 0, body, encode_properties(properties), flag=0, sys_flag=sys_flag, born_timestamp=7, born_host=HOST,
        tags_code=0, done=future.set_result,
    )  # fmt: skip
    place: int = (await future).physical_offset
    return place


async def found(
    store: MessageStore, key: str, topic: str = "T", begin: int = 0, end: int = END, **more: Any
) -> list[bytes]:
    options: dict[str, Any] = {"tag": False, "limit": 64, "max_bytes": 1 << 20, **more}
    records, missing = await store.keys.find(topic, key, begin, end, **options)
    assert not missing
    return [RecordView(record, 0, len(record)).raw_body for record in records]


def small_parts(store: MessageStore, entries: int = 50) -> None:
    store.keys._entries = entries


def part_files(env: Env) -> list[str]:
    disk = env.disk
    assert isinstance(disk, MemoryDisk)
    return sorted(path for path in disk.files if path.startswith("/store/index/"))


async def test_a_message_is_found_by_its_id_each_of_its_keys_and_its_tag() -> None:
    store = await opened()
    await keep(store, b"one", UNIQ_KEY="ID1", KEYS="order-1  customer-7", TAGS="paid")
    await keep(store, b"two", UNIQ_KEY="ID2", KEYS="order-2 customer-7")
    await keep(store, b"else", topic="U", UNIQ_KEY="ID3", KEYS="order-1")
    await keep(store, b"no key at all")
    assert await found(store, "ID1") == [b"one"] and await found(store, "order-2") == [b"two"]
    assert await found(store, "customer-7") == [b"one", b"two"]
    assert await found(store, "order-1") == [b"one"] and await found(store, "order-1", "U") == [b"else"]
    assert await found(store, "paid", tag=True) == [b"one"] and await found(store, "paid") == []
    assert await found(store, "order") == [] and await found(store, "") == [] and await found(store, "ID1", "V") == []
    await store.close()


async def test_the_newest_are_found_and_told_oldest_first() -> None:
    store = await opened()
    small_parts(store, 8)
    for number in range(40):
        await keep(store, b"%d" % number, KEYS="k", UNIQ_KEY=f"ID{number}")
    assert await found(store, "k", limit=3) == [b"37", b"38", b"39"]
    assert await found(store, "k", limit=100) == [b"%d" % number for number in range(40)]
    record = len(store.read_record(0) or b"")
    assert await found(store, "k", max_bytes=record * 2 + 20) == [b"38", b"39"]
    assert await found(store, "k", max_bytes=1) == [b"39"]
    await store.close()


async def test_a_lookup_ends_although_messages_come_as_fast_as_they_are_indexed() -> None:
    store = await opened()
    await keep(store, b"one", KEYS="k")
    step = store.keys._step

    async def slow(records: int) -> bool:
        await keep(store, b"more")
        return await step(records)

    store.keys._step = slow  # type: ignore[method-assign]  # what is indexed comes again meanwhile
    async with asyncio.timeout(60):
        assert await found(store, "k") == [b"one"]
    await store.close()


async def test_keys_of_others_with_the_same_hash_are_passed_over_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """CRC-32 is easily met on purpose: a lookup then read all of them in one turn, 20 us and more for each."""
    monkeypatch.setattr("aiorocket.storage.key_part.crc32", lambda *_: 7)
    store = await opened()
    await keep(store, b"wanted", KEYS="mine")
    for number in range(600):
        await keep(store, b"x", KEYS=f"other-{number}")
    reads = [0]
    read = store.keys._read

    def counted(place: int) -> bytes | None:
        if not reads[-1]:
            asyncio.get_running_loop().call_soon(reads.append, 0)
        reads[-1] += 1
        return read(place)

    monkeypatch.setattr(store.keys, "_read", counted)
    assert await asyncio.gather(found(store, "mine"), found(store, "mine")) == [[b"wanted"]] * 2
    assert sum(reads) > 1_200 and max(reads) <= 160
    await store.close()


async def test_of_lookups_that_come_together_one_works_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 that each found at once what they wanted held the loop for 2 to 3 s. When a message was stored is looked up in
    its head: to read ten of 4 MiB for it took 50 ms."""
    store = await opened()
    for number in range(100):
        await keep(store, b"%d" % number, KEYS="same")
    assert await found(store, "same")  # it is all indexed
    works, read = [0], store.keys._read

    def noted(place: int) -> bytes | None:
        if not works[-1]:
            asyncio.get_running_loop().call_soon(works.append, 0)
        works[-1] += 1
        return read(place)

    monkeypatch.setattr(store.keys, "_read", noted)
    each = len(await found(store, "same"))
    assert sum(works) == each
    await asyncio.gather(*(found(store, "same") for _ in range(20)))
    assert sum(works) == 21 * each and max(works) <= each
    await store.close()


async def test_a_rollback_has_no_keys_and_a_half_message_has() -> None:
    store = await opened()
    await keep(store, b"half", sys_flag=SYS_FLAG_TRANSACTION_PREPARED, KEYS="k")
    await keep(store, b"back", sys_flag=SYS_FLAG_TRANSACTION_ROLLBACK, KEYS="k")
    assert await found(store, "k") == [b"half"]
    await store.close()


async def test_only_what_was_stored_in_the_time_asked_for() -> None:
    env = memory_env()
    store = await opened(env)
    small_parts(store, 5)
    stamps = []
    for number in range(20):
        view = store.read_record(await keep(store, b"%d" % number, KEYS="k"))
        assert view is not None
        stamps.append(RecordView(view, 0, len(view)).store_timestamp)
        await asyncio.sleep(0.002)
    for low, high in ((0, 19), (3, 3), (0, 7), (9, 19), (4, 12)):
        expected = [b"%d" % number for number in range(20) if stamps[low] <= stamps[number] <= stamps[high]]
        assert await found(store, "k", begin=stamps[low], end=stamps[high]) == expected
    assert await found(store, "k", begin=stamps[-1] + 1) == [] and await found(store, "k", end=stamps[0] - 1) == []
    await store.close()


async def test_many_keys_over_segments_parts_and_restarts() -> None:
    """Everything is found, however the log is cut into segments and parts; parts are used again after a restart."""
    env = memory_env()
    pick = random.Random(5)
    expected: dict[str, list[bytes]] = {}
    store = await opened(env)
    small_parts(store)
    for number in range(600):
        if number in (200, 400):
            await found(store, "k0")
            await store.close()
            store = await opened(env)
            small_parts(store)
            assert len(store.keys.parts) == len(part_files(env)) > 0
        key = f"k{pick.randrange(40)}"
        body = b"%d:" % number + bytes(pick.choice((0, 10, 3000)))
        expected.setdefault(key, []).append(body)
        await keep(store, body, KEYS=key)
    for key, bodies in expected.items():
        assert await found(store, key) == bodies[-64:]
    assert store.keys.behind == 0 and len(part_files(env)) >= 11
    await store.close()


async def test_a_part_that_is_damaged_or_gone_is_made_again() -> None:
    env = memory_env()
    disk = env.disk
    assert isinstance(disk, MemoryDisk)
    store = await opened(env)
    small_parts(store, 20)
    bodies = [b"%d" % number for number in range(90)]
    for body in bodies:
        await keep(store, body, KEYS=f"all {body.decode()}")
    assert await found(store, "all", limit=100) == bodies[-100:]
    files = part_files(env)
    assert len(files) > 3
    disk.files[files[1]][-1] ^= 1  # an entry
    disk.files[files[3]][100] ^= 1  # the table; noticed by what it says
    assert await found(store, "all", limit=100) == bodies
    for body in bodies:
        assert await found(store, body.decode()) == [body]
    await store.close()
    disk.files[part_files(env)[0]][20] ^= 1
    disk.files[part_files(env)[2]][5000] ^= 1
    del disk.files[part_files(env)[1]]
    disk.files["/store/index/rubbish"] = bytearray(b"x")
    store = await opened(env)
    small_parts(store, 20)
    assert await found(store, "all", limit=100) == bodies and not any("rubbish" in path for path in part_files(env))
    await store.close()


async def test_a_part_in_the_midst_that_is_made_again_keeps_its_place() -> None:
    """What grows then is not the newest of the log: files stand behind it."""
    env = memory_env()
    store = await opened(env)
    small_parts(store, 20)
    bodies = [b"%d" % number for number in range(30)]
    for body in bodies:
        await keep(store, body, KEYS=f"all {body.decode()}")
    async with store.keys._one_at_a_time:
        while await store.keys._step(100):
            pass
    await store.close()
    _, midst, _ = part_files(env)
    env.disk.unlink(midst)
    store = await opened(env)
    small_parts(store, 30)
    assert await found(store, "all") == bodies
    assert await found(store, "all", limit=3) == bodies[-3:]
    await store.close()


async def test_parts_of_a_log_that_was_cut_are_not_used() -> None:
    """A power cut took the end of the log; other messages stand there now."""
    env = memory_env()
    disk = env.disk
    assert isinstance(disk, MemoryDisk)
    store = await opened(env, flush="async")
    small_parts(store, 10)
    places = [await keep(store, b"%d" % number, KEYS="k") for number in range(25)]
    assert len(await found(store, "k")) == 25 and len(part_files(env)) == 2
    await store.close()
    del disk.files["/store/commitlog/" + "0" * 20][places[15] :]
    del disk.files["/store/commitlog/" + "0" * 20 + ".sums"]  # or it would be known that more was durable
    for name in ("a", "b"):
        disk.files.pop(f"/store/checkpoint.{name}", None)
    store = await opened(env)
    assert len(part_files(env)) == 1
    await keep(store, b"other", KEYS="other")
    assert len(await found(store, "k")) == 15 and await found(store, "other") == [b"other"]
    await store.close()


async def test_it_grows_behind_checkpoints_and_waits_when_the_disk_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(MemoryDisk):
        failing = False

        def replace(self, path: str, data: bytes) -> None:
            if self.failing and "/index/" in path:
                raise OSError(28, "No space left on device")
            super().replace(path, data)

    env = Env(memory_env().clock, memory_env().entropy, disk := Failing())
    store = await opened(env, checkpoint_interval=0.01)
    small_parts(store, 10)
    disk.failing = True
    for number in range(30):
        await keep(store, b"%d" % number, KEYS="k")
    async with asyncio.timeout(30):
        while "waits for the next checkpoint" not in caplog.text:
            await asyncio.sleep(0.005)
    assert store.problem is None and not part_files(env)
    disk.failing = False
    async with asyncio.timeout(30):
        while store.keys.behind:
            await keep(store, b"more", KEYS="k")
            await asyncio.sleep(0.02)
    assert len(part_files(env)) >= 3
    await store.close()


async def test_damage_in_the_log_hides_nothing_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    env = memory_env()
    disk = env.disk
    assert isinstance(disk, MemoryDisk)
    store = await opened(env)
    first = [await keep(store, bytes(20_000) + b"%d" % number, KEYS="k") for number in range(9)]
    disk.files["/store/commitlog/" + "0" * 20][first[1] + 4] ^= 0xFF  # a magic
    bodies = await found(store, "k")
    assert [body[20_000:] for body in bodies] == [b"0", *(b"%d" % n for n in range(2, 9))]
    assert f"log offsets {first[1]} to {first[2]} are not in the key index" in caplog.text
    await store.close()


def record(pick: random.Random, topic: bytes, number: int, place: int) -> bytes:
    """One with properties that are hard to read, and now and then as few clients write it."""
    names, values = (
        ("KEYS", "UNIQ_KEY", "TAGS", "XKEYS", "TAG", "a"),
        ("", "k", "k l  m", "UNIQ_KEY", "\x01KEYS\x01", "é"),
    )
    pairs = [f"{pick.choice(names)}\x01{pick.choice(values)}" for _ in range(pick.randrange(5))]
    properties = "\x02".join(pairs).encode() + pick.choice((b"", b"\x02", b"\x02\x02"))
    host = b"\x7f\0\0\x01\0\0\x2a\x9f" if pick.random() < 0.8 else bytes(20)
    return encode_record(
        topic, bytes(pick.randrange(150)), properties, 0, number, place, 0, pick.choice((0, 4, 8, 12)), 7, host,
        1_000 + number, HOST, 0, 0,
    )  # fmt: skip


def test_what_is_taken_in_is_what_the_records_say() -> None:
    """In one look at the bytes of most of them; entries are those that views and ``find_property`` give."""
    pick = random.Random(11)
    data, expected, stamps = b"", [], []
    for number in range(600):
        topic = pick.choice((b"T", b"U", b"x" * 200, b"long" * 100))
        one = record(pick, topic, number, len(data))
        view = RecordView(one, 0, len(one))
        keys = [find_property(view.raw_properties, name) or b"" for name in (b"UNIQ_KEY", b"KEYS", b"TAGS")]
        keys = [keys[0], *keys[1].split(b" "), b"T#" + keys[2] if keys[2] else b""]
        if view.sys_flag & 12 != SYS_FLAG_TRANSACTION_ROLLBACK and any(keys):
            expected += [(hash_of(topic, key), len(data)) for key in keys if key]
            stamps.append(view.store_timestamp)
        data += one
    growing, cut = Growing(0), Cut(0, data, len(data))
    turns = 0
    while growing.take(cut, 64, 1 << 20):
        turns += 1
    assert growing.end == len(data) and growing.count == len(expected) > 300 and turns >= 600 / 64
    assert {at for number, _ in expected for at in places_of(number, growing.entries(number))} == {
        place for _, place in expected
    }
    assert all(place in places_of(number, growing.entries(number)) for number, place in expected)
    assert growing.part() == (0, len(data), stamps[0], stamps[-1])


def test_what_is_no_record_is_not_taken_in() -> None:
    pick = random.Random(12)
    records = [record(pick, b"T", number, 0) for number in range(6)]
    for one in records:
        for at in range(len(one)):
            broken = bytearray(one + records[0])
            broken[at] ^= 0x80
            growing, cut = Growing(0), Cut(0, bytes(broken), len(broken))
            growing.take(cut, 1, 1 << 20)
            try:
                size = check_record(broken, 0, check_crc=False)
            except ProtocolError:
                size = 0
            assert growing.end == size, at
        for end in range(len(one)):
            assert not Growing(0).take(Cut(0, one[:end], len(one)), 64, 1 << 20)


def test_the_further_it_is_behind_the_faster_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pauses that never change it was behind for ever, the further the longer."""
    loop = SimLoop(1)
    env = Env(SimClock(loop), Entropy(1), SimDisk(1))

    async def go() -> None:
        store = await opened(env, checkpoint_interval=1e6, segment_size=1 << 22)
        for _ in range(2):
            for _ in range(10):
                await asyncio.gather(*(keep(store, bytes(1_000), KEYS="k") for _ in range(64)))
            began = loop.time()
            store.keys.keep_up()
            while store.keys.behind:
                await asyncio.sleep(0.001)
            took.append(loop.time() - began)
            monkeypatch.setattr("aiorocket.storage.key_index._FAR", 32 << 10)
        await store.close()

    took: list[float] = []
    loop.run_until_complete(go())
    loop.close()
    assert took[0] > 0.018 and took[1] < took[0] / 3


def test_a_lookup_answers_after_a_second_and_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It read all that was left, for minutes where that was much, and nobody waits so long."""
    loop = SimLoop(1)
    env = Env(SimClock(loop), Entropy(1), SimDisk(1))

    async def go() -> None:
        store = await opened(env, checkpoint_interval=1e6)
        options: dict[str, Any] = {"tag": False, "limit": 1_000, "max_bytes": 1 << 20}
        for number in range(600):
            await keep(store, b"%d" % number, KEYS="k")
        step = store.keys._step

        async def slow(records: int) -> bool:
            await asyncio.sleep(0.6)
            return await step(records)

        monkeypatch.setattr(store.keys, "_step", slow)
        began, upto = loop.time(), store.max_physical
        found, missing = await store.keys.find("T", "k", 0, END, **options)
        assert 1 <= loop.time() - began < 2
        assert 0 < len(found) < 600 and RecordView(found[-1], 0, len(found[-1])).raw_body == b"%d" % (len(found) - 1)
        last = RecordView(found[-1], 0, len(found[-1]))
        assert store.keys.reached == (last.store_timestamp, last.physical_offset + last.size)
        assert missing == upto - store.keys.reached[1] == store.keys.behind
        monkeypatch.undo()
        found, missing = await store.keys.find("T", "k", 0, END, **options)
        assert (len(found), missing) == (600, 0)
        await store.close()

    loop.run_until_complete(go())
    loop.close()


async def test_others_have_their_turns_while_a_lookup_reads_what_is_left() -> None:
    store = await opened(checkpoint_interval=1e6)
    await asyncio.gather(*(keep(store, b"x", KEYS=f"k{number}") for number in range(3_000)))
    turns = 0
    lookup = asyncio.ensure_future(found(store, "k0"))
    while not lookup.done():
        turns += 1
        await asyncio.sleep(0)
    assert await lookup == [b"x"] and turns >= 3_000 / 256
    await store.close()


def test_a_segment_that_was_compacted_meanwhile_is_read_on(caplog: pytest.LogCaptureFixture) -> None:
    """Where the index left off no record begins any more."""
    loop = SimLoop(1)
    env = Env(SimClock(loop), Entropy(1), SimDisk(1))

    async def go() -> None:
        store = await opened(env, max_log_bytes=65_536, retention_interval=1e9)
        store.retention.needed = lambda: {("keep", 0): 0}
        gone = []
        for number in range(40):
            gone.append([await keep(store, bytes(3_000)) for _ in range(2)][1])
            await keep(store, b"%d" % number, topic="keep", KEYS="k")
        await store.retention.sweep()
        assert store.read_record(gone[3]) is None
        store.keys._growing = Growing(gone[3])
        assert await found(store, "k", "keep") == [b"%d" % number for number in range(3, 40)]
        assert "not in the key index" not in caplog.text
        await store.close()

    loop.run_until_complete(go())
    loop.close()
