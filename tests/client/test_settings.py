"""Settings from the environment and from TOML: the same names, the same errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aiorocket import (
    Client,
    ClientConfig,
    ConfigError,
    ConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
    RemotingConfig,
    TlsConfig,
)
from aiorocket.config.settings import options

ROOT = Path(__file__).parents[2]


def test_every_option_has_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIOROCKET_NAMESERVER", raising=False)
    given = {
        "AIOROCKET_NAMESERVER": "a:1,b:2", "AIOROCKET_START_TIMEOUT": "2.5", "AIOROCKET_NAMESPACE": "dev",
        "AIOROCKET_MISSING_TOPICS": "create", "AIOROCKET_INSTANCE": "one", "AIOROCKET_REMOTING_MAX_IN_FLIGHT": "7",
        "AIOROCKET_REMOTING_SERIALIZER": "json", "AIOROCKET_TLS_CA": "ca.pem", "AIOROCKET_TLS_CHECK_HOSTNAME": "no",
        "AIOROCKET_ACCESS_KEY": "k", "AIOROCKET_SECRET_KEY": "s", "AIOROCKET_SEEDS": "200", "HOME": "/",
        "AIOROCKET_PRODUCER_IDEMPOTENT": "yes", "AIOROCKET_CONSUMER_ALLOCATE": "AVG_BY_CIRCLE",
        "AIOROCKET_CONSUMER_SHORT_POLL": "2", "AIOROCKET_PULL_CONSUMER_AUTO_COMMIT": "1",
        "AIOROCKET_ADDRESS_MAP": "172.17.0.2=mq.example",
    }  # fmt: skip
    assert ClientConfig.from_env(environ=given) == ClientConfig(
        nameservers=("a:1", "b:2"), start_timeout=2.5, namespace="dev", missing_topics="create", instance="one",
        remoting=RemotingConfig(max_in_flight=7, serializer="json"), tls=TlsConfig(ca="ca.pem", check_hostname=False),
        access_key="k", secret_key="s", address_map={"172.17.0.2": "mq.example"},
        producer=ProducerConfig(idempotent=True),
        consumer=ConsumerConfig(allocate="AVG_BY_CIRCLE", short_poll=2.0),
        pull_consumer=PullConsumerConfig(auto_commit=True),
    )  # fmt: skip
    assert ClientConfig.from_env(environ={}) == ClientConfig()
    assert ClientConfig.from_env(environ={"AIOROCKET_TLS": "true"}).tls is True
    assert ClientConfig.from_env("MQ_", {"MQ_START_TIMEOUT": "3", "AIOROCKET_START_TIMEOUT": "4"}).start_timeout == 3
    names = [each.variable for each in options(ClientConfig)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"AIOROCKET_START_TIMEOUT": "soon"}, "AIOROCKET_START_TIMEOUT='soon': a number"),
        ({"AIOROCKET_START_TIMEOUT": "-1"}, "start_timeout=-1.0: must be above 0"),
        ({"AIOROCKET_START_TIMEOT": "1"}, "AIOROCKET_START_TIMEOT is no option: is AIOROCKET_START_TIMEOUT meant"),
        ({"AIOROCKET_TLS": "maybe"}, "AIOROCKET_TLS='maybe': true or false"),
        ({"AIOROCKET_TLS": "false", "AIOROCKET_TLS_CA": "x"}, "AIOROCKET_TLS_CA: tls is switched off"),
        ({"AIOROCKET_MISSING_TOPICS": "x"}, "AIOROCKET_MISSING_TOPICS='x': 'wait', 'create' or 'error'"),
    ],
)
def test_what_cannot_be(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ClientConfig.from_env(environ=given)


def test_a_section_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(
        '[aiorocket]\nnameservers = ["a:1"]\nstart_timeout = 2\n[aiorocket.remoting]\nrequest_timeout = 1.5\n'
        '[aiorocket.address_map]\n"172.17.0.2:10911" = "localhost:20911"\n'
        '[tool.mq]\nnamespace = "x"\ntls = true\n[wrong]\nnamespce = "x"\n'
    )
    assert ClientConfig.from_toml(path) == ClientConfig(
        nameservers=("a:1",), start_timeout=2, remoting=RemotingConfig(request_timeout=1.5),
        address_map={"172.17.0.2:10911": "localhost:20911"},
    )  # fmt: skip
    assert ClientConfig.from_toml(path, "tool.mq").tls is True
    with pytest.raises(ConfigError, match="namespce is no option: is namespace meant"):
        ClientConfig.from_toml(path, "wrong")
    with pytest.raises(ConfigError, match=r"no section \[none\]"):
        ClientConfig.from_toml(path, "none")
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        ClientConfig.from_toml(tmp_path / "gone.toml")
    path.write_text("no toml")
    with pytest.raises(ConfigError, match=r"settings\.toml"):
        ClientConfig.from_toml(path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"aiorocket = 5", "aiorocket is a value"),
        (b"[aiorocket]\nnameservers = 'a:1'", "nameservers: a list of texts"),
        (b"[aiorocket]\nnameservers = [9876]", "nameservers: a list of texts"),
        (b"[aiorocket]\naccess_key = 'k'\nsecret_key = 5000123", "secret_key: text in quotes is needed$"),
        (b"[aiorocket]\naddress_map = 'a=b'", "address_map: a table of addresses is needed"),
        (b"[aiorocket.address_map]\n'a' = 'b:1'", "address_map: .*leave the port out"),
        (b"[aiorocket.tls]\nverify = 'no'", "tls.verify: true or false"),
        (b"[aiorocket]\nnamespace = '\xff'", "x.toml: .*utf-8"),
    ],
)
def test_values_of_the_wrong_kind_in_a_file(tmp_path: Path, given: bytes, said: str) -> None:
    (tmp_path / "x.toml").write_bytes(given)
    with pytest.raises(ConfigError, match=said):
        ClientConfig.from_toml(tmp_path / "x.toml")


def test_what_a_service_sets_is_that_of_all_it_makes(tmp_path: Path) -> None:
    (tmp_path / "mq.toml").write_text(
        "[aiorocket.producer]\nsend_timeout = 7\n[aiorocket.consumer]\nconcurrency = 3\n"
        "[aiorocket.pull_consumer]\nauto_commit = true\n"
    )
    client = Client(config=ClientConfig.from_toml(tmp_path / "mq.toml"), group="g")
    assert client.producer().config.send_timeout == 7 and client.consumer().config.concurrency == 3
    assert client.pull_consumer().config.auto_commit
    assert client.consumer(config=ConsumerConfig(batch_size=2)).config.concurrency == 16
    with pytest.raises(ConfigError, match="concurrency=0"):
        ClientConfig.from_env(environ={"AIOROCKET_CONSUMER_CONCURRENCY": "0"})


def table() -> str:
    """The table of docs/settings.md. ``python -m tests.client.test_settings`` prints it."""
    rows = ["| option | variable |", "| --- | --- |"]
    rows += [f"| `{'.'.join(each.path)}` | `AIOROCKET_{each.variable}` |" for each in options(ClientConfig)]
    return "\n".join(rows) + "\n"


def test_the_page_has_every_option() -> None:
    assert table() in (ROOT / "docs" / "settings.md").read_text()


if __name__ == "__main__":
    sys.stdout.write(table())
