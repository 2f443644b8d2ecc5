"""``aiorocket cluster``"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from aiorocket.cli.asked import asks, changes, confirmed, told
from aiorocket.cli.options import read_pairs

if TYPE_CHECKING:
    from aiorocket import Admin

__all__ = ("cluster",)

Work = Callable[["Admin"], Awaitable[int]]


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
@click.argument("values", nargs=-1, required=True, callback=read_pairs, metavar="NAME=VALUE...")
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
        return told("write permission", f"Broker {name}", [{"topics": each} for each in done], done.missing)

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


@cluster.group()
def names() -> None:
    """Name servers: their settings, and the key-values they keep (KV configuration)."""


@names.command("config")
@click.argument("nameserver", required=False)
@asks
def names_config(nameserver: str | None) -> Work:
    """The settings of NAMESERVER (HOST:PORT), or of the first that is named."""

    async def work(admin: Admin) -> int:
        values = await admin.nameservers.config(nameserver)
        return told("setting", "Name server", [{"name": k, "value": v} for k, v in sorted(values.items())])

    return work


@names.command("set")
@click.argument("values", nargs=-1, required=True, callback=read_pairs, metavar="NAME=VALUE...")
@changes
def names_set(values: dict[str, str]) -> Work:
    """Change settings of every name server while it runs."""

    async def work(admin: Admin) -> int:
        done = await admin.nameservers.set_config(values)
        return told("nameserver changed", "Changed on", [{"nameserver": each} for each in done], done.missing)

    return work


@names.command("values")
@click.argument("space", metavar="NAMESPACE")
@asks
def names_values(space: str) -> Work:
    """The key-values of NAMESPACE, such as ORDER_TOPIC_CONFIG."""

    async def work(admin: Admin) -> int:
        values = await admin.nameservers.values(space)
        return told("key value", f"Of {space}", [{"key": k, "value": v} for k, v in sorted(values.items())])

    return work


@names.command("put")
@click.argument("space", metavar="NAMESPACE")
@click.argument("key")
@click.argument("value")
@changes
def names_put(space: str, key: str, value: str) -> Work:
    """Keep VALUE under KEY of NAMESPACE on every name server."""

    async def work(admin: Admin) -> int:
        done = await admin.nameservers.put(space, key, value)
        return told("nameserver changed", "Kept on", [{"nameserver": each} for each in done], done.missing)

    return work


@names.command("delete")
@click.argument("space", metavar="NAMESPACE")
@click.argument("key")
@confirmed
@changes
def names_delete(space: str, key: str) -> Work:
    """Forget KEY of NAMESPACE on every name server."""

    async def work(admin: Admin) -> int:
        done = await admin.nameservers.delete(space, key)
        return told("nameserver changed", "Forgotten on", [{"nameserver": each} for each in done], done.missing)

    return work
