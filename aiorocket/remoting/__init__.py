"""Sockets <-> RemotingCommand: connection, processors, client, server, and a small streams face.

Each name is imported when it is first used: a client needs no server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorocket.remoting.address import parse_address as parse_address
    from aiorocket.remoting.client import RemotingClient as RemotingClient
    from aiorocket.remoting.connection import Connection as Connection
    from aiorocket.remoting.processors import ProcessorTable as ProcessorTable
    from aiorocket.remoting.processors import RequestHandler as RequestHandler
    from aiorocket.remoting.processors import error_response as error_response
    from aiorocket.remoting.server import RemotingServer as RemotingServer
    from aiorocket.remoting.streams import CommandReader as CommandReader
    from aiorocket.remoting.streams import CommandWriter as CommandWriter
    from aiorocket.remoting.streams import open_command_stream as open_command_stream

_HOMES = {
    "address": "parse_address",
    "client": "RemotingClient",
    "connection": "Connection",
    "processors": "ProcessorTable RequestHandler error_response",
    "server": "RemotingServer",
    "streams": "CommandReader CommandWriter open_command_stream",
}
_HOME_OF = {name: f"aiorocket.remoting.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'aiorocket.remoting' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME_OF]
