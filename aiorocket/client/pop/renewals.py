"""Keeps messages invisible while somebody works on them: one task watches all messages of a consumer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiorocket.client.pop.popped import PoppedMessage
from aiorocket.client.session import Session
from aiorocket.errors import RocketError
from aiorocket.runtime.tasks import TaskScope
from aiorocket_protocol import ProtocolError

__all__ = ("Renewals",)

log = logging.getLogger("aiorocket.client")

#: Of the invisible time: when it is asked for anew. Two more tries fit behind a first one that fails.
_SHARE = 0.5
#: Seconds until the next try.
_AGAIN = 1.0
#: While it is being asked for.
_NEVER = float("inf")


class Renewals:
    """``change`` is how a message is kept for so many seconds more; False when it is too late."""

    def __init__(
        self, session: Session, scope: TaskScope, change: Callable[[PoppedMessage, float], Awaitable[bool]]
    ) -> None:
        self._session = session
        self._scope = scope
        self._change = change
        #: When each is renewed next, in loop time.
        self._due: dict[PoppedMessage, float] = {}
        #: Those that are being renewed right now.
        self._asking: dict[PoppedMessage, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._earlier = asyncio.Event()

    def add(self, message: PoppedMessage) -> None:
        self._due[message] = _due(message)
        if self._task is None or self._task.done():
            self._task = self._scope.start(self._renew(), name="renewals")
        self._earlier.set()

    def stop(self, message: PoppedMessage) -> None:
        self._due.pop(message, None)

    async def end(self, message: PoppedMessage) -> None:
        """As ``stop``; its handle is the one that holds when this returns."""
        self.stop(message)
        while (asking := self._asking.get(message)) is not None:
            await asyncio.wait([asking])

    async def _renew(self) -> None:
        loop = self._session.loop
        while self._due:
            self._earlier.clear()
            now = loop.time()
            for message in [message for message, due in self._due.items() if due <= now]:
                # Each by itself: a broker that does not answer must not cost the messages of others.
                self._due[message] = _NEVER
                self._scope.start(self._one(message), name="renewal")
            try:
                async with asyncio.timeout_at(min(self._due.values())):
                    await self._earlier.wait()
            except TimeoutError:
                pass  # the next one is due

    async def _one(self, message: PoppedMessage) -> None:
        now = self._session.loop.time()
        asking = self._asking[message] = self._session.loop.create_future()
        kept = None
        try:
            kept = await self._change(message, message.invisible)
        except (RocketError, ProtocolError) as error:
            log.info("message %s of %s is not kept invisible yet: %s", message.msg_id, message.queue, error)
        except asyncio.CancelledError:
            self._answered(message, asking)
            raise
        self._answered(message, asking)
        if kept is False:
            log.warning("message %s of %s: its invisible time was over, it comes again", message.msg_id, message.queue)
            self._due.pop(message, None)
        elif message in self._due:
            self._due[message] = now + _AGAIN if kept is None else _due(message)
        self._earlier.set()

    def _answered(self, message: PoppedMessage, asking: asyncio.Future[None]) -> None:
        del self._asking[message]
        asking.set_result(None)


def _due(message: PoppedMessage) -> float:
    return message.invisible_until - message.invisible * (1 - _SHARE)
