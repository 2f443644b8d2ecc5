"""The VIP channel: the same broker two ports below its own."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from aiorocket.broker import Broker
from tests.broker.peer import Peer, running


def free_port() -> int:
    """One whose second neighbour below is free too."""
    for _ in range(100):
        with socket.socket() as probe, socket.socket() as below:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
            try:
                below.bind(("127.0.0.1", port - 2))
            except OSError:
                continue
            return port
    raise AssertionError("no two free ports")


async def connects(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def vip_peer(broker: Broker) -> Peer:
    return await Peer.connect(broker.port - 2)


async def test_what_comes_by_the_vip_channel_is_served_and_ends_with_the_broker() -> None:
    port = free_port()
    async with running(port=port) as broker:
        vip, plain = await vip_peer(broker), await Peer.connect(port)
        assert (await vip.send(b"by the side door")).code == 0
        assert b"by the side door" in (await plain.pull()).body
        numbers = [broker.server.number(each) for each in broker.server.connections]
        assert len(numbers) == 2 and numbers == sorted(numbers), "one order of connections, whatever the door"
        await vip.close(), await plain.close()
    assert not await connects(port - 2)


async def test_a_taken_port_is_said_and_the_broker_goes_without(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with socket.socket() as taken, caplog.at_level(logging.WARNING):
        taken.bind(("127.0.0.1", port - 2))
        taken.listen()
        async with running(port=port):
            assert f"no VIP channel (RocketMQ's dashboard and some 4.x clients use it): port {port - 2}" in caplog.text


async def test_it_can_be_off_and_a_port_taken_by_chance_has_none() -> None:
    port = free_port()
    async with running(port=port, vip_listener=False):
        assert not await connects(port - 2)
