"""``aiorocket cluster``"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from aiorocket.cli.asked import asks, changes, told

if TYPE_CHECKING:
    from aiorocket import Admin

__all__ = ("cluster",)

Work = Callable[["Admin"], Awaitable[int]]


def _read_values(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equal, _ in pairs:
        if not name or not equal:
            raise click.BadParameter(f"{name!r}: NAME=VALUE")
    return {name: value for name, _, value in pairs}


@click.group()
def cluster() -> None:
    """Look at brokers, and change how they run."""


@cluster.command("list")
@asks
def list_() -> Work:
    """Every broker that is registered."""

    async def work(admin: Admin) -> int:
        return told("broker", "Brokers", await admin.brokers.all())

    return work


@cluster.command()
@click.argument("name", required=False)
@asks
def status(name: str | None) -> Work:
    """What broker NAME, or every broker, says of itself."""

    async def work(admin: Admin) -> int:
        rows = await admin.brokers.runtime(name)
        plain = [{"broker": row.name, "name": k, "value": v} for row in rows for k, v in sorted(row.values.items())]
        return told("runtime", "Brokers", plain, rows.missing)

    return work


@cluster.command()
@click.argument("name")
@asks
def config(name: str) -> Work:
    """The settings of broker NAME."""

    async def work(admin: Admin) -> int:
        values = await admin.brokers.config(name)
        return told("setting", f"Broker {name}", [{"name": k, "value": v} for k, v in sorted(values.items())])

    return work


@cluster.command("set")
@click.argument("name")
@click.argument("values", nargs=-1, required=True, callback=_read_values, metavar="NAME=VALUE...")
@changes
def set_(name: str, values: dict[str, str]) -> Work:
    """Change settings of broker NAME while it runs; they are kept over a restart."""

    async def work(admin: Admin) -> int:
        done = await admin.brokers.set_config(values, name)
        return told("changed", "Changed on", [{"broker": each} for each in done], done.missing)

    return work


@cluster.command()
@click.argument("what", type=click.Choice(["queues", "topics", "messages"]))
@changes
def clean(what: Any) -> Work:
    """Remove now what retention would remove some time."""

    async def work(admin: Admin) -> int:
        done = await admin.brokers.clean(what)
        return told("cleaned", "Cleaned", [{"broker": each} for each in done], done.missing)

    return work


@cluster.command()
@click.argument("name")
@click.argument("allowed", type=click.Choice(["on", "off"]))
@changes
def write(name: str, allowed: str) -> Work:
    """Let producers use broker NAME, or have them leave it."""

    async def work(admin: Admin) -> int:
        done = await admin.brokers.write_permission(name, allowed == "on")
        return told("changed", f"Broker {name}", [{"topics": each} for each in done], done.missing)

    return work


@cluster.command()
@click.argument("group")
@asks
def producers(group: str) -> Work:
    """Who is connected with a producer of GROUP."""

    async def work(admin: Admin) -> int:
        rows = await admin.brokers.producers(group)
        return told("producer", f"Producers of {group}", rows, rows.missing)

    return work
