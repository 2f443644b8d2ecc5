"""TLS under the same connections, on uvloop and on the standard loop: real handshakes, certificates of data/."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aiorocket.config import RemotingConfig, ServerTlsConfig, TlsConfig
from aiorocket.errors import ConfigError, ConnectionLostError, NotConnectedError
from aiorocket.remoting import Connection, ProcessorTable, RemotingClient, RemotingServer
from aiorocket.remoting.door import Door, Doors, ServerTls
from aiorocket.remoting.tls import client_context, server_context, tls_trouble
from aiorocket.runtime import memory_env, new_event_loop
from aiorocket.testing import SimLoop
from aiorocket_protocol import RemotingCommand

DATA = Path(__file__).with_name("data")
ECHO, PARK = 10, 11
TRUSTING = TlsConfig(ca=str(DATA / "ca.pem"))
WITH_CERTIFICATE = TlsConfig(
    ca=str(DATA / "ca.pem"), cert=str(DATA / "client.pem"), key=str(DATA / "client-locked.key"), key_password="open-it"
)

Main = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True, scope="module")
def what_others_left() -> None:
    gc.freeze()  # these tests collect their own garbage, each time: they need not look through all that is older


@pytest.fixture(params=[new_event_loop, asyncio.new_event_loop], ids=["uvloop", "stdlib"])
def run(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    def run_on_loop(main: Main) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())
        gc.collect()  # a transport that was not closed warns here, and a warning is an error

    return run_on_loop


def context_of(name: str = "server", *, asks: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(DATA / f"{name}.pem", DATA / f"{name}.key")
    if asks:
        context.load_verify_locations(DATA / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@asynccontextmanager
async def pair(
    served: ServerTls | ssl.SSLContext | None, tls: ssl.SSLContext | TlsConfig | bool, **settings: Any
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
        async with pair(context_of(), TRUSTING) as (client, server):
            connection = await client.connect(server.address)
            for _ in range(3):
                answers = await asyncio.gather(*(connection.request(echo(body), 120.0) for body in bodies * 4))
                assert [answer.body for answer in answers] == bodies * 4
            transport = connection._transport
            assert transport is not None and transport.get_extra_info("ssl_object").version() == "TLSv1.3"
            assert connection.peer == server.address and connection.local == server.connections[0].peer

    run(main)


def test_back_pressure_pauses_and_goes_on(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        async with pair(context_of(), TRUSTING, max_in_flight=4, write_high_water=64 << 10) as (client, server):
            connection = await client.connect(server.address)
            body = b"p" * 50_000
            answers = await asyncio.gather(*(connection.request(echo(body), 120.0) for _ in range(200)))
            assert {answer.body for answer in answers} == {body}

    run(main)


@pytest.mark.parametrize(
    ("served", "tls", "said"),
    [
        ("server", TlsConfig(ca=str(DATA / "other-ca.pem")), "is refused: .*; TlsConfig.ca .--tls-ca. must name"),
        ("server", True, "is refused: .*; TlsConfig.ca .--tls-ca. must name"),
        ("named", TRUSTING, "is refused: .*'127.0.0.1'; TlsConfig.check_hostname=False"),
        (None, TRUSTING, "closed the connection during the TLS handshake: does it speak TLS on this port"),
    ],
    ids=["other authority", "system's authorities", "other name", "plain server"],
)
def test_who_cannot_be_trusted_is_named_with_the_reason(
    run: Callable[[Main], None], served: str | None, tls: TlsConfig | bool, said: str
) -> None:
    async def main() -> None:
        async with pair(context_of(served) if served else None, tls) as (client, server):
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
        async with pair(context_of(served), tls) as (client, server):
            assert (await client.request(server.address, echo(b"b"))).body == b"b"

    run(main)


def test_a_server_may_ask_for_a_certificate(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        async with pair(context_of(asks=True), WITH_CERTIFICATE) as (client, server):
            assert (await client.request(server.address, echo(b"b"))).body == b"b"
        # Under TLS 1.3 a client learns only after its handshake that its certificate was missed.
        async with pair(context_of(asks=True), TRUSTING) as (client, server):
            with pytest.raises((ConnectionLostError, NotConnectedError), match=r"certificate: --tls-cert|CERTIFICATE"):
                await client.request(server.address, echo())

    run(main)


def test_plain_text_to_a_tls_port(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        async with pair(context_of(), False) as (client, server):
            with pytest.raises(ConnectionLostError, match=r"does it want TLS: --tls-ca\?"):
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
        await asyncio.wait_for(ended.wait(), 30)
        await client.close()
        mute.close()
        await mute.wait_closed()

    run(main)


def test_both_ends_learn_of_an_end(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        async with pair(context_of(), TRUSTING) as (client, server):
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
        (TlsConfig(cert=str(DATA / "client.pem")), "holds no private key; TlsConfig.key .--tls-key. names the file"),
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


@pytest.mark.parametrize(("code", "said"), [(9, "certificate is not yet valid"), (10, "certificate has expired")])
def test_of_a_certificate_out_of_its_time_is_said_what_to_do(code: int, said: str) -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, said
    assert re.search(f"refused: {said}; put a new one in its place.*clock", tls_trouble(error) or "")


# ---- what a server of its own settings does


def test_handshakes_that_come_at_once_begin_little_by_little(
    run: Callable[[Main], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 of them held the loop for 70 ms with the fastest of keys, and for 300 with RSA."""
    begun = [0]
    shake_hands = Door._shake_hands

    def counted(self: Door, transport: asyncio.Transport) -> Coroutine[Any, Any, None]:
        begun[-1] += 1
        return shake_hands(self, transport)

    monkeypatch.setattr(Door, "_shake_hands", counted)

    async def main() -> None:
        server = RemotingServer(memory_env(), ProcessorTable(), RemotingConfig(), tls=ServerTls(settings_of()))
        await server.start()
        context = ssl.create_default_context(cafile=str(DATA / "ca.pem"))
        peers, ends = [], []
        for _ in range(40):
            peers.append(socket.create_connection(("127.0.0.1", server.port), 30))
            ends.append(context.wrap_bio(ssl.MemoryBIO(), out := ssl.MemoryBIO(), server_hostname="localhost"))
            with pytest.raises(ssl.SSLWantReadError):
                ends[-1].do_handshake()
            peers[-1].sendall(out.read())  # the loop stands
        async with asyncio.timeout(30):
            while sum(begun) < 40:
                await asyncio.sleep(0)
                begun.append(0)
        assert max(begun) <= 4
        for peer in peers:
            peer.close()
        await server.close(0.1)

    run(main)


