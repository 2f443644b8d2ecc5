"""A disk that stands still: what waits for it is bounded, with all that is kept of its requests."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import pytest

from aiorocket.config import RemotingConfig, StoreConfig
from aiorocket.runtime.env import Env, memory_env
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket_protocol import (
    JSON,
    MSGPACK,
    ROCKETMQ,
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    FrameSplitter,
    RemotingCommand,
    SendMessageResponseHeader,
    decode,
    encode,
    encode_batch,
    parse_offset_msg_id,
)
from tests.broker.peer import Peer, running, send_header

ID = "UNIQ_KEY\x01" + "0" * 32 + "\x02"
MOST = 1 << 18
T = TypeVar("T")


class StalledDisk(MemoryDisk):
    """No write that is to survive a power cut ends while it ``stands_still``."""

    def __init__(self) -> None:
        super().__init__()
        self.stands_still = False
        self._waiting: list[tuple[asyncio.Future[Any], Callable[..., Any], tuple[object, ...]]] = []

    def run(self, fn: Callable[..., T], *args: object) -> asyncio.Future[T]:
        if not self.stands_still:
            return super().run(fn, *args)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, fn, args))
        return future

    def go_on(self) -> None:
        self.stands_still = False
        for future, fn, args in self._waiting:
            future.set_result(fn(*args))
        self._waiting.clear()


def small(kind: int, **changes: Any) -> bytes:
    return encode(RemotingCommand.request(310, send_header(**{"properties": ID, **changes}), body=b"x"), kind)


def batch(kind: int, count: int) -> bytes:
    body = encode_batch([(b"x" * 16, 0, ID.encode())] * count)
    return encode(RemotingCommand.request(320, send_header(batch=True), body=body), kind)


@asynccontextmanager
async def stalled(**changes: Any) -> AsyncIterator[tuple[StalledDisk, int, Peer]]:
    """The disk of a broker, which goes on at the end, its port, and a client with a topic."""
    disk, env = StalledDisk(), memory_env()
    async with running(env=Env(env.clock, env.entropy, disk), data="/store", **changes) as server:
        peer = await Peer.connect(server.port)
        try:
            await peer.create_topic("T")
            yield disk, server.port, peer
        finally:
            disk.go_on()
            await peer.close()


async def answer_of(reader: asyncio.StreamReader) -> RemotingCommand:
    length = await reader.readexactly(4)
    [frame] = FrameSplitter().feed(length + await reader.readexactly(int.from_bytes(length, "big")))
    return decode(*frame)


@contextmanager
def grown() -> Iterator[Callable[[], int]]:
    """Bytes that are allocated more than at the beginning."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(small(MSGPACK), id="run"),
        pytest.param(small(JSON), id="json"),
        pytest.param(small(ROCKETMQ), id="rocketmq"),
        pytest.param(small(JSON, properties=ID + "DELAY\x013\x02"), id="delay"),
        pytest.param(small(JSON, properties=ID + "TIMER_DELAY_SEC\x01300\x02"), id="timer"),
        pytest.param(small(JSON, properties=ID + "TRAN_MSG\x01true\x02"), id="half"),
        pytest.param(batch(JSON, 1), id="batch"),
        pytest.param(batch(JSON, 100), id="large batch"),
    ],
)
async def test_small_sends_that_wait_take_no_more_than_they_may(frame: bytes) -> None:
    limits = {"store": StoreConfig(max_pending=MOST), "remoting": RemotingConfig(max_in_flight=20_000)}
    async with stalled(**limits) as (disk, port, peer):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame)  # queues, buffers and caches are made
        assert (await answer_of(reader)).code == 0
        disk.stands_still = True
        some, sent = frame * max(1, 8192 // len(frame)), 0
        with grown() as more:
            first = asyncio.ensure_future(answer_of(reader))
            while not first.done() and sent < 4 * MOST:
                writer.write(some)
                sent += len(some)
                await writer.drain()
                await peer.call(28)  # what came before has been worked
            assert first.done() and more() < MOST * 2, (sent, more())
        busy = await first
        assert busy.code == 2 and f"max_pending is {MOST}" in (busy.remark or "")
        writer.close()
        await writer.wait_closed()


async def test_of_requests_that_wait_for_the_disk_only_the_message_is_kept() -> None:
    async with stalled() as (disk, _, peer):
        stored = (await peer.send()).read(SendMessageResponseHeader)
        half = (await peer.send(properties=ID + "TRAN_MSG\x01true\x02PGROUP\x01p\x02")).read(SendMessageResponseHeader)
        place, half_place = (parse_offset_msg_id(each.msg_id)[2] for each in (stored, half))
        batch = encode_batch([(b"x", 0, ID.encode())])
        disk.stands_still = True
        much = "j" * 200_000
        with grown() as more:
            for code, header, body in (
                (310, send_header(properties=ID), b"x"),
                (310, send_header(properties=ID + "DELAY\x013\x02"), b"x"),
                (310, send_header(properties=ID + "TRAN_MSG\x01true\x02"), b"x"),
                (320, send_header(batch=True), batch),
                (36, ConsumerSendMsgBackRequestHeader(place, "g", 0), b""),
                (37, EndTransactionRequestHeader("p", half.queue_offset, half_place, 8, "0" * 32), b""),
            ):
                await peer.ask(code, header, body, junk=much, _accept=much)
            await peer.call(28)
            assert more() < 600_000  # 400,000 are the buffer that the connection reads into
        disk.go_on()
        assert [(await peer.answer()).code for _ in range(6)] == [0] * 6
