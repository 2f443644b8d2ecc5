"""``aiorocket config``: the settings of a broker or name server, as its ``--config`` would take them."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from aiorocket.cli.asked import told
from aiorocket.cli.options import BadInputError
from aiorocket.cli.running import in_lines
from aiorocket.config import ServerTlsConfig, TlsConfig
from aiorocket.config.settings import SERVERS, Option, Server, options, parts_of, server_settings, wanted
from aiorocket.errors import ConfigError

__all__ = ("config",)

_FILE = click.argument("file", required=False)
_SERVER = click.option(
    "--server", type=click.Choice(list(SERVERS)), default="broker", show_default=True, help="Whose settings.",
    callback=lambda _ctx, _param, value: SERVERS[value],
)  # fmt: skip


@click.group()
def config() -> None:
    """Look at a broker's or name server's settings: what file and environment say.

    FILE is what `aiorocket broker --config` or `aiorocket nameserver --config` gets; variables that begin with
    AIOROCKET_BROKER_ or AIOROCKET_NAMESERVER_ come before it.
    """


@config.command()
@_FILE
@_SERVER
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def show(ctx: click.Context, file: str | None, server: Server, as_json: bool) -> None:
    """Print every setting with its variable and where its value is from, itself a file of settings but for secrets."""
    said, where = _read(server, file)
    if as_json:
        ctx.obj = True
        told("server setting", "", [_row(said, where, server, each) for each in options(server.config)])
        return
    section = None
    # What is in no section of its own first, as TOML wants it.
    for each in sorted(options(server.config), key=lambda each: len(each.path)):
        above = ".".join((server.section, *each.path[:-1]))
        if above != section:
            section = above
            click.echo(f"[{section}]")
        value, found = _value(said, each.path)
        line = f"{each.path[-1]} = {_toml(value)}" if found else f"# {each.path[-1]} is not set"
        if found and _secret(each.path):
            line = f"# {each.path[-1]} is set, and secret"
        elif found and each.path[-1] in parts_of(server.config):
            line = f"# {line}"  # a switch, whose name is a section's further down
        click.echo(f"{line}  # {server.prefix}{each.variable}, {where.get(each.path, 'default')}")


@config.command()
@_FILE
@_SERVER
def check(file: str | None, server: Server) -> None:
    """Say whether a server could start with these settings; 1 and the reason when it could not.

    It is `aiorocket broker --config FILE --check`: files that are named are read, the host is resolved.
    """
    try:
        _, where = _read(server, file)
    except BadInputError as error:
        raise click.ClickException(error.message) from None
    # Imported here: a server is much more than the other commands need.
    command = getattr(import_module(f"aiorocket.cli.{server.section}"), server.section)

    try:
        command.main(["--check", *(["--config", file] if file is not None else [])], standalone_mode=False)
    except click.UsageError as error:
        raise click.ClickException(error.format_message()) from None
    click.echo(f"{len(where)} setting{'' if len(where) == 1 else 's'} given, nothing is wrong")


@config.command()
@click.argument("name")
@_FILE
@_SERVER
def explain(name: str, file: str | None, server: Server) -> None:
    """Say what setting NAME (such as port or store.flush) means, and where its value is from."""
    said, where = _read(server, file)
    known = {".".join(each.path): each for each in options(server.config)}
    if name not in known:
        near = get_close_matches(name, known, 1)
        raise click.UsageError(
            f"{name} is no setting of a {server.section}" + (f": is {near[0]} meant?" if near else "")
        )
    option = known[name]
    for text in _comment(option.path, server.config):
        click.echo(text)
    value, found = _value(said, option.path)
    shown = "not set" if not found else "(secret)" if _secret(option.path) else _toml(value)
    click.echo(f"value     {shown}")
    if said_by := wanted(option.kind):
        click.echo(f"allowed   {said_by}")
    click.echo(f"from      {where.get(option.path, 'default')}")
    click.echo(f"variable  {server.prefix}{option.variable}")


def _read(server: Server, file: str | None) -> tuple[Any, dict[tuple[str, ...], str]]:
    try:
        return server_settings(server, file)
    except ConfigError as error:
        raise BadInputError(in_lines(error)) from None


def _value(said: Any, path: tuple[str, ...]) -> tuple[Any, bool]:
    """The value at ``path``; False when it has none, as what belongs to TLS that is off."""
    value: Any = said
    for name in path:
        if not hasattr(value, name):
            return None, False
        value = getattr(value, name)
    return value, isinstance(value, (str, bool, int, float, tuple))


def _row(said: Any, where: dict[tuple[str, ...], str], server: Server, option: Option) -> dict[str, Any]:
    value, found = _value(said, option.path)
    return {
        "name": ".".join(option.path), "value": value if found and not _secret(option.path) else None,
        "from": where.get(option.path, "default"), "variable": server.prefix + option.variable,
    }  # fmt: skip


def _toml(value: Any) -> str:
    return json.dumps(value)  # JSON's texts, numbers, lists and truth values are TOML's


def _secret(path: tuple[str, ...]) -> bool:
    kinds = (*(each.config for each in SERVERS.values()), ServerTlsConfig, TlsConfig)
    return path[-1] in {each.name for kind in kinds for each in fields(kind) if not each.repr}


def _comment(path: tuple[str, ...], config: type) -> list[str]:
    """What stands above a setting in its class: the ``#:`` lines."""
    kind = config
    for name in path[:-1]:
        kind = parts_of(kind)[name]
    lines = [line.strip() for line in inspect.getsource(kind).splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith(f"{path[-1]}:"))
    first = at
    while lines[first - 1].startswith("#:"):
        first -= 1
    return [line.removeprefix("#:").strip() for line in lines[first:at]]
