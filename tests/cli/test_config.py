"""A broker's settings from a file, the environment and options, in the order of their weight."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from click.testing import CliRunner

from aiorocket.cli import broker as command
from aiorocket.cli.config import _comment
from aiorocket.cli.main import cli
from aiorocket.config import BrokerConfig, ClientConfig, ServerTlsConfig
from aiorocket.config.settings import BROKER_PREFIX, broker_settings, options
from aiorocket.errors import ConfigError

ROOT = Path(__file__).parents[2]
FILE = """
[broker]
name = "red"
port = 10955
nameservers = ["a:1", "b:2"]
register_interval = 20
delay_levels = [1, 2.5]
secret_key = "hush"
access_key = "k"

[broker.store]
flush = "async"
delete_when = [4, 16]
segment_size = 1048576

[broker.rates]
topic_bytes = 7
group_messages = 8

[broker.tls]
cert = "c.pem"
key_password = "hush"
"""


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("AIOROCKET_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("b.toml").write_text(FILE)


def started(monkeypatch: pytest.MonkeyPatch, *arguments: str, **env: str) -> BrokerConfig:
    """What `aiorocket broker` would have started."""
    made: list[BrokerConfig] = []

    class Stop(Exception):
        pass

    def broker(_env: Any, config: BrokerConfig) -> None:
        made.append(config)
        raise Stop

    monkeypatch.setattr(command, "Broker", broker)
    monkeypatch.setattr(command, "serve", lambda server: _step(server, Stop))
    result = CliRunner(env=env).invoke(cli, ["broker", *arguments])
    assert result.exit_code == 0, result.output
    return made[0]


def _step(server: Any, stop: type[Exception]) -> None:
    with pytest.raises(stop):
        server().__aenter__().send(None)


def test_options_come_before_variables_and_these_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = started(monkeypatch)
    assert (plain.name, plain.port, plain.store.flush, plain.data) == ("broker-a", 10911, "sync", "aiorocket-data")
    config = started(
        monkeypatch, "--config", "b.toml", "--file-reserved-time", "5", "--group-message-rate", "9", "--port", "10957",
        AIOROCKET_BROKER_NAME="blue", AIOROCKET_BROKER_PORT="10956", AIOROCKET_BROKER_STORE_SCRUB_RATE="9",
        AIOROCKET_NAMESERVER="c:3", AIOROCKET_ADMIN_TOKEN="t",
    )  # fmt: skip
    assert (config.name, config.port, config.nameservers, config.admin_token) == ("blue", 10957, ("c:3",), "t")
    assert (config.register_interval, config.delay_levels, config.secret_key) == (20, (1, 2.5), "hush")
    store = config.store
    assert (store.flush, store.delete_when, store.segment_size) == ("async", (4, 16), 1 << 20)
    assert (store.scrub_rate, store.file_reserved_time) == (9, 5)
    assert (config.rates.topic_bytes, config.rates.group_messages) == (7, 9)
    assert config.tls is not None and config.tls == broker_settings("b.toml", {})[0].tls
    assert started(monkeypatch, "--config", "b.toml").nameservers == ("a:1", "b:2")


def others(kind: Any, value: Any) -> list[Any]:
    """Values that are not ``value``, one of them legal."""
    if get_origin(kind) is Literal:
        return [each for each in get_args(kind) if each != value]
    if get_origin(kind) is tuple:
        return [("a:1",) if get_args(kind)[0] is str else (3,)]
    if kind is bool:
        return [not value]
    return [value + 1, value // 2, value - 2] if isinstance(value, int | float) else ["some-other"]


def test_every_setting_of_a_broker_has_a_variable() -> None:
    beside = {  # what it cannot be without
        ("tls",): {"TLS_CERT": "c.pem"},
        ("tls", "client_cert"): {"TLS_CLIENT_CA": "ca"},
        ("tls", "client_ca"): {"TLS_CLIENT_CERT": "required"},
        ("nameserver_tls", "key"): {"NAMESERVER_TLS_CERT": "c.pem"},
        ("nameserver_tls", "key_password"): {"NAMESERVER_TLS_CERT": "c.pem", "NAMESERVER_TLS_KEY": "k.pem"},
        ("access_key",): {"SECRET_KEY": "s"},
        ("secret_key",): {"ACCESS_KEY": "a"},
        ("security_token",): {"ACCESS_KEY": "a", "SECRET_KEY": "s"},
    }
    for each in options(BrokerConfig):
        default = _at(BrokerConfig(), each.path)
        for wanted in others(each.kind, default):
            text = ",".join(map(str, wanted)) if isinstance(wanted, tuple) else str(wanted)
            given = {**beside.get(each.path[:1], {}), **beside.get(each.path, {}), each.variable: text}
            with suppress(ConfigError):
                config, where = broker_settings(None, {BROKER_PREFIX + name: value for name, value in given.items()})
                assert where[each.path] == BROKER_PREFIX + each.variable
                assert _at(config, each.path) == wanted, each
                break
        else:
            pytest.fail(f"no value of {others(each.kind, default)} is one of {each}")


def _at(config: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        config = getattr(config, name, None)
    return config


def test_a_certificate_by_option_asks_clients_for_what_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tls.toml").write_text('[broker.tls]\ncert = "c"\nclient_ca = "ca"\nclient_cert = "required"')
    tls = started(monkeypatch, "--config", "tls.toml", "--tls-cert", "new").tls
    assert tls == ServerTlsConfig(cert="new", client_ca="ca", client_cert="required")
    tls = started(monkeypatch, "--config", "tls.toml", "--tls-cert", "new", "--tls-client-ca", "other").tls
    assert tls == ServerTlsConfig(cert="new", client_ca="other", client_cert="required")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("[broker]\nprot = 1", "prot is no option: is port meant"),
        ("[broker]\nport = '1'", "port: a whole number is needed"),
        ("[broker]\nport = true", "port: a whole number is needed"),
        ("[broker.store]\ndelete_when = ['4']", "store.delete_when: a list of numbers"),
        ("[broker.store]\nflush = 'maybe'", "flush='maybe'"),
        ("[broker.tls]\nkey = 'k'", "tls.cert is needed beside tls.key"),
        ("[aiorocket]", r"no section \[broker\]"),
        ("[broker]\nport = 70000", "70000 is not in the range"),
        ("[broker]\nhost = '0.0.0.0'", "needs --advertise HOST"),
        ("[broker]\nadvertise = '::'", "not a host that clients can connect to"),
        ("[broker]\nadvertise = 'no such host'", "cannot be resolved"),
        ("[broker]\nadmin_bind = 'unix:'", "a path is missing"),
        ("[broker]\nadmin_token = 'short'", "at least 16"),
        ("[broker]\nacl = 'none.toml'", "none.toml"),
        ("[broker]\ncredentials_file = 'none.json'", "none.json"),
        ("[broker.tls]\ncert = 'none.pem'", "none.pem"),
        ("[broker]\ndata = 'x.toml/store'", "x.toml"),
        ("[broker.rates]\ntopic_bytes = -1.0", "topic_bytes"),
        ("[broker.store]\nmin_free = -2", "-2 is not in the range"),
    ],
)
def test_what_cannot_be(given: str, said: str) -> None:
    """What is refused by one is refused by the other, in the same words."""
    Path("x.toml").write_text(given)
    checked = CliRunner().invoke(cli, ["config", "check", "x.toml"])
    assert checked.exit_code == 1 and re.search(said, checked.output), checked.output
    refused = CliRunner().invoke(cli, ["broker", "--config", "x.toml"])
    assert refused.exit_code in (1, 2) and re.search(said, " ".join(refused.output.split()))


#: What a pod is told of services aiorocket-broker, aiorocket-nameserver, aiorocket-metrics and aiorocket beside it.
LINKS = {
    f"{service}_{name}": value
    for service in ("AIOROCKET_BROKER", "AIOROCKET_NAMESERVER", "AIOROCKET_METRICS", "AIOROCKET", "AIOROCKET_CLIENT")
    for name, value in (
        ("SERVICE_HOST", "10.0.0.7"),
        ("SERVICE_PORT", "10911"),
        ("SERVICE_PORT_ADMIN", "10920"),
        ("PORT", "tcp://10.0.0.7:10911"),
        ("PORT_10911_TCP", "tcp://10.0.0.7:10911"),
        ("PORT_10911_TCP_PROTO", "tcp"),
        ("PORT_10911_TCP_PORT", "10911"),
        ("PORT_10911_TCP_ADDR", "10.0.0.7"),
    )
}


def test_links_of_kubernetes_to_services_are_no_settings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert started(monkeypatch, **LINKS).port == 10911
    assert "AIOROCKET_BROKER_PORT=tcp://10.0.0.7:10911 is Kubernetes' link to a service and no setting" in caplog.text
    assert started(monkeypatch, **{**LINKS, "AIOROCKET_BROKER_PORT": "10955"}).port == 10955
    assert ClientConfig.from_env(environ=LINKS) == ClientConfig()
    with pytest.raises(ConfigError, match="is AIOROCKET_NAMESERVER meant"):
        ClientConfig.from_env(environ={"AIOROCKET_NAMESERVERS": "a:1"})


def test_what_is_shown_is_a_file_that_says_the_same() -> None:
    runner = CliRunner(env={"AIOROCKET_BROKER_NAME": "blue"})
    shown = runner.invoke(cli, ["config", "show", "b.toml"])
    assert shown.exit_code == 0 and "hush" not in shown.output, shown.output
    assert 'name = "blue"  # AIOROCKET_BROKER_NAME, AIOROCKET_BROKER_NAME\n' in shown.output
    assert 'flush = "async"  # AIOROCKET_BROKER_STORE_FLUSH, b.toml: store.flush\n' in shown.output
    assert "max_hold = 30.0  # AIOROCKET_BROKER_MAX_HOLD, default\n" in shown.output
    Path("shown.toml").write_text(shown.output)
    again, _ = broker_settings("shown.toml", {})
    first, _ = broker_settings("b.toml", {"AIOROCKET_BROKER_NAME": "blue"})
    assert again.store == first.store and again.limits == first.limits and again.name == "blue"
    checked = CliRunner().invoke(cli, ["config", "check", "b.toml"])
    assert checked.exit_code == 1 and "c.pem" in checked.output
    Path("plain.toml").write_text(FILE.partition("[broker.tls]")[0])
    assert CliRunner().invoke(cli, ["config", "check", "plain.toml"]).output == "12 settings given, nothing is wrong\n"
    assert CliRunner().invoke(cli, ["config", "check"]).exit_code == 0


def test_a_setting_is_explained() -> None:
    def told(*arguments: str) -> str:
        return CliRunner().invoke(cli, ["config", "explain", *arguments]).output

    assert told("store.segment_size", "b.toml").splitlines() == [
        "value     1048576", "from      b.toml: store.segment_size", "variable  AIOROCKET_BROKER_STORE_SEGMENT_SIZE",
    ]  # fmt: skip
    assert told("store.min_free").startswith("Free bytes below which messages are refused")
    assert "(secret)" in told("secret_key", "b.toml") and "hush" not in told("secret_key", "b.toml")
    assert "is port meant" in told("prot")
    for each in options(BrokerConfig):
        assert all(_comment(each.path)), each


def table() -> str:
    """The table of docs/settings.md. ``python -m tests.cli.test_config`` prints it."""
    rows = ["| setting of a broker | variable |", "| --- | --- |"]
    rows += [
        f"| `{'.'.join(each.path)}` | `AIOROCKET_BROKER_{each.variable}` |"
        for each in options(BrokerConfig)
        if each.path[0] not in ("limits", "remoting")
    ]
    return "\n".join(rows) + "\n"


def test_the_page_has_every_setting() -> None:
    assert table() in (ROOT / "docs" / "settings.md").read_text()


if __name__ == "__main__":
    sys.stdout.write(table())
