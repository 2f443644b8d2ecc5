"""An archive, tables and checkpoints in S3: a server of its own (moto), pyarrow's files in tasks, s3a in the JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pyspark
import pytest

from aiorocket.errors import UsageError
from aiorocket.spark.steps.files.folder import Folder
from tests.interop.peers import fetch_jars, missing_programs
from tests.ports import free_port
from tests.spark.producing import create_topic, send

_ROOT = Path(__file__).parents[2]
_POM = Path(__file__).parent / "s3a" / "pom.xml"

#: What is done in one session; each crash leaves what a process that died there would leave.
JOB = """
import json, os, sys
from aiorocket.spark import spark_session, steps
from aiorocket.spark.columns import ROW_COLUMNS
from aiorocket.spark.pytest_plugin import TEST_CONF
from aiorocket.spark.steps.files import claims
from aiorocket.spark.steps.files.folder import Folder
from tests.spark.lakes import CrashError, crash_at
from tests.spark.producing import send

nameserver, jars = sys.argv[1:]
endpoint = os.environ["AWS_ENDPOINT_URL"]
s3a = {"endpoint": endpoint, "endpoint.region": "us-east-1", "path.style.access": "true"}
spark = spark_session(master="local[2]", conf={
    **TEST_CONF, "spark.jars": jars, **{f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()},
})
lake, said = "s3://lake/orders", {}
names = (lake, "s3a://lake/orders/")
folders = [steps.Archive.create(each, format="delta", columns=ROW_COLUMNS).folder for each in names]
assert {(each.uri("x"), each.full("x")) for each in folders} == {("s3a://lake/orders/x", "lake/orders/x")}

def archive(mode, *crashes):
    for name in crashes:
        try:
            steps.archive(spark, lake, nameserver, "orders", mode=mode, format="delta", on_step=crash_at(name))
        except CrashError:
            pass
    report = steps.archive(spark, lake, nameserver, "orders", mode=mode, format="delta", max_rows=150)
    return report.rows_out, report.complete

said["direct"] = archive("direct", "written", "moved")

def second(at):
    try:
        steps.compact(spark, lake)
    except steps.ArchiveConflictError as error:
        said["second"] = f"process {os.getpid()} on" in str(error)

claims._RENEW = 1.0  # a second run waits for so long to see that the first lives
for name in ("written", "published"):
    try:
        steps.compact(spark, lake, on_step=crash_at(name))
    except CrashError:
        pass
    assert not Folder(lake).names("_claims/compact")
report = steps.compact(spark, lake, keep=0, on_step=second)  # three files were replaced, one lay about
said["files"] = [report.details["files_before"], report.details["removed"]]
send(nameserver, "orders", [json.dumps({"id": number}) for number in range(400, 480)])
said["spark"] = archive("spark", "published")
said["verify"] = steps.verify(spark, lake).complete
rows = steps.archive_rows(spark, lake)
said["rows"] = [rows.count(), rows.select("queueId", "queueOffset").distinct().count()]
to = steps.Output("s3a://lake/decoded", "delta")
said["decode"] = steps.run_decode(spark, steps.Input(lake), to, schema="id LONG", max_rows=200).rows_out
report = steps.compact(spark, "s3a://lake/decoded")
said["table"] = [report.details["files_after"], report.rows_out]
said["restore"] = steps.restore(spark, lake, nameserver, to_topic="again").complete
stream = spark.readStream.format("rocketmq").options(nameServer=nameserver, topic="again", startingOffsets="earliest")
for part in range(2):  # the second finds nothing new
    query = (
        stream.load().select("body").writeStream.format("rocketmq")
        .options(nameServer=nameserver, topic="once", sinkMode="exactlyOnce", checkpointLocation="s3a://lake/checkpoint")
        .trigger(availableNow=True).start()
    )
    assert query.awaitTermination(200)
once = steps.topic_rows(spark, nameserver, "once")
said["once"] = [once.count(), once.select("body").distinct().count()]
print(json.dumps(said), flush=True)
spark.stop()
"""


def jars() -> str:
    """Hadoop's s3a in pyspark's own version of Hadoop, for ``spark.jars``."""
    lib = fetch_jars(pom=_POM)
    [ours] = lib.glob("hadoop-aws-*.jar")
    hadoop = ours.name.replace("aws", "client-api")
    assert (Path(pyspark.__path__[0]) / "jars" / hadoop).exists(), (
        f"pyspark has another Hadoop than {_POM}: set it there"
    )
    return ",".join(str(each) for each in sorted(lib.glob("*.jar")) if not each.name.startswith("slf4j"))


@contextmanager
def s3(bucket: str, log: Path) -> Iterator[str]:
    """``http://host:port`` of a server in a process of its own (deltalake holds Python's lock while it waits)."""
    port = free_port()
    command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    address = f"http://127.0.0.1:{port}"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    urlopen(Request(f"{address}/{bucket}", method="PUT"), timeout=30).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline and process.poll() is None, log.read_text()
                    time.sleep(0.1)
            yield address
        finally:
            process.kill()


def test_options_in_an_address_are_refused() -> None:
    with pytest.raises(UsageError, match="no options in an address"):
        Folder("s3://lake/orders?endpoint_override=127.0.0.1")


@pytest.mark.spark_long
@pytest.mark.timeout(600)  # Maven, and a JVM of its own
def test_the_way_of_rows_through_s3_with_crashes(nameserver: str, tmp_path: Path) -> None:
    pytest.importorskip("moto", reason="the extra dev is not installed")
    pytest.importorskip("deltalake")
    if missing := missing_programs():
        pytest.skip(missing)
    found = jars()
    send(nameserver, "orders", [json.dumps({"id": number}) for number in range(400)])
    create_topic(nameserver, "once", 4)
    paths = [str(_ROOT), str(_ROOT / "protocol"), str(_ROOT / "aiorocket/spark/autoload")]
    with s3("lake", tmp_path / "moto") as address:
        done = subprocess.run(
            [sys.executable, "-c", JOB, nameserver, found], cwd=tmp_path, capture_output=True, text=True, timeout=500,
            env={
                **os.environ, "PYTHONPATH": os.pathsep.join(paths), "AWS_ENDPOINT_URL": address,
                "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
                "AWS_ALLOW_HTTP": "true",
            },
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert said == {
        "direct": [400, True], "second": True, "files": [1, 4], "spark": [0, True], "verify": True, "rows": [480, 480],
        "decode": 480, "table": [2, 480], "restore": True, "once": [480, 480],
    }  # fmt: skip
