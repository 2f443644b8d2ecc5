"""``aiorocket topic``"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from aiorocket.cli.asked import asks, changes, confirmed, told

if TYPE_CHECKING:
    from aiorocket import Admin

__all__ = ("topic",)

Work = Callable[["Admin"], Awaitable[int]]

_PERMISSION = click.Choice(["RW", "R", "W"])


@click.group()
def topic() -> None:
    """List, create, change, delete and look at topics."""


@topic.command("list")
@click.option("--system", is_flag=True, help="Those of brokers and groups too.")
@asks
def list_(system: bool) -> Work:
    """Every topic on every broker."""

    async def work(admin: Admin) -> int:
        rows = await admin.topics.all(system=system)
        return told("topic", "Topics", rows, rows.missing)

    return work


@topic.command()
@click.argument("name")
@click.option("--queues", type=click.IntRange(1), default=4, show_default=True, help="On each broker.")
@click.option("--permission", type=_PERMISSION, default="RW", show_default=True)
@click.option("--order", is_flag=True, help="An order topic.")
@click.option("--cluster", help="Only there.")
@changes
def create(name: str, queues: int, permission: str, order: bool, cluster: str | None) -> Work:
    """Create topic NAME on every broker, or change it."""

    async def work(admin: Admin) -> int:
        await admin.topics.create(name, queues, permission=permission, order=order, cluster=cluster)
        found = await admin.topics.all(system=True, cluster=cluster)
        return told("topic", f"Topic {name}", [each for each in found if each.topic == name], found.missing)

    return work


@topic.command()
@click.argument("name")
@click.option("--read-queues", type=click.IntRange(1))
@click.option("--write-queues", type=click.IntRange(1))
@click.option("--permission", type=_PERMISSION)
@changes
def update(name: str, **changes: Any) -> Work:
    """Change what is given of topic NAME, and nothing else."""

    async def work(admin: Admin) -> int:
        rows = await admin.topics.update(name, **changes)
        return told("topic", f"Topic {name}", rows, rows.missing)

    return work


@topic.command()
@click.argument("name")
@confirmed
@changes
def delete(name: str) -> Work:
    """Delete topic NAME with its messages."""

    async def work(admin: Admin) -> int:
        gone = await admin.topics.delete(name)
        return told("deleted", f"Topic {name} is gone from", [{"broker": each} for each in gone], gone.missing)

    return work


@topic.command()
@click.argument("name")
@asks
def status(name: str) -> Work:
    """The bounds of each queue of topic NAME."""

    async def work(admin: Admin) -> int:
        rows = await admin.topics.status(name)
        return told("queue", f"Queues of {name}", rows, rows.missing)

    return work


@topic.command()
@click.argument("name")
@asks
def route(name: str) -> Work:
    """What clients are told of topic NAME."""

    async def work(admin: Admin) -> int:
        return told("route", f"Route of {name}", await admin.topics.route(name))

    return work


@topic.command()
@click.argument("name")
@asks
def groups(name: str) -> Work:
    """The groups that subscribe to topic NAME or have consumed of it."""

    async def work(admin: Admin) -> int:
        rows = await admin.topics.groups(name)
        return told("group name", f"Groups of {name}", [{"group": each} for each in rows], rows.missing)

    return work
