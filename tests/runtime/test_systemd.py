"""What a service manager is told, over a socket as its own."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from aiorocket.runtime.systemd import Notifier


@pytest.mark.parametrize("abstract", [False, True])
async def test_it_is_told_who_is_ready_and_who_lives(tmp_path: Path, abstract: bool) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(30)
        if abstract:
            manager.bind("")  # Linux gives it a name
            address = manager.getsockname()
            address = "@" + (address.decode() if isinstance(address, bytes) else address)[1:]
        else:
            manager.bind(address := str(tmp_path / "notify"))
        environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
        notifier = Notifier(environ)
        assert environ == {"HOME": "/"}, "what this process starts is not the service"
        notifier.tell("READY=1", "STATUS=it runs")
        assert manager.recv(100) == b"READY=1\nSTATUS=it runs"
        assert notifier.watchdog == 0.01
        life = asyncio.ensure_future(notifier.keep_alive())
        for _ in range(2):
            await asyncio.sleep(0.02)
            assert manager.recv(100) == b"WATCHDOG=1"
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
    notifier.tell("STOPPING=1")  # it is gone: that is its business


async def test_nobody_is_told_when_nobody_asked() -> None:
    for environ in ({}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}):
        notifier = Notifier(environ)
        notifier.tell("READY=1")
        await notifier.keep_alive()
        assert notifier.watchdog is None
