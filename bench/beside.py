"""Apache RocketMQ beside the product: its Java and Go clients, its broker, each with ours and with each other.

    python -m bench.run --java             the rows of ``bench.run`` with Java beside them, and the mixed ones

Needs what ``tests/interop`` needs (JDK, Maven, Go; jars and programs are kept in ``AIOROCKET_PEERS``). A Java process
runs at a third of its speed in its first half minute, so its server and clients stay for all rounds of a scenario and
are warmed up before the first; ours are fresh in every round.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count as count_up
from pathlib import Path
from typing import Any, NamedTuple

from bench import wire
from bench.processes import ROOT, TICKS, BenchError, Child
from bench.scenarios import GROUP, QUEUES, TOPIC, client, standalone
from bench.sides import Runner, Sizes, products
from tests.interop import peers
from tests.ports import free_port

#: As Apache's own start scripts, with a heap of this machine's size.
JVM = ("-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xms2g", "-Xmx2g")
#: A broker for measurements: segments as large as its default, and no send refused because the machine was slow once.
BROKER = {"mappedFileSizeCommitLog": str(1 << 30), "waitTimeMillsInSendQueue": "30000"}


class Endpoint(NamedTuple):
    """A server under measurement: its ports, and the process id of its broker."""

    nameserver: int
    broker: int
    pid: int

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


class Tools(NamedTuple):
    """Apache's jars, and where ``Load.class`` and the Go program are."""

    jars: Path
    classes: Path
    go: Path


def tools() -> Tools:
    """Fetched and compiled once, then kept. BenchError says what is lacking."""
    if missing := peers.missing_programs():
        raise BenchError(f"--java: {missing}")
    jars = peers.fetch_jars()
    java, go = ROOT / "bench" / "java" / "Load.java", ROOT / "tests" / "interop" / "go"
    javac = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", "{place}", str(java)]
    return Tools(
        jars,
        compiled("load-java", [java], javac),
        compiled("load-go", sorted(go.iterdir()), ["go", "build", "-o", "{place}/smoke", "."], cwd=go),
    )


def compiled(name: str, sources: Sequence[Path], command: list[str], cwd: Path = ROOT) -> Path:
    """The folder ``{place}`` of what ``command`` makes, once per content of ``sources``."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    with peers.kept() as home:
        place = home / f"{name}-{digest}"
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=home) as partial:
                words = [word.replace("{place}", partial) for word in command]
                done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
                if done.returncode != 0:
                    raise BenchError(f"{' '.join(words)} failed: {done.stderr[-1000:]}")
                shutil.copytree(partial, place)
        return place


@contextmanager
def apache(made: Tools, flush: str, data: str | None) -> Iterator[Endpoint]:
    """Apache's name server and broker."""
    more = {**BROKER, "flushDiskType": "SYNC_FLUSH" if flush == "sync" else "ASYNC_FLUSH"}
    port = free_port(-2, 0, 1)
    with (
        tempfile.TemporaryDirectory(prefix="aiorocket-apache-", dir=data) as place,
        peers.apache_nameserver(made.jars, Path(place)) as (names, _),
        peers.apache_broker(made.jars, Path(place), names, port=port, more=more, java_options=JVM) as broker,
    ):
        broker.wait_until(lambda: peers.ask(names, wire.ROUTE, {"topic": "TBW102"})[0] == 0, "routable")
        yield Endpoint(int(names.rpartition(":")[2]), port, broker.pid)


@contextmanager
def standing(flush: str, data: str | None) -> Iterator[Endpoint]:
    with standalone(flush, data) as server:
        yield Endpoint(server.nameserver, server.broker, server.child.process.pid)


def java(made: Tools, server: Endpoint) -> Child:
    """A Java process with a producer or a consumer."""
    path = f"{made.classes}{os.pathsep}{made.jars}/*"
    home = f"-Duser.home={tempfile.gettempdir()}"
    # A machine that is busy for a moment is no reason to give up.
    patient = "-Dcom.rocketmq.remoting.client.connect.timeout=60000"
    argv = [*peers.JVM_OPTIONS, *JVM[:2], patient, "-Xms512m", "-Xmx1g", home, "-cp", path, "Load"]
    return Child("java", *argv, f"127.0.0.1:{server.nameserver}", program="java", patience=900.0)


