"""Apache's brokers with access control (ACL 2.0, and 1.0 of 4.9) and TLS on: what we sign they accept, over their TLS,
and they refuse what they should.

The servers are in TLS mode "permissive", so that the harness can look at them in plain text; a client with ``tls`` set
still speaks nothing but TLS. The user may do everything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorocket import Client, Message, OutgoingMessage, Router, TxState
from aiorocket.config import ClientConfig, TlsConfig
from aiorocket.errors import NotConnectedError, RocketError, SendError
from aiorocket_protocol import JSON
from tests.interop.peers import BRIEF, NEWEST, OLDER, Server, apache_server, ask, fetch_jars

pytestmark = [pytest.mark.interop, pytest.mark.timeout(500)]

CERTIFICATES = Path(__file__).resolve().parents[1] / "remoting" / "data"
USER, PASSWORD = "rocketmq", "a-password-0f-the-test"
TRUSTING = TlsConfig(ca=str(CERTIFICATES / "ca.pem"))
#: What a refusal says, and its code.
REFUSED = {NEWEST: "code 16|NO_PERMISSION", OLDER: "AclException"}
CODE = {NEWEST: 16, OLDER: 1}

AUTH = "org.apache.rocketmq.auth"


def rules(version: str, place: Path) -> dict[str, str]:
    """Settings of a broker that knows one user."""
    if version == OLDER:
        (place / "conf").mkdir()
        user = f"- accessKey: {USER}\n  secretKey: {PASSWORD}\n  admin: true\n"
        (place / "conf" / "plain_acl.yml").write_text(f"globalWhiteRemoteAddresses: []\naccounts:\n{user}")
        return {"aclEnable": "true"}
    return {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": json.dumps({"username": USER, "password": PASSWORD}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": USER, "secretKey": PASSWORD}),
        "authorizationEnabled": "true",
        "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    }


@pytest.fixture(scope="module", params=[NEWEST, OLDER])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def guarded(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("guarded")
    options = [
        *BRIEF,
        "-Dtls.test.mode.enable=false",
        "-Dtls.server.mode=permissive",
        f"-Dtls.server.certPath={CERTIFICATES / 'server.pem'}",
        f"-Dtls.server.keyPath={CERTIFICATES / 'server.key'}",
        f"-Dtls.config.file={place / 'no-tls.properties'}",
    ]
    with apache_server(fetch_jars(version), place, more=rules(version, place), java_options=options) as server:
        yield server


def config(server: Server, *, secret: str = PASSWORD, tls: TlsConfig | bool = TRUSTING) -> ClientConfig:
    return ClientConfig(nameservers=(server.nameserver,), access_key=USER, secret_key=secret, tls=tls)


async def test_signed_over_tls_everything_works(guarded: Server) -> None:
    seen: dict[str, list[int]] = {}
    done = asyncio.Event()
    sent = {f"m-{index}" for index in range(40)} | {"large", "gr\u00fcn", "committed"}

    router = Router()

    @router.listener("guarded", start_from="first")
    async def on_message(message: Message) -> None:
        text = message.body.decode()
        name = "large" if len(text) > 1000 else text
        seen.setdefault(name, []).append(message.attempt)
        if name == "m-7" and message.attempt == 1:
            raise ValueError("once")
        if set(seen) >= sent and len(seen["m-7"]) > 1:
            done.set()

    async with Client(config=config(guarded)) as client:
        async with client.producer("guarded-sender") as producer:
            await producer.send("guarded", b"m-0", timeout=20)  # creates the topic
            async with client.consumer("guarded-group", router=router):
                for index in range(1, 30):
                    await producer.send("guarded", f"m-{index}".encode(), tag="a", keys=[f"k-{index}"], timeout=10)
                batch = [OutgoingMessage(topic="guarded", body=b"m-%d" % at) for at in range(30, 40)]
                await producer.send_batch("guarded", batch)
                await producer.send("guarded", b"L" * 500_000, properties={"of": "\U0001f680"}, timeout=10)
                await producer.send("guarded", "gr\u00fcn".encode(), timeout=10)
                transactions = client.transaction_producer("guarded-tx", checker=lambda message: TxState.COMMIT)
                async with transactions, transactions.transaction("guarded", b"committed"):
                    pass
                async with asyncio.timeout(150):
                    await done.wait()
        assert {name: attempts[0] for name, attempts in seen.items()} == dict.fromkeys(sent, 1)
        assert {connection.serialize_type for connection in client.session.remoting.connections} == {JSON}
        assert all(
            connection._transport.get_extra_info("ssl_object") for connection in client.session.remoting.connections
        )


@pytest.mark.parametrize("secret", ["another-password", None], ids=["wrong secret", "unsigned"])
async def test_what_is_not_signed_well_is_refused_in_the_brokers_words(
    guarded: Server, version: str, secret: str | None
) -> None:
    good = config(guarded)
    async with Client(config=good) as client, client.producer("guarded-first") as producer:
        await producer.send("guarded-refused", b"creates the topic", timeout=20)
    bad = config(guarded, secret=secret) if secret else ClientConfig(nameservers=good.nameservers, tls=TRUSTING)
    async with Client(config=bad) as client, client.producer("guarded-bad") as producer:
        with pytest.raises(SendError, match=REFUSED[version]) as caught:
            await producer.send("guarded-refused", b"x", timeout=5)
    assert not caught.value.may_be_stored
    assert PASSWORD not in str(caught.value) and "another-password" not in str(caught.value)


async def test_other_authorities_are_not_trusted(guarded: Server) -> None:
    bad = config(guarded, tls=TlsConfig(ca=str(CERTIFICATES / "other-ca.pem")))
    async with Client(config=bad) as client:
        with pytest.raises((NotConnectedError, RocketError), match="its certificate is refused"):
            await client.session.route("guarded", timeout=5)


def test_the_broker_really_checks(guarded: Server, version: str) -> None:
    code, _, _ = ask(guarded.broker, 34, {})
    assert code == CODE[version]
