"""A group leaves: every broker is told so, and none has it back by a heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from aiorocket.errors import RocketError
from aiorocket.remoting.connection import Connection
from aiorocket_protocol import RemotingCommand, RequestCode, UnregisterClientRequestHeader

__all__ = ("unregister",)


async def unregister(
    header: UnregisterClientRequestHeader,
    heartbeats: Mapping[Connection, asyncio.Task[Exception | None] | None],
    timeout: float,
) -> None:
    """Tell the broker behind each connection, and wait ``timeout`` seconds for the answers. ``heartbeats`` are those
    under way, which give the error that they end with.

    Apache's brokers work heartbeats and this side by side: one under way could register the group once more, and nobody
    would read its queues until it is missed, two minutes later. So it is told when the heartbeat is answered.
    """
    waiting: list[asyncio.Future[RemotingCommand]] = []

    def tell(connection: Connection, heartbeat: asyncio.Task[Exception | None] | None = None) -> None:
        command = RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header)
        with suppress(RocketError):
            if heartbeat is None or (not heartbeat.cancelled() and heartbeat.result() is None):
                waiting.append(answer := connection.request(command, timeout))
                answer.add_done_callback(_seen)
            else:
                connection.oneway(command)  # it does not answer

    under_way = []
    for connection, heartbeat in heartbeats.items():
        if heartbeat is None or heartbeat.done():
            tell(connection)
        else:
            heartbeat.add_done_callback(partial(tell, connection))
            under_way.append(heartbeat)
    if under_way:
        await asyncio.wait(under_way)
    # A broker that does not answer forgets us by itself when the connection closes.
    await asyncio.gather(*waiting, return_exceptions=True)


def _seen(answer: asyncio.Future[RemotingCommand]) -> None:
    """Also where whoever waited for it was cancelled."""
    if not answer.cancelled():
        answer.exception()
