"""The web server of the page, over sockets: what those who connect may keep."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aiorocket import Admin
from aiorocket.dashboard import server
from aiorocket.dashboard.settings import DashboardConfig

ASK = b"GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"


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
