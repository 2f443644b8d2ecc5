"""What consumers cost: many queues, many groups, orderly delivery, a fresh start, ten thousand parked pulls.

python -m bench.run orderly orderly-single queues fan-out first parked
"""

from __future__ import annotations

import resource
import time
from statistics import median
from typing import Any

from bench import wire
from bench.processes import BenchError
from bench.scenarios import TOPIC, client, drain, standalone

#: Connections of ``parked`` need a file each on both sides, and a few more.
SPARE_FILES = 500


def queues(
    count: int = 2_048_000,
    numbers: tuple[int, ...] = (1, 10, 100, 1000),
    *,
    rounds: int = 3,
    size: int = 128,
    data: str | None = None,
) -> dict[str, Any]:
    """CPU µs per message (broker + consumer) of a drain whose pulls are full, by number of queues. With 1,000 of them
    each has four full pulls and the one that finds nothing more. All of them in turn, then again; the medians."""
    runs: list[dict[str, float]] = []
    for _ in range(rounds):
        costs = {}
        for number in numbers:
            run = drain(count, size=size, queues=number, assigned_first=True, data=data)
            costs[str(number)] = round(sum(run["cpu_us"].values()), 2)
        runs.append(costs)
    middle = {str(number): median(costs[str(number)] for costs in runs) for number in numbers}
    return {"cpu_us_by_queues": middle, "runs": runs, "worst": round(max(middle.values()) / middle["1"], 2)}


def fan_out(
    count: int = 512_000, groups: int = 10, *, rounds: int = 3, size: int = 1024, data: str | None = None
) -> dict[str, Any]:
    """CPU µs per delivery (broker + consumer) of a drain by one group and by many that each get everything; both in
    turn, then again; the medians."""
    runs = [
        {str(number): drain(count, size=size, groups=number, data=data) for number in (1, groups)}
        for _ in range(rounds)
    ]
    middle = {
        number: round(median(sum(run[number]["cpu_us"].values()) for run in runs), 2) for number in ("1", str(groups))
    }
    return {"cpu_us_by_groups": middle, "runs": runs, "worst": round(middle[str(groups)] / middle["1"], 2)}


def first(repeat: int = 20, *, data: str | None = None) -> dict[str, Any]:
    """Milliseconds from ``start()`` of a consumer in a group nobody knows to its first waiting message."""
    with standalone("async", data) as server, client("producer", server) as sends, client("fresh", server) as takes:
        sends.answer(), takes.answer()
        sends.ask(do="send", count=32, in_flight=4, batch=1, size=1024)
        times = sorted(takes.ask(do="first", count=repeat)["times"])
    return {"first_ms": times[len(times) // 2], "worst_ms": times[-1], "starts": repeat}


def parked(
    connections: int = 10_000, *, wakes: int = 1_000, idle: float = 15.0, rounds: int = 3, data: str | None = None
) -> dict[str, Any]:
    """Connections with one parked pull each (15 s suspend), every one on a queue of its own: what the broker's memory
    grows by, what waiting costs, and how long one message takes from the send to the pull's answer; each the middle one
    of some rounds. Waiting is measured over whole holds and before any message is sent: a thousand first messages leave
    the store a thousand queue files to write in the background, which was 2 % of a core in the 15 s after them."""
    allow_files(connections + SPARE_FILES)
    topics = -(-connections // 1000)
    with standalone("async", data) as server, client("parked", server, "--broker", str(server.broker)) as pulls:
        pulls.answer()
        for topic in range(topics):
            wire.create_topic(server.nameserver, server.broker, f"{TOPIC}-{topic}", 1000)
        before = server.child.rss_mib()
        pulls.ask(do="park", connections=connections)
        after = server.child.rss_mib()
        busy, times = [], []
        for _ in range(rounds):
            cpu, began = server.child.cpu(), time.monotonic()
            time.sleep(idle)
            busy.append((server.child.cpu() - cpu) / (time.monotonic() - began))
        for _ in range(rounds):
            times.append(pulls.ask(do="wake", count=wakes))
            if times[-1]["woken"] != wakes:
                raise BenchError(f"{wakes} pulls were to be woken, {times[-1]['woken']} were")
    return {
        "connections": connections,
        "growth_mib": round(after - before, 1),
        "idle_cores": round(median(busy), 4),
        "wake_ms": {name: median(each[name] for each in times) for name in ("p50", "p99", "p99.9")},
        "rounds": [{"idle_cores": round(cores, 4), "wake_ms": each} for cores, each in zip(busy, times, strict=True)],
    }


def allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise BenchError(f"{wanted} open files are needed and {hard} allowed: raise the limit (ulimit -Hn)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
