"""The Spark source and the archive beside the obvious source and beside Spark's own, in turn, in one run.

    python -m bench.spark                    every scenario (about five minutes; leave the machine alone meanwhile)
    python -m bench.spark read micro         some of them
    python -m bench.spark --smoke            tiny counts: does every scenario run and do its counts add up
    python -m bench.spark --check            exit with 1 when a floor is missed

One JVM on local[2], one broker in a process of its own, records of about 350 bytes with five properties.

    read      one queue, one partition, all 20 columns with the map, to Spark's noop sink; the ceiling is a Parquet file
              with the same rows, and that of any source in Python one whose batches lie ready in memory
    archive   the same queue written as Parquet by the task that decodes it; the obvious way is the naive source and
              Spark's Parquet sink
    restore   an archive of eight queues (``lake_rows``) to a new topic, each queue's order kept; the obvious way is its
              rows through Spark and the sink
    dedup     a step's table from an archive of that queue, proof and all; the ceiling is the query written by hand on
    windows   the same Parquet files. With Spark's default memory, 1 GiB
    micro     a stream over four queues, a message in each per batch; the ceiling is Spark's rate-micro-batch source
    message   from the acknowledgement of one message to the file that commits its batch
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

import aiorocket
from aiorocket_protocol.fast import SPEEDUPS
from bench import wire
from bench.lake_rows import QUEUES, make_archive
from bench.machine import facts, version
from bench.processes import BenchError, environment
from bench.report import Floor, arguments, finish, table_of
from bench.scenarios import Server, standalone
from bench.spark_cpu import jvm, own, with_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from aiorocket.spark.steps.report import StepReport

SCENARIOS = ("read", "archive", "restore", "dedup", "windows", "micro", "message")
ROWS = 1_000_000
SMOKE_ROWS = 20_000
#: The naive source takes this part of the rows.
NAIVE_PART = 8
_BODY = bytes(range(32, 127)) * 2


class Bench(NamedTuple):
    spark: SparkSession
    server: Server
    directory: str
    rows: int
    repeat: int
    console: Console

    def options(self, topic: str, **more: object) -> dict[str, str]:
        given = {"nameServer": f"127.0.0.1:{self.server.nameserver}", "topic": topic, **more}
        return {name: str(value) for name, value in given.items()}

    def naive(self, topic: str, queues: int, **more: object) -> dict[str, str]:
        given = {"broker": self.server.broker, "topic": topic, "queues": queues, **more}
        return {name: str(value) for name, value in given.items()}


def fill(server: Server, topic: str, count: int) -> None:
    """``count`` messages for queue 0 of ``topic``, made on the way: bodies of 100 to 200 bytes, a tag, a key and two
    properties of the user's."""

    async def send() -> None:
        async with aiorocket.Producer("bench", nameservers=f"127.0.0.1:{server.nameserver}") as producer:
            queue = (await producer.client.route(topic)).publish[0]
            for start in range(0, count, 400):
                await producer.send_batch(topic, [message(topic, n) for n in range(start, min(count, start + 400))],
                                          queue=queue)  # fmt: skip

    aiorocket.run(send())


def message(topic: str, number: int) -> aiorocket.OutgoingMessage:
    return aiorocket.OutgoingMessage(
        topic=topic, body=_BODY[: 100 + number % 90], tag=("paid", "open", "void")[number % 3], keys=[f"o-{number}"],
        properties={"source": "bench", "number": str(number)},
    )  # fmt: skip


# -- rates --


def noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def in_turn(bench: Bench, ways: dict[str, tuple[int, Callable[[], object]]]) -> dict[str, Any]:
    """Each way once to warm up, then all in turn; rows per second and microseconds of CPU a row, of the JVM, Python's
    workers and the broker, medians."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    spent: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
    driver, broker = jvm(bench.spark), bench.server.child.process.pid
    for name, (_, action) in ways.items():
        bench.console.print(f"  warming up {name}", highlight=False)
        action()
    for _ in range(bench.repeat):
        for name, (rows, action) in ways.items():
            before = *with_workers(driver), own(broker)
            rates[name].append(rows / timed(action))
            after = *with_workers(driver), own(broker)
            micros = tuple((late - early) / rows * 1e6 for early, late in zip(before, after, strict=True))
            spent[name].append(micros)
            text = " + ".join(f"{each:.2f}" for each in micros)
            bench.console.print(f"  {name}: {rates[name][-1]:,.0f} rows/s, CPU {text} µs a row", highlight=False)
    medians: dict[str, Any] = {name: round(median(each)) for name, each in rates.items()}
    for name, each in spent.items():
        medians[f"{name}_cpu"] = [round(median(process), 3) for process in zip(*each, strict=True)]
    return medians


def read(bench: Bench) -> dict[str, Any]:
    from aiorocket.spark.source import RocketMQDataSource
    from bench.ready_source import keep

    topic, rows = "read", bench.rows
    one = bench.options(topic, startingOffsets="earliest", endingOffsets="latest", maxPartitions=1)
    ours = bench.spark.read.format("rocketmq").options(**one).load()
    naive = bench.spark.read.format("naive").options(**bench.naive(topic, 1, limit=rows // NAIVE_PART)).load()
    if (found := ours.count()) != rows:
        raise BenchError(f"{rows} rows were due, {found} were read")
    if (found := naive.count()) != rows // NAIVE_PART:
        raise BenchError(f"{rows // NAIVE_PART} rows were due of the naive source, {found} were read")
    parquet = os.path.join(bench.directory, "parquet")
    ours.write.mode("overwrite").parquet(parquet)
    kept = os.path.join(bench.directory, "ready.arrow")
    if (found := keep(RocketMQDataSource(one), kept)) != rows:
        raise BenchError(f"{rows} rows were due, {found} were kept")
    ready = bench.spark.read.format("ready").option("path", kept).load()
    return in_turn(
        bench,
        {
            "product": (rows, lambda: noop(ours)),
            "naive": (rows // NAIVE_PART, lambda: noop(naive)),
            "ready": (rows, lambda: noop(ready)),
            "ceiling": (rows, lambda: noop(bench.spark.read.parquet(parquet).coalesce(1))),
        },
    )


def archive(bench: Bench) -> dict[str, Any]:
    from aiorocket.spark.steps import archive as archive_step

    topic, rows = "read", bench.rows
    naive = bench.spark.read.format("naive").options(**bench.naive(topic, 1, limit=rows // NAIVE_PART)).load()
    places = iter(range(1_000_000))

    def ours() -> None:
        report = archive_step(
            bench.spark, os.path.join(bench.directory, f"archive-{next(places)}"),
            f"127.0.0.1:{bench.server.nameserver}", topic, mode="direct", maxPartitions=1,
        )  # fmt: skip
        if report.rows_out != rows or not report.complete:
            raise BenchError(f"{rows} rows were due, the archive says {report.as_dict()}")

    def obvious() -> None:
        naive.write.mode("overwrite").option("compression", "zstd").parquet(os.path.join(bench.directory, "naive"))

    return in_turn(bench, {"product": (rows, ours), "naive": (rows // NAIVE_PART, obvious)})


def restore(bench: Bench) -> dict[str, Any]:
    from aiorocket.spark.steps import archive_rows
    from aiorocket.spark.steps import restore as restore_step

    path, topics, rows = os.path.join(bench.directory, "made"), itertools.count(), bench.rows
    make_archive(Path(path), rows)

    def target() -> str:
        topic = f"restored-{next(topics)}"
        wire.create_topic(bench.server.nameserver, bench.server.broker, topic, QUEUES)
        return topic

    def ours() -> None:
        nameserver = f"127.0.0.1:{bench.server.nameserver}"
        report = restore_step(bench.spark, path, nameserver, to_topic=target(), keep_queues=True)
        if report.rows_out != rows or not report.complete:
            raise BenchError(f"{rows} rows were due, the restore says {report.as_dict()}")

    def obvious() -> None:
        few = archive_rows(bench.spark, path).where(f"queueOffset < {rows // QUEUES // NAIVE_PART}")
        chosen = few.select("body", "keys", "tags", "properties", "queueId")
        chosen.write.format("rocketmq").mode("append").options(**bench.options(target())).save()

    return in_turn(bench, {"product": (rows, ours), "naive": (rows // NAIVE_PART, obvious)})


# -- steps --


def lake(bench: Bench) -> str:
    """Where the archive of the topic is; made by the first scenario that asks."""
    from aiorocket.spark.steps import archive as archive_step

    path = os.path.join(bench.directory, "lake")
    if not os.path.exists(path):
        archive_step(bench.spark, path, f"127.0.0.1:{bench.server.nameserver}", "read", mode="direct")
    return path


def step(bench: Bench, name: str, run: Callable[..., StepReport], by_hand: Callable[[DataFrame], DataFrame]) -> Any:
    """A step beside the query that one would write by hand, both from the same files to a new table."""
    from aiorocket.spark.steps import archive_rows
    from aiorocket.spark.steps.tables.inputs import Input
    from aiorocket.spark.steps.tables.run import Output

    path, places = lake(bench), itertools.count()

    def ours() -> None:
        table = Output(os.path.join(bench.directory, f"{name}-{next(places)}"))
        report = run(bench.spark, Input(archive=path), table)
        if report.rows_in != bench.rows or report.missing:
            raise BenchError(f"{bench.rows} rows were due, the step says {report.as_dict()}")

    def hand() -> None:
        rows = by_hand(archive_rows(bench.spark, path))
        rows.write.mode("overwrite").option("compression", "zstd").parquet(
            os.path.join(bench.directory, f"{name}-hand")
        )

    return in_turn(bench, {"product": (bench.rows, ours), "ceiling": (bench.rows, hand)})


def dedup(bench: Bench) -> dict[str, Any]:
    from aiorocket.spark.steps.tables.analyses import run_dedup

    found: dict[str, Any] = step(bench, "dedup", run_dedup, lambda rows: rows.dropDuplicates(["topic", "msgId"]))
    return found


def windows(bench: Bench) -> dict[str, Any]:
    from pyspark.sql import functions as F

    from aiorocket.spark.steps.tables.analyses import run_windows

    def by_hand(rows: DataFrame) -> DataFrame:
        window = F.window("bornTimestamp", "1 minute").alias("window")
        return rows.groupBy(window, "topic").agg(
            F.count("*").alias("rows"), F.sum(F.octet_length("body")).alias("bytes")
        )

    found: dict[str, Any] = step(bench, "windows", run_windows, by_hand)
    return found


# -- streams --


@contextmanager
def stream(rows: DataFrame, checkpoint: str) -> Iterator[StreamingQuery]:
    query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    try:
        yield query
    finally:
        query.stop()


class Sender:
    """Sends single messages from this process, one call at a time."""

    def __init__(self, bench: Bench) -> None:
        self._nameserver = f"127.0.0.1:{bench.server.nameserver}"

    def __enter__(self) -> Sender:
        import asyncio

        self._runner = asyncio.Runner()
        self._producer = aiorocket.Producer("bench", nameservers=self._nameserver)
        self._runner.run(self._producer.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._producer.stop())
        self._runner.close()

    def send(self, topic: str, queues: int) -> None:
        self._runner.run(self._send(topic, queues))

    async def _send(self, topic: str, queues: int) -> None:
        import asyncio

        known = sorted((await self._producer.client.route(topic)).publish)[:queues]
        await asyncio.gather(*(self._producer.send(message(topic, 1), queue=queue) for queue in known))


def batches(bench: Bench, rows: DataFrame, name: str, count: int, feed: Callable[[], object] | None) -> list[float]:
    """Milliseconds of ``count`` batches with rows, after three to warm up. ``feed`` makes the next batch's rows when
    the one before was committed."""
    checkpoint = os.path.join(bench.directory, f"checkpoint-{name}")
    taken: list[float] = []
    with stream(rows, checkpoint) as query:
        seen: set[int] = set()
        deadline = time.monotonic() + 120
        committed = -1
        while len(taken) < count + 3:
            if feed is not None:
                feed()
            committed = wait_committed(checkpoint, committed, deadline, query)
            for progress in query.recentProgress:
                if progress.numInputRows and progress.batchId not in seen:
                    seen.add(progress.batchId)
                    taken.append(progress.durationMs["triggerExecution"])
    return taken[3:]


def wait_committed(checkpoint: str, after: int, deadline: float, query: StreamingQuery) -> int:
    """The newest committed batch, once it is a later one than ``after``."""
    commits = Path(checkpoint, "commits")
    while True:
        newest = max((int(path.name) for path in commits.glob("[0-9]*")), default=-1) if commits.is_dir() else -1
        if newest > after:
            return newest
        if time.monotonic() > deadline or query.exception() is not None:
            raise BenchError(f"no batch after {after} was committed: {query.exception() or query.status}")
        time.sleep(0.001)


def micro(bench: Bench) -> dict[str, Any]:
    count = 5 if bench.rows == SMOKE_ROWS else 30
    ours = bench.spark.readStream.format("rocketmq").options(**bench.options("micro", startingOffsets="latest")).load()
    naive = bench.spark.readStream.format("naive").options(**bench.naive("micro", 4)).load()
    rate = bench.spark.readStream.format("rate-micro-batch").options(rowsPerBatch="4", numPartitions="2").load()
    found: dict[str, list[float]] = {"product": [], "naive": [], "ceiling": []}
    with Sender(bench) as sender:
        for turn in range(1 if bench.rows == SMOKE_ROWS else 2):
            for name, rows, feeds in (("product", ours, True), ("naive", naive, True), ("ceiling", rate, False)):
                feed = (lambda: sender.send("micro", 4)) if feeds else None
                each = batches(bench, rows, f"{name}-{turn}", count, feed)
                found[name] += each
                bench.console.print(f"  {name}: a batch takes {median(each):,.0f} ms", highlight=False)
    return {name: round(median(each)) for name, each in found.items()}


def one_message(bench: Bench) -> dict[str, Any]:
    count = 3 if bench.rows == SMOKE_ROWS else 25
    ours = bench.spark.readStream.format("rocketmq").options(**bench.options("single", startingOffsets="latest")).load()
    naive = bench.spark.readStream.format("naive").options(**bench.naive("single", 4)).load()
    found: dict[str, list[float]] = {}
    with Sender(bench) as sender:
        for name, rows in (("product", ours), ("naive", naive)):
            checkpoint = os.path.join(bench.directory, f"checkpoint-message-{name}")
            waits: list[float] = []
            with stream(rows, checkpoint) as query:
                committed = -1
                for number in range(count + 3):
                    sender.send("single", 1)
                    began = time.perf_counter()
                    committed = wait_committed(checkpoint, committed, time.monotonic() + 120, query)
                    waits.append((time.perf_counter() - began) * 1000)
                    # Not in step with the polling of either: the next message comes at another moment of its cycle.
                    time.sleep(0.3 + number % 7 * 0.05)
            found[name] = sorted(waits[3:])
            bench.console.print(f"  {name}: committed after {median(found[name]):,.0f} ms", highlight=False)
    return {
        **{name: round(median(each)) for name, each in found.items()},
        **{f"{name}_worst": round(each[-1]) for name, each in found.items()},
    }


RUNS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "read": read, "archive": archive, "restore": restore, "dedup": dedup, "windows": windows, "micro": micro,
    "message": one_message,
}  # fmt: skip
UNITS = {name: "ms" if name in ("micro", "message") else "rows/s" for name in RUNS}
FLOORS = {
    "read": ("read: one partition, all columns", 400_000, True),
    "archive": ("archive: direct, one core", 400_000, True),
    "restore": ("restore: a queue's order kept", 100_000, True),
    "micro": ("micro: batch over four queues", 150, False),
    "message": ("message: sent to committed", 500, False),
}
#: Of Parquet, with the fast lane; the pure code has none.
READ_FLOOR = 0.75


def floors_of(results: dict[str, Any]) -> list[Floor]:
    found = [
        Floor(title, float(results[name]["product"]), limit, above, UNITS[name])
        for name, (title, limit, above) in FLOORS.items()
        if name in results
    ]
    if "read" in results and SPEEDUPS:
        ratio = results["read"]["product"] / results["read"]["ceiling"]
        found.append(Floor("read, fast lane: of Parquet", round(ratio, 3), READ_FLOOR, True, "x"))
    return found


def show(results: dict[str, Any], floors: list[Floor], console: Console) -> None:
    table = Table(title="Medians", title_justify="left")
    for column in ("scenario", "product", "naive", "ready batches", "Spark's own", "unit", "product / naive"):
        table.add_column(column, justify="left" if column in ("scenario", "unit") else "right")
    for name, result in results.items():
        product, naive, ready, own = (result.get(side) for side in ("product", "naive", "ready", "ceiling"))
        ratio = "" if naive is None else f"{product / naive if UNITS[name] == 'rows/s' else naive / product:.1f} x"
        naive, ready, own = ("" if each is None else f"{each:,}" for each in (naive, ready, own))
        table.add_row(name, f"{product:,}", naive, ready, own, UNITS[name], ratio)
    console.print(table)
    for name, result in results.items():
        for side in ("product", "naive", "ready", "ceiling"):
            if (cpu := result.get(f"{side}_cpu")) is not None:
                driver, workers, broker = cpu
                console.print(f"{name}, {side}: CPU {driver} JVM + {workers} workers + {broker} broker, µs a row")
    console.print(table_of(floors))


def main() -> None:
    assert __doc__ is not None
    options = arguments(__doc__, SCENARIOS, repeat=3, repeated="turns of each way (3)")
    wanted = options.scenarios
    console = Console()
    machine = facts(options.data)
    machine["packages"] |= {name: version(name) for name in ("pyspark", "pyarrow", "numpy")}
    results: dict[str, Any] = {}
    # The workers of Spark import the naive source from here.
    os.environ.update(environment())
    from aiorocket.spark import spark_session
    from bench.naive_source import NaiveSource
    from bench.ready_source import ReadySource

    rows = SMOKE_ROWS if options.smoke else ROWS
    conf = {"spark.log.level": "ERROR", "spark.sql.streaming.noDataMicroBatches.enabled": "false"}
    with (
        tempfile.TemporaryDirectory(prefix="aiorocket-bench-spark-", dir=options.data) as directory,
        standalone("async", options.data) as server,
    ):
        spark = spark_session(app_name="bench", master="local[2]", conf=conf)
        try:
            spark.dataSource.register(NaiveSource)
            spark.dataSource.register(ReadySource)
            bench = Bench(spark, server, directory, rows, 1 if options.smoke else options.repeat, console)
            for topic, queues in (("read", 1), ("micro", 4), ("single", 4)):
                wire.create_topic(server.nameserver, server.broker, topic, queues)
            if {"read", "archive", "dedup", "windows"} & set(wanted):
                console.print(f"sending {rows:,} messages", highlight=False)
                fill(server, "read", rows)
            for name in wanted:
                console.print(f"{name}", highlight=False)
                results[name] = RUNS[name](bench)
        except BenchError as error:
            sys.exit(f"bench: {error}")
        finally:
            spark.stop()
    if options.smoke:
        console.print(f"smoke: {', '.join(wanted)} ran and every count added up")
        return
    floors = floors_of(results)
    show(results, floors, console)
    if "read" in results and not SPEEDUPS:
        console.print("read: its floor beside Parquet needs the fast lane (aiorocketmq-speedups)", highlight=False)
    named = {f"spark-{name}": result for name, result in results.items()}
    finish(options, machine, named, floors, console)


if __name__ == "__main__":
    main()
