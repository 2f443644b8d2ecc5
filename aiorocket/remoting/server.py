"""Listening side: accepts, bounds, and ends connections; requests go to a ProcessorTable."""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial

from aiorocket.config import RemotingConfig
from aiorocket.errors import UsageError
from aiorocket.remoting.address import format_address, host_of, unix_path
from aiorocket.remoting.client import end_all
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.door import Door, Doors, ServerTls
from aiorocket.remoting.held_bytes import HeldBytes
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.remoting.rarely import Rarely
from aiorocket.remoting.sweeper import Sweeper
from aiorocket.runtime.env import Env
from aiorocket.runtime.open_files import most_files
from aiorocket.runtime.tasks import TaskScope
from aiorocket.runtime.turns import Turns
from aiorocket.runtime.unix_socket import unix_socket
from aiorocket_protocol import READ_SIZE

__all__ = ("RemotingServer",)

_log = logging.getLogger("aiorocket.remoting")
_BACKLOG = 1024
#: What asyncio takes of the queue in one turn of the loop is called its backlog too: a thousand held it for 0.1 s.
_ACCEPTED_AT_ONCE = 4
#: Connections that are taken leave of in one turn of the loop: about a millisecond.
_ENDED_AT_ONCE = 100
#: Connections that a listener with a mark has to itself: strangers who fill the others do not shut its own people out.
_OF_ITS_OWN = 64
#: Files that the process needs for other things than connections: segments, queues, logs.
_OTHER_FILES = 256
#: Seconds between two lines about peers that misbehave: strangers must not fill the log.
_WARN_EVERY = 10.0


