"""Filters that are not tags: does every broker of the topic know them, and does this expression mean anything there?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket.client.core.namespace import unwrap
from aiorocket.errors import UsageError
from aiorocket_protocol import VERSION_WITH_SQL92, RemotingCommand, RequestCode, encode_body

if TYPE_CHECKING:
    from aiorocket.client.group.member import Reader
    from aiorocket.remoting.connection import Connection
    from aiorocket_protocol import SubscriptionData

__all__ = ("check_expression",)


async def check_expression(consumer: Reader, connection: Connection, subscription: SubscriptionData) -> None:
    """Ask a broker that has had our heartbeat (CHECK_CLIENT_CONFIG, 46). UsageError when it is too old, or with what it
    says of the expression; the connection's errors as they are."""
    client = consumer.client
    what = f"broker {connection.peer} refuses {subscription.expression_type} {subscription.sub_string!r} of topic "
    what += repr(unwrap(client.config.namespace, subscription.topic))
    version = client.broker_version(connection)
    if version < VERSION_WITH_SQL92:
        raise UsageError(f"{what}: its version {version} is older than 4.1.0 ({VERSION_WITH_SQL92}): use tags")
    body = {
        "clientId": client.client_id,
        "group": consumer.wire_group,
        "namespace": client.config.namespace,
        "subscriptionData": subscription.to_plain(),
    }
    command = RemotingCommand.request(
        RequestCode.CHECK_CLIENT_CONFIG, body=encode_body(body, connection.serialize_type)
    )
    answer = await connection.request(command, client.config.remoting.request_timeout)
    if answer.code != 0:
        raise UsageError(f"{what}: code {answer.code}, {answer.remark or '(no remark)'}")