def sides(name: str, sizes: Sizes, data: str, stack: ExitStack) -> dict[str, Runner]:
    """What runs beside the product in a scenario, or all of a mixed one; warm, and ended by ``stack``."""
    made = tools()

    def pair(flush: str, ours: bool = False) -> JavaPair:
        server = stack.enter_context(standing(flush, data) if ours else apache(made, flush, data))
        return JavaPair(made, server, stack)

    def all_pairs() -> dict[str, JavaPair]:
        """On Apache's broker and on ours, with the pure code and with the fast lane."""
        ours = products(partial(pair, "async", ours=True))
        return {"java": pair("async"), **{f"java on {side}": make() for side, make in ours.items()}}

    match name:
        case "single" | "single-sync" | "batch" | "batch-sync":
            kind, _, sync = name.partition("-")
            # SYNC_FLUSH is at its best with more in flight.
            batch, in_flight = (1, 1024 if sync else 256) if kind == "single" else (32, 16)
            count = sizes.single if kind == "single" else sizes.batch
            java = pair("sync" if sync else "async")
            java.end_to_end(sizes.warm_java, batch=batch, in_flight=in_flight)
            return {"java": lambda: java.end_to_end(count, batch=batch, in_flight=in_flight)}
        case "drain" | "orderly":
            java = pair("async")
            java.drain(sizes.warm_java, orderly=name == "orderly")
            return {"java": lambda: java.drain(sizes.drain, orderly=name == "orderly")}
        case "java-on-ours":
            pairs = all_pairs()
            for each in pairs.values():
                each.end_to_end(sizes.warm_java, batch=1, in_flight=256)
            return {
                side: partial(each.end_to_end, sizes.single, batch=1, in_flight=256) for side, each in pairs.items()
            }
        case "java-backlog":
            pairs = all_pairs()
            for each in pairs.values():
                each.end_to_end(sizes.warm_java, batch=1, in_flight=256)
            return {side: partial(each.backlog, sizes.backlog, in_flight=256) for side, each in pairs.items()}
        case "java-drains-ours":
            pairs = all_pairs()
            for each in pairs.values():
                each.drain(sizes.warm_java, orderly=False)
            return {side: partial(each.drain, sizes.drain, orderly=False) for side, each in pairs.items()}
        case _:  # ours-on-apache
            server = stack.enter_context(apache(made, "async", data))
            topics = (f"{TOPIC}-{number}" for number in count_up())
            go = partial(go_on, made, server, warm=sizes.warm)
            ours = partial(ours_on, server, warm=sizes.warm)
            go(next(topics), sizes.warm_java)
            found: dict[str, Runner] = {"go": lambda: go(next(topics), sizes.single)}
            return {**found, **products(lambda: ours(next(topics), sizes.single))}


