"""A name server and a broker for one test, over real sockets, whose wall clock can be advanced and whose wire can be
made to fail. The fixtures ``rocketmq`` and ``rocketmq_durable`` of the pytest plugin give it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Unpack

from aiorocket import Body, Client, ConsumeHook, Consumer, Middleware, Producer, RocketError, Router, SendOptions
from aiorocket.broker.answers import plain_body
from aiorocket.broker.broker import Broker
from aiorocket.broker.core.groups import ConsumerGroup
from aiorocket.broker.core.record_filter import RecordFilter
from aiorocket.config import BrokerConfig, ClientConfig, ConsumerConfig, Flush, StoreConfig
from aiorocket.embedded import Embedded, embed
from aiorocket.errors import UsageError, WrongLoopError
from aiorocket.model import Queue, SendReceipt
from aiorocket.remoting.connection import Connection
from aiorocket.runtime.clock import WallClock
from aiorocket.runtime.disk import RealDisk
from aiorocket.runtime.entropy import Entropy
from aiorocket.runtime.env import Env
from aiorocket.testing.faults import WireFaults
from aiorocket.testing.stored import stored_messages
from aiorocket_protocol import (
    BROADCASTING,
    CONSUME_PASSIVELY,
    GetConsumerStatusRequestHeader,
    MessageQueue,
    ProtocolError,
    RecordView,
    RemotingCommand,
    RequestCode,
    dlq_topic,
)

__all__ = ("LocalRocketMQ", "TestClock", "local_rocketmq")

#: A test's messages are few: small files make it start and restart fast.
_STORE = StoreConfig(segment_size=1 << 20, min_free=1 << 20)
_LOOK_AGAIN = 0.002
#: A client of this machine that says nothing for so long has stopped, or its loop has.
_CLIENT_PATIENCE = 1.0


class TestClock:
    """The wall clock of the broker: the machine's, and what a test has advanced it by."""

    __test__ = False  # not a class of tests

    def __init__(self, owner: LocalRocketMQ) -> None:
        self._owner = owner
        self._real = WallClock()
        self._ahead_ms = 0

    def wall_ms(self) -> int:
        return self._real.wall_ms() + self._ahead_ms

    async def advance(
        self, *, hours: float = 0.0, minutes: float = 0.0, seconds: float = 0.0, patience: float = 10.0
    ) -> None:
        """Let this much time pass for delays and retries, in order: the clock stops at each delayed message that falls
        due, and goes on when every consumer of this broker has dealt with what it led to, in whichever loop, thread or
        process it runs. Other timers (heartbeats, leases, time-outs) go by the loop's clock and do not notice.
        TimeoutError when consumers need more than ``patience`` real seconds at one stop."""
        owner = self._owner
        target = self.wall_ms() + round(((hours * 60 + minutes) * 60 + seconds) * 1000)
        while True:
            await owner.settled(patience)
            waiting = (owner.broker.delays.next_due(), owner.broker.timers.next_due())
            now, due = self.wall_ms(), min((each for each in waiting if each is not None), default=target + 1)
            if due > target:
                break
            self._ahead_ms += max(0, due - now)
            owner.broker.clock_changed()
            # What is moved now is visible only once it is stored.
            await asyncio.sleep(0)
        self._ahead_ms += max(0, target - self.wall_ms())
        owner.broker.clock_changed()
        await owner.settled(patience)


