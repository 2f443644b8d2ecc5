"""Who registers with a name server without authentication: brokers on its own machine."""

from __future__ import annotations

from typing import Any

from aiorocket.remoting.address import host_of, is_loopback
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import RequestHandler
from aiorocket_protocol import RemotingCommand, ResponseCode

__all__ = ("from_here",)


def from_here(handler: RequestHandler, connection: Connection, command: RemotingCommand) -> Any:
    """``handler`` for brokers on this machine, and for those whose certificate was checked: without authentication,
    everybody who can reach the port could register as any broker and take its topics' messages."""
    peer = host_of(connection.peer)
    if connection.data.get("certified") or is_loopback(peer) or peer == host_of(connection.local):
        return handler(connection, command)
    return RemotingCommand.response(
        ResponseCode.NO_PERMISSION,
        remark="this name server has no authentication, so only brokers on its own machine, and those with "
        "a client certificate that it checks, register; start it with open_registration (aiorocket nameserver "
        "--open-registration) to take every broker's word",
    )
