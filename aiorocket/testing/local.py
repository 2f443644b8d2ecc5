"""A name server and a broker for one test, over real sockets, whose wall clock can be advanced and whose wire can be
made to fail. The fixtures ``rocketmq`` and ``rocketmq_durable`` of the pytest plugin give it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Unpack

from aiorocket import ConsumeHook, Consumer, Producer, Router, SendOptions
from aiorocket.broker.broker import Broker
from aiorocket.config import BrokerConfig, ConsumerConfig, Flush, NameServerConfig, StoreConfig
from aiorocket.embedded import Embedded, embed
from aiorocket.errors import UsageError
from aiorocket.model import Queue, SendReceipt
from aiorocket.nameserver.server import NameServer
from aiorocket.runtime.clock import WallClock
from aiorocket.runtime.disk import RealDisk
from aiorocket.runtime.entropy import Entropy
from aiorocket.runtime.env import Env
from aiorocket.runtime.threads import loop_in_thread
from aiorocket.testing.faults import WireFaults
from aiorocket.testing.stored import lag, stored_messages
from aiorocket_protocol import RecordView, dlq_topic

__all__ = ("LocalRocketMQ", "TestClock", "broker_thread", "local_rocketmq")

#: A test's messages are few: small files make it start and restart fast.
_STORE = StoreConfig(segment_size=1 << 20, min_free=1 << 20)
_LOOK_AGAIN = 0.002


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
        due, and goes on when the fixture's consumers have dealt with what it led to. Other timers (heartbeats, leases,
        time-outs) go by the loop's clock and do not notice. TimeoutError when consumers need more than ``patience``
        real seconds at one stop."""
        owner = self._owner
        target = self.wall_ms() + round(((hours * 60 + minutes) * 60 + seconds) * 1000)
        while True:
            await owner.settled(patience)
            due = owner.broker.delays.next_due()
            now = self.wall_ms()
            if due is None or due > target:
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
    more clients."""

    def __init__(self, data: str | None) -> None:
        self.clock = TestClock(self)
        self.faults = WireFaults()
        self._env = Env(self.clock, Entropy(), RealDisk())
        self._nameserver = NameServer(self._env, NameServerConfig(port=0))
        self._data = data
        self._consumers: list[Consumer] = []
        self._producer: Producer | None = None
        self._read_letters: dict[str, int] = {}
        self.embedded: Embedded

    async def start(self) -> None:
        await self._nameserver.start()
        config = BrokerConfig(port=0, data=self._data, store=_STORE, nameservers=(self._nameserver.address,))
        self.embedded = Embedded(
            self._env, self._nameserver, config, prepare=lambda broker: self.faults.attach(broker.server)
        )
        await self.broker.start()

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
        await self.broker.close()
        await self._nameserver.close()
        await self._env.disk.close()

    @property
    def broker(self) -> Broker:
        return self.embedded.broker

    @property
    def nameserver_address(self) -> str:
        """``host:port``, for clients of other languages too."""
        return self._nameserver.address

    async def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create ``topic``; it has a route when this returns."""
        await self.embedded.create_topic(topic, queues)

    async def send(self, topic: str, body: bytes, **options: Unpack[SendOptions]) -> SendReceipt:
        """Send a message with a producer of the fixture. Options and errors as of ``Producer.send``."""
        if self._producer is None:
            self._producer = self.embedded.producer("rocketmq-fixture")
            await self._producer.start()
        return await self._producer.send(topic, body, **options)

    def consumer(
        self,
        group: str | Router,
        *,
        config: ConsumerConfig | None = None,
        env: Env | None = None,
        hooks: Iterable[ConsumeHook] = (),
        on_assigned: Callable[[list[Queue]], Awaitable[object]] | None = None,
        on_revoked: Callable[[list[Queue]], Awaitable[object]] | None = None,
    ) -> Consumer:
        """A consumer of this broker, to be started by the test (``async with``): of a group, or of a router with its
        group. The other arguments as of ``Consumer``."""
        name, router = (group.group, group) if isinstance(group, Router) else (group, None)
        consumer = self.embedded.consumer(
            name, router=router, config=config, env=env, hooks=hooks, on_assigned=on_assigned, on_revoked=on_revoked
        )
        self._consumers.append(consumer)
        return consumer

    async def wait_dead_letter(self, group: str, timeout: float = 5.0) -> RecordView:
        """The next dead letter of ``group`` that was not returned before. TimeoutError after ``timeout`` seconds."""
        topic = dlq_topic(group)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    letters = stored_messages(self.broker.store, topic)
                    seen = self._read_letters.get(group, 0)
                    if len(letters) > seen:
                        self._read_letters[group] = seen + 1
                        return letters[seen]
                    await asyncio.sleep(_LOOK_AGAIN)
        except TimeoutError:
            raise TimeoutError(f"group {group!r} has no further dead letter after {timeout:g} s") from None

    def lag(self, group: str, topic: str) -> int:
        """Messages of ``topic`` that ``group`` has not committed. A running consumer commits every 10 s, when
        ``Consumer.commit`` is called, and at its end."""
        return lag(self.broker, group, topic)

    def assert_committed(self, group: str, topic: str, lag: int = 0) -> None:
        """AssertionError when ``group`` has committed more or less of ``topic`` than all but ``lag`` messages."""
        behind = self.lag(group, topic)
        assert behind == lag, f"group {group!r} is {behind} messages behind in topic {topic!r}, expected {lag}"

    async def settled(self, timeout: float = 10.0) -> None:
        """Return when the fixture's running consumers have pulled and finished everything that is not delayed.
        TimeoutError when that takes longer."""
        try:
            async with asyncio.timeout(timeout):
                while self._busy():  # noqa: ASYNC110 - five parts would have to tell, and this is a test
                    await asyncio.sleep(_LOOK_AGAIN)
        except TimeoutError:
            raise TimeoutError(f"after {timeout:g} s consumers still have {self._busy()} messages to finish") from None

    def _busy(self) -> int:
        store = self.broker.store
        busy = self.broker.delays.in_flight
        positions: dict[tuple[str, str], dict[int, int]] = {}
        for consumer in self._consumers:
            state = consumer.state()
            if not state.running:
                continue
            busy += state.cached + state.in_work
            for topic in consumer.topics():
                positions.setdefault((consumer.group, topic), {})
            for each in state.queues:
                positions.setdefault((consumer.group, each.queue.topic), {})[each.queue.queue_id] = each.next_offset
        for (_, topic), taken in positions.items():
            for queue_id in store.queues(topic):
                busy += max(0, store.max_offset(topic, queue_id) - taken.get(queue_id, 0))
        return busy

    async def restart(self, *, kill: bool = False) -> None:
        """As ``Embedded.restart``; plans of ``faults`` stay. UsageError for a broker without a directory: use
        ``rocketmq_durable``."""
        if self._data is None:
            raise UsageError("this broker keeps its messages in memory: use the fixture rocketmq_durable to restart it")
        await self.embedded.restart(kill=kill)


@asynccontextmanager
async def local_rocketmq(data: str | None = None) -> AsyncIterator[LocalRocketMQ]:
    """The same without pytest: ``async with local_rocketmq() as rocketmq``. ``data`` is a directory of its own."""
    rocketmq = LocalRocketMQ(data)
    await rocketmq.start()
    try:
        yield rocketmq
    finally:
        await rocketmq.close()


@contextmanager
def broker_thread(
    data: str | None = None,
    *,
    flush: Flush | None = None,
    broker: BrokerConfig | Mapping[str, Any] | None = None,
    host: str = "127.0.0.1",
) -> Iterator[str]:
    """``with broker_thread() as address``: a name server and a broker in a thread of their own, for synchronous code
    and clients of other languages. ``address`` is the name server's; the arguments and errors are those of ``embed``.
    They have ended when the block is left."""
    with loop_in_thread(embed(data, flush=flush, broker=broker, host=host)) as mq:
        yield mq.nameserver_address
