"""The second face of the codec: a small reader and writer of RemotingCommand over asyncio streams.

For scripts, tests and fuzzing, where an await per frame is fine; it is 6-9 times slower than Connection on pull
answers. It parses no byte on its own: the same splitter and codecs do.
"""

from __future__ import annotations

import asyncio
from collections import deque

from aiorocket.remoting.connection import serialize_type_of
from aiorocket_protocol import FrameSplitter, ProtocolError, RemotingCommand, decode, encode_head

__all__ = ("CommandReader", "CommandWriter", "open_command_stream")

_READ_SIZE = 64 * 1024


class CommandReader:
    """Commands out of a StreamReader."""

    __slots__ = ("_commands", "_splitter", "_stream")

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._splitter = FrameSplitter()
        self._commands: deque[RemotingCommand] = deque()

    async def read(self) -> RemotingCommand | None:
        """The next command, None at the end of the stream. ProtocolError for malformed bytes or an end within a
        frame."""
        while not self._commands:
            data = await self._stream.read(_READ_SIZE)
            if not data:
                if self._splitter.partial:
                    raise ProtocolError("the stream ended within a frame", where="frame")
                return None
            for kind, header, body in self._splitter.feed(data):
                self._commands.append(decode(kind, header, body))
        return self._commands.popleft()


class CommandWriter:
    """Commands into a StreamWriter, opaques given out in ascending order."""

    __slots__ = ("_opaque", "_serialize_type", "_stream")

    def __init__(self, stream: asyncio.StreamWriter, serialize_type: int) -> None:
        self._stream = stream
        self._serialize_type = serialize_type
        self._opaque = 0

    def write(self, command: RemotingCommand, serialize_type: int | None = None) -> int:
        """Queue a command and return its opaque; a request whose opaque is 0 gets the next one."""
        if command.opaque == 0 and not command.is_response:
            self._opaque += 1
            command.opaque = self._opaque
        self._stream.write(encode_head(command, self._serialize_type if serialize_type is None else serialize_type))
        self._stream.write(command.body)
        return command.opaque

    async def drain(self) -> None:
        await self._stream.drain()

    async def close(self) -> None:
        """Close both directions and wait for it."""
        self._stream.close()
        try:
            await self._stream.wait_closed()
        except ConnectionError:
            pass  # the peer was faster


async def open_command_stream(host: str, port: int, *, serializer: str = "json") -> tuple[CommandReader, CommandWriter]:
    """Connect. ``serializer`` is "json", "rocketmq" or "msgpack" for all requests; answers are read in any. OSError."""
    reader, writer = await asyncio.open_connection(host, port)
    return CommandReader(reader), CommandWriter(writer, serialize_type_of(serializer))
