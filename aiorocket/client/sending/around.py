"""Sends with middleware around them: each verb in its general form, inside of the steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from aiorocket.client.middleware import Step, through
from aiorocket.client.sending.outgoing import as_message
from aiorocket.client.sending.sender import Selector, Sender
from aiorocket.client.sending.timed import not_timed, send_timed
from aiorocket.errors import UsageError
from aiorocket.model import OutgoingMessage, Queue, SendReceipt

__all__ = ("around", "around_one", "send_oneway_through", "send_through")

R = TypeVar("R")


async def around(
    steps: Sequence[Step], messages: list[OutgoingMessage], last: Callable[[list[OutgoingMessage]], Awaitable[R]]
) -> R:
    """``last(messages)`` inside of ``steps``. UsageError when they change how many or whose topic it is, or nothing was
    sent."""
    count, topics = len(messages), {each.topic for each in messages}

    async def checked(messages: list[OutgoingMessage]) -> R:
        if len(messages) != count or {each.topic for each in messages} != topics:
            raise UsageError(f"a middleware gave {len(messages)} messages to call_next, {count} of topic {topics} came")
        return await last([as_message(each, None) for each in messages])

    ends = await through(steps, messages, checked)
    if not ends:
        raise UsageError("nothing was sent: a middleware returned without call_next; to refuse a send is an exception")
    return ends[-1]


async def around_one(
    steps: Sequence[Step], message: OutgoingMessage, send: Callable[[OutgoingMessage], Awaitable[SendReceipt]]
) -> SendReceipt:
    """``send(message)`` inside of ``steps``."""
    if not steps:
        return await send(message)

    async def last(messages: list[OutgoingMessage]) -> list[SendReceipt]:
        return [await send(messages[0])]

    return (await around(steps, [message], last))[0]


async def send_through(
    sender: Sender, message: OutgoingMessage, queue: Queue | None, select: Selector | None, arg: Any, deadline: float
) -> SendReceipt:
    """See ``Producer.send``."""

    async def send(message: OutgoingMessage) -> SendReceipt:
        where = await _where(sender, message, queue, select, arg, deadline)
        if message.at is not None or message.after is not None:
            return await send_timed(sender, message, where, deadline)
        return await sender.send(message, deadline, queue=where)

    return await around_one(sender.steps, message, send)


async def send_oneway_through(
    sender: Sender, message: OutgoingMessage, queue: Queue | None, select: Selector | None, arg: Any, deadline: float
) -> str:
    """See ``Producer.send_oneway``."""
    ids: list[str] = []

    async def last(messages: list[OutgoingMessage]) -> list[SendReceipt]:
        message = messages[0]
        not_timed(message, "what nobody acknowledges")
        where = await _where(sender, message, queue, select, arg, deadline)
        key = message.sharding_key if where is None else None
        async with sender.turn(message.topic, key, deadline):
            publish = await sender.admit(message.topic, deadline - asyncio.get_running_loop().time(), in_turn=True)
            encoded = sender.encode(publish, message)
            await sender.attempts.oneway(publish.target(where, key), encoded, deadline)
        ids.append(encoded.msg_id)
        return []

    await around(sender.steps, [message], last)
    return ids[-1]


async def _where(
    sender: Sender, message: OutgoingMessage, queue: Queue | None, select: Selector | None, arg: Any, deadline: float
) -> Queue | None:
    if select is None:
        return queue
    return await sender.select(message, queue, select, arg, deadline - asyncio.get_running_loop().time())