class JavaPair:
    """Java's producer and consumer on one server."""

    def __init__(self, made: Tools, server: Endpoint, stack: ExitStack) -> None:
        self.server = server
        self.sends = stack.enter_context(java(made, server))
        self.takes = stack.enter_context(java(made, server))
        self._listening = 0
        self._drains = 0

    def end_to_end(self, count: int, *, batch: int, in_flight: int, size: int = 1024) -> dict[str, Any]:
        """As ``scenarios.end_to_end``; ``level`` is the rate at the listener as a part of the rate of sends."""
        if not self._listening:
            wire.create_topic(self.server.nameserver, self.server.broker, TOPIC, QUEUES)
            self.takes.ask(do="listen", topic=TOPIC, group=GROUP)
        load = {"do": "send", "topic": TOPIC, "in_flight": in_flight, "batch": batch, "size": size}
        count -= count % batch
        self._listening += count
        before = self.server.cpu()
        self.takes.tell(do="expect", count=self._listening)
        sent, taken = self.sends.ask(**load, count=count), self.takes.answer()
        stored = sum(wire.stored(self.server.broker, TOPIC, QUEUES))
        if (sent["sent"], sent["acknowledged"], stored) != (count, count, self._listening):
            raise BenchError(f"java: {count} were due, {sent}; stored {stored}, due {self._listening}")
        if taken["consumed"] != self._listening:
            raise BenchError(f"java: consumed {taken['consumed']}, due {self._listening}")
        rate, acknowledged = count / (taken["ended"] - sent["started"]), count / (sent["ended"] - sent["started"])
        cpu = {"producer": sent["cpu"], "broker": self.server.cpu() - before, "consumer": taken["cpu"]}
        return {
            "rate": round(rate),
            "acknowledged_rate": round(acknowledged),
            "level": round(rate / acknowledged, 2),
            "count": count,
            "cpu_us": {name: round(used / count * 1e6, 2) for name, used in cpu.items()},
        }

    def backlog(self, seconds: float, *, in_flight: int, size: int = 1024) -> dict[str, Any]:
        """``behind`` is how many messages the listener, at work since ``end_to_end``, has not seen of what is stored
        after that long of single sends, which go on meanwhile."""
        load = {"do": "send", "topic": TOPIC, "in_flight": in_flight, "batch": 1, "size": size}
        self.sends.tell(**load, seconds=seconds + 1)
        time.sleep(seconds)
        seen = self.takes.ask(do="count")["consumed"]
        behind = sum(wire.stored(self.server.broker, TOPIC, QUEUES)) - seen
        sent = self.sends.answer()
        self._listening += sent["sent"]
        taken = self.takes.ask(do="expect", count=self._listening)
        if (sent["acknowledged"], taken["consumed"]) != (sent["sent"], self._listening):
            raise BenchError(f"java: {sent}; consumed {taken['consumed']}, due {self._listening}")
        rate = sent["acknowledged"] / (sent["ended"] - sent["started"])
        return {"rate": round(rate), "count": sent["sent"], "behind": behind, "cpu_us": {}}

    def drain(self, count: int, *, orderly: bool, size: int = 1024) -> dict[str, Any]:
        """As ``scenarios.drain``: a topic and a group of its own, and a consumer that is new in a warm process."""
        self._drains += 1
        queues = 8 if orderly else QUEUES
        topic = f"{TOPIC}-{self._drains}"
        wire.create_topic(self.server.nameserver, self.server.broker, topic, queues)
        count -= count % 32
        self.sends.ask(do="send", topic=topic, in_flight=16, batch=32, size=size, count=count)
        before = self.server.cpu()
        taken = self.takes.ask(do="drain", topic=topic, group=f"{GROUP}-{topic}", count=count, orderly=32 * orderly)
        if taken["consumed"] != count:
            raise BenchError(f"java: drained {taken['consumed']}, due {count}")
        cpu = {"broker": self.server.cpu() - before, "consumer": taken["cpu"]}
        return {
            "rate": round(count / (taken["ended"] - taken["first"])),
            "count": count,
            "cpu_us": {name: round(used / count * 1e6, 2) for name, used in cpu.items()},
        }


def ours_on(server: Endpoint, topic: str, count: int, *, warm: int) -> dict[str, Any]:
    """Our producer alone, single sends; it works for every server."""
    wire.create_topic(server.nameserver, server.broker, topic, QUEUES)
    load = {"do": "send", "in_flight": 256, "batch": 1, "size": 1024}
    with client("producer", server, "--topic", topic) as sends:
        sends.answer()
        sends.ask(**load, count=warm)
        before = server.cpu()
        sent = sends.ask(**load, count=count)
        cpu = {"producer": sent["cpu"], "broker": server.cpu() - before}
    return only_sends(server, topic, count, warm, sent, cpu)


def go_on(made: Tools, server: Endpoint, topic: str, count: int, *, warm: int) -> dict[str, Any]:
    """The same with Apache's Go client."""
    wire.create_topic(server.nameserver, server.broker, topic, QUEUES)
    load = ["load", f"127.0.0.1:{server.nameserver}", topic, str(warm), str(count), "256", "1024"]
    with tempfile.TemporaryDirectory(prefix="aiorocket-go-") as place:
        before = server.cpu()
        done = subprocess.run(
            [str(made.go / "smoke"), *load], cwd=place, env={**os.environ, "HOME": place}, capture_output=True,
            text=True, check=False, timeout=600,
        )  # fmt: skip
        if done.returncode != 0:
            raise BenchError(f"go: {done.stderr[-500:]}")
        sent = json.loads(done.stdout.splitlines()[0])
        cpu = {"producer": sent["cpu"], "broker": (server.cpu() - before) * count / (count + warm)}
    return only_sends(server, topic, count, warm, sent, cpu)


def only_sends(
    server: Endpoint, topic: str, count: int, warm: int, sent: dict[str, Any], cpu: dict[str, float]
) -> dict[str, Any]:
    # Apache's broker puts into its queues a moment later what it has acknowledged.
    patience = time.monotonic() + 30
    while (stored := sum(wire.stored(server.broker, topic, QUEUES))) < warm + count and time.monotonic() < patience:
        time.sleep(0.1)
    if (sent["acknowledged"], stored) != (count, warm + count):
        raise BenchError(f"{count} were due, acknowledged {sent['acknowledged']}; stored {stored} with {warm} before")
    return {
        "rate": round(count / (sent["ended"] - sent["started"])),
        "count": count,
        "cpu_us": {name: round(used / count * 1e6, 2) for name, used in cpu.items()},
    }
