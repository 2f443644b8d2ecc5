"""Has a broker say which queues of a topic are this member's, and whether it is to pull or to pop them (400)."""

from __future__ import annotations

from typing import NamedTuple

from aiorocket.client.core.retry import remote_error
from aiorocket.client.group.member import Member
from aiorocket.model import Queue
from aiorocket.remoting.connection import Connection
from aiorocket_protocol import (
    CLUSTERING,
    POP_MODE,
    PULL_MODE,
    MessageQueue,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    decode_body,
    encode_body,
)
from aiorocket_protocol.plain import Plain

__all__ = ("BrokerAssignment", "ask_assignment")

_MODES = (PULL_MODE, POP_MODE)


class BrokerAssignment(NamedTuple):
    """``queues`` is None when the broker cannot say now: the member keeps what it has."""

    queues: list[Queue] | None
    popping: bool = False

    @classmethod
    def from_plain(cls, value: object) -> BrokerAssignment:
        """The answer's body."""
        plain = Plain(value, "QueryAssignmentResponseBody")
        if plain.members.get("messageQueueAssignments") is None:
            return cls(None)
        queues, modes = [], set()
        for item in plain.items("messageQueueAssignments"):
            each = Plain(item, "MessageQueueAssignment")
            queues.append(Queue(*MessageQueue.from_plain(each.members.get("messageQueue"))))
            modes.add(each.name("mode", _MODES, PULL_MODE))
        if len(modes) > 1:
            raise ProtocolError(f"{len(modes)} modes for one topic", where="QueryAssignmentResponseBody")
        return cls(queues, modes == {POP_MODE})

    def to_plain(self) -> dict[str, object]:
        """As brokers write it."""
        mode = POP_MODE if self.popping else PULL_MODE
        found = [{"messageQueue": MessageQueue(*queue).to_plain(), "mode": mode} for queue in self.queues or ()]
        return {} if self.queues is None else {"messageQueueAssignments": found}


async def ask_assignment(member: Member, connection: Connection, topic: str) -> BrokerAssignment:
    """Over a connection whose broker knows the member. RemoteError when it refuses, or serves no such request."""
    asked = {
        "clientId": member.session.client_id,
        "consumerGroup": member.wire_group,
        "messageModel": CLUSTERING,
        "strategyName": member.config.allocate,
        "topic": topic,
    }
    request = RemotingCommand.request(RequestCode.QUERY_ASSIGNMENT, body=encode_body(asked, connection.serialize_type))
    answer = await connection.request(request, member.session.config.remoting.request_timeout)
    if answer.code:
        raise remote_error(answer.code, answer.remark, request="QUERY_ASSIGNMENT", address=connection.peer)
    return decode_body(BrokerAssignment, answer.body, answer.serialize_type)
