"""Sockets <-> RemotingCommand: connection, processors, client, server, and a small streams face."""

from aiorocket.remoting.address import parse_address
from aiorocket.remoting.client import RemotingClient
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import ProcessorTable, RequestHandler, error_response
from aiorocket.remoting.server import RemotingServer
from aiorocket.remoting.streams import CommandReader, CommandWriter, open_command_stream

__all__ = (
    "CommandReader",
    "CommandWriter",
    "Connection",
    "ProcessorTable",
    "RemotingClient",
    "RemotingServer",
    "RequestHandler",
    "error_response",
    "open_command_stream",
    "parse_address",
)
