from __future__ import annotations

import asyncio
import socket

import pytest

from tests.ports import free_port


async def test_a_port_that_was_given_out_is_for_its_server_alone() -> None:
    port = free_port(1)
    for _ in range(2):  # and when it is started again
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
        server.close()
        await server.wait_closed()
    for each in (port, port + 1):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", each))
