"""What an administrator asks of consumers through the broker: 307, 309, 223, and the reset of offsets (222).

The broker passes 307 and 309 on and their answers back, asks every member of a group for 223 (code 221 on that way),
and tells every member of a reset (220) or keeps it for their next pull, as BrokerConfig.server_side_reset_offset says.
A client has ``client_call_timeout`` seconds to answer: ali-ons never does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from aiorocket.broker.answers import brokers_own, keyed, keyed_pair, plain_body, refuse
from aiorocket.broker.core.groups import ConsumerGroup, GroupTable, Member
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.topics import Topic
from aiorocket.errors import RemoteError, RequestTimeoutError, RocketError
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import (
    LANGUAGE_CODES,
    MAX_CONTROL_BODY,
    MAX_LENIENT,
    MSGPACK,
    REVIVE_GROUP,
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    MessageQueue,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    ResetOffsetRequestHeader,
    ResponseCode,
    encode_body,
    list_body,
    parse_offset_msg_id,
    table_body,
)

if TYPE_CHECKING:
    from aiorocket.config import BrokerConfig
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.storage.store import MessageStore

__all__ = ("CallHandlers",)

#: Clients older than these do not know the requests (RocketMQ 3.0.7-SNAPSHOT and 3.1.8-SNAPSHOT).
SINCE_RESET = 28
SINCE_RUNNING_INFO = 62
#: Queues looked at or set before others have their turn: each may cost some reads of the disk.
_A_TURN = 64
#: Bytes that members are sent, or send, before others have their turn; one member counts as so many.
_BYTES, _OF_ONE = 256 << 10, 512


class CallHandlers:
    """Handlers for 222, 223, 307 and 309. ``reset(group, topic, queue id)`` is called when a reset waits for a pull;
    ``save`` begins to save the offsets and returns a future that is done when they are durable (OSError)."""

    def __init__(
        self,
        config: BrokerConfig,
        tables: Tables,
        store: MessageStore,
        *,
        reset: Callable[[str, str, int], None],
        save: Callable[[], asyncio.Future[None]],
    ) -> None:
        self._config = config
        self._topics = tables.topics
        self._configs = tables.configs
        self._consumers: GroupTable[Connection] = tables.consumers
        self._offsets = tables.offsets
        self._store = store
        self._reset = reset
        self._save = save
        self._resetting = asyncio.Lock()  # one works in turns of the loop, not each of many

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    # ---- one client

    async def running_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 307: what one consumer is doing, in its own words."""
        header = command.read(GetConsumerRunningInfoRequestHeader)
        return await self._forward(connection, command, header.consumer_group, header.client_id, header, b"")

    async def consume_directly(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 309: one consumer shall consume the stored message ``msgId`` now and say what came of it."""
        header = command.read(ConsumeMessageDirectlyResultRequestHeader)
        try:
            _, _, offset = parse_offset_msg_id(header.msg_id or "")
        except ProtocolError as error:
            return refuse(Refusal(ResponseCode.INVALID_PARAMETER, f"msgId must be an offset id: {error}"))
        data = self._store.read_record(offset)
        if data is None:
            return refuse(
                Refusal(ResponseCode.SYSTEM_ERROR, f"no message with the id {header.msg_id}: none begins at {offset}")
            )
        header = header._replace(broker_name=self._config.name)
        return await self._forward(connection, command, header.consumer_group, header.client_id or "", header, data)

    async def _forward(
        self,
        connection: Connection,
        command: RemotingCommand,
        group: str,
        client_id: str,
        header: tuple[Any, ...],
        body: bytes,
    ) -> RemotingCommand:
        member = self._member(group, client_id)
        if isinstance(member, Refusal):
            return refuse(member)
        if member.version < SINCE_RUNNING_INFO:
            return refuse(_too_old(member))
        request = RemotingCommand.request(command.code, header, body=body)
        timeout = self._config.client_call_timeout
        try:
            answer = await member.connection.request(request, timeout)
        except RequestTimeoutError:
            return refuse(
                Refusal(
                    ResponseCode.CONSUME_MSG_TIMEOUT,
                    f"consumer <{group}> <{client_id}> Timeout: no answer within {timeout:g} s",
                )
            )
        except RocketError as error:
            return refuse(
                Refusal(ResponseCode.SYSTEM_ERROR, f"consumer <{group}> <{client_id}> could not be asked: {error}")
            )
        body = answer.body
        kind = connection.reply_type(command)
        if body and (answer.serialize_type == MSGPACK) != (kind == MSGPACK):
            said = _said(answer)
            await asyncio.sleep(0)  # each of these three may take some 30 ms
            said = await in_turns(keyed(said, kind))
            await asyncio.sleep(0)
            body = encode_body(said, kind)
        return RemotingCommand.response(answer.code, remark=answer.remark, body=body)

    def _member(self, group: str, client_id: str) -> Member[Connection] | Refusal:
        live = self._consumers.get(group)
        if live is None:
            return _nobody(group)
        found = [member for member in live.members.values() if member.client_id == client_id]
        if not found:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{group}> <{client_id}> not online; online are {', '.join(live.client_ids()):.500}",
            )
        return max(found, key=lambda member: member.seen)

    # ---- all clients of a group

    async def consumer_status(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 223: the offset each member (or the one named by ``clientAddr``) has reached in each of its queues.
        Members that do not answer are left out and named in the remark."""
        header = command.read(GetConsumerStatusRequestHeader)
        if not header.client_addr:
            live = self._consumers.get(header.group)
            if live is None:
                return refuse(_nobody(header.group))
            members = list(live.members.values())
        else:
            member = self._member(header.group, header.client_addr)
            if isinstance(member, Refusal):
                return refuse(member)
            members = [member]
        for member in members:
            if member.version < SINCE_RESET:
                return refuse(_too_old(member))
        request = header._replace(client_addr=None)
        kind = connection.reply_type(command)
        table: dict[str, bytes] = {}
        silent = []
        done = 0
        for member, future in zip(members, await self._ask(members, request), strict=True):
            if not future.done():
                await asyncio.wait((future,))
            if (failed := future.exception()) is not None:  # not raised: what it passes through would hold it
                silent.append(f"{member.client_id}: {failed}")
                done += _OF_ONE
            else:
                answer = future.result()
                done += _OF_ONE + len(answer.body)
                try:
                    if answer.code:
                        raise RemoteError(answer.code, answer.remark, address=member.peer)
                    offsets = _said(answer).get("messageQueueTable")
                    known = offsets if isinstance(offsets, dict) else {}
                    queues = (item for item in known.items() if isinstance(item[1], int))
                    writing = table_body({}, member.client_id, queues, partial(keyed_pair, serialize_type=kind), kind)
                    table[member.client_id] = await in_turns(writing)
                except (RocketError, ProtocolError) as error:
                    silent.append(f"{member.client_id}: {error}")
            if done >= _BYTES:
                done = 0
                await asyncio.sleep(0)
        remark = f"without {'; '.join(silent):.1000}" if silent else None
        if not table:
            return RemotingCommand.response(ResponseCode.CONSUME_MSG_TIMEOUT, remark=f"no member answered, {remark}")
        writing = table_body({}, "consumerTable", table.values(), bytes, kind, {"messageQueueTable": {}})
        return RemotingCommand.response(remark=remark, body=await in_turns(writing))

    async def _ask(
        self, members: list[Member[Connection]], header: tuple[Any, ...]
    ) -> list[asyncio.Future[RemotingCommand]]:
        """221 to all of them, some in each turn; none waits for another's answer."""
        answers: list[asyncio.Future[RemotingCommand]] = []
        for number, member in enumerate(members, 1):
            request = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
            try:
                answer = member.connection.request(request, self._config.client_call_timeout)
            except RocketError as error:
                answer = asyncio.get_running_loop().create_future()
                answer.set_exception(error.with_traceback(None))  # which would hold the answers, and so itself
            answer.add_done_callback(_is_known)
            answers.append(answer)
            if number % (_BYTES // _OF_ONE) == 0:
                await asyncio.sleep(0)
        return answers

    # ---- offsets

    async def reset_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 222; answers the offsets that the group's queues are set to, when that is recorded."""
        header = command.read(ResetOffsetRequestHeader)
        if header.group == REVIVE_GROUP:
            return refuse(brokers_own(header.group))
        here = self._config.server_side_reset_offset
        async with self._resetting:
            topic = self._topics.get(header.topic)
            if topic is None:
                return refuse(Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic:.200} does not exist"))
            decided = await (self._here(topic, header) if here else self._pushed(topic, header))
        if isinstance(decided, Refusal):
            return refuse(decided)
        try:
            await self._save()
        except OSError as error:
            return refuse(
                Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"the offsets are set, but could not be recorded ({error}): they last until the broker stops, "
                    "unless a later save succeeds",
                )
            )
        return RemotingCommand.response(body=await in_turns(_table(decided, connection.reply_type(command))))

    async def _here(self, topic: Topic, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int] | Refusal:
        """As RocketMQ 5: the offsets change now, and pulls learn of it."""
        group = header.group
        if (config := self._configs.get(group)) is None:
            return Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group:.255} does not exist")
        wanted, offset = header.queue_id, header.offset
        if wanted is None or wanted < 0:
            offsets = await self._all_at(topic, topic.read_queues, header.timestamp)
        elif wanted >= topic.read_queues:
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"topic {topic.name} has queues 0 to {topic.read_queues - 1}, not {wanted}",
            )
        elif offset is None or offset == -1:
            offsets = {wanted: self._at(topic, wanted, header.timestamp)}
        else:
            low, high = self._store.min_offset(topic.name, wanted), self._store.max_offset(topic.name, wanted)
            if not low <= offset <= high + 1:
                return Refusal(
                    ResponseCode.SYSTEM_ERROR, f"Target offset {offset} not in consume queue range [{low}-{high}]"
                )
            offsets = {wanted: offset}
        for number, (queue_id, offset) in enumerate(offsets.items(), 1):
            # Others had their turn: of one that was deleted nothing is kept, a new topic of its name begins at 0.
            if self._topics.get(topic.name) is not topic or self._configs.get(group) is not config:
                return Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"{topic.name} or {group:.255} was deleted or changed meanwhile, ask again",
                )
            self._offsets.reset(group, topic.name, queue_id, offset)
            self._reset(group, topic.name, queue_id)
            if number % _A_TURN == 0:
                await asyncio.sleep(0)
        return self._named(topic, offsets)

    async def _pushed(self, topic: Topic, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int] | Refusal:
        """As RocketMQ 4.9: the members are told, and they set the offsets."""
        group = header.group
        offsets = await self._all_at(topic, topic.write_queues, header.timestamp)
        for queue_id, found in offsets.items():
            before = self._offsets.query(group, topic.name, queue_id)
            if before is None:
                return Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"The consumer group <{group:.255}> not exist: it has no offset in {topic.name} queue {queue_id}",
                )
            offsets[queue_id] = found if header.is_force or found < before else before
        live = self._consumers.get(group)
        if live is None:
            return Refusal(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset online, Group: {group:.255} Topic: {topic.name} "
                f"Timestamp: {header.timestamp}",
            )
        for member in live.members.values():
            if member.version < SINCE_RESET:
                return _too_old(member)
        table = self._named(topic, offsets)
        await self._push(live, ResetOffsetRequestHeader(topic.name, group, header.timestamp, header.is_force), table)
        return table

    async def _push(
        self, live: ConsumerGroup[Connection], header: ResetOffsetRequestHeader, table: Mapping[MessageQueue, int]
    ) -> None:
        bodies: dict[tuple[int, bool], bytes] = {}
        sent = 0
        for member in list(live.members.values()):
            connection = member.connection
            form = connection.serialize_type, member.language == LANGUAGE_CODES["CPP"]
            if form not in bodies:
                bodies[form] = await in_turns(_table(table, *form))
            body = bodies[form]
            code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            try:
                connection.oneway(RemotingCommand.request(code, header, body=body, oneway=True))
            except RocketError:
                pass  # closed or not reading; the administrator sees that the offsets do not move and asks again
            sent += _OF_ONE + len(body)
            if sent >= _BYTES:
                sent = 0
                await asyncio.sleep(0)

    async def _all_at(self, topic: Topic, queues: int, timestamp: int) -> dict[int, int]:
        offsets = {}
        for queue_id in range(queues):
            offsets[queue_id] = self._at(topic, queue_id, timestamp)
            if queue_id % _A_TURN == _A_TURN - 1:
                await asyncio.sleep(0)
        return offsets

    def _at(self, topic: Topic, queue_id: int, timestamp: int) -> int:
        """A time before 1970 means the end."""
        if timestamp < 0:
            return self._store.max_offset(topic.name, queue_id)
        return max(0, self._store.offset_by_time(topic.name, queue_id, timestamp))

    def _named(self, topic: Topic, offsets: Mapping[int, int]) -> dict[MessageQueue, int]:
        name = self._config.name
        return {MessageQueue(topic.name, name, queue_id): offset for queue_id, offset in offsets.items()}


