"""Hours of mixed load on one broker with retention at work: is memory flat, is latency, is anything lost?

    python -m tests.harness.soak --minutes 360 --data DIR

With ``--data`` it can be ended (Ctrl-C) and goes on with the same store another time, until all minutes are on record.
The broker is a process of its own, the load that of ``crash.py``, with nobody killed. Every round has a topic of its
own that is deleted after it, and ends when everything has arrived; its history is judged by ``crash.check``. One line a
round: messages, the broker's memory and open files, and how long a durable single send took. The command ends with 1
when a promise was broken, memory grew by more than ``GROWTH``, or sends became more than ``SLOWER`` times as slow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from aiorocket import Admin, Client, ClientConfig, NameServerConfig, Producer, RemotingConfig, RocketError
from aiorocket.nameserver import NameServer
from aiorocket.runtime import memory_env
from tests.harness.crash import Load, broker_process
from tests.harness.crash_history import History, check
from tests.harness.hostile_memory import rss

__all__ = ("Round", "run", "slower")

#: MiB that the broker may have more than after its first round.
GROWTH = 32
#: How many times as long a send may take in the last third of the rounds: other work on the machine makes it twice.
SLOWER = 4
#: What retention leaves of the log, more than a round stores: a group that is behind on a busy machine gets nothing of
#: what is gone. (With 8 MiB one round in 23 lost what lay in the retry topic of its pops.)
_LOG_BYTES = 96 << 20
#: Seconds for which nothing arrives until what is missing counts as lost.
_PATIENCE = 60
#: Seconds between two sends that are timed.
_PROBE = 0.05


class Round(NamedTuple):
    minutes: float
    messages: int
    rss: float
    files: int
    #: Of the timed sends, ms.
    median: float
    p99: float
    longest: float
    broken: list[str]


def slower(rounds: list[Round]) -> float:
    """How many times as long as in the first third of the rounds a send took in the last one (medians of medians)."""
    third = len(rounds) // 3
    if not third:
        return 1.0
    return median(one.median for one in rounds[-third:]) / median(one.median for one in rounds[:third])


async def run(minutes: float, data: Path, *, of_a_round: float = 5.0, quiet: bool = False) -> list[Round]:
    """Rounds of ``of_a_round`` minutes until they are ``minutes``, those included that are on record in ``data``."""
    env = memory_env()
    names = NameServer(env, NameServerConfig(port=0))
    await names.start()
    record = data / "rounds.jsonl"
    rounds = [Round(*json.loads(line)) for line in record.read_text().splitlines()] if record.exists() else []
    try:
        async with broker_process(0, names.address, data / "store", "sync", log_bytes=_LOG_BYTES) as process:
            while (left := minutes - sum(one.minutes for one in rounds)) > 1e-3:
                one = await _round(len(rounds), min(of_a_round, left), names.address, data, process.process.pid)
                rounds.append(one)
                with record.open("a") as file:
                    file.write(json.dumps(one) + "\n")
                if not quiet:
                    print(
                        f"{len(rounds)}: {one.messages} messages, {one.rss:.0f} MiB, {one.files} files, sends"
                        f" {one.median:.1f} ms, p99 {one.p99:.1f}, longest {one.longest:.1f};"
                        f" {len(one.broken)} broken promises",
                        flush=True,
                    )
    finally:
        await names.close()
        await env.disk.close()
    return rounds


async def _round(number: int, minutes: float, nameserver: str, data: Path, pid: int) -> Round:
    topic = f"soak-{number}-{time.time_ns():x}"  # a round that was ended begins anew
    history = History(data / f"history-{number}.jsonl")
    load = Load(history, topic, nameserver, random.Random(number))
    took: list[float] = []
    async with Client(nameservers=nameserver) as client, client.producer("probes") as producer:
        await producer.send(topic, b"first")
        history.add("ok", "first", None, None)
        probing = asyncio.ensure_future(_probe(producer, took))
        try:
            async with load.running():
                await asyncio.sleep(minutes * 60)
                probing.cancel()
                await load.stop_sending()
                await history.arrived(_PATIENCE)
        finally:
            probing.cancel()
    history.close()
    broken = check(history.rows)
    async with Admin(config=_patient(nameserver)) as admin:
        if broken:
            dead = [message.body.decode() async for message in admin.dlq("popping").messages()]
            broken.append(f"{len(dead)} messages are dead letters of popping: {dead[:20]}")
        else:
            (data / f"history-{number}.jsonl").unlink()
        await admin.topics.delete(topic)
    took.sort()
    files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    place = len(took) - 1
    return Round(
        minutes, sum(row[0] == "ok" for row in history.rows), rss(pid), files,
        took[place // 2], took[place * 99 // 100], took[-1], broken,
    )  # fmt: skip


def _patient(nameserver: str) -> ClientConfig:
    """For what ends a run when it fails: others may have the machine for a while."""
    return ClientConfig(nameservers=(nameserver,), remoting=RemotingConfig(request_timeout=60))


async def _probe(producer: Producer, took: list[float]) -> None:
    while True:
        began = time.perf_counter()
        with suppress(RocketError):  # how long that took, counts too
            await producer.send("probes", b"x" * 256)
        took.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(_PROBE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Hours of mixed load: memory, latency, and whether all arrives.")
    parser.add_argument("--minutes", type=float, default=360)
    parser.add_argument("--round", type=float, default=5.0, help="minutes until everything has to have arrived")
    parser.add_argument("--data", type=Path, help="the store and what is on record; kept, and gone on with")
    options = parser.parse_args()
    for ends in (signal.SIGINT, signal.SIGTERM):  # also where a shell lets what is in the background ignore Ctrl-C
        signal.signal(ends, signal.default_int_handler)
    data = options.data or Path(tempfile.mkdtemp(prefix="soak-"))
    data.mkdir(parents=True, exist_ok=True)
    rounds = asyncio.run(run(options.minutes, data, of_a_round=options.round))
    broken = [line for one in rounds for line in one.broken]
    print("\n".join(broken[:50]))
    if broken:
        print(f"the store and the histories of rounds that broke something are in {data}")
    elif options.data is None:
        shutil.rmtree(data)
    grown = max(one.rss for one in rounds) - rounds[0].rss
    print(f"{len(broken)} broken promises; {grown:.0f} MiB more than after the first round, {GROWTH} are allowed")
    times = slower(rounds)
    print(f"sends of the last third of the rounds took {times:.1f} times as long as of the first, {SLOWER} are allowed")
    sys.exit(1 if broken or grown > GROWTH or times > SLOWER else 0)


if __name__ == "__main__":
    main()
