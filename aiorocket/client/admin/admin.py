"""Administration: what people do with a cluster besides sending and consuming. So far: topics and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from aiorocket.client.admin.dead_letters import DeadLetters
from aiorocket.client.core.namespace import wrap
from aiorocket.client.session import Session
from aiorocket.client.topic_admin import DEFAULT_QUEUES, create_topic
from aiorocket.errors import UsageError
from aiorocket.model import check_topic
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

    async def create_topic(self, topic: str, queues: int = DEFAULT_QUEUES, *, cluster: str | None = None) -> None:
        """Create ``topic`` with ``queues`` queues on every broker (its master) of ``cluster``, or of all; a topic
        that is there gets so many. Clients find it when this returns.

        A broker that cannot be reached is passed over with a warning. RemoteError when brokers serve no administration
        or refuse the name, UsageError for a cluster that is not there, NotConnectedError when nobody can be reached.
        """
        if isinstance(queues, bool) or not isinstance(queues, int) or not 1 <= queues <= 65_536:
            raise UsageError(f"queues={queues!r}: 1 to 65536")
        await create_topic(self.client, wrap(self.client.config.namespace, check_topic(topic)), queues, cluster=cluster)

    def dlq(self, group: str) -> DeadLetters:
        """The messages that consumer group ``group`` gave up. UsageError for a name that no group can have."""
        return DeadLetters(self.client, group)
