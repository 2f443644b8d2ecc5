"""One timer for the slow deadlines (idle, half a frame, not reading) of all connections of a client or server."""

from __future__ import annotations

import asyncio

from aiorocket.config import RemotingConfig
from aiorocket.remoting.connection import Connection

__all__ = ("A_TURN", "Sweeper")

#: Connections that are looked at in one turn of the loop: if all of them are cut off, some 10 ms.
A_TURN = 500


class Sweeper:
    """Holds the connections and calls ``sweep`` on each, three times within the shortest of those deadlines.

    So a peer is cut off at most a third late, and ten thousand idle connections cost no timers. (Eight sweeps within
    it cost those ten thousand 1 % of a core, nearly all of it cache misses.) No connection, no timer.
    """

    __slots__ = ("_handle", "_interval", "_left", "_loop", "_number", "connections")

    def __init__(self, loop: asyncio.AbstractEventLoop, config: RemotingConfig) -> None:
        self._loop = loop
        self._interval = min(config.idle_timeout, config.partial_frame_timeout) / 3
        self._handle: asyncio.Handle | None = None
        #: Of the sweep that is under way.
        self._left: list[Connection] = []
        self._number = 0
        # In the order they were made, the same in every run of a simulation; each has a higher number than any before.
        self.connections: dict[Connection, int] = {}

    def add(self, connection: Connection) -> None:
        self._number += 1
        self.connections[connection] = self._number
        if self._handle is None:
            self._handle = self._loop.call_later(self._interval, self._sweep)

    def discard(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        if not self.connections:
            self.close()

    def _sweep(self) -> None:
        self._left = list(self.connections)
        self._sweep_some()

    def _sweep_some(self) -> None:
        self._handle = None
        now = self._loop.time()
        some, self._left = self._left[:A_TURN], self._left[A_TURN:]
        for connection in some:
            connection.sweep(now)
        if not self.connections or self._handle is not None:
            self._left = []
        elif self._left:
            self._handle = self._loop.call_soon(self._sweep_some)
        else:
            self._handle = self._loop.call_later(self._interval, self._sweep)

    def close(self) -> None:
        self._left = []
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
