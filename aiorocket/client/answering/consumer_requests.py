"""What brokers ask of the consumers of a client, and the answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from aiorocket.client.answering.running_info import queue_key, queues_of, running_info
from aiorocket.client.registered import GroupMember
from aiorocket.config import ClientConfig
from aiorocket.model import Queue
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import RequestHandler
from aiorocket.runtime.clock import Clock
from aiorocket.runtime.tasks import TaskScope
from aiorocket_protocol import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    MessageQueue,
    NotifyConsumerIdsChangedRequestHeader,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    ResetOffsetRequestHeader,
    ResponseCode,
    decode_body,
    encode_body,
)

__all__ = ("ResetOffsetBody", "handlers")

log = logging.getLogger("aiorocket.client")


class ResetOffsetBody(dict[Queue, int]):
    """Offsets by queue, in either form brokers send: a map with objects as keys, or for clients that say they are
    written in C++ a list of objects."""

    def to_plain(self) -> dict[str, Any]:
        table = [{**MessageQueue(*queue).to_plain(), "offset": offset} for queue, offset in self.items()]
        return {"offsetTable": table}

    @classmethod
    def from_plain(cls, value: Any) -> ResetOffsetBody:
        table = value.get("offsetTable") if isinstance(value, dict) else None
        pairs: list[tuple[Any, Any]]
        if isinstance(table, dict):
            pairs = list(table.items())
        elif isinstance(table, list):
            pairs = [(item, item.get("offset") if isinstance(item, dict) else None) for item in table]
        else:
            raise ProtocolError(f"an offsetTable is needed, not {table!r:.80}", where="ResetOffsetBody")
        found = cls()
        for key, offset in pairs:
            if type(offset) is not int:
                raise ProtocolError(f"offset {offset!r:.80} of {key!r:.120} is no number", where="ResetOffsetBody")
            found[Queue(*MessageQueue.from_plain(key))] = offset
        return found


def handlers(
    consumers: Mapping[str, GroupMember], config: ClientConfig, clock: Clock, scope: TaskScope
) -> dict[int, RequestHandler]:
    """By request code. ``consumers`` by group, as they are when a request comes; in ``scope`` runs what outlives the
    connection that it came on."""

    def members_changed(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """40, one-way: the group changed, look at once who gets which queue."""
        group = command.read(NotifyConsumerIdsChangedRequestHeader).consumer_group
        member = consumers.get(group)
        if member is not None:
            member.rebalance_now()
        return RemotingCommand.response()

    def info(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """307: what the consumer is doing."""
        header = command.read(GetConsumerRunningInfoRequestHeader)
        member = consumers.get(header.consumer_group)
        if member is None:
            return _unknown(header.consumer_group)
        kind = connection.reply_type(command)
        plain = running_info(member, config, clock, kind, dump=bool(header.jstack_enable))
        return RemotingCommand.response(body=encode_body(plain, kind))

    async def directly(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """309: consume the message in the body now. A pull consumer has nobody who could, and is unknown as in Java."""
        header = command.read(ConsumeMessageDirectlyResultRequestHeader)
        member = consumers.get(header.consumer_group)
        if member is None or member.consume_directly is None:
            return _unknown(header.consumer_group)
        plain = await member.consume_directly(command.body, header.broker_name or "")
        return RemotingCommand.response(body=encode_body(plain, connection.reply_type(command)))

    def status(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """221: how far this member is in a topic. Empty when the group is not here, as in Java."""
        header = command.read(GetConsumerStatusRequestHeader)
        member = consumers.get(header.group)
        kind = connection.reply_type(command)
        offsets = {
            queue_key(queue, kind): state.done
            for queue, state in (queues_of(member, config.namespace) if member is not None else ())
            if queue.topic == header.topic
        }
        return RemotingCommand.response(body=encode_body({"consumerTable": {}, "messageQueueTable": offsets}, kind))

    def reset(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """220, one-way: begin again at other offsets. It outlives the connection it came on."""
        header = command.read(ResetOffsetRequestHeader)
        member = consumers.get(header.group)
        if member is None:
            return _unknown(header.group)
        table = decode_body(ResetOffsetBody, command.body, command.serialize_type)
        wanted = {queue: max(0, offset) for queue, offset in table.items() if queue.topic == header.topic}
        log.warning("group %s: %s resets %d queues of %s", header.group, connection.peer, len(wanted), header.topic)
        if member.reset_offsets is not None:
            scope.start(member.reset_offsets(header.topic, wanted), name="reset-offsets")
        return RemotingCommand.response()

    return {
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: members_changed,
        RequestCode.GET_CONSUMER_RUNNING_INFO: info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: directly,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: status,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: reset,
    }


def _unknown(group: str) -> RemotingCommand:
    return RemotingCommand.response(
        ResponseCode.SYSTEM_ERROR, remark=f"The Consumer Group <{group}> not exist in this consumer"
    )
