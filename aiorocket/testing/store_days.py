"""The days of a store: appends, reads, full and failing disks, restarts, deletions and what is old, in an order drawn
from a seed, and beside it a list of what each queue must hold. Many a step, because there is nothing but the store.

What is read is compared with the list: every byte, every offset, every status. ``power_cuts`` is for what a crash
leaves; here most starts are clean ones, after which nothing may be different.
"""

from __future__ import annotations

import asyncio
import errno
import random
from dataclasses import dataclass, field
from functools import partial

from aiorocket.config import StoreConfig
from aiorocket.errors import StoreError, StoreFullError
from aiorocket.runtime.env import Env
from aiorocket.storage.results import PutResult, PutStatus, ReadStatus, StoreBrokenError, StoreBusyError
from aiorocket.storage.store import MessageStore
from aiorocket.testing.machines import body_of, key_of
from aiorocket.testing.sim import SimClock, Simulation, simulate
from aiorocket.testing.sim_disk import SimDisk
from aiorocket_protocol import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    RecordView,
    encode_properties,
    retry_topic,
    split_records,
    tags_code,
)

__all__ = ("store_days",)

_HOST = bytes(8)
_HOUR = 3600.0
_SEGMENT = 64 * 1024
#: More than a few steps put on their way.
_PENDING = 256 * 1024
_TOPICS = ("a", "b", retry_topic("g"))
_TAGS = ("", "red", "blue")
_FAST = (0.00005, 0.0005)
#: Hours that messages are kept; topic "b" may have hours of its own.
_RESERVED = 24.0
#: Steps of a day, and how often each is taken.
_STEPS = {
    "append": 14, "batch": 4, "read": 10, "look_up": 3, "wait": 6, "restart": 3, "rebuild": 1, "kill": 2, "fail": 2,
    "fill": 2, "delete": 1, "age": 3,
}  # fmt: skip

_Queue = tuple[str, int]


@dataclass(slots=True)
class _Held:
    """One queue: what was acknowledged from ``low`` on. ``waiting`` may come to it, in this order."""

    keys: list[tuple[str, str, int, int]] = field(default_factory=list)  # key, tag, stored at (ms), place in the log
    low: int = 0
    waiting: list[tuple[str, str]] = field(default_factory=list)


def store_days(seed: int, steps: int = 60) -> int:
    """Take ``steps`` steps and return how many messages were acknowledged. AssertionError when the store and the list
    differ; whatever else the store raises."""

    async def main(sim: Simulation) -> int:
        disk = sim.disk()
        run = _Days(sim, sim.env(disk=disk), disk)
        await run.run(steps)
        return run.acknowledged

    return simulate(main, seed)


