"""Requests that cost more than others should wait for: whole tables, whatever administrators look at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from aiorocket_protocol import RemotingCommand

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler

__all__ = ("OneAtATime",)

#: In a connection's data: what its own requests of this kind wait for.
_OWN = "one at a time"


class OneAtATime:
    """Of all that are asked for at once, one works in a turn of the loop, and those of one connection follow one
    another, so that nobody's hundreds are in front of another's first. Who does not read its answers gets no more."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    def begun(self, handler: RequestHandler) -> RequestHandler:
        """``handler``, one in a turn until it waits for something: a disk, a peer."""
        return self._in_line(handler, until_answered=False)

    def whole(self, handler: RequestHandler) -> RequestHandler:
        """``handler``, one until it has answered: it works in turns of the loop and waits for nobody."""
        return self._in_line(handler, until_answered=True)

    def _in_line(self, handler: RequestHandler, *, until_answered: bool) -> RequestHandler:
        async def serve(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            async with connection.data.setdefault(_OWN, asyncio.Lock()):
                await connection.drain()
                async with self._turn:
                    await asyncio.sleep(0)
                    result = handler(connection, command)
                    if until_answered and isinstance(result, Awaitable):
                        return await result
            return await result if isinstance(result, Awaitable) else result

        return serve
