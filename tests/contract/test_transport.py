"""What we rely on from a loop's transports: all three loops must agree on each line here."""

from __future__ import annotations

import asyncio
import errno

import pytest

HOST = "127.0.0.1"


class Recorder(asyncio.BufferedProtocol):
    """Records what the loop tells it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.events: list[str] = []
        self.data = bytearray()
        self.space = bytearray(1000)
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]
        self.events.append("made")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.space)

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.space[:nbytes]

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)


class Pair:
    near: Recorder
    far: Recorder
    server: asyncio.AbstractServer


async def until(condition: object, what: str = "condition") -> None:
    for _ in range(2000):
        if condition():  # type: ignore[operator]
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"{what} did not come true")


async def connect() -> Pair:
    loop = asyncio.get_running_loop()
    pair = Pair()
    accepted: list[Recorder] = []

    def factory() -> Recorder:
        accepted.append(Recorder())
        return accepted[-1]

    server = await loop.create_server(factory, HOST, 0)
    pair.server = server
    port = server.sockets[0].getsockname()[1]
    _, pair.near = await loop.create_connection(Recorder, HOST, port)
    assert pair.near.events == ["made"]
    await until(lambda: accepted and accepted[0].events)
    pair.far = accepted[0]
    return pair


async def finish(pair: Pair) -> None:
    pair.server.close()
    pair.near.transport.abort()
    pair.far.transport.abort()
    await asyncio.gather(pair.near.lost, pair.far.lost)
    await pair.server.wait_closed()


async def test_bytes_arrive_whole_and_in_order() -> None:
    pair = await connect()
    sent = bytearray()
    for n in range(200):
        piece = bytes([n]) * (n * 37 % 5000)
        pair.near.transport.write(piece)
        sent += piece
    pair.near.transport.writelines([b"end", b"", bytearray(b"of"), memoryview(b"it")])
    sent += b"endofit"
    await until(lambda: len(pair.far.data) == len(sent), "everything read")
    assert pair.far.data == sent
    assert pair.far.events == ["made"]
    await finish(pair)


async def test_names_of_both_ends_match() -> None:
    pair = await connect()
    near, far = pair.near.transport, pair.far.transport
    assert near.get_extra_info("peername") == far.get_extra_info("sockname")
    assert near.get_extra_info("sockname") == far.get_extra_info("peername")
    await finish(pair)


async def test_a_reader_that_pauses_pauses_the_writer() -> None:
    pair = await connect()
    pair.near.transport.set_write_buffer_limits(high=100_000)
    pair.far.transport.pause_reading()
    total = 0
    while "pause" not in pair.near.events:
        pair.near.transport.write(b"x" * 50_000)
        total += 50_000
        assert total < 64_000_000
        await asyncio.sleep(0)
    assert pair.near.transport.get_write_buffer_size() > 100_000
    await asyncio.sleep(0.05)
    assert "resume" not in pair.near.events
    pair.far.transport.resume_reading()
    await until(lambda: len(pair.far.data) == total, "everything read")
    assert pair.near.events == ["made", "pause", "resume"]
    await finish(pair)


async def test_close_writes_what_is_queued_first() -> None:
    pair = await connect()
    pair.near.transport.write(b"y" * 1_000_000)
    pair.near.transport.close()
    assert pair.near.transport.is_closing()
    pair.near.transport.write(b"not sent any more")
    assert await pair.far.lost is None
    assert await pair.near.lost is None
    assert len(pair.far.data) == 1_000_000
    assert pair.far.events == ["made", "eof", "lost"]
    assert pair.near.events[-1] == "lost" and pair.near.events.count("lost") == 1
    await finish(pair)


async def test_abort_ends_both_sides() -> None:
    pair = await connect()
    pair.near.transport.abort()
    pair.near.transport.abort()
    assert await pair.near.lost is None
    await pair.far.lost  # with or without ECONNRESET: the loops differ, and nothing of ours may depend on it
    await finish(pair)


async def test_refused_and_in_use() -> None:
    loop = asyncio.get_running_loop()
    pair = await connect()
    port = pair.server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    with pytest.raises(OSError) as caught:
        await loop.create_server(Recorder, HOST, port)
    assert caught.value.errno == errno.EADDRINUSE
    await finish(pair)
    with pytest.raises(ConnectionRefusedError) as refused:
        await loop.create_connection(Recorder, HOST, port)
    assert refused.value.errno == errno.ECONNREFUSED


async def test_callbacks_of_one_turn_stay_in_order() -> None:
    loop = asyncio.get_running_loop()
    order: list[int] = []
    for n in range(50):
        loop.call_soon(order.append, n)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == list(range(50))


async def test_timers_fire_in_order_of_time() -> None:
    loop = asyncio.get_running_loop()
    order: list[int] = []
    start = loop.time()
    for n in (3, 1, 2):
        loop.call_at(start + n * 0.02, order.append, n)
    cancelled = loop.call_later(0.01, order.append, 9)
    cancelled.cancel()
    await asyncio.sleep(0.1)
    assert order == [1, 2, 3]
    assert loop.time() - start >= 0.099
