"""A client with credentials: everything it asks is signed, as the server's own computation finds; and how they are
given without being shown."""

from __future__ import annotations

import asyncio
import base64
import hmac
import ssl
from typing import Any

import pytest

from aiorocket.client.app import Client
from aiorocket.client.message import Message
from aiorocket.config import ClientConfig, RemotingConfig, TlsConfig
from aiorocket.errors import ConfigError
from aiorocket.remoting import ProcessorTable, RemotingClient, RemotingServer
from aiorocket.remoting.credentials import signer_of
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.testing import Simulation, simulate
from aiorocket.testing.cluster import SimCluster
from aiorocket.testing.faults import WireFaults
from aiorocket_protocol import JSON, RemotingCommand, RequestCode
from aiorocket_protocol.signing import Signer

SECRET, TOKEN = "s3cret-key", "t0ken-text"
SIGNED = ClientConfig(access_key="me", secret_key=SECRET, security_token=TOKEN)


def fault_of(request: RemotingCommand) -> str | None:
    """What a server that checks signatures would object to."""
    fields = {key: value for key, value in request.ext_fields().items() if value is not None}
    claimed = fields.pop("Signature", None)
    content = "".join(fields[key] for key in sorted(fields)).encode() + request.body
    if (fields.get("AccessKey"), fields.get("SecurityToken")) != ("me", TOKEN):
        return "no credentials"
    if claimed != base64.b64encode(hmac.digest(SECRET.encode(), content, "sha1")).decode():
        return "wrong signature"
    return None if request.serialize_type == JSON and "_accept" not in fields else "not plain JSON"


def test_every_request_is_signed_and_everything_works() -> None:
    asked: set[int] = set()
    faults: list[tuple[int, str]] = []

    def watch(connection: object, request: Any) -> None:
        if request.code != RequestCode.REGISTER_BROKER:
            asked.add(request.code)
            if (fault := fault_of(request)) is not None:
                faults.append((request.code, fault))

    async def main(sim: Simulation) -> None:
        async with SimCluster(sim, client=SIGNED) as cluster:
            await cluster.create_topic("t", 2)
            cluster.brokers[0].faults.watch(watch)
            routes = WireFaults()
            routes.watch(watch)
            routes.attach(cluster.nameservers[0].server._server)
            seen: list[tuple[bytes, int]] = []

            async def on_message(message: Message) -> None:
                seen.append((message.body[:5], message.attempt))
                if message.attempt == 1 and message.body == b"fails":
                    raise ValueError("once")

            sender = await cluster.producer()
            await cluster.consumer("g", "t", on_message)
            await sender.send("t", "plain", tag="a", keys=["k"], properties={"of": "gr\u00fcn \U0001f680"})
            await sender.send("t", "fails")
            await sender.send("t", "z" * 20_000)
            await asyncio.sleep(40)
            assert sorted(seen) == [(b"fails", 1), (b"fails", 2), (b"plain", 1), (b"zzzzz", 1)]

    simulate(main)
    assert not faults
    assert asked >= {
        RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT,
        RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.GET_ROUTEINFO_BY_TOPIC,
    }  # fmt: skip


def test_one_way_requests_are_signed_and_answers_are_not() -> None:
    """Also when the server asks first, and a command that is sent twice is signed twice."""

    async def main(sim: Simulation) -> None:
        got: list[RemotingCommand] = []
        processors = ProcessorTable()
        processors.add(10, lambda connection, request: got.append(request) or RemotingCommand.response())
        own = ProcessorTable()
        own.add(20, lambda connection, request: RemotingCommand.response(body=b"mine"))
        server = RemotingServer(sim.env(), processors, RemotingConfig())
        await server.start()
        client = RemotingClient(sim.env(), RemotingConfig(), own, signer=Signer("me", SECRET, TOKEN))
        command = RemotingCommand.request(10, body=b"x" * 100_000)
        await client.request(server.address, command)
        await client.request(server.address, command)
        await client.oneway(server.address, RemotingCommand.request(10, ext={"a": "1"}))
        await client.request(server.address, RemotingCommand.request(10))
        assert [fault_of(request) for request in got] == [None] * 4
        answer = await server.connections[0].request(RemotingCommand.request(20), 5.0)
        assert answer.body == b"mine" and not answer.ext and answer.serialize_type == JSON
        await client.close()
        await server.close()

    simulate(main)


