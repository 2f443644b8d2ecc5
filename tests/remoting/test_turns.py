"""Fair turns: what one connection floods, the others do not wait for, and nothing of it is lost or overtaken.

In virtual time, over pieces as large as a real read can be.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiorocket.config import RemotingConfig
from aiorocket.remoting import Connection, ProcessorTable, RemotingServer
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import JSON, RemotingCommand, encode, encode_head

#: What is allowed to one connection in one turn of the loop.
REQUESTS, BYTES = 64, 128 << 10
STORE, FETCH, PARK = 10, 11, 12


class Server:
    """Notes for each request its connection, the turn of the loop, its number and its size."""

    def __init__(self, sim: Simulation, **config: Any) -> None:
        self.loop = sim.loop
        #: Seconds that each request takes.
        self.cost = 0.0
        self.turn = 0
        self.served: list[tuple[Connection, int, int, int]] = []
        self.parked: list[tuple[Connection, RemotingCommand]] = []
        self._counting = False
        processors = ProcessorTable()
        processors.add(STORE, self.store)
        processors.add(FETCH, self.fetch)
        processors.add(PARK, self.park)
        self.remoting = RemotingServer(sim.env(), processors, RemotingConfig(**config))

    def store(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.note(connection, request)
        return RemotingCommand.response(0)

    def fetch(self, connection: Connection, request: RemotingCommand) -> None:
        self.note(connection, request)
        connection.reply(request, RemotingCommand.response(0, body=bytes(8192)))
        connection.flush()

    def park(self, connection: Connection, request: RemotingCommand) -> None:
        self.note(connection, request)
        self.parked.append((connection, request))

    def note(self, connection: Connection, request: RemotingCommand) -> None:
        if not self._counting:
            self._counting = True
            self.loop.call_soon(self.next_turn)
        self.served.append((connection, self.turn, request.opaque, len(request.body)))
        self.loop.block(self.cost)

    def next_turn(self) -> None:
        self._counting = False
        self.turn += 1

    def check_turns(self) -> None:
        requests = Counter((connection, turn) for connection, turn, _, _ in self.served)
        assert max(requests.values()) <= REQUESTS
        sizes: Counter[tuple[Connection, int]] = Counter()
        for connection, turn, _, size in self.served:
            sizes[connection, turn] += size
        # One more that had begun before, and one that passes the bound.
        assert max(sizes.values()) <= BYTES + 2 * max(size for _, _, _, size in self.served)

    def numbers(self) -> list[int]:
        return [number for _, _, number, _ in self.served]


def scene(main: Callable[[Simulation, Server], Awaitable[None]], seed: int = 0, **config: Any) -> None:
    async def run(sim: Simulation) -> None:
        sim.network.fragment = 256 << 10
        server = Server(sim, **config)
        await server.remoting.start()
        await main(sim, server)
        await server.remoting.close(grace=0.1)

    simulate(run, seed)


def requests(count: int, size: int = 1000, *, first: int = 0, code: int = STORE, flag: int = 0) -> bytes:
    return b"".join(
        encode(RemotingCommand(code, number, flag, body=bytes(size)), JSON) for number in range(first, first + count)
    )


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.remoting.port)


@pytest.mark.parametrize(("size", "count"), [(0, 3000), (1000, 2000), (30_000, 200)])
def test_while_one_connection_floods_another_waits_two_turns_at_most(size: int, count: int) -> None:
    async def main(sim: Simulation, server: Server) -> None:
        sim.network.latency = (0.0, 0.0)
        _, flood = await connect(server)
        reader, writer = await connect(server)
        _, peer = server.remoting.connections
        readable = 0
        transport: Any = peer._transport
        deliver_soon = transport.deliver_soon

        def becomes_readable() -> None:
            nonlocal readable
            if transport._arrived:
                readable = server.turn
            deliver_soon()

        transport.deliver_soon = becomes_readable
        waits: list[int] = []
        flood.write(requests(count, size))
        while len(server.served) < count * 0.9:
            begin = len(server.served)
            writer.write(requests(1, first=5000))
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            [turn] = [turn for connection, turn, _, _ in server.served[begin:] if connection is peer]
            waits.append(turn - readable)
        assert len(waits) > 5 and max(waits) <= 2
        server.check_turns()
        while len(server.served) < count + len(waits):
            await asyncio.sleep(0.01)
        assert [number for number in server.numbers() if number < 5000] == list(range(count))
        for each in (flood, writer):
            each.transport.abort()

    scene(main)


def test_what_is_flushed_leaves_before_the_next_turn_of_a_flood() -> None:
    """Java's listener asks for 32 messages of a queue when it has the last 32: with a turn more for each answer it
    falls behind a producer that has 256 sends in flight."""

    async def main(sim: Simulation, server: Server) -> None:
        sim.network.latency = (0.0, 0.0)
        _, flood = await connect(server)
        reader, writer = await connect(server)
        _, peer = server.remoting.connections
        transport: Any = peer._transport
        left: list[int] = []
        writelines = transport.writelines

        def leave(parts: list[bytes]) -> None:
            left.append(len(server.served))
            writelines(parts)

        transport.writelines = leave
        flood.write(requests(2000))
        while len(server.served) < 1800:
            writer.write(requests(1, first=5000, code=FETCH))
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        begun = [number for number, (connection, *_) in enumerate(server.served, 1) if connection is peer]
        assert len(left) > 5 and left == begun
        for each in (flood, writer):
            each.transport.abort()

    scene(main)


@pytest.mark.parametrize("seed", range(5))
def test_every_request_is_served_once_and_in_order_whatever_holds_the_connection_up(seed: int) -> None:
    """A full turn, answers that come late, and a peer that does not read, all at once."""

    async def main(sim: Simulation, server: Server) -> None:
        draw = random.Random(seed)
        reader, writer = await connect(server)
        kinds = [draw.choice((STORE, PARK)) for _ in range(150)]
        sizes = [draw.choice((0, 10, 3000, 40_000)) for _ in kinds]
        sent = b"".join(requests(1, sizes[n], first=n, code=kinds[n]) for n in range(150))
        cuts = sorted(draw.randrange(len(sent)) for _ in range(5))
        answered = 0
        for begin, end in itertools.pairwise([0, *cuts, len(sent)]):
            writer.write(sent[begin:end])
            await asyncio.sleep(draw.choice((0.0, 0.01)))
        while answered < kinds.count(PARK):
            while server.parked:
                connection, request = server.parked.pop(draw.randrange(len(server.parked)))
                response = RemotingCommand.response(0, body=bytes(draw.choice((0, 5000))))
                if draw.random() < 0.5:
                    connection.reply(request, response)
                else:
                    response.opaque = request.opaque
                    head = encode_head(response, connection.reply_type(request))
                    body, response.body = response.body, b""
                    connection.reply(request, response, [body], head, draw.random() < 0.5)
                answered += 1
                if draw.random() < 0.1:
                    await asyncio.sleep(0)
            if draw.random() < 0.5:
                await reader.read(draw.choice((100, 1 << 20)))
            await asyncio.sleep(0.001)
        async with asyncio.timeout(30):
            while len(server.served) < 150:
                await reader.read(1 << 20)
        assert server.numbers() == list(range(150))
        server.check_turns()
        writer.transport.abort()

    scene(main, seed, max_in_flight=20, write_high_water=20_000)


@pytest.mark.parametrize("flag", [0, 2])
@pytest.mark.parametrize("count", [20, 200])
def test_of_requests_that_take_long_few_are_begun_in_a_turn(count: int, flag: int) -> None:
    """64 searches by time held the loop for 55 to 75 ms, sends back of large messages for much longer."""

    async def main(sim: Simulation, server: Server) -> None:
        server.cost = 0.004
        reader, writer = await connect(server)
        writer.write(requests(count, flag=flag) + requests(1, first=count))
        while b'"opaque":%d,' % count not in await reader.read(1 << 16):
            pass
        assert server.numbers() == list(range(count + 1))
        assert max(Counter(turn for _, turn, _, _ in server.served).values()) == 3
        writer.close()

    scene(main)


@pytest.mark.parametrize("end", ["half close", "close"])
def test_nothing_that_came_before_the_end_is_lost(end: str) -> None:
    async def main(sim: Simulation, server: Server) -> None:
        _, writer = await connect(server)
        writer.write(requests(1000, flag=2 if end == "close" else 0))  # answers to a closed socket would reset it
        if end == "close":
            writer.close()
        else:
            writer.write_eof()
        async with asyncio.timeout(30):
            while server.remoting.connections:
                await asyncio.sleep(0.01)
        assert server.numbers() == list(range(1000))
        server.check_turns()
        writer.close()

    scene(main)


def test_good_requests_before_bad_bytes_are_served_over_all_their_turns() -> None:
    async def main(sim: Simulation, server: Server) -> None:
        reader, writer = await connect(server)
        [connection] = server.remoting.connections
        writer.write(requests(200) + b"\xff" * 100)
        async with asyncio.timeout(30):
            assert (await reader.read()).count(b'"opaque"') == 200
        assert connection.misbehaved and "malformed" in connection.close_reason
        assert server.numbers() == list(range(200))
        server.check_turns()
        writer.close()

    scene(main)


def test_a_server_that_closes_begins_nothing_more_of_a_flood() -> None:
    async def main(sim: Simulation, server: Server) -> None:
        reader, writer = await connect(server)
        writer.write(requests(1000))
        while not server.served:
            await asyncio.sleep(0.0001)
        await server.remoting.close(grace=1.0)
        begun = len(server.served)
        assert begun < 1000
        assert (await reader.read()).count(b'"opaque"') == begun  # and answers what it began
        writer.close()

    scene(main)
