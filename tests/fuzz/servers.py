"""A server of a few lines that does what a test wants, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from aiorocket_protocol import FrameSplitter, ProtocolError, RemotingCommand, decode, encode

__all__ = ("Answers", "Kept", "serve")

#: What a server answers to a request: commands, or bytes.
Answers = Callable[[RemotingCommand], "list[RemotingCommand | bytes]"]


class Kept:
    """A name server that keeps one value and knows nothing else."""

    def __init__(self) -> None:
        self._value: str | None = None

    def __call__(self, request: RemotingCommand) -> list[RemotingCommand | bytes]:
        if request.code == 100:
            self._value = (request.ext or {}).get("value")
        code = 0 if request.code in (100, 101, 106) else 3
        return [RemotingCommand(code, request.opaque, 1, ext={"value": self._value} if request.code == 101 else None)]


class _Peer(asyncio.Protocol):
    """One-way requests and responses are never answered."""

    def __init__(self, answers: Answers, late: Callable[[RemotingCommand], float]) -> None:
        self._answers = answers
        self._late = late
        self._splitter = FrameSplitter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._splitter.feed(data):
                request = decode(*frame)
                if not request.flag & 3:
                    for answer in self._answers(request):
                        data = answer if isinstance(answer, bytes) else encode(answer, frame[0])
                        if seconds := self._late(request):
                            asyncio.get_running_loop().call_later(seconds, self._write, data)
                        else:
                            self._transport.write(data)
        except ProtocolError:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


async def serve(
    answers: Answers, port: int = 9876, *, late: Callable[[RemotingCommand], float] = lambda _: 0.0
) -> tuple[str, asyncio.AbstractServer]:
    """Its address, and what ends it. ``late``: after how many seconds a request is answered."""
    server = await asyncio.get_running_loop().create_server(lambda: _Peer(answers, late), "127.0.0.1", port)
    return f"127.0.0.1:{port}", server
