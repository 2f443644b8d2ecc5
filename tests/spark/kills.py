"""Processes with a Spark of their own are killed at random moments of archive, decode, compact, restore and a stream
into the exactly-once sink; after each kill what they left is counted, without Spark.

    python -m tests.spark.kills --format delta --kills 200

prints a line for each kill and ends with one JSON object. ``--store s3`` does it in a server of its own (moto).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from aiorocket.model import Queue
from aiorocket.spark import bridge
from aiorocket.spark.steps import iceberg_table
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.manifest import Archive, partition_of
from aiorocket.spark.steps.tables.table import Table
from aiorocket.testing import broker_thread
from tests.spark.producing import create_topic, send
from tests.spark.servers import own_temporary
from tests.spark.writing import stored

if TYPE_CHECKING:
    from tests.spark.driver_kills import DriverKilling

_ROOT = Path(__file__).parents[2]
_QUEUES, _ROWS = 4, 40
#: What a process says as it begins each: a kill falls into one of them, however fast the machine is.
_STEPS = ("archive", "decode", "compact", "restore", "sink")
#: Of the broker: it asks often, and for as long as a slow machine needs.
ASKING = {"transaction_check_interval": 1.0, "transaction_check_max": 1000}

WORKER = """
import json, sys
from aiorocket.spark import spark_session, steps
from aiorocket.spark.pytest_plugin import TEST_CONF
from aiorocket.spark.steps.files import claims

nameserver, lake, format, conf = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
claims._RENEW, claims._TRUST, claims._TAKE, claims._LOOK = 0.5, 8.0, 12.0, 0.2  # in a store whoever is next waits
spark = spark_session(master="local[2]", conf={**TEST_CONF, **conf})
source = dict(nameServer=nameserver, topic="orders", startingOffsets="earliest")
sink = dict(
    nameServer=nameserver, topic="once", sinkMode="exactlyOnce", ledgerTopic="ledger", checkImmunity="2s",
    checkRound="3s", checkpointLocation=lake.replace("s3://", "s3a://") + "/checkpoint",
)

def round():
    given, modes = steps.Input(lake + "/archive"), ["direct", "spark"]
    print("archive", flush=True)
    for mode in modes[: 1 if lake.startswith("s3") else 2]:
        assert steps.archive(
            spark, lake + "/archive", nameserver, "orders", mode=mode, format=format, max_rows=100
        ).complete
    print("decode", flush=True)
    assert steps.run_decode(
        spark, given, steps.Output(lake + "/decoded", format), schema="id LONG", max_rows=100
    ).complete
    print("compact", flush=True)
    steps.compact(spark, lake + "/archive", keep=0)
    steps.compact(spark, lake + "/decoded", keep=0)
    print("restore", flush=True)
    assert steps.restore(
        spark, lake + "/archive", nameserver, to_topic="again", keep_queues=True, max_rows=100
    ).complete
    print("sink", flush=True)
    query = spark.readStream.format("rocketmq").options(**source).load().select("body").writeStream
    query = query.format("rocketmq").options(**sink).trigger(availableNow=True).start()
    assert query.awaitTermination(300)

spark.range(1).count()
print("ready", flush=True)
for line in sys.stdin:
    while True:
        round()
        print("round", flush=True)
        if line.strip() == "once":
            break
