"""Servers with access control and TLS, and client commands that sign in, by options and by the environment."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aiorocket.cli.lake.options import with_environment
from aiorocket.cli.main import cli

DATA = Path(__file__).parents[1] / "remoting" / "data"
CA = str(DATA / "ca.pem")
SECRET = "ops-s3cret-of-the-test"
FILE = f"""
[users.ops]
secret = "{SECRET}"
admin = true
"""


def test_a_standalone_with_access_control_and_tls(
    aiorocket: Any, stop: Callable[..., Any], ports: Callable[[str], list[int]]
) -> None:
    (aiorocket.directory / "access.toml").write_text(FILE)
    (aiorocket.directory / "keys.json").write_text(json.dumps({"accessKey": "ops", "secretKey": SECRET}))
    process, line = aiorocket.server(
        "standalone", "--port", "0", "--broker-port", "0", "--data", "s", "--acl", "access.toml",
        "--tls-cert", str(DATA / "server.pem"), "--tls-key", str(DATA / "server.key"),
    )  # fmt: skip
    address = f"127.0.0.1:{ports(line)[0]}"
    options = ("--nameserver", address, "--tls-ca", CA, "--credentials", "keys.json", "--namespace", "ns")
    sent = aiorocket.run("produce", "t", *options, stdin=b"one\n")
    assert sent.code == 0, sent
    environment = {
        "AIOROCKET_NAMESERVER": address, "AIOROCKET_TLS_CA": CA, "AIOROCKET_NAMESPACE": "ns",
        "AIOROCKET_ACCESS_KEY": "ops", "AIOROCKET_SECRET_KEY": SECRET,
    }  # fmt: skip
    read = aiorocket.run("consume", "t", "--group", "g", **environment)
    assert (read.code, read.out) == (0, "one\n"), read
    assert aiorocket.run("dlq", "list", "g", **environment).code == 0
    password = {"AIOROCKET_PASSWORD": "clerk-s3cret-of-the-test"}
    assert aiorocket.run("acl", "create-user", "clerk", **environment, **password).code == 0
    changed = aiorocket.run("acl", "update-user", "clerk", "--disabled", "--password", **environment, **password)
    assert changed.code == 0, changed
    users = aiorocket.run("acl", "users", "--json", **environment)
    (clerk,) = [row for row in json.loads(users.out)["rows"] if row["name"] == "clerk"]
    assert (clerk["enabled"], clerk["admin"]) == (False, False)
    unsigned = aiorocket.run("produce", "t", "--nameserver", address, "--tls-ca", CA, stdin=b"two\n")
    assert unsigned.code == 1 and "not signed" in unsigned.err, unsigned
    for asked in (("--nameserver", address), ("--broker", f"127.0.0.1:{ports(line)[1]}")):
        unsigned = aiorocket.run("topic", "list", *asked, "--tls-ca", CA)
        assert unsigned.code == 1 and "--credentials" in unsigned.err and "standalone" not in unsigned.err, unsigned
    looked = aiorocket.run("doctor", "--json", "--nameserver", address, "--tls-ca", CA)
    assert "sign in (--credentials)" in json.loads(looked.out)["rows"][-1]["advice"], looked
    fixed = aiorocket.run("acl", "grant", "ops", "Topic:x", "Pub", **environment)
    assert fixed.code == 1 and fixed.err.endswith("ops stands in the access file: change it there\n"), fixed
    plain = aiorocket.run("produce", "t", "--nameserver", address, "--credentials", "keys.json", stdin=b"two\n")
    assert plain.code == 1, plain

    (aiorocket.directory / "access.toml").write_text(FILE.replace(SECRET, "another-s3cret"))
    os.kill(process.pid, signal.SIGHUP)
    for _ in range(50):  # a signal is heard soon, not at once
        refused = aiorocket.run("consume", "t", "--group", "g2", **environment)
        if refused.code == 1:
            break
    assert "check signature failed" in refused.err, refused
    code, _, errors = stop(process)
    assert code == 0 and "is read again" in errors and "aiorocket.audit" in errors
    assert SECRET not in errors and "another-s3cret" not in errors
    kept = aiorocket.directory / "s"
    assert kept.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in kept.rglob("*") if path.is_file()} == {0o600}


def test_spark_commands_take_the_same_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AIOROCKET_")]:
        monkeypatch.delenv(name)
    assert with_environment({"tags": "a"}) == {"tags": "a"}
    monkeypatch.setenv("AIOROCKET_TLS", "1")
    assert with_environment({}) == {"tls": "true"}
    monkeypatch.setenv("AIOROCKET_TLS_VERIFY", "no")
    monkeypatch.setenv("AIOROCKET_ADDRESS_MAP", "a=b")
    unchecked = {"tls": "true", "tlsVerify": "false", "addressMap": "a=b"}
    assert with_environment({}) == unchecked and with_environment({"tlsCa": CA}) == {"tlsCa": CA, "addressMap": "a=b"}
    monkeypatch.setenv("AIOROCKET_TLS_VERIFY", "yes")
    monkeypatch.delenv("AIOROCKET_ADDRESS_MAP")
    assert with_environment({}) == {"tls": "true"}
    for name, value in (("ACCESS_KEY", "me"), ("SECRET_KEY", SECRET), ("NAMESPACE", "ns"), ("TLS_CA", CA)):
        monkeypatch.setenv(f"AIOROCKET_{name}", value)
    keys, tls = {"accessKey": "me", "secretKey": SECRET}, {"tls": "true", "tlsCa": CA}
    assert with_environment({}) == {**keys, **tls, "namespace": "ns"}
    assert with_environment({"credentialsFile": "k"}) == {"credentialsFile": "k", **tls, "namespace": "ns"}
    assert with_environment({"tls": "false", "namespace": ""}) == {**keys, "tls": "false", "namespace": ""}
    monkeypatch.setenv("AIOROCKET_CREDENTIALS_FILE", "keys.json")
    assert with_environment({}) == {"credentialsFile": "keys.json", **tls, "namespace": "ns"}


def test_options_that_cannot_be() -> None:
    for arguments, said in (
        (["produce", "t", "--tls-key", "k.pem"], "without cert"),
        (["broker", "--tls-key", "k.pem"], "need --tls-cert"),
        (["broker", "--tls-cert", "c.pem", "--data", "d", "--port", "0"], "there is no such file"),
        (["nameserver", "--acl", "nowhere.toml", "--port", "0"], "access file 'nowhere.toml' cannot be read"),
    ):
        result = CliRunner().invoke(cli, arguments, env={"AIOROCKET_SECRET_KEY": ""})
        assert result.exit_code in (1, 2) and said in result.output, result.output
    result = CliRunner().invoke(cli, ["produce", "t"], env={"AIOROCKET_SECRET_KEY": SECRET})
    assert result.exit_code == 2 and "access_key is missing" in result.output and SECRET not in result.output
