"""Topics made side by side are few saves, and none that was acknowledged is lost by a killed process or a power cut."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from aiorocket.broker.core.topics import Topic, TopicTable
from aiorocket.broker.state import BrokerState
from aiorocket.runtime.disk import RealDisk
from aiorocket.storage import Snapshot
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import CreateTopicRequestHeader, UpdateGroupForbiddenRequestHeader
from tests.broker.test_sim import SimPeer, config, kill, started


class _Disk(RealDisk):
    """It counts, and fails the first ``failing`` times."""

    replaced = failing = 0

    def replace(self, path: str, data: bytes) -> None:
        self.replaced += 1
        if self.replaced <= self.failing:
            raise OSError("no space left")
        super().replace(path, data)


@pytest.mark.parametrize("failing", [0, 1])
async def test_what_comes_before_a_save_begins_goes_with_it(tmp_path: Path, failing: int) -> None:
    disk, topics = _Disk(), TopicTable(broker="b", cluster="c", auto_create=True, default_queues=4)
    disk.failing = failing
    state = BrokerState(disk, str(tmp_path), {"topics": topics})
    await state.load()
    free = threading.Event()
    busy = disk.run(free.wait, 10)
    saves = []
    for number in range(50):
        topics.put(Topic(f"t{number}", 4, 4))
        saves.append(state.save("topics"))
    begun = state._saved["topics"].running
    saves.append(state.save("topics"))
    assert state._saved["topics"].running is begun
    free.set()
    await busy
    outcomes = await asyncio.gather(*saves, return_exceptions=True)
    # Whose own save failed is told so; the next one had the same to write.
    assert [isinstance(each, OSError) for each in outcomes] == [True] * failing + [False] * (51 - failing)
    assert disk.replaced == 2 + failing  # the first save makes both generations
    assert Snapshot(disk, f"{tmp_path}/topics").load() == topics.to_dict()
    topics.delete("t0")
    await state.save("topics")
    assert Snapshot(disk, f"{tmp_path}/topics").load() == topics.to_dict()
    await disk.close()


async def test_who_is_cancelled_takes_nobodys_save_along(tmp_path: Path) -> None:
    disk, topics = _Disk(), TopicTable(broker="b", cluster="c", auto_create=True, default_queues=4)
    state = BrokerState(disk, str(tmp_path), {"topics": topics})
    await state.load()
    free = threading.Event()
    busy = disk.run(free.wait, 10)
    topics.put(Topic("t", 4, 4))

    async def waiter() -> None:
        await state.save("topics")

    waiters = [asyncio.create_task(waiter()) for _ in range(3)]
    await asyncio.sleep(0)
    for each in waiters[:2]:  # who began it, and one that waits with others
        each.cancel()
    await asyncio.wait(waiters[:2])
    free.set()
    await busy
    await waiters[2]
    assert [each.cancelled() for each in waiters] == [True, True, False]
    assert Snapshot(disk, f"{tmp_path}/topics").load() == topics.to_dict()
    await disk.close()


async def test_what_nobody_waits_for_is_one_job(tmp_path: Path) -> None:
    """Thousands of topics made by being used, while the disk is slow, do not stand in memory as jobs."""
    disk, topics = _Disk(), TopicTable(broker="b", cluster="c", auto_create=True, default_queues=4)
    state = BrokerState(disk, str(tmp_path), {"topics": topics})
    await state.load()
    for failing in (0, 1):
        disk.replaced, disk.failing = 0, failing
        free, jobs = threading.Event(), set()
        busy = disk.run(free.wait, 10)
        for number in range(50):
            topics.put(Topic(f"t{failing}-{number}", 4, 4))
            state.begin("topics")
            jobs.add(state._saved["topics"].running)
        free.set()
        await busy
        assert len(jobs) == 1
        await asyncio.wait(jobs)
        await state.save("topics")
        assert disk.replaced == 2  # both generations, or one that failed and one
        assert Snapshot(disk, f"{tmp_path}/topics").load() == topics.to_dict()
    await disk.close()


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_acknowledged_topics_and_settings_outlive_their_broker(seed: int, power: bool) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config(host="127.0.0.1"))
        made: set[str] = set()
        forbidden: set[tuple[str, str]] = set()

        async def administrator(number: int) -> None:
            peer = SimPeer(sim, broker.address, "127.0.0.1")
            for count in range(1000):
                name = f"t-{number}-{count}"
                header = CreateTopicRequestHeader(name, "TBW102", 3, 3, 6, "SINGLE_TAG", order=False)
                assert (await peer.call(17, header, timeout=2.0)).code == 0
                made.add(name)
                if count % 5 == 0:
                    kept_off = UpdateGroupForbiddenRequestHeader("g", name, readable=False)
                    assert (await peer.call(353, kept_off, timeout=2.0)).code == 0
                    forbidden.add(("g", name))

        tasks = [asyncio.create_task(administrator(number)) for number in range(5)]
        await asyncio.sleep(0.05 + sim.loop.random.random() * 0.1)
        kill(host, disk, power=power)
        assert made and forbidden and not any(each.done() for each in tasks)
        for each in tasks:
            each.cancel()
        host, broker = await started(sim, env, config(host="127.0.0.1"))
        found = {topic.name for topic in broker.topics if topic.write_queues == 3}
        assert made <= found and forbidden <= broker.configs.forbidden
        await host.run(broker.close())

    simulate(main, seed)
