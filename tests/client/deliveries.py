"""A delivery without a consumer: messages of a few fields, a failure that is written down, virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

from aiorocket.client.core.process_queue import Limits, ProcessQueue
from aiorocket.client.core.stats import ConsumeStats
from aiorocket.client.message import Message, exit_level
from aiorocket.client.push.calls import Call, SingleCall, Surroundings
from aiorocket.client.push.delivery import Delivery
from aiorocket.client.push.hooks import ConsumeHook
from aiorocket.client.state import Counters
from aiorocket.model import Queue
from aiorocket.runtime.tasks import TaskScope
from aiorocket.testing import SimClock, Simulation, simulate

LIMITS = Limits(100_000, 1 << 30, 1 << 30)
T = Queue("t", "b", 0)


class Item:
    """A message: what it says is ``body``."""

    def __init__(self, source: Assigned, offset: int, body: bytes, size: int, key: object) -> None:
        self._source = source
        self.queue_offset = offset
        self.body = body
        self.start, self.end = 0, size
        self.key = key
        self._process_queue: ProcessQueue | None = None
        self._local_attempts = 0

    @property
    def queue(self) -> Queue:
        return self._source.queue

    @property
    def size(self) -> int:
        return self.end

    @property
    def attempt(self) -> int:
        return 1 + self._local_attempts

    @property
    def settled(self) -> bool:
        return self._process_queue is None or self._process_queue.dropped

    @property
    def msg_id(self) -> str:
        return f"{self.queue.topic}/{self.queue_offset}"

    def __repr__(self) -> str:
        return self.body.decode()


class Assigned:
    """An assigned queue."""

    def __init__(self, queue: Queue = T) -> None:
        self.queue = queue
        self.process_queue = ProcessQueue(0, LIMITS)
        self.last_consume: float | None = None

    def pull(
        self, bodies: Iterable[object], *, size: int = 100, key: Callable[[int], object] | None = None
    ) -> list[Message]:
        """The next messages; ``key`` of their offset."""
        process_queue = self.process_queue
        start = process_queue.next_offset
        items = [
            Item(self, offset, str(body).encode(), size, key(offset) if key else None)
            for offset, body in enumerate(bodies, start)
        ]
        process_queue.put(items, size * len(items), start + len(items))
        return cast("list[Message]", items)


class World:
    """What surrounds the deliveries of a test, and what they told it."""

    def __init__(
        self,
        sim: Simulation,
        hooks: Sequence[ConsumeHook] = (),
        *,
        consume_timeout: float = 900.0,
        settlement: object = None,
    ) -> None:
        self.loop = sim.loop
        self.counters = Counters()
        self.stats = ConsumeStats()
        #: (body, level of the send-back) and bodies, in order; dead letters are refused as often as ``refuse`` says.
        self.failures: list[tuple[str, int]] = []
        self.errors: list[Exception] = []
        self.expirations: list[str] = []
        self.dead: list[str] = []
        self.refuse = 0
        self.scope = TaskScope("test")
        self.around = Surroundings(
            group="g", settlement=cast("Any", settlement or self), counters=self.counters, stats=self.stats,
            clock=SimClock(sim.loop), scope=self.scope, hooks=hooks, consume_timeout=consume_timeout,
        )  # fmt: skip

    def delivery(
        self,
        handler: Callable[..., Awaitable[object]],
        *,
        concurrency: int = 4,
        call: type[Call] = SingleCall,
        **options: Any,
    ) -> Delivery:
        return Delivery(
            handler, name="listener", concurrency=concurrency, surroundings=self.around, call=call, **options
        )

    async def failed(self, message: Message, error: Exception, max_attempts: int | None) -> None:
        self.failures.append((message.body.decode(), exit_level(error)))
        self.errors.append(error)
        self._finish(message)

    async def expired(self, message: Message, max_attempts: int | None) -> None:
        self.expirations.append(message.body.decode())
        self._finish(message)

    async def give_up(self, message: Message, max_attempts: int | None, error: BaseException) -> bool:
        if self.refuse:
            self.refuse -= 1
            return False
        self.dead.append(message.body.decode())
        self._finish(message)
        return True

    def note(self, message: Message, error: Exception) -> None:
        self.errors.append(error)

    def _finish(self, message: Message) -> None:
        if message._process_queue is None or not message._process_queue.done(message):
            self.counters.late += 1


def run(
    scenario: Callable[[World], Awaitable[None]], hooks: Sequence[ConsumeHook] = (), *, seed: int = 0, **options: Any
) -> None:
    """Run it in virtual time; nothing may be left behind."""

    async def main(sim: Simulation) -> None:
        world = World(sim, hooks, **options)
        await scenario(world)
        await world.scope.close()

    simulate(main, seed)
