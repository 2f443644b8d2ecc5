"""One socket <-> RemotingCommand, both ends of it.

The hot path of the system runs through ``buffer_updated``, ``request`` and ``reply``; what they avoid is measured: a
task per request (1.35-2x), a write per frame (2.2-3.1x), fresh read buffers (6-9x on pull answers), a timer per request
(10x a deque append). It is longer than other modules: the way of a frame should be read in one place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import call
from typing import Any, cast

from aiorocket.config import RemotingConfig
from aiorocket.errors import (
    BackPressureError,
    ConfigError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    RocketError,
)
from aiorocket.remoting.address import format_address
from aiorocket.remoting.held_bytes import HeldBytes
from aiorocket.runtime.deadlines import TimeoutQueue
from aiorocket.runtime.disk import Buffer
from aiorocket.runtime.tasks import TaskScope
from aiorocket_protocol import (
    EXT_ACCEPT,
    JSON,
    MSGPACK,
    ROCKETMQ,
    FrameSplitter,
    ProtocolError,
    RemotingCommand,
    decode,
    encode_head,
    pack_host,
)

__all__ = ("Connection", "Plain", "serialize_type_of")

#: What EXT_ACCEPT says to servers. A client answers as it is asked: what Apache's forward to it may carry another's.
_ACCEPT_MSGPACK = "msgpack"
#: From this size on a part is handed to the socket as it is; below, copying it into one buffer is cheaper.
LARGE = 4096
MAX_OPAQUE = 0x7FFF_FFFF
#: Parts after which a loop turn's write goes out early: with a window of hundreds the peer can then begin with the
#: first part of it while the rest is still being made, instead of both sides waiting for each other in turns.
BURST, BURST_BYTES = 64, 96 << 10
#: What a server works off for one connection in one loop turn, and the seconds after which it begins no more; the rest
#: waits for the next, behind everybody else's turn. Without a bound a peer that is acknowledged early refills the read
#: buffer while it is worked off: 1,664 requests of one connection in a turn of 336 ms were seen.
_TURN, _TURN_BYTES, _TURN_TIME = 64, 128 << 10, 0.01
#: A client's: what it gets are answers, a tenth of the work.
_CLIENT_TURN = 1024
_TYPES = {"auto": JSON, "json": JSON, "rocketmq": ROCKETMQ, "msgpack": MSGPACK}
_NAMES = {JSON: "JSON", ROCKETMQ: "ROCKETMQ", MSGPACK: "msgpack"}

Dispatch = Callable[["Connection", RemotingCommand], None]
Frame = tuple[int, bytes, bytes]
#: Takes off ``frames``, the next of which stands last, the plain requests; whether there were any.
Plain = Callable[["Connection", list[Frame]], bool]


def serialize_type_of(serializer: str) -> int:
    """The serialize type a connection starts with under this ``serializer`` setting."""
    return int(_TYPES[serializer])


class Connection(asyncio.BufferedProtocol):
    """Requests and answers over one socket. Made by RemotingClient and RemotingServer, used by their owners.

    ``peer`` is ``ip:port``, ``peer_host`` the same packed for a stored record; ``closed`` turns True at the first sign
    of the end and stays; ``close_reason`` then says why; ``frames`` is how many came whole, ``heard_at`` when the last
    bytes did (loop time); ``data`` is the owner's, as is ``holds``: what the peer has of limits. For one thread alone.
    """

    __slots__ = (
        "_blocked", "_ended", "_fault", "_frames_mark", "_heard", "_held", "_held_frames", "_idle", "_in_flight",
        "_in_turn", "_is_client", "_loop", "_memory", "_offers", "_on_lost", "_on_made", "_opaque", "_out",
        "_out_bytes", "_out_large", "_paused_writing", "_peer_type", "_requests", "_send_type", "_since_partial",
        "_since_quiet", "_since_stalled", "_splitter", "_stopped", "_suspect_since", "_timeouts", "_transport", "_turn",
        "_unread", "_unsent", "_upgrade", "_writable_waiters", "_write_mark", "close_reason", "closed", "config",
        "data", "dispatch", "frames", "heard_at", "holds", "local", "misbehaved", "peer", "peer_host", "plain", "tasks",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: RemotingConfig,
        dispatch: Dispatch,
        tasks: TaskScope,
        *,
        is_client: bool,
        shared: memoryview,
        on_made: Callable[[Connection], None] | None = None,
        on_lost: Callable[[Connection], int | None] | None = None,
        held: HeldBytes | None = None,
        in_turn: Callable[[Callable[[], int | None]], None] | None = None,
    ) -> None:
        self.config = config
        self.dispatch = dispatch
        self.plain: Plain | None = None
        #: Owner of tasks started for this connection (handlers that await).
        self.tasks = tasks
        self.peer = self.local = "?"
        self.peer_host = bytes(8)
        self.closed, self.close_reason = False, ""
        #: The end was the peer's fault (bytes that are no frame, half a frame, not reading): worth a line in the log.
        self.misbehaved = False
        self.data: dict[str, Any] = {}
        self.holds: dict[str, int] = {}
        self._loop = loop
        self._is_client = is_client
        self._on_made = on_made
        self._on_lost = on_lost
        self._in_turn = in_turn or call
        self._transport: asyncio.Transport | None = None
        #: What this connection holds of its server's memory: the buffer of a half frame, and what is not read.
        self._memory = held
        self._unread = self._unsent = 0
        self._splitter = FrameSplitter(shared)
        self._requests: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._timeouts: TimeoutQueue[int] = TimeoutQueue(loop, self._requests, self._expire)
        self._opaque = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._out_large = False
        self._paused_writing = False
        self._writable_waiters: list[asyncio.Future[None]] = []
        self._in_flight = 0
        #: Reading is paused; what came before is in _held_frames, and what comes still goes behind it.
        self._held = False
        self._held_frames: deque[Frame] = deque()
        #: Held until answers or the peer's reading make room, see _release(). Otherwise _go_on() is on its way.
        self._blocked = False
        self._stopped = False
        self._turn = _CLIENT_TURN if is_client else _TURN
        self._peer_type = -1
        self._send_type = serialize_type_of(config.serializer) if is_client else int(JSON)
        #: A server: may a JSON request be answered in msgpack? A client: shall its JSON requests ask for that?
        self._offers = is_client and config.serializer == "auto"
        self._upgrade = not is_client and config.serializer in ("auto", "msgpack")
        self._fault: RocketError | None = None
        self._idle: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] = loop.create_future()
        # What sweep() compares with: see there.
        self._heard = True
        self.frames, self._write_mark, self._frames_mark = 0, 0, -1
        self._since_quiet = self._since_partial = self._since_stalled = self.heard_at = self._suspect_since = 0.0

    # -- what owners call ------------------------------------------------------------------------------------

    def request(self, command: RemotingCommand, timeout: float) -> asyncio.Future[RemotingCommand]:
        """Queue a request; the future gets the answer whatever its code.

        It fails with RequestTimeoutError after ``timeout`` seconds and with ConnectionLostError when the connection
        ends first. Raises NotConnectedError (nothing was written) on a closed connection, BackPressureError when the
        peer takes nothing. A cancelled future is forgotten.
        """
        if self.closed or self._out_bytes > self.config.write_limit:
            raise self._unusable()
        command.opaque = opaque = self._opaque = (self._opaque + 1) & MAX_OPAQUE
        kind = self._send_type
        if kind == JSON and self._offers:
            command.ext = {**(command.ext or {}), EXT_ACCEPT: _ACCEPT_MSGPACK}
        head = encode_head(command, kind)
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._requests[opaque] = future
        self._timeouts.add(timeout, opaque, command.code)
        out = self._out
        if not out:
            self._loop.call_soon(self._flush)
        out.append(head)
        if body := command.body:
            out.append(body)
            if len(body) >= LARGE:
                self._out_large = True
                self._out_bytes += len(body)
        if len(out) >= BURST or self._out_bytes >= BURST_BYTES:
            self._flush()
        return future

    def oneway(self, command: RemotingCommand) -> None:
        """Queue a request that gets no answer. Raises as ``request`` does."""
        if self.closed or self._out_bytes > self.config.write_limit:
            raise self._unusable()
        self._opaque = command.opaque = (self._opaque + 1) & MAX_OPAQUE
        command.flag |= 2
        if self._send_type == JSON and self._offers:
            command.ext = {**(command.ext or {}), EXT_ACCEPT: _ACCEPT_MSGPACK}
        self.send(command)

    def reply(
        self, request: RemotingCommand, response: RemotingCommand, pieces: Sequence[bytes] = (), head: bytes = b"",
        at_once: bool = False,
    ) -> None:  # fmt: skip
        """Answer ``request``, in its own serialisation unless it asked for a better one: once, also long after the
        handler returned. Nothing is sent to a one-way request or on a closed connection. ``pieces`` are a body; what
        ``encode_head`` gives for them in ``reply_type`` may be made. ``at_once`` writes now, see ``flush``."""
        if request.flag & 2 or self.closed:
            return
        kind = request.serialize_type
        if kind == JSON and self._upgrade and request.ext_value(EXT_ACCEPT) == _ACCEPT_MSGPACK:
            kind = MSGPACK
        response.opaque = request.opaque
        response.flag |= 1
        more = sum(map(len, pieces)) if pieces else 0
        head = head or encode_head(response, kind, more)
        self._in_flight -= 1
        out = self._out
        if not out and not at_once:
            self._loop.call_soon(self._flush)
        out.append(head)
        if body := response.body:
            out.append(body)
        if (size := len(body) + more) >= LARGE:
            self._out_large = True
            self._out_bytes += size
        if more:  # asyncio since 3.12 never gets rid of an empty buffer at the end
            out += pieces
        if at_once or len(out) >= BURST or self._out_bytes > self.config.write_limit:
            self._flush()
        if self._blocked:
            self._release()

    def reply_type(self, request: RemotingCommand) -> int:
        """The serialisation ``reply`` will use for ``request``; an answer's body is encoded in the same."""
        if request.serialize_type == JSON and self._upgrade and request.ext_value(EXT_ACCEPT) == _ACCEPT_MSGPACK:
            return MSGPACK
        return request.serialize_type

    def flush(self) -> None:
        """Write now what else is written after the next turn of whoever floods."""
        self._flush()

    def stop_reading(self) -> None:
        """Read and begin nothing more (a server that shuts down); answers can still be sent."""
        if not self.closed and self._transport is not None:
            self._stopped = self._blocked = True
            self._hold()

    async def wait_answered(self) -> None:
        """After ``stop_reading``: return when no request of the peer is unanswered or the connection has ended."""
        if self._in_flight > 0 and not self.closed:
            self._idle = self._loop.create_future()
            await self._idle

    def send(self, command: RemotingCommand, serialize_type: int | None = None) -> None:
        """Queue a command as it is, in ``serialize_type`` or in what this connection uses now. Not once closed."""
        if self.closed:
            return
        out = self._out
        if not out:
            self._loop.call_soon(self._flush)
        out.append(encode_head(command, self._send_type if serialize_type is None else serialize_type))
        if body := command.body:
            out.append(body)
            if len(body) >= LARGE:
                self._out_large = True
                self._out_bytes += len(body)

    def __repr__(self) -> str:
        return f"<Connection {self.local} to {self.peer}, {f'closed: {self.close_reason}' if self.closed else 'open'}>"

    @property
    def writable(self) -> bool:
        """False while more than ``write_high_water`` bytes wait for the peer to read: ``drain()`` before you send."""
        return not self._paused_writing

    @property
    def serialize_type(self) -> int:
        """The serialisation of the next request, and of its body (negotiation may still change it)."""
        return self._send_type

    @property
    def in_flight(self) -> int:
        """Requests of the peer that are not answered yet."""
        return self._in_flight

    @property
    def pending(self) -> int:
        """Own requests that wait for an answer."""
        return len(self._requests)

    async def drain(self) -> None:
        """Wait until the write side is below high water. ConnectionLostError when the connection ends instead."""
        self._flush()
        while self._paused_writing and not self.closed:
            waiter = self._loop.create_future()
            self._writable_waiters.append(waiter)
            await waiter
        if self.closed:
            raise ConnectionLostError(f"the connection to {self.peer} is closed: {self.close_reason}")

    def close(self, reason: str) -> None:
        """Write what is queued, then close. Pending requests fail now. A second call does nothing."""
        if self.closed:
            return
        self._flush()
        self._end(reason)
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close without writing what is queued, for a peer that does not read. Works after ``close`` too."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Return when the socket is gone."""
        await asyncio.shield(self._ended)

    # -- the loop's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = format_address(transport.get_extra_info("peername"))
        self.local = format_address(transport.get_extra_info("sockname"))
        if ":" in self.peer:
            self.peer_host = pack_host(self.peer)
        self._transport.set_write_buffer_limits(high=self.config.write_high_water)
        self._since_quiet = self._since_partial = self._since_stalled = self.heard_at = self._loop.time()
        if self._on_made is not None:
            self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._splitter.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        if self.closed:
            return
        self.heard_at = self._loop.time()
        try:
            frames = self._splitter.received(nbytes)
        except ProtocolError as error:
            self._refuse(error)
            return
        memory = self._memory
        if memory is not None and self._splitter.own != self._unread:
            memory.total += self._splitter.own - self._unread
            self._unread = self._splitter.own
            if memory.total > memory.most and self._is_too_much(memory):
                return
        if frames:
            self.frames += len(frames)
            if not self._held and len(frames) <= self._turn and nbytes <= _TURN_BYTES:
                self._handle(frames)
            else:
                self._held_frames.extend(frames)
                if not self._held:  # else a loop delivers what it had already read when reading was paused
                    self._hold()
                    self._work()
        if self._splitter.error is not None and not self._held:
            self._refuse(self._splitter.error)  # the frames before the bad bytes were good and have been served

    def _handle(self, frames: list[Frame]) -> None:
        limit, high_water = self.config.max_in_flight, self.config.write_high_water
        plain, until = self.plain, self._loop.time() + _TURN_TIME
        frames.reverse()
        while frames:
            if plain is None or not plain(self, frames):
                kind, header, body = frames.pop()
                try:
                    command = decode(kind, header, body)
                except ProtocolError as error:
                    self._refuse(error)
                    return
                if kind != self._peer_type:
                    self._peer_type_changed(kind)
                if command.flag & 1:
                    future = self._requests.pop(command.opaque, None)
                    if future is not None and not future.done():
                        future.set_result(command)
                    continue
                if not command.flag & 2:
                    self._in_flight += 1
                self.dispatch(self, command)
            if self.closed:
                return
            if self._in_flight >= limit or self._paused_writing or self._out_bytes > high_water:
                if self._is_client:
                    continue
                self._flush()
                if self._in_flight >= limit or self._paused_writing:
                    self._blocked = True
                    self._hold(frames)
                    return
            if frames and not self._is_client and self._loop.time() > until:
                if not self._held:  # else _work() goes on
                    self._loop.call_soon(self._go_on)
                self._hold(frames)
                return

    def _peer_type_changed(self, kind: int) -> None:
        self._peer_type = kind
        if not self._is_client:
            self._send_type = kind
        elif self.config.serializer == "auto":
            if kind == MSGPACK:
                self._send_type = int(MSGPACK)
        elif self.config.serializer == "msgpack" and kind != MSGPACK:
            self._fault = ConfigError(
                f"serializer='msgpack' is forced, but {self.peer} answers in {_NAMES.get(kind, kind)}: "
                "use serializer='auto', which falls back to JSON"
            )
            self.close(str(self._fault))

    def _hold(self, frames: Iterable[Frame] = ()) -> None:
        """Read and begin nothing more: the rest of a turn goes on in the next, above max_in_flight answers let it."""
        self._held_frames.extendleft(frames)
        if not self._held and self._transport is not None:
            self._held = True
            self._transport.pause_reading()

    def _release(self, share: int = 2) -> None:
        """Go on when half of the bound is free and the peer reads; called after each answer while blocked."""
        if self._idle is not None and self._in_flight <= 0 and not self._idle.done():
            self._idle.set_result(None)
        if self._in_flight * share > self.config.max_in_flight or self._paused_writing or self.closed or self._stopped:
            return
        self._blocked = False
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """The next turn of a connection that is held: of what it has, else it reads again."""
        if self.closed or self._blocked or self._transport is None:
            return
        if self._held_frames:
            self._work()
        elif self._splitter.error is not None:
            self._refuse(self._splitter.error)
        else:
            self._held = False
            self._transport.resume_reading()

    def _work(self) -> None:
        """One turn's share of what is held."""
        held = self._held_frames
        frames, size = list[Frame](), 0
        while held and len(frames) < self._turn and size < _TURN_BYTES:
            frame = held.popleft()
            size += len(frame[1]) + len(frame[2])
            frames.append(frame)
        self._handle(frames)
        if not self._blocked:
            self._loop.call_soon(self._go_on)

    def _flush(self) -> None:
        """The one write of a loop turn."""
        out = self._out
        transport = self._transport
        if not out or self.closed or transport is None:
            return
        self._out = []
        self._heard = True
        if self._out_large:
            self._out_large = False
            transport.writelines(out)
        else:
            transport.write(out[0] if len(out) == 1 else b"".join(out))
        self._out_bytes = 0
        memory = self._memory
        if memory is not None and (waiting := transport.get_write_buffer_size()) > self._unsent:
            memory.total += waiting - self._unsent
            self._unsent = waiting
            if memory.total > memory.most and self._is_too_much(memory):
                return
        if self._paused_writing:
            waiting = transport.get_write_buffer_size()
            if waiting > self.config.write_limit:
                if self._is_client:
                    self._out_bytes = waiting  # request() refuses until resume_writing() says that the peer reads again
                else:
                    self.misbehaved = True
                    self.abort(f"{self.peer} does not read: {waiting} bytes, write_limit={self.config.write_limit}")

    def _is_too_much(self, memory: HeldBytes) -> bool:
        if memory.exceeded():
            self.misbehaved = True
            self.abort(
                f"{self.peer} was the last to ask for more: half frames and unread answers of all connections take "
                f"{memory.total} bytes, the limit max_held={memory.most} is lower"
            )
        return self.closed

    def recount(self) -> None:
        """Bring ``HeldBytes.total`` up to date with what the peer has read."""
        if self._memory is not None and self._transport is not None:
            waiting = self._transport.get_write_buffer_size()
            self._memory.total += waiting - self._unsent
            self._unsent = waiting

    def _unusable(self) -> RocketError:
        if self.closed:
            return NotConnectedError(f"the connection to {self.peer} is closed: {self.close_reason}")
        waits = f"{self._out_bytes} bytes, write_limit={self.config.write_limit}"
        return BackPressureError(f"{self.peer} does not read: {waits}")

    def pause_writing(self) -> None:
        self._paused_writing = True

    def resume_writing(self) -> None:
        self._paused_writing = False
        if not self._out:
            self._out_bytes = 0
        waiters, self._writable_waiters = self._writable_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._blocked:
            self._release()

    def eof_received(self) -> bool:
        self._flush()
        if self._is_client or self._transport is None or self._transport.get_extra_info("sslcontext"):
            return False
        self._in_turn(self._transport.close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        ended = "the peer closed it"
        if self._is_client and not self.frames:  # as Apache's server in TLS mode "enforcing" does on plain text
            tls = self._transport is not None and self._transport.get_extra_info("sslcontext")
            ended += f", having said nothing (does it want {'a certificate: --tls-cert' if tls else 'TLS: --tls-ca'}?)"
        self._transport = None  # nothing is written any more
        self._in_turn(lambda: self._gone(exc, ended))  # a server's: thousands may end together

    def _gone(self, exc: Exception | None, ended: str) -> int | None:
        self._end(f"{type(exc).__name__}: {exc}" if exc is not None else ended)
        if self._memory is not None:
            self._memory.total -= self._unsent
        if not self._ended.done():
            self._ended.set_result(None)
        del self._timeouts  # no cycle stays: what the collector had to free of a storm held the loop for 0.1 s
        return None if self._on_lost is None else self._on_lost(self)

    # -- endings ---------------------------------------------------------------------------------------------

    def _refuse(self, error: ProtocolError) -> None:
        """A peer whose bytes we cannot read cannot be told so in a frame it understands: close, keep the reason."""
        self.misbehaved, error.__traceback__ = not self.closed, None  # the splitter keeps it, and its frames all this
        self.close(f"malformed bytes from {self.peer}: {error}")

    def _end(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        if self._memory is not None:
            self._memory.total -= self._unread  # what is not sent stays until the transport is rid of it
        self._out = []
        self._held_frames.clear()
        self._timeouts.close()
        unanswered = list(self._requests.values())
        self._requests.clear()
        if self._is_client and self.config.serializer == "msgpack" and self._peer_type < 0:
            reason += " (serializer='msgpack' is forced, the peer never answered in it: perhaps it cannot: use 'auto')"
        fault = self._fault or ConnectionLostError(f"the connection to {self.peer} ended before the answer: {reason}")
        for future in unanswered:
            if not future.done():
                future.set_exception(type(fault)(str(fault)))
        waiters, self._writable_waiters = self._writable_waiters, []
        if self._idle is not None:
            waiters.append(self._idle)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _expire(self, future: asyncio.Future[RemotingCommand], code: int, timeout: float) -> None:
        late = f"{self.peer} did not answer request code {code} within {timeout:.3g} s"
        future.set_exception(RequestTimeoutError(late))
        if self._is_client:
            self._suspect(timeout)

    def _suspect(self, timeout: float) -> None:
        """Give the connection up when requests time out and not one byte has come for ``request_timeout`` since.

        Without this a half-open connection (the peer lost power, a firewall forgot us) would be used until it is idle.
        """
        now = self._loop.time()
        asked = now - timeout
        if self.heard_at > asked:
            return
        if self._suspect_since <= self.heard_at:
            self._suspect_since = asked
        silence = now - self._suspect_since
        if silence >= self.config.request_timeout - 0.001:
            self.abort(f"{self.peer} has been silent for {silence:.1f} s while requests waited")

    def sweep(self, now: float) -> None:
        """Close when idle, stuck within a frame, or not reading. Called every now and then by the owner's one timer."""
        if self._transport is None:
            return
        config = self.config
        stuck = f"partial_frame_timeout={config.partial_frame_timeout:g} s"
        waiting = self._transport.get_write_buffer_size()
        if not waiting or waiting != self._write_mark:
            self._write_mark = waiting
            self._since_stalled = now
        elif now - self._since_stalled >= config.partial_frame_timeout:
            self.misbehaved = True
            self.abort(f"{self.peer} has not read for {stuck}, {waiting} bytes wait")
        if self.closed:  # and what was queued before may be read still
            return
        if self._heard:
            self._heard = False
            self._since_quiet = now
        elif now - self._since_quiet >= config.idle_timeout:
            self.close(f"no traffic for idle_timeout={config.idle_timeout:g} s")
            return
        if not self._splitter.partial or self._held or self.frames != self._frames_mark:
            self._frames_mark = self.frames
            self._since_partial = now
        elif now - self._since_partial >= config.partial_frame_timeout:
            self.misbehaved = True
            self.close(f"{self.peer} began a frame and did not finish it within {stuck}")
