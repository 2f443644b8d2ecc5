"""What producers, consumers and their parts ask of the Client they share, by role; and who a Client knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio

    from aiorocket.client.core.routes import TopicRoute
    from aiorocket.client.route_table import RouteTable
    from aiorocket.client.state import ConsumerState
    from aiorocket.config import ClientConfig
    from aiorocket.remoting.client import RemotingClient
    from aiorocket.remoting.connection import Connection
    from aiorocket.runtime.env import Env
    from aiorocket_protocol import ConsumerData, RemotingCommand

__all__ = ("GroupLink", "GroupMember", "Link", "Registry")


class GroupMember(Protocol):
    """A consumer as its client sees it."""

    def consumer_data(self) -> ConsumerData: ...

    def rebalance_now(self) -> None: ...

    def state(self) -> ConsumerState: ...


class Link(Protocol):
    """The way to brokers: routes, connections, requests. The methods are described at ``Client``."""

    @property
    def config(self) -> ClientConfig: ...
    @property
    def env(self) -> Env: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def remoting(self) -> RemotingClient: ...
    @property
    def routes(self) -> RouteTable: ...
    @property
    def client_id(self) -> str: ...

    async def route(self, topic: str, *, timeout: float | None = None, refresh: bool = False) -> TopicRoute: ...
    async def connection(self, address: str, timeout: float | None = None) -> Connection: ...
    async def call(
        self,
        address: str,
        code: int,
        header: tuple[Any, ...] | None = None,
        *,
        body: bytes = b"",
        timeout: float | None = None,
        accept: Iterable[int] = (0,),
    ) -> RemotingCommand: ...


class GroupLink(Link, Protocol):
    """A Link for one that speaks as a group: brokers are told of the group before they serve it."""

    @property
    def local_ip(self) -> str: ...

    def need_running(self) -> None: ...
    def start_task(self, coro: Any, *, name: str) -> asyncio.Task[Any]: ...
    def watch_routes(self, callback: Callable[[TopicRoute], None]) -> Callable[[], None]: ...
    async def member_connection(self, address: str, timeout: float | None = None) -> Connection: ...
    def told(self, address: str) -> bool: ...
    def forget_told(self, connection: Connection) -> None: ...
    def subscriptions_changed(self) -> None: ...


class Registry(Link, Protocol):
    """A Link that brokers send requests over: it knows whom they are for, by group on the wire."""

    @property
    def producers(self) -> Mapping[str, object]: ...
    @property
    def consumers(self) -> Mapping[str, GroupMember]: ...

    def start_task(self, coro: Any, *, name: str) -> asyncio.Task[Any]: ...
