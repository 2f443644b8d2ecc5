"""SEND_REPLY_MESSAGE (324, 325): the answer to a message that asked for one, pushed to whoever asked.

The asker is a producer known by its heartbeats; its client id stands in property REPLY_TO_CLIENT. The reply goes to it
as PUSH_REPLY_MESSAGE_TO_CLIENT (326) and, as at Apache's, into its topic too, where nobody reads it but an
administrator can find it. The replier's receipt says whether the asker took the reply; a reply that was only stored is
an error to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.broker.answers import refuse, unknown_topic
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.send_checks import Admitted, SendHeader, added_properties, check_sizes
from aiorocket.broker.core.tables import Tables
from aiorocket.errors import RocketError
from aiorocket.remoting.awaited import AwaitedBytes, shed, size_of
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import (
    DEFAULT_REGION,
    PROPERTY_PUSH_REPLY_TIME,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TAGS,
    REPLY_SUFFIX,
    SYS_FLAG_TRANSACTION_MASK,
    ProtocolError,
    RemotingCommand,
    ReplyMessageRequestHeader,
    RequestCode,
    ResponseCode,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    decode_properties,
    encode_properties,
    offset_msg_id,
    reply_topic,
    tags_code,
)

if TYPE_CHECKING:
    from aiorocket.broker.core.groups import GroupTable
    from aiorocket.config import BrokerConfig
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.runtime.env import Env
    from aiorocket.storage.store import MessageStore

__all__ = ("ReplyHandlers",)

_log = logging.getLogger("aiorocket.broker")

#: Bytes of properties for the time of the push.
ROOM_FOR_PUSH = 64


#: Which topic and queue a message may go to.
Admit = Callable[["Connection", RemotingCommand, SendHeader], Admitted | Refusal]


class _Replier(NamedTuple):
    """Who waits to be told what became of a reply: of the reply itself it holds nothing."""

    connection: Connection
    command: RemotingCommand
    topic: str
    queue_id: int

    def answer(self, error: str | None, msg_id: str = "0", offset: int = 0) -> None:
        """Tell it; ``error`` is what went wrong with the push."""
        header = SendMessageResponseHeader(msg_id, self.queue_id, offset, None, None, None, DEFAULT_REGION, "true")
        code = ResponseCode.SUCCESS if error is None else ResponseCode.SYSTEM_ERROR
        self.connection.reply(self.command, RemotingCommand.response(code, header, remark=error))


class ReplyHandlers:
    """Handlers for 324 and 325. ``address`` is what clients are told to connect to; replies count as ``awaited``."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        tables: Tables,
        store: MessageStore,
        *,
        address: str,
        admit: Admit,
        awaited: AwaitedBytes,
    ) -> None:
        self._clock = env.clock
        self._config = config
        self._producers: GroupTable[Connection] = tables.producers
        self._topics = tables.topics
        self._store = store
        self._address = address
        self._admit = admit
        self._awaited = awaited

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply_v2,
        }

    def reply(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 324."""
        return self._reply(connection, command, command.read(SendMessageRequestHeader))

    def reply_v2(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 325."""
        return self._reply(connection, command, command.read(SendMessageRequestHeaderV2))

    def _reply(self, connection: Connection, command: RemotingCommand, header: SendHeader) -> RemotingCommand | None:
        # It needs no right to reply to one of these, so a reply makes none but this cluster's: each broker has its own.
        place, own = header, reply_topic(self._config.cluster)
        if header.topic.endswith(REPLY_SUFFIX) and header.topic not in self._topics and header.topic != own:
            if not header.topic.endswith(f"%{own}"):
                return refuse(unknown_topic(header.topic))
            place = header._replace(topic=own, queue_id=-1)  # Java's clients put their namespace before it
        admitted = self._admit(connection, command, place)
        if isinstance(admitted, Refusal):
            return refuse(admitted)
        topic, queue_id, _ = admitted
        values = decode_properties((header.properties or "").encode())
        values.update(added_properties(self._config.cluster))
        try:
            properties = encode_properties(values)
        except ProtocolError as error:  # too long by what was added
            return refuse(Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)))
        refusal = check_sizes(len(command.body), len(properties) + ROOM_FOR_PUSH, self._config.max_message_size)
        if refusal is not None:
            return refuse(refusal)
        tag, size = values.get(PROPERTY_TAGS), size_of(command)
        append = partial(
            self._store.append,
            topic.name,
            queue_id,
            command.body,
            properties,
            flag=header.flag,
            sys_flag=header.sys_flag & ~SYS_FLAG_TRANSACTION_MASK,
            born_timestamp=header.born_timestamp,
            born_host=connection.peer_host,
            reconsume_times=header.reconsume_times or 0,
            tags_code=tags_code(tag) if tag else 0,
        )
        if (busy := self._awaited.begin(connection, size)) is not None:
            return refuse(Refusal(ResponseCode.SYSTEM_BUSY, busy))
        replier = _Replier(connection, command, topic.name, queue_id)

        def pushed(error: str | None) -> None:
            # What the replier is told is decided by the push: a reply that arrived and could not be stored has arrived.
            self._awaited.end(connection, size)
            if self._config.store_replies:
                self._keep(replier, append, error)
            else:
                replier.answer(error)

        self._push(connection, command.body, header, values, pushed)
        shed(command)  # it waits for the store too, which counts a copy of its own
        return None

    def _push(
        self,
        connection: Connection,
        body: bytes,
        header: SendHeader,
        values: dict[str, str],
        pushed: Callable[[str | None], None],
    ) -> None:
        """Send 326; ``pushed`` is called with None when the asker took it, else with what went wrong."""
        asker = values.get(PROPERTY_REPLY_TO_CLIENT)
        if asker is None:
            pushed("reply message properties[REPLY_TO_CLIENT] is null")
            return
        target = self._producers.find_client(asker)
        if target is None:
            pushed(f"push reply message fail, channel of <{asker:.255}> not found.")
            return
        now = self._clock.wall_ms()
        push = ReplyMessageRequestHeader(
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            header.queue_id,
            header.sys_flag,
            header.born_timestamp,
            header.flag,
            connection.peer,
            self._address,
            now,
            encode_properties({**values, PROPERTY_PUSH_REPLY_TIME: str(now)}).decode(),
            header.reconsume_times,
            header.unit_mode,
        )
        request = RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, body=body)
        try:
            answer = target.request(request, self._config.client_call_timeout)
        except (RocketError, ProtocolError) as error:
            pushed(f"push reply message to {asker:.255} fail: {error}")
            return

        def answered(future: asyncio.Future[RemotingCommand]) -> None:
            if future.cancelled() or (error := future.exception()) is not None:
                pushed(f"push reply message to {asker:.255} fail: {'cancelled' if future.cancelled() else error}")
            elif (code := future.result().code) != ResponseCode.SUCCESS:
                pushed(f"push reply message to {asker:.255} fail: it answered {code} {future.result().remark or ''}")
            else:
                pushed(None)

        answer.add_done_callback(answered)

    def _keep(self, replier: _Replier, append: Callable[..., None], error: str | None) -> None:
        """Store the reply, and tell the replier."""

        def done(result: PutResult) -> None:
            if result.status is PutStatus.OK:
                where = offset_msg_id(self._store.store_host, result.physical_offset)
                replier.answer(error, where, result.queue_offset)
            else:
                _log.warning("a reply in topic %s was not stored: %s", replier.topic, result.status.name)
                replier.answer(error)

        try:
            append(done=done)
        except (RocketError, ProtocolError) as problem:
            _log.warning("a reply in topic %s was not stored: %s", replier.topic, problem)
            replier.answer(error)
