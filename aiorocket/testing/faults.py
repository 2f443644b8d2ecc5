"""Faults on the wire, per request code: what a server does to the next requests of a kind instead of, or around,
handling them. Works on any server of this package, simulated or real."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple, cast

from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import ProcessorTable, RequestHandler
from aiorocket.remoting.server import RemotingServer
from aiorocket_protocol import FLAG_ONEWAY, FrameSplitter, RemotingCommand, RequestCode, ResponseCode, decode

__all__ = ("WireFaults",)

#: Called with each request before it is handled.
Watcher = Callable[[Connection, RemotingCommand], None]
#: Called with each answer to a request of a code that is listened to.
Listener = Callable[[Connection, RemotingCommand, RemotingCommand], None]


class _Fault(NamedTuple):
    reply: int | None
    remark: str
    drop: bool
    lose_answer: bool
    duplicate: bool
    delay: float


class WireFaults:
    """Plans faults for a server that ``attach`` was called with; a plan outlives the server, so it holds across
    restarts."""

    def __init__(self) -> None:
        self._plans: defaultdict[int, deque[_Fault]] = defaultdict(deque)
        #: How often each planned fault has struck, by request code.
        self.struck: defaultdict[int, int] = defaultdict(int)
        self._watchers: list[Watcher] = []
        self._listeners: dict[int, Listener] = {}

    def next(
        self,
        request: str | int,
        *,
        times: int = 1,
        reply: str | int | None = None,
        remark: str = "planned by a test",
        drop: bool = False,
        lose_answer: bool = False,
        duplicate: bool = False,
        delay: float = 0.0,
    ) -> None:
        """Plan what happens to the next ``times`` requests of a kind, named by its RequestCode ("SEND_MESSAGE_V2") or
        number; several plans for one kind strike in the order they were made.

        ``reply``: answered with this ResponseCode ("SYSTEM_BUSY") or number, not handled. ``drop``: neither handled nor
        answered. ``lose_answer``: handled, the answer does not arrive. ``duplicate``: handled twice, answered once.
        ``delay``: handled that many seconds later; goes with the others. ValueError for names RocketMQ does not have.
        """
        code = _number(RequestCode, request)
        answer = None if reply is None else _number(ResponseCode, reply)
        if sum((reply is not None, drop, lose_answer, duplicate)) > 1:
            raise ValueError("reply, drop, lose_answer and duplicate exclude each other")
        fault = _Fault(answer, remark, drop, lose_answer, duplicate, delay)
        self._plans[code].extend([fault] * times)

    def clear(self) -> None:
        """Forget every plan that has not struck."""
        self._plans.clear()

    def pending(self, request: str | int) -> int:
        """How many planned faults for a kind of request have not struck yet."""
        return len(self._plans[_number(RequestCode, request)])

    def watch(self, watcher: Watcher) -> None:
        """Call ``watcher(connection, request)`` with every request from now on, before it is handled."""
        self._watchers.append(watcher)

    def listen(self, request: str | int, listener: Listener) -> None:
        """Call ``listener(connection, request, answer)`` with every answer to requests of one kind."""
        self._listeners[_number(RequestCode, request)] = listener

    def attach(self, server: RemotingServer) -> None:
        """Stand between a server that is not started yet, or has no connections yet, and its handlers."""
        server.processors = _FaultyProcessors(self, server.processors)

    def take(self, code: int) -> _Fault | None:
        plans = self._plans.get(code)
        if not plans:
            return None
        self.struck[code] += 1
        return plans.popleft()

    def seen(self, connection: Connection, request: RemotingCommand) -> None:
        for watcher in self._watchers:
            watcher(connection, request)

    def listener(self, code: int) -> Listener | None:
        return self._listeners.get(code)


class _FaultyProcessors(ProcessorTable):
    __slots__ = ("_faults", "_inner")

    def __init__(self, faults: WireFaults, inner: ProcessorTable) -> None:
        super().__init__()
        self._faults = faults
        self._inner = inner

    def add(self, code: int, handler: RequestHandler) -> None:
        self._inner.add(code, handler)

    def replace(self, code: int, handler: RequestHandler) -> None:
        self._inner.replace(code, handler)

    def codes(self) -> list[int]:
        return self._inner.codes()

    def dispatch(self, connection: Connection, request: RemotingCommand) -> None:
        self._faults.seen(connection, request)
        fault = self._faults.take(request.code)
        if fault is None:
            self._handle(connection, request)
        elif fault.delay:
            loop = asyncio.get_running_loop()
            loop.call_later(fault.delay, self._strike, fault, connection, request)
        else:
            self._strike(fault, connection, request)

    def _strike(self, fault: _Fault, connection: Connection, request: RemotingCommand) -> None:
        if fault.reply is not None:
            connection.reply(request, RemotingCommand.response(fault.reply, remark=fault.remark))
        elif fault.lose_answer:
            self._handle(connection, _unanswered(request))
        elif fault.duplicate:
            self._handle(connection, _unanswered(request))
            self._handle(connection, request)
        elif not fault.drop:
            self._handle(connection, request)

    def _handle(self, connection: Connection, request: RemotingCommand) -> None:
        listener = self._faults.listener(request.code)
        if listener is not None:
            connection = cast(Connection, _Overheard(connection, listener))
        self._inner.dispatch(connection, request)


def _unanswered(request: RemotingCommand) -> RemotingCommand:
    """The same as a one-way request: it is handled, and nothing is sent."""
    command = copy(request)
    command.flag |= FLAG_ONEWAY
    return command


class _Overheard:
    """A connection whose replies are told to a listener; everything else is the connection's own."""

    def __init__(self, connection: Connection, listener: Listener) -> None:
        self._connection = connection
        self._listener = listener

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def __eq__(self, other: object) -> bool:
        return self._connection == (other._connection if isinstance(other, _Overheard) else other)

    def __hash__(self) -> int:
        return hash(self._connection)

    def reply(
        self, request: RemotingCommand, response: RemotingCommand, pieces: Sequence[bytes] = (), head: bytes = b"",
        at_once: bool = False,
    ) -> None:  # fmt: skip
        self._connection.reply(request, response, pieces, head, at_once)
        if head:
            [frame] = FrameSplitter().feed(head + b"".join(pieces))
            response = decode(*frame)
        self._listener(self._connection, request, response)


def _number(kind: type[RequestCode] | type[ResponseCode], name: str | int) -> int:
    if isinstance(name, int):
        return int(name)
    try:
        return int(kind[name])
    except KeyError:
        raise ValueError(f"{name!r} is no {kind.__name__} of RocketMQ") from None
