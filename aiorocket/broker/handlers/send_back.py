"""CONSUMER_SEND_MSG_BACK (36): a message its consumer could not handle is stored again, for later or for the dead
letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aiorocket.broker.core.delay import DelaySchedule
from aiorocket.broker.core.groups import GroupConfigs
from aiorocket.broker.core.names import SCHEDULE_TOPIC, Refusal, dlq_topic
from aiorocket.broker.core.retry_policy import after_failure
from aiorocket.broker.core.topics import PERM_WRITE, TopicTable
from aiorocket.broker.handlers.answers import put_refusal, refuse, store_refusal
from aiorocket.errors import StoreError
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import (
    ConsumerSendMsgBackRequestHeader,
    RecordView,
    RemotingCommand,
    ResponseCode,
    encode_properties,
    tags_code,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.runtime.env import Env
    from aiorocket.storage.store import MessageStore

__all__ = ("SendBackHandler",)


class SendBackHandler:
    """Handler for 36. ``topics_changed`` is called when it made a retry or dead-letter topic."""

    def __init__(
        self,
        env: Env,
        *,
        store: MessageStore,
        topics: TopicTable,
        configs: GroupConfigs,
        delays: DelaySchedule,
        topics_changed: Callable[[], None],
    ) -> None:
        self._clock = env.clock
        self._entropy = env.entropy
        self._store = store
        self._topics = topics
        self._configs = configs
        self._delays = delays
        self._topics_changed = topics_changed

    def send_back(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """The message named by its physical offset, with one more failed attempt."""
        header = command.read(ConsumerSendMsgBackRequestHeader)
        config = self._configs.ensure(header.group)
        if isinstance(config, Refusal):
            return refuse(config)
        if config.retry_queues <= 0:
            return RemotingCommand.response()
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
        version = self._topics.version
        topic = self._topics.ensure(where.topic, where.queues)
        if self._topics.version != version:
            self._topics_changed()
        if not topic.perm & PERM_WRITE and where.topic != dlq_topic(config.name):
            return RemotingCommand.response(
                ResponseCode.NO_PERMISSION, remark=f"the topic[{topic.name}] sending message is forbidden"
            )
        properties = dict(view.properties)
        properties.setdefault("RETRY_TOPIC", view.topic)
        properties.setdefault("ORIGIN_MESSAGE_ID", view.offset_msg_id)
        properties["WAIT"] = "false"
        properties.pop("DELAY", None)
        name = topic.name
        queue_id = self._entropy.randrange(max(1, topic.write_queues))
        tag = properties.get("TAGS")
        code = tags_code(tag) if tag else 0
        if where.delay_level > 0:
            level = self._delays.clamp(where.delay_level)
            properties.update(DELAY=str(level), REAL_TOPIC=name, REAL_QID=str(queue_id))
            name, queue_id = SCHEDULE_TOPIC, level - 1
            code = self._delays.due_at(level, self._clock.wall_ms())

        def done(result: PutResult) -> None:
            ok = result.status is PutStatus.OK
            connection.reply(command, RemotingCommand.response() if ok else refuse(put_refusal(result)))

        try:
            self._store.append(
                name,
                queue_id,
                view.raw_body,
                encode_properties(properties),
                flag=view.flag,
                sys_flag=view.sys_flag & ~0x2C,  # no transaction; the store sets the bit of its own host
                born_timestamp=view.born_timestamp,
                born_host=view.born_host_bytes,
                reconsume_times=view.reconsume_times + 1,
                tags_code=code,
                done=done,
            )
        except StoreError as error:
            return refuse(store_refusal(error))
        return None
