"""A day of traffic in minutes: orders come as people buy, by a clock of broker and producer that runs a day meanwhile,
and ``aiorocket lake run`` archives, decodes, deduplicates, counts and compacts, while driver, broker and the whole
machine are ended and come back. At the end every offset of the day is accounted for.

    python -m tests.spark.day --seconds 600 --restarts 10 --format delta

prints a line for each restart and ends with one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aiorocket.client.sending.producer import Producer
from aiorocket.errors import RocketError, UsageError
from aiorocket.model import OutgoingMessage
from aiorocket.runtime import run
from aiorocket.runtime.env import Env, real_env
from aiorocket.spark.pytest_plugin import TEST_CONF
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.manifest import Archive
from aiorocket.spark.steps.tables.table import Table
from tests.spark.producing import create_topic
from tests.spark.servers import Standalone, own_temporary
from tests.spark.writing import stored

_TOPIC, _QUEUES = "orders", 4
#: Who is ended, and how: a driver that is told to has to end well.
KINDS = ("driver killed", "driver stopped", "broker killed", "broker stopped", "machine killed")
_TICK = 0.05
_PIPELINE = """
topic = "orders"
path = "{path}"
format = "{format}"
pause = 0.5
[options]
pullTimeout = "5s"
[spark]
{spark}
[compact]
pause = 20
keep = 0
[decode]
using = "json"
schema = "id BIGINT NOT NULL, amount DOUBLE"
[dedup]
from = "decode"
by = "key"
[windows]
from = "dedup"
every = "1 hour"
time = "storeTimestamp"
by = ["topic"]
"""


class Day:
    """A clock by which a day, from midnight, takes ``seconds``."""

    def __init__(self, seconds: float) -> None:
        now = datetime.now(UTC)
        self._midnight = datetime(now.year, now.month, now.day, tzinfo=UTC).timestamp() - 86_400
        self._speed = 86_400 / seconds
        self._offset = self._midnight - time.time() * self._speed

    def wall_ms(self) -> int:
        return int((time.time() * self._speed + self._offset) * 1000)

    @property
    def hour(self) -> float:
        return (self.wall_ms() / 1000 - self._midnight) / 3600

    def prelude(self) -> str:
        """Gives a process this clock."""
        now = f"int((time.time() * {self._speed} + {self._offset}) * 1000)"
        return f"import time; from aiorocket.runtime.clock import WallClock; WallClock.wall_ms = lambda self: {now}; "


class Traffic:
    """Orders until the day is over: few at night, most at noon and in the evening, each sent until it is acknowledged.
    One of a hundred is no JSON, one of fifty comes twice."""

    def __init__(self, nameserver: str, day: Day, rate: float, seed: int) -> None:
        self._nameserver, self._day, self._rate = nameserver, day, rate
        self._chance = random.Random(seed)
        self.acknowledged: list[tuple[int, int, str]] = []
        self.orders = self.failures = 0
        self._thread = ThreadPoolExecutor(1, "traffic")
        self._sent: Future[None] | None = None

    def __enter__(self) -> Traffic:
        self._sent = self._thread.submit(lambda: run(self._all()))
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def end(self) -> None:
        """Return when the day is over and the last order is there."""
        assert self._sent is not None
        self._sent.result()

    async def _all(self) -> None:
        real = real_env()
        async with Producer("shop", nameservers=self._nameserver, env=Env(self._day, real.entropy, real.disk)) as sends:
            due, seen = 0.0, time.monotonic()
            async with asyncio.TaskGroup() as group:
                while self._day.hour < 24:
                    now = time.monotonic()  # a tick may take long where much else goes on
                    due += self._rate * busy(self._day.hour) * (now - seen)
                    seen = now
                    while due >= 1:
                        due -= 1
                        for _ in range(2 if self._chance.random() < 0.02 else 1):
                            group.create_task(self._send(sends, self.orders))
                        self.orders += 1
                    await asyncio.sleep(_TICK)

    async def _send(self, sends: Producer, number: int) -> None:
        key = f"order-{number}"
        body = json.dumps({"id": number, "amount": number / 100}) if number % 100 != 99 else f"{{{number}"
        while True:
            try:
                receipt = await sends.send(OutgoingMessage(topic=_TOPIC, body=body.encode(), keys=[key]))
            except UsageError:
                raise
            except RocketError:
                self.failures += 1
                await asyncio.sleep(0.3)
                continue
            self.acknowledged.append((receipt.queue.queue_id, receipt.offset, key))
            return


def busy(hour: float) -> float:
    """How much of the mean rate an hour has."""
    return 0.2 + 2.2 * math.exp(-(((hour - 12) / 2.5) ** 2)) + 2.4 * math.exp(-(((hour - 20) / 2) ** 2))


class Driver:
    """``aiorocket lake run`` as a service: a process with its JVM, started again where it ended."""

    def __init__(self, file: Path, nameserver: str, log: Path, env: Mapping[str, str]) -> None:
        start = "from aiorocket.cli.main import main; main()"
        self._command = [sys.executable, "-c", start, "lake", "run", str(file), "--nameserver", nameserver]
        self._log = log
        self._env = {**os.environ, **env}
        self._process: subprocess.Popen[bytes] | None = None
        self._from = 0
        self._page: str | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._from, self._page = log.tell(), None
            self._process = subprocess.Popen(
                [*self._command, "--metrics-port", "0", "--html", str(self._log.with_suffix(".html"))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env=self._env,
            )  # fmt: skip

    def end(self, how: signal.Signals, *, all_of_it: bool = False) -> int:
        """The exit code. ``all_of_it``: JVM and workers, too; else they end by themselves."""
        process, self._process = self._process, None
        assert process is not None
        if all_of_it:
            os.killpg(process.pid, how)
        else:
            process.send_signal(how)
        return process.wait(300)

    def whole_rounds(self, count: int, seconds: float = 600) -> None:
        """Return when so many have been done from now on."""
        until, first = time.monotonic() + seconds, self._rounds()
        while (now := self._rounds()) is None or now - (first or 0) < count:
            assert time.monotonic() < until and self._process is not None and self._process.poll() is None, self.said()
            first = now if first is None else first
            time.sleep(0.2)

    def said(self) -> str:
        return self._log.read_bytes()[self._from :].decode(errors="replace")

    def _rounds(self) -> float | None:
        """Since it began; None as long as it does not say."""
        if self._page is None:
            found = re.search(r"metrics on (\S+)\n", self.said())
            if found is None:
                return None
            self._page = found[1]
        with urlopen(self._page, timeout=60) as answer:
            found = re.search(r"^aiorocket_lake_rounds_total (\S+)$", answer.read().decode(), re.MULTILINE)
        assert found is not None
        return float(found[1])


@contextmanager
def _running(driver: Driver, broker: Standalone) -> Iterator[Driver]:
    try:
        broker.start()
        yield driver
    finally:
        if driver._process is not None:
            driver.end(signal.SIGKILL, all_of_it=True)
        broker.end(signal.SIGKILL)


def live_through(
    place: Path, seconds: float, restarts: Sequence[tuple[float, str]], *, format: str = "parquet", rate: float = 80.0,
    seed: int = 0, tell: Callable[[str], object] = print,
) -> dict[str, Any]:  # fmt: skip
    """The day, with ``restarts`` (hour, which of KINDS), and what was proved of it."""
    day, chance = Day(seconds), random.Random(seed)
    broker = Standalone(place / "broker", day.prelude())
    file = place / "pipeline.toml"
    spark = "\n".join(f'"{name}" = "{value}"' for name, value in TEST_CONF.items())
    file.write_text(_PIPELINE.format(path=place / "lake", format=format, spark=spark))
    with own_temporary() as env, _running(Driver(file, broker.nameserver, place / "driver.log", env), broker) as driver:
        create_topic(broker.nameserver, _TOPIC, _QUEUES)
        driver.start()
        with Traffic(broker.nameserver, day, rate, seed) as traffic:
            for hour, kind in sorted(restarts):
                time.sleep(max(0.0, (hour - day.hour) * seconds / 24))
                driver.whole_rounds(1)  # it works
                time.sleep(chance.uniform(0, 2))
                who, how = kind.split()
                sign = signal.SIGKILL if how == "killed" else signal.SIGTERM
                if who != "broker":
                    code = driver.end(sign, all_of_it=who == "machine")
                    assert code == (0 if how == "stopped" else -signal.SIGKILL), driver.said()
                if who != "driver":
                    broker.end(sign)
                    broker.start()
                if who != "broker":
                    driver.start()
                tell(f"{day.hour:04.1f} h: {kind}; {len(traffic.acknowledged)} messages")
            traffic.end()
        driver.whole_rounds(2)  # the first may have begun before the last message
        assert driver.end(signal.SIGTERM) == 0, driver.said()
        assert "all that dedup kept of" in (place / "driver.html").read_text()
        return {"format": format, "restarts": Counter(kind for _, kind in restarts), **_proved(broker, place, traffic)}


def _proved(broker: Standalone, place: Path, traffic: Traffic) -> dict[str, Any]:
    """Each message that the broker has is archived, and decoded or quarantined, once; each key that was decoded is
    kept and counted once."""
    there = {(view.queue_id, view.queue_offset): view for view in stored(broker.nameserver, _TOPIC)}
    lost = [each for each in traffic.acknowledged if (each[0], each[1]) not in there]
    assert not lost, f"the broker lost {len(lost)} acknowledged messages"
    assert all(there[queue, offset].properties["KEYS"] == key for queue, offset, key in traffic.acknowledged)
    archive = Archive.open(str(place / "lake" / "archive"))
    snapshot = archive.snapshot()
    assert not snapshot.missing() and snapshot.rows == len(there)
    rows = _read(archive.folder, (each.path for each in snapshot.files), ["queueId", "queueOffset", "keys"])
    places = list(zip(rows["queueId"].to_pylist(), rows["queueOffset"].to_pylist(), strict=True))
    assert len(places) == len(set(places)) and set(places) == set(there), "the archive is not what the broker has"
    hours = {part.partition("hour=")[2][:2] for part in (each.path for each in snapshot.files)}
    decode, dedup, windows = (_table(place, name) for name in ("decode", "dedup", "windows"))
    both: Counter[tuple[int, int]] = Counter()
    for part in ("decoded", "quarantine"):
        found = _rows(decode, part, ["queueId", "queueOffset"])
        both.update(zip(found["queueId"].to_pylist(), found["queueOffset"].to_pylist(), strict=True))
    assert set(both.values()) == {1} and set(both) == set(there), "decoded and quarantined are not what was archived"
    broken = sum(not view.body.endswith(b"}") for view in there.values())
    assert decode.snapshot().rows("quarantine") == broken
    keys = Counter(_rows(dedup, "rows", ["keys"])["keys"].to_pylist())
    assert set(keys.values()) == {1}
    assert set(keys) == {f"order-{number}" for number in range(traffic.orders) if number % 100 != 99}
    counted = pc.sum(_rows(windows, "windows", ["rows"])["rows"]).as_py()
    assert counted == len(keys), f"{counted} in windows of {len(keys)}"
    return {
        "orders": traffic.orders, "messages": len(there), "failed_sends": traffic.failures, "quarantined": broken,
        "hours": len(hours), "files": len(snapshot.files), "lost": 0, "twice": 0,
    }  # fmt: skip


def _table(place: Path, name: str) -> Table:
    table = Table.there(str(place / "lake" / name))
    assert table is not None and not table.snapshot().missing
    return table


def _rows(table: Table, part: str, columns: list[str]) -> Any:
    return _read(table.folder, (each.path for each in table.snapshot().files if each.part == part), columns)


def _read(folder: Folder, paths: Iterable[str], columns: list[str]) -> Any:
    return pa.concat_tables(pq.ParquetFile(folder.full(path)).read(columns=columns) for path in paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="of the day")
    parser.add_argument("--restarts", type=int, default=5, help="at random hours, of each kind in turn")
    parser.add_argument("--format", default="parquet", choices=["parquet", "delta"])
    parser.add_argument("--rate", type=float, default=80.0, help="orders a second, in the mean")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    chance = random.Random(given.seed)
    restarts = [(chance.uniform(2, 23.5), KINDS[number % len(KINDS)]) for number in range(given.restarts)]
    with tempfile.TemporaryDirectory(prefix="day-", ignore_cleanup_errors=True) as place:
        found = live_through(
            Path(place), given.seconds, restarts, format=given.format, rate=given.rate, seed=given.seed,
            tell=lambda line: print(line, flush=True),
        )  # fmt: skip
    print(json.dumps({"seed": given.seed, "seconds": given.seconds, **found}), flush=True)


if __name__ == "__main__":
    main()
