"""``aiorocket message``"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from aiorocket.cli.asked import asks, changes, moment, told

if TYPE_CHECKING:
    from aiorocket import Admin

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
        async with aclosing(admin.messages.by_time(topic, since, until, limit=limit)) as found:
            return _shown(f"Messages of {topic}", [each async for each in found])

    return work


@message.command()
@click.argument("topic")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@changes
def tail(topic: str, count: int | None) -> Work:
    """Messages of TOPIC as they come, each a line or a JSON document, until Ctrl-C."""

    async def work(admin: Admin) -> int:
        left = count
        async with aclosing(admin.messages.tail(topic)) as coming:
            async for each in coming:
                _shown(f"{each.msg_id}", [each])
                left = None if left is None else left - 1
                if left == 0:
                    break
        return 0

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


def _shown(title: str, found: list[Any], missing: Any = ()) -> int:
    code = told("message", title, [_row(each) for each in found], missing)
    return code if found else 1


def _row(message: Any) -> dict[str, Any]:
    body: dict[str, str]
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    return {
        "msg_id": message.msg_id, "offset_msg_id": message.offset_msg_id, "topic": message.queue.topic,
        "broker": message.queue.broker_name, "queue": message.queue.queue_id, "offset": message.queue_offset,
        "stored_ms": message.store_timestamp, "tag": message.tag, "keys": message.keys,
        "properties": message.properties, **body,
    }  # fmt: skip
