"""QUERY_ASSIGNMENT (400) and SET_MESSAGE_REQUEST_MODE (401): which queues a consumer gets that lets brokers decide, and
whether it pulls or pops them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiorocket.broker.answers import plain_body, refuse, unknown_topic
from aiorocket.broker.core.modes import Mode, assign
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.tables import Tables
from aiorocket.model import Queue
from aiorocket_protocol import (
    BROADCASTING,
    CLUSTERING,
    MESSAGE_MODELS,
    PERM_READ,
    POP_MODE,
    PULL_MODE,
    RETRY_PREFIX,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicRouteData,
    encode_body,
)
from aiorocket_protocol.plain import Plain

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler

__all__ = ("AssignmentHandler", "ModeHandler")

_MODES = (PULL_MODE, POP_MODE)


class AssignmentHandler:
    """Handler for 400. ``route`` is what name servers know of a topic, None when they know nothing or cannot be
    asked."""

    def __init__(
        self, tables: Tables, *, broker: str, route: Callable[[str], Awaitable[TopicRouteData | None]]
    ) -> None:
        self._topics = tables.topics
        self._consumers = tables.consumers
        self._modes = tables.modes
        self._broker = broker
        self._route = route

    def codes(self) -> dict[int, RequestHandler]:
        return {RequestCode.QUERY_ASSIGNMENT: self.query}

    async def query(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 400: the queues, of all brokers, for one member; no list at all when it is to keep what it has."""
        body = Plain(dict(plain_body(command)), "QueryAssignmentRequestBody")
        topic, group, me = body.text("topic"), body.text("consumerGroup"), body.text("clientId")
        mode = self._modes.get(topic, group)
        queues = await self._queues(topic)
        live = self._consumers.get(group)
        mine: list[Queue] | None
        if not queues:
            mine = None
        elif body.name("messageModel", MESSAGE_MODELS, CLUSTERING) == BROADCASTING:
            mine = queues
        else:
            members = [] if live is None else live.client_ids()
            mine = assign(mode, queues, members, me, body.text("strategyName", "AVG"))
        assignments = None if mine is None else [
            {"attachments": None, "messageQueue": MessageQueue(*queue).to_plain(), "mode": mode.name} for queue in mine
        ]  # fmt: skip
        answer = {} if assignments is None else {"messageQueueAssignments": assignments}
        return RemotingCommand.response(body=encode_body(answer, connection.reply_type(command)))

    async def _queues(self, topic: str) -> list[Queue]:
        route = await self._route(topic)
        if route is not None:
            return [
                Queue(topic, data.broker_name, queue_id)
                for data in route.queue_datas
                if data.perm & PERM_READ
                for queue_id in range(data.read_queue_nums)
            ]
        known = self._topics.get(topic)
        if known is None or not known.readable:
            return []
        return [Queue(topic, self._broker, queue_id) for queue_id in range(known.read_queues)]


class ModeHandler:
    """Handler for 401; ``save`` returns when the modes are durable."""

    def __init__(self, tables: Tables, *, save: Callable[[], Awaitable[None]]) -> None:
        self._topics = tables.topics
        self._configs = tables.configs
        self._modes = tables.modes
        self._save = save

    def codes(self) -> dict[int, RequestHandler]:
        return {RequestCode.SET_MESSAGE_REQUEST_MODE: self.set}

    async def set(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 401: pull or pop, for one topic and group."""
        body = Plain(dict(plain_body(command)), "SetMessageRequestModeRequestBody")
        topic, group = body.text("topic"), body.text("consumerGroup")
        mode = Mode(body.name("mode", _MODES, PULL_MODE), body.number("popShareQueueNum", 0))
        if topic.startswith(RETRY_PREFIX):
            return refuse(Refusal(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"))
        if topic not in self._topics:
            return refuse(unknown_topic(topic))
        config = self._configs.ensure(group, connection.holds)
        if isinstance(config, Refusal):
            return refuse(config)
        if (refusal := self._modes.put(topic, group, mode)) is not None:
            return refuse(refusal)
        await self._save()
        return RemotingCommand.response()
