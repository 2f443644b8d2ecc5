"""A store against a dict: any order of appends, batches, reads, deletions, clean restarts, kills and power cuts."""

from __future__ import annotations

import asyncio
import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aiorocket.runtime.entropy import Entropy
from aiorocket.runtime.env import Env
from aiorocket.storage import PutResult, PutStatus, ReadStatus
from aiorocket.testing import SimClock, SimDisk, SimLoop
from aiorocket_protocol import split_records, tags_code
from tests.storage.stores import everything, opened, put, put_batch

TOPICS = ("T", "%RETRY%g")
Model = dict[tuple[str, int], list[bytes]]


class StoreAndDict(RuleBasedStateMachine):
    """``stored`` is what was acknowledged; ``waiting`` was accepted and may or may not be found after a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop(1)
        self.disk = SimDisk(1)
        self.env = Env(SimClock(self.loop), Entropy(1), self.disk)
        self.stored: Model = {}
        self.waiting: list[tuple[tuple[str, int], list[bytes], asyncio.Future[PutResult]]] = []
        self.tail_cache = 0
        self.number = 0

    @initialize(seed=st.integers(0, 1000), tail_cache=st.sampled_from([0, 2000, 1 << 20]))
    def begin(self, seed: int, tail_cache: int) -> None:
        self.disk = SimDisk(seed)
        self.env = Env(SimClock(self.loop), Entropy(seed), self.disk)
        self.tail_cache = tail_cache
        self.open()

    def open(self) -> None:
        self.store = self.loop.run_until_complete(opened(self.env, tail_cache=self.tail_cache))

    def body(self, size: int) -> bytes:
        self.number += 1
        return (b"%d|" % self.number) * size

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.integers(0, 2), size=st.sampled_from([0, 1, 30, 3000]))
    def append(self, topic: str, queue_id: int, size: int) -> None:
        async def go() -> None:
            body = self.body(size)
            self.waiting.append(((topic, queue_id), [body], put(self.store, topic, queue_id, body)))

        self.loop.run_until_complete(go())

    @rule(
        topic=st.sampled_from(TOPICS),
        queue_id=st.integers(0, 2),
        sizes=st.lists(st.integers(0, 900), min_size=1, max_size=9),
    )
    def batch(self, topic: str, queue_id: int, sizes: list[int]) -> None:
        async def go() -> None:
            bodies = [self.body(size) for size in sizes]
            self.waiting.append(((topic, queue_id), bodies, put_batch(self.store, bodies, topic, queue_id)))

        self.loop.run_until_complete(go())

    def settle(self) -> None:
        for key, bodies, future in self.waiting:
            result = self.loop.run_until_complete(future)
            queue = self.stored.setdefault(key, [])
            assert result.status is PutStatus.OK and result.queue_offset == len(queue)
            queue += bodies
        self.waiting.clear()

    @rule()
    def wait(self) -> None:
        self.settle()

    @rule(seconds=st.sampled_from([0.001, 0.06, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @precondition(lambda self: self.stored)
    @rule(pick=st.randoms(), count=st.integers(1, 40), max_bytes=st.sampled_from([1, 4000, 1 << 20]))
    def read(self, pick: random.Random, count: int, max_bytes: int) -> None:
        self.settle()
        key = pick.choice(sorted(self.stored))
        bodies = self.stored[key]
        offset = pick.randrange(len(bodies))
        result = self.store.read(key[0], key[1], offset, count, max_bytes)
        assert result.status is ReadStatus.FOUND and 1 <= result.count <= count
        views = split_records(result.data)
        assert [view.raw_body for view in views] == bodies[offset : offset + result.count]
        assert result.next_offset == offset + result.count and result.max_offset == len(bodies)
        assert result.count == 1 or len(result.data) <= max_bytes
        none = self.store.read(key[0], key[1], offset, count, max_bytes, lambda code: code == tags_code("none such"))
        assert none.status is ReadStatus.NO_MATCHED_MESSAGE and offset < none.next_offset <= len(bodies)

    @rule(topic=st.sampled_from(TOPICS))
    def delete(self, topic: str) -> None:
        self.settle()

        async def go() -> None:
            await self.store.delete_topics(topic)

        self.loop.run_until_complete(go())
        for key in [key for key in self.stored if key[0] == topic]:
            del self.stored[key]

    @rule()
    def sweep(self) -> None:
        """What deleted topics left goes, and nothing else."""
        self.settle()
        self.loop.run_until_complete(self.store.retention.sweep())

    @rule()
    def restart(self) -> None:
        self.loop.run_until_complete(self.store.close())
        self.settle()
        self.open()

    @rule(power=st.booleans(), seconds=st.sampled_from([0.0, 0.0002, 0.001]))
    def crash(self, power: bool, seconds: float) -> None:
        """What was told is there; of what was not, a beginning of each queue's may be."""
        self.loop.run_until_complete(asyncio.sleep(seconds))
        unknown: Model = {}
        for key, bodies, future in self.waiting:
            if future.done():
                assert key not in unknown, "acknowledged out of order"
                self.stored.setdefault(key, []).extend(bodies)
            else:
                unknown.setdefault(key, []).extend(bodies)
        self.waiting.clear()
        if power:
            self.disk.crash()
        else:
            self.disk.process_died()
        self.end_tasks()
        self.open()
        for key in {**self.stored, **unknown}:
            known, maybe = self.stored.get(key, []), unknown.get(key, [])
            found = [view.raw_body for view in everything(self.store, *key)]
            assert found[: len(known)] == known
            assert found[len(known) :] == maybe[: len(found) - len(known)]
            if found:
                self.stored[key] = found

    def end_tasks(self) -> None:
        timer = self.store._behind._timer
        if timer is not None:
            timer.cancel()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))

    @invariant()
    def queues_are_what_was_acknowledged(self) -> None:
        if self.waiting or not hasattr(self, "store"):
            return
        for key, bodies in self.stored.items():
            assert self.store.max_offset(*key) == len(bodies)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.loop.run_until_complete(self.store.close())
            for key, bodies, future in self.waiting:
                assert future.result().status is PutStatus.OK
                self.stored.setdefault(key, []).extend(bodies)
            self.open()
            for key, bodies in self.stored.items():
                assert [view.raw_body for view in everything(self.store, *key)] == bodies
            self.loop.run_until_complete(self.store.close())
        self.loop.close()


StoreAndDict.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStoreAndDict = StoreAndDict.TestCase
