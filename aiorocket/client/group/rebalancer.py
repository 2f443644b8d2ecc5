"""Who reads what: routes, heartbeat, members of the group, queues to take and to give up, offsets to begin at.

A round is the whole of it and can be repeated at any time; it does nothing when nothing has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from aiorocket.client.core.assignment import TopicView, diff, wanted_queues
from aiorocket.client.core.balance import find_strategy, in_namespace
from aiorocket.client.core.dead_reason import text_of
from aiorocket.client.core.namespace import unwrap
from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.core.start_from import Start, StartFrom
from aiorocket.client.group.broker_assignment import ask_assignment
from aiorocket.client.group.commits import Commits
from aiorocket.client.group.filter_check import check_expression
from aiorocket.client.group.held_queue import HeldQueue
from aiorocket.client.group.member import Member
from aiorocket.client.group.start_offset import start_offset
from aiorocket.client.topic_admin import create_topic
from aiorocket.config import ConsumerConfig
from aiorocket.errors import (
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    RocketError,
    TopicNotFoundError,
    UsageError,
)
from aiorocket.model import Queue
from aiorocket.remoting.connection import Connection
from aiorocket_protocol import (
    SQL92,
    ConsumerListBody,
    GetConsumerListByGroupRequestHeader,
    ProtocolError,
    RequestCode,
    ResponseCode,
    decode_body,
)

__all__ = ("Assignment", "Rebalancer")

log = logging.getLogger("aiorocket.client")

#: Between the rounds of a start that is not settled yet.
_SETTLE_PAUSE = 0.2
#: What a start that failed may raise as it is; anything else becomes RequestTimeoutError with the same text.
_SIMPLE = (TopicNotFoundError, NotConnectedError)

_NO_MEMBERS = int(ResponseCode.SYSTEM_ERROR)

#: How often the retry topic's route is asked for again because brokers are missing in it: a broker creates the topic
#: when it gets the heartbeat and tells the name server a moment later, but one may be set to create none.
_RETRY_ROUTE_LOOKS = 10

#: A broker that is away: the others are not waiting for it.
_AWAY = (NotConnectedError, ConnectionLostError, RequestTimeoutError)
#: A group that waits for a topic with start_from="last" wants all that is stored since: by the broker's clock, which
#: may be this much behind ours.
_CLOCKS_APART_MS = 60_000


class Assignment(Protocol):
    """The queues assigned to a member, as a rebalance changes them."""

    @property
    def fetchers(self) -> Mapping[Queue, HeldQueue]:
        """From ``take`` to the end of ``give_up``, or of what else ends one."""

    async def prepare(self, starts: Mapping[Queue, Start]) -> None:
        """Tell the application of queues that are about to be taken."""

    async def dismiss(self, queues: Collection[Queue]) -> None:
        """Of what was prepared, these are not taken after all."""

    def take(self, queue: Queue, start: Start) -> None:
        """Begin with a queue."""

    async def give_up(self, queues: Collection[Queue]) -> None:
        """End with ``queues``: when this returns another member may begin."""

    def spread_limits(self) -> None:
        """Queues came or went: share out anew what they share."""


class Rebalancer:
    """Runs rounds: regularly, when told to, and soon again after one that left something open. ConfigError when the
    member's config names a strategy that is none."""

    def __init__(self, member: Member, assignment: Assignment, commits: Commits) -> None:
        self._member = member
        self._session = member.session
        self._config = member.config
        self._assignment = assignment
        self._commits = commits
        self._strategy = in_namespace(member.namespace, find_strategy(member.config.allocate))
        #: Brokers decide, and may have topics popped.
        self._by_broker = isinstance(member.config, ConsumerConfig) and member.config.rebalance == "broker"
        self._round = asyncio.Lock()
        self._now = asyncio.Event()
        self._checked: set[tuple[str, str, str]] = set()
        self._missing: frozenset[str] = frozenset()
        self._looks = 0
        self._abandoned = False
        #: Of the locks that the round's new queues were begun under.
        self._terms: dict[Queue, int | None] = {}
        #: Members of the group as of the last round.
        self.members: tuple[str, ...] = ()

    def now(self) -> None:
        self._now.set()

    async def forever(self) -> None:
        config = self._config
        interval, soon = config.rebalance_interval, min(config.rebalance_retry, config.rebalance_interval)
        balanced = False  # the retry topic may have had no route yet when the start was settled
        said: set[str] = set()
        while True:
            try:
                async with asyncio.timeout(interval if balanced else soon):
                    await self._now.wait()
            except TimeoutError:
                pass
            self._now.clear()
            problems, optional = await self.round()
            # A filter that was refused will be refused again; the round's other topics are as they should be.
            balanced = not optional and all(isinstance(problem, UsageError) for problem in problems)
            texts = {str(problem) for problem in problems}
            for text in sorted(texts - said):
                log.info("rebalance of %s: %s", self._member.group, text)
            said = texts

    def abandon(self) -> None:
        """The member stops: the present round of ``settle`` is the last, and takes no queue any more."""
        self._abandoned = True

    async def settle(self, limit: float) -> None:
        """Rounds until nothing is open that a start waits for. What is missing after ``limit`` seconds is raised:
        TopicNotFoundError, NotConnectedError, or RequestTimeoutError with the details; UsageError at once when a broker
        refuses a filter."""
        problems: list[Exception] = []
        try:
            async with asyncio.timeout(limit):
                while True:
                    problems, _ = await self.round()
                    if not problems or self._abandoned:
                        return
                    for problem in problems:
                        if isinstance(problem, UsageError):
                            raise problem
                    await asyncio.sleep(_SETTLE_PAUSE)
                    if self._abandoned:
                        return
        except TimeoutError:
            what = "; ".join(dict.fromkeys(map(str, problems))) or "the first round of requests is not answered"
            kind = type(problems[0]) if problems and type(problems[0]) in _SIMPLE else RequestTimeoutError
            raise kind(f"consumer {self._member.group!r} is not ready after {limit:g} s: {what}") from None

    async def round(self) -> tuple[list[Exception], list[Exception]]:
        """One round. What is still open, first of the topics asked for, then what is not for a start to wait for: the
        group's own retry topic, and queues that others have locked."""
        async with self._round:
            problems: list[Exception] = []
            optional: list[Exception] = []
            views: dict[str, TopicView | None] = {}
            for topic in list(self._member.subscriptions):
                found = optional if topic == self._member.retry_topic else problems
                try:
                    views[topic] = await self._view(topic)
                except TopicNotFoundError as error:
                    views[topic] = None
                    if found is problems:
                        (optional if self._waits_for(topic) else problems).append(error)
                except (RocketError, ProtocolError) as error:
                    views[topic] = None
                    found.append(error)
            self._complete_retry_route(views, optional)
            if self._abandoned:
                return problems, optional  # all it has is the stop's to end: handlers may still be running
            held = list(self._assignment.fetchers)
            wanted: set[Queue] = set()
            for topic, view in views.items():
                try:
                    wanted |= wanted_queues({topic: view}, self._session.client_id, held, self._strategy)
                except Exception as error:
                    log.exception("the allocation strategy failed for topic %s", topic)
                    wanted |= wanted_queues({topic: None}, self._session.client_id, held)
                    problems.append(
                        RocketError(f"the allocation strategy failed for topic {topic!r}: {text_of(error)}")
                    )
            idle = self._idle()
            change = diff(set(held) - idle, wanted)
            await self._assignment.give_up(sorted({*change.removed, *idle}))
            await self._release_strays(wanted)
            starts = await self._starts(change.added, problems, optional)
            if starts and not self._abandoned:
                starts = await self._commits.store_ends(starts)
            if starts and not self._abandoned:
                await self._assignment.prepare(starts)
                locked = self._still_locked(starts, optional)
                if len(locked) < len(starts):
                    await self._assignment.dismiss(starts.keys() - locked.keys())
                starts = locked
            if self._abandoned:
                return problems, optional
            touched = {queue.topic for queue in (*change.removed, *starts)}
            if touched:
                # Before the first pull: it carries the version, and the heartbeat that tells it goes out ahead.
                self._member.touch(touched, self._session.env.clock.wall_ms())
                self._session.subscriptions_changed()
            for queue, start in starts.items():
                self._assignment.take(queue, start)
            if touched:
                self._assignment.spread_limits()
                taken, given = len(starts), len(change.removed)
                log.info("group %s: took %d queues, gave up %d", self._member.group, taken, given)
            return problems, optional

    async def _release_strays(self, wanted: set[Queue]) -> None:
        """A lock was granted, but the queue could not be begun, and now it is another member's: renewing the lock would
        keep it away from there for ever."""
        leases = self._member.leases
        if leases is not None:
            await asyncio.gather(
                *(leases.release(queue) for queue in leases.strays({*list(self._assignment.fetchers), *wanted}))
            )

    def _idle(self) -> set[Queue]:
        """Queues whose pull has hung for longer than anything may, or whose end was cut short: they are begun anew."""
        now, limit = self._session.loop.time(), self._config.max_pull_idle
        fetchers, popping = self._assignment.fetchers.values(), self._member.popping
        idle = {fetcher.queue for fetcher in fetchers if fetcher.idle_since(now) > limit}
        for queue in sorted(idle):
            log.warning("%s: its pull was stopped half-way, or hangs for %g s: beginning anew", queue, limit)
        return idle | {fetcher.queue for fetcher in fetchers if fetcher.pops != (fetcher.queue.topic in popping)}

    async def _starts(
        self, added: list[Queue], problems: list[Exception], optional: list[Exception]
    ) -> dict[Queue, Start]:
        """Where to begin in each new queue; those that cannot be begun yet are left out. Locks come first, because the
        last owner of a queue commits until it gives it up."""
        leases = self._member.leases
        if leases is not None and added:
            granted = await leases.acquire(added)
            optional.extend(
                NotConnectedError(f"{queue} is locked by another member") for queue in added if queue not in granted
            )
            added = [queue for queue in added if queue in granted]
            self._terms = {queue: leases.term(queue) for queue in added}

        async def ask(queue: Queue) -> Start | None:
            if queue.topic in self._member.popping:
                return Start(0, True)  # the broker knows
            try:
                return await start_offset(self._member, self._commits.offset_store, queue)
            except (RocketError, ProtocolError) as error:
                without = queue.topic == self._member.retry_topic or self._only_away(queue, error)
                (optional if without else problems).append(error)
            return None

        found = await asyncio.gather(*map(ask, added))
        return {queue: start for queue, start in zip(added, found, strict=True) if start is not None}

    def _only_away(self, queue: Queue, error: Exception) -> bool:
        """Its broker cannot be reached, but another one of the topic can: a member begins with that."""
        route = self._session.routes.known(queue.topic)
        if route is None or not isinstance(error, _AWAY):
            return False
        others = (ids for name, ids in route.addresses.items() if name != queue.broker_name)
        if not any(self._session.remoting.live(address) for ids in others for address in ids.values()):
            return False
        what = f"group {self._member.group} begins without broker {queue.broker_name}"
        self._session.outages.failed(queue.broker_name, what, error)
        return True

    def _waits_for(self, topic: str) -> bool:
        """Nobody has ``topic``, and that is no reason for a start to fail."""
        member = self._member
        if member.if_missing.get(topic, self._session.config.missing_topics) != "wait":
            return False
        if topic not in member.missing:
            member.missing.add(topic)
            if member.starts.get(topic, StartFrom("last")).kind == "last":
                member.starts[topic] = StartFrom("time", self._session.env.clock.wall_ms() - _CLOCKS_APART_MS)
            log.warning(
                "topic %r does not exist: group %r goes on without it, and looks every %g s whether it was created "
                "(missing_topics='create' creates it, 'error' fails the start)",
                unwrap(member.namespace, topic), member.group, member.config.rebalance_retry,
            )  # fmt: skip
        return True

    async def _route(self, topic: str) -> TopicRoute:
        member = self._member
        try:
            route = await self._session.route(topic, refresh=topic in member.gone)
        except TopicNotFoundError:
            policy = member.if_missing.get(topic, self._session.config.missing_topics)
            # One that was deleted while it was in use is not missed.
            if topic == member.retry_topic or policy != "create" or topic in member.gone:
                raise
            await create_topic(self._session, topic)
            log.info("created topic %r for group %r", unwrap(member.namespace, topic), member.group)
            route = await self._session.route(topic)
        member.gone.discard(topic)
        if topic in member.missing:
            member.missing.discard(topic)
            log.warning("topic %r exists now: group %r begins with it", unwrap(member.namespace, topic), member.group)
        return route

    def _still_locked(self, starts: dict[Queue, Start], optional: list[Exception]) -> dict[Queue, Start]:
        """Those whose lock was held all the time since before their offset was looked up. Of others it may be old news
        by now: they are begun in another round."""
        leases = self._member.leases
        if leases is None:
            return starts
        held = {queue: start for queue, start in starts.items() if leases.term(queue) == self._terms[queue] is not None}
        optional.extend(NotConnectedError(f"the lock of {queue} was lost again") for queue in starts.keys() - held)
        return held

    def _complete_retry_route(self, views: Mapping[str, TopicView | None], optional: list[Exception]) -> None:
        """A route of the retry topic that is missing, or names fewer brokers than the topics have, is probably just too
        young; waiting for the regular refresh would cost the first retries half a minute."""
        retry = self._member.retry_topic
        if retry not in views:
            return
        needed = {queue.broker_name for view in views.values() if view for queue in view.queues}
        here = views[retry]
        missing = frozenset(needed - {queue.broker_name for queue in here.queues} if here else needed)
        if missing != self._missing:
            self._missing, self._looks = missing, 0
        if missing and self._looks < _RETRY_ROUTE_LOOKS:
            self._looks += 1
            if here is not None:
                self._session.routes.refresh_soon(retry)
            optional.append(NotConnectedError(f"topic {retry!r} has no route to {', '.join(sorted(missing))} yet"))

    async def _view(self, topic: str) -> TopicView | None:
        route = await self._route(topic)
        if not route.subscribe:
            if topic == self._member.retry_topic:
                return None  # the group's retryQueueNums is 0: it wants no retries
            # Without a single readable queue there is nobody to ask either.
            raise NotConnectedError(f"topic {topic!r} has a route but no queue that can be read")
        members = await self._members(topic, route)
        if self._member.broadcasting:
            members = []
        elif self._by_broker and topic != self._member.retry_topic:
            return await self._assigned_view(topic, route)
        return TopicView(route.subscribe, members)

    async def _assigned_view(self, topic: str, route: TopicRoute) -> TopicView | None:
        """What the first broker that answers says is ours; None when it cannot say now."""
        failures: list[Exception] = []
        for address in sorted(route.masters()) or sorted(route.all_addresses()):
            try:
                connection = await self._session.member_connection(address)
                found = await ask_assignment(self._member, connection, topic)
            except (RocketError, ProtocolError) as error:
                failures.append(error)
                continue
            if found.queues is None:
                return None
            (self._member.popping.add if found.popping else self._member.popping.discard)(topic)
            return TopicView(found.queues, [])
        raise failures[0]

    async def _members(self, topic: str, route: TopicRoute) -> list[str]:
        """The living members of the group, from any broker of the topic; every broker gets to know us on the way. With
        broadcasting nobody is asked, the others do not matter."""
        members: list[str] | None = None
        failures: list[Exception] = []
        header = GetConsumerListByGroupRequestHeader(self._member.wire_group)
        for address in sorted(route.all_addresses()):
            try:
                connection = await self._session.member_connection(address)
                await self._check_filter(topic, address, connection)
                if self._member.broadcasting:
                    members = [self._session.client_id]
                if members is not None:
                    continue
                answer = await self._session.call(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, accept=(0, _NO_MEMBERS)
                )
                listed: list[str] = []
                if answer.code == 0:
                    listed = decode_body(ConsumerListBody, answer.body, answer.serialize_type).consumer_ids
                if self._session.client_id not in listed:
                    # It has forgotten us, or has not noticed us yet.
                    self._session.forget_registration(connection)
                    raise NotConnectedError(f"{address} does not list this client in group {self._member.group!r}")
                members = listed
            except UsageError:
                raise
            except (RocketError, ProtocolError) as error:
                failures.append(error)
        if members is None:
            raise failures[0]
        self.members = tuple(sorted(members))
        return members

    async def _check_filter(self, topic: str, address: str, connection: Connection) -> None:
        subscription = self._member.subscriptions[topic]
        key = (topic, address, subscription.sub_string)
        if subscription.expression_type == SQL92 and key not in self._checked:
            await check_expression(self._member, connection, subscription)
            self._checked.add(key)
