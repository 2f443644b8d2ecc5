"""Messages to an async iterator: taken by hand, settled by hand, pulled only as fast as they are taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from aiorocket.client.message import Message
from aiorocket.errors import UsageError

__all__ = ("MessageStream",)


class MessageStream:
    """``async for message in stream``; ends when the consumer stops. Leaving the loop settles nothing and stops the
    pulling when ``buffer`` messages wait; another loop goes on where it left off."""

    def __init__(self, need_running: Callable[[], None]) -> None:
        self.buffer = 256
        self._need_running = need_running
        self._ready: deque[Message] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._waiting_for_room: list[Callable[[], None]] = []
        self._closed = False

    # -- the pulling side --

    def put(self, messages: Sequence[Message]) -> None:
        self._ready.extend(messages)
        for _ in messages:
            if not self._wake_taker():
                return

    @property
    def full(self) -> bool:
        return len(self._ready) >= self.buffer

    @property
    def waiting(self) -> int:
        return len(self._ready)

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when there is room again."""
        if callback not in self._waiting_for_room:
            self._waiting_for_room.append(callback)

    def close(self) -> None:
        """End every loop over the stream; what waits is left unfinished."""
        self._closed = True
        self._ready.clear()
        while self._wake_taker():
            pass
        self._notify_room()

    # -- the taking side --

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> Message:
        while True:
            while self._ready:
                message = self._ready.popleft()
                if self._waiting_for_room and not self.full:
                    self._notify_room()
                if not message.settled:
                    return message
            if self._closed:
                raise StopAsyncIteration
            self._need_running()
            taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                if taker.done() and not taker.cancelled() and self._ready:
                    # Woken and cancelled at once: the message is somebody else's chance.
                    self._wake_taker()
                raise

    def set_buffer(self, buffer: int) -> None:
        if buffer < 1:
            raise UsageError(f"buffer={buffer}: 1 or more")
        self.buffer = buffer
        if not self.full:
            self._notify_room()

    def _wake_taker(self) -> bool:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return True
        return False

    def _notify_room(self) -> None:
        callbacks, self._waiting_for_room = self._waiting_for_room, []
        for callback in callbacks:
            callback()