def settings_of(name: str = "server", place: Path = DATA, **more: Any) -> ServerTlsConfig:
    return ServerTlsConfig(cert=str(place / f"{name}.pem"), key=str(place / f"{name}.key"), **more)


def test_both_on_one_port(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        tls = ServerTls(settings_of(mode="permissive"))
        async with pair(tls, TRUSTING) as (client, server):
            plain = RemotingClient(memory_env(), RemotingConfig())
            body = b"x" * 300_000
            for asking in (client, plain, client, plain):
                assert (await asking.request(server.address, echo(body))).body == body
            assert [connection.data["certified"] for connection in server.connections] == [False, False]
            await plain.close()

    run(main)


def test_a_certificate_that_was_checked_is_known_of(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        optional = ServerTls(settings_of(client_cert="optional", client_ca=str(DATA / "ca.pem")))
        async with pair(optional, WITH_CERTIFICATE) as (client, server):
            await client.request(server.address, echo())
            other = RemotingClient(memory_env(), RemotingConfig(), tls=client_context(TRUSTING))
            await other.request(server.address, echo())
            assert [connection.data["certified"] for connection in server.connections] == [True, False]
            await other.close()
        required = ServerTls(settings_of(client_cert="required", client_ca=str(DATA / "ca.pem")))
        async with pair(required, TRUSTING) as (client, server):
            with pytest.raises((ConnectionLostError, NotConnectedError)):
                await client.request(server.address, echo())

    run(main)


def test_a_server_says_why_it_let_nobody_in(run: Callable[[Main], None], caplog: pytest.LogCaptureFixture) -> None:
    """It said "refused: " and no reason, of who hung up because he trusts another authority."""

    async def main() -> None:
        async with pair(ServerTls(settings_of()), TlsConfig(ca=str(DATA / "other-ca.pem"))) as (client, server):
            with pytest.raises(NotConnectedError):
                await client.connect(server.address)
            async with asyncio.timeout(30):
                while "refused" not in caplog.text:
                    await asyncio.sleep(0.005)

    run(main)
    (said,) = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert re.search(r"refused: (it hung up in the handshake: perhaps it does not trust|.*alert)", said, re.I)


def test_of_those_who_are_not_let_in_one_a_minute_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It was the first, and then every thousandth, which may be never."""
    loop = SimLoop(1)

    async def main() -> None:
        doors = Doors(lambda _: True, lambda _: None)
        for number in range(4):
            doors.refused(f"1.2.3.4:{number}", "it speaks no TLS")
            await asyncio.sleep(25)

    loop.run_until_complete(main())
    loop.close()
    assert [record.getMessage() for record in caplog.records] == [
        "TLS connection from 1.2.3.4:0 refused: it speaks no TLS",
        "TLS connection from 1.2.3.4:3 refused: it speaks no TLS (2 others were before it)",
    ]


def test_who_says_nothing_or_no_handshake_is_shown_out(
    run: Callable[[Main], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with pair(ServerTls(settings_of()), TRUSTING, handshake_timeout=0.5) as (client, server):
            host, port = server.address.split(":")
            for said in (b"", b"\x16\x03\x01", b"\x16 is no handshake", b"\x00\x00"):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(said)
                try:
                    async with asyncio.timeout(30):
                        await reader.read()
                except ConnectionError:
                    pass  # as good an end
                writer.close()
            async with asyncio.timeout(120):
                while True:
                    try:
                        assert (await client.request(server.address, echo(b"b"))).body == b"b"
                        break
                    except NotConnectedError:  # on a busy machine that may take as long, too
                        await asyncio.sleep(0.01)
            assert len(server.connections) == 1 and not server._doors._open

    run(main)
    assert len([record for record in caplog.records if "refused" in record.getMessage()]) == 1


def test_who_resets_a_handshake_is_shown_out_without_an_error(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with pair(ServerTls(settings_of()), TRUSTING, handshake_timeout=5.0) as (client, server):
            for said in (b"\x16", b"\x16\x03\x01\x02\x00\x01"):
                peer = socket.create_connection(("127.0.0.1", server.port))
                peer.sendall(said)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.close()
            await client.request(server.address, echo())
            async with asyncio.timeout(30):
                while server._doors._open:
                    await asyncio.sleep(0.01)
        assert not errors

    run(main)


@pytest.mark.parametrize("limit", ["max_connections", "max_per_host"])
def test_doors_count_as_connections(run: Callable[[Main], None], limit: str) -> None:
    async def main() -> None:
        async with pair(ServerTls(settings_of()), TRUSTING, **{limit: 2}) as (client, server):
            host, port = server.address.split(":")
            waiting = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
            while len(server._doors._open) < 2:
                await asyncio.sleep(0.01)
            with pytest.raises(NotConnectedError):
                await client.connect(server.address)
            assert server.refused == 1
            for _, writer in waiting:
                writer.close()
            while server._room.per_host:
                await asyncio.sleep(0.01)
            await client.request(server.address, echo())
            assert server._room.per_host == {"127.0.0.1": 1}

    run(main)


def test_new_certificates_are_for_new_connections(run: Callable[[Main], None], tmp_path: Path) -> None:
    def put(name: str) -> None:
        for kind in ("pem", "key"):
            (tmp_path / f"now.{kind}").write_bytes((DATA / f"{name}.{kind}").read_bytes())

    async def main() -> None:
        put("server")
        tls = ServerTls(settings_of("now", tmp_path))
        async with pair(tls, TRUSTING) as (client, server):
            connection = await client.connect(server.address)
            put("named")
            tls.reload()
            assert (await connection.request(echo(b"old"), 5.0)).body == b"old"
            other = RemotingClient(memory_env(), RemotingConfig(), tls=client_context(TRUSTING))
            with pytest.raises(NotConnectedError, match=r"127\.0\.0\.1"):  # the new one has another name
                await other.connect(server.address)
            (tmp_path / "now.pem").write_text("nothing")
            with pytest.raises(ConfigError, match=r"ServerTlsConfig\.cert="):
                tls.reload()
            put("server")
            tls.reload()
            await other.close()
            other = RemotingClient(memory_env(), RemotingConfig(), tls=client_context(TRUSTING))
            assert (await other.request(server.address, echo(b"new"))).body == b"new"
            assert (await connection.request(echo(b"old"), 5.0)).body == b"old"
            await other.close()

    run(main)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cert": "nowhere.pem"}, r"ServerTlsConfig\.cert='nowhere.pem': there is no such file"),
        ({"cert": "c", "mode": "both"}, r"ServerTlsConfig\.mode='both'"),
        ({"cert": "c", "client_cert": "required"}, r"client_ca=None"),
        ({"cert": "c", "client_ca": "ca"}, r"client_cert='none' with client_ca='ca'"),
        ({"cert": "c", "client_cert": "yes"}, r"client_cert='yes'"),
    ],
)
def test_settings_of_a_server_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        server_context(ServerTlsConfig(**settings))
