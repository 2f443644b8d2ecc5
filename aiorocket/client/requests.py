"""What brokers ask of a client: which code is answered by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket.client import producer_requests
from aiorocket.remoting.router import Handler
from aiorocket_protocol import NotifyConsumerIdsChangedRequestHeader, RemotingCommand, RequestCode

if TYPE_CHECKING:
    from aiorocket.client.session import Client
    from aiorocket.remoting.connection import Connection

__all__ = ("handlers",)


def handlers(client: Client) -> dict[int, Handler]:
    """By request code, for the router of ``client``."""

    def members_changed(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """40, one-way: the group changed, look at once who gets which queue."""
        group = command.read(NotifyConsumerIdsChangedRequestHeader).consumer_group
        member = client.consumers.get(group)
        if member is not None:
            member.rebalance_now()
        return RemotingCommand.response()

    return {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: members_changed, **producer_requests.handlers(client)}
