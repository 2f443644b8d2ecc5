"""A proxy between clients and a broker, ours or Apache's, delays, cuts, swallows and holds back what they say: nothing
acknowledged is lost, consumption comes back, and of one key our producer's messages stay in the order of its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from aiorocket import Admin, Client, ClientConfig, Message, PoppedMessage, Producer
from aiorocket.errors import RocketError, SendError
from tests.interop.chaos import MODES, Chaos, chaos
from tests.interop.peers import NEWEST, OLDER, JavaClient, Server, apache_server, fetch_jars, our_server
from tests.interop.test_clients import cpp, create, go, node, started
from tests.interop.test_proxy import create as create_for_grpc
from tests.interop.test_proxy import grpc, proxied
from tests.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
__all__ = ("cpp", "go", "grpc", "node")

#: Two heartbeats are what clients take to find back, where they have the machine to themselves.
BACK = 150
#: The broker's clients are told this address, where the proxy is.
DOOR = "127.0.0.2"


@pytest.fixture
async def bad(tmp_path: Path) -> AsyncIterator[tuple[Server, Chaos]]:
    with our_server(tmp_path / "server", "--advertise", DOOR) as server:
        port = int(server.broker.rsplit(":", 1)[1])
        async with chaos(DOOR, port, ("127.0.0.1", port)) as proxy:
            yield server, proxy


async def mistreat(proxy: Chaos, seconds: float) -> None:
    """Every mode for as long, or until clients said anything in it, with as much calm in between, and calm at the end.
    It begins when they are at work."""

    async def more(pieces: int, patience: float) -> None:
        wanted = proxy.heard + pieces
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while proxy.heard < wanted:
                    await asyncio.sleep(0.01)

    await more(20, BACK)
    for mode in MODES:
        proxy.turn(mode)
        await asyncio.gather(asyncio.sleep(seconds), more(1, 30))
        proxy.turn("calm")
        await asyncio.sleep(seconds)
    assert proxy.harm > 0, f"clients said {proxy.heard} pieces, and none was cut or swallowed"


@pytest.mark.parametrize("version", [NEWEST, OLDER])
async def test_javas_client(version: str, bad: tuple[Server, Chaos], java: JavaClient, java_older: JavaClient) -> None:
    server, proxy = bad
    client = java if version == NEWEST else java_older
    run = await client.start(server.nameserver, "steady", str(BACK), program="Steady")
    await run.until("started", limit=BACK)
    await mistreat(proxy, 1.0)
    done = (await run.finish(limit=BACK + 40))[-1]
    assert done["missing"] == 0 and done["acknowledged"] > 100, done


@pytest.mark.parametrize("client", ["go", "cpp", "node"])
async def test_other_clients(
    client: str, bad: tuple[Server, Chaos], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server, proxy = bad
    command: list[str] = request.getfixturevalue(client)
    create(server, "steady")
    # Node's takes half an answer for a whole one when the end comes with it (``socket.read`` of a stream that has ended
    # gives what is there) and goes on behind messages that it has not read. Later, a reset is the end that it is.
    proxy.resets = client == "node"

    async with started(command, tmp_path, "steady", server.nameserver, "steady", str(BACK)) as program:
        await program.until("started", limit=BACK)
        await mistreat(proxy, 1.0)
        done = (await program.finish(limit=BACK + 60))[-2]
    assert done["missing"] == 0 and done["acknowledged"] > 100, done


async def test_the_grpc_client_and_apaches_proxy(bad: tuple[Server, Chaos], grpc: list[str], tmp_path: Path) -> None:
    """The bad way is the one between the proxy and the broker: pops, acknowledgements and their answers get lost."""
    server, proxy = bad
    create_for_grpc(server, "steady", "steady")
    async with proxied(tmp_path / "proxy", server) as endpoints:
        arguments = "steady", endpoints, "steady", "steady", str(BACK)
        async with started(grpc, tmp_path, *arguments) as program:
            await program.until("started", limit=BACK)
            await mistreat(proxy, 1.0)
            done = (await program.finish(limit=BACK + 40))[-2]
    assert done["missing"] == 0 and done["acknowledged"] > 100, done


async def test_our_simple_consumer(bad: tuple[Server, Chaos]) -> None:
    """What was popped and whose answer was lost comes again, and all that came is acknowledged in the end."""
    server, proxy = bad
    config, invisible = ClientConfig(nameservers=(server.nameserver,)), 5.0
    sent: set[str] = set()
    seen: set[str] = set()
    async with (
        Client(config=config) as sending,
        Client(config=config) as popping,
        sending.producer("steady-producer") as producer,
        popping.simple_consumer("steady-consumer") as consumer,
        asyncio.TaskGroup() as working,
    ):
        await consumer.subscribe("steady", start_from="first")
        await producer.send("steady", b"first", timeout=20)

        async def send(name: int) -> None:
            for number in range(10**9):
                with suppress(SendError):
                    await producer.send("steady", f"{name}-{number}".encode(), timeout=5)
                    sent.add(f"{name}-{number}")
                await asyncio.sleep(0.02)

        async def acknowledge(message: PoppedMessage) -> None:
            with suppress(RocketError):
                await message.ack()

        async def receive() -> None:
            while True:
                for message in await consumer.receive(invisible=invisible):
                    seen.add(message.body.decode())
                    working.create_task(acknowledge(message))

        senders = [working.create_task(send(name)) for name in range(4)]
        receivers = [working.create_task(receive()) for _ in range(2)]
        await mistreat(proxy, 1.0)
        for task in senders:
            task.cancel()
        async with asyncio.timeout(BACK), Admin(nameservers=(server.nameserver,)) as admin:
            while not sent <= seen or await admin.pops.checkpoints("steady-consumer"):
                await asyncio.sleep(0.1)
        for task in receivers:
            task.cancel()
    assert len(sent) > 200


async def keyed(config: ClientConfig, proxy: Chaos, trouble: Callable[[], Awaitable[None]]) -> None:
    """Our producer and our orderly consumer through ``trouble``; all promises are checked."""
    sent: dict[str, list[int]] = {f"k{number}": [] for number in range(8)}
    seen: dict[str, list[int]] = {key: [] for key in sent}
    unsure: dict[str, set[int]] = {key: set() for key in sent}
    ended = asyncio.Event()

    async def send(producer: Producer, key: str) -> None:
        number = 0
        # Half of them mostly wait for no answer, so that trouble always finds requests that are still to be sent.
        pause = 0.005 if key < "k4" else 0.3
        while not ended.is_set():
            number += 1
            try:
                await producer.send("keyed", f"{key}:{number}".encode(), sharding_key=key, timeout=5)
            except SendError as error:
                if error.may_be_stored:
                    unsure[key].add(number)
                continue
            sent[key].append(number)
            await asyncio.sleep(pause)

    async with (
        Client(config=config) as sending,
        Client(config=config) as consuming,
        sending.producer("keyed-producer") as producer,
    ):
        consumer = consuming.consumer("keyed-consumer")

        @consumer.orderly("keyed", start_from="first")
        async def listen(message: Message) -> None:
            key, number = message.body.decode().split(":")
            seen[key].append(int(number))

        await producer.send("keyed", b"k0:0", sharding_key="k0", timeout=20)
        async with consumer:
            senders = [asyncio.create_task(send(producer, key)) for key in sent]
            await trouble()
            ended.set()
            await asyncio.gather(*senders)
            async with asyncio.timeout(BACK):
                while any(not set(numbers) <= set(seen[key]) for key, numbers in sent.items()):
                    await asyncio.sleep(0.1)
    assert sum(map(len, sent.values())) > 200 and proxy.harm > 0
    for key, numbers in seen.items():
        first = list(dict.fromkeys(numbers))  # a message whose acknowledgement was lost may be there twice
        certain = [number for number in first if number not in unsure[key]]
        assert certain == sorted(certain), key
        assert set(first) <= set(sent[key]) | unsure[key] | {0}, key


async def test_our_client_and_the_order_of_keys(bad: tuple[Server, Chaos]) -> None:
    server, proxy = bad
    await keyed(ClientConfig(nameservers=(server.nameserver,)), proxy, lambda: mistreat(proxy, 1.0))


@pytest.mark.parametrize("version", [NEWEST, OLDER])
async def test_our_client_at_apaches_broker(version: str, tmp_path: Path) -> None:
    """4.9's listens at every address of its port, so the proxy has a port of its own, and the client is told of it."""
    with apache_server(fetch_jars(version), tmp_path / "server") as server:
        port, door = int(server.broker.rsplit(":", 1)[1]), free_port()
        config = ClientConfig(nameservers=(server.nameserver,), address_map={server.broker: f"127.0.0.1:{door}"})
        async with chaos("127.0.0.1", door, ("127.0.0.1", port)) as proxy:
            await keyed(config, proxy, lambda: mistreat(proxy, 1.0))


async def test_what_a_stalled_connection_delivers_late_overtakes_nothing(bad: tuple[Server, Chaos]) -> None:
    """A connection is silent for longer than a send may take; sends go on over new ones; then it delivers. What it
    delivers then comes behind later messages of its key: its sender was told that it may be stored."""
    server, proxy = bad

    async def trouble() -> None:
        await asyncio.sleep(1)
        proxy.turn("late")
        await asyncio.sleep(8)
        proxy.turn("calm")
        await asyncio.sleep(2)

    await keyed(ClientConfig(nameservers=(server.nameserver,)), proxy, trouble)


@pytest.mark.parametrize("turns", range(6))
async def test_a_proxy_that_ends_while_somebody_comes_keeps_no_connection(turns: int) -> None:
    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.transport.abort()

    target = await asyncio.start_server(quiet, "127.0.0.1", 0)
    port = free_port()
    async with target:
        async with chaos("127.0.0.1", port, target.sockets[0].getsockname()[:2]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(turns):
                await asyncio.sleep(0)
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.transport.abort()
