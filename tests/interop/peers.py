"""The real peers as processes: Apache RocketMQ's name server and broker, its Java client, and our own servers.

Everything is started by this module and ended by it through the process objects it holds; each wait has a bound, each
process a log file whose tail is part of the error when a bound is reached. The jars come through ``java/pom.xml``.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.ports import free_port

__all__ = (
    "BRIEF",
    "NEWEST",
    "OLDER",
    "ROOT",
    "TIED",
    "Admin",
    "Command",
    "JavaClient",
    "JavaRun",
    "Process",
    "Server",
    "apache_broker",
    "apache_nameserver",
    "apache_server",
    "ask",
    "class_path",
    "fetch_jars",
    "inside",
    "kept",
    "missing_programs",
    "online",
    "our_server",
    "wait_for_statistics",
)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
POM = HERE / "java" / "pom.xml"
#: The version in the pom, and another of its jars by name.
NEWEST, OLDER = "5.5.0", "4.9.7"
#: Our programs, by the version of Apache's jars that they compile against.
PROGRAMS = {NEWEST: ("*",), OLDER: ("Access", "Admin", "Features", "Members", "Steady")}

#: What Apache's own start scripts open for a Java above 8; without it the store's direct buffers and locks fail.
JVM_OPTIONS = (
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang", "java.util")),
    *(f"--add-exports=java.base/{name}=ALL-UNNAMED" for name in ("jdk.internal.ref", "sun.nio.ch")),
    "-XX:+UseSerialGC",
)

#: Of servers that live for minutes: the second compiler would cost more than it brings.
BRIEF = ("-XX:TieredStopAtLevel=1",)

#: Before a command: Linux kills it when the thread that started it is gone. Whoever breaks pytest off ends the workers
#: in the midst of a test, and no fixture ends what it began.
TIED = ("setpriv", "--pdeathsig", "KILL") if sys.platform == "linux" else ()

READY_LIMIT = 180.0
STOP_LIMIT = 20.0


#: A command of mqadmin -> what it printed.
Command = Callable[..., Awaitable[str]]

#: Fields of a request -> the same with a signature.
Signed = Callable[[dict[str, str]], dict[str, str]]


class Server(NamedTuple):
    """A running name server with one registered broker."""

    kind: str
    nameserver: str
    broker: str
    #: Seconds after which a first failure comes back (delay level 3).
    first_retry: float


def missing_programs() -> str:
    """What is lacking on this machine to run the Java side, as one line; empty when nothing is."""
    missing = [name for name in ("java", "javac", "mvn", *TIED[:1]) if shutil.which(name) is None]
    return f"not on PATH: {', '.join(missing)} (a JDK >= 17, Maven and util-linux are needed)" if missing else ""


@contextmanager
def kept() -> Iterator[Path]:
    """The folder for what registries gave, kept from run to run; nobody else changes it meanwhile."""
    home = Path(os.environ.get("AIOROCKET_PEERS") or ROOT / ".peers").resolve()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield home


def fetch_jars(version: str = NEWEST, *, pom: Path = POM) -> Path:
    """The folder with the jars of ``pom`` in one version, copied there by Maven once per content of the pom."""
    of = ("" if version == NEWEST else f"{version}-") + ("" if pom == POM else f"{pom.parent.name}-")
    with kept() as home:
        lib = home / f"apache-{of}{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
        if lib.is_dir():
            return lib
        partial, log = home / f"{lib.name}.{os.getpid()}", home / f"{lib.name}.log"
        command = ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
        command.append(f"-Drocketmq.version={version}")
        with log.open("wb") as out:
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=900, check=False
            ).returncode
        if code != 0:
            shutil.rmtree(partial, ignore_errors=True)
            raise RuntimeError(f"Maven could not fetch the jars (exit {code}); {log} ends with:\n{_tail(log)}")
        partial.rename(lib)
        return lib


@cache  # whoever asks again does not wait for others that fetch
def class_path(version: str = NEWEST) -> str:
    """Java's, with the jars of one version and our programs of ``java``, compiled once per content of these."""
    lib = fetch_jars(version)
    programs = sorted(path for name in PROGRAMS[version] for path in POM.parent.glob(f"{name}.java"))
    content = b"".join(path.read_bytes() for path in (POM, *programs))
    with kept() as home:
        classes = home / f"classes-{version}-{hashlib.sha256(content).hexdigest()[:12]}"
        if not classes.is_dir():
            partial = home / f"{classes.name}.{os.getpid()}"
            command = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{lib}/*", "-d", str(partial)]
            result = subprocess.run(
                [*command, *map(str, programs)], capture_output=True, text=True, timeout=300, check=False
            )
            if result.returncode != 0:
                shutil.rmtree(partial, ignore_errors=True)
                raise RuntimeError(f"javac failed:\n{result.stderr}")
            partial.rename(classes)
    return f"{classes}{os.pathsep}{lib}/*"


def ask(
    address: str, code: int, fields: Mapping[str, str], *, timeout: float = 30.0
) -> tuple[int, dict[str, str], bytes]:
    """One JSON request on a fresh connection, written without our protocol package so that it can judge both sides.

    Returns (response code, ext fields, body); OSError when the peer cannot be reached or hangs up.
    """
    host, port = address.rsplit(":", 1)
    header = json.dumps(
        {"code": code, "language": "JAVA", "version": 479, "opaque": 1, "flag": 0, "extFields": dict(fields)},
        separators=(",", ":"),
    ).encode()
    with socket.create_connection((host, int(port)), timeout=timeout) as link, link.makefile("rb") as answer:
        link.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        prefix = answer.read(8)
        if len(prefix) < 8:
            raise ConnectionError(f"{address} hung up on request {code}")
        total, header_length = struct.unpack(">II", prefix)
        if header_length >> 24:
            raise ConnectionError(f"{address} answered JSON request {code} in serialize type {header_length >> 24}")
        head = json.loads(answer.read(header_length))
        body = answer.read(total - 4 - header_length)
    return head["code"], head.get("extFields") or {}, body


class Process:
    """A child of ours with a log file; ended by its process object, never by name."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str], *, patience: float = STOP_LIMIT
    ) -> None:
        self.name = name
        self.log = log
        self._patience = patience
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                [*TIED, *command],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=log.parent, env=dict(env),
            )  # fmt: skip

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.terminate()
        try:
            self._child.wait(self._patience)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def pid(self) -> int:
        return self._child.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it has ended."""
        self._child.kill()
        self._child.wait(STOP_LIMIT)

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_LIMIT
        while True:
            code = self._child.poll()
            if code is not None:
                raise RuntimeError(f"{self.name} exited with {code}, not yet {what}; its log:\n{_tail(self.log)}")
            with suppress(OSError):
                if ready():
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: not {what} in {READY_LIMIT:g} s; its log:\n{_tail(self.log)}")
            time.sleep(0.1)


def inside(place: Path) -> tuple[str, ...]:
    """Options of a JVM that keeps its files in ``place``, temporary ones too: who is killed leaves them."""
    return f"-Duser.home={place}", f"-Djava.io.tmpdir={place}", "-XX:-UsePerfData"


def _java(lib: Path, place: Path, heap: str, main: str, conf: str, options: Sequence[str]) -> list[str]:
    # With TLS each server, of which a broker is two, makes an RSA key before it listens: seconds of a core.
    more = [*JVM_OPTIONS, *heap.split(), *inside(place), "-Dtls.server.mode=disabled", *options]
    return ["java", *more, "-cp", f"{lib}/*", main, "-c", str(place / conf)]


def _home(place: Path, nameserver: str) -> dict[str, str]:
    """The environment of Apache's servers, with what 4.9 does not start without."""
    (place / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("broker", "namesrv"):
        (place / "conf" / f"logback_{name}.xml").write_text('<configuration><root level="OFF"/></configuration>')
    return {**os.environ, "ROCKETMQ_HOME": str(place), "NAMESRV_ADDR": nameserver}


@contextmanager
def apache_nameserver(
    lib: Path, place: Path, *, more: Mapping[str, str] | None = None, java_options: Sequence[str] = BRIEF
) -> Iterator[tuple[str, Process]]:
    """Apache's name server on a free loopback port, answering; and its process. ``more`` are settings."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    env = _home(place, address)
    # kvConfigPath and configStorePath default to the user's home, which is ${user.home} in _java.
    settings = {"listenPort": str(port), "bindAddress": "127.0.0.1", **(more or {})}
    (place / "ns.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    command = _java(lib, place, "-Xms128m -Xmx256m", main, "ns.conf", java_options)
    with Process("Apache's name server", command, place / "nameserver.log", env, patience=2) as process:
        process.wait_until(lambda: ask(address, 106, {})[0] in (0, 1), "answering")
        yield address, process


@contextmanager
def apache_broker(
    lib: Path,
    place: Path,
    nameservers: str,
    *,
    port: int,
    more: Mapping[str, str] | None = None,
    java_options: Sequence[str] = BRIEF,
) -> Iterator[Process]:
    """Apache's broker on a loopback ``port`` whose neighbours are free (``free_port(-2, 0, 1)``), just started.
    ``more`` are settings; started again in the same place it has what it had."""
    env = _home(place, nameservers.partition(";")[0])
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": str(port),
        "haListenPort": str(port + 1),
        "namesrvAddr": nameservers,
        "storePathRootDir": str(place / "store"),
        "storePathCommitLog": str(place / "store" / "commitlog"),
        # A test writes kilobytes; the default preallocates a gigabyte and maps it twice.
        "mappedFileSizeCommitLog": str(64 << 20),
        "autoCreateTopicEnable": "true",
        "flushDiskType": "ASYNC_FLUSH",
        "enablePropertyFilter": "true",
        # Half messages are asked about after 6 s and every 30 s; a test asks more often.
        "transactionTimeOut": "3000",
        "transactionCheckInterval": "5000",
        "slaveReadEnable": "false",
        # It answers that it is busy when a send has waited for 200 ms, as it may where others use the machine too.
        "waitTimeMillsInSendQueue": "60000",
        "osPageCacheBusyTimeOutMills": "60000",
        # Off by default.
        "recallMessageEnable": "true",
        # Each time it compares the 38 MB of its wheel of timers byte by byte: every second, for a tenth of a core.
        "timerFlushIntervalMs": "600000",
        # The default refuses writes on machines whose disk is 75 % full, however much that leaves.
        "diskMaxUsedSpaceRatio": "95",
        **(more or {}),
    }
    (place / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    main = "org.apache.rocketmq.broker.BrokerStartup"
    command = _java(lib, place, "-Xms256m -Xmx512m", main, "broker.conf", java_options)
    # Its orderly shutdown takes up to 20 s and saves a store that the test throws away.
    with Process("Apache's broker", command, place / "broker.log", env, patience=2) as process:
        yield process


@contextmanager
def apache_server(
    lib: Path,
    place: Path,
    *,
    more: Mapping[str, str] | None = None,
    java_options: Sequence[str] = BRIEF,
    also: str = "",
) -> Iterator[Server]:
    """Apache RocketMQ: a name server and a broker on free loopback ports, ready when TBW102 has a route. ``more`` are
    settings of the broker, ``java_options`` are for both processes; the broker registers at the name server ``also``
    too."""
    port = free_port(-2, 0, 1)
    with apache_nameserver(lib, place, java_options=java_options) as (nameserver, _):
        names = f"{nameserver};{also}" if also else nameserver
        with apache_broker(lib, place, names, port=port, more=more, java_options=java_options) as broker:
            broker.wait_until(lambda: ask(nameserver, 105, {"topic": "TBW102"})[0] == 0, "routable")
            yield Server("apache", nameserver, f"127.0.0.1:{port}", first_retry=10.0)


def wait_for_statistics(server: Server) -> None:
    """Apache's hold nothing in a broker's first second, and GET_BROKER_RUNTIME_INFO (28) then is a SYSTEM_ERROR."""
    deadline = time.monotonic() + 60
    while (code := ask(server.broker, 28, {})[0]) != 0:
        assert time.monotonic() < deadline, f"no statistics: code {code}"
        time.sleep(0.1)


@contextmanager
def our_server(
    place: Path, *more: str, both: Sequence[str] = (), only_broker: Sequence[str] = (), signed: Signed = dict
) -> Iterator[Server]:
    """Our name server and our broker with a durable store, as two processes of the installed command line. ``both``,
    and ``only_broker`` and ``more``, are further options of theirs; ``signed`` signs what the harness asks of them."""
    place.mkdir(parents=True, exist_ok=True)
    ns_port, broker_port = free_port(), free_port(-2, 0)
    nameserver, broker = f"127.0.0.1:{ns_port}", f"127.0.0.1:{broker_port}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "protocol"))), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", "from aiorocket.cli.main import main; main()"]
    with ExitStack() as stack:
        ns = stack.enter_context(
            Process(
                "our name server",
                [*command, "nameserver", "--port", str(ns_port), *both],
                place / "nameserver.log",
                env,
            )
        )
        ns.wait_until(lambda: ask(nameserver, 106, signed({}))[0] in (0, 1), "answering")
        arguments = ["broker", "--port", str(broker_port), "--nameserver", nameserver, "--data", str(place / "store")]
        arguments += [*both, *only_broker, *more]
        started = stack.enter_context(Process("our broker", [*command, *arguments], place / "broker.log", env))
        started.wait_until(lambda: ask(nameserver, 105, signed({"topic": "TBW102"}))[0] == 0, "routable")
        yield Server("ours", nameserver, broker, first_retry=10.0)


@contextmanager
def online(program: str, argument: str) -> Iterator[str]:
    """A Python ``program`` of ours for as long as the block; the first line that it prints."""
    command = [*TIED, sys.executable, "-c", program, argument]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child.stdout.readline()
    finally:
        child.kill()
        child.communicate()


class JavaRun:
    """One running program; ``events`` grows by each JSON line it prints."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.events: list[dict[str, Any]] = []
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, name: str, command: Sequence[str], log: Path) -> JavaRun:
        """Its home is the folder of its ``log``, which gets its errors."""
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *TIED, *command,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=log.parent,
                env={**os.environ, "HOME": str(log.parent)},
            )  # fmt: skip
        return cls(name, process, log)

    async def until(self, event: str, *, limit: float) -> dict[str, Any]:
        """Read lines up to the next ``event``; what came before it is in ``events`` too."""
        try:
            async with asyncio.timeout(limit):
                while True:
                    line = await self._next()
                    if line is None:
                        raise AssertionError(f"{self.name} ended before {event!r}; its errors:\n{_tail(self._log)}")
                    if line["event"] == event:
                        return line
        except TimeoutError:
            raise AssertionError(
                f"{self.name}: no {event!r} in {limit:g} s, last {self.events[-3:]}; its errors:\n{_tail(self._log)}"
            ) from None

    async def read(self) -> dict[str, Any]:
        """The next line, however long it takes; it is in ``events`` too."""
        line = await self._next()
        if line is None:
            raise AssertionError(f"{self.name} ended; its errors:\n{_tail(self._log)}")
        return line

    async def finish(self, *, limit: float) -> list[dict[str, Any]]:
        """All events, after the program ended by itself with status 0; some wait for their standard input to end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self.until("done", limit=limit)
        async with asyncio.timeout(STOP_LIMIT):
            while await self._next() is not None:
                pass
            code = await self._process.wait()
        assert code == 0, f"{self.name} exited with {code}; its errors:\n{_tail(self._log)}"
        return self.events

    async def leave(self, *, limit: float) -> list[dict[str, Any]]:
        """SIGTERM, and wait until it has ended by itself; all events."""
        self._process.terminate()
        await self.until("done", limit=limit)
        await self.end()
        return self.events

    async def end(self) -> None:
        """Kill it if it still runs, and reap it."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        await self._process.stdout.read()
        await self._process.wait()

    async def _next(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        while raw := await self._process.stdout.readline():
            if raw.startswith(b"{"):  # a JVM may print warnings of its own
                event: dict[str, Any] = json.loads(raw)
                self.events.append(event)
                return event
        return None


class JavaClient:
    """Starts programs on Apache's official client; their home and their error logs are in ``place``."""

    def __init__(self, place: Path, version: str = NEWEST) -> None:
        self._path = class_path(version)
        self._place = place
        self._runs: list[JavaRun] = []

    async def start(self, *arguments: str, program: str = "Smoke") -> JavaRun:
        name = f"{program.lower()}-{len(self._runs)}-{arguments[0]}"
        options = [*JVM_OPTIONS, "-Xmx256m", *BRIEF, *inside(self._place)]
        command = ["java", *options, "-cp", self._path, program, *arguments]
        run = await JavaRun.start(name, command, self._place / f"{name}.log")
        self._runs.append(run)
        return run

    async def close(self) -> None:
        for run in self._runs:
            await run.end()


class Admin:
    """Apache's mqadmin of one version: many commands in one process, for a start takes seconds."""

    def __init__(self, place: Path, nameserver: str, version: str = NEWEST) -> None:
        conf = place / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        for name in ("logback_tools.xml", "rmq.tools.logback.xml"):
            (conf / name).write_text('<configuration><root level="OFF"/></configuration>')
        options = [*JVM_OPTIONS, "-Xmx256m", *BRIEF, *inside(place)]
        with (place / "mqadmin.log").open("wb") as errors:
            self._child = subprocess.Popen(
                [*TIED, "java", *options, f"-Drocketmq.namesrv.addr={nameserver}", "-cp", class_path(version), "Admin"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=place, text=True,
                env={**os.environ, "ROCKETMQ_HOME": str(place), "NAMESRV_ADDR": nameserver},
            )  # fmt: skip

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait(STOP_LIMIT)
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        self._child.stdout.close()

    def __call__(self, *arguments: str) -> str:
        """What the command printed, without logback's own lines."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write("\t".join(arguments) + "\n")
        self._child.stdin.flush()
        for line in self._child.stdout:
            if line.startswith('{"event":"said"'):
                said: str = json.loads(line)["text"]
                return "\n".join(each for each in said.splitlines() if "|-" not in each)
        raise RuntimeError(f"mqadmin ended at {arguments}")


def _tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) or "(nothing)"