def test_a_client_without_credentials_sends_nothing_of_them() -> None:
    fields: set[str] = set()

    async def main(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            cluster.brokers[0].faults.watch(lambda connection, request: fields.update(request.ext or {}))
            await (await cluster.producer()).send("t", "x")

    simulate(main)
    assert not fields & {"AccessKey", "SecurityToken", "Signature"}


def test_secrets_are_shown_nowhere() -> None:
    shown = repr(SIGNED) + repr(signer_of(SIGNED, MemoryDisk())) + repr(Client(config=SIGNED))
    assert "'me'" in shown
    assert SECRET not in shown and TOKEN not in shown


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"access_key": "me"}, "secret_key is missing: access_key alone"),
        ({"secret_key": SECRET}, "access_key is missing: secret_key alone"),
        ({"security_token": TOKEN}, "access_key is missing: security_token alone"),
        ({"access_key": "me", "secret_key": SECRET + "\n"}, "secret_key begins or ends with a blank"),
        ({"access_key": "me", "secret_key": SECRET, "credentials_file": "c.json"}, "credentials_file='c.json': either"),
        ({"access_key": "me", "secret_key": SECRET, "remoting": RemotingConfig(serializer="msgpack")}, "as JSON"),
        ({"credentials_file": "c.json", "remoting": RemotingConfig(serializer="rocketmq")}, "as JSON"),
        ({"tls": "yes"}, "tls='yes': True, False, a TlsConfig"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        ClientConfig(**settings)
    assert SECRET not in str(caught.value) and TOKEN not in str(caught.value)


def test_tls_may_be_a_flag_settings_or_a_context() -> None:
    for tls in (True, False, TlsConfig(verify=False), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)):
        assert ClientConfig(tls=tls).tls is tls


def file_of(text: str) -> MemoryDisk:
    disk = MemoryDisk()
    disk.replace("c.json", text.encode())
    return disk


FROM_FILE = ClientConfig(credentials_file="c.json")


def test_a_file_of_credentials() -> None:
    signer = signer_of(
        FROM_FILE, file_of(f'{{"accessKey": "me", "secretKey": "{SECRET}", "securityToken": "{TOKEN}"}}')
    )
    command = RemotingCommand.request(RequestCode.HEART_BEAT, body=b"b")
    assert signer is not None
    signer.sign(command)
    assert fault_of(command) is None
    assert signer_of(FROM_FILE, file_of('{"accessKey": "me", "secretKey": "s"}')) is not None
    assert signer_of(ClientConfig(), MemoryDisk()) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"accessKey: me\nsecretKey: {SECRET}", "is not JSON"),
        ("\xff\xfe", "is not JSON"),
        (f'["{SECRET}"]', "a JSON object"),
        (f'{{"accessKey": "me", "secretkey": "{SECRET}"}}', "unknown members secretkey; known: accessKey, secretKey"),
        (f'{{"secretKey": "{SECRET}"}}', "accessKey and secretKey are needed"),
        (f'{{"accessKey": 7, "secretKey": "{SECRET}"}}', "all values are text"),
        (f'{{"accessKey": "me", "secretKey": "{SECRET} "}}', "secretKey begins or ends with a blank"),
        ('{"accessKey": "me", "secretKey": ""}', "secretKey is missing"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_but_not_quoted(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"credentials_file='c.json'.*{said}") as caught:
        signer_of(FROM_FILE, file_of(text))
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # a traceback would quote it too


async def test_a_start_with_bad_settings_fails_and_leaves_nothing() -> None:
    for config in (
        ClientConfig(credentials_file="/nowhere/c.json"),
        ClientConfig(tls=TlsConfig(ca="/nowhere/ca.pem")),
    ):
        client = Client(config=config)
        for _ in range(2):  # the same the second time: nothing was begun
            with pytest.raises(ConfigError, match="/nowhere/c"):
                await client.start()
        await client.stop()
