"""POP_MESSAGE (200050), PEEK_MESSAGE (200052), NOTIFICATION (200054) and POLLING_INFO (200055), with long polling.

What queues are looked at for one, and what goes out, is in ../pop_looks.py: in turns of the loop, so that the answer
may come in a later one. A pop that finds nothing is parked under its topic and group and run again when something
arrives there, when the group's acknowledgement frees an ordered queue, or answered when its hold is over; the longest
waiting is served first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.broker.answers import brokers_own, refuse, tell_gone, unknown_topic
from aiorocket.broker.core.groups import Subscription, is_tag_type, weight_of
from aiorocket.broker.core.long_poll import LongPolls, ParkedPull
from aiorocket.broker.core.names import Refusal, full
from aiorocket.broker.core.pop_answer import Wanted
from aiorocket.broker.core.pops import MAX_INVISIBLE_MS
from aiorocket.broker.core.pull_checks import check_access
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.topics import Topic
from aiorocket.broker.pop_looks import A_SLICE, AN_END, POP_WORK, PopLooks
from aiorocket.errors import RocketError
from aiorocket.remoting.awaited import shed
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket.runtime.turns import Rounds, Turns
from aiorocket_protocol import (
    ANY_QUEUE,
    INIT_MIN,
    MAX_POP,
    ORDER_REVIVE_QUEUE,
    REVIVE_GROUP,
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
#: Queues that one pop of any looks at, at most.
MAX_QUEUES = 4096
#: What it costs to look whether a group waits, as of POP_WORK.
_A_GROUP = 8
#: Parked pops that are told in one turn of the loop that their topic is gone.
_TOLD_PER_TURN = 64


_Asks = PopMessageRequestHeader | NotificationRequestHeader | PeekMessageRequestHeader | PollingInfoRequestHeader


class _Parked(NamedTuple):
    connection: Connection
    command: RemotingCommand
    wanted: Wanted


class PopHandlers:
    """The handlers, and the parked requests. ``subscription`` is what pulls parse expressions with."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        config: BrokerConfig,
        tables: Tables,
        store: MessageStore,
        *,
        revival: PopRevival,
        subscription: Callable[..., Subscription | Refusal],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._topics = tables.topics
        self._configs = tables.configs
        self._counters = tables.counters
        self._table = revival.table
        self._subscription = subscription
        self._limits = config.limits
        #: What looks through queues, for requests and for what is parked.
        self._rounds = Rounds(POP_WORK, A_SLICE)
        #: Bytes of the filters of requests whose look is under way.
        self._weight = 0
        self._looks = PopLooks(loop, clock, config, tables, store, revival, self._rounds)
        self.polls = LongPolls(config.max_hold, config.limits)
        #: Topic, or retry topic → under which topic and groups something may be parked for what arrives there.
        self.awaited: dict[str, dict[tuple[str, str], None]] = {}
        #: How many were put there since the last look at all of them.
        self._marks = 0
        #: Topic -> queues with news that not all who wait for it have been told of.
        self._arrivals: dict[str, dict[int, None]] = {}
        #: (topic, group) -> queues (-1: any) where something may be popped again; who waits there has its turns.
        self._news: dict[tuple[str, str], dict[int, None]] = {}
        #: The parked pops that queues are looked through for.
        self._looking: set[ParkedPull] = set()
        self._gone = Turns(_TOLD_PER_TURN)
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
        if header.exp and not is_tag_type(header.exp_type) and self._rounds.full():
            own = len(header.exp)  # compiling it takes a share of a turn, too
            if (reached := self._reached(own)) is not None:
                return refuse(full(*reached, "a pop by SQL cannot wait for its turn"))
            self._weight += own
            self._rounds.begin(self._pop_later(connection, command, header))
            shed(command)
            return None
        return self._pop(connection, command, header)

    def _pop_later(
        self, connection: Connection, command: RemotingCommand, header: PopMessageRequestHeader
    ) -> Generator[None, None, None]:
        self._weight -= len(header.exp or "")
        answer: RemotingCommand | None = None
        if self._looks.closed:  # it is answered as looks are that end here, and not compiled for that
            self._rounds.spend(AN_END)
            answer = self._no_message(header.invisible_time, bool(header.order))
        elif not connection.closed:
            answer = self._pop(connection, command, header)
        if answer is not None:
            connection.reply(command, answer)
        yield from ()

    def _pop(
        self, connection: Connection, command: RemotingCommand, header: PopMessageRequestHeader
    ) -> RemotingCommand | None:
        if header.consumer_group == REVIVE_GROUP:  # what no pop wants is passed by, and committed
            return refuse(brokers_own(header.consumer_group))
        if isinstance(checked := self._check(connection, header), Refusal):
            return refuse(checked)
        count, invisible = header.max_msg_nums, header.invisible_time
        if not 1 <= count <= MAX_POP:
            return _bad(f"maxMsgNums is {count}: a pop is for 1 to {MAX_POP} messages")
        if not 1 <= invisible <= MAX_INVISIBLE_MS:
            return _bad(f"invisibleTime is {invisible}: 1 to {MAX_INVISIBLE_MS} ms are allowed")
        if (too_many := self._table.full(self._limits.popped, header.consumer_group, connection.holds)) is not None:
            return refuse(too_many)
        accept, own = None, 0
        if header.exp:
            subscription = self._subscription(header.topic, header.exp, header.exp_type, spend=self._rounds.spend)
            if isinstance(subscription, Refusal):
                return refuse(subscription)
            accept = subscription.accept
            own = 0 if accept is None else weight_of(subscription.data)
        wanted = Wanted(
            header.consumer_group, checked, header.queue_id, count, invisible, header.init_mode,
            bool(header.order), (header.attempt_id or "")[:64], accept,
        )  # fmt: skip
        return self._begin(connection, command, wanted, header.poll_time, own)

    def notification(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 200054: says when a pop would find something."""
        header = command.read(NotificationRequestHeader)
        if isinstance(checked := self._check(connection, header), Refusal):
            return refuse(checked)
        wanted = Wanted(
            header.consumer_group, checked, header.queue_id, 0, 0, INIT_MIN,
            bool(header.order), (header.attempt_id or "")[:64], None,
        )  # fmt: skip
        return self._begin(connection, command, wanted, header.poll_time)

    def peek(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 200052: what the next pop would get; nothing goes out."""
        header = command.read(PeekMessageRequestHeader)
        if isinstance(checked := self._check(connection, header), Refusal):
            return refuse(checked)
        if not 1 <= header.max_msg_nums <= MAX_POP:
            return _bad(f"maxMsgNums is {header.max_msg_nums}: a peek is for 1 to {MAX_POP} messages")
        wanted = Wanted(
            header.consumer_group, checked, header.queue_id, header.max_msg_nums, 0, INIT_MIN, False, "", None
        )  # fmt: skip
        return self._begin(connection, command, wanted, peeks=True)

    def _begin(
        self,
        connection: Connection,
        command: RemotingCommand,
        wanted: Wanted,
        hold_ms: int = 0,
        own: int = 0,
        *,
        peeks: bool = False,
    ) -> RemotingCommand | None:
        """Queues are looked at now, or those that are left in turns to come. ``own`` is what its filter takes."""
        if (reached := self._reached(own)) is not None:
            return self._nothing(wanted, full="{}={}".format(*reached))
        self._weight += own
        work = self._serve_peek if peeks else self._serve_or_park
        if not self._rounds.begin(work(connection, command, wanted, hold_ms, own)):
            shed(command)
        return None

    def _reached(self, own: int) -> tuple[str, int] | None:
        """The limit for which no more looks may be under way. ``own`` is what the filter of the next one takes."""
        limits = self._limits
        if len(self._rounds) >= limits.pops_under_way:
            return "pops_under_way", limits.pops_under_way
        if self._weight and self._weight + own > limits.filter_memory // 8:
            return "filter_memory", limits.filter_memory
        return None

    def _serve_or_park(
        self, connection: Connection, command: RemotingCommand, wanted: Wanted, hold_ms: int, own: int
    ) -> Generator[None, None, None]:
        turn = self._rounds.turn
        try:
            if (yield from self._serve(connection, command, wanted)):
                return
        except (RocketError, OSError) as error:
            connection.reply(command, _failed(error))
            return
        finally:
            self._weight -= own
        if (answer := self._park(connection, command, wanted, hold_ms, own)) is not None:
            connection.reply(command, answer)
        elif self._rounds.turn != turn:  # something may have come meanwhile where it had looked already
            self.wake(wanted.topic.name, wanted.group)

    def _serve_peek(
        self, connection: Connection, command: RemotingCommand, wanted: Wanted, hold_ms: int, own: int
    ) -> Generator[None, None, None]:
        try:
            found = yield from self._looks.peek(connection, wanted)
        except (RocketError, OSError) as error:
            connection.reply(command, _failed(error))
            return
        code = ResponseCode.SUCCESS if found.pieces else ResponseCode.PULL_NOT_FOUND
        header = PopMessageResponseHeader(found.pop_time, 0, 0, found.rest)
        connection.reply(command, RemotingCommand.response(code, header), found.pieces)

    def polling_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 200055: how many wait."""
        header = command.read(PollingInfoRequestHeader)
        if isinstance(checked := self._check(connection, header), Refusal):
            return refuse(checked)
        parked = self.polls.waiting((header.topic, header.consumer_group))
        count = sum(pull.request.wanted.queue_id == header.queue_id for pull in parked)
        return RemotingCommand.response(header=PollingInfoResponseHeader(count))

    # ---- waiting

    def arrived(self, topic: str, queue_id: int) -> None:
        """A queue of ``topic``, which is in ``awaited``, has news."""
        queues = self._arrivals.get(topic)
        if queues is not None:
            queues[queue_id] = None
        else:
            self._arrivals[topic] = {queue_id: None}
            self._rounds.begin(self._wake_all(topic))

    def _wake_all(self, topic: str) -> Generator[None, None, None]:
        """Wake what waits for ``topic`` until there are no news of it: of thousands of groups some in each turn. Who
        comes meanwhile finds the news by itself."""
        queues = self._arrivals[topic]
        try:
            while queues:
                queue_id = next(iter(queues))
                del queues[queue_id]
                for key in list(self.awaited.get(topic, ())):
                    if self._rounds.full():
                        yield
                    self._rounds.spend(_A_GROUP)
                    if self.polls.is_awaited(key):
                        self._wake(key, queue_id if key[0] == topic else ANY_QUEUE)
                    elif key in (keys := self.awaited.get(topic, {})):
                        del keys[key]
                if not self.awaited.get(topic, True):
                    del self.awaited[topic]
        finally:
            del self._arrivals[topic]

    def wake(self, topic: str, group: str) -> None:
        """Something may be popped again."""
        if self.polls.is_awaited((topic, group)):
            self._wake((topic, group), ANY_QUEUE)

    def lost(self, connection: Connection) -> int:
        return self.polls.lost(connection)

    def withdraw(self, topic: str) -> None:
        """A topic was deleted: what waits for it learns it, some in each turn."""
        keys = list(self.awaited.get(topic, ()))
        self._gone.all(partial(self._tell_gone, pull) for key in keys for pull in self.polls.waiting(key))

    def _tell_gone(self, pull: ParkedPull) -> None:
        if pull not in self._looking:
            tell_gone(self.polls, pull)
        elif self.polls.is_parked(pull):  # who looks for it tells
            self.polls.answered(pull)

    def ask_again(self) -> None:
        """As of pulls."""
        self.polls.end()
        self._driver.update()

    async def close(self) -> None:
        """Answer all that wait with "nothing", some in each turn: the server reads no more, and is about to close and
        waits for answers."""
        self._driver.close()
        self._looks.closed = True
        while (pulls := self.polls.expire(inf)) or self._rounds:  # what is under way ends where it stands
            self._end(pulls)
            await asyncio.sleep(0)

    def _expired(self, now: float) -> None:
        self._end(self.polls.expire(now))

    def _end(self, pulls: list[ParkedPull]) -> None:
        for pull in pulls:
            parked: _Parked = pull.request
            if pull not in self._looking:  # else who looks for it answers
                parked.connection.reply(parked.command, self._nothing(parked.wanted))

    def _park(
        self, connection: Connection, command: RemotingCommand, wanted: Wanted, hold_ms: int, own: int = 0
    ) -> RemotingCommand | None:
        if wanted.topic.name not in self._topics:
            return refuse(unknown_topic(wanted.topic.name))
        if hold_ms <= 0 or self._looks.closed or connection.closed:
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
        waiting = {topic: [key for key in keys if self.polls.is_awaited(key)] for topic, keys in self.awaited.items()}
        self.awaited = {topic: dict.fromkeys(keys) for topic, keys in waiting.items() if keys}
        self._marks = sum(map(len, self.awaited.values()))

    def _wake(self, key: tuple[str, str], queue_id: int) -> None:
        news = self._news.get(key)
        if news is None:
            self._news[key] = {queue_id: None}
            self._rounds.begin(self._serve_all(key))
        else:
            news[queue_id] = None

    def _serve_all(self, key: tuple[str, str]) -> Generator[None, None, None]:
        """Run what waits under ``key`` until there are no news for it."""
        news = self._news[key]
        try:
            while news:
                queue_id = next(iter(news))
                del news[queue_id]
                yield from self._serve_waiting(key, queue_id)
        finally:
            del self._news[key]

    def _serve_waiting(self, key: tuple[str, str], queue_id: int) -> Generator[None, None, None]:
        """Run what waits under ``key`` and may take from ``queue_id`` (-1: from any), until nothing is found."""
        idle: set[int] = set()
        for pull in self.polls.waiting(key):
            parked: _Parked = pull.request
            connection, command, wanted = parked
            asked = wanted.queue_id
            if (
                asked in idle
                or (queue_id >= 0 and asked not in (ANY_QUEUE, queue_id))
                or not self.polls.is_parked(pull)
            ):
                continue
            self._looking.add(pull)
            try:
                served = yield from self._serve(connection, command, wanted)
            except (RocketError, OSError) as error:
                served = True
                connection.reply(command, _failed(error))
            finally:
                self._looking.discard(pull)
            if not self.polls.is_parked(pull):  # it ended meanwhile
                if not served:
                    gone = wanted.topic.name not in self._topics
                    connection.reply(command, refuse(unknown_topic(key[0])) if gone else self._nothing(wanted))
            elif served:
                self.polls.answered(pull)
            elif asked == ANY_QUEUE:
                return
            else:
                idle.add(asked)

    # ---- one of them

    def _check(self, connection: Connection, header: _Asks) -> Topic | Refusal:
        """Apache's checks, in its order."""
        group, name, queue_id = header.consumer_group, header.topic, header.queue_id
        topic = self._topics.get(name)
        if topic is None:  # before its group is made
            return unknown_topic(name)
        if isinstance(config := self._configs.ensure(group, connection.holds), Refusal):
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

    def _serve(self, connection: Connection, command: RemotingCommand, wanted: Wanted) -> Generator[None, None, bool]:
        """Answer when there is something; whether there was."""
        if not wanted.most:
            if not (yield from self._looks.has_messages(connection, wanted)):
                return False
            connection.reply(command, RemotingCommand.response(header=NotificationResponseHeader(True, False)))
            return True
        found = yield from self._looks.take(connection, wanted)
        if not found.pieces and found.refusal is not None:
            connection.reply(command, refuse(found.refusal))
            return True
        if not found.pieces:
            if found.unread:  # filtered out so far; there is more to look at
                self._loop.call_soon(self.wake, wanted.topic.name, wanted.group)
            return False
        key = self._counters.pair(wanted.topic.name, wanted.group)
        self._counters.delivered[key] += wanted.most - found.count
        if self._counters.delivered_bytes is not None:
            self._counters.delivered_bytes[key] += sum(map(len, found.pieces))
        self._counters.gets_found += 1
        connection.reply(command, RemotingCommand.response(header=found.header(wanted), remark="FOUND"), found.pieces)
        return True

    def _nothing(self, wanted: Wanted, *, full: str = "") -> RemotingCommand:
        """``full`` is the limit for which it may not wait."""
        if not wanted.most:
            return RemotingCommand.response(header=NotificationResponseHeader(False, bool(full)))
        return self._no_message(wanted.invisible_ms, wanted.in_order, full=full)

    def _no_message(self, invisible_ms: int, in_order: bool, *, full: str = "") -> RemotingCommand:
        code = ResponseCode.POLLING_FULL if full else ResponseCode.POLLING_TIMEOUT
        revive = ORDER_REVIVE_QUEUE if in_order else 0
        answer = PopMessageResponseHeader(self._clock.wall_ms(), invisible_ms, revive, 0)
        remark = f"the broker's limit {full} is reached" if full else "NO_MESSAGE_IN_QUEUE"
        return RemotingCommand.response(code, answer, remark=remark)


def _failed(error: Exception) -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark=f"the store failed: {error}")


def _bad(why: str) -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.INVALID_PARAMETER, remark=why)
