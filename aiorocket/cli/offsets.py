"""``aiorocket offsets``"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

import aiorocket
from aiorocket.cli.asked import changes, moment, told
from aiorocket.cli.running import in_lines
from aiorocket.cli.show import visible

if TYPE_CHECKING:
    from aiorocket import Admin

__all__ = ("offsets",)

Work = Callable[["Admin"], Awaitable[int]]


def _read_target(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | int | None:
    return value if value in (None, "first", "last") else moment(value)


def _read_queues(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> dict[tuple[str, int], int] | None:
    found = {}
    for value in values:
        place, _, offset = value.partition("=")
        broker, _, queue = place.rpartition(":")
        if not broker or not queue.isdecimal() or not offset.isdecimal():
            raise click.BadParameter(f"{value!r}: BROKER:QUEUE=OFFSET, such as broker-a:0=1200")
        found[broker, int(queue)] = int(offset)
    return found or None


@click.group()
def offsets() -> None:
    """Put consumer groups somewhere else."""


@offsets.command()
@click.argument("group")
@click.argument("topic")
@click.option("--to", metavar="first|last|TIME", callback=_read_target, help="The first message stored then or later.")
@click.option("--skip", type=int, metavar="N", help="N messages on in each queue; back when negative.")
@click.option("--queue", "queues", multiple=True, metavar="BROKER:QUEUE=OFFSET", callback=_read_queues)
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@changes
def reset(
    group: str, topic: str, to: Any, skip: int | None, queues: dict[tuple[str, int], int] | None, dry_run: bool
) -> Work:
    """Put GROUP elsewhere in TOPIC: plan, apply, verify. It exits with 1 when a queue is not where it should be."""
    if sum(each is not None for each in (to, skip, queues)) != 1:
        raise click.UsageError("one of --to, --skip and --queue is needed")

    async def work(admin: Admin) -> int:
        plan = await admin.offsets.plan(group, topic, queues if to is None else to, skip=skip)
        if all(each.now < 0 for each in plan.moves):  # a name that is mistyped can be put somewhere, too
            try:
                await admin.groups.check(group)
            except aiorocket.RocketError as error:
                click.echo(f"Note: {in_lines(error)}", err=True)
        title = f"Group {group} in {topic}: {plan.again} messages come again, {plan.skipped} will not come"
        if dry_run:
            return told("offset move", f"{title}, without --dry-run", plan.moves, plan.missing)
        failed = False
        try:
            plan = await admin.offsets.apply(plan)
        except aiorocket.UsageError:
            raise  # nothing is changed
        except (aiorocket.RocketError, aiorocket.ProtocolError) as error:
            failed = True
            click.echo(f"Error: {in_lines(error)}. Part of the plan may be done; what is not follows", err=True)
        wrong = await (admin.offsets.verify(plan, within=0) if failed else admin.offsets.verify(plan))
        code = told("offset move", title, plan.moves, plan.missing)
        for each in wrong:
            text = f"Error: {each.broker} queue {each.queue} is at {each.now}, not at {each.then}"
            click.echo(visible(text), err=True)
        return 1 if wrong or failed else code

    return work


@offsets.command()
@click.argument("source")
@click.argument("target")
@click.argument("topic", required=False)
@changes
def clone(source: str, target: str, topic: str | None) -> Work:
    """Put group TARGET where group SOURCE is, in TOPIC or in all of its topics."""

    async def work(admin: Admin) -> int:
        done = await admin.offsets.clone(source, target, topic)
        return told("cloned", f"Group {target} is where {source} is", [{"broker": each} for each in done], done.missing)

    return work
