"""aiorocket in processes that do not have it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import StructType

from aiorocket.model import OutgoingMessage
from aiorocket.spark.shipping import bundle, travelling_source
from tests.spark.producing import send

_STEP = """
import sys
from importlib.util import find_spec
assert find_spec("aiorocket") is None or {bundled}, "this test needs a process without aiorocket"
from pyspark.serializers import CloudPickleSerializer
pickler = CloudPickleSerializer()
given = pickler.loads(open(sys.argv[1], "rb").read())
"""
#: What Spark's Python processes do, one after the other: each gets what the one before has pickled.
_CREATE = """
source = given({options!r})
result = source, source.schema()
"""
_PLAN = """
source, schema = given
reader = source.reader(schema=schema)
reader.pushFilters([])
result = reader, reader.partitions()
"""
_READ = """
reader, partitions = given
result = [body for part in partitions for batch in reader.read(part) for body in batch.column("body").to_pylist()]
"""
_END = """
open(sys.argv[2], "wb").write(pickler.dumps(result))
"""


def in_a_process_without_it(folder: Path, code: str, given: bytes, path: str = "") -> bytes:
    (folder / "given").write_bytes(given)
    done = subprocess.run(
        # Without site: no .pth file of this installation is read.
        [sys.executable, "-S", "-c", _STEP.format(bundled=bool(path)) + code + _END, "given", "result"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*([path] if path else []), *libraries()])},
        cwd=folder, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return (folder / "result").read_bytes()


def libraries() -> list[str]:
    return [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]


@pytest.mark.spark_long
def test_a_source_that_travels_reads_where_nothing_is_installed(nameserver: str, topic: str, tmp_path: Path) -> None:
    if any((Path(each) / "aiorocket").exists() for each in libraries()):
        pytest.skip("aiorocket is installed beside pyspark here, not as a checkout: no process is without it")
    sent = [OutgoingMessage(topic="", body=b"%d" % number, tag=f"t{number % 2}") for number in range(30)]
    send(nameserver, topic, sent, queues=2)
    pickler = CloudPickleSerializer()
    options = {"nameServer": nameserver, "topic": topic, "tags": "t1", "columns": "body"}
    carried = pickler.dumps(travelling_source())
    for code in (_CREATE.format(options=options), _PLAN, _READ):
        carried = in_a_process_without_it(tmp_path, code, carried)
    assert sorted(int(body) for body in pickler.loads(carried)) == list(range(1, 30, 2))


def test_the_bundle_is_enough_on_the_path(nameserver: str, topic: str, tmp_path: Path) -> None:
    send(nameserver, topic, ["a", "b"], queues=1)
    path = tmp_path / "aiorocket.zip"
    bundle(str(path))
    code = f"""
import aiorocket, pyspark_aiorocket
assert aiorocket.__file__.startswith({str(path)!r}), aiorocket.__file__
source = pyspark_aiorocket.DefaultSource({{"nameServer": {nameserver!r}, "topic": {topic!r}}})
reader = source.reader(schema=given)
result = [value for part in reader.partitions() for batch in reader.read(part) for value in batch["body"].to_pylist()]
"""
    pickler = CloudPickleSerializer()
    schema = pickler.dumps(StructType().add("body", "binary"))
    assert pickler.loads(in_a_process_without_it(tmp_path, code, schema, str(path))) == [b"a", b"b"]
