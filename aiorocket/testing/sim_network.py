"""The network of a SimLoop: FIFO byte streams between hosts, with latency, fragmentation, partitions, resets and
silence.

A transport behaves as uvloop's, the strictest of the real ones: writing after ``connection_lost`` raises RuntimeError.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

__all__ = ("SimNetwork", "SimProcess", "SimTransport")

_LOOPBACK = "127.0.0.1"
#: Bytes under way or unread before the sender's own buffer fills, as a kernel's socket buffers would hold.
_WINDOW = 256 * 1024
#: How long a connection attempt into silence lasts (Linux gives up after about this long).
_CONNECT_SILENCE = 127.0


class SimProcess:
    """What network and loop see of a host: whether it lives and runs. ``SimHost`` is what can be done to it."""

    #: The process that the running callback belongs to; None for the scenario's own.
    current: ClassVar[contextvars.ContextVar[SimProcess | None]] = contextvars.ContextVar("sim_process", default=None)

    def __init__(self, address: str) -> None:
        self.address = address
        self.alive = True
        #: Neither dead nor stopped.
        self.awake = True
        #: What would have run while it was stopped.
        self.missed: list[asyncio.Handle] = []


class SimNetwork:
    """Faults are switched here; addresses are those of hosts. ``latency`` is (least, most) seconds per delivery;
    ``links[source, target]`` is another one for one direction of one link."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: random.Random, note: Callable[[str], None]) -> None:
        self.loop = loop
        self.random = random
        #: Is told of every delivery.
        self.note = note
        self.latency = (0.0001, 0.002)
        self.links: dict[tuple[str, str], tuple[float, float]] = {}
        #: Largest piece in which bytes arrive; pieces of 1 byte up to this are drawn.
        self.fragment = 64 * 1024
        self.hosts: dict[str, SimProcess] = {}  # the newest of each address
        self._listening: dict[tuple[str, int], SimServer] = {}
        self._transports: dict[SimTransport, None] = {}
        self._blocked: dict[tuple[str, str], None] = {}
        self._next_port = 20_000

    # -- faults
    # ---------------------------------------------------------------------------------------------------------

    def block(self, source: str, target: str) -> None:
        """Hold everything from one address to another until ``unblock``: a half-open connection."""
        self._blocked[source, target] = None

    def unblock(self, source: str, target: str) -> None:
        self._blocked.pop((source, target), None)
        for transport in list(self._transports):
            transport.deliver_soon()

    def partition(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Hold everything between two sets of addresses, both ways."""
        for a in some:
            for b in others:
                self.block(a, b)
                self.block(b, a)

    def stall(self, a: str, b: str) -> None:
        """Hold the bytes of the connections that two addresses have now, until ``heal``."""
        for transport in self._transports:
            if (transport.local[0], transport.remote[0]) in ((a, b), (b, a)):
                transport.stalled = True

    def heal(self) -> None:
        """End every partition; what was held arrives now, as TCP would send it again."""
        for transport in list(self._transports):
            transport.stalled = False
            transport.deliver_soon()
        for source, target in list(self._blocked):
            self.unblock(source, target)

    def reset(self, a: str, b: str) -> None:
        """Break every connection between two addresses; both ends see ECONNRESET."""
        for transport in list(self._transports):
            if (transport.local[0], transport.remote[0]) in ((a, b), (b, a)):
                transport.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def host_died(self, host: SimProcess, power_cut: bool) -> None:
        for key in [key for key, server in self._listening.items() if server.host is host]:
            del self._listening[key]
        for transport in [t for t in self._transports if t.host is host]:
            self._transports.pop(transport, None)
            transport.vanish(silently=power_cut)

    # -- the loop's side
    # ------------------------------------------------------------------------------------------------

    def is_up(self, address: str) -> bool:
        host = self.hosts.get(address)
        return host is None or host.alive

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def delay(self, source: str, target: str) -> float:
        return self.random.uniform(*self.links.get((source, target), self.latency))

    def _here(self) -> str:
        host = SimProcess.current.get()
        return host.address if host is not None else _LOOPBACK

    def _resolve(self, address: str | None) -> str:
        return self._here() if address in (None, "", "0.0.0.0", "::", _LOOPBACK) else str(address)

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int) -> SimServer:
        address = self._resolve(host)
        if address != self._here():
            raise OSError(errno.EADDRNOTAVAIL, f"{address} is not an address of this host")
        if port == 0:
            port = self._free_port()
        if (address, port) in self._listening:
            raise OSError(errno.EADDRINUSE, f"address {address}:{port} in use")
        server = SimServer(self, factory, (address, port))
        self._listening[address, port] = server
        return server

    def stop_listening(self, server: SimServer) -> None:
        if self._listening.get(server.name) is server:
            del self._listening[server.name]

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        here, there = self._here(), self._resolve(host)
        await asyncio.sleep(self.delay(here, there))
        waited = 0.0
        while self.is_blocked(here, there) or self.is_blocked(there, here):
            if waited >= _CONNECT_SILENCE:
                raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
            pause = min(1.0 + waited, _CONNECT_SILENCE - waited)  # as a kernel repeats its SYN, ever more rarely
            await asyncio.sleep(pause)
            waited += pause
        server = self._listening.get((there, port))
        if server is None:
            await asyncio.sleep(self.delay(there, here))
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        ours, theirs = (here, self._free_port()), server.name
        near = SimTransport(self, ours, theirs, SimProcess.current.get(), contextvars.copy_context())
        far = SimTransport(self, theirs, ours, server.host, server.context)
        near.peer, far.peer = far, near
        far.open(server.context.run(server.factory))
        # As the real loops: connection_made has run when create_connection returns.
        protocol = factory()
        near.open(protocol)
        await near.opened
        return near, protocol

    def add(self, transport: SimTransport) -> None:
        self._transports[transport] = None

    def remove(self, transport: SimTransport) -> None:
        self._transports.pop(transport, None)


class _SimSocket:
    def __init__(self, name: tuple[str, int]) -> None:
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        return self._name


class SimServer(asyncio.AbstractServer):
    def __init__(self, network: SimNetwork, factory: Callable[[], asyncio.BaseProtocol], name: tuple[str, int]) -> None:
        self.factory = factory
        self.name = name
        self.sockets = [_SimSocket(name)]
        self.host = SimProcess.current.get()
        self.context = contextvars.copy_context()
        self._network = network

    def close(self) -> None:
        self._network.stop_listening(self)
        self.sockets = []

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    def is_serving(self) -> bool:
        return bool(self.sockets)

    async def start_serving(self) -> None:
        return None

    async def serve_forever(self) -> None:
        await self._network.loop.create_future()

    async def wait_closed(self) -> None:
        return None


class SimTransport(asyncio.Transport):
    """One end of a connection. Bytes go: write buffer -> window (under way or unread) -> the peer's protocol."""

    def __init__(
        self,
        network: SimNetwork,
        local: tuple[str, int],
        remote: tuple[str, int],
        host: SimProcess | None,
        context: contextvars.Context,
    ) -> None:
        super().__init__({"sockname": local, "peername": remote, "socket": None})
        self.local, self.remote, self.host = local, remote, host
        self.peer: SimTransport
        self._link = f"{remote}>{local}"
        self.wire: deque[bytes | None] = deque()  # under way towards this end; None is the end of the stream
        self.opened: asyncio.Future[None] = network.loop.create_future()
        self.stalled = False
        self._network = network
        self._loop = network.loop
        self._context = context
        self._protocol: Any = None
        self._buffer = bytearray()
        self._high, self._low = 64 * 1024, 16 * 1024
        self._writing_paused = False
        self._eof_wanted = self._eof_sent = False
        self._under_way = 0  # bytes in the window towards the peer
        self._last_arrival = 0.0
        self._arrived: deque[bytes | None] = deque()
        self._reading_paused = False
        self._delivering = False
        self._closing = False
        self._lost = False

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._network.add(self)
        self._loop.call_soon(self._made, context=self._context)

    def _made(self) -> None:
        self._protocol.connection_made(self)
        if not self.opened.done():
            self.opened.set_result(None)
        self.deliver_soon()

    # -- asyncio.Transport
    # ----------------------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def _check_alive(self) -> None:
        if self._lost:
            raise RuntimeError(f"unable to perform operation on {self!r}; the handler is closed")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._check_alive()
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def write(self, data: Any) -> None:
        self._check_alive()
        if self._closing or not data:
            return
        if self._eof_wanted:
            raise RuntimeError("cannot write after write_eof()")
        self._buffer += data
        self._pump()
        if len(self._buffer) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._check_alive()
        self._eof_wanted = True
        self._pump()

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._lost:
            return
        self._reading_paused = False
        self.deliver_soon()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._eof_wanted = True
        self._arrived.clear()
        self._pump()

    def abort(self) -> None:
        if self._lost:
            return
        self._buffer.clear()
        self._send_reset()
        self.lose(None)

    # -- the wire
    # -------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Move bytes from the buffer into the window, in pieces of drawn size that arrive in order at drawn times."""
        draw = self._network.random
        while self._buffer and self._under_way < _WINDOW:
            size = min(len(self._buffer), _WINDOW - self._under_way, self._network.fragment)
            if size > 1 and draw.random() < 0.25:
                size = draw.randrange(1, size)
            piece = bytes(self._buffer[:size])
            del self._buffer[:size]
            self._under_way += size
            self._send(piece)
        if self._writing_paused and len(self._buffer) <= self._low and not self._closing:
            self._writing_paused = False
            self._loop.call_soon(self._resume_writing, context=self._context)
        if self._eof_wanted and not self._buffer and not self._eof_sent:
            self._eof_sent = True
            self._send(None)
            if self._closing:
                self.lose(None)

    def _resume_writing(self) -> None:
        if not self._lost:
            self._protocol.resume_writing()

    def _delay(self) -> float:
        return self._network.delay(self.local[0], self.remote[0])

    def _send(self, piece: bytes | None) -> None:
        self._last_arrival = max(self._last_arrival, self._loop.time() + self._delay())
        # The piece travels in a queue, not in the timer: timers of one instant fire in any order, a stream keeps its
        # own.
        self.peer.wire.append(piece)
        self._loop.call_at(self._last_arrival, self.peer.arrive, context=contextvars.Context())

    def _send_reset(self) -> None:
        when = max(self._last_arrival, self._loop.time() + self._delay())
        self._loop.call_at(when, self.peer.arrive_reset, context=contextvars.Context())

    def arrive(self) -> None:
        piece = self.wire.popleft()
        if self.host is not None and not self.host.alive:
            if self._network.is_up(self.local[0]):
                self._send_reset()  # the machine is back and knows nothing of this connection
            return
        self._arrived.append(piece)
        self.deliver_soon()

    def arrive_reset(self) -> None:
        dead = self.host is not None and not self.host.alive
        if dead or self.stalled or self._network.is_blocked(self.remote[0], self.local[0]):
            return
        self.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def deliver_soon(self) -> None:
        if self._arrived and not self._delivering:
            self._delivering = True
            self._loop.call_soon(self._deliver, context=self._context)

    def _deliver(self) -> None:
        """One piece per call, so that a protocol can pause in between."""
        self._delivering = False
        if not self._arrived or self.stalled or self._network.is_blocked(self.remote[0], self.local[0]):
            return
        if self._lost:
            self._arrived.clear()
            self._send_reset()  # a closed socket answers bytes with a reset
            return
        if self._reading_paused or self._closing:
            if self._closing:
                self._arrived.clear()
            return
        piece = self._arrived.popleft()
        if piece is None:
            if not self._protocol.eof_received():
                self.close()
            return
        self._network.note(f"{self._link} {len(piece)}")
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            view = memoryview(piece)
            while view and not self._closing:
                space = memoryview(self._protocol.get_buffer(len(view)))
                if not len(space):
                    raise RuntimeError("get_buffer() returned an empty buffer")
                count = min(len(space), len(view))
                space[:count] = view[:count]
                self._protocol.buffer_updated(count)
                view = view[count:]
        else:
            self._protocol.data_received(piece)
        self.peer.taken(len(piece))
        self.deliver_soon()

    def taken(self, size: int) -> None:
        """The peer's protocol has read ``size`` bytes."""
        self._under_way -= size
        if not self._lost:
            self._pump()

    def lose(self, error: Exception | None) -> None:
        """The end of this side: connection_lost follows in the next turn."""
        if self._lost:
            return
        self._closing = True
        self._loop.call_soon(self._finish, error, context=self._context)

    def _finish(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._buffer.clear()
        self._network.remove(self)
        self._protocol.connection_lost(error)

    def vanish(self, *, silently: bool) -> None:
        """The host is gone: nothing is told to this side, and the peer learns of it only if the kernel survived."""
        self._lost = self._closing = True
        if not silently:
            self._send_reset()
