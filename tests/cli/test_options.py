from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from aiorocket import ClientConfig, TlsConfig
from aiorocket.cli.consume import _read_start
from aiorocket.cli.main import cli
from aiorocket.cli.options import client_options, nameserver_option, parse_nameservers, token_of
from aiorocket.cli.server_options import advertised
from aiorocket.errors import UsageError
from aiorocket.remoting import parse_address


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("127.0.0.1:9876", ("127.0.0.1:9876",)),
        ("a:1,b:2", ("a:1", "b:2")),
        ("a:1;b:2", ("a:1", "b:2")),
        (" a:1 ; b:2 , a:1;", ("a:1", "b:2")),
        ("[::1]:9876", ("[::1]:9876",)),
    ],
)
def test_addresses_are_separated_by_comma_or_semicolon(text: str, addresses: tuple[str, ...]) -> None:
    assert parse_nameservers(text) == addresses


@pytest.mark.parametrize(
    "text", ["", ";", "host", "host:", ":1", "host:0", "host:65536", "host:x", "::1:9876", "http://host:9876", "a:1,b"]
)
def test_a_bad_address_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|port|brackets"):
        parse_nameservers(text)


def test_an_ipv6_address_without_a_port_is_told_that_it_lacks_one() -> None:
    """It has the brackets, of which alone the error spoke."""
    for parse in (parse_nameservers, parse_address):
        with pytest.raises((ValueError, UsageError), match=r"'\[::1\]': .* its port behind them, as in \[::1\]:9876"):
            parse("[::1]")


