"""``python -m bench.timers``: memory of a million timer messages, and how late they come at 1,000 due a second.

The broker is in this process, with a durable store; what is late is the stored time of the delivered copy minus its due
time, so the client's share is not in it. Beside it a process that does nothing but sleep says how late the machine is
by itself, and a timer of the broker's own loop how long that was busy: on a loaded machine the first is most of it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta

from rich.console import Console

from aiorocket import embed
from aiorocket.broker.core.timers import TimerSchedule
from aiorocket.testing.stored import stored_messages
from aiorocket_protocol import PROPERTY_TIMER_OUT_MS
from bench.report import Floor, table_of

#: Forty days.
_SPREAD_MS = 40 * 86_400_000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.timers", description=__doc__)
    parser.add_argument("--pending", type=int, default=1_000_000, help="messages that wait (default: a million)")
    parser.add_argument("--seconds", type=int, default=20, help="how long 1,000 a second are due (default: 20)")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a floor is missed")
    options = parser.parse_args(arguments)
    memory = _memory(options.pending)
    print(f"{options.pending:,} pending: {memory:.0f} MB")
    late, loop, machine = (sorted(each) for each in asyncio.run(_lateness(options.seconds)))
    print(f"{len(late):,} due at 1,000 a second: late by {_percentiles(late)}")
    print(f"a timer of the same loop: {_percentiles(loop)}; a process that sleeps: {_percentiles(machine)}")
    floors = [
        Floor(f"{options.pending:,} pending", memory, 200.0, False, "MB"),
        Floor("late, p99", late[len(late) * 99 // 100], 20.0, False, "ms"),
        Floor("the earliest", late[0], 0.0, True, "ms"),
    ]
    Console().print(table_of(floors))
    return int(late[0] < 0 or (options.check and not all(floor.met for floor in floors)))


def _percentiles(late: list[float]) -> str:
    return f"p50 {late[len(late) // 2]:.1f} ms, p99 {late[len(late) * 99 // 100]:.1f} ms, at most {late[-1]:.1f} ms"


def _memory(count: int) -> float:
    """MB that so many entries with random due times take, and what reading them in a start takes beside them."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    schedule, now = TimerSchedule(), time.time_ns() // 1_000_000
    for begin in range(0, count, 4096):
        size = min(4096, count - begin)
        entries = [
            ((begin + each) * 1100, 1100, (now + random.randrange(1, _SPREAD_MS)) << 2 | 2) for each in range(size)
        ]
        schedule.add(entries)
    assert len(schedule) == count
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000


async def _ticks(late: list[float]) -> None:
    """How late a timer of this loop is, again and again."""
    while True:
        due = time.perf_counter() + 0.005
        await asyncio.sleep(0.005)
        late.append((time.perf_counter() - due) * 1000)


_SLEEPER = """
import sys, time
end = time.perf_counter() + float(sys.argv[1])
while (due := time.perf_counter() + 0.005) < end:
    time.sleep(0.005)
    print((time.perf_counter() - due) * 1000)
"""


async def _lateness(seconds: int) -> tuple[list[float], list[float], list[float]]:
    """Of the messages, of a timer in the same loop and of another process, while the messages are due."""
    loop: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        async with embed(data=directory) as mq, mq.producer("bench") as producer:
            await producer.send("timed", b"first")
            # Far enough away that all are sent before the first is due.
            start = datetime.now(UTC) + timedelta(seconds=5 + seconds * 2)
            body = bytes(1024)
            sent = 0
            while sent < seconds * 1000:
                part = range(sent, min(sent + 256, seconds * 1000))
                due = (start + timedelta(milliseconds=each) for each in part)
                await asyncio.gather(*(producer.send("timed", body, at=at) for at in due))
                sent = part.stop
            if datetime.now(UTC) >= start:
                raise RuntimeError("sending took longer than the head start: the machine is too slow for this figure")
            await asyncio.sleep((start - datetime.now(UTC)).total_seconds())
            sleeper = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _SLEEPER, str(seconds), stdout=asyncio.subprocess.PIPE
            )
            ticks = asyncio.ensure_future(_ticks(loop))
            machine, _ = await sleeper.communicate()
            ticks.cancel()
            await asyncio.sleep(2)
            late: list[float] = [
                record.store_timestamp - int(record.properties[PROPERTY_TIMER_OUT_MS])
                for record in stored_messages(mq.broker.store, "timed")
                if PROPERTY_TIMER_OUT_MS in record.properties
            ]
            return late, loop, [float(line) for line in machine.split()]


if __name__ == "__main__":
    sys.exit(main())
