"""Lists of brokers: of every cluster (106), and those of one name (901)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorocket.nameserver.core.routes import RouteInfo
from aiorocket_protocol import (
    ClusterInfo,
    GetBrokerMemberGroupRequestHeader,
    RemotingCommand,
    RequestCode,
    encode_body,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler

__all__ = ("BrokerLists",)


class BrokerLists:
    """Handlers for 106 and 901."""

    def __init__(self, routes: RouteInfo) -> None:
        self._routes = routes

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_BROKER_CLUSTER_INFO: self.clusters,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.members,
        }

    def clusters(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        brokers = {data.broker_name: data for data in self._routes.brokers()}
        clusters: dict[str, list[str]] = {}
        for data in brokers.values():
            clusters.setdefault(data.cluster, []).append(data.broker_name)
        return _answer(connection, command, ClusterInfo(brokers, clusters))

    def members(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """None when nobody of that name has registered."""
        header = command.read(GetBrokerMemberGroupRequestHeader)
        name = header.broker_name
        known = next((data for data in self._routes.brokers() if data.broker_name == name), None)
        group = {
            "brokerAddrs": {} if known is None else known.to_plain()["brokerAddrs"],
            "brokerName": name,
            "cluster": header.cluster_name,
        }
        return _answer(connection, command, {"brokerMemberGroup": group})


def _answer(connection: Connection, command: RemotingCommand, body: ClusterInfo | dict[str, Any]) -> RemotingCommand:
    return RemotingCommand.response(body=encode_body(body, connection.reply_type(command)))
