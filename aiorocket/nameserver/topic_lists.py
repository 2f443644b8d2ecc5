"""Lists of topics: all (206), a cluster's (224), those every cluster and broker has (304), those of units (311 to
313)."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from aiorocket.nameserver.core.routes import RouteInfo
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import (
    GetTopicsByClusterRequestHeader,
    RemotingCommand,
    RequestCode,
    TopicListBody,
    encode_body,
    list_body,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler

__all__ = ("TopicLists",)

#: Bits of topicSysFlag: the topic is a unit's; units subscribe to it.
UNIT = 1
UNIT_SUB = 2


class TopicLists:
    """Handlers for 206, 224, 304, 311, 312 and 313."""

    def __init__(self, routes: RouteInfo) -> None:
        self._routes = routes

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.subscribed_by_units,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.others_subscribed_by_units,
        }

    async def all_topics(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return await _topics(connection, command, self._routes.all_topics())

    async def topics_of_cluster(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        cluster = command.read(GetTopicsByClusterRequestHeader).cluster
        return await _topics(connection, command, self._routes.topics_of_cluster(cluster))

    def system_topics(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """The names of clusters and brokers, which are topics too, and the address of some broker, to ask it for
        more."""
        brokers = self._routes.brokers()
        names = {data.cluster for data in brokers} | {data.broker_name for data in brokers}
        address = next((address for data in brokers for address in data.broker_addrs.values()), None)
        body = TopicListBody(sorted(names), address)
        return RemotingCommand.response(body=encode_body(body, connection.reply_type(command)))

    async def unit_topics(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return await _topics(connection, command, self._routes.flagged(UNIT))

    async def subscribed_by_units(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return await _topics(connection, command, self._routes.flagged(UNIT_SUB))

    async def others_subscribed_by_units(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return await _topics(connection, command, self._routes.flagged(UNIT_SUB, without=UNIT))


async def _topics(
    connection: Connection, command: RemotingCommand, finding: Generator[None, None, list[str]]
) -> RemotingCommand:
    """A TopicListBody, in turns."""
    writing = list_body({}, "topicList", await in_turns(finding), connection.reply_type(command))
    return RemotingCommand.response(body=await in_turns(writing))
