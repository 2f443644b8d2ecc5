"""Failed messages: back to the broker, or, when it refuses, into the retry topic as a new message, or once more
here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiorocket.client.core.dead_reason import log_line, reason_of
from aiorocket.client.core.retry import remote_error
from aiorocket.client.exits import DeadLetter, Retry
from aiorocket.client.group.member import Member
from aiorocket.client.message import DEAD_LETTER_LEVEL, Message, exit_level
from aiorocket.client.pop.popped import PoppedMessage
from aiorocket.client.sending.attempts import Attempts
from aiorocket.client.sending.outgoing import EncodedMessage
from aiorocket.client.sending.publish import Publish
from aiorocket.config import ConsumerConfig, ProducerConfig
from aiorocket.errors import NotConnectedError, RocketError
from aiorocket_protocol import (
    COMPRESSION_MASK,
    FIRST_RETRY_LEVEL,
    INNER_PRODUCER,
    MAX_PROPERTIES,
    MSGPACK,
    PROPERTY_CLUSTER,
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRAN_MSG,
    PROPERTY_WAIT,
    SYS_FLAG_COMPRESSED,
    ConsumerSendMsgBackRequestHeader,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    decode_properties,
)

__all__ = ("Settlement",)

log = logging.getLogger("aiorocket.client")

_SEND_BACK_TIMEOUT = 5.0
#: Of the stored record only how the body is compressed goes into the copy.
_KEPT_FLAGS = SYS_FLAG_COMPRESSED | COMPRESSION_MASK
#: Bytes of properties that a dead letter is sent with at most: its broker adds some about where it came from.
_MOST_PROPERTIES = MAX_PROPERTIES - 512
#: Properties that say where a message was on its way to here; a copy must not repeat them.
_NOT_COPIED = frozenset(
    (
        PROPERTY_TRAN_MSG,
        PROPERTY_DELAY,
        PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QID,
        PROPERTY_CLUSTER,
        PROPERTY_WAIT,
        PROPERTY_CONSUME_START_TIME,
    )
)


class Settlement:
    """What becomes of a member's messages that failed; the Settler of those that are settled by hand. ``again``
    delivers a message once more from here."""

    def __init__(self, member: Member, config: ConsumerConfig, again: Callable[[Message], None]) -> None:
        self._member = member
        self._config = config
        self._again = again
        self._attempts = Attempts(member.session, ProducerConfig(send_timeout=_SEND_BACK_TIMEOUT), self._look_up)

    async def failed(self, message: Message, error: Exception, max_attempts: int | None) -> None:
        """A listener ended with ``error``."""
        self.note(message, error)
        await self.send_back(message, exit_level(error), max_attempts, error)

    def note(self, message: Message, error: Exception) -> None:
        """Log what ended a listener, unless it said how it wants to end."""
        if not isinstance(error, Retry | DeadLetter):
            log.warning("the listener failed on message %s of %s", message.msg_id, message.queue, exc_info=error)

    async def expired(self, message: Message, max_attempts: int | None) -> None:
        """A listener has been at it for longer than the consume timeout. When neither way to the broker works the
        message stays with that call until the next sweep: delivering it here as well would only add a call to it."""
        log.warning("message %s of %s: consume timeout, it will be delivered again", message.msg_id, message.queue)
        try:
            error = TimeoutError(f"the listener ran for longer than {self._config.consume_timeout:g} s")
            if await self._back(message, FIRST_RETRY_LEVEL, max_attempts, error):
                self._member.counters.timed_out += 1
        except (RocketError, ProtocolError) as refused:
            if not message.settled:
                self._note_refused(message, refused)

    async def send_back(
        self, message: Message, delay_level: int, max_attempts: int | None = None, error: BaseException | None = None
    ) -> bool:
        """Have the message delivered again, or to the dead letters with ``error`` as the reason, and finish it here.
        False when its result came too late. When neither way to the broker works it stays unfinished and is delivered
        again from here after a while, counted as one more attempt. Broadcast messages are only logged and finished:
        nobody keeps retries for a group whose members all get everything."""
        try:
            return await self._back(message, delay_level, max_attempts, error)
        except (RocketError, ProtocolError) as refused:
            if message.settled:
                return False
            self._note_refused(message, refused)
            message._local_attempts += 1
            if self._member.pulling:  # listeners run from the first queues on, while the start still waits for others
                self._member.scope.start(self._again_later(message), name="later")
            return False

    async def _again_later(self, message: Message) -> None:
        await asyncio.sleep(self._config.local_retry_delay)
        self._again(message)

    def count_skipped(self) -> None:
        self._member.counters.skipped += 1

    def _note_refused(self, message: Message, error: Exception) -> None:
        log.warning("message %s of %s cannot be sent back: %s", message.msg_id, message.queue, error)
        self._member.counters.send_back_failed += 1

    async def give_up(self, message: Message, max_attempts: int | None, error: BaseException) -> bool:
        """To the dead letters, for those who retry in place: False when neither way to the broker works; the message is
        then still unfinished, and theirs."""
        try:
            await self._back(message, DEAD_LETTER_LEVEL, max_attempts, error)
        except (RocketError, ProtocolError) as refused:
            if message.settled:
                return True
            log.warning("message %s of %s cannot be dead-lettered: %s", message.msg_id, message.queue, refused)
            self._member.counters.send_back_failed += 1
            return False
        return True

    async def to_dead_letters(self, message: Message, max_attempts: int | None, error: BaseException | None) -> bool:
        """Orderly: to the retry topic as a new message whose count is above the limit, so that the broker moves it on,
        as Java does. It stays unfinished here, because finishing is the queue's turn. False when no broker takes it."""
        limit = max_attempts or self._config.max_attempts
        try:
            await self._by_message(message, DEAD_LETTER_LEVEL, limit, self._reason(error))
        except (RocketError, ProtocolError) as refused:
            log.warning("message %s of %s cannot be dead-lettered: %s", message.msg_id, message.queue, refused)
            self._member.counters.send_back_failed += 1
            return False
        self._given_up(message, error)
        return True

    def _reason(self, error: BaseException | None) -> dict[str, str]:
        return reason_of(error, self._member.session.client_id) if self._config.dead_letter_reason else {}

    def _given_up(self, message: Message, error: BaseException | None) -> None:
        self._member.counters.dead_lettered += 1
        log.warning("%s", log_line(self._member.group, message.msg_id, message.topic, message.attempt, error))

    async def _back(
        self, message: Message, delay_level: int, max_attempts: int | None, error: BaseException | None
    ) -> bool:
        """One try, both ways; the error of the second."""
        counters = self._member.counters
        process_queue = message._process_queue
        if process_queue is None or process_queue.dropped:
            counters.late += 1
            return False
        limit = max_attempts or self._config.max_attempts
        dead = delay_level < 0 or message.attempt >= limit
        if isinstance(message, PoppedMessage):
            if dead:
                counters.dead_lettered += 1
                return await message._give_up(error)
            counters.retried += 1
            return await message._again(error, None, delay_level)
        if self._member.broadcasting:
            log.warning("message %s of %s failed and is dropped: the group broadcasts", message.msg_id, message.queue)
            counters.broadcast_dropped += 1
        else:
            if dead and message._local_attempts:
                # The broker counts only what it stored.
                delay_level = DEAD_LETTER_LEVEL
            reason = self._reason(error) if dead else {}
            try:
                await self._by_broker(message, delay_level, limit, reason)
            except (RocketError, ProtocolError) as refused:
                log.info("send-back of message %s: %s; sending it to the retry topic instead", message.msg_id, refused)
                await self._by_message(message, delay_level, limit, reason)
            if dead:
                self._given_up(message, error)
            else:
                counters.retried += 1
        if not process_queue.done(message):
            counters.late += 1
            return False
        return True

    async def _by_broker(self, message: Message, delay_level: int, limit: int, reason: dict[str, str]) -> None:
        """36. Apache's brokers would make the copy without ``reason``: there a dead letter goes as a message."""
        queue = message._source.queue
        address = self._member.master_address(queue)
        if address is None:
            raise NotConnectedError(f"broker {queue.broker_name!r} has no master")
        header = ConsumerSendMsgBackRequestHeader(
            message.physical_offset, self._member.wire_group, delay_level, message.msg_id, message._wire_topic, False,
            limit - 1,
        )  # fmt: skip
        code, session = RequestCode.CONSUMER_SEND_MSG_BACK, self._member.session
        if not reason:
            await session.call(address, code, header, timeout=_SEND_BACK_TIMEOUT)
            return
        connection = await session.connection(address, _SEND_BACK_TIMEOUT)
        if connection.serialize_type != MSGPACK:
            try:
                await self._by_message(message, delay_level, limit, reason, whole=True)
                return
            except (RocketError, ProtocolError) as refused:
                log.info("message %s goes to the dead letters without its reason: %s", message.msg_id, refused)
        command = RemotingCommand.request(code, header)
        command.ext = dict(reason)
        answer = await connection.request(command, _SEND_BACK_TIMEOUT)
        if answer.code:
            raise remote_error(answer.code, answer.remark, request=code.name, address=address)

    async def _by_message(
        self, message: Message, delay_level: int, limit: int, reason: dict[str, str], *, whole: bool = False
    ) -> None:
        """The fall-back, as in Java: a new message to the retry topic, at any broker that has it. The broker moves what
        has been tried more often than allowed to the dead letters by itself. A dead letter goes without its longest
        properties where they leave no room, unless it is to be ``whole``."""
        times = message.reconsume_times + 1
        dead = delay_level < 0 or times >= limit
        topic = self._member.retry_topic
        sent = _sent_properties(message)
        properties = {name: value for name, value in sent.items() if name not in _NOT_COPIED}
        properties[PROPERTY_RETRY_TOPIC] = message._wire_topic
        properties[PROPERTY_ORIGIN_MESSAGE_ID] = sent.get(PROPERTY_ORIGIN_MESSAGE_ID, message.msg_id)
        if dead and not whole:
            _make_room(properties)
        if not dead:
            properties[PROPERTY_DELAY] = str(delay_level or FIRST_RETRY_LEVEL + times - 1)
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        if dead and reason:
            said = text + "".join(f"{name}\x01{value}\x02" for name, value in reason.items())
            most = MAX_PROPERTIES if whole else _MOST_PROPERTIES
            text = said if len(said.encode()) <= most else text  # its own properties may leave no room
        copy = EncodedMessage(
            INNER_PRODUCER, topic, message.raw_body, text, message.msg_id, message.sys_flag & _KEPT_FLAGS, message.flag,
            message.born_timestamp, reconsume_times=max(times, limit) if dead else times,
            max_reconsume_times=limit - 1,
        )  # fmt: skip
        deadline = asyncio.get_running_loop().time() + _SEND_BACK_TIMEOUT
        publish = await self._open(topic)
        await self._attempts.run(publish, publish.next(), copy, deadline)

    async def _open(self, topic: str) -> Publish:
        return Publish(await self._member.session.route(topic), start=0)

    async def _look_up(self, topic: str) -> Publish:
        return Publish(await self._member.session.route(topic, refresh=True), start=0)


def _sent_properties(message: Message) -> dict[str, str]:
    """Without what middleware made of them. What cannot stand in them, but does in one that came in a batch, is a
    question mark, as in copies that brokers make: nobody would take it from the front of its queue otherwise."""
    raw = message.raw_properties
    try:
        found = decode_properties(raw)
    except ProtocolError:
        found = decode_properties(raw.decode("utf-8", "replace").replace("\ufffd", "?").encode())
    return {name: value.replace("\1", "?") for name, value in found.items()}


def _make_room(properties: dict[str, str]) -> None:
    """Drop the longest, while there are more than a dead letter may have: better than a message that nobody takes."""
    sizes = {name: len(f"{name}{value}".encode()) + 2 for name, value in properties.items()}
    over = sum(sizes.values()) - _MOST_PROPERTIES
    for name in sorted(sizes.keys() - {PROPERTY_RETRY_TOPIC}, key=lambda name: -sizes[name]):
        if over <= 0:
            return
        log.warning("a dead letter goes without its property %.100s: its broker would not take so many", name)
        del properties[name]
        over -= sizes[name]
