"""``aiorocket consume``: its options. What it does is in ``consuming.py``, which is imported when it does it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from aiorocket.cli.options import client_options
from aiorocket.cli.running import run
from aiorocket.config.times import iso_time, plain_millis

if TYPE_CHECKING:
    from aiorocket.config import ClientConfig

__all__ = ("consume",)


def _read_start(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | int | None:
    """``first``, ``last``, or a moment: ISO 8601 (local time when it names no zone) or milliseconds since 1970."""
    if value is None or value in ("first", "last"):
        return value
    try:
        millis = plain_millis(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    try:
        return int(iso_time(value).timestamp() * 1000) if millis is None else millis
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{value!r} is neither first, last, a time like 2030-01-31T12:00:00 nor milliseconds since 1970"
        ) from None


@click.command()
@click.argument("topic")
@click.option("--group", required=True, help="Consumer group; it remembers how far it has come.")
@client_options
@click.option("--tag", "tags", default="*", show_default=True, help="Only these tags: 'a || b'.")
@click.option(
    "--from",
    "start",
    metavar="first|last|TIMESTAMP",
    callback=_read_start,
    help="Where a group without offsets begins: first (default), last, or a moment (ISO 8601 or ms).",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@click.option("--follow", is_flag=True, help="Go on waiting for new messages until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: body, keys, tag, queue, offset, times.")
def consume(
    topic: str,
    group: str,
    config: ClientConfig,
    tags: str,
    start: str | int | None,
    count: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC as a member of a consumer group.

    Without --follow it ends when the group has reached what was the end of the topic at its start, and has committed
    that.
    A message counts as consumed once it is printed.
    """
    from aiorocket.cli.consuming import Reader

    sys.exit(run(Reader(topic, group, tags, count, follow, as_json).run(config, start)))
