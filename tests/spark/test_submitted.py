"""``spark-submit`` to a standalone cluster of two workers, whose executors have nothing but Python: aiorocket comes as
a zip, numpy, pyarrow and msgspec in an archive, by the very lines of the README."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import msgspec
import numpy
import pyarrow
import pyspark
import pytest

from aiorocket.spark.pytest_plugin import TEST_CONF
from aiorocket.spark.session import java_home
from aiorocket.spark.shipping import bundle
from tests.ports import free_port
from tests.spark.producing import create_topic, send

pytestmark = [pytest.mark.spark_long, pytest.mark.timeout(600)]  # pip fetches 60 MB
_SPARK = Path(pyspark.__path__[0])
_LIBRARIES = (msgspec, numpy, pyarrow)
_README = Path(__file__).parents[2] / "aiorocket" / "spark" / "README.md"

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
    import os, aiorocket, msgspec, numpy, pyarrow
    modules = aiorocket, msgspec, numpy, pyarrow
    return " ".join([os.getcwd(), *(each.__file__ for each in modules)])  # the folder is the executor's

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


def documented(row: str) -> list[str]:
    """What stands as code behind ``row`` of the README's table of ways to executors."""
    [text] = re.findall(rf"^\| {re.escape(row)} \| (.+) \|$", _README.read_text(), re.MULTILINE)
    return re.findall(r"`([^`]+)`", text)


def test_a_job_brings_aiorocket_to_a_cluster_that_has_none(nameserver: str, tmp_path: Path) -> None:
    libraries = [str(Path(each.__path__[0]).parent) for each in (pyspark, *_LIBRARIES)]
    if any((Path(each) / "aiorocket").exists() for each in libraries):
        pytest.skip("aiorocket is installed beside pyspark here, not as a checkout: no process is without it")
    send(nameserver, "submitted", [b"%d" % number for number in range(2000)], queues=4)
    create_topic(nameserver, "submitted-copies", 4)
    # Without site and paths: no .pth file and no package of this installation is read, but by the driver.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    home, java = java_home(), TEST_CONF["spark.driver.extraJavaOptions"]
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON", "SPARK"))},
        **({} if home is None else {"JAVA_HOME": home}), "SPARK_HOME": str(_SPARK), "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(bare), "SPARK_WORKER_DIR": str(tmp_path / "work"), "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": java,
    }  # fmt: skip
    conf = {
        **TEST_CONF, "spark.executor.extraJavaOptions": java, "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        # Tasks begin when both executors are there.
        "spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "200s",
    }  # fmt: skip
    [zipped] = re.findall(r'^[\w.]+\.bundle\("(.+)"\)$', documented("`spark-submit --py-files`")[0])
    bundle(str(tmp_path / zipped))
    packs, brings = documented("executors that have none of these")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # of a virtual environment the pip
    subprocess.run(packs, shell=True, check=True, cwd=tmp_path, env={**os.environ, "PATH": path}, timeout=250)
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
                _SPARK / "bin" / "spark-submit", "--master", master, "--py-files", zipped, *shlex.split(brings),
                *(f"--conf={name}={value}" for name, value in conf.items()), "job.py", nameserver,
            ],
            cwd=tmp_path, capture_output=True, text=True, timeout=240,
            env={**env, "PYTHONPATH": os.pathsep.join(dict.fromkeys(libraries))},
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert (said["rows"], said["bodies"]) == (2000, 2000)
    homes = [each.split() for each in said["homes"]]
    assert "aiorocket.zip/" in said["driver"] and all("aiorocket.zip/" in each[1] for each in homes)
    assert len({each[0] for each in homes}) == 2, homes
    assert all(each.startswith(f"{where}/env/") for where, _, *packed in homes for each in packed), homes
