"""Tells every name server about this broker: at start, when topics change, every 30 s, and when it stops.

At start and every 30 s it sends the whole table of topics. A change sends what changed since the name server last
answered on the same connection, if it is one of ours (it speaks msgpack): these add what they are told to what they
know. So do Apache's, but with ``deleteTopicWithBrokerRegistration`` they drop what is not named, and are told all. Each
is told one thing at a time, however long another takes, and all who ask for a round meanwhile share the next.

A name server that cannot be reached is tried again, and nobody waits for it; one that refuses (another broker holds the
name) is an error the operator must see, so the first round's refusal ends the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

from aiorocket.broker.core.topics import Topic, TopicTable
from aiorocket.errors import RocketError, UsageError
from aiorocket.remoting.client import RemotingClient
from aiorocket.runtime.tasks import TaskScope
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import (
    MSGPACK,
    PERM_INHERIT,
    DataVersion,
    GetRouteInfoRequestHeader,
    KVTable,
    ProtocolError,
    RegisterBrokerBody,
    RegisterBrokerRequestHeader,
    RemotingCommand,
    RequestCode,
    TopicConfig,
    TopicRouteData,
    UnRegisterBrokerRequestHeader,
    decode_body,
    encode_body,
    table_body,
)

if TYPE_CHECKING:
    from aiorocket.access.security import Security
    from aiorocket.config import BrokerConfig
    from aiorocket.remoting.connection import Connection
    from aiorocket.runtime.env import Env

__all__ = ("Registration",)

_log = logging.getLogger("aiorocket.broker")

#: Seconds until an unreachable name server is tried again.
RETRY_AFTER = 1.0
#: Topics looked at in one turn of the loop. Of more of them a registration is compressed, little by little, unless some
#: are of units, which the compressed form does not say.
A_TURN = 1_000
#: Seconds a name server has to answer when a client waits for what it knows; clients wait 3.
ROUTE_TIMEOUT = 1.0


class Registration:
    """This broker's entry at its name servers. ``address`` is what clients will be told to connect to,
    ``order_topics`` is called with the topics that name servers have an order configuration for, ``permission`` is what
    the broker as a whole allows."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        topics: TopicTable,
        *,
        address: str,
        version: Callable[[], DataVersion],
        order_topics: Callable[[Iterable[str]], Awaitable[None]],
        permission: Callable[[], int],
        security: Security,
    ) -> None:
        self._config = config
        self._topics = topics
        self._address = address
        self._version = version
        self._order_topics = order_topics
        self._permission = permission
        self._client = RemotingClient(
            env, config.remoting, on_close=self._lost, signer=security.signer, tls=security.client_tls
        )
        self._tasks = TaskScope("broker-registration")
        self._closing = False
        #: For each name server: there is something to tell it.
        self._news = {nameserver: asyncio.Event() for nameserver in config.nameservers}
        #: Name server -> why it does not know us at the moment.
        self.failures: dict[str, str] = {}
        self._refused: set[str] = set()
        #: For each name server: held while it is told, and how many had asked for what it was told last.
        self._telling = {nameserver: asyncio.Lock() for nameserver in config.nameservers}
        self._asked = 0
        self._answered = dict.fromkeys(config.nameservers, 0)
        #: Name server -> what it has been told on which connection. A topic that changes is another object.
        self._told: dict[str, tuple[Connection, int, dict[str, Topic], float]] = {}

    async def start(self) -> None:
        """Register once with all, then keep it up. UsageError when one refuses, with its reason."""
        for news in self._news.values():
            news.clear()  # what has changed until now goes with the first round
        await self.register()
        for nameserver in sorted(self._refused):
            raise UsageError(f"name server {nameserver} refuses this broker: {self.failures[nameserver]}")
        for nameserver in self._news:
            self._tasks.start(self._keep(nameserver), name=f"keep-{nameserver}")

    async def register(self) -> None:
        """Return when name servers were told all that is true now; one that could not be reached the last time is told
        when it can be. Failures are kept in ``failures``, never raised."""
        self._asked += 1
        telling = []
        for nameserver, news in self._news.items():
            if self._is_away(nameserver):
                news.set()
            else:
                telling.append(self._tell(nameserver, self._asked))
        if len(telling) == 1:
            await telling[0]
        elif telling:
            await asyncio.gather(*telling)

    def _is_away(self, nameserver: str) -> bool:
        return nameserver in self.failures and nameserver not in self._refused

    async def _tell(self, nameserver: str, asked: int) -> None:
        async with self._telling[nameserver]:
            if self._answered[nameserver] < asked:  # else what began after we asked has told it
                begun = self._asked
                await self._register(nameserver)
                self._answered[nameserver] = begun

    def changed(self) -> None:
        """Topics changed: tell name servers soon; any number of changes in between make one round."""
        for news in self._news.values():
            news.set()

    async def route(self, topic: str) -> TopicRouteData | None:
        """What the first name server that answers knows of a topic; None when none does."""
        command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic))
        for nameserver in self._config.nameservers:
            try:
                answer = await self._client.request(nameserver, command, ROUTE_TIMEOUT)
                if answer.code == 0:
                    return decode_body(TopicRouteData, answer.body, answer.serialize_type)
            except (RocketError, ProtocolError) as error:
                _log.warning("name server %s gave no route of %s: %s", nameserver, topic, error)
        return None

    async def close(self) -> None:
        """Say goodbye to those that can be reached, and end the connections."""
        self._closing = True
        await self._tasks.close()
        header = UnRegisterBrokerRequestHeader(
            broker_name=self._config.name,
            broker_addr=self._address,
            cluster_name=self._config.cluster,
            broker_id=self._config.broker_id,
        )
        pending = []
        for connection in self._client.connections:
            try:
                pending.append(
                    connection.request(RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header), timeout=1.0)
                )
            except RocketError:
                continue  # it is gone, and with it our entry
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)
        await self._client.close()

    async def _keep(self, nameserver: str) -> None:
        news = self._news[nameserver]
        while True:
            try:
                async with asyncio.timeout(
                    RETRY_AFTER if self._is_away(nameserver) else self._config.register_interval
                ):
                    await news.wait()
            except TimeoutError:
                self._told.pop(nameserver, None)  # the interval is over, that is what we waited for: all of it again
            news.clear()  # before it is told: what changes meanwhile needs another round
            self._asked += 1
            await self._tell(nameserver, self._asked)

    def _lost(self, connection: Connection) -> None:
        # One that did not know us is tried again in its time: else one that only hangs up would be called without end.
        address = connection.data.get("address")
        if not self._closing and address in self._news and address not in self.failures:
            self._news[address].set()

    async def _register(self, nameserver: str) -> None:
        timeout = self._config.register_timeout
        try:
            async with asyncio.timeout(timeout):
                connection = await self._client.connect(nameserver)
                allowed = self._permission() | PERM_INHERIT
                topics = {topic.name: topic for topic in self._topics}
                told = self._told.pop(nameserver, None)  # until it answers
                now = asyncio.get_running_loop().time()
                # One that has not heard of us for so long may have forgotten us.
                fresh = told is not None and now - told[3] < 2 * self._config.register_interval
                adds = connection.serialize_type == MSGPACK
                known = told[2] if told is not None and fresh and adds and told[:2] == (connection, allowed) else {}
                news = [topic for name, topic in topics.items() if known.get(name) is not topic]
                body, compressed = await self._body(news, allowed, connection.serialize_type)
                command = RemotingCommand.request(
                    RequestCode.REGISTER_BROKER, self._header()._replace(compressed=compressed), body=body
                )
                response = await connection.request(command, timeout)
        except TimeoutError:
            self._failed(nameserver, f"no answer within {timeout:g} s")
            return
        except (RocketError, ProtocolError) as error:
            # The same words for as long as it is away: each new reason is a line of the log.
            self._failed(nameserver, self._client.trouble(nameserver) or str(error))
            return
        if response.code != 0:
            self._refused.add(nameserver)
            self._failed(nameserver, response.remark or f"code {response.code}")
            return
        self._refused.discard(nameserver)
        self._told[nameserver] = connection, allowed, topics, now
        if response.body:
            try:
                orders = decode_body(KVTable, response.body, response.serialize_type).table
            except ProtocolError as error:
                _log.warning("name server %s: the order configuration cannot be read: %s", nameserver, error)
            else:
                await self._order_topics(orders)
        if self.failures.pop(nameserver, None) is not None:
            _log.info("registered with name server %s again", nameserver)

    async def _body(self, topics: list[Topic], allowed: int, serialize_type: int) -> tuple[bytes, bool]:
        """Of these topics, and whether it is compressed: tens of thousands with long names are more than a frame."""
        version = self._version()
        configs: list[TopicConfig] = []
        for number, topic in enumerate(topics, 1):
            configs.append(_config_of(topic, allowed))
            if number % A_TURN == 0:
                await asyncio.sleep(0)
        body = RegisterBrokerBody(version, configs)
        if len(configs) <= A_TURN:
            return encode_body(body, serialize_type), False
        if any(config.topic_sys_flag for config in configs):
            try:
                return await in_turns(_written(version, configs, serialize_type)), False
            except ProtocolError:  # it has no room in a frame
                _log.warning("name servers are not told which of %d topics are of units", len(configs))
        return await in_turns(body.compressing()), True

    def _failed(self, nameserver: str, why: str) -> None:
        if self.failures.get(nameserver) != why:
            _log.warning("not registered with name server %s: %s", nameserver, why)
        self.failures[nameserver] = why

    def _header(self) -> RegisterBrokerRequestHeader:
        return RegisterBrokerRequestHeader(
            broker_name=self._config.name,
            broker_addr=self._address,
            cluster_name=self._config.cluster,
            ha_server_addr="",
            broker_id=self._config.broker_id,
            compressed=False,
            body_crc32=0,
        )


def _written(version: DataVersion, configs: list[TopicConfig], serialize_type: int) -> Generator[None, None, bytes]:
    """A RegisterBrokerBody, little by little."""
    plain = RegisterBrokerBody(version, []).to_plain()
    table: dict[str, Any] = plain.pop("topicConfigSerializeWrapper")
    del table["topicConfigTable"]
    writing = table_body(
        table, "topicConfigTable", configs, lambda config: (config.topic_name, config.to_plain()), serialize_type
    )
    content = yield from writing
    begin = encode_body({**plain, "topicConfigSerializeWrapper": {}}, serialize_type)
    return begin[:-1] + content if serialize_type == MSGPACK else begin[:-3] + content + b"}"


def _config_of(topic: Topic, allowed: int) -> TopicConfig:
    return TopicConfig(
        topic_name=topic.name,
        read_queue_nums=topic.read_queues,
        write_queue_nums=topic.write_queues,
        perm=topic.perm & allowed,
        topic_filter_type=topic.filter_type,
        topic_sys_flag=topic.sys_flag,
        order=topic.order,
        attributes=topic.attributes,
    )
