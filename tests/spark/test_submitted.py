"""``spark-submit`` to a standalone cluster of two workers, where no process has aiorocket: it comes as a zip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import numpy
import pyarrow
import pyspark
import pytest

from aiorocket.spark.session import java_home
from aiorocket.spark.shipping import bundle
from tests.ports import free_port
from tests.spark.producing import create_topic, send

pytestmark = [pytest.mark.spark_long, pytest.mark.timeout(300)]
_SPARK = Path(pyspark.__path__[0])

JOB = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, concat, lit, udf

nameserver, = sys.argv[1:]
from aiorocket.spark import register

spark = SparkSession.builder.getOrCreate()
register(spark)  # where Spark looks for formats the zip is not
options = {"nameServer": nameserver, "topic": "submitted"}
rows = spark.read.format("rocketmq").options(**options, minPartitions="8").load()

@udf("string")
def home():
    import os, aiorocket
    return f"{os.getcwd()} {aiorocket.__file__}"  # the folder is the executor's

homes = [row[0] for row in rows.select(home().alias("home")).distinct().collect()]
copy = rows.select(concat(lit("copy of "), col("body").cast("string")).alias("body"), col("queueId"))
copy.write.format("rocketmq").mode("append").options(nameServer=nameserver, topic="submitted-copies").save()
spark.sql(f"CREATE TEMPORARY VIEW sent USING rocketmq OPTIONS (nameServer '{nameserver}', topic 'submitted-copies')")
found = spark.sql("SELECT count(*) AS rows, count(DISTINCT body) AS bodies FROM sent").first()
import aiorocket
said = {"homes": homes, "driver": aiorocket.__file__, "rows": found.rows, "bodies": found.bodies}
print(json.dumps(said), flush=True)
spark.stop()
"""


@contextmanager
def started(name: str, *arguments: str, env: Mapping[str, str], log: Path) -> Iterator[None]:
    """A process of Spark's own, ended with the block."""
    command = [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env) as process:
        try:
            yield
        finally:
            process.kill()


def wait_for_workers(page: int, count: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urlopen(f"http://127.0.0.1:{page}/json/", timeout=10) as answer:
                if json.load(answer)["aliveworkers"] == count:
                    return
        except (OSError, ValueError):  # no page yet, or one of HTML, as everything is at first
            pass
        time.sleep(0.2)
    raise AssertionError(f"{count} workers were not there in time")


def test_a_job_brings_aiorocket_to_a_cluster_that_has_none(nameserver: str, tmp_path: Path) -> None:
    libraries = [str(Path(each.__path__[0]).parent) for each in (pyspark, pyarrow, numpy)]
    if any((Path(each) / "aiorocket").exists() for each in libraries):
        pytest.skip("aiorocket is installed beside pyspark here, not as a checkout: no process is without it")
    send(nameserver, "submitted", [b"%d" % number for number in range(2000)], queues=4)
    create_topic(nameserver, "submitted-copies", 4)
    # Without site: no .pth file of this installation is read, so nothing but the zip has aiorocket.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    home = java_home()
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))},
        **({} if home is None else {"JAVA_HOME": home}), "SPARK_HOME": str(_SPARK), "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(libraries)), "PYSPARK_PYTHON": str(bare),
        "SPARK_WORKER_DIR": str(tmp_path / "work"), "SPARK_DAEMON_MEMORY": "256m",
    }  # fmt: skip
    bundle(str(tmp_path / "aiorocket.zip"))
    (tmp_path / "job.py").write_text(JOB)
    port, page = free_port(), free_port()
    here, master = ("--host", "127.0.0.1"), f"spark://127.0.0.1:{port}"
    worker = ("worker.Worker", *here, "--cores", "1", "--memory", "600m", "--webui-port", "0", master)
    with (
        started(
            "master.Master", *here, "--port", str(port), "--webui-port", str(page), env=env, log=tmp_path / "master"
        ),
        started(*worker, env=env, log=tmp_path / "worker-1"),
        started(*worker, env=env, log=tmp_path / "worker-2"),
    ):
        wait_for_workers(page, 2)
        done = subprocess.run(
            [
                _SPARK / "bin" / "spark-submit", "--master", master, "--py-files", "aiorocket.zip",
                "--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false",
                "--conf", f"spark.executorEnv.PYTHONPATH={env['PYTHONPATH']}", "job.py", nameserver,
            ],
            cwd=tmp_path, capture_output=True, text=True, timeout=240, env=env,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert (said["rows"], said["bodies"]) == (2000, 2000)
    assert "aiorocket.zip/" in said["driver"] and all("aiorocket.zip/" in each for each in said["homes"])
    assert len({each.split()[0] for each in said["homes"]}) == 2, said["homes"]
