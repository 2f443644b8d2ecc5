"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): the hot path out, with long polling.

A pull that finds messages is answered with stored bytes as they are in memory. One that finds none is parked as a
small entry and run again when its queue grows (in the same loop turn, or a few later where that brings more), or
answered when its hold is over. That second pass never commits an offset and never suspends again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from aiorocket.broker.answers import refuse, tell_gone
from aiorocket.broker.core.groups import Subscription, filter_refusal, is_tag_type, weight_of
from aiorocket.broker.core.long_poll import A_TURN, LongPolls, ParkedPull
from aiorocket.broker.core.names import Refusal, full
from aiorocket.broker.core.pull_checks import (
    check_access,
    parse_subscription,
    registered_subscription,
)
from aiorocket.broker.core.record_filter import COMPILING, FILTER_WORK, RecordFilter
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.filtered import read_filtered
from aiorocket.broker.lower_commits import warn_of_lower
from aiorocket.broker.pull_answers import found, has_seen_all, is_at_end, not_found
from aiorocket.errors import RocketError
from aiorocket.remoting.awaited import shed
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket.runtime.turns import Turns
from aiorocket.storage.results import ReadResult, ReadStatus
from aiorocket_protocol import (
    EXT_EPOCH,
    LANGUAGE_PYTHON,
    OFFSET_RESET,
    PULL_CLASS_FILTER,
    PULL_COMMIT,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    REVIVE_GROUP,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    found_head,
)

if TYPE_CHECKING:
    from aiorocket.config import BrokerConfig
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.storage.store import MessageStore

__all__ = ("PullHandlers",)

#: An expression that comes with each pull is parsed once; clients that make up new ones must not fill the memory.
MAX_PARSED = 4096
#: Messages of one answer to a client that is not ours, whatever it asks for: maxTransferCountOnMessageInMemory.
MAX_FOR_OTHERS = 32
_OWN_FILTER = PULL_SUBSCRIPTION | PULL_CLASS_FILTER

#: Ended holds that are answered in one turn of the loop.
_ENDS_PER_TURN = 8
#: Turns of the loop in which a pull of ours gathers messages. Under load that makes twice as many of them.
_GATHER_TURNS = 4
#: An answer whose head is made.
_FOUND = RemotingCommand.response(remark="FOUND")
#: What one found that has not looked: never an answer, as its offsets are none.
_NOTHING = ReadResult(ReadStatus.OFFSET_FOUND_NULL, (), 0, 0, 0, 0)


class _Waiting:
    """What a parked pull needs to be run again; ``nothing`` is what it found when it was parked."""

    __slots__ = ("command", "connection", "header", "nothing")

    def __init__(
        self, connection: Connection, command: RemotingCommand, header: PullMessageRequestHeader, nothing: ReadResult
    ) -> None:
        self.connection = connection
        self.command = command
        self.header = header
        self.nothing = nothing


