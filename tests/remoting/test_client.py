"""Connecting: once for many waiters, with back-off in virtual time, and never a future left waiting."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from aiorocket.config import RemotingConfig
from aiorocket.errors import ConnectionLostError, NotConnectedError, RequestTimeoutError, RocketError, UsageError
from aiorocket.remoting import Connection, ProcessorTable, RemotingClient, RemotingServer, parse_address
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import RemotingCommand

ECHO, PARK = 10, 12


def processors() -> ProcessorTable:
    table = ProcessorTable()
    table.add(ECHO, lambda connection, request: RemotingCommand.response(0, body=request.body))
    table.add(PARK, lambda connection, request: None)
    return table


def test_the_package_tells_all_its_names() -> None:
    """Before they are imported, which is when they are first used."""
    told = "import aiorocket.remoting as it; print(sorted(set(it.__all__) - set(dir(it))))"
    assert subprocess.check_output([sys.executable, "-c", told], text=True) == "[]\n"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("127.0.0.1:9876", ("127.0.0.1", 9876)), ("[::1]:1", ("::1", 1)), (" b.example:10911 ", ("b.example", 10911))],
)
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:0", "host:65536", "h:x", "::1:80", "host:\uff18"])
def test_bad_addresses_are_named(text: str) -> None:
    with pytest.raises(UsageError, match="address"):
        parse_address(text)


def test_a_hundred_waiters_share_one_connection() -> None:
    async def main(sim: Simulation) -> None:
        server = RemotingServer(sim.env(), processors(), RemotingConfig())
        await server.start()
        client = RemotingClient(sim.env(), RemotingConfig())
        got = await asyncio.gather(*(client.connect(server.address) for _ in range(100)))
        assert len(set(got)) == 1 and len(server.connections) == 1
        assert client.live(server.address) is got[0] and client.connections == [got[0]]
        await client.close()
        with pytest.raises(NotConnectedError, match="closed"):
            await client.connect(server.address)
        await server.close()

    simulate(main)


def test_reconnect_backs_off_and_recovers() -> None:
    async def main(sim: Simulation) -> None:
        client = RemotingClient(sim.env(), RemotingConfig(backoff_initial=0.1, backoff_max=5.0, connect_timeout=10.0))
        pauses: list[float] = []
        for _ in range(10):
            start = sim.loop.time()
            with pytest.raises(NotConnectedError, match=r"127\.0\.0\.1:9876: Connection refused \(errno 111\)"):
                await client.connect("127.0.0.1:9876")
            pauses.append(sim.loop.time() - start)
        for n, pause in enumerate(pauses[1:]):
            full = min(5.0, 0.1 * 2**n)
            assert 0.45 * full <= pause <= full + 0.02
        with pytest.raises(NotConnectedError, match=r"tried 10 times, the next attempt is in [0-4]\.\d s"):
            await client.connect("127.0.0.1:9876", timeout=0.5)
        server = RemotingServer(sim.env(), processors(), RemotingConfig())
        await server.start("127.0.0.1", 9876)
        answer = await client.request("127.0.0.1:9876", RemotingCommand.request(ECHO, body=b"back"), timeout=8.0)
        assert answer.body == b"back" and not client.trouble("127.0.0.1:9876")
        await client.close()
        await server.close()

    simulate(main)


def test_a_peer_that_hangs_up_without_a_word_is_dialled_ever_more_seldom() -> None:
    """As a proxy does whose server is away. What says something before it ends is dialled at once."""

    async def main(sim: Simulation) -> None:
        dialled: list[float] = []

        class HangsUp(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                dialled.append(sim.loop.time())
                transport.close()

        proxy = await sim.loop.create_server(HangsUp, "127.0.0.1", 9876)
        client = RemotingClient(sim.env(), RemotingConfig())
        while sim.loop.time() < 60:
            with pytest.raises((ConnectionLostError, NotConnectedError)):
                await client.request("127.0.0.1:9876", RemotingCommand.request(ECHO))
            await asyncio.sleep(0.01)
        assert len(dialled) < 40
        assert "having said nothing" in client.trouble("127.0.0.1:9876")
        proxy.close()

        server = RemotingServer(sim.env(), processors(), RemotingConfig())
        await server.start("127.0.0.1", 9876)
        for _ in range(3):
            await client.request("127.0.0.1:9876", RemotingCommand.request(ECHO), timeout=8.0)
            assert not client.trouble("127.0.0.1:9876")
            for connection in server.connections:
                connection.close("for a test")
            await asyncio.sleep(0.1)
            begun = sim.loop.time()
            await client.connect("127.0.0.1:9876")
            assert sim.loop.time() - begun < 0.05
        await client.close()
        await server.close()

    simulate(main)


def test_a_connection_that_lasted_without_a_word_is_no_failure() -> None:
    """Each that was closed because nobody used it made the next dial wait longer, for ever."""

    async def main(sim: Simulation) -> None:
        class Idle(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                sim.loop.call_later(120, transport.close)  # as Apache's

        server = await sim.loop.create_server(Idle, "127.0.0.1", 9876)
        client = RemotingClient(sim.env(), RemotingConfig())
        for _ in range(10):
            begun = sim.loop.time()
            connection = await client.connect("127.0.0.1:9876")
            assert sim.loop.time() - begun < 0.05
            await connection.wait_closed()
            await asyncio.sleep(0)
            assert not client.trouble("127.0.0.1:9876")
        await client.close()
        server.close()

    simulate(main)


def test_an_address_that_no_resolver_takes_says_so_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(sim: Simulation) -> None:
        async def refuse(*_: object, **__: object) -> None:
            raise ValueError("embedded null character")  # as asyncio's loop

        monkeypatch.setattr(sim.loop, "create_connection", refuse)
        client = RemotingClient(sim.env(), RemotingConfig())
        for _ in range(3):
            with pytest.raises(NotConnectedError, match="embedded null character"):
                await client.connect("a\0b:10911")
        await client.close()

    simulate(main)


def test_a_peer_that_is_silent_while_connecting_costs_the_timeout_only() -> None:
    async def main(sim: Simulation) -> None:
        far = sim.host("10.0.0.9")
        sim.network.partition(["127.0.0.1"], ["10.0.0.9"])
        client = RemotingClient(sim.env(), RemotingConfig(connect_timeout=3.0))
        with pytest.raises(NotConnectedError, match=r"10\.0\.0\.9:1: no connection within 3 s"):
            await client.connect("10.0.0.9:1")
        assert sim.loop.time() == pytest.approx(3.0)
        start = sim.loop.time()
        with pytest.raises(NotConnectedError):
            await client.request("10.0.0.9:1", RemotingCommand.request(ECHO), timeout=0.5)
        assert sim.loop.time() - start == pytest.approx(0.5)
        await client.close()
        far.kill()

    simulate(main)


@pytest.mark.seeds(20)
def test_whatever_happens_every_request_ends_within_its_deadline(seed: int) -> None:
    """Kills, resets, half-open links, parked requests: each future has an outcome in time and none is left."""

    async def main(sim: Simulation) -> None:
        draw = sim.loop.random
        outcomes: dict[str, int] = {}

        async def one(client: RemotingClient, n: int) -> None:
            await asyncio.sleep(draw.uniform(0, 60))
            timeout = draw.choice([0.3, 1.0, 3.0])
            start = sim.loop.time()
            try:
                command = RemotingCommand.request(draw.choice([ECHO, ECHO, PARK]), body=b"x" * draw.randrange(20_000))
                await client.request("10.0.0.1:9876", command, timeout)
                result = "ok"
            except (RequestTimeoutError, ConnectionLostError, NotConnectedError) as error:
                result = type(error).__name__
            outcomes[result] = outcomes.get(result, 0) + 1
            assert sim.loop.time() - start <= timeout + 0.1

        async def trouble() -> None:
            address = "10.0.0.1"
            for _ in range(12):
                host = sim.host(address)
                server = RemotingServer(sim.env(), processors(), RemotingConfig())
                await host.run(server.start("0.0.0.0", 9876))
                await asyncio.sleep(draw.uniform(1, 5))
                match draw.randrange(4):
                    case 0:
                        sim.network.reset(address, "10.0.0.2")
                    case 1:
                        sim.network.block(address, "10.0.0.2")
                        await asyncio.sleep(draw.uniform(0.1, 4))
                        sim.network.heal()
                    case 2:
                        sim.network.partition([address], ["10.0.0.2"])
                        await asyncio.sleep(draw.uniform(0.1, 4))
                        sim.network.heal()
                host.kill(power_cut=draw.random() < 0.3)
                await asyncio.sleep(draw.uniform(0, 1))

        near = sim.host("10.0.0.2")
        client = RemotingClient(sim.env(), RemotingConfig())
        causing = asyncio.ensure_future(trouble())
        await near.run(_all([one(client, n) for n in range(400)]))
        await causing
        assert all(connection.pending == 0 for connection in client.connections)
        await near.run(client.close())
        assert len(outcomes) == 4 and outcomes["ok"] > 20

    simulate(main, seed)


async def _all(coros: list[object]) -> None:
    await asyncio.gather(*coros)  # type: ignore[call-overload]


def test_a_half_open_connection_is_given_up_when_requests_time_out() -> None:
    async def main(sim: Simulation) -> None:
        far, near = sim.host("10.0.0.1"), sim.host("10.0.0.2")
        server = RemotingServer(sim.env(), processors(), RemotingConfig())
        await far.run(server.start("0.0.0.0", 9876))
        client = RemotingClient(sim.env(), RemotingConfig())
        connection = await near.run(client.connect("10.0.0.1:9876"))
        sim.network.partition(["10.0.0.1"], ["10.0.0.2"])
        outcomes = []
        while not connection.closed:
            with pytest.raises(RequestTimeoutError):
                await near.run(client.request("10.0.0.1:9876", RemotingCommand.request(ECHO), 0.5))
            outcomes.append(sim.loop.time())
        assert 3.0 <= outcomes[-1] <= 3.6 and "silent for 3.0 s" in connection.close_reason
        sim.network.heal()
        assert (await near.run(client.request("10.0.0.1:9876", RemotingCommand.request(ECHO)))).code == 0
        await near.run(client.close())
        await far.run(server.close())

    simulate(main)


def test_a_parked_request_does_not_make_a_lively_connection_suspect() -> None:
    async def main(sim: Simulation) -> None:
        server = RemotingServer(sim.env(), processors(), RemotingConfig())
        await server.start()
        client = RemotingClient(sim.env(), RemotingConfig())
        connection = await client.connect(server.address)
        parked = connection.request(RemotingCommand.request(PARK), 10.0)
        for _ in range(30):
            await client.request(server.address, RemotingCommand.request(ECHO))
            await asyncio.sleep(1)
        with pytest.raises(RequestTimeoutError):
            await parked
        assert not connection.closed
        await client.close()
        await server.close(grace=0.0)

    simulate(main)


def test_cancelling_at_every_await_leaves_nothing() -> None:
    async def main(sim: Simulation) -> None:
        server = RemotingServer(sim.env(), processors(), RemotingConfig())
        await server.start()
        for step in range(40):
            client = RemotingClient(sim.env(), RemotingConfig())
            command = RemotingCommand.request(ECHO, body=b"x" * 5000)
            task = asyncio.ensure_future(client.request(server.address, command))
            for _ in range(step):
                await asyncio.sleep(0.0002)
            task.cancel()
            await asyncio.wait([task])
            again = await client.request(server.address, RemotingCommand.request(ECHO, body=b"again"))
            assert again.body == b"again"
            await client.close()
        await server.close()

    simulate(main)


@pytest.mark.parametrize("reading", [True, False], ids=["a peer that reads", "a peer that does not"])
def test_a_close_that_is_cancelled_again_and_again_closes_all_the_same(reading: bool) -> None:
    async def main(sim: Simulation) -> None:
        server = RemotingServer(sim.env(), processors(), RemotingConfig())
        host, here = sim.host("10.0.0.1"), sim.host("10.0.0.2")
        await host.run(server.start("10.0.0.1"))
        client = RemotingClient(sim.env(), RemotingConfig())

        async def script() -> None:
            connection = await client.connect(server.address)
            dialling = asyncio.ensure_future(client.connect("10.0.0.3:1"))
            await asyncio.sleep(0)
            if not reading:
                sim.network.block("10.0.0.2", "10.0.0.1")
                connection.oneway(RemotingCommand.request(ECHO, body=bytes(1 << 20)))
            for _ in range(3):
                closing = asyncio.ensure_future(client.close())
                await asyncio.sleep(0)
                closing.cancel()
                await asyncio.wait([closing])
            with pytest.raises(NotConnectedError):
                await dialling
            assert client.connections == []
            await asyncio.sleep(2)
            assert not [each for each in sim.network._transports if each.host is here]

        await here.run(script())
        await host.run(server.close())

    simulate(main)


def test_on_close_is_told_once_per_connection() -> None:
    async def main(sim: Simulation) -> None:
        ended: list[Connection] = []
        accepted: list[Connection] = []
        lost: list[Connection] = []
        server = RemotingServer(sim.env(), processors(), RemotingConfig(), accepted.append, lost.append)
        await server.start()
        client = RemotingClient(sim.env(), RemotingConfig(), on_close=ended.append)
        connection = await client.connect(server.address)
        await client.request(server.address, RemotingCommand.request(ECHO))
        assert accepted == server.connections and accepted[0].peer == connection.local
        connection.close("test")
        connection.close("twice")
        connection.abort("thrice")
        await asyncio.sleep(1)
        assert ended == [connection] and connection.close_reason == "test" and lost == accepted
        await client.close()
        await server.close()

    simulate(main)


def test_server_close_answers_what_is_in_flight_and_takes_nothing_new() -> None:
    async def main(sim: Simulation) -> None:
        table = processors()

        async def slow(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            await asyncio.sleep(0.3)
            return RemotingCommand.response(0, remark="done")

        table.add(11, slow)
        server = RemotingServer(sim.env(), table, RemotingConfig())
        await server.start()
        client = RemotingClient(sim.env(), RemotingConfig())
        connection = await client.connect(server.address)
        in_flight = connection.request(RemotingCommand.request(11), 3.0)
        parked = connection.request(RemotingCommand.request(PARK), 3.0)
        await asyncio.sleep(0.1)
        start = sim.loop.time()
        await server.close(grace=1.0)
        assert sim.loop.time() - start <= 2.1
        assert (await in_flight).remark == "done"
        with pytest.raises(RocketError):
            await parked
        await client.close()

    simulate(main)
