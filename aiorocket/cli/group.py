"""``aiorocket group``"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from aiorocket.cli.asked import asks, changes, confirmed, told
from aiorocket.cli.show import visible

if TYPE_CHECKING:
    from aiorocket import Admin

__all__ = ("group",)

Work = Callable[["Admin"], Awaitable[int]]


@click.group()
def group() -> None:
    """List, create, change, delete and look at consumer groups."""


@group.command("list")
@asks
def list_() -> Work:
    """Every group on every broker."""

    async def work(admin: Admin) -> int:
        rows = await admin.groups.all()
        return told("group", "Groups", rows, rows.missing)

    return work


@group.command()
@click.argument("name")
@click.option("--retries", type=click.IntRange(0), default=16, show_default=True, help="Of a failed message, at most.")
@click.option("--disabled", is_flag=True, help="Nobody may consume.")
@changes
def create(name: str, retries: int, disabled: bool) -> Work:
    """Create group NAME on every broker, or change it."""

    async def work(admin: Admin) -> int:
        rows = await admin.groups.create(name, retries=retries, enabled=not disabled)
        return told("group", f"Group {name}", rows, rows.missing)

    return work


@group.command()
@click.argument("name")
@click.option("--retries", type=click.IntRange(0), help="Of a failed message, at most.")
@click.option("--enabled/--disabled", default=None, help="May its members consume?")
@click.option("--broadcasting/--clustering", default=None, help="May its members broadcast?")
@changes
def update(name: str, **given: Any) -> Work:
    """Change what is given of group NAME, and nothing else."""

    async def work(admin: Admin) -> int:
        rows = await admin.groups.update(name, **given)
        return told("group", f"Group {name}", rows, rows.missing)

    return work


@group.command()
@click.argument("name")
@confirmed
@changes
def delete(name: str) -> Work:
    """Delete group NAME, and how far it is."""

    async def work(admin: Admin) -> int:
        gone = await admin.groups.delete(name)
        return told("deleted", f"Group {name} is gone from", [{"broker": each} for each in gone], gone.missing)

    return work


@group.command()
@click.argument("name")
@click.argument("topic", required=False)
@asks
def lag(name: str, topic: str | None) -> Work:
    """How far group NAME is in each queue, of TOPIC or of all."""

    async def work(admin: Admin) -> int:
        rows = await admin.groups.lag(name, topic)
        if not any(each.offset for each in rows):
            await admin.groups.check(name)
        title = f"Group {name}, {sum(each.lag for each in rows)} messages wait"
        if not rows:
            title = f"Offsets of group {name}, which has committed none (members that broadcast keep theirs)"
        return told("lag", title, rows, rows.missing)

    return work


@group.command()
@click.argument("name")
@asks
def members(name: str) -> Work:
    """Who is online in group NAME, and what they subscribe to."""

    async def work(admin: Admin) -> int:
        known = await admin.groups.members(name)
        wants = "; ".join(f"{each.topic} {each.expression}" for each in known.subscriptions)
        title = f"Members of {name} ({wants or 'nobody is online'})"
        return told("member", title, known.members, known.missing)

    return work


@group.command()
@click.argument("name")
@click.argument("client_id")
@click.option("--stacks", is_flag=True, help="What it hangs on.")
@asks
def info(name: str, client_id: str, stacks: bool) -> Work:
    """What one member of group NAME says of itself."""
    as_json = click.get_current_context().params["as_json"]

    async def work(admin: Admin) -> int:
        said = await admin.groups.running_info(name, client_id, stacks=stacks)
        rows: list[dict[str, Any]] = [{"of": "setting", "name": k, "value": v} for k, v in said.properties.items()]
        rows += [
            {"of": "queue", "name": f"{topic} {broker} {queue}", "value": row}
            for (topic, broker, queue), row in said.queues.items()
        ]
        rows += [{"of": "topic", "name": name, "value": row} for name, row in said.topics.items()]
        if said.stacks and as_json:
            rows.append({"of": "stacks", "name": client_id, "value": said.stacks})
        code = told("running info", f"Member {client_id}", rows)
        if said.stacks and not as_json:
            click.echo("\n" + "\n".join(map(visible, said.stacks.splitlines())))
        return code

    return work


@group.command()
@click.argument("name")
@click.argument("topic")
@click.argument("way", metavar="PULL|POP", type=click.Choice(["PULL", "POP"], case_sensitive=False))
@click.option("--share", type=click.IntRange(0), default=0, help="So many more members pop each queue; 0 is all.")
@changes
def mode(name: str, topic: str, way: Any, share: int) -> Work:
    """Have the members of group NAME that let brokers divide the queues pull or pop TOPIC."""

    async def work(admin: Admin) -> int:
        done = await admin.pops.set_mode(name, topic, way.upper(), share=share)
        return told("mode", f"Group {name} has {way.upper()} for {topic} on", [{"broker": each} for each in done],
                    done.missing)  # fmt: skip

    return work


@group.command()
@click.argument("name", required=False)
@asks
def popped(name: str | None) -> Work:
    """What members of group NAME, or of all, popped and have not acknowledged."""

    async def work(admin: Admin) -> int:
        rows = await admin.pops.checkpoints(name)
        return told("checkpoint", "Popped and not acknowledged", rows, rows.missing)

    return work
