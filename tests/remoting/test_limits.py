"""Every line of ``RemotingConfig``: a hostile peer reaches it and is told, or cut off, by its name. In virtual time."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest

from aiorocket.config import RemotingConfig
from aiorocket.remoting import Connection, ProcessorTable, RemotingServer
from aiorocket_protocol import JSON, RemotingCommand, encode
from tests.remoting.test_faults import ECHO, LARGE, PARK, Served, served

#: Why a line is none that a peer reaches.
NO_LIMIT = {
    "serializer": "a choice",
    "connect_timeout": "how long a client waits",
    "request_timeout": "how long a client waits",
    "backoff_initial": "how long a client waits",
    "backoff_max": "how long a client waits",
}
#: A line -> its settings, and a program that says by which words a peer met it.
ATTACKS: dict[str, tuple[dict[str, Any], Callable[[Served], Awaitable[str]]]] = {}
Attack = Callable[[Served], Awaitable[str]]


def attack(**config: Any) -> Callable[[Attack], Attack]:
    def keep(run: Attack) -> Attack:
        ATTACKS[run.__name__] = config, run
        return run

    return keep


async def ended(service: Served) -> str:
    """Why the first connection that ends does, with what waits for its peer thrown away."""
    while not service.ended:
        await asyncio.sleep(1)
        assert service.sim.loop.time() < 1_000
    await asyncio.sleep(1)
    return service.ended[0].close_reason


async def unread(service: Served, *requests: RemotingCommand) -> asyncio.StreamWriter:
    """Sent by somebody who reads nothing."""
    _, writer = await service.raw()
    writer.transport.pause_reading()
    writer.write(b"".join(encode(request, JSON) for request in requests))
    await asyncio.sleep(1)
    return writer


@attack(idle_timeout=50.0, partial_frame_timeout=5.0)
async def idle_timeout(service: Served) -> str:
    _, writer = await service.raw()
    said = await ended(service)
    writer.close()
    return said


@attack(partial_frame_timeout=5.0)
async def partial_frame_timeout(service: Served) -> str:
    _, writer = await service.raw()
    writer.write(encode(RemotingCommand.request(ECHO), JSON)[:-1])
    said = await ended(service)
    assert "did not finish it" in said
    writer.close()
    service.ended.clear()
    writer = await unread(service, *[RemotingCommand.request(LARGE)] * 50)
    assert "has not read for partial_frame_timeout=5 s" in await ended(service)
    writer.transport.abort()
    return said


@attack(max_in_flight=8)
async def max_in_flight(service: Served) -> str:
    """Nobody is refused: no more is read before something is answered."""
    writer = await unread(service, *[RemotingCommand.request(PARK)] * 100)
    assert len(service.parked) == 8
    parked, service.parked = service.parked, []
    for connection, request in parked:
        connection.reply(request, RemotingCommand.response())
    await asyncio.sleep(1)
    assert len(service.parked) == 8 == service.server.connections[-1].in_flight
    writer.transport.abort()
    return "max_in_flight=8"


@attack(max_in_flight_bytes=1_000_000)
async def max_in_flight_bytes(service: Served) -> str:
    go = asyncio.Event()

    async def wait(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        await go.wait()
        return RemotingCommand.response()

    service.server.processors.add(13, wait)
    link = await service.client.connect(service.server.address)
    answers = [link.request(RemotingCommand.request(13, body=bytes(90_000)), 60.0) for _ in range(10)]
    await asyncio.sleep(1)
    said = (await answers[-1]).remark or ""
    await service.check_others()
    go.set()
    await asyncio.gather(*answers)
    return said


@attack(write_high_water=1 << 20, write_limit=8 << 20, partial_frame_timeout=300.0)
async def write_high_water(service: Served) -> str:
    """Nobody is refused: what answers more than this is not begun, the rest of a turn aside."""
    writer = await unread(service, *[RemotingCommand.request(LARGE)] * 200)
    transport = service.server.connections[-1]._transport
    assert transport is not None and 1 << 20 < transport.get_write_buffer_size() < (2 << 20) + 200_000
    writer.transport.abort()
    return "write_high_water=1048576"


@attack(write_high_water=1 << 20, write_limit=4 << 20)
async def write_limit(service: Served) -> str:
    writer = await unread(service, *[RemotingCommand.request(PARK)] * 100)
    for connection, request in service.parked:
        connection.reply(request, RemotingCommand.response(0, body=b"P" * 100_000))
    said = await ended(service)
    writer.transport.abort()
    return said


@attack(max_connections=3)
async def max_connections(service: Served) -> str:
    return await _connections(service)


@attack(max_per_host=3)
async def max_per_host(service: Served) -> str:
    return await _connections(service)


async def _connections(service: Served) -> str:
    lines = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]  # a double
    logger = logging.getLogger("aiorocket.remoting")
    logger.addHandler(handler)
    raws = [await service.raw() for _ in range(5)]
    await asyncio.sleep(0.1)
    assert len(service.server.connections) == 3 == service.server.refused
    for _, writer in raws:
        writer.close()
    logger.removeHandler(handler)
    return lines[0]


@attack(max_held=2 << 20)
async def max_held(service: Served) -> str:
    writers = [(await service.raw())[1] for _ in range(10)]
    for writer in writers:
        writer.write((1_000_000).to_bytes(4, "big") + (100).to_bytes(4, "big") + bytes(500_000))
    said = await ended(service)
    for writer in writers:
        writer.transport.abort()
    return said


@attack()
async def handshake_timeout(service: Served) -> str:
    """Who says nothing at a server with TLS is shown out, and is no connection: nobody hears of it."""
    config = RemotingConfig(handshake_timeout=7.0)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server = RemotingServer(service.sim.env(), ProcessorTable(), config, tls=tls)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    start = service.sim.loop.time()
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    assert 7 <= service.sim.loop.time() - start < 8 and not server._doors._open
    writer.close()
    await server.close()
    return "handshake_timeout=7"


def test_every_line_has_its_attack_or_a_reason_for_none() -> None:
    assert sorted([*ATTACKS, *NO_LIMIT]) == sorted(each.name for each in fields(RemotingConfig))
    assert all(NO_LIMIT.values())


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_peer_meets_the_line_by_its_name(name: str) -> None:
    config, run = ATTACKS[name]
    said: list[str] = []

    async def scenario(service: Served) -> None:
        said.append(await run(service))
        await asyncio.sleep(1)

    served(scenario, **config)
    value = config.get(name, 7)
    assert f"{name}={value:g}" in said[0] or f"{name}={value}" in said[0], said
