"""Administration of topics and groups: 17, 18, 215, 21, 351 and 200, 225, 201, 207, 352, 353; 314 copies offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from aiorocket.broker.answers import brokers_own, plain_body, refuse
from aiorocket.broker.core.group_configs import GroupConfig
from aiorocket.broker.core.names import Refusal, is_group_name, is_system_group, is_system_topic, is_topic_name
from aiorocket.broker.core.shares import Holds
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.topics import Topic
from aiorocket.broker.core.turns import A_SHORT_TURN, A_TURN, each
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import (
    REVIVE_GROUP,
    CloneGroupOffsetRequestHeader,
    CreateTopicRequestHeader,
    DataVersion,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicConfig,
    UpdateGroupForbiddenRequestHeader,
    encode_body,
    table_body,
)
from aiorocket_protocol.forms import check_unicode
from aiorocket_protocol.plain import Plain

if TYPE_CHECKING:
    from aiorocket.broker.revive import PopRevival
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.storage.store import MessageStore

__all__ = ("TopicHandlers",)


class TopicHandlers:
    """``save`` returns when topics and groups are durable, and the tables it names, and name servers know the topics;
    admins are answered after. ``begin`` begins to save one at once."""

    def __init__(
        self,
        tables: Tables,
        store: MessageStore,
        revival: PopRevival,
        *,
        version: Callable[[], DataVersion],
        save: Callable[..., Awaitable[None]],
        begin: Callable[[str], asyncio.Future[None]],
        deleted: Callable[[Topic], None],
    ) -> None:
        self._topics = tables.topics
        self._configs = tables.configs
        self._offsets = tables.offsets
        self._consumers = tables.consumers
        self._sent = tables.sent
        self._store = store
        self._topic_version = version
        self._save = save
        self._begin = begin
        self._deleted = deleted
        self._revival = revival
        self._lists = asyncio.Lock()  # one works in turns of the loop, not each of many

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.create_topic,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.create_topics,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.GET_TOPIC_CONFIG: self.topic_config,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put_group,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_offsets,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.group_forbidden,
        }

    def looks(self) -> dict[int, RequestHandler]:
        """Those that read a whole table and wait for nobody."""
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
        }

    async def create_topic(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 17: create, or change what exists."""
        header = command.read(CreateTopicRequestHeader)
        check_unicode(header.attributes or "", header.topic_filter_type, where="topic")
        topic = Topic(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            order=header.order,
            sys_flag=header.topic_sys_flag or 0,
            filter_type=header.topic_filter_type,
            attributes=self._altered(header.topic, _attributes(header.attributes)),
        )
        return await self._configure(connection.holds, topic)

    async def create_topics(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 18: several at once, all or none."""
        body = Plain(dict(plain_body(command)), "topics")
        async with self._lists:
            topics = await in_turns(each(_topic, body.items("topicConfigList")))
        for topic in topics:
            topic.attributes = self._altered(topic.name, topic.attributes)
        return await self._configure(connection.holds, *topics)

    def _altered(self, name: str, changes: Mapping[str, str]) -> dict[str, str]:
        """The attributes of a topic after these: ``+key`` and ``key`` put, ``-key`` removes, others stay."""
        known = self._topics.get(name)
        attributes = {} if known is None else dict(known.attributes)
        for key, value in changes.items():
            if key.startswith("-"):
                attributes.pop(key[1:], None)
            elif key.strip("+"):
                attributes[key.removeprefix("+")] = value
        return attributes

    async def _configure(self, who: Holds, *topics: Topic) -> RemotingCommand:
        changed = self._topics.configure(*topics, who=who)
        if isinstance(changed, Refusal):
            return refuse(changed)
        await self._save()  # also when nothing changed: an earlier request may not have come so far, or failed
        return RemotingCommand.response()

    async def delete_topic(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 215: the topic, its messages, every group's offsets in it, and what comes again of it."""
        name = command.read(DeleteTopicRequestHeader).topic
        if is_system_topic(name):
            return refuse(
                Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{name:.200}] is conflict with system topic.")
            )
        # Offsets are saved before it is durable: those that a crash brings back would pass over what a new topic of
        # this name begins with.
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone = []
        retries = self._topics.pop_retries(name)  # each group that popped it may have made one
        try:
            if len(retries) > A_SHORT_TURN:  # before it: nothing of a new topic of its name is among them
                for first in range(0, len(retries), A_SHORT_TURN):
                    gone.append(self._forget(retries[first : first + A_SHORT_TURN], saved))
                    await asyncio.sleep(0)
                retries = self._topics.pop_retries(name)
            gone.append(self._forget([name, *retries], saved))
        finally:  # also when nobody waits for the answer any more
            self._revival.forgotten().add_done_callback(partial(self._begin_offsets, saved))
        await self._save()
        await asyncio.gather(*gone)
        return RemotingCommand.response()

    def _begin_offsets(self, saved: asyncio.Future[None], _: asyncio.Future[None]) -> None:
        self._begin("offsets").add_done_callback(partial(_follow, saved))

    def _forget(self, names: list[str], saved: asyncio.Future[None]) -> asyncio.Future[None]:
        """Some topics, with one look at every table. Begins before anything is waited for, name servers above all: what
        others store in a new topic of such a name is not to go with the old one."""
        for topic in filter(None, map(self._topics.get, names)):
            self._topics.delete(topic.name)
            self._deleted(topic)
        self._offsets.delete_topics({*names})
        self._sent.delete_topics({*names})
        self._revival.forget_topics({*names})
        return self._store.delete_topics(*names, behind=saved)

    async def all_topics(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 21."""
        head = {"dataVersion": self._topic_version().to_plain()}
        kind = connection.reply_type(command)
        writing = table_body(
            head, "topicConfigTable", list(self._topics), lambda topic: (topic.name, topic.to_dict()), kind
        )
        return RemotingCommand.response(body=await in_turns(writing))

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
        return await self._put_groups(connection.holds, [plain_body(command)])

    async def put_groups(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 225: several at once; those before one that is refused stay."""
        groups = Plain(dict(plain_body(command)), "groups").items("groupConfigList")
        return await self._put_groups(connection.holds, groups)

    async def _put_groups(self, who: Holds, groups: list[Any]) -> RemotingCommand:
        for data in groups:
            if not isinstance(data, dict) or data.get("groupName") is None:
                return refuse(Refusal(ResponseCode.INVALID_PARAMETER, "the body names no group (member groupName)"))
        async with self._lists:
            configs = await in_turns(each(GroupConfig.from_dict, groups))
            refusals = await in_turns(each(partial(self._configs.put, who=who), configs))
        refusal = next(filter(None, refusals), None)
        await self._save()
        return RemotingCommand.response() if refusal is None else refuse(refusal)

    async def clone_offsets(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 314: a group begins where another is, in one topic or in all of its topics. Unless the other is known to
        be offline, topics that its members no longer subscribe to are left out. Answers when it is durable; those
        before one that is too many stay."""
        header = command.read(CloneGroupOffsetRequestHeader)
        if header.dest_group == REVIVE_GROUP:
            return refuse(brokers_own(header.dest_group))
        config = self._configs.ensure(header.dest_group, connection.holds)
        if isinstance(config, Refusal):
            return refuse(config)
        live = None if header.offline else self._consumers.get(header.src_group)
        async with self._lists:
            done = 0
            for name in [header.topic] if header.topic else self._offsets.topics(header.src_group):
                topic = self._topics.get(name)
                if topic is None or not (live is None or not live.subscriptions or name in live.subscriptions):
                    continue
                for queue_id, offset in self._offsets.queues(header.src_group, name).items():
                    too_many = self._offsets.refusal(header.dest_group, name, queue_id, connection.holds)
                    if too_many is not None:
                        return refuse(too_many)
                    if header.dest_group != header.src_group:  # else it is where the reset says
                        self._offsets.take_reset(header.dest_group, name, queue_id)
                    self._offsets.commit(header.dest_group, name, queue_id, offset, connection.holds)
                    done += 1
                    if done % A_TURN:
                        continue
                    await asyncio.sleep(0)
                    if self._configs.get(header.dest_group) is None:
                        why = f"group {header.dest_group} was deleted meanwhile"
                        return refuse(Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why))
                    if self._topics.get(name) is not topic:  # a new one of its name begins at 0
                        break
        for table in ("groups", "offsets"):  # also when nothing changed: an earlier request may have failed
            await self._begin(table)
        return RemotingCommand.response()

    async def all_groups(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 201."""
        head = {
            "dataVersion": DataVersion(0, self._configs.version).to_plain(),
            "forbiddenTable": self._configs.forbidden_table(),
        }
        kind = connection.reply_type(command)
        writing = table_body(
            head, "subscriptionGroupTable", list(self._configs), lambda config: (config.name, config.to_dict()), kind
        )
        return RemotingCommand.response(body=await in_turns(writing))

    async def delete_group(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 207. Offsets go also where the group went without them before."""
        header = command.read(DeleteSubscriptionGroupRequestHeader)
        group = header.group_name
        self._configs.delete(group)
        if (header.clean_offset or header.remove_offset) and not is_system_group(group):
            self._offsets.delete_group(group)
            self._revival.forget_group(group)
            await asyncio.shield(self._revival.forgotten())
        await self._save("offsets")  # also for one that is gone: an earlier request may not have come so far, or failed
        return RemotingCommand.response()

    def group_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 352."""
        name = command.read(GetSubscriptionGroupConfigRequestHeader).group
        config = self._configs.ensure(name, connection.holds)
        if isinstance(config, Refusal):
            return refuse(config)
        return RemotingCommand.response(body=encode_body(config.to_dict(), connection.reply_type(command)))

    async def group_forbidden(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 353: may a group read a topic? With ``readable`` the answer is set; it holds for pulls and pops."""
        header = command.read(UpdateGroupForbiddenRequestHeader)
        group, topic = header.group, header.topic
        if not is_group_name(group) or not is_topic_name(topic):
            why = f"group {group!r:.300}, topic {topic!r:.300}: illegal characters or length"
            return refuse(Refusal(ResponseCode.INVALID_PARAMETER, why))
        if header.readable:
            self._configs.allow(group, topic)
        elif header.readable is False and (refusal := self._configs.forbid(group, topic)) is not None:
            return refuse(refusal)
        if header.readable is not None:
            await self._save()
        readable = (group, topic) not in self._configs.forbidden
        plain = {"group": group, "readable": readable, "topic": topic}
        return RemotingCommand.response(body=encode_body(plain, connection.reply_type(command)))


def _follow(future: asyncio.Future[None], done: asyncio.Future[None]) -> None:
    """What became of ``done`` becomes of ``future``."""
    if done.cancelled():
        future.cancel()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
        future.exception()  # logged by who saves; perhaps nobody waits
    else:
        future.set_result(None)


def _topic(value: Any) -> Topic:
    """One of a TopicConfig's JSON; ProtocolError names the member that is missing or of another type."""
    config = TopicConfig.from_plain(value)
    return Topic(
        config.topic_name,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        order=config.order,
        sys_flag=config.topic_sys_flag,
        filter_type=config.topic_filter_type,
        attributes=config.attributes,
    )


def _attributes(text: str | None) -> dict[str, str]:
    """``+key=value,-key`` as mqadmin sends it."""
    parted = (item.strip().partition("=") for item in (text or "").split(","))
    return {key: value for key, equals, value in parted if key[:1] == ("+" if equals else "-")}
