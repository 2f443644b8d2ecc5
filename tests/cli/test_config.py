"""A server's settings from a file, the environment and options, in the order of their weight."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from click.testing import CliRunner

from aiorocket.cli import broker as command
from aiorocket.cli import nameserver as nameserver_command
from aiorocket.cli.config import _comment
from aiorocket.cli.main import cli
from aiorocket.config import BrokerConfig, ClientConfig, NameServerConfig, ServerTlsConfig
from aiorocket.config.settings import SERVERS, Server, broker_settings, options, server_settings
from aiorocket.config.toml_lines import line_of, lines_of
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


def test_of_keys_and_a_file_of_them_what_comes_first_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(*arguments: str, **env: str) -> tuple[str | None, str | None, str | None, str | None]:
        made = started(monkeypatch, *arguments, **env)
        return made.access_key, made.secret_key, made.security_token, made.credentials_file

    Path("k.toml").write_text("[broker]\ncredentials_file = 'k.json'")
    token = {"AIOROCKET_BROKER_SECURITY_TOKEN": "t"}
    assert keys("--config", "b.toml", "--credentials", "o.json", **token) == (None, None, None, "o.json")
    assert keys("--config", "b.toml", AIOROCKET_CREDENTIALS_FILE="o.json") == (None, None, None, "o.json")
    assert keys("--config", "b.toml", AIOROCKET_BROKER_CREDENTIALS_FILE="v.json") == (None, None, None, "v.json")
    assert keys("--config", "b.toml", AIOROCKET_BROKER_CREDENTIALS_FILE="") == ("k", "hush", None, "")
    own = {"AIOROCKET_BROKER_ACCESS_KEY": "me", "AIOROCKET_BROKER_SECRET_KEY": "psst"}
    assert keys("--config", "k.toml", **own) == ("me", "psst", None, None)
    assert keys("--config", "k.toml", "--credentials", "o.json", **own) == (None, None, None, "o.json")
    with pytest.raises(ConfigError, match=r"either of them.*AIOROCKET_BROKER_CREDENTIALS_FILE"):
        broker_settings(None, {**own, "AIOROCKET_BROKER_CREDENTIALS_FILE": "v.json"})


def others(kind: Any, value: Any) -> list[Any]:
    """Values that are not ``value``, one of them legal."""
    if get_origin(kind) is Literal:
        return [each for each in get_args(kind) if each != value]
    if get_origin(kind) is tuple:
        return [("a:1",) if get_args(kind)[0] is str else (3,)]
    if kind is bool:
        return [not value]
    return [value + 1, value // 2, value - 2] if isinstance(value, int | float) else ["some-other"]


@pytest.mark.parametrize("server", SERVERS.values(), ids=list(SERVERS))
def test_every_setting_of_a_server_has_a_variable(server: Server) -> None:
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
    for each in options(server.config):
        default = _at(server.config(), each.path)
        for wanted in others(each.kind, default):
            text = ",".join(map(str, wanted)) if isinstance(wanted, tuple) else str(wanted)
            given = {**beside.get(each.path[:1], {}), **beside.get(each.path, {}), each.variable: text}
            with suppress(ConfigError):
                said = {server.prefix + name: value for name, value in given.items()}
                config, where = server_settings(server, None, said)
                assert where[each.path] == server.prefix + each.variable
                assert ClientConfig.from_env(environ=said) == ClientConfig(), "a client beside it has other settings"
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
    """What is refused by one is refused by the other, in the same words, and where it stands is said."""
    Path("x.toml").write_text(given)
    line = "x.toml:2: " if "\n" in given else "x.toml"
    checked = CliRunner().invoke(cli, ["config", "check", "x.toml"])
    assert checked.exit_code == 1 and re.search(said, checked.output) and line in checked.output, checked.output
    refused = CliRunner().invoke(cli, ["broker", "--config", "x.toml"])
    told = " ".join(refused.output.split())
    assert refused.exit_code in (1, 2) and re.search(said, told) and line in told, told


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PORT", "70000", "AIOROCKET_BROKER_PORT: 70000 is not in the range 0<=x<=65535"),
        ("PORT", "many", "AIOROCKET_BROKER_PORT='many': a number is needed"),
        ("STORE_FLUSH", "maybe", "AIOROCKET_BROKER_STORE_FLUSH='maybe': 'sync' or 'async'"),
        ("TLS_MODE", "strict", "AIOROCKET_BROKER_TLS_MODE='strict': 'enforcing' or 'permissive'"),
        ("LIMITS_TOPICS", "0", "Limits.topics=0: must be above 0 (AIOROCKET_BROKER_LIMITS_TOPICS)"),
        ("STORE_DELETE_WHEN", "4;24", "hours from 0 to 23 (AIOROCKET_BROKER_STORE_DELETE_WHEN)"),
        ("ADMIN_TOKEN", "short", "(AIOROCKET_BROKER_ADMIN_TOKEN)"),
        ("ACL", "none.toml", "(AIOROCKET_BROKER_ACL)"),
    ],
)
def test_of_what_cannot_be_the_variable_is_named_and_what_could_be(variable: str, value: str, said: str) -> None:
    for words in (["config", "check"], ["broker", "--check"]):
        told = CliRunner(env={f"AIOROCKET_BROKER_{variable}": value}).invoke(cli, words)
        assert told.exit_code in (1, 2) and said in " ".join(told.output.split()), told.output


def test_what_an_option_says_is_not_blamed_on_the_file() -> None:
    Path("x.toml").write_text("[broker]\nacl = 'none.toml'\nadvertise = 'here.example'")
    told = CliRunner().invoke(cli, ["broker", "--check", "--config", "x.toml", "--acl", "other.toml"])
    assert told.exit_code == 1 and "other.toml" in told.output and "x.toml" not in told.output, told.output


def test_the_line_of_a_setting_is_found_however_it_is_written() -> None:
    lines = lines_of(
        "# a\n[broker]\nname='x'\nstore.flush = 'sync'\nrates = {topic_bytes = 1}\n[ broker . tls ]\n'cert' = 'c'\n"
    )
    assert [
        line_of(lines, ("broker", *path.split(".")))
        for path in ("name", "store.flush", "rates.topic_bytes", "tls.cert", "tls.key")
    ] == [3, 4, 5, 7, 6]
    assert line_of(lines, ("nameserver", "port")) is None


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
    assert 'flush = "async"  # AIOROCKET_BROKER_STORE_FLUSH, b.toml:12: store.flush\n' in shown.output
    assert "max_hold = 30.0  # AIOROCKET_BROKER_MAX_HOLD, default\n" in shown.output
    document = json.loads(runner.invoke(cli, ["config", "show", "b.toml", "--json"]).output)
    assert (document["schema"], document["kind"]) == (1, "server setting") and "hush" not in str(document)
    assert document["rows"][0] == {
        "name": "name", "value": "blue", "from": "AIOROCKET_BROKER_NAME", "variable": "AIOROCKET_BROKER_NAME",
    }  # fmt: skip
    Path("shown.toml").write_text(shown.output)
    with pytest.raises(ConfigError, match=r"secret_key is missing.*shown\.toml:\d+: access_key"):
        broker_settings("shown.toml", {})  # it is in no file that is shown
    again, _ = broker_settings("shown.toml", {"AIOROCKET_BROKER_SECRET_KEY": "hush"})
    first, _ = broker_settings("b.toml", {"AIOROCKET_BROKER_NAME": "blue"})
    assert again.store == first.store and again.limits == first.limits and again.name == "blue"
    checked = CliRunner().invoke(cli, ["config", "check", "b.toml"])
    assert checked.exit_code == 1 and "c.pem" in checked.output
    Path("plain.toml").write_text(FILE.partition("[broker.tls]")[0])
    assert CliRunner().invoke(cli, ["config", "check", "plain.toml"]).output == "12 settings given, nothing is wrong\n"
    assert CliRunner().invoke(cli, ["config", "check"]).exit_code == 0


@pytest.mark.parametrize(("command", "code"), [("show", 2), ("explain port", 2), ("check", 1)])
def test_a_file_that_cannot_be_read_is_bad_input_but_to_who_asks_whether_it_can(command: str, code: int) -> None:
    told = CliRunner().invoke(cli, ["config", *command.split(), "none.toml"])
    assert told.exit_code == code and "none.toml" in told.output


def test_a_setting_is_explained() -> None:
    def told(*arguments: str) -> str:
        return CliRunner().invoke(cli, ["config", "explain", *arguments]).output

    assert told("store.segment_size", "b.toml").splitlines() == [
        "value     1048576", "allowed   a whole number", "from      b.toml:14: store.segment_size",
        "variable  AIOROCKET_BROKER_STORE_SEGMENT_SIZE",
    ]  # fmt: skip
    assert told("store.min_free").startswith("Free bytes below which messages are refused")
    assert "(secret)" in told("secret_key", "b.toml") and "hush" not in told("secret_key", "b.toml")
    assert "is port meant" in told("prot")
    for server in SERVERS.values():
        for each in options(server.config):
            assert all(_comment(each.path, server.config)), each


def nameserver_started(monkeypatch: pytest.MonkeyPatch, *arguments: str, **env: str) -> NameServerConfig:
    """What `aiorocket nameserver` would have started."""
    made: list[NameServerConfig] = []

    class Stop(Exception):
        pass

    def nameserver(_env: Any, config: NameServerConfig) -> None:
        made.append(config)
        raise Stop

    monkeypatch.setattr(nameserver_command, "NameServer", nameserver)
    monkeypatch.setattr(nameserver_command, "serve", lambda server: _step(server, Stop))
    result = CliRunner(env=env).invoke(cli, ["nameserver", *arguments])
    assert result.exit_code == 0, result.output
    return made[0]


NAMESERVER_FILE = """
[nameserver]
port = 9955
data = "names"
broker_expiry = 60
open_registration = true

