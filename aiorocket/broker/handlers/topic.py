"""Administration of topics and groups: 17, 215, 21, 351 and 200, 201, 207, 352."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiorocket.broker.answers import plain_body, refuse
from aiorocket.broker.core.groups import GroupConfig
from aiorocket.broker.core.names import Refusal, is_system_topic
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.topics import Topic
from aiorocket_protocol import (
    CreateTopicRequestHeader,
    DataVersion,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    encode_body,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.storage.store import MessageStore

__all__ = ("TopicHandlers",)


class TopicHandlers:
    """``save`` returns when topics and groups are durable and name servers know the topics; admins are answered
    after."""

    def __init__(
        self,
        tables: Tables,
        store: MessageStore,
        *,
        topic_version: Callable[[], DataVersion],
        save: Callable[[], Awaitable[None]],
        deleted: Callable[[Topic], None],
    ) -> None:
        self._topics = tables.topics
        self._configs = tables.configs
        self._offsets = tables.offsets
        self._store = store
        self._topic_version = topic_version
        self._save = save
        self._deleted = deleted

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.create_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_CONFIG: self.topic_config,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
        }

    async def create_topic(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 17: create, or change what exists."""
        header = command.read(CreateTopicRequestHeader)
        topic = Topic(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            order=header.order,
            sys_flag=header.topic_sys_flag or 0,
            filter_type=header.topic_filter_type,
            attributes=_attributes(header.attributes),
        )
        changed = self._topics.configure(topic)
        if isinstance(changed, Refusal):
            return refuse(changed)
        if changed:
            await self._save()
        return RemotingCommand.response()

    async def delete_topic(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 215: the topic, its messages and every group's offsets in it."""
        name = command.read(DeleteTopicRequestHeader).topic
        if is_system_topic(name):
            return refuse(
                Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{name:.200}] is conflict with system topic.")
            )
        topic = self._topics.get(name)
        if topic is None:
            return RemotingCommand.response()
        self._topics.delete(name)
        self._offsets.delete_topic(name)
        self._deleted(topic)
        await self._store.delete_topic(name)
        await self._save()
        return RemotingCommand.response()

    def all_topics(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 21."""
        plain = {
            "dataVersion": self._topic_version().to_plain(),
            "topicConfigTable": {topic.name: topic.to_dict() for topic in self._topics},
        }
        return RemotingCommand.response(body=encode_body(plain, connection.reply_type(command)))

    def topic_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 351."""
        name = command.read(GetTopicConfigRequestHeader).topic
        topic = self._topics.get(name)
        if topic is None:
            return RemotingCommand.response(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic in this broker. topic: {name:.200}"
            )
        return RemotingCommand.response(body=encode_body(topic.to_dict(), connection.reply_type(command)))

    async def put_group(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 200."""
        data = plain_body(command)
        if data.get("groupName") is None:
            return refuse(Refusal(ResponseCode.INVALID_PARAMETER, "the body names no group (member groupName)"))
        refusal = self._configs.put(GroupConfig.from_dict(data))
        if refusal is not None:
            return refuse(refusal)
        await self._save()
        return RemotingCommand.response()

    def all_groups(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 201."""
        plain = {
            "dataVersion": DataVersion(0, self._configs.version).to_plain(),
            "forbiddenTable": {},
            "subscriptionGroupTable": {config.name: config.to_dict() for config in self._configs},
        }
        return RemotingCommand.response(body=encode_body(plain, connection.reply_type(command)))

    async def delete_group(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 207."""
        header = command.read(DeleteSubscriptionGroupRequestHeader)
        if self._configs.delete(header.group_name):
            if header.clean_offset or header.remove_offset:
                self._offsets.delete_group(header.group_name)
            await self._save()
        return RemotingCommand.response()

    def group_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 352."""
        name = command.read(GetSubscriptionGroupConfigRequestHeader).group
        config = self._configs.ensure(name)
        if isinstance(config, Refusal):
            return refuse(config)
        return RemotingCommand.response(body=encode_body(config.to_dict(), connection.reply_type(command)))


def _attributes(text: str | None) -> dict[str, str]:
    """``+key=value,-key`` as mqadmin sends it; what is to be removed is not there when the topic is replaced."""
    values = {}
    for item in (text or "").split(","):
        key, found, value = item.strip().partition("=")
        if found and key.startswith("+") and len(key) > 1:
            values[key[1:]] = value
    return values