class _Days:
    def __init__(self, sim: Simulation, env: Env, disk: SimDisk) -> None:
        self.draw = draw = random.Random(f"days {sim.loop.seed}")
        self.acknowledged = 0
        self._sim = sim
        self._host = sim.host("10.0.0.1")
        self._env = env
        self._disk = disk
        self._held: dict[_Queue, _Held] = {}
        self._count = 0
        self._needed: dict[_Queue, int] = {}
        self._hours = draw.choice((None, 100.0))
        #: A failing disk may do anything but lie: what is asked for then may be refused.
        self._failing = False
        self._config = StoreConfig(
            segment_size=_SEGMENT, min_free=0, tail_cache=draw.choice((0, 4096, 1 << 20)), flush_interval=0.05,
            flush=draw.choice(("sync", "sync", "async")), checkpoint_interval=draw.choice((0.05, 0.5, 1000.0)),
            file_reserved_time=_RESERVED, retention_interval=1e6, max_pending=_PENDING,
        )  # fmt: skip
        # Some steps are left out of a run, so that the others meet more often.
        left_out = draw.sample(sorted(_STEPS.keys() - {"append", "read"}), draw.randint(0, 4))
        self._weights = {name: weight for name, weight in _STEPS.items() if name not in left_out}
        self._store: MessageStore

    async def run(self, steps: int) -> None:
        await self._host.run(self._open())
        for _ in range(steps):
            (name,) = self.draw.choices(tuple(self._weights), tuple(self._weights.values()))
            if name == "kill":
                await self._kill()
                self._host = self._sim.host("10.0.0.1")
                await self._host.run(self._open())
            else:
                await self._host.run(getattr(self, f"_{name}")())
        await self._host.run(self._restart())
        await self._host.run(self._store.close())

    # -- opening and closing --

    async def _open(self) -> None:
        self._disk.latency = _FAST
        store = self._store = await MessageStore.open(self._env, self._config, "store", store_host=_HOST)
        store.retention.needed = lambda: self._needed
        store.retention.reserved = lambda topic: self._hours if topic == "b" else None
        assert not store.damaged, f"nothing was damaged, and the store says {store.damaged}"
        for (topic, queue_id), held in self._held.items():
            # What nobody was told of may have come so far, in its order.
            found = [each for each in self._everything((topic, queue_id)) if each.queue_offset >= len(held.keys)]
            keys = [key_of(view.body) for view in found]
            assert keys == [key for key, _ in held.waiting[: len(keys)]], f"{topic}/{queue_id} has {keys} at its end"
            for view, (key, tag) in zip(found, held.waiting, strict=False):
                held.keys.append((key, tag, view.store_timestamp, view.physical_offset))
            held.waiting.clear()
        self._disk.latency = (0.0005, self.draw.choice((0.001, 0.01)))
        self._check()

    async def _kill(self) -> None:
        """The process ends, or the power: what was acknowledged stays, with ``flush="async"`` and the power what was
        some time ago."""
        power = self.draw.random() < 0.5
        await asyncio.sleep(0.3 if power and self._config.flush == "async" else self.draw.choice((0.0, 0.0005, 0.002)))
        self._host.kill(power_cut=power)
        if power:
            self._disk.crash()
        else:
            self._disk.process_died()

    async def _restart(self) -> None:
        self._failing = False
        await self._settle()
        await self._store.close()
        await self._open()
        if not self._failing:
            found = self._store.recovery
            assert found.clean and not found.records and not found.rebuilt, f"after a clean stop: {found}"

    async def _rebuild(self) -> None:
        """A file of a queue is gone: it is made again from the log."""
        await self._settle()
        await self._store.close()
        files = [path for path in self._disk.files if "/consumequeue/" in path]
        for path in self.draw.sample(files, min(len(files), self.draw.choice((1, 1, 99)))):
            self._disk.unlink(path)
        await self._open()

    # -- appends --

    async def _append(self) -> None:
        draw = self.draw
        await self._few_wait()
        for _ in range(draw.choice((1, 1, 3, 12))):
            queue = draw.choice(_TOPICS), draw.randrange(2)
            key, tag = self._key(), draw.choice(_TAGS)
            size = draw.choice((0, 30, 400, 3000, 14_000))
            self._put(queue, key, tag, size)
        if draw.random() < 0.3:
            self._look_at_ends()

    def _put(self, queue: _Queue, key: str, tag: str, size: int) -> None:
        held = self._held.setdefault(queue, _Held())
        properties = encode_properties({PROPERTY_TAGS: tag, PROPERTY_KEYS: key} if tag else {PROPERTY_KEYS: key})
        waiting = [(key, tag)]
        held.waiting += waiting
        try:
            self._store.append(
                *queue, body_of(key, size), properties, flag=0, sys_flag=0, born_timestamp=0, born_host=_HOST,
                tags_code=tags_code(tag), done=partial(self._done, queue, held, waiting),
            )  # fmt: skip
        except StoreError as error:
            self._refused(held, waiting, error)

    async def _batch(self) -> None:
        await self._few_wait()
        queue = self.draw.choice(_TOPICS), self.draw.randrange(2)
        held = self._held.setdefault(queue, _Held())
        waiting = [(self._key(), "") for _ in range(self.draw.choice((2, 5, 40, 200)))]
        items = [
            (body_of(key, self.draw.choice((0, 200))), 0, encode_properties({PROPERTY_KEYS: key})) for key, _ in waiting
        ]
        held.waiting += waiting
        try:
            self._store.append_batch(
                *queue, items, [0] * len(items), sys_flag=0, born_timestamp=0, born_host=_HOST,
                done=partial(self._done, queue, held, waiting),
            )  # fmt: skip
        except StoreError as error:
            self._refused(held, waiting, error)

    def _key(self) -> str:
        self._count += 1
        return f"m{self._count}"

    def _refused(self, held: _Held, waiting: list[tuple[str, str]], error: StoreError) -> None:
        expected = self._failing and isinstance(error, StoreFullError | StoreBrokenError)
        assert expected, f"an append is refused: {error}"
        del held.waiting[-len(waiting) :]

    def _done(self, queue: _Queue, held: _Held, waiting: list[tuple[str, str]], result: PutResult) -> None:
        if self._held.get(queue) is not held:
            return  # its topic was deleted
        if result.status is PutStatus.OK:
            assert held.waiting[: len(waiting)] == waiting, f"{waiting} of {queue} is answered out of order"
            del held.waiting[: len(waiting)]
            assert result.queue_offset == len(held.keys), f"{waiting[0]} is stored at {result.queue_offset}"
            places = result.physical_offsets or (result.physical_offset,)
            for (key, tag), place in zip(waiting, places, strict=True):
                held.keys.append((key, tag, result.store_timestamp, place))
            self.acknowledged += len(waiting)
            return
        assert self._failing, f"{waiting} is answered {result.status}"
        if result.status is PutStatus.FULL:
            held.waiting = [each for each in held.waiting if each not in waiting]
        # BROKEN: it may be found by the next start.

    # -- the disk --

    async def _fail(self) -> None:
        """One call to the disk fails, at any place of what happens next."""
        code = self.draw.choice((errno.EIO, errno.ENOSPC))
        self._failing = True
        self._disk.fail(self.draw.randint(1, 8), code)
        await self._append()
        await self._settle()
        self._disk.clear_failures()
        await self._heal()

    async def _fill(self) -> None:
        """The disk is full for a while: what is refused is not there, what was there is, and it goes on."""
        self._failing = True
        self._disk.capacity = sum(map(len, self._disk.files.values())) + self.draw.choice((0, 500, 5000, _SEGMENT))
        for _ in range(self.draw.randint(1, 4)):
            await self._append()
            await self._settle()
            self._check()
        self._disk.capacity = 1 << 40
        await self._heal()

    async def _heal(self) -> None:
        await asyncio.sleep(1.0)
        for _ in range(100):
            try:
                self._check()
                break
            except (StoreBusyError, OSError):  # what could not be read is being made again
                await asyncio.sleep(0.01)
        if isinstance(self._store._log.refusal, StoreBrokenError):
            await self._store.close()
            await self._open()
        else:
            self._check()
        self._failing = False
        await self._append()  # it takes messages again
        await self._settle()

    # -- what is old --

    async def _age(self) -> None:
        """Time passes, and what is old goes: nothing that is young or needed, all that is neither."""
        await self._settle()
        clock = self._env.clock
        assert isinstance(clock, SimClock)
        clock.skew_ms += int(self.draw.choice((-1.0, 1.0, 13.0, 30.0)) * _HOUR * 1000)
        self._needed.clear()
        for queue, held in self._held.items():
            if held.keys and self.draw.random() < 0.2:
                self._needed[queue] = self.draw.randrange(held.low, len(held.keys) + 1)
        await self._store.retention.sweep()
        now, kept = clock.wall_ms(), []
        # A segment is old when the next one begins with what is old.
        old = [
            key[3]
            for held in self._held.values()
            for key in held.keys[held.low :]
            if key[2] < now - _RESERVED * _HOUR * 1000
        ]
        newest = max(old, default=0)
        for queue, held in self._held.items():
            hours = (self._hours if queue[0] == "b" else None) or _RESERVED
            low = self._store.min_offset(*queue)
            assert held.low <= low <= len(held.keys), f"{queue} begins at {low}, before it was {held.low}"
            for offset in range(held.low, low):
                stored = held.keys[offset][2]
                assert stored < now - hours * _HOUR * 1000, f"{queue} {offset} is {now - stored} ms old and is removed"
            needed = self._needed.get(queue, low)
            assert low <= max(needed, held.low), f"{queue} begins at {low}, and {needed} is needed"
            gone = range(low, min(needed, len(held.keys))) if hours == _RESERVED and queue in self._needed else ()
            if queue not in self._needed and hours == _RESERVED:
                gone = range(low, len(held.keys))
            for offset in gone:
                stays = held.keys[offset][3] // _SEGMENT >= newest // _SEGMENT
                assert stays, f"{queue} {offset} is old and still there"
            held.low = low
            kept += [held.keys[low][3]] if low < len(held.keys) else []
        # A segment of which nothing is kept is not there, unless it is young and was of a topic that is deleted.
        if kept and "delete" not in self._weights:
            low_place = self._store.min_physical
            assert low_place > min(kept) - _SEGMENT, (
                f"the log begins at {low_place}, its first message is at {min(kept)}"
            )
        self._check()

    async def _delete(self) -> None:
        await self._settle()
        topic = self.draw.choice(_TOPICS)
        for queue in [queue for queue in self._held if queue[0] == topic]:
            del self._held[queue]
            self._needed.pop(queue, None)
        await self._store.delete_topics(topic)
        left = [path for path in self._disk.files if f"/consumequeue/{topic}/" in path]
        # A crash may have left files of a queue whose messages it took.
        clean = "kill" not in self._weights and "fail" not in self._weights
        assert not self._store.queues(topic) and not (left and clean), f"of the deleted topic {topic} there is {left}"

    # -- reading --

    async def _wait(self) -> None:
        await asyncio.sleep(self.draw.choice((0.0, 0.001, 0.06, 1.0)))

    async def _settle(self) -> None:
        """Until everything is answered."""
        for _ in range(10_000):
            if not any(held.waiting for held in self._held.values()) or self._store._log.is_broken:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("an append is not answered")

    async def _few_wait(self) -> None:
        if sum(len(held.waiting) for held in self._held.values()) > 4:
            await self._settle()

    async def _read(self) -> None:
        draw = self.draw
        for _ in range(draw.randint(1, 6)):
            if not self._held:
                return
            queue = draw.choice(list(self._held))
            end = len(self._held[queue].keys)
            offset = draw.choice((draw.randint(-1, end + 2), end, max(0, end - 1)))
            tag = draw.choice((None, None, *_TAGS))
            self._read_at(queue, offset, draw.choice((1, 7, 64)), draw.choice((1, 4000, 1 << 20)), tag)

    def _look_at_ends(self) -> None:
        """Nothing that is not acknowledged can be read."""
        for queue, held in self._held.items():
            if held.waiting:
                self._read_at(queue, len(held.keys), 8, 1 << 20, None)
                self._read_at(queue, max(held.low, len(held.keys) - 1), 8, 1 << 20, None)

    def _read_at(self, queue: _Queue, offset: int, count: int, size: int, tag: str | None) -> None:
        held = self._held[queue]
        accept = None if tag is None else lambda code: code == tags_code(tag)
        try:
            result = self._store.read(*queue, offset, count, size, accept)
        except (StoreBusyError, OSError):
            if self._failing:
                return
            raise
        end = len(held.keys)
        where = f"a read of {queue} at {offset} ({held.low} to {end})"
        if not end and not held.waiting and result.status is ReadStatus.NO_MATCHED_LOGIC_QUEUE:
            return
        assert (result.min_offset, result.max_offset) == (held.low, end), f"{where} knows {result[3:5]}"
        if not held.low <= offset < end:
            assert result.status is not ReadStatus.FOUND and not result.count, f"{where} finds {result.count}"
            following = held.low if offset < held.low else end
            assert result.next_offset == (following if end else 0), f"{where} goes on at {result.next_offset}"
            return
        assert offset < result.next_offset <= end, f"{where} goes on at {result.next_offset}"
        views = split_records(result.data)
        wanted = [at for at in range(offset, result.next_offset) if tag is None or held.keys[at][1] == tag]
        assert [view.queue_offset for view in views] == wanted, f"{where} gives {[view.queue_offset for view in views]}"
        assert len(views) == result.count <= count, f"{where} gives {result.count}, asked for {count}"
        assert len(views) < 2 or len(result.data) <= size, f"{where} gives {len(result.data)} bytes, asked for {size}"
        assert tag is not None or views, f"{where} finds nothing"
        for view in views:
            self._compare(queue, view)

    def _compare(self, queue: _Queue, view: RecordView) -> None:
        key, _, stored, place = self._held[queue].keys[view.queue_offset]
        found = key_of(view.body), view.store_timestamp, view.physical_offset, (view.topic, view.queue_id)
        assert found == (key, stored, place, queue), f"at {queue} {view.queue_offset} is {found}, not {key}"

    def _everything(self, queue: _Queue) -> list[RecordView]:
        store, offset, found = self._store, self._store.min_offset(*queue), []
        while (result := store.read(*queue, offset, 32, 1 << 20)).status is ReadStatus.FOUND:
            found += split_records(result.data)
            offset = result.next_offset
        return found

    def _check(self) -> None:
        """Everything is there, as it was acknowledged."""
        for queue, held in self._held.items():
            views = self._everything(queue)
            offsets = [view.queue_offset for view in views]
            assert offsets == list(range(held.low, len(held.keys))), (
                f"{queue} has {offsets}, not {held.low} to {len(held.keys)}"
            )
            for view in views:
                self._compare(queue, view)

    async def _look_up(self) -> None:
        """By key, by time, by place."""
        queues = [queue for queue, held in self._held.items() if len(held.keys) > held.low]
        if not queues:
            return
        store, queue = self._store, self.draw.choice(queues)
        held = self._held[queue]
        offset = self.draw.randrange(held.low, len(held.keys))
        key, _, stored, place = held.keys[offset]
        found, missing = await store.keys.find(queue[0], key, 0, stored, tag=False, limit=4, max_bytes=1 << 20)
        assert not missing, f"the key index lacks {missing} bytes"
        assert [RecordView(each, 0, len(each)).physical_offset for each in found] == [place], f"{key} is not found"
        record = store.read_record(place)
        assert record is not None and key_of(RecordView(record, 0, len(record)).body) == key
        # Later appends may have been acknowledged since, but none of before ``stored``.
        first = next(at for at in range(held.low, len(held.keys)) if held.keys[at][2] >= stored)
        assert store.offset_by_time(*queue, stored) == first, f"{queue} at {stored}: not {first}"
        assert store.store_time(*queue, offset) == stored