class PullHandlers:
    """Handlers for 11 and 361, and the parked pulls."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        tables: Tables,
        store: MessageStore,
        *,
        stale: Callable[[Connection, str, str, int, str], Refusal | None],
    ) -> None:
        self._loop = loop
        self._config = config
        self._store = store
        self._stale = stale
        self._read = store.read
        self._end = store.max_offset
        self._topic = tables.topics.get
        self._group = tables.consumers.get
        self._configs = tables.configs
        self._group_config = tables.configs.get
        self._forbidden = tables.configs.forbidden
        self._offsets = tables.offsets
        self._counters = tables.counters
        self._delivered = tables.counters.delivered
        self._property_filter = config.property_filter
        self._max_messages = config.max_pull_messages
        self._max_for_others = min(config.max_pull_messages, MAX_FOR_OTHERS)
        self._max_bytes = config.max_pull_bytes
        self._limits = config.limits
        self._parsed: dict[tuple[str, str | None, str | None], Subscription] = {}
        #: Bytes that these take, about.
        self._parsed_weight = 0
        self.polls = LongPolls(config.max_hold, config.limits)
        #: Parked pulls that have news to look at in the turns to come, if they were begun.
        self._later, self._waking = OrderedDict[ParkedPull, None](), False
        #: Messages times what each costs its filter, of those looked at in this turn of the loop.
        self._spent = 0
        self._driver = DeadlineDriver(loop, self.polls.next_deadline, self._expired)
        self._ending: deque[ParkedPull] = deque()
        #: Those whose topic is gone, as the refusal says, or whose group's offset was set.
        self._news = Turns(_ENDS_PER_TURN)

    def codes(self) -> dict[int, RequestHandler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """One pull: None when it is parked or answered already."""
        header = command.read(PullMessageRequestHeader)
        group = header.consumer_group
        topic_name = header.topic
        queue_id = header.queue_id
        config = self._group_config(group)
        if config is None:
            made = self._configs.ensure(group, connection.holds)
            if isinstance(made, Refusal):
                return refuse(made)
            config = made
        topic = self._topic(topic_name)
        if (
            topic is None or not topic.readable or not 0 <= queue_id < topic.read_queues
            or not config.consume_enable or self._forbidden
        ):  # fmt: skip
            refusal = check_access(config, topic, topic_name, queue_id, self._forbidden)
            if refusal is not None:
                return refuse(refusal)
        flags = header.sys_flag
        spent = self._spent  # before its filter is compiled, which must not keep it from its own turn
        if flags & _OWN_FILTER:
            if spent > FILTER_WORK and not is_tag_type(header.expression_type):  # compiling takes of it, too
                return not_found(self._unread(topic_name, queue_id, header.queue_offset), header.queue_offset)
            subscription = self._parse(header)
        else:
            subscription = registered_subscription(
                group, config, self._group(group), topic_name, header.sub_version, self._property_filter
            )
            if (
                isinstance(subscription, Refusal)
                and subscription.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
                and (header.subscription or is_tag_type(header.expression_type))
            ):
                # Its heartbeat is late, perhaps by half a minute. What an older expression drops would be lost to it,
                # so it gets what its own says: without one everything, for clients filter by tags themselves too.
                subscription = self._parse(header)
        if isinstance(subscription, Refusal):
            return refuse(subscription)
        if self._offsets.resets:
            answer = self._reset_answer(connection, header)
            if answer is not None:
                return answer
        if flags & PULL_COMMIT and group != REVIVE_GROUP:
            ext = command.ext
            epoch = ext.get(EXT_EPOCH) if ext else None
            ours = epoch is None or self._stale(connection, group, topic_name, queue_id, epoch) is None
            at, who = header.commit_offset, connection.holds
            if ours and self._offsets.commit(group, topic_name, queue_id, at, who):
                warn_of_lower(self._offsets, connection, group, topic_name, queue_id, at)
        offset = header.queue_offset
        accept = subscription.accept
        may_wait = flags & PULL_SUSPEND and header.suspend_timeout_millis > 0
        if may_wait and accept is None and self._gathers(command, header, self._end(topic_name, queue_id) - offset):
            gathering = self._park(_Waiting(connection, command, header, _NOTHING), subscription)
            if not isinstance(gathering, Refusal):
                self._defer(gathering, _GATHER_TURNS)
                return None
        count = self._count(command, header)
        filters = type(accept) is RecordFilter
        if filters and spent > FILTER_WORK:  # others have had this turn: its client asks again
            return not_found(self._unread(topic_name, queue_id, offset), offset)
        read = self._select if filters else self._read
        result = read(topic_name, queue_id, offset, count, self._bytes(header), accept)
        if result.status is ReadStatus.FOUND:
            size = sum(map(len, result.pieces))
            key = self._counters.pair(topic_name, group)
            self._delivered[key] += result.count
            if self._counters.delivered_bytes is not None:
                self._counters.delivered_bytes[key] += size
            self._counters.gets_found += 1
            kind = connection.reply_type(command)
            head = found_head(kind, command.opaque, result.next_offset, result.min_offset, result.max_offset, size)
            # As many as it asked for: it is behind, and asks for more when it has them.
            connection.reply(command, _FOUND, result.pieces, head, result.count == count)
            return None
        if may_wait and is_at_end(result, offset):
            parked = self._park(_Waiting(connection, command, header, result), subscription)
            return refuse(parked) if isinstance(parked, Refusal) else None
        self._counters.gets_missed += 1
        return not_found(result, offset)

    def _park(self, waiting: _Waiting, subscription: Subscription) -> ParkedPull | Refusal:
        command, header = waiting.command, waiting.header
        # It may wait for half a minute: nothing is kept of it that is not needed, and its texts are counted.
        command.body, command.fields, command.remark = b"", None, None
        if command.ext is not None:
            shed(command)
        own = weight_of(subscription.data) if header.sys_flag & _OWN_FILTER else 0
        own += sum([len(text) for text in header if type(text) is str])
        queue = header.topic, header.queue_id
        pull = ParkedPull(queue, header.queue_offset, subscription.accept, waiting.connection, waiting, own)
        if (refusal := self.polls.refusal(pull)) is not None:
            return refusal
        if self.polls.park(pull, header.suspend_timeout_millis / 1000, self._loop.time()):
            self._driver.update()
        return pull

    def arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int | None) -> None:
        """The queue now ends at ``max_offset``: answer the pulls that waited for it."""
        now: list[ParkedPull] = []
        for pull in self.polls.arrived(topic, queue_id, max_offset, tags_code):
            waiting: _Waiting = pull.request
            news = max_offset - pull.scanned
            if news > 1 and pull.accept is None and self._gathers(waiting.command, waiting.header, news):
                self._defer(pull, _GATHER_TURNS)
            else:
                now.append(pull)
        if now:
            self._resume(now)
        if self.polls.crowded and not self._waking:
            self._wake(1)

    def _gathers(self, command: RemotingCommand, header: PullMessageRequestHeader, news: int) -> bool:
        """Whether a pull that may wait, and has no filter, shall bring more than this. One message is awaited; where
        they come in numbers, a client of ours gets those of some turns at once: a pull costs it as much as twenty."""
        return 1 < news < self._count(command, header) and command.language == LANGUAGE_PYTHON

    def reset(self, group: str, topic: str, queue_id: int) -> None:
        """An administrator set the group's offset: its waiting pulls learn it, a few in each turn."""
        self._news.all(
            partial(self._tell_reset, pull)
            for pull in self.polls.waiting((topic, queue_id))
            if pull.request.header.consumer_group == group
        )

    def _tell_reset(self, pull: ParkedPull) -> None:
        waiting: _Waiting = pull.request
        if (
            self.polls.is_parked(pull)
            and (answer := self._reset_answer(waiting.connection, waiting.header)) is not None
        ):
            self.polls.answered(pull)
            waiting.connection.reply(waiting.command, answer)

    def _reset_answer(self, connection: Connection, header: PullMessageRequestHeader) -> RemotingCommand | None:
        """21 with the offset to go on at, when a reset waits for this group."""
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.tell_reset(header.consumer_group, topic, queue_id, connection, header.queue_offset)
        if offset is None:
            return None
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        answer = PullMessageResponseHeader(0, offset, low, high)
        return RemotingCommand.response(ResponseCode.PULL_OFFSET_MOVED, answer, remark=OFFSET_RESET)

    def lost(self, connection: Connection) -> int:
        self._offsets.lost(connection)
        return self.polls.lost(connection)

    def withdraw(self, topic: str, queues: int) -> None:
        """A topic was deleted: its waiting pulls learn it, a few in each turn."""
        self._news.all(
            partial(tell_gone, self.polls, pull)
            for queue_id in range(queues)
            for pull in self.polls.waiting((topic, queue_id))
        )

    def ask_again(self) -> None:
        """End the holds of all pulls: who may pull is judged when they come anew."""
        self.polls.end()
        self._driver.update()

    async def close(self) -> None:
        """Answer every parked pull with "nothing", some in each turn: the server reads no more, and is about to close
        and waits for answers."""
        self._driver.close()
        ending = self._ending
        while pulls := [ending.popleft() for _ in range(min(A_TURN, len(ending)))] or self.polls.expire(inf):
            self._resume(pulls, last=True)
            await asyncio.sleep(0)

    def _expired(self, now: float) -> None:
        if not self._ending:
            self._loop.call_soon(self._end_some)
        self._ending.extend(self.polls.expire(now))

    def _end_some(self) -> None:
        """A few at a time: hundreds may end at once, and a message that comes now shall not wait behind them all."""
        unsure: list[ParkedPull] = []
        try:
            for _ in range(min(_ENDS_PER_TURN, len(self._ending))):
                pull = self._ending.popleft()
                waiting: _Waiting = pull.request
                behind = pull in self._later or self.polls.is_behind(pull.queue)
                if pull.accept is None and waiting.nothing is not _NOTHING and not behind:
                    # Without a filter it would have been answered if anything had come.
                    self._counters.gets_missed += 1
                    waiting.connection.reply(waiting.command, not_found(waiting.nothing, pull.scanned))
                else:
                    unsure.append(pull)
        finally:
            if self._ending:
                self._loop.call_soon(self._end_some)
            self._resume(unsure, last=True)

    def _resume(self, pulls: Iterable[ParkedPull], *, last: bool = False) -> None:
        """Run pulls again, for the ``last`` time when they are not parked any more.

        Many of them often want exactly the same bytes (a broadcast, an idle group): those are read once.
        """
        seen: tuple[object, ...] | None = None
        result: ReadResult | None = None
        alone: dict[Connection, None] = {}
        for pull in pulls:
            unread = self._spent > FILTER_WORK and type(pull.accept) is RecordFilter
            if unread and not last:
                self._defer(pull)
                continue
            waiting: _Waiting = pull.request
            header = waiting.header
            count, size = self._count(waiting.command, header), self._bytes(header)
            wanted = (pull.queue, pull.scanned, count, size, pull.accept)
            if unread:
                result, seen = self._unread(header.topic, header.queue_id, pull.scanned), None
            elif result is None or wanted != seen:
                read = self._select if type(pull.accept) is RecordFilter else self._read
                try:
                    result = read(header.topic, header.queue_id, pull.scanned, count, size, pull.accept)
                    # Many may have come at once: what waits must have been looked at up to the end.
                    while (
                        result.status is ReadStatus.NO_MATCHED_MESSAGE
                        and result.next_offset < result.max_offset
                        and (read == self._read or self._spent <= FILTER_WORK)  # else its client goes on
                    ):
                        result = read(header.topic, header.queue_id, result.next_offset, count, size, pull.accept)
                except (RocketError, OSError) as error:
                    result = None
                    answer = RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark=f"the store failed: {error}")
                seen = wanted
            if result is not None:
                if result.status is ReadStatus.FOUND:
                    key = self._counters.pair(header.topic, header.consumer_group)
                    self._delivered[key] += result.count
                    if self._counters.delivered_bytes is not None:
                        self._counters.delivered_bytes[key] += sum(map(len, result.pieces))
                    self._counters.gets_found += 1
                    answer = found(result)
                elif last or not (has_seen_all(result) or is_at_end(result, pull.scanned)):
                    self._counters.gets_missed += 1
                    answer = not_found(result, pull.scanned)
                else:  # news, but not for this filter: go on waiting behind it
                    pull.scanned = max(pull.scanned, result.next_offset)
                    continue
            if not last:
                self.polls.answered(pull)
            waiting.connection.reply(waiting.command, answer, () if result is None else result.pieces)
            if result is not None and result.count == 1:
                alone[waiting.connection] = None
        # Now, and not in the next turn behind the answer to the sender. Where they come in numbers that is soon enough:
        # who gets them later asks less often.
        for connection in alone:
            connection.flush()

    def _defer(self, pull: ParkedPull, turns: int = 1) -> None:
        """Some after the others, in turns: many may wait for the same queue, each with a filter of its own."""
        self._later[pull] = None
        if not self._waking:
            self._wake(turns)

    def _wake(self, turns: int) -> None:
        self._waking = True
        soon: Callable[..., object] = self._loop.call_soon  # of itself, until it is its turn
        soon(*[soon] * (turns - 1), self._resume_some)

    def _resume_some(self) -> None:
        later, polls = self._later, self.polls
        pulls = [later.popitem(last=False)[0] for _ in range(min(len(later), A_TURN))]
        if polls.crowded:
            pulls += polls.of_crowds(A_TURN - len(pulls))
        self._waking = False
        if later or polls.crowded:  # before one of these fails
            self._wake(1)
        self._resume([pull for pull in pulls if polls.is_parked(pull)])

    def _select(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        accept: Callable[[int], bool] | None,
    ) -> ReadResult:
        """``store.read`` for a filter that must see the messages, and what it takes of this turn."""
        assert isinstance(accept, RecordFilter)
        result, took = read_filtered(
            self._store, topic, queue_id, offset, max_messages, max_bytes, accept,
            work=FILTER_WORK // 2, scan_bytes=self._max_bytes,
        )  # fmt: skip
        self._spend(took)
        return result

    def _unread(self, topic: str, queue_id: int, offset: int) -> ReadResult:
        """Nothing, and more to look at: others have had this turn."""
        low, high = self._store.min_offset(topic, queue_id), self._end(topic, queue_id)
        return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, (), offset, low, high, 0)

    def _spend(self, work: int) -> None:
        if not self._spent:
            self._loop.call_soon(self._rest)
        self._spent += work

    def _rest(self) -> None:
        self._spent = 0

    def _count(self, command: RemotingCommand, header: PullMessageRequestHeader) -> int:
        most = self._max_messages if command.language == LANGUAGE_PYTHON else self._max_for_others
        return min(max(1, header.max_msg_nums), most)

    def _bytes(self, header: PullMessageRequestHeader) -> int:
        asked = header.max_msg_bytes
        return min(asked, self._max_bytes) if asked else self._max_bytes

    def _parse(self, header: PullMessageRequestHeader) -> Subscription | Refusal:
        if header.sys_flag & PULL_CLASS_FILTER:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                "class filters (sysFlag 8, classFilterMode) are not served: RocketMQ removed its filter servers too; "
                "use TAG or SQL92",
            )
        return self.subscription(header.topic, header.subscription, header.expression_type, header.sub_version)

    def subscription(
        self,
        topic: str,
        expression: str | None,
        expression_type: str | None,
        version: int = 0,
        *,
        spend: Callable[[int], None] | None = None,
    ) -> Subscription | Refusal:
        """That of a request which brings its own expression. What compiling it takes of a turn is told to ``spend``."""
        key = (topic, expression, expression_type)
        known = self._parsed.get(key)
        if known is not None:
            return known
        limits = self._limits
        if (refusal := filter_refusal(expression, limits)) is not None:
            return refusal
        if not is_tag_type(expression_type):
            (spend or self._spend)(COMPILING * len(expression or "") + 1)
        parsed = parse_subscription(topic, expression, expression_type, version, self._property_filter)
        if isinstance(parsed, Subscription):
            if len(parsed.data.code_set) > limits.filter_tags:
                return full("filter_tags", limits.filter_tags, f"{len(parsed.data.code_set)} tags in one pull")
            weight = weight_of(parsed.data)
            if len(self._parsed) >= MAX_PARSED or self._parsed_weight + weight > limits.filter_memory // 8:
                self._parsed.clear()
                self._parsed_weight = 0
            self._parsed_weight += weight
            self._parsed[key] = parsed
        return parsed
