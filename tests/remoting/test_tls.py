"""TLS under the same connections, on uvloop and on the standard loop: real handshakes, certificates of data/."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aiorocket.config import RemotingConfig, TlsConfig
from aiorocket.errors import ConfigError, ConnectionLostError, NotConnectedError
from aiorocket.remoting import Connection, ProcessorTable, RemotingClient, RemotingServer
from aiorocket.remoting.tls import client_context, tls_trouble
from aiorocket.runtime import memory_env, new_event_loop
from aiorocket_protocol import RemotingCommand

DATA = Path(__file__).with_name("data")
ECHO, PARK = 10, 11
TRUSTING = TlsConfig(ca=str(DATA / "ca.pem"))
WITH_CERTIFICATE = TlsConfig(
    ca=str(DATA / "ca.pem"), cert=str(DATA / "client.pem"), key=str(DATA / "client-locked.key"), key_password="open-it"
)

Main = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=[new_event_loop, asyncio.new_event_loop], ids=["uvloop", "stdlib"])
def run(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    def run_on_loop(main: Main) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())
        gc.collect()  # a transport that was not closed warns here, and a warning is an error

    return run_on_loop


def server_context(name: str = "server", *, asks: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(DATA / f"{name}.pem", DATA / f"{name}.key")
    if asks:
        context.load_verify_locations(DATA / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@asynccontextmanager
async def pair(
    served: ssl.SSLContext | None, tls: ssl.SSLContext | TlsConfig | bool, **settings: Any
) -> AsyncIterator[tuple[RemotingClient, RemotingServer]]:
    processors = ProcessorTable()
    processors.add(ECHO, lambda connection, request: RemotingCommand.response(0, body=request.body))
    processors.add(PARK, lambda connection, request: None)
    server = RemotingServer(memory_env(), processors, RemotingConfig(**settings), tls=served)
    await server.start()
    client = RemotingClient(memory_env(), RemotingConfig(**settings), tls=client_context(tls))
    try:
        yield client, server
    finally:
        await client.close()
        await server.close(grace=0.1)


def echo(body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.request(ECHO, body=body)


def test_frames_of_all_sizes_both_ways_at_once(run: Callable[[Main], None]) -> None:
    bodies = [bytes([size % 251]) * size for size in (0, 1, 5, 4095, 4096, 16_384, 100_000, 300_000, 5_000_000)]

    async def main() -> None:
        async with pair(server_context(), TRUSTING) as (client, server):
            connection = await client.connect(server.address)
            for _ in range(3):
                answers = await asyncio.gather(*(connection.request(echo(body), 20.0) for body in bodies * 4))
                assert [answer.body for answer in answers] == bodies * 4
            transport = connection._transport
            assert transport is not None and transport.get_extra_info("ssl_object").version() == "TLSv1.3"
            assert connection.peer == server.address and connection.local == server.connections[0].peer

    run(main)


def test_back_pressure_pauses_and_goes_on(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        async with pair(server_context(), TRUSTING, max_in_flight=4, write_high_water=64 << 10) as (client, server):
            connection = await client.connect(server.address)
            body = b"p" * 50_000
            answers = await asyncio.gather(*(connection.request(echo(body), 20.0) for _ in range(200)))
            assert {answer.body for answer in answers} == {body}

    run(main)


@pytest.mark.parametrize(
    ("served", "tls", "said"),
    [
        ("server", TlsConfig(ca=str(DATA / "other-ca.pem")), "its certificate is refused: .*; TlsConfig.ca must name"),
        ("server", True, "its certificate is refused: .*; TlsConfig.ca must name"),
        ("named", TRUSTING, "is refused: .*'127.0.0.1'; TlsConfig.check_hostname=False"),
        (None, TRUSTING, "closed the connection during the TLS handshake: does it speak TLS on this port"),
    ],
    ids=["other authority", "system's authorities", "other name", "plain server"],
)
def test_who_cannot_be_trusted_is_named_with_the_reason(
    run: Callable[[Main], None], served: str | None, tls: TlsConfig | bool, said: str
) -> None:
    async def main() -> None:
        async with pair(server_context(served) if served else None, tls) as (client, server):
            with pytest.raises(NotConnectedError, match=f"^{server.address}: .*{said}"):
                await client.connect(server.address)
            assert client.connections == []

    run(main)


@pytest.mark.parametrize(
    ("served", "tls"),
    [
        ("named", TlsConfig(ca=str(DATA / "ca.pem"), check_hostname=False)),
        ("server", TlsConfig(verify=False)),
        ("named", client_context(TlsConfig(verify=False))),
    ],
    ids=["any name of the authority", "anybody", "a context of the caller"],
)
def test_what_may_be_left_unchecked(run: Callable[[Main], None], served: str, tls: TlsConfig | ssl.SSLContext) -> None:
    async def main() -> None:
        async with pair(server_context(served), tls) as (client, server):
            assert (await client.request(server.address, echo(b"b"))).body == b"b"

    run(main)


def test_a_server_may_ask_for_a_certificate(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        async with pair(server_context(asks=True), WITH_CERTIFICATE) as (client, server):
            assert (await client.request(server.address, echo(b"b"))).body == b"b"
        # Under TLS 1.3 a client learns only after its handshake that its certificate was missed.
        async with pair(server_context(asks=True), TRUSTING) as (client, server):
            with pytest.raises((ConnectionLostError, NotConnectedError), match=r"certificate|CERTIFICATE"):
                await client.request(server.address, echo())

    run(main)


def test_plain_text_to_a_tls_port(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        async with pair(server_context(), False) as (client, server):
            with pytest.raises(ConnectionLostError, match="TLS"):
                await client.request(server.address, echo())

    run(main)


def test_a_server_of_plain_text_says_what_it_got(run: Callable[[Main], None], caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with pair(None, TRUSTING) as (client, server):
            with pytest.raises(NotConnectedError):
                await client.connect(server.address)
        assert "this looks like TLS" in caplog.text

    run(main)


def test_a_peer_that_never_shakes_hands_is_given_up(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            ended.set()

        mute = await asyncio.start_server(listen, "127.0.0.1", 0)
        client = RemotingClient(memory_env(), RemotingConfig(connect_timeout=0.2), tls=client_context(TRUSTING))
        with pytest.raises(NotConnectedError, match="no connection"):
            await client.connect(f"127.0.0.1:{mute.sockets[0].getsockname()[1]}")
        await asyncio.wait_for(ended.wait(), 5)
        await client.close()
        mute.close()
        await mute.wait_closed()

    run(main)


def test_both_ends_learn_of_an_end(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        async with pair(server_context(), TRUSTING) as (client, server):
            connection = await client.connect(server.address)
            await connection.request(echo(), 5.0)
            waiting = connection.request(RemotingCommand.request(PARK), 5.0)
            await connection.request(echo(), 5.0)
            (other,) = server.connections
            other.close("enough")
            with pytest.raises(ConnectionLostError, match="the peer closed it"):
                await waiting
            await asyncio.gather(connection.wait_closed(), other.wait_closed())
            again: Connection = await client.connect(server.address)
            assert again is not connection
            again.abort("now")
            await again.wait_closed()

    run(main)


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        (TlsConfig(ca="nowhere.pem"), "TlsConfig.ca='nowhere.pem': there is no such file"),
        (TlsConfig(ca=str(DATA / "server.key")), "TlsConfig.ca=.* no certificates in PEM form"),
        (TlsConfig(cert="nowhere.pem"), "TlsConfig.cert='nowhere.pem': there is no such file"),
        (TlsConfig(cert=str(DATA / "client.pem"), key="no.key"), "TlsConfig.key='no.key': there is no such file"),
        (TlsConfig(cert=str(DATA / "client.pem")), "TlsConfig.cert=.*private key"),
        (TlsConfig(cert=str(DATA / "client.pem"), key=str(DATA / "server.key")), "TlsConfig.cert=.*MISMATCH"),
        (TlsConfig(cert=str(DATA / "client.pem"), key=str(DATA / "client-locked.key")), "key_password does not open"),
    ],
)
def test_files_that_cannot_be_used_are_named(tls: TlsConfig, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        client_context(tls)


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="without cert"):
        TlsConfig(key="k.pem")
    with pytest.raises(ConfigError, match=r"ca='a\.pem'"):
        TlsConfig(ca="a.pem", verify=False)
    assert "open-it" not in repr(WITH_CERTIFICATE)


def test_a_directory_of_authorities_and_errors_that_are_not_of_tls(tmp_path: Path) -> None:
    context = client_context(TlsConfig(ca=str(tmp_path)))
    assert context is not None and context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
    assert client_context(False) is None
    assert tls_trouble(ConnectionRefusedError(111, "refused")) is None
