"""Spark Connect: the server's Python has no aiorocket, the client sends it along with its queries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pyarrow
import pyspark
import pytest

from aiorocket.spark.session import _spark_home
from tests.spark.producing import create_topic, send

pytestmark = [pytest.mark.spark_long, pytest.mark.timeout(300)]
_ROOT = Path(__file__).parents[2]

#: Only this process finds aiorocket: the server and its workers inherit the environment, and none of ``sys.path``.
JOB = """
import json, sys
root, nameserver, directory = sys.argv[1:]
sys.path[:0] = [root, root + "/protocol"]
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from aiorocket.spark import register
from aiorocket.spark.pytest_plugin import TEST_CONF

spark = SparkSession.builder.config(map={**TEST_CONF, "spark.ui.enabled": "false"}).remote("local[2]").getOrCreate()
register(spark, by_value=True)

@udf("string")
def home(number):
    from importlib.util import find_spec
    found = find_spec("aiorocket")
    return found and found.origin

def rows(topic):
    return spark.read.format("rocketmq").options(nameServer=nameserver, topic=topic).load()

orders = rows("connected")
count = orders.count()
copy = orders.select("body", "queueId").write.format("rocketmq").mode("append")
copy.options(nameServer=nameserver, topic="sent").save()
stream = spark.readStream.format("rocketmq").options(nameServer=nameserver, topic="sent", startingOffsets="earliest")
query = (
    stream.load().select("body").writeStream.format("rocketmq")
    .options(nameServer=nameserver, topic="streamed", checkpointLocation=directory + "/checkpoint")
    .trigger(availableNow=True).start()
)
assert query.awaitTermination(120)
found = rows("streamed").selectExpr("count(*) AS rows", "count(DISTINCT body) AS bodies").first()
homes = [row[0] for row in spark.range(4).select(home("id")).distinct().collect()]
kind = type(spark).__module__
print(json.dumps({"kind": kind, "count": count, "streamed": [found.rows, found.bodies], "homes": homes}), flush=True)
spark.stop()
"""


def test_a_client_brings_the_source_to_a_server_that_has_none(nameserver: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="the extra dev is not installed")
    libraries = dict.fromkeys(str(Path(each.__path__[0]).parent) for each in (pyspark, pyarrow, numpy))
    if any((Path(each) / "aiorocket").exists() for each in libraries):
        pytest.skip("aiorocket is installed beside pyspark here, not as a checkout: no process is without it")
    send(nameserver, "connected", [b"%d" % number for number in range(1000)])
    for topic in ("sent", "streamed"):
        create_topic(nameserver, topic, 4)
    # Without site: no .pth file of this installation is read.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(_ROOT), nameserver, str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=280,
        env={**os.environ, **_spark_home(), "PYTHONPATH": os.pathsep.join(libraries), "PYSPARK_PYTHON": str(bare)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert said["kind"] == "pyspark.sql.connect.session"
    assert (said["count"], said["streamed"]) == (1000, [1000, 1000])
    assert all(each is None or each.startswith("<shipped>") for each in said["homes"]), said["homes"]
