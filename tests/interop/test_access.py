"""Our servers with access control and TLS: Java's client, those in Go, C++ and Node and mqadmin sign in, Java's over
TLS too, and who signs wrongly or may not is told so. An Apache broker registers at our name server with its
credentials."""

from __future__ import annotations

import base64
import hmac
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers import (
    BRIEF,
    JVM_OPTIONS,
    NEWEST,
    OLDER,
    Admin,
    JavaRun,
    Server,
    apache_server,
    ask,
    class_path,
    inside,
    our_server,
)
from tests.interop.test_clients import cpp, go, node, run, topic_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
__all__ = ("cpp", "go", "node")

CERTIFICATES = Path(__file__).resolve().parents[1] / "remoting" / "data"
SECRETS = {name: f"{name}-s3cret" for name in ("ops", "shop", "guest", "made")}
FILE = f"""
[users.ops]
secret = "{SECRETS["ops"]}"
admin = true
[users.shop]
secret = "{SECRETS["shop"]}"
topics = {{ {", ".join(f'"{client}-*" = "PUB|SUB"' for client in ("java", "go", "cpp", "node"))} }}
groups = {{ {", ".join(f'"{client}-*" = "SUB"' for client in ("java", "go", "cpp", "node"))} }}
[users.guest]
secret = "{SECRETS["guest"]}"
"""
TLS = (
    "--tls-cert", str(CERTIFICATES / "server.pem"), "--tls-key", str(CERTIFICATES / "server.key"), "--tls-permissive",
)  # fmt: skip
#: Java's client: TLS, to servers of our authority alone.
OVER_TLS = (
    "-Dtls.enable=true",
    "-Dtls.test.mode.enable=false",
    "-Dtls.client.authServer=true",
    f"-Dtls.client.trustCertPath={CERTIFICATES / 'ca.pem'}",
    "-Dtls.config.file=/nowhere/tls.properties",
)
VERSIONS = {"newest": NEWEST, "older": OLDER}
#: Where Apache's broker keeps the users that these make.
PROVIDER = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"


def signed(fields: dict[str, str], body: bytes = b"") -> dict[str, str]:
    """As the administrator; written without our protocol package, so that it can judge both sides."""
    fields = {**fields, "AccessKey": "ops"}
    content = "".join(fields[key] for key in sorted(fields)).encode() + body
    return {**fields, "Signature": base64.b64encode(hmac.digest(SECRETS["ops"].encode(), content, "sha1")).decode()}


def access_file(place: Path) -> list[str]:
    (place / "access.toml").write_text(FILE)
    return ["--acl", str(place / "access.toml")]


def credentials(place: Path) -> list[str]:
    (place / "keys.json").write_text(json.dumps({"accessKey": "ops", "secretKey": SECRETS["ops"]}))
    return ["--credentials", str(place / "keys.json")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("plain")
    with our_server(place, both=access_file(place), only_broker=credentials(place), signed=signed) as server:
        yield server


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Plain text on the same port is for the harness; a client that speaks TLS speaks nothing else."""
    place = tmp_path_factory.mktemp("encrypted")
    broker = [*credentials(place), "--nameserver-ca", str(CERTIFICATES / "ca.pem")]
    with our_server(place, both=[*access_file(place), *TLS], only_broker=broker, signed=signed) as server:
        yield server


async def exchange(
    version: str, server: Server, place: Path, topic: str, group: str, key: str, secret: str, tls: bool
) -> list[dict[str, Any]]:
    options = [*JVM_OPTIONS, *(OVER_TLS if tls else ()), "-Xmx256m", *BRIEF, *inside(place)]
    arguments = server.nameserver, topic, group, key, secret, "5"
    command = ["java", *options, "-cp", class_path(VERSIONS[version]), "Access", *arguments]
    run = await JavaRun.start(f"Access of {key or 'nobody'}", command, place / f"{topic}-{key}.errors")
    try:
        return (await run.finish(limit=250))[:-1]
    finally:
        await run.end()


@pytest.mark.parametrize("servers", ["plain", "encrypted"])
@pytest.mark.parametrize("version", ["newest", "older"])
async def test_javas_client_signs_in(
    version: str, servers: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: Server = request.getfixturevalue(servers)
    names = f"java-{version}", f"java-group-{version}"
    events = await exchange(version, server, tmp_path, *names, "shop", SECRETS["shop"], servers == "encrypted")
    assert [event["event"] for event in events] == ["sent", "consumed"], events


@pytest.mark.parametrize(
    ("version", "key", "secret", "said"),
    [
        ("newest", "shop", "wrong-s3cret", "check signature failed"),
        ("newest", "guest", SECRETS["guest"], "no permission to access Topic:java-refused"),
        ("older", "", "", "not signed"),
    ],
    ids=["wrong secret", "no right", "unsigned"],
)
async def test_javas_client_is_told_why_not(
    version: str, key: str, secret: str, said: str, plain: Server, tmp_path: Path
) -> None:
    (refused,) = await exchange(version, plain, tmp_path, "java-refused", "java-group", key, secret, False)
    # The client tells of a route it does not get in words of its own, with ours as the cause or in its log.
    said_of_it = refused["text"] + "".join(log.read_text(errors="replace") for log in tmp_path.rglob("*.log"))
    assert refused["event"] == "refused" and said in said_of_it, said_of_it[-3000:]


@pytest.mark.parametrize("secret", [SECRETS["shop"], "wrong-s3cret"], ids=["signed", "wrong secret"])
@pytest.mark.parametrize("client", ["go", "cpp", "node"])
async def test_other_clients_sign_in(
    client: str,
    secret: str,
    plain: Server,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command: list[str] = request.getfixturevalue(client)
    topic = f"{client}-topic"
    assert ask(plain.broker, 17, signed(topic_of(topic)))[0] == 0
    monkeypatch.setenv("SMOKE_ACCESS_KEY", "shop")
    monkeypatch.setenv("SMOKE_SECRET_KEY", secret)
    sending = run(command, tmp_path, "send", plain.nameserver, topic, "m", "4", limit=120)
    if secret != SECRETS["shop"]:
        with pytest.raises(AssertionError, match="ended before 'done'"):
            await sending
        return
    assert all(one["status"] in (0, "SEND_OK") for one in await sending)
    wanted = {"m-0", "m-2"} if client == "node" else {"m-0", "m-2", "m-batch-0"}  # Node's client has no batches
    arguments = ("consume", plain.nameserver, topic, f"{client}-group", "even||other", str(len(wanted)), "200")
    messages = await run(command, tmp_path, *arguments, limit=250)
    assert {one["body"] for one in messages if not one["failed"]} == wanted


def sign_as(home: Path, user: str) -> None:
    """What mqadmin of this home signs with."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {user}\nsecretKey: {SECRETS[user]}\n")


