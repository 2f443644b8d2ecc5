"""Where groups are, and putting them elsewhere: ``admin.offsets``. Plan, look at the plan, apply it, verify it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, NamedTuple

from aiorocket.client.admin.asking import ABSENT, Answers, Asking, Broker, Missing
from aiorocket.client.admin.groups import Groups, QueueLag, topics_of
from aiorocket.client.admin.moments import Moment, millis
from aiorocket.client.queue_scan import QueueScan
from aiorocket.errors import NotConnectedError, TopicNotFoundError, UsageError
from aiorocket.model import Queue, check_group
from aiorocket_protocol import (
    RETRY_PREFIX,
    CloneGroupOffsetRequestHeader,
    GetConsumerConnectionListRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    RequestCode,
    ResetOffsetRequestHeader,
    ResponseCode,
    UpdateConsumerOffsetRequestHeader,
    decode_configuration,
)

__all__ = ("OffsetMove", "OffsetPlan", "Offsets")

#: How long a member may take to do what an old broker tells it, and how long between two looks.
_DONE_WITHIN, _PAUSE = 10.0, 0.2

_Way = Callable[["OffsetPlan", Broker, "list[OffsetMove]"], Awaitable[None]]
Target = Moment | Literal["first", "last"]


class OffsetMove(NamedTuple):
    """A group's offset in one queue, now and as planned; the queue has ``begin`` up to ``end``. ``now`` is -1 where it
    has none yet: its consumers then begin where they say."""

    broker: str
    queue: int
    now: int
    then: int
    begin: int
    end: int


class OffsetPlan(NamedTuple):
    """Made by ``Offsets.plan``. ``at`` is the time in ms that ``to`` said, -1 for "last"; None when offsets were given
    by number. ``missing`` are brokers that could not be asked: nothing changes there. ``kept`` are brokers that said,
    when it was applied, that they keep the reset until the group goes on from there."""

    group: str
    topic: str
    moves: tuple[OffsetMove, ...]
    at: int | None
    missing: tuple[Missing, ...] = ()
    kept: frozenset[str] = frozenset()

    @property
    def again(self) -> int:
        """Messages that come once more."""
        return sum(max(0, each.now - each.then) for each in self.moves)

    @property
    def skipped(self) -> int:
        """Messages that will not come."""
        return sum(max(0, each.then - max(each.now, each.begin)) for each in self.moves)


class Offsets:
    """See ``Admin``."""

    def __init__(self, asking: Asking, groups: Groups) -> None:
        self._ask = asking
        self._groups = groups

    async def plan(
        self,
        group: str,
        topic: str,
        to: Target | Mapping[tuple[str, int], int] | None = None,
        *,
        skip: int | None = None,
    ) -> OffsetPlan:
        """What a reset would do; nothing is changed. ``to`` is a time (what was stored then or later), "first",
        "last", or offsets by (broker, queue), other queues staying; ``skip`` moves each queue so many messages on,
        or back when it is negative. What is outside of a queue becomes its nearest bound.

        TopicNotFoundError when no broker has the topic, UsageError when not exactly one of both is given.
        """
        if (to is None) == (skip is None):
            raise UsageError("to= or skip= is needed, one of them")
        at: int | None = None
        if isinstance(to, str):
            if to not in ("first", "last"):
                raise UsageError(f"to={to!r}: 'first', 'last', a time or offsets by queue")
            at = 0 if to == "first" else -1
        elif not isinstance(to, Mapping):
            at = millis("to", to)
        lags = await self._groups.lag(check_group(group), topic)
        if not lags and not lags.missing:
            raise TopicNotFoundError(
                f"no broker has topic {topic!r} and group {group!r}: `aiorocket topic list` and `aiorocket group list` "
                "name those there are"
            )
        addresses = {each.name: each.address for each in await self._ask.brokers()}
        known = {(each.broker, each.queue) for each in lags}
        if isinstance(to, Mapping) and (unknown := sorted(to.keys() - known)):
            raise UsageError(f"topic {topic!r} has no queue {unknown[0]}: queues are {sorted(known)}")

        async def move(row: QueueLag) -> OffsetMove:
            queue = Queue(self._ask.wire(topic), row.broker, row.queue)
            scan = QueueScan(self._ask.client, queue, addresses[row.broker])
            begin, end = await scan.bounds()
            now = row.offset or await self._stored(group, queue, addresses[row.broker])
            if skip is not None:
                then = row.offset + skip
            elif isinstance(to, Mapping):
                if (row.broker, row.queue) not in to:
                    return OffsetMove(row.broker, row.queue, now, now, begin, end)
                then = to[row.broker, row.queue]
            elif at == 0 or at == -1:
                then = begin if at == 0 else end
            else:
                assert at is not None
                then = await scan.offset_at(at)
            return OffsetMove(row.broker, row.queue, now, min(max(then, begin), end), begin, end)

        if gone := sorted({each.broker for each in lags} - addresses.keys()):
            raise NotConnectedError(f"nobody says where these brokers are: {', '.join(gone)}")
        moves = await asyncio.gather(*map(move, lags))
        return OffsetPlan(group, topic, tuple(moves), at, lags.missing)

    async def _stored(self, group: str, queue: Queue, address: str) -> int:
        """Lag says 0 of a queue that the group has no offset in: then it is -1."""
        header = QueryConsumerOffsetRequestHeader(self._ask.wire(group), queue.topic, queue.queue_id, False)
        answer = await self._ask.call(
            address, RequestCode.QUERY_CONSUMER_OFFSET, header, accept=(int(ResponseCode.QUERY_NOT_FOUND),)
        )
        return -1 if answer.code else int(answer.read(QueryConsumerOffsetResponseHeader).offset)

    async def apply(self, plan: OffsetPlan) -> OffsetPlan:
        """Do what the plan says, and give it with what ``verify`` need not guess. Brokers from 5.0 on tell a running
        group by themselves. On older ones (and with ``useServerSideResetOffset=false``) members are told of a time
        only: UsageError, and nothing is changed, when the plan is by number and the group is online. Another error may
        come when a part is done: ``verify`` says what is not."""
        brokers = {each.name: each for each in await self._ask.brokers()}
        needed = sorted({each.broker for each in plan.moves if each.now != each.then})
        if gone := [name for name in needed if name not in brokers]:
            raise NotConnectedError(f"brokers of the plan are not there any more: {', '.join(gone)}")
        ways = dict(
            zip(needed, await asyncio.gather(*(self._way(plan, brokers[name]) for name in needed)), strict=True)
        )
        for name in needed:
            moves = [each for each in plan.moves if each.broker == name and each.now != each.then]
            await ways[name](plan, brokers[name], moves)
        # A bound method is equal to another of the same object, not the same.
        return plan._replace(kept=frozenset(name for name, way in ways.items() if way == self._reset))

    async def _way(self, plan: OffsetPlan, broker: Broker) -> _Way:
        answer = await self._ask.call(broker.address, RequestCode.GET_BROKER_CONFIG)
        if decode_configuration(answer.body).get("useServerSideResetOffset") == "true":
            return self._reset
        header = GetConsumerConnectionListRequestHeader(self._ask.wire(plan.group))
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        if (await self._ask.call(broker.address, code, header, accept=ABSENT)).code:
            return self._commit
        if plan.at is None:
            raise UsageError(
                f"group {plan.group} is online and broker {broker.name} resets a running group to a time only: stop "
                "its consumers first, or plan with a time, 'first' or 'last'"
            )
        return self._push

    async def _reset(self, plan: OffsetPlan, broker: Broker, moves: list[OffsetMove]) -> None:
        for each in moves:
            header = ResetOffsetRequestHeader(
                self._ask.wire(plan.topic), self._ask.wire(plan.group), 0, True, each.queue, each.then
            )
            await self._ask.call(broker.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)

    async def _commit(self, plan: OffsetPlan, broker: Broker, moves: list[OffsetMove]) -> None:
        for each in moves:
            header = UpdateConsumerOffsetRequestHeader(
                self._ask.wire(plan.group), self._ask.wire(plan.topic), each.queue, each.then
            )
            await self._ask.call(broker.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def _push(self, plan: OffsetPlan, broker: Broker, moves: list[OffsetMove]) -> None:
        assert plan.at is not None
        header = ResetOffsetRequestHeader(self._ask.wire(plan.topic), self._ask.wire(plan.group), plan.at, True)
        await self._ask.call(broker.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)

    async def verify(self, plan: OffsetPlan, *, within: float = _DONE_WITHIN) -> list[OffsetMove]:
        """The moves that did not come about, with where the group is as ``now``; none of them when all did. A group
        that is online may be further than planned already. ``plan`` is what ``apply`` gave: of one that it did not
        give, and on brokers before 5.0, a group that was sent back and has caught up since is not told from one that
        never went. Waits up to ``within`` seconds for members that were told."""
        loop = self._ask.client.loop
        deadline = loop.time() + within
        while True:
            rows = await self._groups.lag(plan.group, plan.topic)
            where = {(each.broker, each.queue): each.offset for each in rows}
            wrong = [
                each._replace(now=where.get((each.broker, each.queue), -1))
                for each in plan.moves
                if each.now != each.then
                and not _came(each, where.get((each.broker, each.queue), -1), kept=each.broker in plan.kept)
            ]
            if not wrong or loop.time() >= deadline:
                return wrong
            await asyncio.sleep(_PAUSE)

    async def clone(self, source: str, target: str, topic: str | None = None) -> Answers[str]:
        """Put group ``target`` where group ``source`` is, in ``topic`` or in all topics of ``source`` but those of its
        own retries. The brokers where that was done. RocketError when nobody knows ``source``."""
        of, to = self._ask.wire(source), self._ask.wire(check_group(target))
        await self._groups.check(source)

        async def ask(broker: Broker) -> list[str]:
            wires = await topics_of(self._ask, broker, of) if topic is None else [self._ask.wire(topic)]
            for wire in wires:
                # What comes again to ``source`` comes to nobody else: ``target`` would wait for it for ever.
                if not wire.startswith(RETRY_PREFIX):
                    header = CloneGroupOffsetRequestHeader(of, to, wire, True)
                    await self._ask.call(broker.address, RequestCode.CLONE_GROUP_OFFSET, header)
            return [broker.name]

        return await self._ask.each(ask)


def _came(move: OffsetMove, offset: int, *, kept: bool) -> bool:
    """Whether a group at ``offset`` went where it was sent, and perhaps on from there. A broker that ``kept`` the reset
    takes no commit until the group has pulled from there, so wherever it is behind that it came this way."""
    return offset >= move.then and (kept or move.then > move.now or offset < move.now)
