"""The steps over an archive beside the same queries written by hand on its Parquet files, in turn, in one run.

    python -m bench.lake                     1,000,000 rows, every scenario, and ten times fewer for the cost of a row
    python -m bench.lake windows latency     some of them
    python -m bench.lake --rows 60000000     larger: 130 bytes of disk a row, and four times that for a while
    python -m bench.lake --rows 600000000 windows latency order
                                             ten topics with the same files: 16 GB with the tenth beside it. (Dedup and
                                             compact write such rows anew, 80 GB and more.)
    python -m bench.lake --smoke             20,000 rows (or --rows), the steps alone, once: do their counts add up
    python -m bench.lake --check             exit with 1 when a floor is missed

The archive is made without a broker (``lake_rows``): 8 queues, rows of 350 bytes as a broker stores them, hours of a
million. One JVM on local[2] with Spark's default memory, 1 GiB, whatever the number of rows.

    windows   the step's table and its proof, beside the query that one would write, to a new Parquet table
    latency   by topic, by queue and over time with exact percentiles, and the histogram; by hand a query for each
    order     gaps, repeats and clocks of each queue, beside lag() over each queue
    dedup     by id, beside dropDuplicates
    decode    JSON with a schema and a quarantine, beside from_json and a write of each of the two. No floor: that query
              takes what is no JSON (one body of two values, text behind it) for a row, and gives no reason
    report    windows, latency, order and counted repeats in one run, beside the queries of the first three and a count
              of ids
    verify    counts by queue against the manifest, beside a count of distinct offsets
    compact   MB/s of records; no query does it, so the other side is Spark's own repartition, sort and write
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.lake_rows import RECORD_BYTES, make_archive
from bench.machine import facts, version
from bench.processes import BenchError, environment
from bench.report import Floor, arguments, finish, table_of
from bench.spark import timed
from bench.spark_cpu import jvm, with_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from aiorocket.spark.steps.report import StepReport

ROWS, SMOKE_ROWS = 1_000_000, 20_000
#: The cost of a row is compared with that of so many times fewer rows.
SMALLER = 10
#: Of bodies.
SCHEMA = "id BIGINT NOT NULL, text STRING"


class Lake(NamedTuple):
    spark: SparkSession
    path: Path
    rows: int
    scratch: Path

    def read(self) -> DataFrame:
        from aiorocket.spark.steps import archive_rows

        return archive_rows(self.spark, str(self.path))

    def new(self) -> str:
        return str(self.scratch / f"table-{next(_NUMBERS)}")


_NUMBERS = itertools.count()


# -- the product --


def checked(lake: Lake, report: StepReport) -> None:
    if report.rows_in != lake.rows or report.missing or not report.complete:
        raise BenchError(f"{lake.rows} rows were due, the step says {report.as_dict()}")


def step(name: str, **how: Any) -> Callable[[Lake], None]:
    def run(lake: Lake) -> None:
        from aiorocket.spark.steps import Input, Output
        from aiorocket.spark.steps.tables import analyses

        work: Callable[..., StepReport] = getattr(analyses, f"run_{name}")
        checked(lake, work(lake.spark, Input(archive=str(lake.path)), Output(lake.new()), **how))

    return run


def verify(lake: Lake) -> None:
    from aiorocket.spark.steps import verify as verify_step

    checked(lake, verify_step(lake.spark, str(lake.path)))


def compact(lake: Lake) -> None:
    """On a copy: what is compacted stays so."""
    from aiorocket.spark.steps import compact as compact_step

    copy = shutil.copytree(lake.path, lake.new(), copy_function=os.link)
    checked(lake, compact_step(lake.spark, copy, keep=0))


# -- by hand --


def written(lake: Lake, *queries: DataFrame) -> None:
    for query in queries:
        query.write.option("compression", "zstd").parquet(lake.new())


def hand_windows(lake: Lake) -> None:
    from pyspark.sql import functions as F

    counted = lake.read().groupBy(F.window("bornTimestamp", "1 minute").alias("window"), "topic")
    written(lake, counted.agg(F.count("*").alias("rows"), F.sum(F.octet_length("body")).alias("bytes")))


def hand_latency(lake: Lake) -> None:
    from pyspark.sql import functions as F

    rows = lake.read().withColumn("ms", F.unix_millis("storeTimestamp") - F.unix_millis("bornTimestamp"))
    measures = [
        F.count("*").alias("rows"), F.min("ms").alias("least"),
        F.percentile("ms", F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99))).alias("shares"), F.max("ms").alias("most"),
    ]  # fmt: skip
    window = F.window("storeTimestamp", "1 minute").alias("window")
    by_queue = rows.groupBy("topic", "brokerName", "queueId").agg(*measures)
    tables = [rows.groupBy("topic").agg(*measures), by_queue, rows.groupBy("topic", window).agg(*measures)]
    written(lake, *tables, rows.groupBy("topic", F.floor(F.log2(F.greatest("ms", F.lit(1)))).alias("bar")).count())


def hand_order(lake: Lake) -> None:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    queue = Window.partitionBy("topic", "brokerName", "queueId").orderBy("queueOffset")
    last = lake.read().select(
        "topic", "brokerName", "queueId", "queueOffset", "storeTimestamp",
        F.lag("queueOffset").over(queue).alias("last"), F.lag("storeTimestamp").over(queue).alias("stored"),
    )  # fmt: skip
    written(lake, last.where("queueOffset <> last + 1 OR storeTimestamp < stored"))


def hand_dedup(lake: Lake) -> None:
    written(lake, lake.read().dropDuplicates(["topic", "msgId"]))


def hand_decode(lake: Lake) -> None:
    from pyspark.sql import functions as F

    rows = lake.read().withColumn("value", F.from_json(F.col("body").cast("string"), SCHEMA))
    written(lake, rows.where("value.id IS NOT NULL"), rows.where("value.id IS NULL"))


def hand_report(lake: Lake) -> None:
    from pyspark.sql import functions as F

    for query in (hand_windows, hand_latency, hand_order):
        query(lake)
    written(lake, lake.read().groupBy("topic").agg(F.count("*").alias("rows"), F.count_distinct("msgId").alias("ids")))


def hand_verify(lake: Lake) -> None:
    from pyspark.sql import functions as F

    rows = lake.read().groupBy("topic", "brokerName", "queueId")
    written(lake, rows.agg(F.count("*").alias("rows"), F.count_distinct("queueOffset").alias("offsets")))


def hand_compact(lake: Lake) -> None:
    from aiorocket.spark.steps.rows import with_hours, write_hours

    rows = with_hours(lake.read()).repartition("topic", "dt", "hour")
    write_hours(rows.sortWithinPartitions("topic", "dt", "hour", "brokerName", "queueId", "queueOffset"), lake.new())


Way = Callable[[Lake], None]
WAYS: dict[str, tuple[Way, Way]] = {
    "windows": (step("windows"), hand_windows),
    "latency": (step("latency"), hand_latency),
    "order": (step("order"), hand_order),
    "dedup": (step("dedup"), hand_dedup),
    "decode": (step("decode", schema=SCHEMA), hand_decode),
    "report": (step("report"), hand_report),
    "verify": (verify, hand_verify),
    "compact": (compact, hand_compact),
}
#: Rows a second of the step over those of the query by hand.
FLOORS = {"windows": 0.7, "latency": 0.7, "order": 0.7, "dedup": 0.7, "report": 0.7, "verify": 0.7}
COMPACT_FLOOR, COST_FLOOR = 150.0, 1.3


class Taken(NamedTuple):
    """Seconds by the clock, and of CPU: JVM and workers."""

    clock: float
    cpu: float


def took(lake: Lake, name: str, side: int, console: Console) -> Taken:
    before = sum(with_workers(jvm(lake.spark)))
    clock = timed(lambda: WAYS[name][side](lake))
    cpu = sum(with_workers(jvm(lake.spark))) - before
    shutil.rmtree(lake.scratch, ignore_errors=True)
    way = ("product", "by hand")[side]
    console.print(f"  {name}, {lake.rows:,} rows, {way}: {clock:.1f} s, CPU {cpu:.1f} s", highlight=False)
    return Taken(clock, cpu)


def medians(taken: Iterable[Taken]) -> Taken:
    return Taken(*(median(each) for each in zip(*taken, strict=True)))


def measure(lakes: list[Lake], name: str, repeat: int, console: Console) -> dict[str, Any]:
    """Both ways of the few rows to warm up, then both of all in turn, medians; the few once more, ours."""
    small, large = lakes
    for side in (0, 1):
        took(small, name, side, console)
    turns = [(took(large, name, 0, console), took(large, name, 1, console)) for _ in range(repeat)]
    product, by_hand = (medians(each) for each in zip(*turns, strict=True))
    less, times = medians(took(small, name, 0, console) for _ in range(repeat)), large.rows / small.rows
    return {
        "rows": large.rows, "product": round(product.clock, 2), "by_hand": round(by_hand.clock, 2),
        "ratio": round(by_hand.clock / product.clock, 3), "us_a_row": round(product.clock / large.rows * 1e6, 3),
        "mb_s": round(large.rows * RECORD_BYTES / product.clock / 1e6, 1),
        "cost": round(product.clock / less.clock / times, 3), "product_cpu": round(product.cpu, 2),
        "ratio_cpu": round(by_hand.cpu / product.cpu, 3), "cost_cpu": round(product.cpu / less.cpu / times, 3),
    }  # fmt: skip


def floors_of(results: dict[str, Any]) -> list[Floor]:
    floors = [Floor(name, each["ratio"], FLOORS[name], True, "of by hand") for name, each in results.items()
              if name in FLOORS]  # fmt: skip
    if "compact" in results:
        floors.append(Floor("compact", results["compact"]["mb_s"], COMPACT_FLOOR, True, "MB/s"))
    named = {f"{name}: a row of {SMALLER} times as many": each["cost"] for name, each in results.items()}
    return [*floors, *(Floor(name, cost, COST_FLOOR, False, "x") for name, cost in named.items())]


def show(results: dict[str, Any], floors: list[Floor], console: Console) -> None:
    table = Table(title="Seconds", title_justify="left")
    columns = ("scenario", "rows", "product", "by hand", "by hand / product", "µs a row", "MB/s", "cost of a row",
               "by hand / product, CPU", "cost of a row, CPU")  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "scenario" else "right")
    for name, each in results.items():
        table.add_row(
            name, f"{each['rows']:,}", f"{each['product']:.1f}", f"{each['by_hand']:.1f}", f"{each['ratio']:.2f}",
            f"{each['us_a_row']:.2f}", f"{each['mb_s']:.0f}", f"{each['cost']:.2f}", f"{each['ratio_cpu']:.2f}",
            f"{each['cost_cpu']:.2f}",
        )  # fmt: skip
    console.print(table)
    console.print(table_of(floors))


@contextmanager
def session() -> Iterator[SparkSession]:
    from aiorocket.spark import spark_session

    spark = spark_session(app_name="bench", master="local[2]", conf={"spark.log.level": "ERROR"})
    try:
        yield spark
    finally:
        spark.stop()


def made(place: Path, rows: int, console: Console) -> Path:
    tenths = 0

    def told(done: int) -> None:
        nonlocal tenths
        if done * 10 // rows > tenths:
            tenths = done * 10 // rows
            console.print(f"making {rows:,} rows: {done:,}", highlight=False)

    make_archive(place, rows, told)
    return place


def main() -> None:
    assert __doc__ is not None
    options = arguments(__doc__, tuple(WAYS), repeat=1, repeated="turns of each way (1)", rows=(ROWS, SMOKE_ROWS))
    rows: int = options.rows
    console = Console()
    machine = facts(options.data)
    machine["packages"] |= {name: version(name) for name in ("pyspark", "pyarrow", "numpy")}
    os.environ.update(environment())
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="aiorocket-bench-lake-", dir=options.data) as directory:
        place = Path(directory)
        try:
            counts = [rows] if options.smoke else [rows // SMALLER, rows]
            paths = [made(place / f"lake-{count}", count, console) for count in counts]
            with session() as spark:
                lakes = [Lake(spark, *each, place / "scratch") for each in zip(paths, counts, strict=True)]
                for name in options.scenarios:
                    if options.smoke:
                        took(lakes[0], name, 0, console)
                    else:
                        results[name] = measure(lakes, name, options.repeat, console)
        except BenchError as error:
            sys.exit(f"bench: {error}")
    if options.smoke:
        console.print(f"smoke: {', '.join(options.scenarios)} of {rows:,} rows ran and every count added up")
        return
    floors = floors_of(results)
    show(results, floors, console)
    finish(options, machine, {f"lake-{name}": each for name, each in results.items()}, floors, console)


if __name__ == "__main__":
    main()
