"""Sockets <-> RemotingCommand: connection, router, client, server, and a small streams face."""

from aiorocket.remoting.address import parse_address
from aiorocket.remoting.client import RemotingClient
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.router import Handler, Router, error_response
from aiorocket.remoting.server import RemotingServer
from aiorocket.remoting.streams import CommandReader, CommandWriter, open_command_stream

__all__ = (
    "CommandReader",
    "CommandWriter",
    "Connection",
    "Handler",
    "RemotingClient",
    "RemotingServer",
    "Router",
    "error_response",
    "open_command_stream",
    "parse_address",
)
