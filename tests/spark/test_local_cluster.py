"""Executors that are processes of their own: ``local-cluster[2,2,1024]`` in a JVM beside this one's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.producing import create_topic, send

pytestmark = [pytest.mark.spark_long, pytest.mark.timeout(300)]
_ROOT = Path(__file__).parents[2]
#: Rows enough for four tasks.
_SPREAD = 3 * 12_000

JOB = """
import json, os, sys, time
from pyspark.sql.functions import col, concat, lit, spark_partition_id, udf
from aiorocket.spark import spark_session, steps
from aiorocket.spark.pytest_plugin import TEST_CONF

nameserver, directory, addresses = sys.argv[1:]
conf = {**TEST_CONF, "spark.executorEnv.AIOROCKET_ADDRESS_MAP": addresses}
conf |= {"spark.executor.extraJavaOptions": TEST_CONF["spark.driver.extraJavaOptions"]}
spark = spark_session(master="local-cluster[2,2,1024]", conf=conf)
options = {"nameServer": nameserver, "topic": "cluster"}

def read():
    return spark.read.format("rocketmq").options(**options).option("minPartitions", "8").load()

pid = udf(lambda: os.getppid(), "long").asNondeterministic()  # of an executor's one process that has the others
rows = read()
count = rows.select("queueId", "queueOffset").distinct().count()
mapped = udf(lambda: os.environ["AIOROCKET_ADDRESS_MAP"], "string").asNondeterministic()
maps = [row[0] for row in rows.select(mapped().alias("map")).distinct().collect()]
pids = [row[0] for row in rows.select(pid().alias("pid")).distinct().collect()]
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1

cores, until = spark.sparkContext.defaultParallelism, time.monotonic() + 60
while cores < 4 and time.monotonic() < until:  # until both have come
    time.sleep(0.1)
    cores = spark.sparkContext.defaultParallelism
spread = steps.topic_rows(spark, nameserver, "spread", columns="queueId,queueOffset")
parts, tasks = spread.withColumn("task", spark_partition_id()).collect(), spread.rdd.getNumPartitions()

copy = rows.select(concat(lit("copy of "), col("body").cast("string")).alias("body"), col("queueId"))
copy.write.format("rocketmq").mode("append").options(nameServer=nameserver, topic="copies").save()

stream = spark.readStream.format("rocketmq").options(nameServer=nameserver, topic="copies", startingOffsets="earliest")
query = (
    stream.load().writeStream.format("parquet").option("checkpointLocation", directory + "/checkpoint")
    .trigger(availableNow=True).start(directory + "/out")
)
assert query.awaitTermination(120)
copies = spark.read.parquet(directory + "/out")
twice = (
    stream.load().select("body", "tags").writeStream.format("rocketmq").options(
        nameServer=nameserver, topic="twice", sinkMode="exactlyOnce",
        checkpointLocation=directory + "/checkpoint-twice",
    ).trigger(availableNow=True).start()
)
assert twice.awaitTermination(120)
again = spark.read.format("rocketmq").options(nameServer=nameserver, topic="twice").load()
print(json.dumps({
    "cores": cores, "tasks": tasks, "spread": parts, "executors": executors,
    "count": count, "pids": pids, "maps": maps, "driver": os.getpid(),
    "copies": copies.count(), "distinct": copies.select("body").distinct().count(),
    "twice": again.count(), "twice_distinct": again.select("body").distinct().count(),
}), flush=True)
spark.stop()
"""


def test_separate_executors_read_stream_and_write(nameserver: str, tmp_path: Path) -> None:
    send(nameserver, "cluster", [b"%d" % number for number in range(4000)], queues=4)
    send(nameserver, "spread", [b"%d" % number for number in range(_SPREAD)], queues=3)
    for topic in ("copies", "twice"):
        create_topic(nameserver, topic, 4)
    paths = [str(_ROOT), str(_ROOT / "protocol"), str(_ROOT / "aiorocket/spark/autoload")]
    # Driver and executors reach the name server under a name that each has a map for.
    driver = f"names.invalid:1={nameserver}"
    executors = f"{driver},executors.invalid:1={nameserver}"
    done = subprocess.run(
        [sys.executable, "-c", JOB, "names.invalid:1", str(tmp_path), executors], cwd=tmp_path, capture_output=True,
        text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "AIOROCKET_ADDRESS_MAP": driver},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert said["executors"] == 2 and said["maps"] == [executors]
    # As many tasks as the executors have cores, whatever the driver has; each reads its queues in order.
    assert said["cores"] == said["tasks"] == 4
    read = [(task, queue, offset) for queue, offset, task in said["spread"]]
    assert read == sorted(read) and len({task for task, _, _ in read}) == 4
    assert [each[1:] for each in read] == [(queue, offset) for queue in range(3) for offset in range(_SPREAD // 3)]
    assert said["driver"] not in said["pids"] and len(said["pids"]) == 2
    assert said["count"] == said["copies"] == said["distinct"] == 4000
    assert said["twice"] == said["twice_distinct"] == 4000
