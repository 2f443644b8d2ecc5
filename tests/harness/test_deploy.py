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

import pytest

pytestmark = pytest.mark.harness

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
#: An account that owns nothing, as of DynamicUser.
NOBODY = 65534


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
        home.mkdir(parents=True)
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.channel.settimeout(60)
        self.channel.bind(str(place / f"{name}.notify"))
        (place / f"{name}.notify").chmod(0o777)
        environment = dict(each.split("=", 1) for each in unit.get("Environment", "").split())
        environment |= {"NOTIFY_SOCKET": str(place / f"{name}.notify"), "WATCHDOG_USEC": "2000000", **variables}
        command = [*re.sub(r"(^|\s)/(opt|etc|var)/", rf"\1{place}/\2/", unit["ExecStart"]).split(), *more]
        root = os.geteuid() == 0 and reachable(command[0])
        if root:
            os.chown(home, NOBODY, NOBODY)

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

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.told("STOPPING=1")
        out, err = self.process.communicate(timeout=60)
        assert (self.process.returncode, err) == (0, ""), out

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
        broker.stop()
        names.stop()
    finally:
        for service in services:
            service.end()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_reads_the_units(place: Path, tmp_path: Path) -> None:
    for unit in UNITS.glob("*.service"):
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace("/opt/", f"{place}/opt/"))
    told = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())], capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0 and told.stderr == "", told.stderr
