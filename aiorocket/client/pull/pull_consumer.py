"""The pull consumer (RocketMQ's DefaultLitePullConsumer): the application asks for messages and says how far it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType

from aiorocket.client.core.lifecycle import State
from aiorocket.client.core.namespace import wrap
from aiorocket.client.core.start_from import Start, parse_start
from aiorocket.client.core.subscriptions import check_filter, subscription_data, wanted
from aiorocket.client.group.commits import Commits, RemoteOffsets
from aiorocket.client.group.filter_check import check_expression
from aiorocket.client.group.group_check import check_group_agrees
from aiorocket.client.group.member import Member
from aiorocket.client.group.membership import Membership
from aiorocket.client.group.rebalance_hooks import QueuesHook, RebalanceHooks
from aiorocket.client.group.start_offset import start_offset
from aiorocket.client.message import Message
from aiorocket.client.pull.fetcher import PullFetcher
from aiorocket.client.pull.queues import PullQueues
from aiorocket.client.queue_scan import QueueScan
from aiorocket.client.registered import GroupMember
from aiorocket.client.session import HasSession, Session
from aiorocket.client.state import ConsumerState
from aiorocket.config import MissingTopics, PullConsumerConfig
from aiorocket.errors import RocketError, UsageError
from aiorocket.model import Queue, check_topic
from aiorocket.runtime.env import Env
from aiorocket.runtime.own_loop import need_loop
from aiorocket_protocol import ALL_TAGS, CLUSTERING, CONSUME_ACTIVELY, SQL92, ConsumerData, SubscriptionData

__all__ = ("PullConsumer",)

log = logging.getLogger("aiorocket.client")


class PullConsumer:
    """Reads queues at the application's pace: ``fetch`` gives messages, ``commit`` says which are done with, ``seek``
    goes elsewhere. Delivery is at least once, in order within a queue.

    ``subscribe`` shares the queues of topics with the other members of ``group``; ``assign`` reads fixed queues,
    whoever else does. An object does one or the other, and is used once: ``async with``, or ``start()`` and ``stop()``.
    ``nameservers`` opens connections of its own, ``client`` shares those of a ``Client``.

    ``hooks`` (a ``RebalanceHooks``), or ``on_assigned`` and ``on_revoked``, are awaited with the queues that a
    rebalance brings and takes, for ``PullConsumerConfig.rebalance_hook_timeout`` seconds at most. They may ``commit``
    and ``seek``; a ``fetch`` that runs meanwhile goes on with the other queues.
    """

    def __init__(
        self,
        group: str,
        *,
        nameservers: str | Sequence[str] | None = None,
        client: HasSession | None = None,
        config: PullConsumerConfig | None = None,
        hooks: RebalanceHooks | None = None,
        on_assigned: QueuesHook | None = None,
        on_revoked: QueuesHook | None = None,
        env: Env | None = None,
    ) -> None:
        if client is not None and (nameservers is not None or env is not None):
            raise UsageError("a PullConsumer takes client=, or nameservers= and env=: the client has them already")
        if hooks is not None and (on_assigned is not None or on_revoked is not None):
            raise UsageError("a PullConsumer takes either hooks= or on_assigned= and on_revoked=")
        self.client = client.session if client is not None else Session(nameservers=nameservers, env=env)
        self.config = config or self.client.config.pull_consumer
        self.group = group
        self._member = member = Member(
            self.client,
            group,
            self.config,
            kind="pull consumer",
            consume_type=CONSUME_ACTIVELY,
            message_model=CLUSTERING,
        )
        #: "subscribe" or "assign", once one of them was called.
        self._mode: str | None = None
        # Of ``assign`` before the start.
        self._wanted: frozenset[Queue] = frozenset()
        self._assigning = asyncio.Lock()
        self._commits = Commits(member, RemoteOffsets(member))
        if hooks is not None:
            on_assigned, on_revoked = hooks.on_assigned, hooks.on_revoked
        self._queues = PullQueues(member, self.config, self._commits, on_assigned, on_revoked)
        registered = GroupMember(
            config=self.config, state=self.state, consumer_data=self._consumer_data,
            subscriptions=lambda: member.subscriptions, started_ms=lambda: self._membership.started_ms,
            rebalance_now=lambda: self._membership.rebalancer.now(), reset_offsets=self._reset_offsets,
        )  # fmt: skip
        self._membership = Membership(member, registered, self._queues, self._commits, own_session=client is None)

    # -- what to read --

    async def subscribe(
        self,
        topic: str,
        tags: str = ALL_TAGS,
        *,
        sql: str | None = None,
        start_from: str | datetime | int = "last",
        missing_topics: MissingTopics | None = None,
    ) -> None:
        """Read ``topic``, its queues shared with the group: messages with one of ``tags``, or that match ``sql``. The
        other options, and what happens on a running consumer, are as of ``Consumer.subscribe``."""
        self._not_from_a_hook("subscribe")
        what = wanted(topic, tags, sql, start_from, missing_topics)
        member, wire = self._member, self._wire_topic(topic)
        self._choose("subscribe")
        if wire in member.subscriptions:
            raise UsageError(f"pull consumer {self.group!r} has subscribed to topic {topic!r} already")
        if member.lifecycle.running:
            self._membership.join()
        member.subscriptions[wire] = subscription_data(wire, what.tags, sql, self._now_ms())
        member.want(wire, what)
        if member.lifecycle.running:
            await self._settle()

    async def assign(
        self,
        queues: Iterable[Queue],
        tags: str = ALL_TAGS,
        *,
        sql: str | None = None,
        start_from: str | datetime | int = "last",
    ) -> None:
        """Read exactly these queues from now on, in place of those of an earlier ``assign``; queues in both go on as
        they are. Nobody else gives them up for it: a group that assigns should not be one that others subscribe with.

        Before the start they are noted. On a running consumer this returns when they are read: TopicNotFoundError and
        UsageError name a queue that does not exist, and with errors of brokers nothing has changed.
        """
        wanted, start = check_filter(tags, sql), parse_start(start_from)
        chosen = frozenset(self._wire(queue) for queue in queues)
        self._choose("assign")
        topics = {queue.topic for queue in chosen}
        self._member.starts.update(dict.fromkeys(topics, start))
        version = self._now_ms()
        subscriptions = {topic: subscription_data(topic, wanted, sql, version) for topic in topics}
        if self._member.lifecycle.running:
            await self._assign(chosen, subscriptions)
        else:
            self._wanted, self._member.subscriptions = chosen, subscriptions

    async def queues(self, topic: str) -> list[Queue]:
        """The queues of ``topic`` that can be read, sorted. TopicNotFoundError, NotConnectedError."""
        self._need_open()
        route = await self.client.route(self._wire_topic(check_topic(topic)))
        return self._member.shown(route.subscribe)

    def assignment(self) -> list[Queue]:
        """The queues it reads now, sorted."""
        return self._member.shown(fetcher.queue for fetcher in self._fetchers() if not fetcher.cursor.closing)

    # -- messages --

    async def fetch(self, max_messages: int = 512, timeout: float = 1.0) -> list[Message]:
        """Up to ``max_messages`` messages, as soon as there is one; ``[]`` when none came for ``timeout`` seconds.

        Every queue that has some is served in turn, in the order of its offsets. Brokers that fail are asked again
        every ``pull_error_delay`` seconds and logged; only UsageError is raised, of a consumer that does not run.
        Being cancelled loses nothing. The messages are not to be settled one by one: ``commit`` them.
        """
        self._member.need_running()
        if max_messages < 1:
            raise UsageError(f"fetch(max_messages={max_messages}): at least 1")
        if self._mode is None:
            raise UsageError(f"pull consumer {self.group!r} reads nothing: subscribe() or assign() first")
        served = self._queues.served
        if served:
            # Who asks for more is done with what there was.
            for fetcher in served:
                fetcher.cursor.finish(fetcher.cursor.position)
            served.clear()
        taken = self._queues.prefetch.hand_out(max_messages)
        if not taken and timeout > 0:
            taken = await self._wait(max_messages, timeout)
        if taken and self.config.auto_commit:
            served.update((from_, None) for message in taken if isinstance(from_ := message._source, PullFetcher))
        return taken

    async def _wait(self, most: int, timeout: float) -> list[Message]:
        prefetch = self._queues.prefetch
        try:
            async with asyncio.timeout(timeout):
                while True:
                    prefetch.arrived.clear()
                    await prefetch.arrived.wait()
                    self._member.need_running()
                    taken = prefetch.hand_out(most)
                    if taken:
                        return taken
        except TimeoutError:
            return []

    async def commit(self, batch: Iterable[Message] | None = None) -> None:
        """Commit the positions after the messages of ``batch``, or after everything that was fetched, and wait for the
        brokers. RocketError of the first queue that could not; the next commit tries it again.

        Messages of a queue that was given up since are counted (``counters.stale_commits``) and otherwise ignored: its
        next owner says how far it is. A position moves forward only, and no further than was fetched, unless somebody
        sought back.
        """
        self._need_open()
        need_loop(self.client.loop, self._member.lifecycle.what)
        ends = {each: each.cursor.position for each in self._fetchers()} if batch is None else self._ends(batch)
        asked = set()
        for fetcher, end in ends.items():
            if fetcher.cursor.dropped:
                self._member.counters.stale_commits += 1
                log.info("commit of %s at %d is ignored: the queue was given up", fetcher.queue, end)
            else:
                fetcher.finish(end)
                asked.add(fetcher.queue)
        if asked:
            failures = await self._commits.store(asked)
            for queue in sorted(failures):
                raise failures[queue]

    def _ends(self, batch: Iterable[Message]) -> dict[PullFetcher, int]:
        ends: dict[PullFetcher, int] = {}
        for message in batch:
            fetcher, end = message._source, message.queue_offset + 1
            if not isinstance(fetcher, PullFetcher) or fetcher.member is not self._member:
                raise UsageError(f"message {message.msg_id} was not fetched by this pull consumer: it cannot commit it")
            if end > ends.get(fetcher, 0):
                ends[fetcher] = end
        return ends

    # -- positions --

    def position(self, queue: Queue) -> int:
        """The offset ``fetch`` goes on at in ``queue``. UsageError for a queue that is not read here."""
        return self._held(queue).cursor.position

    def committed(self, queue: Queue) -> int:
        """The offset the broker is known to have for the group, -1 when there is none. UsageError as ``position``."""
        return self._commits.offsets.committed(self._held(queue).queue)

    async def seek(self, queue: Queue, offset: int) -> None:
        """Go on at ``offset`` in ``queue``: what is cached of it is dropped, and so is the answer to a pull that is on
        its way. Nothing is committed by that. UsageError for a queue that is not read here (any more).

        An offset that the broker does not have is put right at the next pull, with a warning.
        """
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise UsageError(f"seek to {offset!r} in {queue}: an offset is a number from 0 on")
        fetcher = self._held(queue)
        if fetcher.cursor.closing:
            raise UsageError(f"{queue} is being given up: it cannot be sought in any more")
        fetcher.seek(offset)

    async def seek_to_begin(self, queue: Queue) -> None:
        """``seek`` to the first message there is. The broker's errors as they are."""
        self._held(queue)
        await self.seek(queue, (await (await self._scan(queue)).bounds()).begin)

    async def seek_to_end(self, queue: Queue) -> None:
        """``seek`` past the last message there is. The broker's errors as they are."""
        self._held(queue)
        await self.seek(queue, (await (await self._scan(queue)).bounds()).end)

    async def seek_to_time(self, queue: Queue, when: datetime | int) -> None:
        """``seek`` to the first message stored at ``when`` or later. The broker's errors as they are."""
        self._held(queue)
        await self.seek(queue, await self.offset_for_time(queue, when))

    async def offset_for_time(self, queue: Queue, when: datetime | int) -> int:
        """The offset of the first message stored at ``when`` (an aware datetime, or milliseconds since 1970) or later,
        in any queue."""
        start = parse_start(when)
        return await (await self._scan(queue)).offset_at(start.millis)

    def pause(self, queues: Iterable[Queue]) -> None:
        """Neither pull nor hand out anything of ``queues`` until ``resume``, or until they are given up. UsageError for
        a queue that is not read here."""
        for fetcher in [self._held(queue) for queue in queues]:
            fetcher.pause(True)

    def resume(self, queues: Iterable[Queue]) -> None:
        """Undo ``pause``."""
        for fetcher in [self._held(queue) for queue in queues]:
            fetcher.pause(False)

    # -- life --

    async def start(self) -> None:
        """Return once what was subscribed to or assigned is read, but for topics that nobody has yet
        (``ClientConfig.missing_topics``) and brokers that are away; with nothing of the kind, at once.
        Raises what is missing after the client's ``start_timeout``, as ``Consumer.start`` does, with nothing left."""
        await self._membership.start(self._begin, self._leave)

    async def _begin(self) -> None:
        if self._mode == "subscribe":
            await check_group_agrees(self._member)
            self._membership.join()
            await self._membership.settle()
            self._membership.rebalance_from_now_on()
        elif self._mode == "assign":
            await self._assign(self._wanted, self._member.subscriptions)
        if self.config.auto_commit:
            self._member.scope.start(self._commit_forever(), name="commit")

    async def stop(self) -> None:
        """Leave: ``on_revoked`` for what is held, store what was committed, tell the brokers. A ``fetch`` that waits
        raises UsageError, and so does a ``start`` that is under way. A second ``stop`` returns with the first."""
        self._not_from_a_hook("stop")
        await self._membership.stop(self._leave)

    async def __aenter__(self) -> PullConsumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def state(self) -> ConsumerState:
        """What it is doing right now. ``in_work`` is 0: what was fetched is the application's."""
        return self._membership.state(0, self._member.counters)

    # -- inside --

    def _consumer_data(self) -> ConsumerData:
        """As heartbeats carry it. In RocketMQ an assigned consumer names its group and no topics."""
        data = self._member.consumer_data()
        return data if self._mode == "subscribe" else data._replace(subscriptions=[])

    async def _reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        """Of these queues of ``topic`` those that are held here; and store that."""
        wire = self._wire_topic(topic)
        wanted = {queue._replace(topic=wire): offset for queue, offset in offsets.items()}
        for fetcher in self._fetchers():
            if fetcher.queue in wanted and not fetcher.cursor.closing:
                fetcher.reset(wanted[fetcher.queue])
        await self._commits.store(wanted)

    def _fetchers(self) -> list[PullFetcher]:
        return list(self._queues.fetchers.values())

    def _wire_topic(self, topic: str) -> str:
        return wrap(self._member.namespace, topic)

    def _wire(self, queue: Queue) -> Queue:
        topic, broker_name, queue_id = queue
        return Queue(self._wire_topic(check_topic(topic)), broker_name, queue_id)

    def _now_ms(self) -> int:
        return self.client.env.clock.wall_ms()

    def _choose(self, mode: str) -> None:
        if self._member.lifecycle.state is not State.NEW:
            self._member.need_running()
        if self._mode not in (None, mode):
            raise UsageError(
                f"pull consumer {self.group!r} uses {self._mode}, so it cannot {mode}: make another one for that"
            )
        self._mode = mode

    def _not_from_a_hook(self, what: str) -> None:
        if self._queues.hooking is asyncio.current_task():
            raise UsageError(f"no {what} from inside on_assigned or on_revoked: the rebalance would wait for itself")

    def _held(self, queue: Queue) -> PullFetcher:
        self._need_open()
        fetcher = self._queues.fetchers.get(self._wire(queue))
        if fetcher is None:
            raise UsageError(f"{queue} is not read by this member of {self.group!r}: see assignment()")
        return fetcher

    def _need_open(self) -> None:
        """Hooks run, and may do more than fetch, also while it starts and stops."""
        if self._member.lifecycle.state in (State.NEW, State.STOPPED):
            self._member.need_running()

    async def _scan(self, queue: Queue) -> QueueScan:
        self._need_open()
        wire = self._wire(queue)
        await self.client.route(wire.topic)
        return QueueScan(self.client, wire, self._member.address(wire))

    async def _settle(self) -> None:
        self.client.subscriptions_changed()
        try:
            await self._membership.settle()
            self._member.need_running()
        finally:
            if self._member.lifecycle.running:
                self._membership.rebalance_from_now_on()

    async def _assign(self, wanted: frozenset[Queue], subscriptions: dict[str, SubscriptionData]) -> None:
        async with self._assigning:
            for topic in sorted(subscriptions):
                route = await self.client.route(topic)
                unknown = sorted(queue for queue in wanted.difference(route.subscribe) if queue.topic == topic)
                if unknown:
                    there = f"{topic!r} has {len(route.subscribe)} queues"
                    raise UsageError(f"{unknown[0]} does not exist or cannot be read: {there}")
            # From the first assignment on only: a member that reads nothing would still be counted when the group
            # shares out its queues.
            self._membership.join()
            for queue in sorted(wanted):
                address = self._member.master_address(queue)
                if subscriptions[queue.topic].expression_type == SQL92 and address is not None:
                    connection = await self.client.member_connection(address)
                    await check_expression(self._member, connection, subscriptions[queue.topic])
            added = sorted(wanted.difference(self._queues.fetchers))
            asked = (start_offset(self._member, self._commits.offset_store, queue) for queue in added)
            found = await asyncio.gather(*asked, return_exceptions=True)
            starts: dict[Queue, Start] = {}
            for queue, start in zip(added, found, strict=True):
                if isinstance(start, BaseException):
                    raise start
                starts[queue] = start
            # Apache's brokers since 5.0 store nothing for a group that they have not heard of.
            for address in {self._member.master_address(queue) for queue, start in starts.items() if start.at_end}:
                if address is not None:
                    with suppress(RocketError):
                        await self.client.member_connection(address)
            starts = await self._commits.store_ends(starts)
            gone = [each for each in self._fetchers() if each.queue not in wanted]
            await self._queues.end(gone, revoked=False)
            before, self._member.subscriptions = self._member.subscriptions, subscriptions
            for fetcher in self._fetchers():
                topic = fetcher.queue.topic
                if before[topic]._replace(sub_version=subscriptions[topic].sub_version) != subscriptions[topic]:
                    fetcher.restart()  # its pull has the filter from before, and passes over what only this one wants
            self._queues.hold(starts)
            for queue, start in starts.items():
                self._queues.take(queue, start)

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self.config.auto_commit_interval)
            self._queues.finish_fetched()
            await self._commits.store(list(self._queues.fetchers))

    async def _leave(self) -> None:
        try:
            await self._membership.end_rebalancing()
            # Whoever waits in fetch learns that it is over.
            self._queues.prefetch.arrived.set()
            await self._queues.end(self._fetchers(), revoked=self._mode == "subscribe")
            await self._member.scope.close()
            await self._membership.leave()
        finally:
            self._queues.drop(self._fetchers())
            self._queues.served.clear()
            await self._membership.close(self._member.scope.close)
