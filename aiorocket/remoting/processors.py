"""Request code -> handler, and whatever goes wrong in a handler -> an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from aiorocket.errors import BackPressureError, RemoteError, RocketError, StoreFullError
from aiorocket.remoting.connection import Connection
from aiorocket_protocol import ProtocolError, RemotingCommand, RequestCode, ResponseCode

__all__ = ("ProcessorTable", "RequestHandler", "error_response")

RequestHandler = Callable[[Connection, RemotingCommand], RemotingCommand | Awaitable[RemotingCommand | None] | None]

_REMARK_LIMIT = 2000


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

    __slots__ = ("_handlers",)

    def __init__(self) -> None:
        self._handlers: dict[int, RequestHandler] = {}

    def add(self, code: int, handler: RequestHandler) -> None:
        """Serve ``code``. ValueError when it is served already."""
        if int(code) in self._handlers:
            raise ValueError(f"request code {int(code)} has a handler already")
        self._handlers[int(code)] = handler

    def codes(self) -> list[int]:
        """The codes served, ascending."""
        return sorted(self._handlers)

    def dispatch(self, connection: Connection, request: RemotingCommand) -> None:
        """Call the handler of ``request`` and see to it that there is one answer. Raises nothing."""
        handler = self._handlers.get(request.code)
        if handler is None:
            connection.reply(request, _not_supported(request.code))
            return
        try:
            result = handler(connection, request)
            if result is None:
                return
            if type(result) is RemotingCommand:
                connection.reply(request, result)
                return
        except Exception as error:  # noqa: BLE001 - a handler's failure is an answer, never the connection's end
            self._failed(connection, request, error)
            return
        awaitable = cast(Awaitable[RemotingCommand | None], result)
        connection.tasks.start(self._await(connection, request, awaitable), name=f"request-{request.code}")

    async def _await(
        self, connection: Connection, request: RemotingCommand, result: Awaitable[RemotingCommand | None]
    ) -> None:
        try:
            response = await result
            if response is not None:
                connection.reply(request, response)
        except Exception as error:  # noqa: BLE001 - as in dispatch
            self._failed(connection, request, error)

    def _failed(self, connection: Connection, request: RemotingCommand, error: Exception) -> None:
        if not isinstance(error, (RocketError, ProtocolError)):
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"handler of request code {request.code} from {connection.peer} failed", "exception": error}
            )
        connection.reply(request, error_response(error))


def _not_supported(code: int) -> RemotingCommand:
    try:
        name = f" ({RequestCode(code).name})"
    except ValueError:
        name = ""
    # The blank at the start is RocketMQ's own text.
    return RemotingCommand.response(
        int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), remark=f" request type {code} not supported{name}"
    )