[nameserver.limits]
key_values = 7

[nameserver.tls]
cert = "c.pem"
"""


def test_a_name_server_is_set_as_a_broker_is(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("n.toml").write_text(NAMESERVER_FILE)
    plain = nameserver_started(monkeypatch)
    assert (plain.host, plain.port, plain.data, plain.open_registration) == ("127.0.0.1", 9876, None, False)
    config = nameserver_started(
        monkeypatch, "--config", "n.toml", "--data", "there", AIOROCKET_NAMESERVER_PORT="9956",
        AIOROCKET_NAMESERVER_HOST="::1", AIOROCKET_NAMESERVER_REMOTING_MAX_PER_HOST="8", AIOROCKET_NAMESERVER="a:1",
        AIOROCKET_BROKER_PORT="1",
    )  # fmt: skip
    assert (config.host, config.port, config.data, config.broker_expiry) == ("::1", 9956, "there", 60)
    assert config.open_registration and config.limits.key_values == 7 and config.remoting.max_per_host == 8
    assert isinstance(config.tls, ServerTlsConfig) and config.tls.cert == "c.pem"
    assert nameserver_started(monkeypatch, AIOROCKET_NAMESERVER_PORT="tcp://10.0.0.7:9876").port == 9876


def test_a_name_servers_settings_are_shown_checked_and_explained() -> None:
    def told(*arguments: str, **env: str) -> tuple[int, str]:
        result = CliRunner(env=env).invoke(cli, ["config", *arguments, "--server", "nameserver"])
        return result.exit_code, result.output

    Path("n.toml").write_text(NAMESERVER_FILE.partition("[nameserver.tls]")[0])
    code, shown = told("show", "n.toml", AIOROCKET_NAMESERVER_PORT="9956")
    assert code == 0 and "port = 9956  # AIOROCKET_NAMESERVER_PORT, AIOROCKET_NAMESERVER_PORT\n" in shown
    assert "key_values = 7  # AIOROCKET_NAMESERVER_LIMITS_KEY_VALUES, n.toml:9: limits.key_values\n" in shown
    Path("shown.toml").write_text(shown)
    first, _ = server_settings(SERVERS["nameserver"], "n.toml", {"AIOROCKET_NAMESERVER_PORT": "9956"})
    assert server_settings(SERVERS["nameserver"], "shown.toml", {})[0] == first
    assert told("check", "n.toml") == (0, "5 settings given, nothing is wrong\n")
    assert told("explain", "broker_expiry")[1].startswith("A broker that has not registered for this long")
    assert "no setting of a nameserver" in told("explain", "store.flush")[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("[nameserver]\nbroker_expiri = 1", "broker_expiri is no option: is broker_expiry meant"),
        ("[broker]", r"no section \[nameserver\]"),
        ("[nameserver]\nport = 70000", "70000 is not in the range"),
        ("[nameserver]\nhost = 'no such host'", "cannot be resolved"),
        ("[nameserver]\nacl = 'none.toml'", "none.toml"),
        ("[nameserver.tls]\ncert = 'none.pem'", "none.pem"),
        ("[nameserver]\ndata = 'x.toml/names'", "x.toml"),
    ],
)
def test_what_a_name_server_cannot_be(given: str, said: str) -> None:
    Path("x.toml").write_text(given)
    for words in ("config check --server nameserver x.toml", "nameserver --check --config x.toml"):
        checked = CliRunner().invoke(cli, words.split())
        told = " ".join(checked.output.split())
        assert checked.exit_code in (1, 2) and re.search(said, told) and "x.toml" in told, told
        assert "x.toml:2: " in told or "\n" not in given, told


def table(server: Server) -> str:
    """A table of docs/settings.md. ``python -m tests.cli.test_config`` prints them."""
    name = {"nameserver": "name server"}.get(server.section, server.section)
    rows = [f"| setting of a {name} | variable |", "| --- | --- |"]
    rows += [
        f"| `{'.'.join(each.path)}` | `{server.prefix}{each.variable}` |"
        for each in options(server.config)
        if each.path[0] not in ("limits", "remoting")
    ]
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize("server", SERVERS.values(), ids=list(SERVERS))
def test_the_page_has_every_setting(server: Server) -> None:
    assert table(server) in (ROOT / "docs" / "settings.md").read_text()


if __name__ == "__main__":
    sys.stdout.write("\n".join(map(table, SERVERS.values())))
