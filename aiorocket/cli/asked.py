"""What commands that ask a cluster share: their options, tables for people, one JSON document for machines."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

import aiorocket
from aiorocket.cli.options import broker_option, client_options
from aiorocket.cli.running import in_lines, run
from aiorocket.cli.show import fitting_table, say_json, visible, when
from aiorocket.cli.terminal import INTERRUPTED
from aiorocket.config.times import iso_time, plain_millis

if TYPE_CHECKING:
    from aiorocket import Admin
    from aiorocket.config import ClientConfig

__all__ = ("ENDLESS", "SCHEMA", "asks", "changes", "confirmed", "interruptible", "moment", "say_missing", "told")

F = TypeVar("F", bound=Callable[..., Any])

#: Version of the JSON document: {"schema": 1, "kind": "...", "rows": [{...}], "missing": [{"server", "why"}]}. A new
#: field in a row does not change it; a field that goes or means something else does.
SCHEMA = 1


#: In a context's ``meta``: the command goes on until it is told to stop, so that Ctrl-C is its end.
ENDLESS = "aiorocket.endless"

Command = Callable[..., "Callable[[Admin], Awaitable[int]]"]


def asks(function: Command) -> Callable[..., None]:
    """As ``changes``, with ``--watch``."""
    help_text = "Look again every S seconds until Ctrl-C, also after an error."
    return click.option("--watch", type=click.FloatRange(0.1), metavar="S", help=help_text)(changes(function))


def changes(function: Command) -> Callable[..., None]:
    """A command: ``function`` gets its own arguments and returns what to do with the Admin, which gives the exit code.
    Adds the options of a client, ``--broker`` and ``--json``."""

    @wraps(function)
    def command(
        *args: Any,
        config: ClientConfig,
        brokers: tuple[str, ...],
        as_json: bool,
        watch: float | None = None,
        **given: Any,
    ) -> None:
        work = function(*args, **given)
        context = click.get_current_context()
        context.obj = as_json
        interrupted = 0 if watch is not None or context.meta.get(ENDLESS) else INTERRUPTED
        sys.exit(run(interruptible(_work(config, brokers, work, watch), interrupted)))

    decorated: Any = command
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON document."), broker_option, client_options,
    ):  # fmt: skip
        decorated = option(decorated)
    return cast("Callable[..., None]", decorated)


async def interruptible(work: Coroutine[object, object, int], interrupted: int = INTERRUPTED) -> int:
    """The exit code of ``work``; ``interrupted`` when Ctrl-C or SIGTERM ended it, after what it does at its end."""
    from aiorocket.cli.stopping import until_stopped

    task = await until_stopped(work)
    return interrupted if task.cancelled() else task.result()


async def _work(
    config: ClientConfig, brokers: Sequence[str], work: Callable[[Admin], Awaitable[int]], watch: float | None
) -> int:
    import asyncio

    async with aiorocket.Admin(config=config, brokers=brokers) as admin:
        if watch is None:
            return await work(admin)
        worked = False
        while True:
            if sys.stdout.isatty():
                click.clear()
            try:
                await work(admin)
                worked = True
            except (aiorocket.RocketError, aiorocket.ProtocolError) as error:
                # What once worked was no bad usage: a broker that starts again is not known by its name for a while.
                if isinstance(error, aiorocket.UsageError) and not worked:
                    raise
                click.echo(f"Error: {in_lines(error)}", err=True)
            sys.stdout.flush()
            await asyncio.sleep(watch)


def told(kind: str, title: str, rows: Iterable[Any], missing: Sequence[Any] = ()) -> int:
    """Print ``rows`` (named tuples) and what is ``missing``; the exit code: 1 when something is."""
    plain = [_plain(row) for row in rows]
    if click.get_current_context().obj:
        document = {
            "schema": SCHEMA, "kind": kind, "rows": plain,
            "missing": [{"server": each.server, "why": each.why} for each in missing],
        }  # fmt: skip
        say_json(document)
    elif plain:
        columns = list(plain[0])
        cells = [tuple(_cell(name, row.get(name)) for name in columns) for row in plain]
        fitting_table(title, [name.removesuffix("_ms").replace("_", " ") for name in columns], cells)
    else:
        click.echo(f"{visible(title)}: nothing")
    return say_missing(missing)


def say_missing(missing: Sequence[Any]) -> int:
    """Name on standard error what is ``missing``; the exit code: 1 when something is."""
    for each in missing:
        click.echo(visible(f"missing: {each.server}: {each.why}"), err=True)
    return 1 if missing else 0


def _plain(row: Any) -> dict[str, Any]:
    if isinstance(row, dict):
        return row
    plain: dict[str, Any] = row._asdict()
    if hasattr(row, "lag"):
        plain["lag"] = row.lag
    return plain


def _cell(name: str, value: Any) -> str:
    if name.endswith("_ms") and isinstance(value, int):
        return when(value) if value > 0 else ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, dict):
        return " ".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def moment(text: str) -> int:
    """ISO 8601 (local time when it names no zone) or milliseconds, since 1970; click.BadParameter."""
    try:
        millis = plain_millis(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    try:
        millis = int(iso_time(text).timestamp() * 1000) if millis is None else millis
        if millis >= 0:
            return millis
    except (ValueError, OverflowError, OSError):
        pass
    raise click.BadParameter(f"{text!r} is neither a time since 1970 like 2030-01-31T12:00:00 nor milliseconds")


def confirmed(function: F) -> F:
    """``--yes``: what cannot be undone is asked about on a terminal and refused elsewhere without it."""

    def check(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
        if ctx.resilient_parsing:  # a shell completes words: nobody sees the question
            return value
        if not value and not (sys.stdin.isatty() and click.confirm("This cannot be undone. Go on?")):
            raise click.UsageError("this cannot be undone: give --yes")
        return value

    return click.option("--yes", is_flag=True, expose_value=False, callback=check, help="Do not ask.")(function)
