"""Request code -> handler, and whatever goes wrong in a handler -> an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import cast

from aiorocket.errors import BackPressureError, RemoteError, RocketError, StoreFullError
from aiorocket.remoting.awaited import AwaitedBytes, size_of
from aiorocket.remoting.connection import Connection, Plain
from aiorocket.remoting.rarely import Rarely
from aiorocket_protocol import MAX_CONTROL_BODY, MSGPACK, ProtocolError, RemotingCommand, RequestCode, ResponseCode

__all__ = ("ProcessorTable", "RequestHandler", "error_response", "not_supported")

RequestHandler = Callable[[Connection, RemotingCommand], RemotingCommand | Awaitable[RemotingCommand | None] | None]

_log = logging.getLogger("aiorocket.remoting")

_REMARK_LIMIT = 2000
#: Seconds between two warnings of refused requests of one code; what is refused meanwhile is counted in the next.
_WARN_EVERY = 60.0
#: Answers to requests that are malformed or ask for what is not served.
_REFUSALS = frozenset(
    (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.INVALID_PARAMETER,
    )
)


def error_response(error: BaseException) -> RemotingCommand:
    """The answer that tells a peer of ``error``: code by its class, its text as remark."""
    code = int(ResponseCode.SYSTEM_ERROR)
    if isinstance(error, RemoteError):
        code = error.code
        return RemotingCommand.response(code, remark=error.remark[:_REMARK_LIMIT])
    if isinstance(error, BackPressureError):
        code = int(ResponseCode.SYSTEM_BUSY)
    elif isinstance(error, StoreFullError):
        code = int(ResponseCode.SERVICE_NOT_AVAILABLE)
    text = str(error) if isinstance(error, (RocketError, ProtocolError)) else f"{type(error).__name__}: {error}"
    return RemotingCommand.response(code, remark=text[:_REMARK_LIMIT])


class ProcessorTable:
    """A table of handlers (RocketMQ's processorTable).

    A handler is called inline with (connection, request) and returns the answer, or None when it will call
    ``connection.reply(request, answer)`` later (it must, unless the request is one-way: an unanswered one counts as in
    flight), or an awaitable of either, which costs a task and is for requests off the hot path.
    """

    __slots__ = ("_bugs", "_handlers", "_refusals", "awaited", "get", "plain")

    def __init__(self) -> None:
        self._handlers: dict[int, RequestHandler] = {}
        #: Who serves a code; None when nobody does.
        self.get = self._handlers.get
        #: By request code (None: all that are no codes).
        self._refusals = Rarely(_WARN_EVERY)
        self._bugs = Rarely(_WARN_EVERY)
        #: A shorter way around ``dispatch``, for requests that it would only hand to their handler.
        self.plain: Plain | None = None
        #: For handlers that keep a request until a peer answers.
        self.awaited = AwaitedBytes()

    def add(self, code: int, handler: RequestHandler) -> None:
        """Serve ``code``. ValueError when it is served already."""
        if int(code) in self._handlers:
            raise ValueError(f"request code {int(code)} has a handler already")
        self._handlers[int(code)] = handler

    def replace(self, code: int, handler: RequestHandler) -> None:
        """Serve ``code`` so from now on."""
        self._handlers[int(code)] = handler

    def handler(self, code: int) -> RequestHandler:
        """Who serves ``code``. KeyError when nobody does."""
        return self._handlers[code]

    def codes(self) -> list[int]:
        """The codes served, ascending."""
        return sorted(self._handlers)

    def dispatch(self, connection: Connection, request: RemotingCommand) -> None:
        """Call the handler of ``request`` and see to it that there is one answer. Raises nothing."""
        handler = self._handlers.get(request.code)
        if handler is None:
            self._answer(connection, request, not_supported(request.code))
            return
        if len(request.body) > _MOST_PACKED and self.is_too_large(connection, request):
            return
        try:
            result = handler(connection, request)
            if result is None:
                return
            if type(result) is RemotingCommand:
                self._answer(connection, request, result)
                return
        except Exception as error:  # noqa: BLE001 - a handler's failure is an answer, never the connection's end
            self._failed(connection, request, error)
            return
        self._later(connection, request, cast(Awaitable[RemotingCommand | None], result))

    def _later(
        self,
        connection: Connection,
        request: RemotingCommand,
        awaitable: Awaitable[RemotingCommand | None],
        *,
        alone: bool = False,
    ) -> None:
        """Answer ``request`` with what comes of ``awaitable``. ``alone``: what came behind it on its connection is not
        begun before that."""
        size = size_of(request)
        if (busy := self.awaited.begin(connection, size)) is not None:
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            self._answer(connection, request, RemotingCommand.response(ResponseCode.SYSTEM_BUSY, remark=busy))
            return
        task = connection.tasks.start(self._await(connection, request, awaitable), name=f"request-{request.code}")
        task.add_done_callback(lambda _: self.awaited.end(connection, size))
        if alone:
            # Here, for few need it: it counts as all that may be begun, and Connection looks at that anyway.
            connection._in_flight += (most := connection.config.max_in_flight)
            task.add_done_callback(lambda _: _next_may_begin(connection, most))

    def is_too_large(self, connection: Connection, request: RemotingCommand) -> bool:
        """Whether the body is larger than any of its code; it is answered then."""
        if len(request.body) <= _MOST_PACKED or request.code in _LARGE_BODIES or not _is_too_large(request):
            return False
        self._answer(connection, request, _too_large(request))
        return True

    async def _await(
        self, connection: Connection, request: RemotingCommand, result: Awaitable[RemotingCommand | None]
    ) -> None:
        try:
            response = await result
            if response is not None:
                self._answer(connection, request, response)
        except Exception as error:  # noqa: BLE001 - as in dispatch
            self._failed(connection, request, error)

    def _answer(self, connection: Connection, request: RemotingCommand, answer: RemotingCommand) -> None:
        connection.reply(request, answer)
        if answer.code in _REFUSALS:
            self._warn(connection, request, answer.remark or "")

    def _failed(self, connection: Connection, request: RemotingCommand, error: Exception) -> None:
        if isinstance(error, UnicodeEncodeError):  # half a surrogate pair, which JSON can escape
            error = ProtocolError(
                f"text that is not Unicode: {error.object[error.start : error.end]!r}", where="request"
            )
        now = asyncio.get_running_loop().time()
        if isinstance(error, ProtocolError) or (isinstance(error, OSError) and error.errno):  # the latter by the disk
            self._warn(connection, request, str(error))
        elif not isinstance(error, RocketError) and self._bugs.unsaid(request.code, now) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"handler of request code {request.code} from {connection.peer} failed", "exception": error}
            )
        connection.reply(request, error_response(error))

    def _warn(self, connection: Connection, request: RemotingCommand, why: str) -> None:
        """Say what was refused to whom, with the field and the value: peers often show their users neither."""
        name = _NAMES.get(request.code)
        unsaid = self._refusals.unsaid(request.code if name else None, asyncio.get_running_loop().time())
        if unsaid is None:
            return
        _log.warning(
            "refused request %d (%s) of %s: %.500s%s",
            request.code,
            name or "unknown",
            connection.peer,
            why.strip(),
            f" ({unsaid} more since the last such line)" if unsaid else "",
        )


def _next_may_begin(connection: Connection, counted: int) -> None:
    connection._in_flight -= counted
    if connection._blocked:
        connection._release(1)


#: A byte of msgpack can be an object of its own: 1 MiB of empty lists takes 165 ms, where JSON takes 50. What names one
#: thing may have no more either: under access control it is read twice in a turn.
_MOST_PACKED = MAX_CONTROL_BODY // 4
_OF_ONE = frozenset(
    (
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    )
)
#: What holds messages, whose size the broker checks, or all topics of a broker.
_LARGE_BODIES = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.REGISTER_BROKER,
    )
)

_NAMES = {code.value: code.name for code in RequestCode}


def _is_too_large(request: RemotingCommand) -> bool:
    return len(request.body) > MAX_CONTROL_BODY or request.serialize_type == MSGPACK or request.code in _OF_ONE


def _too_large(request: RemotingCommand) -> RemotingCommand:
    limit = f"MAX_CONTROL_BODY={MAX_CONTROL_BODY}"
    if request.serialize_type == MSGPACK or request.code in _OF_ONE:
        limit += f", a quarter of it for msgpack and for what names one thing ({_MOST_PACKED})"
    remark = f"a body of {len(request.body)} bytes: the limit {limit} is lower"
    return RemotingCommand.response(ResponseCode.INVALID_PARAMETER, remark=remark)


def not_supported(code: int) -> RemotingCommand:
    """The answer to a request that nobody here serves."""
    name = f" ({_NAMES[code]})" if code in _NAMES else ""
    # The blank at the start is RocketMQ's own text.
    return RemotingCommand.response(
        int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), remark=f" request type {code} not supported{name}"
    )
