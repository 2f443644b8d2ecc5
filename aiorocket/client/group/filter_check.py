"""Filters that are not tags: does every broker of the topic know them, and does this expression mean anything there?"""

from __future__ import annotations

from aiorocket.client.core.namespace import unwrap
from aiorocket.client.group.member import Member
from aiorocket.errors import UsageError
from aiorocket.remoting.connection import Connection
from aiorocket_protocol import VERSION_WITH_SQL92, RemotingCommand, RequestCode, SubscriptionData, encode_body

__all__ = ("check_expression",)


async def check_expression(member: Member, connection: Connection, subscription: SubscriptionData) -> None:
    """Ask a broker that has had our heartbeat (CHECK_CLIENT_CONFIG, 46). UsageError when it is too old, or with what it
    says of the expression; the connection's errors as they are."""
    session = member.session
    what = f"broker {connection.peer} refuses {subscription.expression_type} {subscription.sub_string!r} of topic "
    what += repr(unwrap(session.config.namespace, subscription.topic))
    version = session.broker_version(connection)
    if version < VERSION_WITH_SQL92:
        raise UsageError(f"{what}: its version {version} is older than 4.1.0 ({VERSION_WITH_SQL92}): use tags")
    body = {
        "clientId": session.client_id,
        "group": member.wire_group,
        "namespace": session.config.namespace,
        "subscriptionData": subscription.to_plain(),
    }
    command = RemotingCommand.request(
        RequestCode.CHECK_CLIENT_CONFIG, body=encode_body(body, connection.serialize_type)
    )
    answer = await connection.request(command, session.config.remoting.request_timeout)
    if answer.code != 0:
        raise UsageError(f"{what}: code {answer.code}, {answer.remark or '(no remark)'}")
