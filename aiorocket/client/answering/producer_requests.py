"""What brokers ask of the producers of a client: how a transaction ended, and to take a reply."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from aiorocket.client.pushed import broker_of, from_reply
from aiorocket.remoting.processors import RequestHandler
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

if TYPE_CHECKING:
    from aiorocket.client.link import Registry
    from aiorocket.client.sending.request_reply import Requests
    from aiorocket.remoting.connection import Connection

__all__ = ("Asks", "Checks", "handlers")

log = logging.getLogger("aiorocket.client")


@runtime_checkable
class Checks(Protocol):
    """A producer of transactions."""

    def check(self, connection: Connection, header: CheckTransactionStateRequestHeader, record: bytes) -> None:
        """A broker wants to know how the transaction of the half message in ``record`` ended."""


@runtime_checkable
class Asks(Protocol):
    """A producer that may wait for replies."""

    @property
    def requests(self) -> Requests: ...


def handlers(client: Registry) -> dict[int, RequestHandler]:
    """By request code, for the processor table of ``client``."""

    def check_transaction(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """39, one-way: the producer of the half message's group answers by an END_TRANSACTION of its own."""
        header = command.read(CheckTransactionStateRequestHeader)
        record = bytes(command.body)
        group = _group_of(split_records(record))
        producer = client.producers.get(group)
        if isinstance(producer, Checks):
            producer.check(connection, header, record)
        else:
            log.warning("%s asks for transactions of group %r, which is none here", connection.peer, group)
        return RemotingCommand.response()

    def take_reply(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """326: the reply to a request of one of our producers. Answered with success also when it comes too late, as
        Java does: the replier cannot do anything about it."""
        header = command.read(ReplyMessageRequestHeader)
        now_ms = client.env.clock.wall_ms()
        message = from_reply(client, header, bytes(command.body), broker_of(client, connection), now_ms)
        correlation_id = message.properties.get(PROPERTY_CORRELATION_ID, "")
        for producer in client.producers.values():
            if isinstance(producer, Asks) and producer.requests.owns(correlation_id):
                producer.requests.complete(correlation_id, message)
                break
        else:
            log.warning("%s brought a reply to request %r, which none here has sent", connection.peer, correlation_id)
        return RemotingCommand.response()

    return {
        RequestCode.CHECK_TRANSACTION_STATE: check_transaction,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: take_reply,
    }


def _group_of(records: list[RecordView]) -> str:
    return records[0].properties.get(PROPERTY_PGROUP, "") if records else ""
