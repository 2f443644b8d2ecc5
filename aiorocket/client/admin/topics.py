"""Topics at their brokers: where they are administered, and setting them up."""

from __future__ import annotations

from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.session import Session
from aiorocket.errors import NotConnectedError
from aiorocket_protocol import AUTO_CREATE_TOPIC, PERM_READ_WRITE, SINGLE_TAG, CreateTopicRequestHeader, RequestCode

__all__ = ("configure", "master_of")


def master_of(route: TopicRoute, broker_name: str) -> str:
    """The address of the broker's master; NotConnectedError when it has none."""
    address = route.master(broker_name)
    if address is None:
        raise NotConnectedError(f"broker {broker_name!r} of topic {route.topic!r} has no master at the moment")
    return address


async def configure(client: Session, address: str, topic: str, queues: int) -> None:
    """Create ``topic`` on the broker at ``address``, or change it: so many queues, for reading and writing. RemoteError
    when the broker serves no administration."""
    header = CreateTopicRequestHeader(topic, AUTO_CREATE_TOPIC, queues, queues, PERM_READ_WRITE, SINGLE_TAG, False)
    await client.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
