"""Routes of the topics in use: asked for when first needed, refreshed every 30 s, one question at a time per topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiorocket.client.core.retry import NO_BROKERS, NO_NAMESERVER, remote_error
from aiorocket.client.core.routes import TopicRoute, check_route
from aiorocket.config import ClientConfig
from aiorocket.errors import NotConnectedError, RemoteError, RocketError, TopicNotFoundError
from aiorocket.remoting.client import RemotingClient
from aiorocket.runtime.tasks import TaskScope
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    GetRouteInfoRequestHeader,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicRouteData,
    decode_body,
)

__all__ = ("STOPPED", "RouteTable")

log = logging.getLogger("aiorocket.client")

#: Of what is asked of a client that ends meanwhile.
STOPPED = "this client was stopped"

_SUCCESS = int(ResponseCode.SUCCESS)
_NO_ROUTE = int(ResponseCode.TOPIC_NOT_EXIST)
_NO_PERMISSION = int(ResponseCode.NO_PERMISSION)


class RouteTable:
    """``get`` answers from memory or from the name servers; ``known`` only from memory, for the hot path."""

    def __init__(self, config: ClientConfig, remoting: RemotingClient) -> None:
        self._config = config
        self._remoting = remoting
        self._routes: dict[str, TopicRoute] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute | Exception]] = {}
        self._watchers: list[Callable[[TopicRoute], None]] = []
        self._scope = TaskScope("routes")
        #: The name server that answered last is asked first.
        self._preferred = 0
        #: Why the name servers could not be asked lately; empty when one answered.
        self.trouble = ""
        #: Our address as the network sees it, from the latest connection to a name server.
        self.local_ip = "127.0.0.1"

    def known(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    def broker_addresses(self, *, masters_only: bool) -> set[str]:
        """Every broker that serves a topic in use, and every other that we are connected to: a topic that a send
        creates has no route until then, and its broker may ask about a transaction before we look again."""
        found = self._remoting.addresses - set(self._config.nameservers)
        if masters_only:
            return found | self.masters()
        return found.union(*(route.all_addresses() for route in self._routes.values()))

    def masters(self) -> set[str]:
        """The masters that serve a topic in use, connected or not."""
        return set[str]().union(*(route.masters() for route in self._routes.values()))

    def broker_name(self, address: str) -> str | None:
        """The broker at ``address``, as far as the routes in use name it."""
        for route in self._routes.values():
            for name, ids in route.addresses.items():
                if address in ids.values():
                    return name
        return None

    def watch(self, callback: Callable[[TopicRoute], None]) -> Callable[[], None]:
        """Call it with every route that changed, until the function that is returned is called (or this is closed)."""
        self._watchers.append(callback)

        def unwatch() -> None:
            if callback in self._watchers:
                self._watchers.remove(callback)

        return unwatch

    async def get(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """TopicNotFoundError when a name server says so, RemoteError when one says that it is not for us,
        NotConnectedError when none answers."""
        route = self._routes.get(topic)
        if route is not None and not refresh:
            return route
        asking = self.refresh_soon(topic)
        await asyncio.wait([asking])
        # Who waits for what a stop cancelled was not cancelled itself.
        result = NotConnectedError(STOPPED) if asking.cancelled() else asking.result()
        if isinstance(result, Exception):
            raise result
        return result

    def refresh_soon(self, topic: str) -> asyncio.Future[TopicRoute | Exception]:
        """Ask the name servers, unless somebody is asking them for this topic already."""
        task = self._asking.get(topic)
        if task is None:
            if self._scope.closed:
                ended: asyncio.Future[TopicRoute | Exception] = asyncio.get_running_loop().create_future()
                ended.set_result(NotConnectedError(STOPPED))
                return ended
            # A task of its own, so that the first caller's cancellation is not everybody's. It returns its error,
            # because a task nobody waits for any more must not be reported as crashed.
            task = self._asking[topic] = self._scope.start(self._ask(topic), name=topic)
            task.add_done_callback(lambda _: self._asking.pop(topic, None))
        return task

    async def template(self, topic: str, queues: int) -> TopicRoute | None:
        """A provisional route for a topic that does not exist yet, on every broker that would create it; None when no
        broker would. It is not remembered: the first send creates the topic, then the real route is there."""
        data = await self._from_nameservers(AUTO_CREATE_TOPIC)
        return None if isinstance(data, Exception) else TopicRoute.from_data(topic, data, at_most=queues)

    async def refresh_forever(self) -> None:
        """Keep the known routes fresh. A name server that is away changes nothing: the routes we have stay in use."""
        while True:
            await asyncio.sleep(self._config.route_interval)
            for topic in list(self._routes):
                try:
                    await self.get(topic, refresh=True)
                except (RocketError, ProtocolError) as error:
                    log.info("route of %s stays as it was: %s", topic, error)

    async def close(self) -> None:
        await self._scope.close()
        self._watchers.clear()

    async def _ask(self, topic: str) -> TopicRoute | Exception:
        data = await self._from_nameservers(topic)
        if isinstance(data, TopicNotFoundError):
            hint = await self._from_nameservers(AUTO_CREATE_TOPIC)
            creates = "no broker creates topics by itself: create it first"
            if not isinstance(hint, Exception):
                creates = "brokers create topics at the first send"
            return TopicNotFoundError(f"{data}; {creates}")
        if isinstance(data, Exception):
            return data
        route = TopicRoute.from_data(topic, data)
        if self._routes.get(topic) != route:
            self._routes[topic] = route
            for callback in tuple(self._watchers):
                callback(route)
        return self._routes[topic]

    async def _from_nameservers(self, topic: str) -> TopicRouteData | Exception:
        """The first route any name server has; else what each of them said."""
        servers = self._config.nameservers
        said: list[str] = []
        answered = unknown = False
        refused: RemoteError | None = None
        for turn in range(len(servers)):
            index = (self._preferred + turn) % len(servers)
            address = servers[index]
            try:
                connection = await self._remoting.connect(address)
                host = connection.local.rpartition(":")[0].strip("[]")
                if host:
                    self.local_ip = host
                header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
                command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
                response = await connection.request(command, self._config.remoting.request_timeout)
                self.trouble, answered = "", True
                if response.code == _SUCCESS:
                    self._preferred = index
                    data = decode_body(TopicRouteData, response.body, response.serialize_type)
                    return check_route(topic, data, self._config.limits.route_queues)
                if response.code == _NO_ROUTE:
                    unknown = True
                    said.append(f"{address} has no route")
                else:
                    error = remote_error(response.code, response.remark, request="GET_ROUTEINFO", address=address)
                    if response.code == _NO_PERMISSION:
                        refused = error
                    said.append(str(error))
            except (RocketError, ProtocolError) as error:
                said.append(str(error) if address in str(error) else f"{address}: {error}")
        text = f"topic {topic!r}: " + ", ".join(said)
        if unknown:
            return TopicNotFoundError(text)
        if refused is not None:
            return refused
        self.trouble = f"no name server answers for {text}. {NO_BROKERS if answered else NO_NAMESERVER}"
        return NotConnectedError(self.trouble)