def test_a_token_of_the_environment_may_end_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a file: a Kubernetes secret often does, and nobody could sign in with what stands in front of it."""

    @click.command()
    @click.option("--token-file", "token", callback=token_of("A_TOKEN"))
    def tell(token: str | None) -> None:
        click.echo(repr(token))

    for value, token in ((" 0123456789abcdef\n", "'0123456789abcdef'"), ("\n", "None")):
        monkeypatch.setenv("A_TOKEN", value)
        assert CliRunner().invoke(tell).output == f"{token}\n"

    @click.command()
    @client_options
    def ask(config: ClientConfig) -> None:
        click.echo(config.secret_key)

    monkeypatch.setenv("AIOROCKET_ADMIN_TOKEN", "0123456789abcdef\n")
    assert CliRunner().invoke(ask).output == "0123456789abcdef\n"


@click.command()
@nameserver_option
def show(nameservers: tuple[str, ...]) -> None:
    click.echo(" ".join(nameservers))


def test_the_name_server_comes_from_the_option_then_the_environment_then_this_machine() -> None:
    runner = CliRunner(env={"AIOROCKET_NAMESERVER": "env:1;env:2"})
    assert runner.invoke(show, ["--nameserver", "opt:1"]).output == "opt:1\n"
    assert runner.invoke(show).output == "env:1 env:2\n"
    assert CliRunner(env={"AIOROCKET_NAMESERVER": None}).invoke(show).output == "127.0.0.1:9876\n"
    assert runner.invoke(show, ["--nameserver", "nowhere"]).exit_code == 2


@click.command()
@client_options
def look(config: ClientConfig) -> None:
    click.echo(config.address_map)


def test_where_brokers_are_reached_comes_from_the_option_or_the_environment() -> None:
    runner = CliRunner(env={"AIOROCKET_ADDRESS_MAP": "172.17.0.2=mq.example"})
    assert runner.invoke(look).output == "{'172.17.0.2': 'mq.example'}\n"
    assert runner.invoke(look, ["--address-map", "a:1=b:2"]).output == "{'a:1': 'b:2'}\n"
    wrong = runner.invoke(look, ["--address-map", "a:1"])
    assert wrong.exit_code == 2 and "FROM=TO" in wrong.output


@pytest.mark.parametrize("command", ["broker", "standalone"])
def test_a_wildcard_needs_a_host_that_clients_can_be_told(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--bind", "0.0.0.0"])
    assert result.exit_code == 2
    assert "--advertise HOST" in result.output and "0.0.0.0" in result.output
    assert CliRunner().invoke(cli, [command, "--bind", "0.0.0.0", "--advertise", "0.0.0.0"]).exit_code == 2
    assert CliRunner().invoke(cli, [command, "--advertise", "host:10911"]).exit_code == 2


def test_what_is_advertised() -> None:
    assert advertised("127.0.0.1", None) == "127.0.0.1"
    assert advertised("0.0.0.0", "mq.example") == "mq.example"
    assert advertised("::", "[2001:db8::1]") == "2001:db8::1"


def test_where_a_group_begins() -> None:
    context = click.Context(show)
    param = show.params[0]
    assert _read_start(context, param, "first") == "first"
    assert _read_start(context, param, "1700000000000") == 1700000000000
    assert _read_start(context, param, "2023-11-14T22:13:20+00:00") == 1700000000000
    with pytest.raises(click.BadParameter, match="yesterday"):
        _read_start(context, param, "yesterday")


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "t"],
        ["consume", "t", "--group", "g", "--count", "0"],
        ["consume", "t", "--group", "g", "--from", "soon"],
        ["consume", "t", "--group", "g", "--from", "2025-03-01+02:00"],
        ["consume", "t", "--group", "g", "--from", "20250301"],
        ["produce", "t", "--rate", "0"],
        ["broker", "--flush", "maybe"],
        ["broker", "--port", "65536"],
    ],
)
def test_bad_usage_exits_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, arguments).exit_code == 2


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        each = group.get_command(context, name)
        if isinstance(each, click.Group):
            yield from commands(each, f"{path}{name} ")
        elif each is not None:
            yield f"{path}{name}", each


def test_every_client_is_told_in_the_same_words() -> None:
    """Whatever asks name servers; ``lake`` hands them to Spark, and takes the same variables."""
    words = {
        "--nameserver", "--config", "--credentials", "--namespace", "--address-map",
        "--tls", "--tls-ca", "--tls-cert", "--tls-key", "--tls-verify",
    }  # fmt: skip
    found = {}
    for name, command in commands(cli):
        options = {option for each in command.params if each.envvar for option in each.opts}
        if "--nameserver" in options and name != "broker" and not name.startswith("lake "):
            found[name] = words - options
    assert len(found) > 40 and not any(found.values()), found


def test_a_client_takes_a_file_and_options_come_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AIOROCKET_")]:
        monkeypatch.delenv(name)
    (tmp_path / "mq.toml").write_text(
        '[aiorocket]\nnameservers = ["mq:1"]\nnamespace = "ns"\naccess_key = "me"\nsecret_key = "hush"\n'
        "[aiorocket.remoting]\nrequest_timeout = 2\n"
    )
    seen: list[ClientConfig] = []
    command = click.command()(client_options(lambda config: seen.append(config)))

    def run(*arguments: str, **environment: str) -> ClientConfig:
        result = CliRunner().invoke(command, arguments, env=environment)
        assert result.exit_code == 0, result.output
        return seen.pop()

    file = ("--config", str(tmp_path / "mq.toml"))
    found = run(*file)
    assert found == run(AIOROCKET_CONFIG=file[1]) == ClientConfig.from_toml(file[1])
    assert (found.nameservers, found.remoting.request_timeout) == (("mq:1",), 2)
    assert run(*file, "--nameserver", "a:2", "--namespace", "n") == replace(found, nameservers=("a:2",), namespace="n")
    assert run(*file, AIOROCKET_NAMESERVER="b:3").nameservers == ("b:3",)
    assert run(*file, AIOROCKET_ACCESS_KEY="you", AIOROCKET_SECRET_KEY="psst").access_key == "you"
    other = run(*file, "--credentials", "k.json", "--tls")
    assert (other.access_key, other.credentials_file, other.tls) == (None, "k.json", True)
    assert run() == run(AIOROCKET_TLS_VERIFY="") == ClientConfig(nameservers=("127.0.0.1:9876",))
    assert run("--tls-insecure").tls == run(AIOROCKET_TLS_VERIFY="no").tls == TlsConfig(verify=False)
    assert run("--tls-verify", AIOROCKET_TLS_VERIFY="no").tls is False
    result = CliRunner().invoke(command, ["--config", str(tmp_path / "none.toml")])
    assert result.exit_code == 2 and "none.toml" in result.output


_COMPLETIONS = {
    ("bash", "--norc"): """
        _AIOROCKET_COMPLETE=bash_source aiorocket >installed && . ./installed
        COMP_WORDS=(aiorocket topic cr) COMP_CWORD=2
        _aiorocket_completion aiorocket
        echo "${COMPREPLY[@]}"
    """,
    ("zsh", "-f"): """
        _AIOROCKET_COMPLETE=zsh_source aiorocket >installed && zsh -n installed
        autoload -U compinit; compinit -u -d dump; . ./installed
        _describe() { print -r -- "${${(@P)3}%%:*}" }  # what would be shown, without a terminal
        words=(aiorocket topic cr) CURRENT=3
        $_comps[aiorocket]
    """,
    ("fish", "--no-config"): """
        _AIOROCKET_COMPLETE=fish_source aiorocket >installed.fish; and fish -n installed.fish; and source installed.fish
        string split -f 1 \\t -- (complete -C "aiorocket topic cr")
    """,
}


@pytest.mark.parametrize("shell", _COMPLETIONS, ids=[name for name, _ in _COMPLETIONS])
def test_a_shell_completes_words_with_the_script_that_is_installed(shell: tuple[str, str], tmp_path: Path) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"there is no {shell[0]}")
    aiorocket = tmp_path / "aiorocket"
    aiorocket.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m aiorocket "$@"\n')
    aiorocket.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [*shell, "-c", _COMPLETIONS[shell]], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=140
    )
    assert (done.stdout, done.stderr) == ("create\n", "")
