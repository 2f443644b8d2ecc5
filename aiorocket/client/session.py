"""What the producers and consumers of one process share: connections, routes, heartbeats, the client id.

RocketMQ hides this object in a global map (MQClientInstance); here it is explicit. A stand-alone Producer or Consumer
makes a private one, so two consumers of one group in one process are two clients, as a broker needs them to be.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from aiorocket.client.core.lifecycle import Lifecycle, State
from aiorocket.client.core.retry import remote_error, unreached
from aiorocket.client.core.routes import TopicRoute, parse_nameservers
from aiorocket.client.leaving import unregister
from aiorocket.client.outage_log import OutageLog
from aiorocket.client.route_table import STOPPED, RouteTable
from aiorocket.config import ClientConfig
from aiorocket.errors import NotConnectedError, RequestTimeoutError, RocketError, UsageError
from aiorocket.remoting.client import RemotingClient
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.credentials import signer_of
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.remoting.tls import client_context
from aiorocket.runtime.env import Env, real_env
from aiorocket.runtime.own_loop import need_loop
from aiorocket.runtime.tasks import TaskScope, to_the_end
from aiorocket_protocol import (
    INNER_PRODUCER,
    HeartbeatData,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    UnregisterClientRequestHeader,
    encode_body,
)

if TYPE_CHECKING:
    from aiorocket.client.middleware import Middleware
    from aiorocket.client.registered import GroupMember, GroupProducer

__all__ = ("Session", "HasSession")

log = logging.getLogger("aiorocket.client")

T = TypeVar("T")

#: Where a connection keeps the number of the registration that its latest heartbeat carried, and the version its broker
#: gave in the answer.
_REGISTRATION = "client.registration"
_BROKER_VERSION = "client.broker_version"

#: How soon to try again to reach brokers that did not answer a heartbeat.
_HEARTBEAT_RETRY = 2.0


class HasSession(Protocol):
    #: Of a ``Client``, or the Session itself: what producers and consumers are made on.
    @property
    def session(self) -> Session: ...


class Session:
    """Connections, routes and heartbeats for any number of producer and consumer groups.

    ``nameservers`` is ``"host:port[;host:port]"`` or a sequence of them and wins over the one in ``config``. Nothing is
    opened before ``start()`` or ``async with``; an object is used once.
    """

    def __init__(
        self,
        *,
        nameservers: str | Sequence[str] | None = None,
        config: ClientConfig | None = None,
        env: Env | None = None,
    ) -> None:
        config = config or ClientConfig()
        if nameservers is not None:
            config = replace(config, nameservers=parse_nameservers(nameservers))
        self.config = config
        self._own_env = env is None
        self.env = env or real_env()
        self._lifecycle = Lifecycle("this Client")
        self._ended = asyncio.Event()
        self._instance, self._made_in = config.instance or self.env.entropy.token(8).hex(), os.getpid()
        #: By group, as brokers know it.
        self.producers: dict[str, GroupProducer] = {}
        self.consumers: dict[str, GroupMember] = {}
        # Rises with every change of what a heartbeat says; a connection remembers which one it carried last.
        self._registration = 0
        self._heartbeats: dict[Connection, asyncio.Task[Exception | None]] = {}
        self._heartbeat_due = asyncio.Event()
        self._scope = TaskScope("client")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._processors = ProcessorTable()
        #: Around what every producer and consumer of it sends and consumes.
        self.middleware: tuple[Middleware, ...] = ()
        #: What ``stop`` ends while there still are connections. Who registered leaves by itself.
        self.ends_first: Callable[[], Awaitable[None]] | None = None
        self.remoting = RemotingClient(
            self.env, config.remoting, self._processors, on_close=self._on_close, address_map=config.address_map
        )
        self.routes = RouteTable(config, self.remoting)
        self.outages = OutageLog(lambda: self.loop.time())

    # -- life --

    async def start(self) -> None:
        """Begin heartbeats and route refreshes; the first use of a topic is the first request. ConfigError when
        credentials or certificates cannot be read."""
        signer, tls = signer_of(self.config, self.env.disk), client_context(self.config.tls)
        self._lifecycle.move("start")
        if self._made_in != os.getpid():  # a server that loads the application before it forks: each child is a client
            self._instance = self.config.instance or self.env.entropy.token(8).hex()
        self._loop = asyncio.get_running_loop()
        self.remoting.secure(signer, tls)
        self._scope.start(self._heartbeat_forever(), name="heartbeat")
        self._scope.start(self.routes.refresh_forever(), name="routes")
        self._lifecycle.move("started")

    async def stop(self) -> None:
        """Close everything; what is still waited for fails. A second ``stop`` returns with the first."""
        before = self._lifecycle.state
        self._lifecycle.move("stop")
        if before is State.STOPPING:
            await self._ended.wait()
        if before is not State.RUNNING:
            return
        async with AsyncExitStack() as ends:
            ends.callback(self._ended.set)
            ends.callback(self._lifecycle.move, "stopped")
            if self._own_env:
                ends.push_async_callback(self.env.disk.close)
            for close in (self.remoting.close, self.routes.close, self._scope.close):
                ends.push_async_callback(to_the_end, close)
            if self.ends_first is not None:
                await self.ends_first()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

    def need_running(self) -> None:
        """UsageError unless started and not stopped; WrongLoopError in another loop than that of the start."""
        self._lifecycle.need_running()
        need_loop(self._loop, self._lifecycle.what)

    def start_task(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """A task that ends with this client at the latest."""
        return self._scope.start(coro, name=name)

    @property
    def session(self) -> Session:
        return self

    @property
    def started(self) -> bool:
        return self._lifecycle.running

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """That of the start. UsageError before it."""
        if self._loop is None:
            raise UsageError("this Client is not started: use 'async with' or await start() first")
        return self._loop

    @property
    def client_id(self) -> str:
        """``ip@instance``; the ip is the one name servers and brokers see, known from the first connection on."""
        return f"{self.routes.local_ip}@{self._instance}"

    # -- groups --

    def add_producer(self, group: str, producer: GroupProducer) -> None:
        """Register a producer group with this client; UsageError when it is there already."""
        if group in self.producers:
            raise UsageError(
                f"producer group {group!r} is already used by this Client: share the Producer, or make a second Client"
            )
        self.producers[group] = producer
        self.subscriptions_changed()

    def add_consumer(self, group: str, member: GroupMember) -> None:
        """Register a consumer group with this client; UsageError when it is there already."""
        if group in self.consumers:
            raise UsageError(
                f"consumer group {group!r} is already used by this Client: a second member needs its own Client"
            )
        self.consumers[group] = member
        self.subscriptions_changed()

    def subscriptions_changed(self) -> None:
        """A member subscribes to something else: brokers have to be told before the next pull."""
        self._registration += 1
        self._heartbeat_due.set()
        if not self._processors.codes():  # the first group of all, which an Admin never has
            from aiorocket.client.answering import answer

            answer(self._processors, self.producers, self.consumers, self.config, self.env, self._scope, self.routes)

    async def remove_producer(self, group: str) -> None:
        """Forget the group and tell the brokers, as far as they answer."""
        if self.producers.pop(group, None) is not None:
            await self._unregister(UnregisterClientRequestHeader(client_id=self.client_id, producer_group=group))

    async def remove_consumer(self, group: str, member: GroupMember) -> None:
        """Forget the group and tell the brokers, so that the other members get its queues at once. Nothing happens when
        ``member`` is not the one that is registered."""
        if self.consumers.get(group) is member:
            del self.consumers[group]
            await self._unregister(UnregisterClientRequestHeader(client_id=self.client_id, consumer_group=group))

    def forget_consumer(self, group: str, member: GroupMember) -> None:
        """As ``remove_consumer``, without waiting for anybody: for an end that is in a hurry."""
        if self.consumers.get(group) is member:
            del self.consumers[group]
            self._registration += 1
            header = UnregisterClientRequestHeader(client_id=self.client_id, consumer_group=group)
            for connection in self.remoting.connections:
                with suppress(RocketError):
                    connection.oneway(RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header))

    async def _unregister(self, header: UnregisterClientRequestHeader) -> None:
        self._registration += 1
        live = map(self.remoting.live, sorted(self.routes.broker_addresses(masters_only=False)))
        heartbeats = {connection: self._heartbeats.get(connection) for connection in live if connection is not None}
        await unregister(header, heartbeats, self.config.remoting.request_timeout)

    # -- requests --

    async def connection(self, address: str, timeout: float | None = None) -> Connection:
        """The connection to ``address``, made if need be within ``timeout`` seconds. NotConnectedError."""
        need_loop(self.loop, self._lifecycle.what)
        if (connection := self.remoting.live(address)) is not None:
            return connection
        limit = self.config.remoting.connect_timeout
        try:
            async with asyncio.timeout(limit if timeout is None else min(limit, timeout)):
                connection = await self.remoting.connect(address)
        except (TimeoutError, NotConnectedError, UsageError) as error:
            known = address in self.config.nameservers or address in self.remoting.reached
            raise unreached(address, str(error) or self.remoting.trouble(address), known=known) from None
        if self.producers or self.consumers:
            self._heartbeat_due.set()
        return connection

    def live(self, address: str) -> Connection | None:
        """The open connection to ``address``, or None."""
        need_loop(self.loop, self._lifecycle.what)
        return self.remoting.live(address)

    async def member_connection(self, address: str, timeout: float | None = None) -> Connection:
        """A connection over which the broker knows our groups: a pull before that is answered with 24."""
        connection = await self.connection(address, timeout)
        if connection.data.get(_REGISTRATION) != self._registration:
            await self._register(connection)
        return connection

    def broker_version(self, connection: Connection) -> int:
        """What the broker said of itself (an ordinal of RocketMQ's MQVersion) in the answer to the latest heartbeat
        over ``connection``; 0 before that."""
        return int(connection.data.get(_BROKER_VERSION, 0))

    async def call(
        self,
        address: str,
        code: int,
        header: tuple[Any, ...] | None = None,
        *,
        body: bytes = b"",
        timeout: float | None = None,
        accept: Iterable[int] = (0,),
    ) -> RemotingCommand:
        """One request to ``address`` and its answer. RemoteError for an answer outside ``accept``; NotConnectedError,
        ConnectionLostError, RequestTimeoutError as the connection says."""
        timeout = self.config.remoting.request_timeout if timeout is None else timeout
        deadline = self.loop.time() + timeout
        connection = await self.connection(address, timeout)
        left = max(0.001, deadline - self.loop.time())
        response = await connection.request(RemotingCommand.request(code, header, body=body), left)
        if response.code not in accept:
            raise remote_error(response.code, response.remark, request=RequestCode(code).name, address=address)
        return response

    # -- heartbeats --

    def heartbeat_data(self) -> HeartbeatData:
        """What brokers are told: who we are, our producer groups, our consumers with their subscriptions."""
        producers = [INNER_PRODUCER, *(group for group in self.producers if group != INNER_PRODUCER)]
        return HeartbeatData(self.client_id, producers, [member.consumer_data() for member in self.consumers.values()])

    async def heartbeat(self) -> dict[str, Exception]:
        """Tell every broker in use about us, now. The errors by address."""
        addresses = sorted(self.routes.broker_addresses(masters_only=not self.consumers))
        results = await asyncio.gather(*(self._heartbeat_to(address) for address in addresses))
        return {address: error for address, error in zip(addresses, results, strict=True) if error is not None}

    def registered(self, address: str) -> bool:
        """The broker at ``address`` knows our groups as they are now, over the connection that is open."""
        connection = self.remoting.live(address)
        return connection is not None and connection.data.get(_REGISTRATION) == self._registration

    def forget_registration(self, connection: Connection) -> None:
        """The broker says that it does not know us: the next ``member_connection`` sends another heartbeat."""
        connection.data.pop(_REGISTRATION, None)

    async def _heartbeat_to(self, address: str) -> Exception | None:
        try:
            await self._register(await self.connection(address))
        except (RocketError, ProtocolError) as error:
            return error
        return None

    async def _register(self, connection: Connection) -> None:
        """One heartbeat at a time per connection: who comes meanwhile waits, and asks for another if it is old."""
        running = self._heartbeats.get(connection)
        # One that is done is still there until its callback has run: to await it again would never let that happen.
        while running is not None and not running.done():
            await asyncio.wait([running])
            if connection.data.get(_REGISTRATION) == self._registration:
                return
            running = self._heartbeats.get(connection)
        if self._scope.closed:
            raise NotConnectedError(STOPPED)
        task = self._heartbeats[connection] = self._scope.start(self._send_heartbeat(connection), name="heartbeat-now")
        task.add_done_callback(partial(self._heartbeat_ended, connection))
        await asyncio.wait([task])
        error = NotConnectedError(STOPPED) if task.cancelled() else task.result()
        if error is not None:
            raise error

    def _heartbeat_ended(self, connection: Connection, task: object) -> None:
        if self._heartbeats.get(connection) is task:  # a newer one may have taken its place
            del self._heartbeats[connection]

    async def _send_heartbeat(self, connection: Connection) -> Exception | None:
        registration = self._registration
        try:
            body = encode_body(self.heartbeat_data(), connection.serialize_type)
            command = RemotingCommand.request(RequestCode.HEART_BEAT, body=body)
            response = await connection.request(command, self.config.remoting.request_timeout)
            if response.code != 0:
                raise remote_error(response.code, response.remark, request="HEART_BEAT", address=connection.peer)
        except (RocketError, ProtocolError) as error:
            return error
        connection.data[_REGISTRATION] = registration
        connection.data[_BROKER_VERSION] = response.version
        return None

    async def _heartbeat_forever(self) -> None:
        pause = interval = self.config.heartbeat_interval
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._heartbeat_due.wait()
                # Let what is being registered together be told together.
                await asyncio.sleep(0.05)
            except TimeoutError:
                pass
            self._heartbeat_due.clear()
            if not self.producers and not self.consumers:
                pause = interval
                continue
            errors = await self.heartbeat()
            for address, error in errors.items():
                log.info("heartbeat to %s: %s", address, error)
            pause = min(interval, self.env.entropy.jitter(_HEARTBEAT_RETRY)) if errors else interval

    def _on_close(self, connection: Connection) -> None:
        # A broker forgets a client whose connection ends. Members that pull come back by themselves; one without queues
        # there would be left out of the group until the next regular heartbeat.
        if self._lifecycle.running and self.consumers:
            self._heartbeat_due.set()

    # -- routes --

    async def route(self, topic: str, *, timeout: float | None = None, refresh: bool = False) -> TopicRoute:
        """The topic's route, asked for once however many want it. TopicNotFoundError or NotConnectedError; with
        ``refresh`` the name server is asked even if a route is known."""
        self.need_running()
        limit = self.config.remoting.request_timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(limit):
                return await self.routes.get(topic, refresh=refresh)
        except TimeoutError:
            raise RequestTimeoutError(
                f"no route for topic {topic!r} within {limit:g} s from {', '.join(self.config.nameservers)}"
            ) from None

    def watch_routes(self, callback: Callable[[TopicRoute], None]) -> Callable[[], None]:
        """Call ``callback`` with every route that changed; the returned function ends that."""
        return self.routes.watch(callback)
