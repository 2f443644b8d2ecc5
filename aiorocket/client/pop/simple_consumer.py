"""The simple consumer: the application asks for messages and settles each of them, whoever else does so too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from aiorocket.client.core.namespace import unwrap, wrap
from aiorocket.client.core.subscriptions import subscription_data, wanted
from aiorocket.client.group.member import Member
from aiorocket.client.pop.popped import LONGEST, PoppedMessage
from aiorocket.client.pop.pops import Pops, places
from aiorocket.client.registered import GroupMember
from aiorocket.client.session import HasSession, Session
from aiorocket.client.state import ConsumerState
from aiorocket.config import PullConsumerConfig
from aiorocket.errors import RocketError, TopicNotFoundError, UsageError
from aiorocket.model import Queue
from aiorocket.runtime.env import Env
from aiorocket.runtime.tasks import to_the_end
from aiorocket_protocol import ALL_TAGS, CLUSTERING, MAX_POP, ProtocolError

__all__ = ("SimpleConsumer",)

log = logging.getLogger("aiorocket.client")

#: Seconds a broker holds a question for news; brokers may hold it for less.
_HOLD = 15.0
#: Seconds until a broker that failed, or a topic that nobody has, is asked again.
_AGAIN = 3.0
#: News that come within so many seconds cost no wait.
_AT_ONCE = 0.1
#: RocketMQ's limit of an invisible time: below, a message would come again before it has arrived.
_LEAST = 1.0


class SimpleConsumer:
    """Pops messages: any member of the group gets any message, however many members and queues there are, so nothing
    is assigned and no offset committed. What was received is invisible to the others for a while, and comes again when
    it was not acknowledged by then: at least once, in no order.

    ``nameservers`` opens connections of its own, ``client`` shares those of a ``Client``. An object is used once:
    ``async with``, or ``start()`` and ``stop()``. ``max_attempts`` counts deliveries with the first one: a retry of the
    last goes to the dead letters.
    """

    def __init__(
        self,
        group: str,
        *,
        nameservers: str | Sequence[str] | None = None,
        client: HasSession | None = None,
        max_attempts: int = 17,
        env: Env | None = None,
    ) -> None:
        if client is not None and (nameservers is not None or env is not None):
            raise UsageError("a SimpleConsumer takes client=, or nameservers= and env=: the client has them already")
        if not isinstance(max_attempts, int) or max_attempts < 1:
            raise UsageError(f"max_attempts={max_attempts!r}: a number of deliveries, 1 or more")
        self.config = PullConsumerConfig()
        self.client = client.session if client is not None else Session(nameservers=nameservers, env=env)
        self.group = group
        self._started_ms = 0
        self._own_session = client is None
        self._member = Member(
            self.client,
            group,
            self.config,
            kind="simple consumer",
            consume_type="CONSUME_POP",
            message_model=CLUSTERING,
        )
        member = self._member
        self._registered = GroupMember(
            config=self.config, state=self.state, consumer_data=member.consumer_data,
            subscriptions=lambda: member.subscriptions, started_ms=lambda: self._started_ms,
        )  # fmt: skip
        self._pops = Pops(self._member, max_attempts, reason=self.client.config.consumer.dead_letter_reason)
        self._turn = 0
        #: Who has been asked to say when there is something, one question each.
        self._asked: dict[Queue, asyncio.Task[bool]] = {}
        #: Where the latest pop failed.
        self._failing: set[Queue] = set()
        self._ended = asyncio.Event()

    # -- life --

    async def start(self) -> None:
        """UsageError when it was started before, or its group is in use by the client."""
        member, session = self._member, self.client
        member.lifecycle.move("start")
        self._started_ms = session.env.clock.wall_ms()
        try:
            if self._own_session:
                await session.start()
            session.need_running()
            session.add_consumer(member.wire_group, self._registered)
        except BaseException:
            member.lifecycle.move("failed")
            await self._end()
            raise
        member.lifecycle.move("started")

    async def stop(self) -> None:
        """Wait for nothing, and tell the brokers. What was received can not be settled any more with a client of its
        own, and comes again when its time is over."""
        before = self._member.lifecycle.state.value
        self._member.lifecycle.move("stop")
        if before == "stopping":
            await self._ended.wait()
        elif before == "running":
            await self._end()

    async def _end(self) -> None:
        member, session = self._member, self.client
        async with AsyncExitStack() as ends:
            ends.callback(self._ended.set)
            ends.callback(member.lifecycle.move, "stopped")
            if self._own_session:
                ends.push_async_callback(session.stop)
            ends.callback(session.forget_consumer, member.wire_group, self._registered)
            await to_the_end(member.scope.close)
            if session.started:
                await session.remove_consumer(member.wire_group, self._registered)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- what to receive --

    async def subscribe(
        self, topic: str, tags: str = ALL_TAGS, *, sql: str | None = None, start_from: str = "last"
    ) -> None:
        """Receive messages of ``topic`` with one of ``tags`` (``"a || b"``), or that match ``sql``, in place of what
        was subscribed of it before. A group without an offset begins at its "first" or "last" message. A topic that
        nobody has yet is received from when it is there."""
        if start_from not in ("first", "last"):
            raise UsageError(f"start_from={start_from!r}: 'first' or 'last'; a group that pops cannot begin at a time")
        what = wanted(topic, tags, sql, start_from, None)
        member = self._member
        wire = wrap(member.namespace, topic)
        member.subscriptions[wire] = subscription_data(wire, what.tags, sql, self.client.env.clock.wall_ms())
        member.starts[wire] = what.start
        if member.lifecycle.running:
            self.client.subscriptions_changed()

    async def unsubscribe(self, topic: str) -> None:
        """UsageError when it is not subscribed."""
        wire = wrap(self._member.namespace, topic)
        if self._member.subscriptions.pop(wire, None) is None:
            raise UsageError(f"simple consumer {self.group!r} does not subscribe topic {topic!r}")
        if self._member.lifecycle.running:
            self.client.subscriptions_changed()

    async def receive(
        self, max_messages: int = MAX_POP, *, invisible: float = 60.0, timeout: float = 15.0
    ) -> list[PoppedMessage]:
        """Up to ``max_messages`` (32 at most) of one broker, as soon as there are any; [] when there are none for
        ``timeout`` seconds. Nobody else gets them for ``invisible`` seconds from now.

        Raises nothing but UsageError: brokers that fail are logged and asked again. When it is cancelled, what was on
        its way comes again after ``invisible`` seconds.
        """
        member = self._member
        member.lifecycle.need_running()
        if not 1 <= max_messages <= MAX_POP:
            raise UsageError(f"max_messages={max_messages!r}: 1 to {MAX_POP}")
        if not _LEAST <= invisible <= LONGEST:
            raise UsageError(f"invisible={invisible!r}: {_LEAST:g} to {LONGEST:g} seconds")
        if not member.subscriptions:
            raise UsageError(f"simple consumer {self.group!r} has no topic: subscribe first")
        loop = self.client.loop
        until, in_vain = loop.time() + timeout, 0
        while True:
            member.lifecycle.need_running()  # it may have been stopped meanwhile
            asked = await self._places()
            found = await self._pop(asked, max_messages, invisible)
            begun = loop.time()
            if found or not await self._news(asked, until):
                return found
            # A broker that says at once that there is something, and gives nothing, must not make this spin. With a
            # filter each pop passes over some thousand messages, and a million may lie there.
            in_vain = in_vain + 1 if loop.time() - begun < _AT_ONCE else 0
            if in_vain > 1:
                filtered = any(each.sub_string != ALL_TAGS for each in member.subscriptions.values())
                doublings = 0 if filtered else min(in_vain - 2, 7)
                await asyncio.sleep(min(0.01 * 2.0**doublings, until - loop.time()))

    # -- inside --

    async def _places(self) -> list[Queue]:
        """Another one first each time."""
        found: list[Queue] = []
        for topic in list(self._member.subscriptions):
            if self.client.routes.known(topic) is None:
                try:
                    await self.client.route(topic)
                except TopicNotFoundError:
                    continue  # nobody has it yet
                except RocketError as error:
                    log.warning("no route for topic %s: %s", topic, error)
                    continue
            found += places(self._member, topic)
        self._turn += 1
        at = self._turn % len(found) if found else 0
        return found[at:] + found[:at]

    async def _pop(self, asked: list[Queue], count: int, invisible: float) -> list[PoppedMessage]:
        for place in asked:
            subscription = self._member.subscriptions.get(place.topic)
            if subscription is None:
                continue  # unsubscribed meanwhile
            try:
                found = await self._pops.pop(place, subscription, count, invisible=invisible)
            except UsageError:
                raise
            except (RocketError, ProtocolError) as error:
                self._failing.add(place)
                self.client.outages.failed(place.broker_name, f"popping {place}", error)
            else:
                if self.client.outages.open:
                    self.client.outages.answered(place.broker_name, everything=place in self._failing)
                self._failing.discard(place)
                if found:
                    return found
        return []

    async def _news(self, asked: list[Queue], until: float) -> bool:
        """Whether there may be something, before ``until``. A question outlives the call that asked it: its answer
        takes nothing, so it is as good for the next one."""
        loop = self.client.loop
        self._member.lifecycle.need_running()
        if loop.time() >= until:
            return False
        for place in asked:
            if place not in self._asked:
                self._asked[place] = self._member.scope.start(self._ask(place), name="news")
        waiting = [self._asked[place] for place in asked]
        if not waiting:
            await asyncio.sleep(min(_AGAIN, until - loop.time()))
            return True
        await asyncio.wait(waiting, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
        for place, task in list(self._asked.items()):
            if task.done():
                del self._asked[place]
        return loop.time() < until or any(task.done() for task in waiting)

    async def _ask(self, place: Queue) -> bool:
        try:
            return await self._pops.wait(place, _HOLD)
        except (RocketError, ProtocolError) as error:
            log.info("waiting for %s: %s", place, error)
            await asyncio.sleep(self.client.env.entropy.jitter(_AGAIN))
            return False

    def state(self) -> ConsumerState:
        """What it is doing right now; there are no queues."""
        member = self._member
        missing = [topic for topic in member.subscriptions if self.client.routes.known(topic) is None]
        return ConsumerState(
            group=self.group,
            client_id=self.client.client_id if self.client.started else "",
            running=member.lifecycle.running,
            members=(),
            queues=(),
            missing=tuple(sorted(unwrap(member.namespace, topic) for topic in missing)),
            cached=0,
            in_work=0,
            counters=member.counters,
            last_error=None,
        )
