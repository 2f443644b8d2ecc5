"""Power cuts, one after the other, in the middle of what a store writes: thousands a minute, because there is nothing
but a store and its disk.

Each time the store is opened again and read from end to end. What was acknowledged is there, at its place and with its
bytes; what was not is there whole or not at all, and what a start did not find is gone for good; nothing else is there.
Beside it a state file is saved: it never goes back behind a save that was done.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from aiorocket.config import StoreConfig
from aiorocket.runtime.env import Env
from aiorocket.storage.results import PutResult, PutStatus, ReadStatus
from aiorocket.storage.snapshots import Snapshot
from aiorocket.storage.store import MessageStore
from aiorocket.testing.machines import body_of, key_of
from aiorocket.testing.sim import Simulation, simulate
from aiorocket.testing.sim_disk import SimDisk
from aiorocket_protocol import MIN_RECORD, PROPERTY_KEYS, encode_properties, split_records

__all__ = ("power_cuts",)

_HOST = bytes(8)
_QUEUES = 3
#: Bytes of each body where all messages have one size.
_ALIKE = 900
_STORE = StoreConfig(segment_size=64 * 1024, min_free=0, tail_cache=4096, checkpoint_interval=0.5)


def power_cuts(seed: int, cuts: int = 50) -> int:
    """Cut the power ``cuts`` times and return how many messages were acknowledged. AssertionError when one is lost or
    wrong; whatever else opening a store raises when it cannot be opened any more."""

    async def main(sim: Simulation) -> int:
        disk = sim.disk()
        run = _Run(sim, sim.env(disk=disk), disk)
        for _ in range(cuts):
            host = sim.host("10.0.0.1")
            await host.run(run.go())
            power = run.draw.random() < 0.8
            host.kill(power_cut=power)
            if power:
                disk.crash()
            else:
                disk.process_died()
        host = sim.host("10.0.0.1")
        await host.run(run.end())
        return len(run.acknowledged)

    return simulate(main, seed)


class _Run:
    def __init__(self, sim: Simulation, env: Env, disk: SimDisk) -> None:
        self.draw = random.Random(f"power {sim.loop.seed}")
        # In some runs all messages have one size, as those of most senders: what is cut off would fit behind new ones.
        self._alike = random.Random(f"alike {sim.loop.seed}").random() < 0.2
        self.acknowledged: dict[tuple[int, int], str] = {}
        self._loop = sim.loop
        self._env = env
        self._disk = disk
        self._sent = 0
        #: What may be found: sent since the last start, or found by it.
        self._possible: set[str] = set()
        self._saved = 0
        self._wanted = 0

    async def go(self) -> None:
        """Open, look, and write; returns with much of it under way."""
        disk, draw = self._disk, self.draw
        disk.latency = (0.00005, 0.0005)
        store = await self._open()
        disk.latency = (0.001, draw.choice((0.002, 0.02, 0.2)))
        state = Snapshot(disk, "state")
        state.load()
        for _ in range(draw.randint(1, 4)):
            for _ in range(draw.choice((1, 1, 3, 10))):
                self._append(store)
            if draw.random() < 0.3:
                self._wanted += 1
                disk.run(state.save, {"n": self._wanted}).add_done_callback(partial(self._save_done, self._wanted))
            await asyncio.sleep(draw.choice((0.0, 0.001, 0.01, 0.3)))
        if draw.random() < 0.15:
            await store.close()

    async def end(self) -> None:
        self._disk.latency = (0.00005, 0.0005)
        store = await self._open()
        await store.close()

    def _save_done(self, number: int, job: object) -> None:
        self._saved = max(self._saved, number)

    def _append(self, store: MessageStore) -> None:
        key = f"m{self._sent}"
        self._sent += 1
        self._possible.add(key)
        queue_id = self.draw.randrange(_QUEUES)

        def done(result: PutResult) -> None:
            if result.status is PutStatus.OK:
                self.acknowledged[queue_id, result.queue_offset] = key

        size = self.draw.choice((1, 400, 900, 2500, 6000))
        store.append(
            "t", queue_id, body_of(key, _ALIKE if self._alike else size), self._properties(key), flag=0, sys_flag=0,
            born_timestamp=0, born_host=_HOST, tags_code=0, done=done,
        )  # fmt: skip

    def _properties(self, key: str) -> bytes:
        """Of every third message as long as some sectors: no checksum of its own covers them."""
        if self._alike or int(key[1:]) % 3:
            return b""
        return encode_properties({PROPERTY_KEYS: key * 250})

    async def _open(self) -> MessageStore:
        store = await MessageStore.open(self._env, _STORE, "store", store_host=_HOST)
        found: dict[tuple[int, int], str] = {}
        for queue_id in range(_QUEUES):
            offset = store.min_offset("t", queue_id)
            while (result := store.read("t", queue_id, offset, 1024, 1 << 20)).status is ReadStatus.FOUND:
                for record in split_records(result.data):
                    key = found[queue_id, record.queue_offset] = key_of(record.body)
                    assert record.raw_properties == self._properties(key), f"{key} has lost properties"
                offset = result.next_offset
        for place, key in self.acknowledged.items():
            assert found.get(place) == key, f"{key} was acknowledged at {place}, there is {found.get(place)}"
        for place, key in found.items():
            assert key in self._possible, f"at {place} is {key}, which nobody sent or an earlier start did not find"
        assert len(set(found.values())) == len(found), "a message is there twice"
        # A torn blank may be called damage: it is too short for a message.
        damaged = [bad for bad in store.recovery.damaged if bad.end - bad.offset >= MIN_RECORD]
        assert not damaged, f"a power cut is taken for damage: {damaged}"
        value = Snapshot(self._disk, "state").load()
        number = 0 if value is None else int(value["n"])
        assert self._saved <= number <= self._wanted, f"the state is {number} after {self._saved} was saved"
        self.acknowledged.update(found)  # it is visible, so it stays
        self._possible = set(found.values())
        return store
