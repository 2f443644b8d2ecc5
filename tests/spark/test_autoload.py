"""The top-level module that Spark looks for is where it looks, however aiorocket was installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import aiorocket.spark

ROOT = Path(__file__).resolve().parents[2]
_LOOK_UP = """
import pkgutil
from importlib import import_module
names = [each.name for each in pkgutil.iter_modules() if each.name.startswith("pyspark_aio")]
print(names, [import_module(name).DefaultSource.name() for name in names])
import aiorocket.spark.decode, aiorocket.spark.fetch, aiorocket_protocol
print(aiorocket.__file__)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel, an sdist, and in ``editable`` the wheel of an editable install."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "editable").mkdir()
    editable = "import sys, hatchling.build as build; build.build_editable(sys.argv[1])"
    for command in (
        ["-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)],
        ["-c", editable, str(folder / "editable")],
    ):
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


@pytest.mark.spark_long
def test_the_wheel_has_it_once_beside_the_packages(built: Path) -> None:
    with zipfile.ZipFile(one(built, "*.whl")) as wheel:
        names = [name for name in wheel.namelist() if "pyspark_aiorocket" in name]
    assert names == ["pyspark_aiorocket.py"]


@pytest.mark.spark_long
def test_the_sdist_has_what_the_wheel_is_built_from(built: Path) -> None:
    with tarfile.open(one(built, "*.tar.gz")) as sdist:
        names = [name for name in sdist.getnames() if "pyspark_aiorocket" in name]
    assert len(names) == 1 and names[0].endswith("/aiorocket/spark/autoload/pyspark_aiorocket.py")


@pytest.mark.spark_long
def test_an_editable_install_points_at_the_checkout(built: Path) -> None:
    with zipfile.ZipFile(one(built / "editable", "*.whl")) as wheel:
        (path,) = [name for name in wheel.namelist() if name.endswith(".pth")]
        folders = wheel.read(path).decode().split()
    assert str(ROOT / "aiorocket" / "spark" / "autoload") in folders
    assert {str(ROOT), str(ROOT / "protocol")} <= set(folders)


@pytest.mark.spark_long
def test_the_wheel_as_a_zip_is_enough_for_an_executor(built: Path, tmp_path: Path) -> None:
    """``--py-files`` takes zips, and puts them on the path; Spark looks up data sources as is done here."""
    bundle = tmp_path / "aiorocket.zip"
    bundle.write_bytes(one(built, "*.whl").read_bytes())
    libraries = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    done = subprocess.run(
        # Without site, so that this installation's own aiorocket is not on the path.
        [sys.executable, "-S", "-c", _LOOK_UP],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(bundle), *libraries])},
        cwd=tmp_path, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names, home = done.stdout.splitlines()
    assert names == "['pyspark_aiorocket'] ['rocketmq']"
    assert home.startswith(str(bundle))


def imported_beside(*modules: str) -> set[str]:
    """What a new process has when it has imported these."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    path = os.pathsep.join([str(ROOT), str(ROOT / "protocol")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


#: What a process that reads never needs.
NOT_TO_READ = {
    "rich", "click", "pandas", "deltalake", "matplotlib", "aiorocket.broker.broker", "aiorocket.client.app",
    "aiorocket.client.push.consumer", "aiorocket.client.sending.producer",
}  # fmt: skip


def test_spark_processes_import_what_their_part_needs() -> None:
    schema = {"aiorocket.client.session", "aiorocket.remoting", "asyncio", "anyio", "pyarrow.compute"}
    assert not imported_beside("aiorocket.spark.source") & (NOT_TO_READ | schema)
    assert not imported_beside("aiorocket.spark.batch", "aiorocket.spark.stream") & NOT_TO_READ
    assert not imported_beside("aiorocket.spark.sink") & {"aiorocket.client.session", *NOT_TO_READ}


def test_public_names_are_there() -> None:
    for name in ("RocketMQDataSource", "spark_session", "register", "DataLossError", "LagListener"):
        assert getattr(aiorocket.spark, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = aiorocket.spark.nothing  # type: ignore[attr-defined]
