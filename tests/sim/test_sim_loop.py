"""The simulated loop itself: virtual time, repeatability, deadlocks, hosts that die, asyncio and anyio on top."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from typing import cast

import anyio
import pytest

from aiorocket.testing import SimDeadlock, SimLoop, Simulation, simulate


def test_hours_pass_in_no_time() -> None:
    async def main(sim: Simulation) -> float:
        await asyncio.sleep(7200)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.sleep(1e6)
        return sim.loop.time()

    start = time.perf_counter()
    assert simulate(main) == 10_800
    assert time.perf_counter() - start < 60


def test_a_deadlock_names_the_tasks_that_wait() -> None:
    async def main(sim: Simulation) -> None:
        async def lost_wakeup() -> None:
            await asyncio.Event().wait()

        task = asyncio.create_task(lost_wakeup(), name="waits-for-ever")
        await task

    with pytest.raises(SimDeadlock, match="waits-for-ever waits at") as caught:
        simulate(main, seed=42)
    assert "seed 42" in caught.value.__notes__[0]


def test_leftover_tasks_and_uncaught_errors_fail_the_simulation() -> None:
    async def leaves_a_task(sim: Simulation) -> None:
        asyncio.create_task(asyncio.sleep(10), name="left-over")  # noqa: RUF006 - the leak is the point

    with pytest.raises(AssertionError, match="left-over"):
        simulate(leaves_a_task)

    async def breaks(sim: Simulation) -> None:
        sim.loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="uncaught") as caught:
        simulate(breaks)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def _busy(sim: Simulation) -> int:
    """Streams, timers, executor jobs, locks: everything that draws from the seed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data[::-1])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 80)

    async def call(n: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", 80)
        for _ in range(5):
            writer.write(bytes([n]) * 50)
            assert len(await reader.readexactly(50)) == 50
            await asyncio.sleep(sim.loop.random.random())
        await sim.loop.run_in_executor(None, len, "x")
        writer.close()

    await asyncio.gather(*(call(n) for n in range(20)))
    server.close()
    await asyncio.sleep(1)
    return sim.loop.digest


def test_one_seed_is_one_run() -> None:
    assert simulate(_busy, 1) == simulate(_busy, 1)
    assert len({simulate(_busy, seed) for seed in range(5)}) == 5


def test_one_seed_is_one_run_in_another_process_too() -> None:
    script = "from tests.sim.test_sim_loop import _busy, simulate\nprint(simulate(_busy, 3))"
    seen = set()
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for hash_seed in ("0", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
        seen.add(subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=140
        ).stdout)  # fmt: skip
    assert seen == {f"{simulate(_busy, 3)}\n"}


def test_anyio_runs_on_it() -> None:
    async def main(sim: Simulation) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(5))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 80)
        async with await anyio.connect_tcp("127.0.0.1", 80) as stream:
            await stream.send(b"hello")
            assert await stream.receive() == b"hello"
        server.close()
        with anyio.move_on_after(100) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 50)
                group.start_soon(anyio.sleep_forever)
        assert scope.cancelled_caught and sim.loop.time() >= 100
        await asyncio.sleep(1)

    simulate(main)


def test_what_a_killed_host_held_is_dropped_before_the_end() -> None:
    """Else the collector closes it after the end of the loop, where a lock cannot wake its waiter."""

    async def main(simulation: Simulation) -> None:
        host, lock = simulation.host("10.0.0.1"), asyncio.Lock()

        async def work() -> None:
            async with lock:
                await asyncio.sleep(3600)

        host.start(work())
        host.start(work())
        await asyncio.sleep(1)
        host.kill()

    simulate(main)
    gc.collect()


def test_a_killed_host_runs_nothing_more() -> None:
    async def main(sim: Simulation) -> list[float]:
        ticks: list[float] = []
        cleaned: list[str] = []

        async def tick() -> None:
            try:
                while True:
                    await asyncio.sleep(1)
                    ticks.append(sim.loop.time())
            finally:
                cleaned.append("no process killed with -9 gets here")

        host = sim.host("10.0.0.1")
        host.start(tick())
        await asyncio.sleep(3.5)
        host.kill()
        await asyncio.sleep(10)
        assert cleaned == []
        return ticks

    assert simulate(main) == [1.0, 2.0, 3.0]


def test_a_stopped_host_reads_what_came_meanwhile_before_it_sees_its_timers() -> None:
    async def main(sim: Simulation) -> list[tuple[float, str]]:
        seen: list[tuple[float, str]] = []

        def note(what: str) -> None:
            seen.append((round(sim.loop.time()), what))

        class Reader(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                note(data.decode())

        async def listen() -> asyncio.Server:
            for when in (2, 5):
                sim.loop.call_at(when, note, f"timer {when}")
            return cast("asyncio.Server", await sim.loop.create_server(Reader, "10.0.0.1", 80))

        host = sim.host("10.0.0.1")
        server = await host.run(listen())
        _, writer = await asyncio.open_connection("10.0.0.1", 80)
        writer.write(b"a")
        await asyncio.sleep(1)
        host.pause()
        await asyncio.sleep(2)
        writer.write(b"b")
        await asyncio.sleep(97)
        host.resume()
        host.resume()
        await asyncio.sleep(1)
        writer.close()
        server.close()
        await asyncio.sleep(1)
        return seen

    assert simulate(main) == [(0, "a"), (100, "b"), (100, "timer 2"), (100, "timer 5")]


def test_peers_of_a_dead_host_see_a_reset_or_silence() -> None:
    async def main(sim: Simulation) -> None:
        for power_cut in (False, True):
            host = sim.host("10.0.0.1")

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read()

            await host.run(asyncio.start_server(serve, "0.0.0.0", 80))
            reader, writer = await asyncio.open_connection("10.0.0.1", 80)
            host.kill(power_cut=power_cut)
            if power_cut:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.read(), 1000)
            else:
                with pytest.raises(ConnectionResetError):
                    await reader.read()
            writer.transport.abort()
            await asyncio.sleep(1)

    simulate(main)


def test_a_partition_holds_bytes_and_healing_delivers_them() -> None:
    async def main(sim: Simulation) -> None:
        host = sim.host("10.0.0.1")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(4))
            writer.close()

        await host.run(asyncio.start_server(serve, "0.0.0.0", 80))
        reader, writer = await asyncio.open_connection("10.0.0.1", 80)
        sim.network.block("10.0.0.1", "127.0.0.1")  # one way only
        writer.write(b"ping")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.sleep(50)), 20)
        sim.network.heal()
        assert await reader.read() == b"ping" and sim.loop.time() >= 20
        writer.close()
        await asyncio.sleep(100)
        host.kill()

    simulate(main)


def test_clocks_have_a_skew_of_their_own() -> None:
    async def main(sim: Simulation) -> None:
        one, other = sim.env(), sim.env(skew_ms=-3_600_000)
        assert one.clock.wall_ms() - other.clock.wall_ms() == 3_600_000
        before = one.clock.wall_ms()
        await asyncio.sleep(2.5)
        assert one.clock.wall_ms() - before == 2500

    simulate(main)


def test_what_the_loop_does_not_simulate_is_refused() -> None:
    loop = SimLoop()
    try:
        with pytest.raises(NotImplementedError):
            loop.run_until_complete(loop.create_connection(asyncio.Protocol, "127.0.0.1", 1, ssl=True))
        with pytest.raises(NotImplementedError):
            loop.run_until_complete(loop.subprocess_exec(asyncio.SubprocessProtocol, "true"))
    finally:
        loop.close()
