"""``aiorocket message``"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

import aiorocket
from aiorocket.cli.asked import ENDLESS, asks, changes, interruptible, moment, say_missing, told
from aiorocket.cli.counts import counted
from aiorocket.cli.options import BadInputError, broker_option, client_options
from aiorocket.cli.running import in_lines, run
from aiorocket.cli.show import say_json, visible, when

if TYPE_CHECKING:
    from aiorocket import Admin
    from aiorocket.config import ClientConfig

__all__ = ("message",)

Work = Callable[["Admin"], Awaitable[int]]


def _read_moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    return None if value is None else moment(value)


@click.group()
def message() -> None:
    """Look at single messages. Looking joins no group and moves no offset."""


@message.command()
@click.argument("message_id")
@click.option("--topic", help="Of a sender's id; an offset id says by itself where its message lies.")
@asks
def get(message_id: str, topic: str | None) -> Work:
    """One message by its id."""

    async def work(admin: Admin) -> int:
        if topic is not None:
            found = await admin.messages.by_unique_key(topic, message_id)
            return _shown(f"Message {message_id}", found, found.missing)
        one = await admin.messages.by_id(message_id)
        return _shown(f"Message {message_id}", [] if one is None else [one])

    return work


@message.command()
@click.argument("topic")
@click.argument("broker")
@click.argument("queue", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0))
@asks
def at(topic: str, broker: str, queue: int, offset: int) -> Work:
    """The message of TOPIC at an OFFSET of a QUEUE of a BROKER."""

    async def work(admin: Admin) -> int:
        one = await admin.messages.by_offset(topic, broker, queue, offset)
        return _shown(f"Message {offset} of queue {queue}", [] if one is None else [one])

    return work


@message.command()
@click.argument("topic")
@click.argument("key")
@asks
def key(topic: str, key: str) -> Work:
    """Messages of TOPIC with a KEY."""

    async def work(admin: Admin) -> int:
        found = await admin.messages.by_key(topic, key)
        return _shown(f"Messages of {topic} with key {key}", found, found.missing)

    return work


@message.command("list")
@click.argument("topic")
@click.option("--since", callback=_read_moment, metavar="TIME")
@click.option("--until", callback=_read_moment, metavar="TIME")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@asks
def list_(topic: str, since: int | None, until: int | None, limit: int) -> Work:
    """Messages of TOPIC by the time they were stored."""

    async def work(admin: Admin) -> int:
        missing: list[Any] = []
        async with aclosing(admin.messages.by_time(topic, since, until, limit=limit, missing=missing)) as found:
            return _shown(f"Messages of {topic}", [each async for each in found], missing)

    return work


@message.command()
@click.argument("topic")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@click.option("--tag", "tags", default="*", show_default=True, help="Only these tags: 'a || b'.")
@click.option("--sql", metavar="EXPRESSION", help="Only what matches: 'amount > 5 AND region IS NOT NULL'.")
@changes
def tail(topic: str, count: int | None, tags: str, sql: str | None) -> Work:
    """Messages of TOPIC as they come, each a line or a JSON document, until Ctrl-C."""
    context = click.get_current_context()
    as_json, context.meta[ENDLESS] = context.params["as_json"], count is None

    async def work(admin: Admin) -> int:
        left = count
        code = 0

        def on_missing(broker: Any) -> None:
            nonlocal code
            code = say_missing([broker])

        async with aclosing(admin.messages.tail(topic, tags=tags, sql=sql, on_missing=on_missing)) as coming:
            async for each in coming:
                if as_json:
                    _shown(each.msg_id, [each])
                else:
                    where = f"{each.queue.broker_name}:{each.queue.queue_id}:{each.queue_offset}"
                    words = (when(each.store_timestamp), each.msg_id, where, each.tag, *each.keys)
                    click.echo(visible("  ".join([*filter(None, words), each.body_or_raw.decode(errors="replace")])))
                sys.stdout.flush()
                left = None if left is None else left - 1
                if left == 0:
                    break
        return code

    return work


@message.command()
@click.argument("group")
@click.argument("client_id")
@click.argument("message_id")
@changes
def consume(group: str, client_id: str, message_id: str) -> Work:
    """Have a member of GROUP consume the message with this offset id now."""

    async def work(admin: Admin) -> int:
        one = await admin.messages.by_id(message_id)
        if one is None:
            click.echo(f"Error: no message has the id {message_id}", err=True)
            return 1
        result = await admin.messages.consume_directly(group, client_id, one)
        told("consumed", f"{client_id} consumed {message_id}", [result])
        return 0 if result.result == "CR_SUCCESS" else 1

    return work


@message.command()
@click.option("--newest", type=click.IntRange(1), default=10_000, show_default=True, metavar="N",
              help="Of the last N timers that each broker stored.")  # fmt: skip
@asks
def timers(newest: int) -> Work:
    """Timer messages that are not due yet, the next first."""

    async def work(admin: Admin) -> int:
        rows = await admin.timers.pending(newest=newest)
        return told("timer", "Not due yet", rows, rows.missing)

    return work


@message.command()
@click.argument("topic")
@click.option("--since", callback=_read_moment, metavar="TIME")
@click.option("--until", callback=_read_moment, metavar="TIME")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="N messages at most.")
@broker_option
@client_options
def dump(
    topic: str, since: int | None, until: int | None, limit: int | None, brokers: tuple[str, ...], config: ClientConfig
) -> None:
    """Messages of TOPIC, each a JSON object in a line of standard output, for `message load`."""

    async def work() -> int:
        missing: list[Any] = []
        async with (
            aiorocket.Admin(config=config, brokers=brokers) as admin,
            aclosing(admin.messages.by_time(topic, since, until, limit=limit, missing=missing)) as found,
        ):
            async for each in found:
                say_json(each.row())
        return say_missing(missing)

    sys.exit(run(interruptible(work())))


@message.command()
@click.argument("file", default="-", metavar="[FILE|-]")
@click.option("--topic", help="Send all of them there, not to the topics they came from.")
@client_options
def load(file: str, topic: str | None, config: ClientConfig) -> None:
    """Send what `message dump` or `dlq list --json` wrote: bodies, tags, keys and properties. New ids, offsets and
    times.

    A line that cannot be read or sent ends it, after the lines before it, and is named; each acknowledged message is
    counted.
    """

    # Of a client and a loop, which the other commands' help needs not.
    from aiorocket.cli.lines import MAX_LINE, LineSource

    source = LineSource(file, limit=8 * MAX_LINE)  # a byte has six characters in JSON at most
    source.check()

    async def work() -> int:
        sent = 0
        try:
            async with aiorocket.Client(config=config, group="aiorocket_load") as client:
                messages = aiorocket.Admin(client=client).messages
                async for line in source:
                    try:
                        read = messages.to_send(json.loads(line.body))
                    except (ValueError, RecursionError, aiorocket.UsageError) as error:
                        why = in_lines(error)
                        raise BadInputError(f"line {line.number} is none of `message dump`: {why}") from None
                    try:
                        await client.send(
                            topic or read.topic, read.body, tag=read.tag, keys=read.keys, properties=read.properties,
                            sharding_key=read.sharding_key,
                        )  # fmt: skip
                    except aiorocket.RocketError as error:
                        raise click.ClickException(f"line {line.number}: {in_lines(error)}") from error
                    sent += 1
        finally:  # also when a send failed, or somebody had enough
            click.echo(f"{counted(sent, 'message')} sent", err=True)
        return 0

    sys.exit(run(interruptible(work())))


def _shown(title: str, found: list[Any], missing: Any = ()) -> int:
    code = told("message", title, [each.row() for each in found], missing)
    return code if found else 1
