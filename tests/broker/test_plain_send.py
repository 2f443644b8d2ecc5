"""A run of plain sends leaves the same bytes, answers and state as each of them by itself, whatever comes.

Python's way of it is compared, and the compiled one where the distribution in protocol/speedups is installed (see
tests/protocol/test_speedups.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorocket.broker import plain_send
from aiorocket.broker.broker import Broker
from aiorocket.broker.handlers import send
from aiorocket.config import BrokerConfig, Limits, RemotingConfig, StoreConfig
from aiorocket.remoting.connection import Connection, Frame
from aiorocket.runtime.tasks import TaskScope
from aiorocket.storage.block import Block
from aiorocket.storage.consume_queue import ConsumeQueue
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket.storage.tail_cache import TailCache
from aiorocket.testing.sim import Simulation, simulate
from aiorocket_protocol import (
    EXT_ONCE,
    MSGPACK,
    READ_SIZE,
    GetMaxOffsetRequestHeader,
    RemotingCommand,
    RequestCode,
    SendMessageRequestHeaderV2,
    encode,
    encode_batch,
    split_records,
)
from aiorocket_protocol.fast import compiled
from tests.broker.peer import running, send_header

needs_compiled = pytest.mark.skipif(
    compiled("PlainSends") is None, reason="aiorocketmq-speedups is not installed (pip install ./protocol/speedups)"
)
#: Who takes runs of sends, by name; what says so to a broker that is made meanwhile.
WAYS: dict[str, Any] = {"python": lambda _name: None}
if compiled("PlainSends") is not None:
    WAYS["compiled"] = compiled
each_way = pytest.mark.parametrize("way", WAYS)

ID = "UNIQ_KEY\x010A000001000100000001000000010001\x02"


class Pipe(asyncio.Transport):
    """What a server wrote."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.9", 4242), "sockname": ("10.0.0.1", 10911)})
        self.data = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.data += bytes(data)

    def writelines(self, parts: Any) -> None:
        self.data += b"".join(map(bytes, parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


def outcome(
    chunks: Sequence[bytes], *, plain: str, seen: list[bool], fail: bool = False, around: bool = False, **settings: Any
) -> Any:
    """What a broker that got ``chunks`` from one connection answered, stored and counts. ``plain`` names who takes
    runs, nobody if empty; ``fail`` tells the last one that the disk is full, ``around`` puts something before the
    handler that knows of limits."""
    found: list[Any] = []

    async def drive(simulation: Simulation) -> None:
        simulation.network.random = random.Random(1)
        broker = Broker(simulation.env(), BrokerConfig(host="127.0.0.1", advertise="10.0.0.1", port=10911, **settings))
        await broker.start()
        store, log = broker.store, broker.store._log
        processors = broker.server.processors
        assert processors.plain is not None
        run = processors.plain

        def watched(connection: Connection, frames: list[Frame]) -> bool:
            before = len(frames)
            took = run(connection, frames)
            seen.extend([True] * (before - len(frames)) if took else [False])
            return took

        async with TaskScope("test") as tasks:
            connection = Connection(
                asyncio.get_running_loop(), broker.server.config, processors.dispatch, tasks, is_client=False,
                shared=memoryview(bytearray(READ_SIZE)),
            )  # fmt: skip
            connection.plain = watched if plain else None
            pipe = Pipe()
            connection.connection_made(pipe)
            # The first one says that the peer speaks msgpack, and makes the topic's queues.
            for first in (0, 1):
                feed(connection, frame(send_header("T", first, default_topic_queue_nums=4, properties=ID), b"first"))
            await asyncio.sleep(1)
            if around:
                code = RequestCode.SEND_MESSAGE_V2
                processors.replace(code, partial(processors.handler(code)))
            for chunk in chunks:
                feed(connection, chunk)
                if fail:
                    for done in log.group.dones[-1:]:
                        done(PutResult(PutStatus.FULL, 0, 0, 0))
                await asyncio.sleep(0)
            await asyncio.sleep(1)
            queues = sorted((key, queue) for key, queue in store._queues.items() if key[0] == "T")
            found.extend(
                (pipe.data, pipe.closed, connection._in_flight, connection._out_bytes, connection.close_reason)
            )
            found.extend((log.end, log.pending, log.scheduled, store.timestamp, store._tail.size))
            for (topic, queue_id), queue in queues:
                read = store.read(topic, queue_id, 0, 1000, 1 << 24)
                found.extend((queue_id, queue.next_offset, queue.max_offset, queue.marked, b"".join(read.pieces)))
                found.append(store.entries(topic, queue_id, 0, 1000))
            connection.close("done")
            connection.connection_lost(None)
        await broker.close()

    with patch.object(plain_send, "compiled", WAYS[plain or "python"]):
        simulate(drive)
    return found


def feed(connection: Connection, data: bytes) -> None:
    while data:
        buffer = connection.get_buffer(-1)
        part = data[: len(buffer)]
        buffer[: len(part)] = part
        connection.buffer_updated(len(part))
        data = data[len(part) :]


def frame(header: Any, body: bytes, code: int = RequestCode.SEND_MESSAGE_V2, **changes: Any) -> bytes:
    command = RemotingCommand(code, header=header, body=body, **{"opaque": 77, **changes})
    return encode(command, MSGPACK)


def same(chunks: Sequence[bytes], way: str = "compiled", **more: Any) -> list[bool]:
    """Runs are as single sends; which frames were taken in them."""
    seen: list[bool] = []
    in_runs = outcome(chunks, plain=way, seen=seen, **more)
    assert in_runs == outcome(chunks, plain="", seen=[], **more)
    return seen[2:]  # behind the two that come first


NUMBER = st.sampled_from([0, 1, 2, 3, 4, 7, -1, 8, 12, 127, 128, 2**31 - 1, -(2**31)])
PROPERTIES = st.none() | st.lists(
    st.sampled_from(
        [ID, ID[:-1], "TAGS\x01A\x02", "TAGS\x01B\x02", "TAGS\x01\x02", "KEYS\x01k1 k2\x02", "a\x01ü\u4e2d\x02",
         "DELAY\x013\x02", "XDELAY\x010\x02", "TRAN_MSG\x01true\x02", "POP_CK\x01x\x02", "TIMER_DELAY_SEC\x011\x02",
         "UNIQ_KEY\x01\x02", "MYUNIQ_KEY\x01no\x02", "\x02", "\x01", "n\x01TAGS\x01A\x02", "loose", "l\x01" + "v" * 40]
    ), max_size=4,
).map(lambda parts: ID + "".join(parts))  # fmt: skip
HEADERS = st.builds(
    SendMessageRequestHeaderV2,
    st.sampled_from(["p", "", "grüppe"]),
    st.sampled_from(["T", "T", "T", "T", "unknown", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "TBW102", "bad/name", ""]),
    st.just("TBW102"),
    st.sampled_from([4, 1]),
    st.sampled_from([0, 1, 1, 3, 4, -1]),
    NUMBER,
    st.sampled_from([0, 1_700_000_000_000, -5, 2**63 - 1]),
    NUMBER,
    PROPERTIES,
    st.none() | NUMBER,
    st.none() | st.booleans(),
    st.none() | NUMBER,
    st.sampled_from([None, False, False, True]),
    st.sampled_from([None, "broker-a"]),
)
PLAIN = st.builds(
    lambda queue, parts, reconsumed, flags: send_header(
        "T", queue, properties=parts, reconsume_times=reconsumed, sys_flag=flags, batch=False, broker_name="b",
        unit_mode=False,
    ),
    st.sampled_from([0, 1]), st.sampled_from([ID, ID + "TAGS\x01A\x02", ID[:-1]]), st.sampled_from([None, 0, 3]),
    st.sampled_from([0, 1, 4, 8, 12, 0x30]),
)  # fmt: skip
BODIES = st.binary(max_size=80) | st.sampled_from([b"", b"x" * 5000])
COMMANDS = st.builds(
    lambda header, body, opaque, flag, ext, version: frame(
        header, body, opaque=opaque, flag=flag, ext=ext, version=version
    ),
    HEADERS, BODIES, NUMBER, st.sampled_from([0, 0, 0, 2]), st.sampled_from([None, None, {EXT_ONCE: "1"}, {"a": "b"}]),
    st.sampled_from([0, 400, 473]),
)  # fmt: skip
PLAIN_COMMANDS = st.builds(lambda header, body, opaque: frame(header, body, opaque=opaque), PLAIN, BODIES, NUMBER)


@each_way
@given(st.lists(PLAIN_COMMANDS, min_size=1, max_size=6), st.booleans())
@settings(max_examples=50, deadline=None)
def test_plain_sends_are_taken_and_nothing_differs(way: str, frames: list[bytes], apart: bool) -> None:
    seen = same(frames if apart else [b"".join(frames)], way)
    assert seen.count(True) >= len(frames) // 2  # a tag is made known by the first that has it


@each_way
@pytest.mark.parametrize("more", [
    {}, {"store": StoreConfig(tail_cache=4096)}, {"store": StoreConfig(flush="sync")},
    {"remoting": RemotingConfig(max_in_flight=7)},
])  # fmt: skip
@given(st.lists(PLAIN_COMMANDS | COMMANDS, min_size=20, max_size=150))
@settings(max_examples=10, deadline=None)
def test_of_many_sends_at_once_nothing_differs(way: str, more: dict[str, Any], frames: list[bytes]) -> None:
    same([b"".join(frames)], way, **more)


@each_way
@given(st.lists(st.one_of(COMMANDS, PLAIN_COMMANDS), min_size=1, max_size=6))
@settings(max_examples=3 * settings.default.max_examples // 2, deadline=None)
def test_of_every_send_nothing_differs(way: str, frames: list[bytes]) -> None:
    same([b"".join(frames)], way)


@each_way
@given(PLAIN_COMMANDS, st.integers(8, 130), st.integers(0, 255), st.integers(0, 3))
@settings(max_examples=2 * settings.default.max_examples, deadline=None)
def test_of_damaged_headers_nothing_differs(way: str, good: bytes, at: int, value: int, kind: int) -> None:
    at = min(at, 7 + int.from_bytes(good[5:8], "big"))
    if kind == 0:
        good = good[:at] + bytes([value]) + good[at + 1 :]
    elif kind == 1:  # one byte more in the header
        header = int.from_bytes(good[5:8], "big") + 1
        total = int.from_bytes(good[:4], "big") + 1
        good = (
            total.to_bytes(4, "big") + good[4:5] + header.to_bytes(3, "big") + good[8:at] + bytes([value]) + good[at:]
        )
    elif kind == 2:  # a field of another type
        good = good.replace(b"\xa1T", bytes([value, 0x54]), 1)
    same([good], way)


BATCHES = st.builds(
    lambda items, queue, properties, at, kind: (
        send_header("T", queue, properties=properties, batch=True), encode_batch(items), at, kind
    ),
    st.lists(
        st.tuples(st.binary(max_size=20), NUMBER, PROPERTIES.map(lambda text: (text or "").encode())), max_size=4
    ),
    st.sampled_from([0, 1, 3, 4]), st.sampled_from([None, ID, "DELAY\x011\x02", ID + "TIMER_DELAY_SEC\x011\x02"]),
    st.integers(0, 300), st.integers(0, 9),
)  # fmt: skip


@needs_compiled
@given(st.lists(BATCHES, min_size=1, max_size=4))
@settings(deadline=None)
def test_of_every_batch_nothing_differs(batches: list[Any]) -> None:
    frames = []
    for header, body, at, kind in batches:
        at = min(at, len(body))
        damaged = {1: body[:at], 2: body[:at] + b"\xff" + body[at + 1 :], 3: body + b"\0"}.get(kind, body)
        frames.append(frame(header, damaged, RequestCode.SEND_BATCH_MESSAGE))
    settings = {"limits": Limits(batch=3), "store": StoreConfig(segment_size=1 << 16)}
    whole = outcome([b"".join(frames)], plain="compiled", seen=[], **settings)
    with patch.object(send, "_plain_batch", None):
        assert whole == outcome([b"".join(frames)], plain="compiled", seen=[], **settings)


@needs_compiled
def test_a_batch_of_two_segments_and_of_two_blocks() -> None:
    body = encode_batch([(b"x" * 400, number, ID.encode()) for number in range(100)])
    frames = [frame(send_header("T", 1, properties=ID, batch=True), body, RequestCode.SEND_BATCH_MESSAGE)] * 4
    settings = {"store": StoreConfig(segment_size=1 << 16)}
    whole = outcome(frames, plain="compiled", seen=[], **settings)
    with patch.object(send, "_plain_batch", None):
        assert whole == outcome(frames, plain="compiled", seen=[], **settings)


@each_way
def test_a_burst_of_blocks_and_a_full_segment(way: str) -> None:
    header = send_header("T", 1, properties=ID + "TAGS\x01A\x02", batch=False, unit_mode=False)
    burst = b"".join(frame(header, b"x" * 3000, opaque=number) for number in range(300))
    seen = same([burst], way, store=StoreConfig(segment_size=1 << 19))
    assert seen.count(True) > 280
    header = header._replace(queue_id=0, properties=ID)
    many = b"".join(frame(header, b"y", opaque=number) for number in range(70))
    assert all(same([many], way, store=StoreConfig(tail_cache=4096)))


@each_way
def test_a_send_that_the_disk_refuses(way: str) -> None:
    header = send_header("T", 1, properties=ID, batch=False, unit_mode=False)
    assert same([frame(header, b"x")], way, fail=True) == [True]


@each_way
@pytest.mark.parametrize("lacking", ["a block", "a result"])
async def test_without_memory_for_it_nothing_is_stored(way: str, lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, failing = TailCache.start, False

    def starts(cache: TailCache, queue: ConsumeQueue, offset: int) -> Block:
        if failing and lacking == "a block":
            raise MemoryError
        return start(cache, queue, offset)

    def result(fields: tuple[Any, ...]) -> PutResult:
        if failing and lacking == "a result":
            raise MemoryError
        return PutResult(*fields)

    header = send_header("T", 0, properties=ID, batch=False)
    monkeypatch.setattr(plain_send, "partial", lambda *_: result)
    monkeypatch.setattr(plain_send, "compiled", WAYS[way])
    # A cache without room: each send starts a block.
    async with running(store=StoreConfig(tail_cache=0)) as broker, TaskScope("test") as tasks:
        processors, store = broker.server.processors, broker.store
        connection = Connection(
            asyncio.get_running_loop(), broker.server.config, processors.dispatch, tasks, is_client=False,
            shared=memoryview(bytearray(READ_SIZE)),
        )  # fmt: skip
        connection.plain = processors.plain
        connection.connection_made(Pipe())
        monkeypatch.setattr(TailCache, "start", starts)
        for body in (b"by itself", b"in a run", b"lost", b"behind"):
            failing = body == b"lost"
            with contextlib.suppress(MemoryError):  # a loop ends the connection then
                feed(connection, frame(header, body))
            while store._log.scheduled:
                await asyncio.sleep(0)
        assert store.max_offset("T", 0) == 3 and store.problem is None
        places = [place for place, _, _ in store.entries("T", 0, 0, 3)]
        for place, body in zip(places, (b"by itself", b"in a run", b"behind"), strict=True):
            assert body in (store.read_record(place) or b"")
        connection.close("done")
        connection.connection_lost(None)


@needs_compiled
@pytest.mark.parametrize("lacking", [1, 2])
@pytest.mark.parametrize("before, burst", [(0, 48), (5, 48), (126, 48), (5, 3)])
async def test_without_memory_a_run_is_stored_whole_or_not_at_all(before: int, burst: int, lacking: int) -> None:
    """Each allocation of a run fails once, alone and with the one behind it."""
    memory = pytest.importorskip("_testcapi", reason="this interpreter has no allocator that fails when told to")
    allocation = 0
    while True:  # once more for each broker that will write no more
        async with running(store=StoreConfig(segment_size=1 << 24)) as broker, TaskScope("test") as tasks:
            store, log, plain = broker.store, broker.store._log, broker.server.processors.plain
            assert plain is not None
            connection = Connection(
                asyncio.get_running_loop(), broker.server.config, broker.server.processors.dispatch, tasks,
                is_client=False, shared=memoryview(bytearray(READ_SIZE)),
            )  # fmt: skip
            connection.connection_made(Pipe())
            expected: dict[int, list[bytes]] = {0: [], 1: []}
            for queue_id in expected:
                for way in (None, plain):  # the compiled one makes what it makes once
                    connection.plain = way
                    feed(connection, frame(send_header("T", queue_id, properties=ID, batch=False), b"first"))
                    expected[queue_id].append(b"first")
            await quiet(broker)
            log.burst = burst
            while store.problem is None:
                while len(expected[0]) % 128 != before % 128:
                    append(broker, 0, b"fill", expected)
                await quiet(broker)
                taken = [(0, b"one %d" % allocation), (1, b"two"), (0, b"three")]
                frames: list[Frame] = []
                for queue_id, body in reversed(taken):
                    data = frame(send_header("T", queue_id, properties=ID, batch=False), body)
                    split = 8 + int.from_bytes(data[5:8], "big")
                    frames.append((MSGPACK, data[8:split], data[split:]))
                given = sum(queue.next_offset for queue in store._queues.values())
                failed = False
                gc.disable()
                memory.set_nomemory(allocation, allocation + lacking)
                try:
                    plain(connection, frames)
                except MemoryError:
                    failed = True
                finally:
                    memory.remove_mem_hooks()
                    gc.enable()
                if log.flushing is not None:  # whose end has the news
                    await quiet(broker)
                if store.problem is not None:
                    failed = True
                    allocation += 1
                    assert lacking > 1 or burst == 3
                    break
                given = sum(queue.next_offset for queue in store._queues.values()) - given
                assert given in (0, len(taken) - len(frames))  # what was complete before one failed is stored
                for queue_id, body in taken[:given]:
                    expected[queue_id].append(body)
                for queue_id in expected:
                    append(broker, queue_id, b"behind", expected)
                await quiet(broker)
                for cached in (True, False):
                    found = {queue_id: read(broker, queue_id) for queue_id in expected}
                    assert found == expected, (allocation, cached)
                    budget, store._tail.budget = store._tail.budget, 0
                    store._tail.evict()
                    assert store._tail.size == 0
                    store._tail.budget = budget
                assert (log.pending, connection._in_flight, log.group.touched) == (0, 0, []), allocation
                allocation += 1
                if not failed:
                    break
            connection.close("done")
            connection.connection_lost(None)
        if not failed:
            assert allocation > 20
            return


def append(broker: Broker, queue_id: int, body: bytes, expected: dict[int, list[bytes]]) -> None:
    broker.store.append(
        "T", queue_id, body, b"", flag=0, sys_flag=0, born_timestamp=0, born_host=bytes(8), tags_code=0,
        done=lambda result: None,
    )  # fmt: skip
    expected[queue_id].append(body)


async def quiet(broker: Broker) -> None:
    """Return when the log writes nothing more."""
    while broker.store._log.scheduled:
        await asyncio.sleep(0)


def read(broker: Broker, queue_id: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < broker.store.max_offset("T", queue_id):
        result = broker.store.read("T", queue_id, len(found), 1000, 1 << 24)
        found += [view.raw_body for view in split_records(b"".join(result.pieces))]
    return found


@each_way
def test_limits_of_size(way: str) -> None:
    long = ID + "k\x01" + "v" * 32_000 + "\x02"
    for properties in (long, ID + "k\x01" + "ü" * 16_300 + "\x02"):
        same([frame(send_header("T", 1, properties=properties, batch=False), b"x")], way)
    header = send_header("T", 1, properties=ID, batch=False)
    assert same([frame(header, b"x" * 1000)], way, max_message_size=1000) == [True]
    assert same([frame(header, b"x" * 1001)], way, max_message_size=1000) == [False]


@each_way
def test_what_comes_to_stand_around_the_handler_is_asked(way: str) -> None:
    good = frame(send_header("T", 1, properties=ID, batch=False), b"x")
    assert same([good], way) == [True]
    assert same([good], way, around=True) == [False]


@each_way
async def test_a_closed_broker_is_forgotten(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_send, "compiled", WAYS[way])
    async with running() as broker:
        assert broker.server.processors.plain is not None
        store = weakref.ref(broker.store)
    del broker
    gc.collect()
    assert store() is None


@each_way
def test_other_requests_are_left_alone(way: str) -> None:
    assert same([frame(GetMaxOffsetRequestHeader("T", 0), b"", RequestCode.GET_MAX_OFFSET)], way) == [False]
