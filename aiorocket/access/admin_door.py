"""Administration of a server that other machines reach and that has no access control: a listener, a token."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Protocol

from aiorocket.access.core.accounts import Account, Accounts, FromFile
from aiorocket.access.core.judge import judge
from aiorocket.access.core.requests import is_administration, is_registration
from aiorocket.errors import ConfigError
from aiorocket.remoting.address import format_address, host_of, is_loopback, unix_path
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import ProcessorTable, RequestHandler, not_supported
from aiorocket.remoting.server import RemotingServer
from aiorocket_protocol import RemotingCommand, ResponseCode

__all__ = ("ADMIN_USER", "AdminDoor", "share_listener")

_log = logging.getLogger("aiorocket.access")

#: The access key that goes with the token; the token is its secret key.
ADMIN_USER = "admin"
#: Characters of a token: it is all that stands between a stranger and every topic.
LEAST_TOKEN = 16
_MARK = "admin"


class HasAdminDoor(Protocol):
    """What configs of servers have in common."""

    @property
    def host(self) -> str: ...
    @property
    def admin_bind(self) -> str | None: ...
    @property
    def admin_token(self) -> str | None: ...


class AdminDoor:
    """Serves administration to connections of ``admin_bind`` and to requests signed with ``admin_token``, and tells
    everybody else what would help. ``open`` are servers that need no such thing: on loopback alone everybody may, and
    with access control every request is judged. ConfigError for settings that cannot be."""

    def __init__(self, config: HasAdminDoor, *, judged: bool) -> None:
        self.open = judged or is_loopback(config.host)
        self._bind = config.admin_bind
        #: Where it listens, ``host:port`` or ``unix:PATH``; empty when it does not.
        self.address = ""
        self._host, self._port = _host_port(self._bind) if self._bind else ("", 0)
        token = config.admin_token
        if token is not None and len(token) < LEAST_TOKEN:
            raise ConfigError(f"admin_token: {len(token)} characters, at least {LEAST_TOKEN} are needed")
        self._accounts = (
            Accounts(FromFile({ADMIN_USER: Account(ADMIN_USER, token, admin=True)})) if token is not None else None
        )

    async def listen(self, server: RemotingServer) -> None:
        """Accept on ``admin_bind``, if there is one, once ``server`` was started. UsageError."""
        if self._bind is None:
            return
        listening = await server.listen(self._host, self._port, mark=_MARK)
        unix = unix_path(self._bind) is not None
        self.address = self._bind if unix else format_address(listening.sockets[0].getsockname())
        if not unix and not self.open and not is_loopback(self._host):
            _log.warning("everybody who reaches %s may administer this server", self.address)

    def guarded(self, code: int, handler: RequestHandler) -> RequestHandler:
        """``handler`` of requests with ``code`` for those who may."""
        return handler if self.open or not is_administration(code) else partial(self._ask, handler)

    def _ask(self, handler: RequestHandler, connection: Connection, command: RemotingCommand) -> Any:
        if connection.data.get(_MARK) or (
            self._accounts is not None and judge(self._accounts, command, host_of(connection.peer), "").refusal is None
        ):
            return handler(connection, command)
        return RemotingCommand.response(
            ResponseCode.NO_PERMISSION,
            remark="this server is reachable from other machines and has no authentication, so it serves no "
            f"administration here (request code {command.code}). Start it with an administration listener "
            "(--admin-bind unix:PATH or HOST:PORT) and ask there, with a token (--admin-token-file FILE) and send it, "
            "or with users (--acl FILE); or bind it to 127.0.0.1",
        )


def share_listener(table: ProcessorTable, other: ProcessorTable) -> None:
    """Serve on the administration listener of ``table``'s server what ``other``, a server of the same process, serves
    and it does not: one listener is enough for both. Registrations stay where their connection's end is noticed."""
    for code in sorted({*other.codes()} - {*table.codes()}):
        if not is_registration(code):
            table.add(code, partial(_shared, other))


def _shared(other: ProcessorTable, connection: Connection, command: RemotingCommand) -> Any:
    """By the handler of now: it may have been replaced since."""
    if not connection.data.get(_MARK):
        return not_supported(command.code)
    return other.handler(command.code)(connection, command)


def _host_port(bind: str) -> tuple[str, int]:
    path = unix_path(bind)
    if path is not None:
        if not path:
            raise ConfigError("admin_bind='unix:': a path is missing")
        return bind, 0
    host, colon, port = bind.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"admin_bind={bind!r}: HOST:PORT or unix:PATH")
    return host.strip("[]"), int(port)
