"""Beside the newest Spark, which the other tests use: the oldest that we run on, and 3.5, which reads what we write."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiorocket.spark import steps
from tests.interop.peers import fetch_jars, kept
from tests.spark.producing import send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark_long, pytest.mark.timeout(900)]
_ROOT = Path(__file__).parents[2]

#: Reads as docs/spark.md says it; only pyspark is there.
_READS = """
import json, sys
from pyspark.sql import SparkSession

jars, tables = sys.argv[1], json.loads(sys.argv[2])
conf = {
    "spark.ui.enabled": "false", "spark.jars": jars, "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
}
spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
found = {"version": spark.version}
for name, (kind, paths) in tables.items():
    reader = spark.read.format(kind)
    rows = reader.option("basePath", paths[0]).load(paths[1:]) if paths[1:] else reader.load(paths[0])
    number = "value.id" if "decoded" in name else "get_json_object(cast(body AS string), '$.id')"
    found[name] = list(rows.selectExpr("count(*)", f"cast(sum({number}) AS long)", "count(storeTimestamp)").first())
print(json.dumps(found), flush=True)
spark.stop()
"""


def environment(version: str) -> Mapping[str, str]:
    """Of a Python that imports that pyspark, fetched once."""
    with kept() as home:
        place = home / f"pyspark-{version}"
        if not place.is_dir():
            partial = home / f"pyspark-{version}.{os.getpid()}"
            command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(partial), f"pyspark=={version}"]
            try:
                subprocess.run(command, check=True, timeout=600)
                partial.rename(place)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return {**{name: os.environ[name] for name in os.environ if name != "SPARK_HOME"}, "PYTHONPATH": str(place)}


#: What reads and archives; and of the others, some of which take long, one each: the sink, exactly once, a table.
_PARTS = [f"tests/spark/test_{name}.py" for name in ("source", "stream", "archive")]
_OTHERS = [
    "tests/spark/test_sink_spark.py::test_a_batch_write_of_all_columns",
    "tests/spark/test_sink_spark.py::test_a_stream_that_fails_and_is_replayed_writes_each_row_once",
    "tests/spark/test_lake_commands.py::test_dedup_drops_what_an_earlier_run_has_kept",
]


@pytest.mark.parametrize(
    ("chosen", "marks"),
    [(_PARTS, "not spark_long"), (_OTHERS, "spark_long or not spark_long")],
    ids=["parts", "others"],
)
def test_the_oldest_spark_that_we_run_on(chosen: list[str], marks: str) -> None:
    env = environment("4.2.0")
    command = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    assert subprocess.run(command, env=env, check=True, text=True, capture_output=True).stdout == "4.2.0\n"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", marks, *chosen]
    done = subprocess.run(command, env=env, cwd=_ROOT, text=True, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert marks == "not spark_long" or f"{len(chosen)} passed" in done.stdout, done.stdout


def test_spark_3_5_reads_archives_and_tables(spark: SparkSession, nameserver: str, tmp_path: Path) -> None:
    """The ways of docs/spark.md: an archive by its files or as Delta, a step's table as it lies there or as Delta."""
    send(nameserver, "read-by-3-5", [json.dumps({"id": number}) for number in range(100)])
    tables: dict[str, tuple[str, list[str]]] = {}
    for kind in ("parquet", "delta"):
        lake, decoded = tmp_path / f"{kind}-lake", tmp_path / f"{kind}-decoded"
        steps.archive(spark, str(lake), nameserver, "read-by-3-5", format=kind)
        files = [str(lake / each.path) for each in steps.Archive.open(str(lake)).snapshot().files]
        tables[f"{kind} archive"] = (kind, [str(lake / "data"), *(files if kind == "parquet" else [])])
        for _ in range(2):  # two runs, each of its own files
            steps.run_decode(
                spark, steps.Input(str(lake)), steps.Output(str(decoded), kind), schema="id LONG", max_rows=60
            )
        tables[f"{kind} decoded"] = (kind, [str(decoded / "decoded")])
    jars = ",".join(
        str(each) for each in sorted(fetch_jars(pom=Path(__file__).parent / "delta35" / "pom.xml").glob("*.jar"))
    )
    done = subprocess.run(
        [sys.executable, "-c", _READS, jars, json.dumps(tables)],
        env=environment("3.5.9"), text=True, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("version") == "3.5.9"
    assert found == {name: [100, 4950, 100] for name in tables}
