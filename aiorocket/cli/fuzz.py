"""``aiorocket fuzz``"""

from __future__ import annotations

import sys
from typing import Any

import click
from click.core import ParameterSource

from aiorocket.cli.options import BadInputError, parse_nameservers

__all__ = ("fuzz",)


def _server(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        (server,) = parse_nameservers(value)
    except ValueError as error:
        raise click.BadParameter(f"one HOST:PORT is needed: {error}") from None
    return server


def _codes(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        return tuple(int(code) for code in value.split(",") if code.strip())
    except ValueError:
        raise click.BadParameter(f"{value!r} is not numbers with commas between them") from None


def _owned(servers: tuple[str | None, ...], owned: bool) -> None:
    from aiorocket.remoting.address import is_loopback

    for server in servers:
        if server is not None and not owned and not is_loopback(server.rpartition(":")[0]):
            raise click.UsageError(
                f"{server} is not this machine. Fuzzing deletes topics and users, fills disks and ends servers "
                "that have defects: give --i-own-this-host if it is yours"
            )


class _WithServer(click.Group):
    """``fuzz HOST:PORT`` is ``fuzz run HOST:PORT``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


#: Options that only a comparison has, and that only a run at one server has.
_COMPARED = ("state", "known")
_ALONE = ("pid", "growth", "json_only", "out")

_OWN = click.option("--i-own-this-host", "owned", is_flag=True, help="Servers that are not on this machine.")
_PATIENCE = click.option(
    "--patience", type=click.FloatRange(0.1), default=10.0, show_default=True, metavar="S",
    help="Seconds in which a request must be answered.",
)  # fmt: skip
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


@click.group(cls=_WithServer, no_args_is_help=True, subcommand_metavar="HOST:PORT [OPTIONS] | replay FILE")
def fuzz() -> None:
    """Send a server what it should not get, and watch it.

    `aiorocket fuzz HOST:PORT --help` has the options. It exits with 0 when nothing was found, with 1 and a file for
    each finding when something was.
    """


@fuzz.command(hidden=True)
@click.argument("server", metavar="HOST:PORT", callback=_server)
@click.option("--against", metavar="HOST:PORT", callback=_server, help="Say the same to this server, and compare.")
@click.option("--state", type=click.Path(dir_okay=False), metavar="FILE",
              help="With --against: keep there what was found, and go on from it.")  # fmt: skip
@click.option("--known", type=click.File("r", encoding="utf-8"), metavar="FILE", help="TOML: differences on purpose.")
@click.option("--frames", type=click.IntRange(1), default=100_000, show_default=True, help="Requests in all.")
@click.option("--seconds", type=click.FloatRange(0.1), default=None, help="Ask nothing more after this.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed sends other requests.")
@click.option("--connections", type=click.IntRange(1, 1000), default=16, show_default=True, help="Side by side.")
@click.option("--codes", metavar="CODE,...", default="", callback=_codes, help="These requests only.")
@click.option("--role", type=click.Choice(["broker", "nameserver"]), help="What listens there. [default: asked]")
@click.option("--pid", type=click.IntRange(1), help="The server's process, on this machine: its memory is watched.")
@click.option("--growth", type=click.FloatRange(1), default=256.0, show_default=True, metavar="MIB",
              help="What --pid may gain after a tenth of the run.")  # fmt: skip
@click.option("--json-only", is_flag=True, help="No msgpack and no ROCKETMQ headers.")
@click.option("--out", type=click.Path(file_okay=False), default=".", metavar="DIR", help="Where findings go.")
@_PATIENCE
@_OWN
@_JSON
def run(server: str, owned: bool, **options: Any) -> None:
    """Fuzz a broker or a name server.

    Requests of every code, in every codec: legal, odd but legal, broken; alone, and in the stories of clients that
    register, send, pull and acknowledge. Watched: crashes, hangs, memory, wrong answers, and a healthy client beside.
    """
    _owned((server, options["against"]), owned)
    alone = options["against"] is None
    for name in _COMPARED if alone else _ALONE:
        if click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} means nothing with{'out' * alone} --against")
    from aiorocket.cli.fuzzing import run_compared, run_fuzz

    sys.exit(run_fuzz(server, **options) if alone else run_compared(server, **options))


@fuzz.command()
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option("--server", metavar="HOST:PORT", callback=_server, help="Another than the one in the file.")
@_PATIENCE
@_OWN
def replay(file: Any, server: str | None, patience: float, owned: bool) -> None:
    """Send a finding again: 1 when it is still so, 0 when not."""
    import aiorocket
    from aiorocket.fuzz import Sample

    try:
        sample = Sample.from_text(file.read())
    except (aiorocket.ConfigError, UnicodeDecodeError) as error:
        raise BadInputError(f"{file.name}: {error}") from None
    _owned((server or sample.server,), owned)
    from aiorocket.cli.fuzzing import run_replay

    sys.exit(run_replay(sample, server or sample.server, patience))