class RemotingServer:
    """Listening sockets, mostly one, and their connections. ``on_connect`` and ``on_close`` are called with each
    connection, once; what the latter returns says for how many ends more this one counts in a turn.
    ``tls`` says how it speaks TLS, and whether plain text is let in too; None is plain text alone."""

    def __init__(
        self,
        env: Env,
        processors: ProcessorTable,
        config: RemotingConfig,
        on_connect: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], int | None] | None = None,
        *,
        tls: ServerTls | ssl.SSLContext | None = None,
    ) -> None:
        self.config = config
        self.processors = processors
        #: Connections turned away because of ``max_connections``.
        self.refused = 0
        self._env = env
        self._on_connect = on_connect
        self._on_close = on_close
        self._listening: list[asyncio.Server] = []
        self._shared = memoryview(b"")
        self._held: HeldBytes | None = None
        self._room = _Room(config.max_connections, config.max_per_host)
        #: Those of listeners, but those of the ones with a mark.
        self._doors = self._doors_of(self._room)
        self._all_doors = [self._doors]
        self._sweeper: Sweeper | None = None
        self._ends = Turns(_ENDED_AT_ONCE)
        self._tasks = TaskScope("remoting-server")
        self._closing = False
        self._misbehaved = Rarely(_WARN_EVERY)
        self._address = ""
        self._port = 0
        self._tls = ServerTls(tls) if isinstance(tls, ssl.SSLContext) else tls

    @property
    def port(self) -> int:
        """The port bound (also when 0 was asked for)."""
        return self._port

    @property
    def address(self) -> str:
        """``host:port`` bound."""
        return self._address

    @property
    def connections(self) -> list[Connection]:
        """The open connections, oldest first."""
        return list(self._sweeper.connections) if self._sweeper is not None else []

    def number(self, connection: Connection) -> int:
        """Of an open connection: higher than that of every one accepted before it, open or not. 0 for any other."""
        return self._sweeper.connections.get(connection, 0) if self._sweeper is not None else 0

    @property
    def oldest(self) -> int:
        """``number`` of the oldest open connection, 0 when there is none."""
        return next(iter(self._sweeper.connections.values()), 0) if self._sweeper is not None else 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one. UsageError says why it cannot be bound and what to do."""
        self._sweeper = Sweeper(asyncio.get_running_loop(), self.config)
        self._shared = memoryview(bytearray(READ_SIZE))
        self._held = HeldBytes(self.config.max_held, self._recount)
        files = most_files()
        if files - _OTHER_FILES < self._room.most:
            self._room.most = max(files - _OTHER_FILES, files // 2)
            _log.info(
                "max_connections is %d here, not %d: this process may have %d files open (ulimit -n)",
                self._room.most, self.config.max_connections, files,
            )  # fmt: skip
        server = await self.listen(host, port)
        name = server.sockets[0].getsockname()
        self._port = int(name[1])
        self._address = format_address(name)

    async def listen(self, host: str, port: int, *, mark: str | None = None) -> asyncio.Server:
        """Accept on one more address, once started; ``unix:PATH`` as host is a unix socket, for this user only, without
        TLS. The ``data`` of connections that come this way has ``mark``; with one they do not count among the others.
        UsageError as of ``start``."""
        loop = asyncio.get_running_loop()
        room, doors = self._room, self._doors
        if mark is not None:
            room = _Room(_OF_ITS_OWN, _OF_ITS_OWN)
            doors = self._doors_of(room)
            self._all_doors.append(doors)

        def connection() -> Connection:
            made = Connection(
                loop,
                self.config,
                self.processors.dispatch,
                self._tasks,
                is_client=False,
                shared=self._shared,
                on_made=partial(self._made, room),
                on_lost=partial(self._lost, room),
                held=self._held,
                in_turn=self._ends.soon,
            )
            made.plain = self.processors.plain
            if mark is not None:
                made.data[mark] = True
            return made

        factory: Callable[[], asyncio.BaseProtocol] = connection
        path = unix_path(host)
        if self._tls is not None and path is None:
            factory = partial(Door, self._tls, connection, self._tasks, doors, self.config.handshake_timeout)
        try:
            if path is not None:
                server = await loop.create_unix_server(factory, sock=unix_socket(path), backlog=_ACCEPTED_AT_ONCE)
            else:
                server = await loop.create_server(factory, host, port, backlog=_ACCEPTED_AT_ONCE)
        except OSError as error:
            raise UsageError(_why_not_bound(host, port, error)) from error
        for listening in server.sockets:
            if hasattr(listening, "dup"):  # a simulated one has no queue
                with listening.dup() as same:
                    same.listen(_BACKLOG)
        self._listening.append(server)
        return server

    def _doors_of(self, room: _Room) -> Doors:
        return Doors(partial(self._comes, room), room.leave)

    def _comes(self, room: _Room, peer: str) -> bool:
        if not self._closing and room.enter(peer):
            return True
        self.refused += 1
        if self.refused == 1 or self.refused % 1000 == 0:
            _log.warning(
                "connection from %s refused: %d are open (max_connections=%d), %d from there (max_per_host=%d), "
                "%d refused so far",
                peer, room.open, room.most, room.per_host[host_of(peer)], room.most_per_host, self.refused,
            )  # fmt: skip
        return False

    def _made(self, room: _Room, connection: Connection) -> None:
        if self._sweeper is None or not self._comes(room, connection.peer):
            connection.data["refused"] = True
            connection.abort("too many connections")
            return
        self._sweeper.add(connection)
        if self._on_connect is not None:
            self._on_connect(connection)

    def _lost(self, room: _Room, connection: Connection) -> int | None:
        if connection.data.get("refused"):
            return None
        room.leave(connection.peer)
        if self._sweeper is not None:
            self._sweeper.discard(connection)
        if connection.misbehaved:
            self._warn(connection.close_reason)
        return None if self._on_close is None else self._on_close(connection)

    def _recount(self) -> None:
        for connection in self.connections:
            connection.recount()

    def _warn(self, reason: str) -> None:
        unsaid = self._misbehaved.unsaid(None, asyncio.get_running_loop().time())
        if unsaid is not None:
            more = f" ({unsaid} more connections since the last such line)" if unsaid else ""
            _log.warning("closed: %s%s", reason, more)

    def stop_listening(self) -> None:
        """Let nobody in any more: for good, until ``close`` ends the rest."""
        self._closing = True
        for server in self._listening:
            server.close()

    def stop_reading(self) -> None:
        """Let nobody in any more and begin no more requests: for good, until ``close`` ends the rest."""
        self.stop_listening()
        for doors in self._all_doors:
            doors.close()
        for connection in self.connections:
            connection.stop_reading()

    async def close(self, grace: float = 0.5) -> None:
        """Stop listening and reading; requests in flight have ``grace`` seconds to be answered, then everything ends.

        Whoever parks requests (long polls) should answer them between ``stop_reading`` and this, else they use the
        grace up.
        """
        self.stop_reading()
        listening, self._listening = self._listening, []
        open_connections = self.connections
        try:
            async with asyncio.timeout(grace):
                for connection in open_connections:
                    await connection.wait_answered()
        except TimeoutError:
            pass  # they had their time
        await self._tasks.close()
        for connection in open_connections:
            connection.close("the server is shutting down")
        await end_all(open_connections, max(grace, 0.05))
        self.processors.plain = None  # compiled: the collector does not see that it holds what holds it
        if self._sweeper is not None:
            self._sweeper.close()
        for server in listening:
            await server.wait_closed()


class _Room:
    """Connections and doors, in all and by host, of which there may be so many."""

    __slots__ = ("most", "most_per_host", "open", "per_host")

    def __init__(self, most: int, most_per_host: int) -> None:
        self.most = most
        self.most_per_host = most_per_host
        self.open = 0
        self.per_host: Counter[str] = Counter()

    def enter(self, peer: str) -> bool:
        """Whether there is room for one more from ``peer``, who is counted then until ``leave``."""
        host = host_of(peer)
        if self.open >= self.most or self.per_host[host] >= self.most_per_host:
            return False
        self.open += 1
        self.per_host[host] += 1
        return True

    def leave(self, peer: str) -> None:
        host = host_of(peer)
        self.open -= 1
        self.per_host[host] -= 1
        if not self.per_host[host]:
            del self.per_host[host]


def _why_not_bound(host: str, port: int, error: OSError) -> str:
    if (path := unix_path(host)) is not None:
        in_use = "another server listens there" if error.errno == errno.EADDRINUSE else error.strerror or error
        return f"cannot listen on the unix socket {path}: {in_use}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use: another process listens there (perhaps this server, started twice); "
            "stop it or choose another port (0 takes a free one)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: bind to one that is, or to 0.0.0.0 for all of them"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission to listen on port {port} of {host}: choose a port above 1023"
    return f"cannot listen on {host}:{port}: {error.strerror or error} (errno {error.errno})"
