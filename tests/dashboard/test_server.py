"""The web server of the page, over sockets: what those who connect may keep."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from aiorocket import Admin
from aiorocket.dashboard import server
from aiorocket.dashboard.settings import DashboardConfig

ASK = b"GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"
FORM = (
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 100\r\n\r\n"
)


async def test_who_says_nothing_keeps_nobody_out(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST", 4)
    async with server.serving(admin, DashboardConfig(port=0)) as port, asyncio.timeout(60):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        silent[-1][1].write(ASK[:30])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        assert await silent[0][0].read() == b""  # it made room
        for each in (writer, *(writer for _, writer in silent)):
            each.transport.abort()


async def test_forms_that_do_not_come_keep_nobody_out(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """128 of them did for the half minute that a form may take, and then the next 128."""
    monkeypatch.setattr(server, "_MOST", 4)
    async with server.serving(admin, DashboardConfig(port=0)) as port, asyncio.timeout(60):
        forms = []
        for _ in range(8):
            forms.append(await asyncio.open_connection("127.0.0.1", port))
            forms[-1][1].write(FORM)
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        assert await forms[0][0].read() == b""
        # Whoever asks nothing goes before a form that is coming.
        _, idle = await asyncio.open_connection("127.0.0.1", port)
        forms[-1][1].write(b"x" * 100)
        assert (await forms[-1][0].readline()).startswith(b"HTTP/1.1 403")  # it is whole, and no form of ours
        for each in (writer, idle, *(writer for _, writer in forms)):
            each.transport.abort()
    assert not caplog.records


async def test_who_takes_an_answer_makes_no_room_for_who_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As who saves a long body came first, and asked nothing since."""
    monkeypatch.setattr(server, "_MOST", 3)
    app: Any = print  # nothing is asked
    config = uvicorn.Config(app, http=server._Connection, ws="none", interface="asgi3", log_config=None)
    state = ServerState()

    class Transport:
        def __init__(self, left: int) -> None:
            self.left, self.dropped = left, False

        def get_extra_info(self, name: str) -> None:
            return None

        def get_write_buffer_size(self) -> int:
            return self.left

        def abort(self) -> None:
            self.dropped = True

    made = []
    for left in (1000, 0, 0, 0):
        connection: Any = server._Connection(config, state, {})
        transport: Any = Transport(left)
        connection.connection_made(transport)
        made.append(connection)
    assert [each.transport.dropped for each in made] == [False, True, True, False]
    taking = made[0]
    for left, dropped in ((900, False), (800, False), (800, True)):
        taking.transport.left = left
        taking._looks.cancel()
        taking._look()
        assert taking.transport.dropped == dropped
    for each in made:
        each._looks.cancel()


async def test_who_takes_an_answer_slowly_is_seen_to_take_it(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """By how much waits for the kernel, which takes more in steps of a third of what it keeps."""
    made, kept = server._Connection.connection_made, list[int]()

    def connection_made(self: server._Connection, transport: asyncio.Transport) -> None:
        made(self, transport)
        kept.append(transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))

    monkeypatch.setattr(server._Connection, "connection_made", connection_made)
    async with server.serving(admin, DashboardConfig(port=0)) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.transport.abort()
    assert len(kept) == 1 and kept[0] <= 2 * server._KERNEL  # Linux says twice what it was told


async def test_who_asks_nothing_is_let_go(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_IDLE", 0.05)
    async with server.serving(admin, DashboardConfig(port=0)) as port, asyncio.timeout(60):
        silent, first = await asyncio.open_connection("127.0.0.1", port)
        slow, second = await asyncio.open_connection("127.0.0.1", port)
        second.write(ASK[:30])  # half a request
        assert await silent.read() == b"" == await slow.read()
        for each in (first, second):
            each.transport.abort()


async def test_who_takes_no_answer_is_let_go(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_IDLE", 0.05)
    many = ASK.replace(b"icon.svg", b"uPlot.iife.min.js") * 300  # 15 MB of answers
    async with server.serving(admin, DashboardConfig(port=0)) as port, asyncio.timeout(60):
        with socket.create_connection(("127.0.0.1", port)) as asker:
            asker.setblocking(False)
            while True:
                try:
                    asker.send(many)
                except BlockingIOError:
                    pass
                except OSError:
                    break
                await asyncio.sleep(0.02)
