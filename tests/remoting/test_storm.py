"""Many who come at once, on both loops: few are let in in one turn of the loop, and all of them in the end."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest

from aiorocket.config import RemotingConfig
from aiorocket.errors import ConnectionLostError
from aiorocket.remoting import Connection, ProcessorTable, RemotingServer
from aiorocket.remoting.door import Door, Doors
from aiorocket.remoting.server import _ENDED_AT_ONCE as ends_in_a_turn
from aiorocket.remoting.sweeper import A_TURN as sweeper_turn
from aiorocket.remoting.sweeper import Sweeper
from aiorocket.runtime import memory_env, new_event_loop
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import JSON, RemotingCommand, encode

#: More than one turn lets in, fewer than the kernel lets wait.
COMING, A_TURN, LEAVING = 100, 4, 350


@pytest.mark.parametrize("said", [b"", b"\xff" * 100], ids=["nothing", "no frame"])
def test_who_came_and_went_leaves_the_collector_nothing(said: bytes) -> None:
    """What it had to free of a storm held the loop, and of who is old it may never free anything."""

    async def main() -> None:
        server = RemotingServer(memory_env(), ProcessorTable(), RemotingConfig())
        await server.start()
        try:
            gc.collect()
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", server.port), 30) as peer:
                    peer.sendall(said)
            async with asyncio.timeout(30):
                await asyncio.sleep(0.01)
                while server.connections or server._room.open:
                    await asyncio.sleep(0.01)
            assert gc.collect() < 20
        finally:
            await server.close(0.1)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("make_loop", [new_event_loop, asyncio.new_event_loop], ids=["uvloop", "stdlib"])
def test_a_storm_is_let_in_little_by_little(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    turns = [0]

    def came(connection: Connection) -> None:
        turns[-1] += 1

    async def main() -> None:
        server = RemotingServer(memory_env(), ProcessorTable(), RemotingConfig(), came)
        await server.start()
        peers = [socket.create_connection(("127.0.0.1", server.port), 30) for _ in range(COMING)]  # the loop stands
        async with asyncio.timeout(30):
            while sum(turns) < COMING:
                await asyncio.sleep(0)
                turns.append(0)
        for peer in peers:
            peer.close()
        await server.close(0.1)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
    assert max(turns) <= A_TURN


@pytest.mark.parametrize("make_loop", [new_event_loop, asyncio.new_event_loop], ids=["uvloop", "stdlib"])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_of_many_who_go_at_once_few_are_taken_leave_of_in_a_turn(
    how: str, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """8,000 held the loop for 0.17 s."""
    turns, gone = [0], list[Connection]()

    def went(connection: Connection) -> None:
        turns[-1] += 1
        gone.append(connection)

    async def main() -> None:
        server = RemotingServer(memory_env(), ProcessorTable(), RemotingConfig(), on_close=went)
        await server.start()
        peers = [socket.create_connection(("127.0.0.1", server.port), 30) for _ in range(LEAVING)]
        async with asyncio.timeout(30):
            while len(connections := server.connections) < LEAVING:
                await asyncio.sleep(0.001)
            for peer in peers:  # the loop stands
                if how == "reset":
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.close()
            while sum(turns) < LEAVING:
                await asyncio.sleep(0)
                turns.append(0)
        for connection in connections:
            assert connection.closed and ("Reset" in connection.close_reason) == (how == "reset")
            await connection.wait_closed()
        assert set(gone) == set(connections) and len(gone) == LEAVING and not server.connections
        await server.close(0.1)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
    assert max(turns) <= ends_in_a_turn


async def test_an_answer_between_the_end_of_a_connection_and_its_turn_is_dropped() -> None:
    asked, lost = asyncio.get_running_loop().create_future(), list[Connection]()
    processors = ProcessorTable()
    processors.add(10, lambda connection, request: asked.set_result((connection, request)))
    server = RemotingServer(memory_env(), processors, RemotingConfig(), on_close=lost.append)
    await server.start()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode(RemotingCommand(10, 1), JSON))
    connection, request = await asked
    connection._transport.abort()
    await asyncio.sleep(0)
    assert connection._transport is None and not lost
    connection.reply(request, RemotingCommand.response(0, body=bytes(100_000)), at_once=True)
    with pytest.raises(ConnectionLostError):
        await connection.request(RemotingCommand.request(11), 30.0)
    assert lost == [connection] and connection.closed
    writer.close()
    await server.close(0.1)


def test_connections_are_looked_at_in_turns() -> None:
    """8,000 half frames that were all cut off at once held the loop for 0.13 s."""
    looked: list[int] = [0]

    class Link:
        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self.loop = loop

        def sweep(self, now: float) -> None:
            if not looked[-1]:
                self.loop.call_soon(looked.append, 0)
            looked[-1] += 1

    async def main(sim: Simulation) -> None:
        config = RemotingConfig(partial_frame_timeout=30.0)
        sweeper = Sweeper(sim.loop, config)
        links: list[Any] = [Link(sim.loop) for _ in range(2 * sweeper_turn + 1)]
        for link in links:
            sweeper.add(link)
        await asyncio.sleep(10.5)
        assert looked == [sweeper_turn, sweeper_turn, 1, 0]
        await asyncio.sleep(10)
        assert sum(looked) == 2 * len(links)
        sweeper._sweep()
        for link in links:
            sweeper.discard(link)
        assert not sweeper._left  # who goes before its turn is not kept
        sweeper.close()

    simulate(main)


async def test_a_handshake_that_cannot_begin_does_not_keep_the_others_out() -> None:
    doors, begun, failed = Doors(lambda _: True, lambda _: None), [0], [0]

    def fail() -> None:
        raise MemoryError

    def begin() -> None:
        begun[0] += 1

    def note(_loop: asyncio.AbstractEventLoop, _context: dict[str, object]) -> None:
        failed[0] += 1

    asyncio.get_running_loop().set_exception_handler(note)
    doors.in_turn(fail)
    for _ in range(10):
        doors.in_turn(begin)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (begun, failed) == ([10], [1])


def test_who_waits_for_the_turn_of_its_handshake_is_not_late() -> None:
    class Transport:
        ended = paused = False

        def get_extra_info(self, name: str) -> tuple[str, int]:
            return "127.0.0.1", 1

        def pause_reading(self) -> None:
            self.paused = True

        def abort(self) -> None:
            self.ended = True

    class Full(Doors):
        def in_turn(self, begin: Callable[[], None]) -> None:
            """Thousands were here before."""

    async def main(sim: Simulation) -> None:
        doors = Full(lambda _: True, lambda _: None)
        unused: Any = None
        said, silent = Transport(), Transport()
        for transport in (said, silent):
            door = Door(unused, unused, unused, doors, 10.0)
            door.connection_made(cast(asyncio.Transport, transport))
            if transport is said:
                door.data_received(b"\x16\x03\x01")
        await asyncio.sleep(60)
        assert said.paused and not said.ended and silent.ended

    simulate(main)
