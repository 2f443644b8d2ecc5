"""What peers can make a server hold for them, all together. In virtual time."""

from __future__ import annotations

import asyncio

from aiorocket.errors import ConnectionLostError
from aiorocket.remoting import Connection, RemotingClient
from aiorocket_protocol import JSON, RemotingCommand, encode
from tests.remoting.test_faults import LARGE, Served, served


def held(service: Served) -> int:
    return sum(connection._splitter.own + connection._unsent for connection in service.server.connections)


def test_half_frames_of_all_connections_together_are_bounded() -> None:
    async def scenario(service: Served) -> None:
        writers = []
        for _ in range(40):  # each has sent half of a lawful frame of 1 MB
            _, writer = await service.raw()
            writer.write((1_000_000).to_bytes(4, "big") + (100).to_bytes(4, "big") + bytes(500_000))
            writers.append(writer)
            await asyncio.sleep(0.1)
            assert held(service) <= 8 << 20
        assert len(service.ended) > 20
        assert "the limit max_held=8388608 is lower" in service.ended[0].close_reason
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(1)
        assert service.server._held is not None and service.server._held.total == held(service)

    served(scenario, max_held=8 << 20)


def test_answers_that_many_peers_do_not_read_are_bounded_together() -> None:
    async def scenario(service: Served) -> None:
        writers = []
        for _ in range(30):
            _, writer = await service.raw()
            writer.transport.pause_reading()
            writer.write(encode(RemotingCommand.request(LARGE), JSON) * 20)
            writers.append(writer)
            await asyncio.sleep(0.1)
            assert held(service) <= (8 << 20) + 4_000_000
        assert service.ended and "max_held" in service.ended[0].close_reason
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(1)

    served(scenario, max_held=8 << 20, write_high_water=1 << 20, write_limit=4 << 20)


def test_who_is_sent_away_and_does_not_read_is_counted_until_it_is_cut_off() -> None:
    async def scenario(service: Served) -> None:
        writers = []
        for _ in range(30):  # a lawful part, and what closes the connection with its answers unread
            _, writer = await service.raw()
            writer.transport.pause_reading()
            writer.write(encode(RemotingCommand.request(LARGE), JSON) * 10 + b"GET / HTTP/1.1\r\n\r\n")
            writers.append(writer)
            await asyncio.sleep(0.1)
            assert service.server._held is not None and held(service) <= (8 << 20) + 4_000_000
        await asyncio.sleep(10)
        assert len(service.ended) == 30 and service.server._held.total == held(service)

    served(scenario, max_held=8 << 20, write_high_water=4 << 20, write_limit=4 << 20, partial_frame_timeout=3.0)


def test_peers_that_read_are_never_counted_for_what_they_have_read() -> None:
    async def scenario(service: Served) -> None:
        for _ in range(200):  # 40 MB pass through a server that may hold 2
            answer = await service.client.request(service.server.address, RemotingCommand.request(LARGE))
            assert len(answer.body) == 200_000
        assert not service.ended

    served(scenario, max_held=2 << 20)


def test_connections_of_one_host_are_bounded() -> None:
    async def scenario(service: Served) -> None:
        raws = [await service.raw() for _ in range(5)]
        await asyncio.sleep(0.1)
        assert len(service.server.connections) == 3 and service.server.refused == 3
        for _, writer in raws:
            writer.close()
        await asyncio.sleep(0.1)
        assert len(service.server.connections) == 1 and service.server._room.per_host == {"127.0.0.1": 1}

    served(scenario, max_per_host=3)


def test_requests_that_wait_for_somebody_are_bounded_and_the_rest_is_told_so() -> None:
    async def scenario(service: Served) -> None:
        go = asyncio.Event()

        async def wait(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            await go.wait()
            return RemotingCommand.response(0)

        service.server.processors.add(13, wait)
        awaited = service.server.processors.awaited
        clients = [RemotingClient(service.sim.env(), service.client.config) for _ in range(6)]
        links = [await client.connect(service.server.address) for client in clients]

        def ask(link: Connection, count: int) -> list[asyncio.Future[RemotingCommand]]:
            # With its head and what waits for it, which count, one is some bytes below 102,000.
            requests = [
                RemotingCommand.request(13, body=bytes(49_900), ext={"k": "v" * 50_000}),
                RemotingCommand.request(13, body=bytes(99_900)),
            ]
            return [link.request(requests[number % 2], 300.0) for number in range(count)]

        first = ask(links[0], 5)
        await asyncio.sleep(1)
        assert [future.done() for future in first] == [False, False, True, True, True]
        assert 203_000 < awaited.total < 204_000
        busy = first[4].result()
        assert busy.code == 2 and "max_in_flight_bytes=1020000" in (busy.remark or "")
        assert (busy.remark or "").startswith("[OVERLOAD]system busy, start flow control for a while")
        others = [future for link in links[1:] for future in ask(link, 2)]
        await asyncio.sleep(1)
        assert 1_010_000 < awaited.total < 1_020_000 and sum(future.done() for future in others) == 2
        await clients[1].close()  # its requests are worked off all the same
        go.set()
        await asyncio.sleep(1)
        assert awaited.total == 0 and not awaited._of and first[0].result().code == 0
        assert {type(future.exception()) for future in others} == {type(None), ConnectionLostError}
        for client in clients:
            await client.close()

    served(scenario, max_in_flight_bytes=1_020_000)


def test_requests_of_a_few_bytes_that_wait_are_bounded_too() -> None:
    """One-way ones are not in flight, and nobody waits for their end: 300,000 of 19 bytes kept 100,000 tasks."""

    async def scenario(service: Served) -> None:
        go = asyncio.Event()
        begun = 0

        async def wait(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            nonlocal begun
            begun += 1
            await go.wait()
            return RemotingCommand.response(0)

        service.server.processors.add(13, wait)
        link = await service.client.connect(service.server.address)
        for _ in range(1000):
            link.oneway(RemotingCommand.request(13))
        await asyncio.sleep(1)
        assert 100 < begun < 150 and len(service.server.connections[0].tasks) == begun
        busy = await link.request(RemotingCommand.request(13), 60.0)
        assert busy.code == 2 and "max_in_flight_bytes=1000000" in (busy.remark or "")
        go.set()
        await asyncio.sleep(1)
        assert service.server.processors.awaited.total == 0

    served(scenario, max_in_flight_bytes=1_000_000)
