"""What brokers ask of the producers of a client: how a transaction ended, and to take a reply."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aiorocket.client.pushed import broker_of, from_reply
from aiorocket.client.registered import GroupProducer
from aiorocket.client.route_table import RouteTable
from aiorocket.config import ClientConfig
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import RequestHandler
from aiorocket.runtime.clock import Clock
from aiorocket_protocol import (
    PROPERTY_CORRELATION_ID,
    PROPERTY_PGROUP,
    CheckTransactionStateRequestHeader,
    RecordView,
    RemotingCommand,
    ReplyMessageRequestHeader,
    RequestCode,
    split_records,
)

__all__ = ("handlers",)

log = logging.getLogger("aiorocket.client")


def handlers(
    producers: Mapping[str, GroupProducer], config: ClientConfig, clock: Clock, routes: RouteTable
) -> dict[int, RequestHandler]:
    """By request code. ``producers`` by group, as they are when a request comes; ``routes`` name the brokers."""

    def check_transaction(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """39, one-way: the producer of the half message's group answers by an END_TRANSACTION of its own."""
        header = command.read(CheckTransactionStateRequestHeader)
        record = bytes(command.body)
        group = _group_of(split_records(record))
        producer = producers.get(group)
        if producer is None or not producer.check(connection, header, record):
            log.warning("%s asks for transactions of group %r, which is none here", connection.peer, group)
        return RemotingCommand.response()

    def take_reply(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """326: the reply to a request of one of our producers. Answered with success also when it comes too late, as
        Java does: the replier cannot do anything about it."""
        header = command.read(ReplyMessageRequestHeader)
        reply = from_reply(config.namespace, header, command.body, broker_of(routes, connection), clock.wall_ms())
        correlation_id = reply.properties.get(PROPERTY_CORRELATION_ID, "")
        if not any(producer.take_reply(correlation_id, reply) for producer in producers.values()):
            log.warning("%s brought a reply to request %r, which none here has sent", connection.peer, correlation_id)
        return RemotingCommand.response()

    return {
        RequestCode.CHECK_TRANSACTION_STATE: check_transaction,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: take_reply,
    }


def _group_of(records: list[RecordView]) -> str:
    return records[0].properties.get(PROPERTY_PGROUP, "") if records else ""