class LocalRocketMQ:
    """What the fixtures give. ``clock`` advances delays, ``faults`` plans what happens to requests; ``embedded`` makes
    more clients. It is used in the loop it was started in; WrongLoopError in another one while that stands still."""

    def __init__(self, data: str | None = None) -> None:
        self.clock = TestClock(self)
        self.faults = WireFaults()
        self._data = data
        self._loop = asyncio.get_running_loop()
        self._producer: Producer | None = None
        self._read_letters: dict[str, int] = {}
        self._embedded: Embedded
        # What members said last that they have finished: by group and topic, then by queue.
        self._finished: defaultdict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        self._consumers: list[Consumer] = []

    @asynccontextmanager
    async def run(
        self, flush: Flush | None, broker: BrokerConfig | Mapping[str, Any] | None, host: str
    ) -> AsyncIterator[None]:
        """From the start of the servers to their end."""
        if not isinstance(broker, BrokerConfig):
            broker = {"store": _STORE, **(broker or {})}
        env = Env(self.clock, Entropy(), RealDisk())
        async with embed(
            self._data, flush=flush, broker=broker, host=host, env=env,
            prepare=lambda each: self.faults.attach(each.server),
        ) as self._embedded:  # fmt: skip
            try:
                yield
            finally:
                if self._producer is not None:
                    await self._producer.stop()

    @property
    def embedded(self) -> Embedded:
        if not self._loop.is_running():
            raise WrongLoopError(
                "this broker lives in an event loop that stands still while this code runs, so nobody would answer: "
                "test and fixture need the same loop (pytest-asyncio, or anyio with its pytest.mark.anyio), and "
                "synchronous tests, such as those with a TestClient, the fixture rocketmq_server or broker_thread()"
            )
        return self._embedded

    @property
    def broker(self) -> Broker:
        return self.embedded.broker

    @property
    def nameserver_address(self) -> str:
        """``host:port``, for clients of other languages too."""
        return self.embedded.nameserver_address

    async def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create ``topic``; it has a route when this returns."""
        await self.embedded.create_topic(topic, queues)

    async def send(self, topic: str, body: Body, **options: Unpack[SendOptions]) -> SendReceipt:
        """Send a message with a producer of the fixture. Options and errors as of ``Producer.send``."""
        embedded = self.embedded
        if self._producer is None:
            self._producer = embedded.producer("rocketmq-fixture")
            await self._producer.start()
        return await self._producer.send(topic, body, **options)

    def client(
        self, group: str | None = None, *, config: ClientConfig | None = None, middleware: Iterable[Middleware] = ()
    ) -> Client:
        """A ``Client`` of this broker, to be started by the test."""
        return self.embedded.client(group, config=config, middleware=middleware)

    def consumer(
        self,
        group: str | Router,
        *,
        state: object = None,
        config: ConsumerConfig | None = None,
        env: Env | None = None,
        hooks: Iterable[ConsumeHook] = (),
        middleware: Iterable[Middleware] = (),
        on_assigned: Callable[[list[Queue]], Awaitable[object]] | None = None,
        on_revoked: Callable[[list[Queue]], Awaitable[object]] | None = None,
    ) -> Consumer:
        """A consumer of this broker, to be started by the test (``async with``): of a group, or of a router with its
        group, whose listeners get ``state``. The other arguments as of ``Consumer``."""
        name, router = (group.group, group) if isinstance(group, Router) else (group, None)
        consumer = self.embedded.consumer(
            name or "rocketmq-fixture", config=config, env=env, hooks=hooks, middleware=middleware,
            on_assigned=on_assigned, on_revoked=on_revoked,
        )  # fmt: skip
        if router is not None:
            consumer.include(router, state=state)
        self._consumers.append(consumer)
        return consumer

    # -- what there is --

    def messages(self, topic: str) -> list[RecordView]:
        """All messages of ``topic``, queue by queue."""
        return stored_messages(self.broker.store, topic)

    def dead_letters(self, group: str) -> list[RecordView]:
        """The messages that ``group`` gave up."""
        return self.messages(dlq_topic(group))

    async def wait_dead_letter(self, group: str, timeout: float = 5.0) -> RecordView:
        """The next dead letter of ``group`` that was not returned before. TimeoutError after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    letters = self.dead_letters(group)
                    seen = self._read_letters.get(group, 0)
                    if len(letters) > seen:
                        self._read_letters[group] = seen + 1
                        return letters[seen]
                    await asyncio.sleep(_LOOK_AGAIN)
        except TimeoutError:
            raise TimeoutError(f"group {group!r} has no further dead letter after {timeout:g} s") from None

    def committed(self, group: str, topic: str) -> int:
        """How many messages of ``topic`` the group is done with: committed, or finished and about to be. Of consumers
        that the fixture did not make, what they had finished when ``settled`` or ``advance`` returned."""
        return sum(self._positions(group, topic).values())

    def lag(self, group: str, topic: str) -> int:
        """Messages of ``topic`` that ``group`` is not done with, in the sense of ``committed``."""
        store = self.broker.store
        return sum(store.max_offset(topic, queue_id) for queue_id in store.queues(topic)) - self.committed(group, topic)

    def _positions(self, group: str, topic: str) -> dict[int, int]:
        finished = dict(self._finished.get((group, topic), {}))
        for consumer in self._consumers:
            if consumer.group == group:
                for each in consumer.state().queues:
                    if each.queue.topic == topic:
                        finished[each.queue.queue_id] = max(each.done, finished.get(each.queue.queue_id, 0))
        query = self.broker.offsets.query
        return {
            queue_id: max(query(group, topic, queue_id) or 0, finished.get(queue_id, 0))
            for queue_id in self.broker.store.queues(topic)
        }

    def assert_committed(self, group: str, topic: str, lag: int = 0) -> None:
        """AssertionError when ``group`` is done (see ``committed``) with more or less of ``topic`` than all but ``lag``
        messages."""
        behind = self.lag(group, topic)
        assert behind == lag, f"group {group!r} is {behind} messages behind in topic {topic!r}, expected {lag}"

    # -- until it is quiet --

    async def settled(self, timeout: float = 10.0) -> None:
        """Return when every consumer that is connected to this broker has finished everything that is not delayed, in
        whichever loop, thread or process it runs; pull consumers do not count. TimeoutError when that takes longer."""
        left = 0
        try:
            async with asyncio.timeout(timeout):
                while left := await self._unfinished():  # noqa: ASYNC110 - many would have to tell, and this is a test
                    await asyncio.sleep(_LOOK_AGAIN)
        except TimeoutError:
            raise TimeoutError(f"after {timeout:g} s consumers still have {left} messages to finish") from None

    async def _unfinished(self) -> int:
        """Messages that consumers have not finished, by their own word (221)."""
        broker = self.broker
        left = broker.delays.in_flight + broker.timers.in_flight
        groups = [each for each in broker.consumers if each.consume_type == CONSUME_PASSIVELY]
        if left:
            return left
        asked = [self._left_to(group, topic) for group in groups for topic in group.subscriptions]
        return sum(await asyncio.gather(*asked))

    async def _left_to(self, group: ConsumerGroup[Connection], topic: str) -> int:
        store = self.broker.store
        if not store.queues(topic):
            return 0
        told = await asyncio.gather(*(_finished_by(each, group.name, topic) for each in group.members))
        subscription = group.subscriptions.get(topic)  # it may have gone while members were asked
        if subscription is not None and subscription.accept is not None:
            for each in told:
                self._pass_over(topic, each, subscription.accept)
        if group.message_model == BROADCASTING:
            return sum(self._behind(topic, each) for each in told)
        known = self._finished[group.name, topic]
        for each in told:
            known.update(each)
        return self._behind(topic, known)

    def _pass_over(self, topic: str, finished: dict[int, int], accept: Callable[[int], bool]) -> None:
        """What its filter leaves out is finished: a member hears of it when its pull ends, up to 15 s later."""
        store = self.broker.store
        for queue_id, offset in finished.items():
            end = store.max_offset(topic, queue_id)
            entries = store.entries(topic, queue_id, offset, end - offset) if offset < end else []
            if entries and not any(self._accepted(accept, position, code) for position, _, code in entries):
                finished[queue_id] = offset + len(entries)

    def _accepted(self, accept: Callable[[int], bool], position: int, code: int) -> bool:
        if not isinstance(accept, RecordFilter):
            return accept(code)
        record = self.broker.store.read_record(position)
        return record is None or accept.select(record, 1, len(record)).taken > 0

    def _behind(self, topic: str, finished: Mapping[int, int]) -> int:
        store = self.broker.store
        return sum(
            max(0, store.max_offset(topic, queue_id) - finished.get(queue_id, 0)) for queue_id in store.queues(topic)
        )

    async def restart(self, *, kill: bool = False) -> None:
        """As ``Embedded.restart``; plans of ``faults`` stay. UsageError for a broker without a directory: use
        ``rocketmq_durable``."""
        if self._data is None:
            raise UsageError("this broker keeps its messages in memory: use the fixture rocketmq_durable to restart it")
        self._finished.clear()
        await self.embedded.restart(kill=kill)


async def _finished_by(connection: Connection, group: str, topic: str) -> dict[int, int]:
    """How far a member is in each queue of ``topic`` that it holds; empty when it does not say."""
    header = GetConsumerStatusRequestHeader(topic, group)
    command = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
    try:
        answer = await connection.request(command, _CLIENT_PATIENCE)
        table = plain_body(answer).get("messageQueueTable") or {}
        return {MessageQueue.from_plain(key).queue_id: int(offset) for key, offset in table.items()}
    except (RocketError, ProtocolError):
        return {}


@asynccontextmanager
async def local_rocketmq(
    data: str | None = None,
    *,
    flush: Flush | None = None,
    broker: BrokerConfig | Mapping[str, Any] | None = None,
    host: str = "127.0.0.1",
) -> AsyncIterator[LocalRocketMQ]:
    """The same without pytest: ``async with local_rocketmq() as rocketmq``. The arguments are those of ``embed``."""
    rocketmq = LocalRocketMQ(data)
    async with rocketmq.run(flush, broker, host):
        yield rocketmq
