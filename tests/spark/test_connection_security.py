"""What Spark's options say of credentials and TLS reaches the client's settings, and stays out of sight on the way."""

from __future__ import annotations

import pickle

import pytest

from aiorocket.config import TlsConfig
from aiorocket.errors import ConfigError, UsageError
from aiorocket.spark.bridge import client_config
from aiorocket.spark.options import ConnectionOptions, SourceOptions

OPTIONS = {"nameServer": "127.0.0.1:9876", "topic": "t"}


def connection(**options: str) -> ConnectionOptions:
    return SourceOptions.parse({**OPTIONS, **options}).connection


def test_keys_are_passed_on_and_not_shown() -> None:
    given = connection(accessKey="me", secretKey="s3cret", securityToken="t0ken")
    config = client_config(pickle.loads(pickle.dumps(given)))
    assert (config.access_key, config.secret_key, config.security_token) == ("me", "s3cret", "t0ken")
    assert config.tls is False
    assert "s3cret" not in repr(given) + repr(config) and "t0ken" not in repr(given) + repr(config)


def test_a_file_of_credentials_is_passed_on_by_its_name() -> None:
    config = client_config(connection(credentialsFile="/run/secrets/rocketmq.json"))
    assert config.credentials_file == "/run/secrets/rocketmq.json" and config.access_key is None


@pytest.mark.parametrize(
    ("options", "tls"),
    [
        ({"tls": "true"}, TlsConfig()),
        ({"tls": "true", "tlsVerify": "false"}, TlsConfig(verify=False)),
        (
            {"tls": "true", "tlsCa": "ca.pem", "tlsCert": "me.pem", "tlsKey": "me.key"},
            TlsConfig(ca="ca.pem", cert="me.pem", key="me.key"),
        ),
    ],
)
def test_tls_is_passed_on(options: dict[str, str], tls: TlsConfig) -> None:
    assert client_config(connection(**options)).tls == tls


def test_addresses_are_the_options_or_those_of_each_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    given = connection(addressMap="10.4.0.7=mq.example")
    monkeypatch.setenv("AIOROCKET_ADDRESS_MAP", "10.4.0.7=localhost")
    assert client_config(pickle.loads(pickle.dumps(given))).address_map == {"10.4.0.7": "mq.example"}
    assert client_config(connection()).address_map == {"10.4.0.7": "localhost"}
    monkeypatch.delenv("AIOROCKET_ADDRESS_MAP")
    assert client_config(connection()).address_map == {}
    with pytest.raises(UsageError, match=r"addressMap='10\.4\.0\.7': .*FROM=TO is needed"):
        connection(addressMap="10.4.0.7")


def test_contradictions_are_refused_before_anything_is_opened() -> None:
    with pytest.raises(ConfigError, match="verify=False"):
        client_config(connection(tls="true", tlsCa="ca.pem", tlsVerify="false"))
