"""Administration: what people do with a cluster besides sending and consuming."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from aiorocket.client.admin.asking import Asking
from aiorocket.client.session import HasSession, Session
from aiorocket.client.topic_admin import DEFAULT_QUEUES
from aiorocket.config import ClientConfig
from aiorocket.errors import UsageError
from aiorocket.runtime.env import Env

if TYPE_CHECKING:
    from aiorocket.client.admin.brokers import Brokers
    from aiorocket.client.admin.dead_letters import DeadLetters
    from aiorocket.client.admin.doctor import Finding
    from aiorocket.client.admin.groups import Groups
    from aiorocket.client.admin.messages import Messages
    from aiorocket.client.admin.names import NameServers
    from aiorocket.client.admin.offsets import Offsets
    from aiorocket.client.admin.pops import Pops
    from aiorocket.client.admin.timers import Timers
    from aiorocket.client.admin.topics import Topics
    from aiorocket.client.admin.users import Users

__all__ = ("Admin",)

#: Messages behind which a group is said to lag.
LAG = 10_000


class Admin:
    """Looks at a cluster and changes it: ``topics``, ``groups``, ``offsets``, ``messages``, ``brokers``,
    ``nameservers``, ``users``, ``timers``, ``pops``, ``dlq(group)``.

    ``nameservers`` or ``config`` opens connections of its own, ``client`` shares those of a ``Client`` that was
    started. ``brokers`` are addresses to ask instead of the masters that name servers know: an administration listener
    (``unix:PATH`` too). ``async with``, or ``start()`` and ``stop()``; an object is used once.

    Brokers are asked side by side. What a list lacks because one could not be asked is in its ``missing``; the first
    error is raised when none could. Errors are RemoteError (a server said no), NotConnectedError, ConnectionLostError,
    RequestTimeoutError, and UsageError for arguments that cannot be.
    """

    def __init__(
        self,
        *,
        nameservers: str | Sequence[str] | None = None,
        client: HasSession | None = None,
        config: ClientConfig | None = None,
        brokers: Sequence[str] = (),
        env: Env | None = None,
    ) -> None:
        if client is not None and (nameservers is not None or config is not None or env is not None):
            raise UsageError("an Admin takes client=, or nameservers=, config= and env=: the client has them already")
        self._own_client = client is None
        self.client = client.session if client is not None else Session(nameservers=nameservers, config=config, env=env)
        self._asking = Asking(self.client, brokers)

    # Each part is imported when it is first asked for: a command of the command line needs one of them.

    @cached_property
    def topics(self) -> Topics:
        from aiorocket.client.admin.topics import Topics

        return Topics(self._asking)

    @cached_property
    def groups(self) -> Groups:
        from aiorocket.client.admin.groups import Groups

        return Groups(self._asking)

    @cached_property
    def offsets(self) -> Offsets:
        from aiorocket.client.admin.offsets import Offsets

        return Offsets(self._asking, self.groups)

    @cached_property
    def messages(self) -> Messages:
        from aiorocket.client.admin.messages import Messages

        return Messages(self._asking)

    @cached_property
    def brokers(self) -> Brokers:
        from aiorocket.client.admin.brokers import Brokers

        return Brokers(self._asking)

    @cached_property
    def nameservers(self) -> NameServers:
        from aiorocket.client.admin.names import NameServers

        return NameServers(self._asking)

    @cached_property
    def users(self) -> Users:
        from aiorocket.client.admin.users import Users

        return Users(self._asking)

    @cached_property
    def timers(self) -> Timers:
        from aiorocket.client.admin.timers import Timers

        return Timers(self._asking)

    @cached_property
    def pops(self) -> Pops:
        from aiorocket.client.admin.pops import Pops

        return Pops(self._asking)

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
        await self.topics.create(topic, queues, cluster=cluster)

    def doctor(self, *, lag: int = LAG) -> AsyncGenerator[Finding, None]:
        """What is well and what is not, with advice; a group counts as lagging from ``lag`` messages on."""
        from aiorocket.client.admin.doctor import examine

        return examine(self.client, self.topics, self.groups, self.brokers, lag=lag)

    def dlq(self, group: str) -> DeadLetters:
        """The messages that consumer group ``group`` gave up. UsageError for a name that no group can have."""
        from aiorocket.client.admin.dead_letters import DeadLetters

        return DeadLetters(self._asking, group)
