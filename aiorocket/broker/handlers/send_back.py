"""CONSUMER_SEND_MSG_BACK (36): a message its consumer could not handle is stored again, for later or for the dead
letters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aiorocket.broker.answers import put_refusal, refuse, store_refusal
from aiorocket.broker.copies import NOT_COPIED, Copy, copied_properties, store_copy
from aiorocket.broker.core.counters import SendBack
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.retry_policy import after_failure, once_more
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.timers import TIMER_PROPERTIES
from aiorocket.broker.core.topics import UNIT_SUB, Topic
from aiorocket.errors import StoreError
from aiorocket.remoting.awaited import shed
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import (
    PERM_WRITE,
    PROPERTY_DELAY,
    PROPERTY_DLQ_ERROR,
    PROPERTY_DLQ_HOST,
    PROPERTY_DLQ_REASON,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    SCHEDULE_TOPIC,
    ConsumerSendMsgBackRequestHeader,
    ProtocolError,
    RecordView,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    encode_properties,
    reason_text,
    retry_topic,
)
from aiorocket_protocol.limits import MAX_PROPERTIES

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.runtime.env import Env
    from aiorocket.storage.store import MessageStore

__all__ = ("SendBackHandler",)

_log = logging.getLogger("aiorocket.broker")

#: Further fields of a request that come into a dead letter: why its consumer gave up.
_REASON = (PROPERTY_DLQ_ERROR, PROPERTY_DLQ_REASON, PROPERTY_DLQ_HOST)


class SendBackHandler:
    """Handler for 36. ``topics_changed`` is called when it made a retry or dead-letter topic, ``hooks`` with every
    message that was sent back, once it is stored."""

    def __init__(
        self,
        env: Env,
        tables: Tables,
        store: MessageStore,
        *,
        topics_changed: Callable[[], None],
        hooks: Sequence[Callable[[SendBack], None]],
    ) -> None:
        self._clock = env.clock
        self._entropy = env.entropy
        self._topics = tables.topics
        self._configs = tables.configs
        self._delays = tables.delays
        self._counters = tables.counters
        self._store = store
        self._topics_changed = topics_changed
        self._hooks = hooks

    def codes(self) -> dict[int, RequestHandler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """The message named by its physical offset, with one more failed attempt."""
        header = command.read(ConsumerSendMsgBackRequestHeader)
        config = self._configs.ensure(header.group, connection.holds)
        if isinstance(config, Refusal):
            return refuse(config)
        if config.retry_queues <= 0:
            return RemotingCommand.response()
        topic = self._topic(retry_topic(config.name), config.retry_queues, UNIT_SUB if header.unit_mode else 0)
        if not topic.perm & PERM_WRITE:
            return RemotingCommand.response(
                ResponseCode.NO_PERMISSION, remark=f"the topic[{topic.name}] sending message is forbidden"
            )
        data = self._store.read_record(header.offset)
        if data is None:
            return RemotingCommand.response(
                ResponseCode.SYSTEM_ERROR, remark=f"look message by offset failed, {header.offset}"
            )
        view = RecordView(data, 0, len(data))
        where = after_failure(
            config,
            reconsume_times=view.reconsume_times,
            delay_level=header.delay_level,
            limit=header.max_reconsume_times,
            client_version=command.version,
        )
        dead = where.topic != topic.name
        if dead:
            topic = self._topic(where.topic, where.queues, 0)
        properties = copied_properties(view)
        properties.setdefault(PROPERTY_RETRY_TOPIC, view.topic)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, view.offset_msg_id)
        properties[PROPERTY_WAIT] = "false"
        properties[PROPERTY_DELAY] = "0"  # what a dead letter is left with
        name = topic.name
        queue_id = self._entropy.randrange(max(1, topic.write_queues))
        code = None  # of its tag
        if dead:
            text = _dead_letter(properties, command)
        else:
            level = self._delays.clamp(where.delay_level)
            for timer in TIMER_PROPERTIES:
                properties.pop(timer, None)
            now, newest = self._clock.wall_ms(), self._store.timestamp
            code = self._delays.put_off(properties, level, name, queue_id, now, newest)
            name, queue_id = SCHEDULE_TOPIC, level - 1
            text = encode_properties(properties)

        event = SendBack(
            group=config.name,
            peer=connection.peer,
            topic=properties[PROPERTY_RETRY_TOPIC],
            destination=topic.name,
            message_id=properties.get(PROPERTY_UNIQ_KEY) or view.offset_msg_id,
            origin_message_id=properties[PROPERTY_ORIGIN_MESSAGE_ID],
            reconsume_times=once_more(view.reconsume_times),
            delay_level=0 if dead else queue_id + 1,
            dead=dead,
        )

        def done(result: PutResult) -> None:
            ok = result.status is PutStatus.OK
            if ok:
                self._tell(event)
            connection.reply(command, RemotingCommand.response() if ok else refuse(put_refusal(result)))

        shed(command)
        try:
            copy = Copy(
                view,
                name,
                queue_id,
                text,
                code,
                sys_flag=view.sys_flag & ~NOT_COPIED,
                reconsume_times=once_more(view.reconsume_times),
            )
            store_copy(self._store, copy, done)
        except StoreError as error:
            return refuse(store_refusal(error))
        return None

    def _topic(self, name: str, queues: int, sys_flag: int) -> Topic:
        version = self._topics.version
        topic = self._topics.ensure(name, queues, sys_flag)
        if self._topics.version != version:
            self._topics_changed()
        return topic

    def _tell(self, event: SendBack) -> None:
        self._counters.send_backs[event.group] += 1
        if event.dead:
            self._counters.dead_letters[event.group] += 1
        for hook in self._hooks:
            try:
                hook(event)
            except Exception:  # noqa: BLE001 - a hook only looks on, whatever happens to it
                _log.exception("send-back hook %r failed", hook)


def _dead_letter(properties: dict[str, str], command: RemotingCommand) -> bytes:
    """The properties of a dead letter: without what its consumer says of why it gave up when its own leave no room for
    that, and without the longest of these when they are too many by themselves."""
    said = {name: reason_text(command.ext_value(name) or "") for name in _REASON}
    try:
        return encode_properties(properties | {name: text for name, text in said.items() if text})
    except ProtocolError:
        _make_room(properties)
        return encode_properties(properties)


def _make_room(properties: dict[str, str]) -> None:
    """Drop the longest while they are more than can be stored: better than a message that nobody takes, in front of
    its queue for ever."""
    sizes = {name: len(f"{name}{value}".encode()) + 2 for name, value in properties.items()}
    over = sum(sizes.values()) - MAX_PROPERTIES
    kept = {PROPERTY_RETRY_TOPIC, PROPERTY_ORIGIN_MESSAGE_ID}
    for name in sorted(sizes.keys() - kept, key=lambda name: -sizes[name]):
        if over <= 0:
            return
        _log.warning("a dead letter goes without its property %.100s: there is no room for so many", name)
        del properties[name]
        over -= sizes[name]
