"""A broker that registers an address which nobody reaches from here, as one in a container does."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any
from unittest.mock import Mock

import pytest

from aiorocket import Client, ClientConfig, ConfigError, NotConnectedError, Producer, SendError
from aiorocket.config import RemotingConfig
from aiorocket.config.addresses import mapped, read_address_map
from aiorocket.remoting import RemotingClient
from aiorocket.runtime.env import memory_env
from tests.client.fake_broker import NAMES, FakeCluster
from tests.client.test_selectors import run

INSIDE = "172.17.0.2:10911"


@pytest.mark.parametrize(
    ("text", "address", "dialled"),
    [
        ("172.17.0.2:10911=127.0.0.1:20911", INSIDE, "127.0.0.1:20911"),
        ("172.17.0.2=docker.example", INSIDE, "docker.example:10911"),
        ("172.17.0.2:10911 = localhost; 172.17.0.3=x", INSIDE, "localhost:10911"),
        ("172.17.0.2=x,172.17.0.2:10911=y:1", INSIDE, "y:1"),
        ("172.17.0.2=x,172.17.0.2:10911=y:1", "172.17.0.2:10909", "x:10909"),
        ("[fd00::2]=[::1]", "[fd00::2]:10911", "[::1]:10911"),
        ("a:1=b:2", INSIDE, INSIDE),
        ("", INSIDE, INSIDE),
    ],
)
def test_where_an_address_is_dialled(text: str, address: str, dialled: str) -> None:
    assert mapped(read_address_map(text), address) == dialled


@pytest.mark.parametrize("text", ["a", "a=", "=b", "a:1=b:2,a:1=c:3", "a=b:1", "a:0=b:1", "a:1=b:x", "::1=b", "[]=b"])
def test_what_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="address_map"):
        read_address_map(text)


def test_it_is_checked_where_it_is_made() -> None:
    for given in ({"a:1": 5}, {"a": "b:1"}, "a=b", ["a=b"]):
        with pytest.raises(ConfigError, match="address_map"):
            ClientConfig(address_map=given)  # type: ignore[arg-type] # that is the point
    config = ClientConfig(address_map={INSIDE: "localhost"})
    assert hash(config) == hash(ClientConfig()) and pickle.loads(pickle.dumps(config)) == config != ClientConfig()


async def outside(address: str) -> str:
    assert address in (NAMES, INSIDE)
    return "10.0.0.2:10911" if address == INSIDE else address


async def nowhere(address: str) -> str:
    raise KeyError(address)


async def cancelled(address: str) -> str:
    raise asyncio.CancelledError  # as what it awaited, and somebody had cancelled


class Wordless(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


async def wordless(address: str) -> str:
    raise Wordless


async def closing(address: str) -> str:
    raise GeneratorExit


async def grouped(address: str) -> str:
    raise BaseExceptionGroup("several", [GeneratorExit()])


def with_map(given: Mapping[str, str] | Callable[[str], Awaitable[str]]) -> ClientConfig:
    return ClientConfig(nameservers=(NAMES,), address_map=given)


def inside(cluster: FakeCluster) -> None:
    """The broker listens at 10.0.0.2 and tells the name server another address."""
    [broker] = cluster.brokers
    assert broker.address == "10.0.0.2:10911"
    broker.address = INSIDE


@pytest.mark.parametrize("given", [{INSIDE: "10.0.0.2:10911"}, {"172.17.0.2": "10.0.0.2"}, outside])
def test_a_broker_is_reached_where_the_map_says(given: Mapping[str, str] | Callable[[str], Awaitable[str]]) -> None:
    async def scenario(cluster: FakeCluster, plain: Producer) -> None:
        inside(cluster)
        with pytest.raises(SendError, match=r"172\.17\.0\.2:10911: .*refused.*say so by address_map="):
            await plain.send("t", b"x")
        [broker] = cluster.brokers
        async with Client(config=with_map(given), env=cluster.sim.env()) as client, client.producer("p") as producer:
            await producer.send("t", b"y")
            assert await client.session.heartbeat() == {}
            assert client.session.remoting.addresses == {NAMES, INSIDE}
        assert [kept.body for kept in broker.kept] == [b"y"] and broker.told

    run(scenario, brokers=1)


@pytest.mark.parametrize("registered", ["broker-b", "fe80::2:10911", "10.0.0.3:0"])
def test_a_broker_that_registered_no_address_leaves_the_others(registered: str) -> None:
    """A send ended with UsageError, and so did the start of a consumer."""

    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        good, bad = cluster.brokers
        bad.address = registered
        for number in range(4):
            await producer.send("t", b"%d" % number)
        assert len(good.kept) == 4
        with pytest.raises(NotConnectedError, match="address"):
            await producer.client.connection(registered)

    run(scenario, brokers=2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({INSIDE: "10.0.0.9:1"}, r"172\.17\.0\.2:10911: as 10\.0\.0\.9:1 \(address_map\): "),
        (nowhere, r"172\.17\.0\.2:10911: address_map raised KeyError"),
        (cancelled, r"172\.17\.0\.2:10911: address_map raised .*CancelledError"),
        (closing, r"172\.17\.0\.2:10911: address_map raised GeneratorExit"),
        (grouped, r"172\.17\.0\.2:10911: address_map raised BaseExceptionGroup"),
        (wordless, r"172\.17\.0\.2:10911: address_map raised .*Wordless"),
    ],
)
def test_a_map_that_leads_nowhere_says_so(
    given: Mapping[str, str] | Callable[[str], Awaitable[str]], said: str
) -> None:
    async def scenario(cluster: FakeCluster, _producer: Producer) -> None:
        async with Client(config=with_map(given), env=cluster.sim.env()) as client:
            for _ in range(2):
                with pytest.raises(NotConnectedError, match=said):
                    await client.session.connection(INSIDE)

    run(scenario, brokers=1)


def test_a_map_that_waits_when_its_loop_has_ended_is_closed() -> None:
    """Without a loop that runs nobody can be asked which task does: a RuntimeError took the place of the end."""

    async def waits(address: str) -> str:
        await asyncio.Event().wait()
        return address

    async def begun() -> tuple[Coroutine[Any, Any, None], asyncio.Task[None]]:
        dial = RemotingClient(memory_env(), RemotingConfig(), address_map=waits)._dial(INSIDE)
        task = asyncio.ensure_future(dial)
        await asyncio.sleep(0)
        return dial, task

    loop = asyncio.new_event_loop()
    dial, task = loop.run_until_complete(begun())
    dial.close()
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()


def test_a_dial_that_ends_as_nobody_expects_is_told_and_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked for that address waited for ever, and so did all who came later."""

    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        [broker] = cluster.brokers
        session = producer.client
        with monkeypatch.context() as patch:
            patch.setattr(cluster.sim.loop, "create_connection", Mock(side_effect=MemoryError("no room")))
            async with asyncio.timeout(60):
                with pytest.raises(NotConnectedError, match="MemoryError: no room"):
                    await session.connection(broker.address)
        await asyncio.sleep(10)
        assert not (await session.connection(broker.address)).closed

    run(scenario, brokers=1)
