"""Administration: what people do with a cluster besides sending and consuming. So far: dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from aiorocket.client.admin.dead_letters import DeadLetters
from aiorocket.client.session import Session
from aiorocket.errors import UsageError
from aiorocket.runtime.env import Env

__all__ = ("Admin",)


class Admin:
    """Looks at a cluster and changes it. ``nameservers`` opens connections of its own, ``client`` shares those of a
    ``Client`` that was started. ``async with``, or ``start()`` and ``stop()``; an object is used once."""

    def __init__(
        self,
        *,
        nameservers: str | Sequence[str] | None = None,
        client: Session | None = None,
        env: Env | None = None,
    ) -> None:
        if client is not None and (nameservers is not None or env is not None):
            raise UsageError("an Admin takes either client= or nameservers= and env=: the client has them already")
        self._own_client = client is None
        self.client = client or Session(nameservers=nameservers, env=env)

    async def start(self) -> None:
        """Nothing is asked of the network before the first call."""
        if self._own_client:
            await self.client.start()
        self.client.need_running()

    async def stop(self) -> None:
        if self._own_client:
            await self.client.stop()

    async def __aenter__(self) -> Admin:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def dlq(self, group: str) -> DeadLetters:
        """The messages that consumer group ``group`` gave up. UsageError for a name that no group can have."""
        return DeadLetters(self.client, group)
