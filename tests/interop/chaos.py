"""A TCP proxy that treats connections badly, in the way it is told at the moment."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

__all__ = ("MODES", "Chaos", "chaos")

Mode = Literal["calm", "delay", "fragments", "cut", "stall", "black hole", "half-close", "late"]
#: What it can do: delay each piece; hand it on byte by byte; cut the connection in the middle of a frame; hold
#: everything back and let it go later; the same, and cut it then; say to the server that the client sends no more.
MODES: tuple[Mode, ...] = ("delay", "fragments", "cut", "stall", "black hole", "half-close")
#: "late": connections older than this mode are silent, new ones work; what was said on the old ones reaches the server
#: in the end, even if the client has given them up meanwhile.


class Chaos:
    def __init__(self, target: tuple[str, int], seed: int) -> None:
        self.mode: Mode = "calm"
        #: Whether clients see the end of a connection as a reset, and what they got of a frame well before it.
        self.resets = False
        #: How often a connection was cut or half-closed, or swallowed something.
        self.harm = 0
        #: Pieces of what clients said that came here.
        self.heard = 0
        self._target = target
        self._random = random.Random(seed)
        self._calm = asyncio.Event()
        self._links: set[asyncio.Task[None]] = set()
        self._turns = 0

    def turn(self, mode: Mode) -> None:
        self.mode = mode
        self._turns += 1
        self._calm.set()
        self._calm = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        late: list[asyncio.Task[None]] = []
        born = self._turns
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        for each in (writer, far_writer):
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.resets:
            at_once = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far_writer, writer, born, late))
                both.create_task(self._pump(far_reader, writer, far_writer, born, None))
        except* (OSError, ConnectionError):
            pass
        finally:
            writer.transport.abort()
            try:
                if late:
                    await asyncio.wait(late)
                    await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                pass  # the end of the proxy, which is the end of this task
            finally:
                for each in late:
                    each.cancel()
                far_writer.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        born: int,
        late: list[asyncio.Task[None]] | None,
    ) -> None:
        """``late`` is of the way to the server: what is to reach it when it is calm again."""
        draw = self._random.random
        while data := await reader.read(65536):
            mode = self.mode
            self.heard += late is not None
            if mode == "delay":
                await asyncio.sleep(0.02 + 0.2 * draw())
            elif mode == "fragments":
                for byte in data[:300]:
                    writer.write(bytes((byte,)))
                    await asyncio.sleep(0)
                data = data[300:]
            elif mode == "cut" and draw() < 0.2:
                writer.write(data[: int(len(data) * draw())])
                await asyncio.sleep(0.1 if self.resets else 0)
                self.harm += 1
                writer.transport.abort()
                back.transport.abort()
                return
            elif mode == "stall":
                await self._calm.wait()
            elif mode == "black hole":
                await self._calm.wait()
                self.harm += 1
                writer.transport.abort()
                back.transport.abort()
                return
            elif mode == "late" and born < self._turns:
                if late is None:
                    await self._calm.wait()
                else:
                    self.harm += 1
                    late.append(asyncio.create_task(self._later(data, writer)))
                    continue
            elif mode == "half-close" and late is not None and draw() < 0.2:
                writer.write(data)
                if not writer.is_closing():
                    writer.write_eof()
                self.harm += 1
                return
            writer.write(data)
            await writer.drain()
        if late:
            await asyncio.wait(late)
        if not writer.is_closing():
            writer.write_eof()

    async def _later(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        await self._calm.wait()
        writer.write(data)

    async def close(self) -> None:
        await asyncio.sleep(0)  # who has just been accepted has a task that has not begun
        while self._links:
            for link in self._links:
                link.cancel()
            await asyncio.wait(self._links)


@asynccontextmanager
async def chaos(host: str, port: int, target: tuple[str, int], seed: int = 1) -> AsyncIterator[Chaos]:
    """A proxy on ``host:port`` in front of ``target``."""
    proxy = Chaos(target, seed)
    server = await asyncio.start_server(proxy.serve, host, port)
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await server.wait_closed()
