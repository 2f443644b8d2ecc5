"""``aiorocket dlq list|show|replay``"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

import aiorocket
from aiorocket.cli.asked import interruptible
from aiorocket.cli.conditions import condition, every
from aiorocket.cli.counts import counted
from aiorocket.cli.options import broker_option, client_options
from aiorocket.cli.running import run
from aiorocket.cli.show import Row, body_for_reader, fitting_table, say_json, visible, when
from aiorocket.cli.terminal import INTERRUPTED

if TYPE_CHECKING:
    from aiorocket import DeadMessage, ReplayOutcome, ReplayReport
    from aiorocket.config import ClientConfig

__all__ = ("dlq",)

F = TypeVar("F", bound=Callable[..., Any])
Where = Callable[["DeadMessage"], bool]

_SHOWN = 5
_COLUMNS = ("message id", "given up", "from topic", "tag", "keys", "failed", "bytes", "replayed", "why")


def _read_conditions(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> Where | None:
    try:
        return every([condition(value) for value in values])
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _selection(function: F) -> F:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON object a line."),
        click.option("--limit", type=click.IntRange(1), metavar="N", help="N messages at most."),
        click.option(
            "--where", metavar="CONDITION", multiple=True, callback=_read_conditions,
            help="Only messages with: tag=T, keys=K, topic=T, id=I, property.NAME=V, body~TEXT, reconsume_times>=N; "
            "= != ~ (contains), for numbers < <= > >= too. Given more than once, all must hold.",
        ),
        broker_option,
        client_options,
    ):  # fmt: skip
        function = option(function)
    return function


@click.group()
def dlq() -> None:
    """List, show and replay the messages a consumer group gave up.

    Looking joins no group and moves no offset. Nothing removes a dead letter.
    """


@dlq.command("list")
@click.argument("group")
@_selection
def list_(
    group: str, config: ClientConfig, brokers: tuple[str, ...], where: Where | None, limit: int | None, as_json: bool
) -> None:
    """List the dead letters of GROUP, the oldest first."""
    sys.exit(run(interruptible(_list(group, config, brokers, where, limit, as_json))))


@dlq.command()
@click.argument("group")
@click.argument("message_id")
@client_options
@broker_option
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def show(group: str, message_id: str, config: ClientConfig, brokers: tuple[str, ...], as_json: bool) -> None:
    """Show one dead letter of GROUP with its properties and its body."""
    sys.exit(run(interruptible(_show(group, message_id, config, brokers, as_json))))


@dlq.command()
@click.argument("group")
@_selection
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="At most N messages a second.")
@click.option(
    "--to", metavar="TOPIC", help="Another topic than theirs, made if it is new; %RETRY%GROUP reaches only the group."
)
@click.option("--dry-run", is_flag=True, help="Send nothing, say what would be sent.")
def replay(
    group: str,
    config: ClientConfig,
    brokers: tuple[str, ...],
    where: Where | None,
    limit: int | None,
    as_json: bool,
    rate: float | None,
    to: str | None,
    dry_run: bool,
) -> None:
    """Send the dead letters of GROUP to the topics they came from, each one once.

    Every group that subscribes to such a topic gets them. They stay dead letters too, marked as replayed: the next
    replay passes over them, also when this one is interrupted. It exits with 0 only when all were sent.
    """
    sys.exit(run(_replay(group, config, brokers, where, limit, as_json, rate, to, dry_run)))


async def _list(
    group: str, config: ClientConfig, brokers: tuple[str, ...], where: Where | None, limit: int | None, as_json: bool
) -> int:
    rows: list[Row] = []
    found = 0
    async with aiorocket.Admin(config=config, brokers=brokers) as admin:
        async for message in admin.dlq(group).messages(where=where, limit=limit):
            found += 1
            if as_json:
                say_json(_as_dict(message))
            else:
                rows.append(_row(message))
        if not found:
            await admin.groups.check(group)
    if rows:
        fitting_table(f"Dead letters of group {group}", _COLUMNS, rows)
    click.echo(f"{counted(found, 'dead letter')} of group {group}", err=as_json)
    return 0


async def _show(group: str, message_id: str, config: ClientConfig, brokers: tuple[str, ...], as_json: bool) -> int:
    async with aiorocket.Admin(config=config, brokers=brokers) as admin:
        message = await admin.dlq(group).show(message_id)
    if message is None:
        click.echo(f"Error: no dead letter of group {group} has the id {message_id}", err=True)
        return 1
    if as_json:
        say_json(_as_dict(message))
        return 0
    rows: list[Row] = [
        (name, ", ".join(value) if isinstance(value, list) else str(value))
        for name, value in _as_dict(message).items()
        if not isinstance(value, dict) and not name.startswith("body")
    ]
    rows += [(f"property {name}", value) for name, value in sorted(message.properties.items())]
    fitting_table(f"Dead letter of group {group}", ("", ""), rows)
    click.echo()
    sys.stdout.flush()
    sys.stdout.buffer.write(body_for_reader(message.body_or_raw) + b"\n")
    sys.stdout.buffer.flush()
    return 0


async def _replay(
    group: str,
    config: ClientConfig,
    brokers: tuple[str, ...],
    where: Where | None,
    limit: int | None,
    as_json: bool,
    rate: float | None,
    to: str | None,
    dry_run: bool,
) -> int:
    from aiorocket.cli.stopping import until_stopped

    outcomes: dict[str, int] = {}

    def tell(outcome: ReplayOutcome) -> None:
        outcomes[outcome.status] = outcomes.get(outcome.status, 0) + 1
        if as_json:
            message = outcome.message
            line = {
                "msg_id": message.msg_id, "replay_id": message.replay_id, "broker": message.queue.broker_name,
                "queue": message.queue.queue_id, "offset": message.queue_offset, "topic": outcome.topic,
                "status": outcome.status, "error": outcome.error,
            }  # fmt: skip
            say_json(line)

    async with aiorocket.Admin(config=config, brokers=brokers) as admin:
        letters = admin.dlq(group)
        work = await until_stopped(
            letters.replay(
                where=where, limit=limit, rate=rate, to=to, dry_run=dry_run, confirm=not dry_run, on_outcome=tell
            )
        )
        if not outcomes and not work.cancelled():
            await admin.groups.check(group)
    if work.cancelled():
        done = counted(outcomes.get("sent", 0), "dead letter")
        click.echo(f"interrupted after {done} of group {group}; the next replay goes on behind them", err=True)
        return INTERRUPTED
    return _summary(group, work.result(), as_json)


def _summary(group: str, report: ReplayReport, as_json: bool) -> int:
    before = f", {report.skipped} replayed before" if report.skipped else ""
    if report.dry_run:
        click.echo(f"{counted(report.selected, 'dead letter')} of group {group} would be sent{before}", err=as_json)
        return 0
    click.echo(f"{counted(report.sent, 'dead letter')} of group {group} sent{before}", err=as_json)
    if report.failed:
        click.echo(f"{report.failed} not sent:", err=True)
        for failure in report.failures[:_SHOWN]:
            click.echo(visible(f"  message {failure.message.msg_id}: {failure.error}"), err=True)
        if report.failed > _SHOWN:
            click.echo(f"  and {report.failed - _SHOWN} more like these", err=True)
    if report.stopped:
        click.echo(visible(f"Error: it ended early: {report.stopped}"), err=True)
    return 1 if report.failed or report.stopped else 0


def _row(message: DeadMessage) -> Row:
    return (
        message.msg_id,
        when(message.store_timestamp),
        message.origin_topic,
        message.tag,
        " ".join(message.keys),
        str(message.reconsume_times),
        str(len(message.body_or_raw)),
        "yes" if message.replayed else "",
        ": ".join(filter(None, (message.error, message.reason))),
    )


def _as_dict(message: DeadMessage) -> dict[str, Any]:
    return {
        "msg_id": message.msg_id,
        "replay_id": message.replay_id,
        "origin_topic": message.origin_topic,
        "origin_msg_id": message.origin_msg_id,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "tag": message.tag,
        "keys": message.keys,
        "reconsume_times": message.reconsume_times,
        "error": message.error,
        "reason": message.reason,
        "host": message.host,
        "born_ms": message.born_timestamp,
        "given_up_ms": message.store_timestamp,
        "replayed": message.replayed,
        "properties": message.properties,
        **message.body_row(),
    }
