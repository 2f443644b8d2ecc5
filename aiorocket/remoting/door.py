"""The first bytes of a connection to a server with TLS: a handshake, or plain text where that is allowed too.

A handshake begins with the byte 0x16, as no frame of RocketMQ does: its first byte is of a length below 16 MiB.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, cast

from aiorocket.config import ServerTlsConfig
from aiorocket.remoting.address import format_address
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.rarely import Rarely
from aiorocket.remoting.tls import first_certificate, server_context, untimely
from aiorocket.runtime.tasks import TaskScope
from aiorocket.runtime.turns import Turns

__all__ = ("Door", "Doors", "ServerTls", "tls_files")

_log = logging.getLogger("aiorocket.remoting")
_HANDSHAKE = 0x16
#: Handshakes that begin in one turn of the loop: each holds it for a quarter to a whole millisecond.
_A_TURN = 4


class ServerTls:
    """The TLS of a server: ``context`` is for the next connection, ``plain`` lets plain text in too."""

    def __init__(self, settings: ServerTlsConfig | ssl.SSLContext) -> None:
        self._settings = settings if isinstance(settings, ServerTlsConfig) else None
        self.context = settings if isinstance(settings, ssl.SSLContext) else server_context(settings)
        self.plain = self._settings is not None and self._settings.mode == "permissive"

    @property
    def files(self) -> tuple[str, ...]:
        """What ``reload`` reads."""
        return tls_files(self._settings)

    def warning(self, now_ms: int) -> str | None:
        """What is wrong with the time of the certificate, or soon will be."""
        if self._settings is None:
            return None
        said = untimely(first_certificate(self._settings.cert), now_ms)
        return None if said is None else f"the certificate {self._settings.cert!r} {said}"

    def reload(self) -> None:
        """Read the files again; from now on what they say. ConfigError, and nothing changes, when they cannot be
        used."""
        if self._settings is not None:
            self.context = server_context(self._settings)


def tls_files(settings: ServerTlsConfig | ssl.SSLContext | None) -> tuple[str, ...]:
    """What is read of them."""
    if not isinstance(settings, ServerTlsConfig):
        return ()
    return tuple(path for path in (settings.cert, settings.key, settings.client_ca) if path is not None)


class Door(asyncio.Protocol):
    """Stands where a connection comes in, until it is known what it speaks; then ``make`` gives the protocol that takes
    over. It has ``limit`` seconds to say something, and as many again for the handshake once that is its turn."""

    def __init__(
        self, tls: ServerTls, make: Callable[[], Connection], tasks: TaskScope, doors: Doors, limit: float
    ) -> None:
        self._tls = tls
        self._make = make
        self._tasks = tasks
        self._doors = doors
        self._limit = limit
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.peer = ""
        self._said = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = format_address(transport.get_extra_info("peername"))  # later uvloop may not know it any more
        if not self._doors.enter(self):
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(self._limit, self.close)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        first = not self._said
        self._said += data
        if not first:
            return
        if self._timer is not None:
            self._timer.cancel()
        if data[0] == _HANDSHAKE:
            self._transport.pause_reading()  # it may have to wait, and keeps no more than this meanwhile
            self._doors.in_turn(self._begin)
            return
        if self._tls.plain:
            self._hand_over(self._transport, data)
        else:
            self._doors.refused(self.peer, "it speaks no TLS")
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._doors.leave(self)

    def close(self) -> None:
        """Nobody comes in here any more."""
        if self._transport is not None:
            self._transport.abort()

    def _begin(self) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._tasks.start(self._shake_hands(self._transport), name="handshake")

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        inside = _Inside()
        upgrade = asyncio.ensure_future(
            loop.start_tls(
                transport, inside, self._tls.context, server_side=True, ssl_handshake_timeout=self._limit,
                ssl_shutdown_timeout=self._limit,
            )
        )  # fmt: skip
        try:
            await asyncio.sleep(0)  # now it has put its own protocol in place
            loop.call_soon(_feed, transport.get_protocol(), bytes(self._said))
            encrypted = await upgrade
        except (OSError, ssl.SSLError) as error:
            hung_up = "it hung up in the handshake: perhaps it does not trust the certificate of this server"
            self._doors.refused(self.peer, str(error) or hung_up)
            transport.abort()
            return
        finally:
            upgrade.cancel()
            self._doors.leave(self)
        if encrypted is None or inside.lost:
            transport.abort()
            return
        self._hand_over(encrypted, bytes(inside.said))

    def _hand_over(self, transport: asyncio.Transport, data: bytes) -> None:
        self._doors.leave(self)
        connection = self._make()
        transport.set_protocol(connection)
        #: Somebody whose certificate was checked: a name server takes a broker's word then.
        connection.data["certified"] = bool(transport.get_extra_info("peercert"))
        connection.connection_made(transport)
        if not connection.closed:
            _feed(connection, data)


class _Inside(asyncio.Protocol):
    """What has come through a handshake before somebody takes it."""

    def __init__(self) -> None:
        self.said = bytearray()
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.said += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Doors:
    """Those of one server. ``comes`` says whether there is room for one more from a peer, ``goes`` gives it back."""

    def __init__(self, comes: Callable[[str], bool], goes: Callable[[str], None]) -> None:
        self._comes = comes
        self._goes = goes
        self._open: set[Door] = set()
        self._turns = Turns(_A_TURN)
        self._refused = Rarely(60.0)

    def enter(self, door: Door) -> bool:
        if not self._comes(door.peer):
            return False
        self._open.add(door)
        return True

    def leave(self, door: Door) -> None:
        if door in self._open:
            self._open.remove(door)
            self._goes(door.peer)

    def in_turn(self, begin: Callable[[], None]) -> None:
        """Call it in the next turn of the loop or, behind all that came before it, in one to come."""
        self._turns.soon(begin)

    def close(self) -> None:
        for door in list(self._open):
            door.close()

    def refused(self, peer: str, why: str) -> None:
        """One line a minute."""
        unsaid = self._refused.unsaid(None, asyncio.get_running_loop().time())
        if unsaid is not None:
            more = f" ({unsaid} others were before it)" if unsaid else ""
            _log.warning("TLS connection from %s refused: %.200s%s", peer, why, more)


def _feed(protocol: Any, data: bytes) -> None:
    """As a transport does: what was read already, to the buffered protocol that takes over."""
    rest = memoryview(data)
    while rest:
        space = memoryview(protocol.get_buffer(len(rest)))
        count = min(len(space), len(rest))
        space[:count] = rest[:count]
        rest = rest[count:]
        protocol.buffer_updated(count)