def _table(
    table: Mapping[MessageQueue, int], serialize_type: int, listed: bool = False
) -> Generator[None, None, bytes]:
    """Offsets by queue; a list is what the C++ client reads."""
    if listed:
        items = ({**queue.to_plain(), "offset": offset} for queue, offset in table.items())
        return list_body({}, "offsetTable", items, serialize_type)
    return table_body(
        {}, "offsetTable", table.items(), partial(keyed_pair, serialize_type=serialize_type), serialize_type
    )


def _is_known(answer: asyncio.Future[RemotingCommand]) -> None:
    """That it failed: nobody looks any more when the broker stops."""
    if not answer.cancelled():
        answer.exception()


def _said(answer: RemotingCommand) -> dict[str, Any]:
    """What a client answered, as far as a request could have said it; maps with queues as keys are as clients write
    them. ProtocolError."""
    most = MAX_CONTROL_BODY // 4 if answer.serialize_type == MSGPACK else MAX_CONTROL_BODY
    if len(answer.body) > most:
        raise ProtocolError(f"an answer of {len(answer.body)} bytes: at most {most} are read", where="body")
    return plain_body(answer, lenient=4 * MAX_LENIENT)


def _nobody(group: str) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group:.255}> not online: nobody of the group is")


def _too_old(member: Member[Connection]) -> Refusal:
    return Refusal(
        ResponseCode.SYSTEM_ERROR,
        f"the consumer {member.client_id:.200} does not support this feature: its version is {member.version}",
    )
