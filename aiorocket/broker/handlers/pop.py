"""POP_MESSAGE (200050), PEEK_MESSAGE (200052), NOTIFICATION (200054) and POLLING_INFO (200055), with long polling.

A pop reads where its group goes on, of one queue or of all of a topic, and of the group's retry topic: first of it
each fifth time, last of it else. What it finds is out from then on (core/pops.py) and the answer is stored bytes. One
that finds nothing is parked under its topic and group and run again when something arrives there, when the group's
acknowledgement frees an ordered queue, or answered when its hold is over; the longest waiting is served first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.broker.answers import refuse, tell_gone, unknown_topic
from aiorocket.broker.core.groups import Subscription, weight_of
from aiorocket.broker.core.long_poll import LongPolls, ParkedPull
from aiorocket.broker.core.names import Refusal, full
from aiorocket.broker.core.pop_answer import Found, Wanted
from aiorocket.broker.core.pops import MAX_INVISIBLE_MS, QueueKey
from aiorocket.broker.core.pull_checks import check_access
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.topics import Topic
from aiorocket.errors import RocketError
from aiorocket.remoting.awaited import shed
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket.runtime.turns import Turns
from aiorocket.storage.results import ReadResult, ReadStatus
from aiorocket_protocol import (
    ANY_QUEUE,
    INIT_MIN,
    MAX_POP,
    ORDER_REVIVE_QUEUE,
    RETRY_PREFIX,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    pop_retry_topic,
    split_records,
)

if TYPE_CHECKING:
    from aiorocket.broker.revive import PopRevival
    from aiorocket.config import BrokerConfig
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.runtime.clock import Clock
    from aiorocket.storage.store import MessageStore

__all__ = ("MAX_QUEUES", "PopHandlers")

#: A directory, which a topic becomes, has a name of at most this many bytes.
_LONGEST_TOPIC = 255
#: One pop in so many looks at retries first, so that neither they nor new messages wait for ever.
_RETRIES_FIRST = 5
#: Reads of one queue in one pop: each looks at 800 messages for a tag filter.
_READS = 4
#: Parked pops that are run again in one turn of the loop, and queues that one pop looks at, each for microseconds.
_WAKES_PER_TURN, MAX_QUEUES = 64, 4096

_MOVED = frozenset(
    {
        ReadStatus.OFFSET_TOO_SMALL,
        ReadStatus.OFFSET_FOUND_NULL,
        ReadStatus.NO_MATCHED_MESSAGE,
        ReadStatus.MESSAGE_WAS_REMOVING,
    }
)


class _Parked(NamedTuple):
    connection: Connection
    command: RemotingCommand
    wanted: Wanted


class PopHandlers:
    """The handlers, and the parked requests. ``read`` and ``subscription`` are what pulls read and parse with."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        config: BrokerConfig,
        tables: Tables,
        store: MessageStore,
        *,
        revival: PopRevival,
        read: Callable[[str, int, int, int, int, Callable[[int], bool] | None], ReadResult],
        subscription: Callable[[str, str | None, str | None], Subscription | Refusal],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._topics = tables.topics
        self._configs = tables.configs
        self._offsets = tables.offsets
        self._counters = tables.counters
        self._store = store
        self._revival = revival
        self._table = revival.table
        self._read_matching = read
        self._subscription = subscription
        self._max_bytes = config.max_pull_bytes
        self._limits = config.limits
        self._most = config.limits.popped
        self._turn = 0
        self.polls = LongPolls(config.max_hold, config.limits)
        #: Topic, or retry topic → under which topic and groups something may be parked for what arrives there.
        self.awaited: dict[str, dict[tuple[str, str], None]] = {}
        #: How many were put there since the last look at all of them.
        self._marks = 0
        #: (topic, group) and queue (-1: any) where something may be popped again, in this turn and those to come, and
        #: the last parked pop that had its turn (0: none yet).
        self._news: dict[tuple[tuple[str, str], int, int], None] = {}
        self._waking = False
        self._gone = Turns(_WAKES_PER_TURN)
        self._driver = DeadlineDriver(loop, self.polls.next_deadline, self._expired)
        revival.free = self.wake

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.POP_MESSAGE: self.pop,
            RequestCode.PEEK_MESSAGE: self.peek,
            RequestCode.NOTIFICATION: self.notification,
            RequestCode.POLLING_INFO: self.polling_info,
        }

    # ---- requests

    def pop(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 200050: None when it is parked or answered already."""
        header = command.read(PopMessageRequestHeader)
        if isinstance(checked := self._check(header.consumer_group, header.topic, header.queue_id), Refusal):
            return refuse(checked)
        count, invisible = header.max_msg_nums, header.invisible_time
        if not 1 <= count <= MAX_POP:
            return _bad(f"maxMsgNums is {count}: a pop is for 1 to {MAX_POP} messages")
        if not 1 <= invisible <= MAX_INVISIBLE_MS:
            return _bad(f"invisibleTime is {invisible}: 1 to {MAX_INVISIBLE_MS} ms are allowed")
        if self._table.count >= self._most:
            return refuse(full("popped", self._most, f"group {header.consumer_group} gets nothing more for now"))
        accept, own = None, 0
        if header.exp:
            subscription = self._subscription(header.topic, header.exp, header.exp_type)
            if isinstance(subscription, Refusal):
                return refuse(subscription)
            accept = subscription.accept
            own = 0 if accept is None else weight_of(subscription.data)
        wanted = Wanted(
            header.consumer_group, checked, header.queue_id, count, invisible, header.init_mode,
            bool(header.order), (header.attempt_id or "")[:64], accept,
        )  # fmt: skip
        if self._serve(connection, command, wanted):
            return None
        return self._park(connection, command, wanted, header.poll_time, own)

    def notification(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 200054: says when a pop would find something."""
        header = command.read(NotificationRequestHeader)
        if isinstance(checked := self._check(header.consumer_group, header.topic, header.queue_id), Refusal):
            return refuse(checked)
        wanted = Wanted(
            header.consumer_group, checked, header.queue_id, 0, 0, INIT_MIN,
            bool(header.order), (header.attempt_id or "")[:64], None,
        )  # fmt: skip
        if self._serve(connection, command, wanted):
            return None
        return self._park(connection, command, wanted, header.poll_time)

    def peek(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 200052: what the next pop would get; nothing goes out."""
        header = command.read(PeekMessageRequestHeader)
        if isinstance(checked := self._check(header.consumer_group, header.topic, header.queue_id), Refusal):
            return refuse(checked)
        if not 1 <= header.max_msg_nums <= MAX_POP:
            return _bad(f"maxMsgNums is {header.max_msg_nums}: a peek is for 1 to {MAX_POP} messages")
        wanted = Wanted(header.consumer_group, checked, header.queue_id, 0, 0, INIT_MIN, False, "", None)
        found = Found(header.max_msg_nums, self._max_bytes)
        for topic, queue_id in self._places(wanted):
            key = QueueKey(topic, wanted.group, queue_id)
            offset = self._table.next_offset(key, self._start(key, INIT_MIN))
            if found.count > 0 and found.size > 0:
                result = self._store.read(topic, queue_id, offset, found.count, found.size)
                if result.status is ReadStatus.FOUND:
                    found.pieces += result.pieces
                    found.count -= result.count
                    found.size -= sum(map(len, result.pieces))
                    offset = result.next_offset
            found.rest += max(0, self._store.max_offset(topic, queue_id) - offset)
        answer = PopMessageResponseHeader(self._clock.wall_ms(), 0, 0, found.rest)
        if not found.pieces:
            return RemotingCommand.response(ResponseCode.PULL_NOT_FOUND, answer)
        connection.reply(command, RemotingCommand.response(header=answer), found.pieces)
        return None

    def polling_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 200055: how many wait."""
        header = command.read(PollingInfoRequestHeader)
        if isinstance(checked := self._check(header.consumer_group, header.topic, header.queue_id), Refusal):
            return refuse(checked)
        parked = self.polls.waiting((header.topic, header.consumer_group))
        count = sum(pull.request.wanted.queue_id == header.queue_id for pull in parked)
        return RemotingCommand.response(header=PollingInfoResponseHeader(count))

    # ---- waiting

    def arrived(self, topic: str, queue_id: int) -> None:
        """A queue of ``topic``, which is in ``awaited``, has news."""
        keys = self.awaited[topic] = {key: None for key in self.awaited[topic] if self.polls.is_awaited(key)}
        if not keys:
            del self.awaited[topic]
        self._wake({(key, queue_id if key[0] == topic else ANY_QUEUE, 0): None for key in keys})

    def wake(self, topic: str, group: str) -> None:
        """Something may be popped again."""
        if self.polls.is_awaited((topic, group)):
            self._wake({((topic, group), ANY_QUEUE, 0): None})

    def lost(self, connection: Connection) -> None:
        self.polls.lost(connection)

    def withdraw(self, topic: str) -> None:
        """A topic was deleted: what waits for it learns it, some in each turn."""
        keys = list(self.awaited.get(topic, ()))
        self._gone.all(partial(tell_gone, self.polls, pull) for key in keys for pull in self.polls.waiting(key))

    def close(self) -> None:
        """Answer all that wait with "nothing": the server is about to close and waits for answers."""
        self._driver.close()
        self._end(self.polls.withdraw_all())

    def _expired(self, now: float) -> None:
        self._end(self.polls.expire(now))

    def _end(self, pulls: list[ParkedPull]) -> None:
        for pull in pulls:
            parked: _Parked = pull.request
            parked.connection.reply(parked.command, self._nothing(parked.wanted))

    def _park(
        self, connection: Connection, command: RemotingCommand, wanted: Wanted, hold_ms: int, own: int = 0
    ) -> RemotingCommand | None:
        if hold_ms <= 0:
            return self._nothing(wanted)
        key = (wanted.topic.name, wanted.group)
        limits = self._limits
        if self.polls.count >= limits.parked_pops:
            return self._nothing(wanted, full=f"parked_pops={limits.parked_pops}")
        if len(self.polls.waiting(key)) >= limits.parked_pops_per_group:
            return self._nothing(wanted, full=f"parked_pops_per_group={limits.parked_pops_per_group}")
        # It may wait for half a minute: nothing is kept of it that is not needed.
        shed(command)
        pull = ParkedPull(key, 0, None, connection, _Parked(connection, command, wanted), own)
        if (refusal := self.polls.refusal(pull)) is not None:
            return refuse(refusal)
        for name in (wanted.topic.name, pop_retry_topic(wanted.group, wanted.topic.name)):
            self.awaited.setdefault(name, {})[key] = None
        self._marks += 2
        if self._marks > 1024 + 4 * self.polls.count:
            self._forget_idle()
        if self.polls.park(pull, hold_ms / 1000, self._loop.time()):
            self._driver.update()
        return None

    def _forget_idle(self) -> None:
        """What nothing waits for any more, and nothing has arrived for since."""
        waiting = {topic: [key for key in keys if self.polls.waiting(key)] for topic, keys in self.awaited.items()}
        self.awaited = {topic: dict.fromkeys(keys) for topic, keys in waiting.items() if keys}
        self._marks = sum(map(len, self.awaited.values()))

    def _wake(self, news: dict[tuple[tuple[str, str], int, int], None]) -> None:
        self._news.update(news)
        if not self._waking:
            self._wake_some()

    def _wake_some(self) -> None:
        """Thousands of groups may wait for one message: some have their turn now."""
        self._waking, left = True, _WAKES_PER_TURN
        try:
            while self._news and left > 0:
                key, queue_id, after = next(iter(self._news))
                del self._news[key, queue_id, after]
                left = self._serve_waiting(key, queue_id, after, left)
        finally:
            self._waking = bool(self._news)
            if self._news:
                self._loop.call_soon(self._wake_some)

    def _serve_waiting(self, key: tuple[str, str], queue_id: int, after: int, left: int) -> int:
        """Run what waits under ``key``, behind the pop ``after``, and may take from ``queue_id`` (-1: from any), until
        nothing is found, but at most ``left`` of them; how many are left then."""
        idle: set[int] = set()
        for pull in self.polls.waiting(key):
            parked: _Parked = pull.request
            asked = parked.wanted.queue_id
            if pull.seq <= after or asked in idle or (queue_id >= 0 and asked not in (ANY_QUEUE, queue_id)):
                continue
            if not left:
                # Those before have found nothing, or wait no more: from the first on, it would be these again for ever.
                self._news[key, queue_id, after] = None
                return 0
            left -= 1
            after = pull.seq
            try:
                served = self._serve(parked.connection, parked.command, parked.wanted)
            except (RocketError, OSError) as error:
                served = True
                answer = RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark=f"the store failed: {error}")
                parked.connection.reply(parked.command, answer)
            if served:
                self.polls.answered(pull)
            elif asked == ANY_QUEUE:
                return left
            else:
                idle.add(asked)
        return left

    # ---- one pop

    def _check(self, group: str, name: str, queue_id: int) -> Topic | Refusal:
        """Apache's checks, in its order."""
        topic = self._topics.get(name)
        if topic is None:  # before its group is made
            return unknown_topic(name)
        if isinstance(config := self._configs.ensure(group), Refusal):
            return config
        if refusal := check_access(config, topic, name, max(queue_id, 0), self._configs.forbidden):
            return refusal
        if queue_id < 0 and topic.read_queues > MAX_QUEUES:
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"topic {name} has {topic.read_queues} queues: a pop of any looks at {MAX_QUEUES} at most, name one",
            )
        longest = _LONGEST_TOPIC - len(pop_retry_topic("", ""))
        if len(group) + len(name) > longest:
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"group {group} and topic {name} cannot be used with POP: their retry topic would have a name longer "
                f"than {_LONGEST_TOPIC} characters; together they may have {longest}",
            )
        return topic

    def _places(self, wanted: Wanted) -> list[tuple[str, int]]:
        """The queues to look at, in order: another one first each time."""
        self._turn += 1
        topic, turn = wanted.topic, self._turn
        if wanted.queue_id >= 0:
            places = [(topic.name, wanted.queue_id)]
        else:
            count = topic.read_queues
            places = [(topic.name, (turn + number) % count) for number in range(count)]
        retries = self._topics.get(pop_retry_topic(wanted.group, topic.name))
        if retries is None or wanted.in_order or topic.name.startswith(RETRY_PREFIX):
            return places
        of_retries = [(retries.name, queue_id) for queue_id in range(retries.read_queues)]
        return of_retries + places if turn % _RETRIES_FIRST == 0 else places + of_retries

    def _start(self, key: QueueKey, init_mode: int, *, first: bool = False) -> int:
        """The group's offset, or where it begins when it has none; with ``first`` that is where it begins from now
        on."""
        if self._offsets.resets and first:
            reset = self._offsets.take_reset(key.group, key.topic, key.queue_id)
            if reset is not None:
                self._revival.begins(key, reset)
                return reset
        offset = self._offsets.query(key.group, key.topic, key.queue_id)
        if offset is not None:
            return offset
        store = self._store
        low, high = store.min_offset(key.topic, key.queue_id), store.max_offset(key.topic, key.queue_id)
        young = low <= 0 and (high <= 0 or store.is_in_memory(key.topic, key.queue_id, 0))
        oldest = init_mode == INIT_MIN or key.topic.startswith(RETRY_PREFIX) or young
        offset = low if oldest else max(0, high - 1)  # the newest message is popped, as at Apache's
        if first:
            self._revival.begins(key, offset)
        return offset

    def _serve(self, connection: Connection, command: RemotingCommand, wanted: Wanted) -> bool:
        """Answer when there is something; whether there was."""
        if not wanted.most:
            if not self._has_messages(wanted):
                return False
            connection.reply(command, RemotingCommand.response(header=NotificationResponseHeader(True, False)))
            return True
        found = Found(wanted.most, self._max_bytes)
        wall_ms = self._clock.wall_ms()
        for topic, queue_id in self._places(wanted):
            self._take(found, QueueKey(topic, wanted.group, queue_id), wanted, wall_ms)
        if not found.pieces and found.refusal is not None:
            connection.reply(command, refuse(found.refusal))
            return True
        if not found.pieces:
            if found.unread:  # filtered out so far; there is more to look at
                self._loop.call_soon(self.wake, wanted.topic.name, wanted.group)
            return False
        answer = found.header(wanted, wall_ms)
        key = self._counters.pair(wanted.topic.name, wanted.group)
        self._counters.delivered[key] += wanted.most - found.count
        if self._counters.delivered_bytes is not None:
            self._counters.delivered_bytes[key] += sum(map(len, found.pieces))
        self._counters.gets_found += 1
        connection.reply(command, RemotingCommand.response(header=answer, remark="FOUND"), found.pieces)
        return True

    def _take(self, found: Found, key: QueueKey, wanted: Wanted, wall_ms: int) -> None:
        """What of one queue fits into the answer goes out."""
        table, now = self._table, self._loop.time()
        found.refusal = self._offsets.refusal(key.group, key.topic, key.queue_id) or found.refusal
        if found.refusal is not None:
            return  # where it begins would not be kept, and it would begin there each time
        offset = table.next_offset(key, self._start(key, wanted.init_mode, first=True))
        count = min(found.count, self._most - table.count)
        again = None
        if wanted.in_order:
            if table.is_blocked(key, wanted.attempt, now):
                return  # what is behind does not count as rest: nobody can have it
            again = table.again(key)
            if again is not None:
                offset, count = again[0], min(again[1], count)
        elif table.is_full(key):
            return
        if count <= 0 or found.size <= 0:
            found.rest += max(0, self._store.max_offset(key.topic, key.queue_id) - offset)
            return
        # A retry was wanted once, and what goes out again in order would stop the queue if it was not any more.
        accept = wanted.accept if key.topic == wanted.topic.name and again is None else None
        result = self._read(found, key, offset, count, accept)
        if result.min_offset > offset:
            self._revival.say_overtaken(key, offset, result.min_offset)
        found.rest += max(0, result.max_offset - result.next_offset)
        if result.status is not ReadStatus.FOUND:
            if result.status is ReadStatus.OFFSET_OVERFLOW_BADLY:  # the topic was made anew, or lost its end
                self._revival.begins(key, result.max_offset)
            elif result.next_offset > offset:
                table.skip(key, result.next_offset)
                if not table.out(key):
                    self._offsets.commit(key.group, key.topic, key.queue_id, result.next_offset)
            return
        data = result.data
        offsets = [view.queue_offset for view in split_records(data)]
        pop = table.take(
            key, offsets, result.next_offset,
            pop_time=wall_ms, invisible_ms=wanted.invisible_ms, now=now,
            in_order=wanted.in_order, attempt=wanted.attempt,
        )  # fmt: skip
        first = table.first_out(key)
        assert first is not None
        self._offsets.commit(key.group, key.topic, key.queue_id, first)
        found.add(key, data, offsets)
        if wanted.in_order:
            found.add_times(key, offsets, [table.times(key, one) for one in offsets])
        self._revival.took(pop)

    def _read(
        self, found: Found, key: QueueKey, offset: int, count: int, accept: Callable[[int], bool] | None
    ) -> ReadResult:
        """The first messages from ``offset`` on that match, wherever the queue begins by now."""
        for _ in range(_READS):
            result = self._read_matching(key.topic, key.queue_id, offset, count, found.size, accept)
            if result.status not in _MOVED or result.next_offset in (offset, result.max_offset):
                return result
            offset = result.next_offset
        found.unread = True
        return result

    def _has_messages(self, wanted: Wanted) -> bool:
        now = self._loop.time()
        for topic, queue_id in self._places(wanted):
            key = QueueKey(topic, wanted.group, queue_id)
            if wanted.in_order and self._table.is_blocked(key, wanted.attempt, now):
                continue
            if wanted.in_order and self._table.out(key):
                return True
            if self._store.max_offset(topic, queue_id) > self._table.next_offset(key, self._start(key, INIT_MIN)):
                return True
        return False

    def _nothing(self, wanted: Wanted, *, full: str = "") -> RemotingCommand:
        """``full`` is the limit for which it may not wait."""
        if not wanted.most:
            return RemotingCommand.response(header=NotificationResponseHeader(False, bool(full)))
        code = ResponseCode.POLLING_FULL if full else ResponseCode.POLLING_TIMEOUT
        revive = ORDER_REVIVE_QUEUE if wanted.in_order else 0
        answer = PopMessageResponseHeader(self._clock.wall_ms(), wanted.invisible_ms, revive, 0)
        remark = f"the broker's limit {full} is reached" if full else "NO_MESSAGE_IN_QUEUE"
        return RemotingCommand.response(code, answer, remark=remark)


def _bad(why: str) -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.INVALID_PARAMETER, remark=why)
