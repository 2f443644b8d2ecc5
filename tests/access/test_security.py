"""Servers with TLS, and files that change while they run."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import aiorocket
from aiorocket.access import security
from aiorocket.access.security import Security
from aiorocket.broker import Broker
from aiorocket.client.app import Client
from aiorocket.config import BrokerConfig, ClientConfig, NameServerConfig, RemotingConfig, ServerTlsConfig, TlsConfig
from aiorocket.errors import RocketError
from aiorocket.nameserver import NameServer
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.remoting.server import RemotingServer
from aiorocket.remoting.tls import first_certificate, untimely
from aiorocket.runtime.env import memory_env
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.testing import Simulation, simulate

DATA = Path(__file__).parents[1] / "remoting" / "data"
CA = str(DATA / "ca.pem")
SERVER = ServerTlsConfig(cert=str(DATA / "server.pem"), key=str(DATA / "server.key"))
ASKING = ServerTlsConfig(cert=SERVER.cert, key=SERVER.key, client_cert="required", client_ca=CA)
SHOWING = TlsConfig(
    ca=CA, cert=str(DATA / "client.pem"), key=str(DATA / "client-locked.key"), key_password="open-it"
)  # fmt: skip


async def test_messages_through_servers_that_speak_nothing_but_tls() -> None:
    """And ask everybody for a certificate, brokers too: with one that is checked they may register from anywhere."""
    env = memory_env()
    nameserver = NameServer(env, NameServerConfig(host="0.0.0.0", port=0, tls=ASKING))
    await nameserver.start()
    address = f"127.0.0.1:{nameserver.port}"
    broker = Broker(env, BrokerConfig(port=0, nameservers=(address,), tls=ASKING, nameserver_tls=SHOWING))
    try:
        await broker.start()
        config = ClientConfig(nameservers=(address,), tls=SHOWING)
        async with Client(config=config) as client, client.producer("p") as producer:
            assert (await producer.send("t", b"1", timeout=30)).offset == 0
        async with Client(config=ClientConfig(nameservers=(address,), tls=TlsConfig(ca=CA))) as client:
            with pytest.raises(RocketError):
                await client.session.route("t", timeout=2)
    finally:
        await broker.close()
        await nameserver.close()
        await env.disk.close()


async def test_embedded_servers_speak_tls_too() -> None:
    client = ClientConfig(tls=TlsConfig(ca=CA))
    async with aiorocket.embed(broker={"tls": SERVER}, client=client) as mq:
        await mq.create_topic("t")
        async with mq.client() as own, own.producer("p") as producer:
            assert (await producer.send("t", b"1", timeout=30)).offset == 0


def test_a_file_that_changed_is_read_again_and_one_with_a_fault_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(sim: Simulation) -> None:
        disk = MemoryDisk()

        def write(text: str) -> None:
            disk.replace("a.toml", text.encode())

        write("users.first.secret = 'first-s3cret'")
        guards = Security(replace(memory_env(), disk=disk), NameServerConfig(acl="a.toml"))
        assert guards.accounts is not None and guards.changes
        fresh = asyncio.ensure_future(guards.keep_fresh())
        await asyncio.sleep(security.LOOK_EVERY * 3)
        assert not caplog.records
        write("users.second.secret = 'second-s3cret'")
        await asyncio.sleep(security.LOOK_EVERY + 1)
        assert [account.name for account in guards.accounts.all()] == ["second"]
        write("users.third.secret = 'no'")
        await asyncio.sleep(security.LOOK_EVERY + 1)
        assert [account.name for account in guards.accounts.all()] == ["second"]
        assert "what was in force stays" in caplog.text and "s3cret" not in caplog.text
        fresh.cancel()
        await asyncio.gather(fresh, return_exceptions=True)

    simulate(main)


def test_a_file_that_changes_while_its_server_starts_is_read_again() -> None:
    """A start may take minutes, and what was taken from somebody meanwhile was not before the next change."""

    async def main(sim: Simulation) -> None:
        disk = MemoryDisk()
        disk.replace("a.toml", b"users.gone.secret = 'gone-s3cret'")
        guards = Security(replace(memory_env(), disk=disk), NameServerConfig(acl="a.toml"))
        disk.replace("a.toml", b"users.here.secret = 'here-s3cret'")
        fresh = asyncio.ensure_future(guards.keep_fresh())
        await asyncio.sleep(1)
        assert guards.accounts is not None
        assert [account.name for account in guards.accounts.all()] == ["here"]
        fresh.cancel()
        await asyncio.gather(fresh, return_exceptions=True)

    simulate(main)


def test_a_fault_of_the_access_file_keeps_no_certificate_from_being_read() -> None:
    disk = MemoryDisk()
    disk.replace("a.toml", b"users.me.secret = 'me-s3cret'")
    guards = Security(replace(memory_env(), disk=disk), NameServerConfig(acl="a.toml", tls=SERVER))
    assert guards.tls is not None
    disk.replace("a.toml", b"users.me.secret = 'no'")
    before = guards.tls.context
    guards.reload()
    assert guards.tls.context is not before


class Day:
    def __init__(self, at: datetime) -> None:
        self.at = at

    def wall_ms(self) -> int:
        return round(self.at.timestamp() * 1000)


BEGIN, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("day", "said"),
    [
        (BEGIN - timedelta(days=1), "is not valid before 2020-01-01 00:00 UTC"),
        (BEGIN, None),
        (END - timedelta(days=14), None),
        (END - timedelta(days=5, hours=1), "expires at 2120-01-01 00:00 UTC, in 5 days; put a new one in its place"),
        (END, "has expired, at 2120-01-01 00:00 UTC"),
    ],
)
async def test_a_certificate_out_of_its_time_is_spoken_of_at_the_start_and_when_it_is_read_again(
    day: datetime, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    env = replace(memory_env(), clock=Day(day))
    guards = Security(env, BrokerConfig(tls=SERVER))
    await guards.open(RemotingServer(env, ProcessorTable(), RemotingConfig()), "127.0.0.1", "the broker")
    assert len(caplog.records) == (said is not None) and (said or "") in caplog.text
    caplog.clear()
    guards.reload()
    assert len(caplog.records) == 1 + (said is not None) and (said or "") in caplog.text


def test_a_certificate_that_is_none_says_nothing_of_its_time() -> None:
    whole = first_certificate(SERVER.cert)
    assert untimely(whole, Day(END).wall_ms()) is not None
    for length in range(0, len(whole) - 200, 3):
        untimely(whole[:length], 0)  # raises nothing
    assert untimely(b"", 0) is None and first_certificate(CA + "x") == b"" and first_certificate(str(SERVER.key)) == b""


@pytest.mark.parametrize(
    ("host", "config", "said"),
    [
        ("127.0.0.1", {}, None),
        ("0.0.0.0", {}, "without access control, everybody .*; plain text is spoken"),
        ("0.0.0.0", {"tls": SERVER}, "listens on 0.0.0.0: without access control"),
        ("", {"acl": "a.toml", "tls": SERVER}, None),
        ("::", {"acl": "a.toml"}, "listens on ::: plain text is spoken"),
    ],
)
async def test_a_start_says_what_is_open(
    host: str, config: dict[str, object], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    disk.replace("a.toml", b"users.me.secret = 'me-s3cret'")
    caplog.set_level(logging.WARNING)
    guards = Security(replace(memory_env(), disk=disk), NameServerConfig(host=host, **config))  # type: ignore[arg-type]  # of any type
    await guards.open(RemotingServer(memory_env(), ProcessorTable(), RemotingConfig()), host, "the name server")
    if said is None:
        assert not caplog.records
    else:
        assert re.search(said, caplog.text)


async def test_a_broker_that_shows_no_certificate_is_not_heard() -> None:
    env = memory_env()
    nameserver = NameServer(env, NameServerConfig(host="0.0.0.0", port=0, tls=ASKING))
    await nameserver.start()
    config = BrokerConfig(port=0, nameservers=(f"127.0.0.1:{nameserver.port}",), nameserver_tls=TlsConfig(ca=CA))
    broker = Broker(env, config)
    try:
        await broker.start()
        assert broker.port and not nameserver.routes.topics()
    finally:
        await broker.close()
        await nameserver.close()
        await env.disk.close()