def mqadmin(jars: Path, server: Server, home: Path, tls: bool, *arguments: str) -> str:
    """What one command printed."""
    done = subprocess.run(
        ["java", *JVM_OPTIONS, *(OVER_TLS if tls else ()), "-Xmx256m", *BRIEF, *inside(home),
         "-cp", f"{jars}/*", "org.apache.rocketmq.tools.command.MQAdminStartup", *arguments],
        capture_output=True, text=True, timeout=200, check=False, cwd=home,
        env={**os.environ, "ROCKETMQ_HOME": str(home), "NAMESRV_ADDR": server.nameserver},
    )  # fmt: skip
    return done.stdout + done.stderr


def test_mqadmin_manages_users_and_their_rights(plain: Server, encrypted: Server, jars: Path, tmp_path: Path) -> None:
    sign_as(tmp_path, "ops")
    at = ("-b", plain.broker)
    with Admin(tmp_path, plain.nameserver) as admin:
        assert "create user to" in admin("createUser", *at, "-u", "made", "-p", SECRETS["made"], "-t", "Normal")
        user = admin("getUser", *at, "-u", "made")
        assert "made" in user and "Normal" in user and SECRETS["made"] not in user
        assert "shop" in (users := admin("listUser", *at)) and "made" in users
        created = admin("createAcl", *at, "-s", "User:made", "-r", "Topic:made*", "-a", "Pub,Sub", "-d", "Allow")
        assert "create acl to" in created, created
        acl = admin("getAcl", *at, "-s", "User:made")
        assert "Topic:made*" in acl and "Allow" in acl
        admin("updateAcl", *at, "-s", "User:made", "-r", "Topic:made*", "-a", "Pub", "-d", "Deny", "-i", "127.0.0.1")
        assert "Deny" in (acl := admin("listAcl", *at, "-s", "made")) and "127.0.0.1" in acl
        admin("deleteAcl", *at, "-s", "User:made", "-r", "Topic:made*")
        assert "Topic:made*" not in admin("listAcl", *at)
        admin("updateUser", *at, "-u", "made", "-s", "disable")
        assert "disable" in admin("getUser", *at, "-u", "made")
        admin("deleteUser", *at, "-u", "made")
        assert "made" not in admin("listUser", *at)
    assert "broker-a" in mqadmin(jars, encrypted, tmp_path, True, "clusterList")
    sign_as(tmp_path, "guest")
    refused = mqadmin(jars, plain, tmp_path, False, "createUser", *at, "-u", "x", "-p", "xxxxxxxx")
    assert "is no administrator" in refused, refused


def test_apaches_broker_at_our_name_server(jars: Path, tmp_path: Path) -> None:
    """5.x signs as its inner client."""
    keys = json.dumps({"accessKey": "ops", "secretKey": SECRETS["ops"]})
    more = {
        "innerClientAuthenticationCredentials": keys,
        "brokerName": "apache-a",
        "authenticationMetadataProvider": PROVIDER,
    }
    with (
        our_server(
            tmp_path / "ours", both=access_file(tmp_path), only_broker=credentials(tmp_path), signed=signed
        ) as ours,
        apache_server(jars, tmp_path / "apache", more=more, also=ours.nameserver),
    ):
        deadline = time.monotonic() + 120
        while True:
            _, _, body = ask(ours.nameserver, 106, signed({}))
            if set(json.loads(body)["brokerAddrTable"]) == {"broker-a", "apache-a"}:
                return
            assert time.monotonic() < deadline, (tmp_path / "ours" / "nameserver.log").read_text()[-2000:]
            time.sleep(0.2)