"""


class Lake:
    """One lake that processes die on. ``store`` is its address without the last part, ``environment`` and ``conf`` what
    a process needs to reach it."""

    #: What a round brings every row to.
    kinds: tuple[str, ...] = ("archived", "decoded", "table", "restored", "once")

    def __init__(
        self,
        nameserver: str,
        store: str,
        format: str,
        environment: Mapping[str, str] | None = None,
        conf: Mapping[str, str] | None = None,
        tell: Callable[[str], object] = print,
    ) -> None:
        self.nameserver = nameserver
        self.lake = f"{store}/lake"
        self.format = format
        self.sent = 0
        self._environment = dict(environment or {})
        self._conf = dict(conf or {})
        self._tell = tell
        for topic in ("orders", "again", "once"):
            create_topic(nameserver, topic, _QUEUES)

    def send(self) -> None:
        send(self.nameserver, "orders", [json.dumps({"id": self.sent + each}) for each in range(_ROWS)], _QUEUES)
        self.sent += _ROWS

    def check(self, *, whole: bool = False) -> dict[str, int]:
        """Rows of each kind, each once and none left out; with ``whole`` all that were sent."""
        found = {"archived": 0, "decoded": 0, "table": 0, "restored": 0, "once": 0}
        folder = Folder(f"{self.lake}/archive")
        if folder.exists("_archive.json"):
            archive = Archive.open(f"{self.lake}/archive")
            snapshot = archive.snapshot()
            paths = [each.path for each in snapshot.files]
            found["archived"] = self._each_once(folder, paths, snapshot.ranges())
            assert found["archived"] == snapshot.rows
            if paths:
                found["table"] = self._of_table(archive, whole=whole)
            for name in folder.names("_restore"):
                noted = json.loads(folder.read(f"_restore/{name}"))
                ids = Counter(view.properties["RESTORE_ID"] for view in stored(self.nameserver, "again"))
                for *queue, end in noted["done"]:
                    for offset in range(end):
                        assert ids["@".join(map(str, (*queue, offset)))], f"{queue} {offset} is noted and not sent"
                found["restored"] = len(ids)
        if (table := Table.there(f"{self.lake}/decoded")) is not None:
            state = table.snapshot()
            paths = [each.path for each in state.files if each.part == "decoded"]
            found["decoded"] = self._each_once(table.folder, paths, state.ranges)
            assert found["decoded"] == state.rows_in and not state.rows("quarantine")
            if paths and table.format == "iceberg":
                kept = table.iceberg("decoded")
                with closing(kept.catalog):
                    count = len(_of_iceberg(kept))
                assert count == found["decoded"] or not whole
        bodies = Counter(view.body for view in stored(self.nameserver, "once"))
        assert not [body for body, count in bodies.items() if count > 1], "rows came twice to the exactly-once sink"
        found["once"] = len(bodies)
        assert all(count <= self.sent for count in found.values())
        if whole:
            assert all(found[kind] == self.sent for kind in self.kinds), found
        return found

    def _each_once(self, folder: Folder, paths: Iterable[str], ranges: Mapping[Queue, tuple[int, int]]) -> int:
        seen: Counter[tuple[int, int]] = Counter()
        for path in paths:
            with folder.filesystem.open_input_file(folder.full(path)) as stream:
                rows = pq.ParquetFile(stream).read(columns=["queueId", "queueOffset"])
            seen.update(zip(rows["queueId"].to_pylist(), rows["queueOffset"].to_pylist(), strict=True))
            assert "data/" not in path or partition_of(path)[0] == "orders"
        assert set(seen.values()) <= {1}, f"{folder.location} has rows twice"
        due = {(queue.queue_id, offset) for queue, (begin, end) in ranges.items() for offset in range(begin, end)}
        assert set(seen) == due and all(begin == 0 for begin, _ in ranges.values()), f"{folder.location} lacks rows"
        return len(seen)

    def _of_table(self, archive: Archive, *, whole: bool) -> int:
        """The rows of the Delta or Iceberg table, each once; it may be a commit behind."""
        rows: Any
        if archive.format == "delta":
            import deltalake

            address = archive.folder.uri("data").replace("s3a://", "s3://")
            if not deltalake.DeltaTable.is_deltatable(address):
                return 0
            rows = deltalake.DeltaTable(address).to_pyarrow_table(columns=["queueId", "queueOffset"])
        elif archive.format == "iceberg":
            table = iceberg_table(archive)
            with closing(table.catalog):
                rows = _of_iceberg(table)
        else:
            return self.sent if whole else 0
        places = list(zip(rows["queueId"].to_pylist(), rows["queueOffset"].to_pylist(), strict=True))
        assert len(places) == len(set(places)), "the table has rows twice"
        return len(places)

    def _process(self, stack: ExitStack, *command: str) -> subprocess.Popen[str]:
        """A process of Python that ends with ``stack``."""
        log = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 - the stack closes it
        paths = os.pathsep.join([str(_ROOT), str(_ROOT / "protocol"), str(_ROOT / "aiorocket/spark/autoload")])
        process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            env={**os.environ, **stack.enter_context(own_temporary()), **self._environment, "PYTHONPATH": paths},
        )  # fmt: skip
        process.log = log  # type: ignore[attr-defined]
        stack.callback(_end, process)
        return process

    def _line(self, process: subprocess.Popen[str]) -> str:
        """The next one; nothing when it has ended."""
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def _say(self, process: subprocess.Popen[str], word: str) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{word}\n")
        process.stdin.flush()

    def _log(self, process: subprocess.Popen[str]) -> str:
        log: Any = process.log  # type: ignore[attr-defined]
        log.seek(0)
        return str(log.read())[-6000:]


class Killing(Lake):
    """Kills of processes that have a Spark of their own."""

    def run(self, kills: int, seed: int, until: float = float("inf"), took: float | None = None) -> dict[str, Any]:
        """So many kills, fewer when the clock comes to ``until``, and a round that nobody disturbs; what was proved.
        ``took`` is how many seconds a round takes, tried when it is not known."""
        chance, done = random.Random(seed), 0
        with ExitStack() as stack:
            waiting = self._begin(stack)
            self._ready(waiting)
            if took is None:
                worker, waiting = waiting, self._begin(stack)
                took = self._whole(worker)
                self._ready(waiting)
            for number in range(kills):
                if time.monotonic() > until:
                    break
                worker, waiting = waiting, self._begin(stack)  # the next comes up meanwhile
                self.send()
                self._say(worker, "on")
                step = chance.choice(_STEPS)
                while (line := self._line(worker)) != step:
                    assert line in _STEPS, self._log(worker)
                moment = chance.uniform(0, 2 * took / len(_STEPS))
                time.sleep(moment)
                os.killpg(worker.pid, signal.SIGKILL)
                assert worker.wait(30) == -signal.SIGKILL, f"it ended by itself: {self._log(worker)}"
                rounds = (worker.stdout.read() if worker.stdout else "").count("round")
                done = number + 1
                self._tell(f"kill {done} {moment:.2f} s into {step}, after {rounds} rounds: {self.check()}")
                self._ready(waiting)
            self._whole(waiting)
        return {"format": self.format, "kills": done, "rows": self.sent, **self.check(whole=True)}

    def _whole(self, worker: subprocess.Popen[str]) -> float:
        """A round from begin to end; its seconds."""
        self.send()
        began = time.monotonic()
        self._say(worker, "once")
        while (line := self._line(worker)) != "round":
            assert line in _STEPS, self._log(worker)
        return time.monotonic() - began

    def _begin(self, stack: ExitStack) -> subprocess.Popen[str]:
        return self._process(stack, "-c", WORKER, self.nameserver, self.lake, self.format, json.dumps(self._conf))

    def _ready(self, process: subprocess.Popen[str]) -> None:
        assert self._line(process) == "ready", self._log(process)


def _of_iceberg(table: Any) -> Any:
    """The rows as they are; as they were at each snapshot they have to be there, too."""
    for each in table.snapshots():
        table.scan(snapshot_id=each.snapshot_id, selected_fields=("queueId",)).to_arrow()
    return table.scan(selected_fields=("queueId", "queueOffset")).to_arrow()


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                pass


def s3a_conf(address: str, jars: str) -> dict[str, str]:
    """What a session needs to reach the S3 server at ``address``."""
    s3a = {"endpoint": address, "endpoint.region": "us-east-1", "path.style.access": "true"}
    return {"spark.jars": jars, **{f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}}


def s3_environment(address: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip


def main(kind: type[Killing | DriverKilling], about: str) -> None:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", default="delta", choices=["parquet", "delta", "iceberg"])
    parser.add_argument("--store", default="disk", choices=["disk", "s3"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further kill after so long")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True)))
        server = stack.enter_context(broker_thread(broker=ASKING))
        stack.callback(bridge.close)
        store, environment, conf = str(place), dict[str, str](), dict[str, str]()
        if given.store == "s3":
            from tests.spark.test_object_store import jars, s3

            address = stack.enter_context(s3("lake", place / "moto"))
            store, environment = "s3://lake", s3_environment(address)
            conf = s3a_conf(address, jars()) if kind is Killing else {}
            os.environ.update(environment)
        said = kind(
            server.nameserver_address, store, given.format, environment, conf, lambda line: print(line, flush=True)
        ).run(given.kills, given.seed, until)
        print(json.dumps({"store": given.store, "seed": given.seed, **said}), flush=True)


if __name__ == "__main__":
    main(Killing, __doc__)
