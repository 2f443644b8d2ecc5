"""A proxy between clients and a broker, ours or Apache's, delays, cuts, swallows and holds back what they say: nothing
acknowledged is lost, consumption comes back, and of one key our producer's messages stay in the order of its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from aiorocket import Client, ClientConfig, Message, Producer
from aiorocket.errors import SendError
from tests.interop.chaos import MODES, Chaos, chaos
from tests.interop.peers import NEWEST, OLDER, JavaClient, Server, apache_server, ask, fetch_jars, our_server
from tests.interop.test_clients import cpp, go, node, run
from tests.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
__all__ = ("cpp", "go", "node")

#: Two heartbeats: what clients may take to find back.
BACK = 60
#: The broker's clients are told this address, where the proxy is.
DOOR = "127.0.0.2"


CREATE_TOPIC = 17


@pytest.fixture
async def bad(tmp_path: Path) -> AsyncIterator[tuple[Server, Chaos]]:
    with our_server(tmp_path / "server", "--advertise", DOOR) as server:
        port = int(server.broker.rsplit(":", 1)[1])
        async with chaos(DOOR, port, ("127.0.0.1", port)) as proxy:
            yield server, proxy


async def mistreat(proxy: Chaos, seconds: float) -> None:
    """Every mode for as long, with as much calm in between, and calm at the end."""
    for mode in MODES:
        proxy.turn(mode)
        await asyncio.sleep(seconds)
        proxy.turn("calm")
        await asyncio.sleep(seconds)
    assert proxy.harm > 0


@pytest.mark.parametrize("version", [NEWEST, OLDER])
async def test_javas_client(version: str, bad: tuple[Server, Chaos], java: JavaClient, java_older: JavaClient) -> None:
    server, proxy = bad
    client = java if version == NEWEST else java_older
    run = await client.start(server.nameserver, "steady", "16", str(BACK), program="Steady")
    await run.until("started", limit=30)
    await asyncio.sleep(2)
    await mistreat(proxy, 1.0)
    done = (await run.finish(limit=BACK + 40))[-1]
    assert done["missing"] == 0 and done["acknowledged"] > 100, done


@pytest.mark.parametrize("client", ["go", "cpp", "node"])
async def test_other_clients(
    client: str, bad: tuple[Server, Chaos], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server, proxy = bad
    command: list[str] = request.getfixturevalue(client)
    fields = {"topic": "steady", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
              "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    assert ask(server.broker, CREATE_TOPIC, fields)[0] == 0

    async def trouble() -> None:
        await asyncio.sleep(3)
        await mistreat(proxy, 1.0)

    troubled = asyncio.create_task(trouble())
    facts = await run(command, tmp_path, "steady", server.nameserver, "steady", "16", str(BACK), limit=BACK + 60)
    await troubled
    assert facts[-1]["missing"] == 0 and facts[-1]["acknowledged"] > 100, facts


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
