"""As ``kills.py``, without a JVM: what of archive, compact, restore and the exactly-once sink is Python's, drivers and
tasks, runs in one process, a fork of one that has imported it. So a kill costs a second, and a thousand are possible.

    python -m tests.spark.driver_kills --format delta --kills 1000

Of Spark there is what these steps use: jobs whose tasks run one after the other, and for the sink a stream's two logs,
which say what is in a batch before it runs and that it is done.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import wraps
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from aiorocket.remoting.connection import Connection
from aiorocket.spark import bridge, steps
from aiorocket.spark.steps.files import claims, folder
from aiorocket.spark.steps.files.folder import Folder
from tests.spark.kills import Lake, main
from tests.spark.producing import PATIENT
from tests.spark.writing import Stream

_STEPS = ("archive", "compact", "restore", "sink")
#: Rows of a stream's batch at most. What is left of each that is killed is asked about by the broker, again and again.
_BATCH = 80
#: How long a killed process must have been dead in a store. Whoever killed it looks at the whole lake first, by
#: requests that the store answers behind those of the dead.
_SETTLE = 2.0
#: What a driver imports when it needs it; pandas is what pyarrow looks for.
_LATER = (
    "aiorocket.client.answering", "aiorocket.spark.decode", "aiorocket.spark.partition", "aiorocket.spark.sink_work",
    "deltalake", "pandas", "pyarrow.dataset", "pyiceberg.table", "uvloop",
)  # fmt: skip


class DriverKilling(Lake):
    """Kills of drivers in each step in turn, at a random moment and before a random operation on files or brokers:
    so what takes no time is hit as well."""

    kinds = ("archived", "table", "restored", "once")

    def run(self, kills: int, seed: int, until: float = float("inf")) -> dict[str, Any]:
        """So many kills, fewer when the clock comes to ``until``, and a round that nobody disturbs; what was proved."""
        chance, done, at = random.Random(seed), 0, Counter[str]()
        with ExitStack() as stack:
            original = self._process(stack, "-m", __spec__.name, "--original", self.nameserver, self.lake, self.format)
            usual = self._whole_round(original)
            while done < kills and time.monotonic() < until:
                self.send()
                step = _STEPS[done // 2 % len(_STEPS)]
                took, operations = usual[step]
                if done % 2:
                    self._start(original, step, chance.randrange(operations))
                else:
                    pid = self._start(original, step, -1)
                    while (line := self._line(original)) != step:
                        assert line in _STEPS, f"{line}: {self._log(original)}"
                    time.sleep(chance.uniform(0, 1.2 * took))
                    os.kill(pid, signal.SIGKILL)
                said = f"{step} at some moment"
                while not (line := self._line(original)).startswith("ended"):
                    assert line.startswith((*_STEPS, "round")), f"{line}: {self._log(original)}"
                    said = line if line.startswith(f"{step} before") else said
                assert line == f"ended {-signal.SIGKILL}", f"{line}: {self._log(original)}"
                done += 1
                at[said] += 1
                self._tell(f"kill {done}, {said}: {self.check()}")
            self._whole_round(original)
        return {"format": self.format, "kills": done, "at": dict(at), "rows": self.sent, **self.check(whole=True)}

    def _whole_round(self, original: subprocess.Popen[str]) -> dict[str, tuple[float, int]]:
        """That nobody disturbs; of each step the seconds it took and how many operations it had."""
        self.send()
        self._start(original, "", None)
        while not (line := self._line(original)).startswith("round"):
            assert line in _STEPS, f"{line}: {self._log(original)}"
        assert self._line(original) == "ended 0", self._log(original)
        usual: dict[str, tuple[float, int]] = json.loads(line.removeprefix("round "))
        return usual

    def _start(self, original: subprocess.Popen[str], step: str, last: int | None) -> int:
        """A driver that works until it is killed, by itself after ``last`` operations of ``step`` unless that is below
        0; one round where it is None."""
        self._say(original, json.dumps([self.sent, step, last]))
        said, _, pid = self._line(original).partition(" ")
        assert said == "pid", self._log(original)
        return int(pid)


class _Operations:
    """Counts what steps do to files and send to brokers, round after round; kills this process before number ``last``
    of ``step``."""

    def __init__(self, step: str, last: int | None) -> None:
        self._kills = (step, last)
        self.step = ""
        self.counts: Counter[str] = Counter()
        for name in ("create", "replace", "put", "read", "make", "move", "remove", "remove_tree", "_settle"):
            self._counted(Folder, name)
        self._counted(folder, "_sync")
        self._counted(Connection, "_flush")

    def _counted(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        @wraps(real)
        def counted(*given: Any, **named: Any) -> Any:
            if (self.step, self.counts[self.step]) == self._kills:
                print(self.step, "before", name, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            self.counts[self.step] += 1
            return real(*given, **named)

        setattr(owner, name, counted)


class _Session:
    """Of a SparkSession what the steps use that do their work in jobs of their own."""

    def __init__(self) -> None:
        self.sparkContext = SimpleNamespace(defaultParallelism=2)
        self.dataSource = self.read = self
        self._sources: dict[str, Any] = {}

    def register(self, source: Any) -> None:
        self._sources[source.name()] = source

    def format(self, name: str) -> _Reader:
        return _Reader(self._sources[name])


class _Reader:
    def __init__(self, source: Any) -> None:
        self._source = source
        self._options: dict[str, str] = {}

    def option(self, name: str, value: str) -> _Reader:
        self._options[name] = value
        return self

    def load(self) -> _Reader:
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        reader = self._source(self._options).reader(None)
        rows: list[tuple[Any, ...]] = []
        for partition in reader.partitions():
            for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition))):
                rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return rows


class _Round:
    """What a driver does, again and again."""

    def __init__(self, nameserver: str, lake: str, format: str, sent: int, operations: _Operations) -> None:
        self.operations = operations
        self.nameserver = nameserver
        self.lake = lake
        self.format: Any = format
        self.sent = sent
        self.spark: Any = _Session()

    def go(self) -> None:
        usual = {}
        for step in _STEPS:
            print(step, flush=True)
            self.operations.step = step
            began = time.perf_counter()
            getattr(self, step)()
            usual[step] = time.perf_counter() - began, self.operations.counts[step]
        print("round", json.dumps(usual), flush=True)

    def archive(self) -> None:
        assert steps.archive(
            self.spark, f"{self.lake}/archive", self.nameserver, "orders", mode="direct", format=self.format,
            max_rows=100,
        ).complete  # fmt: skip

    def compact(self) -> None:
        steps.compact(self.spark, f"{self.lake}/archive", keep=0)

    def restore(self) -> None:
        assert steps.restore(
            self.spark,
            f"{self.lake}/archive",
            self.nameserver,
            to_topic="again",
            keep_queues=True,
            max_rows=100,
            sendTimeout="30s",
        ).complete

    def sink(self) -> None:
        """The stream of all numbers below ``sent``, two tasks a batch."""
        stream = Stream(
            self.nameserver,
            "once",
            "query",
            ledgerTopic="ledger",
            checkImmunity="1s",
            checkRound="4s",
            sendTimeout="30s",
        )
        logs = Folder(f"{self.lake}/checkpoint")
        planned, done = [sorted(map(int, logs.names(each))) for each in ("offsets", "commits")]
        ends = [int(logs.read(f"offsets/{number}")) for number in planned]
        assert planned[: len(done)] == done and len(planned) - len(done) in (0, 1), (planned, done)
        batch = len(done)
        while batch < len(ends) or ends[-1:] != [self.sent]:
            if batch == len(ends):
                ends.append(min(self.sent, (ends[-1] if ends else 0) + _BATCH))
                logs.create(f"offsets/{batch}", str(ends[-1]).encode())
            rows = [str(number) for number in range(ends[batch - 1] if batch else 0, ends[batch])]
            stream.run(batch, rows[::2], rows[1::2])
            logs.create(f"commits/{batch}", b"")
            batch += 1


def original(nameserver: str, lake: str, format: str) -> None:
    """Forks a driver for each line, and says how it ended."""
    claims._SETTLE, claims._LOOK = _SETTLE, 0.1
    configured = bridge.client_config
    bridge.client_config = lambda connection: replace(configured(connection), remoting=PATIENT.remoting)
    for name in _LATER:
        with suppress(ImportError):  # of an extra that is not installed
            import_module(name)
    for name in _STEPS[:3]:
        getattr(steps, name)  # imports it
    for line in sys.stdin:
        sent, step, last = json.loads(line)
        if (pid := os.fork()) == 0:
            try:
                print("pid", os.getpid(), flush=True)
                driver = _Round(nameserver, lake, format, sent, _Operations(step, last))
                driver.go()
                while last is not None:
                    driver.go()
                bridge.close()
            except BaseException:  # noqa: BLE001 - it is said, and a fork ends here
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print("ended", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--original"]:
        original(*sys.argv[2:])
    else:
        main(DriverKilling, __doc__)
