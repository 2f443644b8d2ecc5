"""The product's scenarios: each starts its processes, checks every count three ways and returns figures.

What was sent must equal what was acknowledged, what the listener saw, what the broker says it holds and, after the
consumer has stopped, what the group has committed.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any, NamedTuple, Protocol

from aiorocket import ClientConfig
from aiorocket.load import Scenario, measure
from bench import wire
from bench.processes import BenchError, Child
from bench.roles import groups_of
from tests.ports import free_port

QUEUES = 4
TOPIC = "bench"
GROUP = "bench-consumer"
COMMAND = "from aiorocket.cli.main import main; main()"
READY = re.compile(r"name server \S+?:(\d+), broker \S+ \S+?:(\d+)")


class Server(NamedTuple):
    child: Child
    nameserver: int
    broker: int


@contextmanager
def standalone(
    flush: str, data: str | None = None, instrument: tuple[str, ...] = (), queues: int = QUEUES
) -> Iterator[Server]:
    """``aiorocket standalone`` on free ports with the topic made, in a directory that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="aiorocket-bench-", dir=data) as directory:
        if instrument:
            argv = ["-m", "bench.roles", "server", "--data", directory, "--flush", flush, *instrument]
        else:
            argv = ["-c", COMMAND, "standalone", "--port", "0", "--broker-port", "0", "--data", directory]
            argv += ["--flush", flush]
        with Child("standalone", *argv) as child:
            if instrument:
                ports = child.answer()
                server = Server(child, ports["nameserver"], ports["broker"])
            else:
                line = child.line()
                if (found := READY.search(line)) is None:
                    raise BenchError(f"standalone said {line!r:.200} where its ready line was due")
                server = Server(child, int(found[1]), int(found[2]))
            wire.create_topic(server.nameserver, server.broker, TOPIC, queues)
            yield server


class Known(Protocol):
    """Whoever has a name server."""

    @property
    def nameserver(self) -> int: ...


def client(role: str, server: Known, *options: str) -> Child:
    return Child(role, "-m", "bench.roles", role, "--nameserver", f"127.0.0.1:{server.nameserver}", *options)


def check(
    server: Server, count: int, consumer: Child, queues: int = QUEUES, groups: int = 1, **reported: float
) -> None:
    """Stop the consumer, then compare every count with ``count``; BenchError names those that differ."""
    stopped = consumer.ask(do="stop")
    counts = {
        **reported,
        "consumed after stop": stopped["consumed"] / groups,
        "stored": sum(wire.stored(server.broker, TOPIC, queues)),
    }
    for group in groups_of(GROUP, groups):
        counts[f"committed by {group}"] = sum(wire.committed(server.broker, TOPIC, queues, group))
    if wrong := {name: value for name, value in counts.items() if value != count}:
        raise BenchError(f"{count} messages were due: {wrong}")


def end_to_end(
    count: int = 200_000,
    *,
    flush: str = "async",
    in_flight: int = 256,
    batch: int = 1,
    warm: int = 4_000,
    size: int = 1024,
    data: str | None = None,
) -> dict[str, Any]:
    """Acknowledged sends with one consumer beside them; msg/s from the first send to the last one's listener."""
    count, warm = count - count % batch, warm - warm % batch
    load = {"do": "send", "in_flight": in_flight, "batch": batch, "size": size}
    with standalone(flush, data) as server, client("producer", server) as sends, client("consumer", server) as takes:
        sends.answer(), takes.answer()
        takes.tell(do="expect", count=warm)
        sends.ask(**load, count=warm)
        takes.answer()
        before = server.child.cpu()
        takes.tell(do="expect", count=warm + count)
        sent, taken = sends.ask(**load, count=count), takes.answer()
        cpu = {"producer": sent["cpu"], "broker": server.child.cpu() - before, "consumer": taken["cpu"]}
        check(
            server, warm + count, takes,
            sent=warm + sent["sent"], acknowledged=warm + sent["acknowledged"], consumed=taken["consumed"],
        )  # fmt: skip
    return {
        "rate": round(count / (taken["ended"] - sent["started"])),
        "acknowledged_rate": round(count / (sent["ended"] - sent["started"])),
        "count": count,
        "cpu_us": {name: round(used / count * 1e6, 2) for name, used in cpu.items()},
    }


def drain(
    count: int = 500_000,
    *,
    size: int = 1024,
    queues: int = QUEUES,
    orderly: int = 0,
    groups: int = 1,
    assigned_first: bool = False,
    data: str | None = None,
) -> dict[str, Any]:
    """Messages that wait in the broker, taken by one consumer whose listener does nothing. ``orderly`` is the batch
    size of an orderly listener; ``groups`` are in the consumer's process, each gets everything; with
    ``assigned_first`` nothing counts before the queues are assigned and the load is digested."""
    count -= count % 32
    options = ["--wait", "--groups", str(groups), "--orderly", str(orderly)]
    options += ["--paused"] if assigned_first else []
    due = count * groups
    with standalone("async", data, queues=queues) as server:
        with client("producer", server) as sends:
            sends.answer()
            sent = sends.ask(do="send", count=count, in_flight=16, batch=32, size=size)
        with client("consumer", server, *options) as takes:
            takes.answer()
            if assigned_first:
                rest(server)
            before = server.child.cpu()
            taken = takes.ask(do="expect", count=due)
            cpu = {"broker": server.child.cpu() - before, "consumer": taken["cpu"]}
            check(
                server, count, takes, queues, groups,
                sent=sent["sent"], acknowledged=sent["acknowledged"], consumed=taken["consumed"] / groups,
            )  # fmt: skip
    return {
        "rate": round(due / (taken["ended"] - taken["first"])),
        "first_message_ms": round((taken["first"] - taken["started"]) * 1e3, 1),
        "count": count,
        "cpu_us": {name: round(used / due * 1e6, 2) for name, used in cpu.items()},
    }


def rest(server: Server, patience: float = 120.0) -> None:
    """Wait until the broker has done what is left of the load (its key index comes by and by)."""
    last, deadline = -1.0, time.monotonic() + patience
    while (now := server.child.cpu()) > last + 0.01:
        if time.monotonic() > deadline:
            raise BenchError(f"the broker is still busy {patience:g} s after the load")
        last = now
        time.sleep(1.0)


def latency(
    rate: int = 1_000, seconds: float = 10.0, *, flush: str = "async", size: int = 1024, data: str | None = None
) -> dict[str, Any]:
    """Milliseconds from when a message was due to its listener at a fixed rate: an open loop of ``aiorocket.load``."""
    load = Scenario(queues=QUEUES, rate=rate, seconds=seconds, warmup=1.0, size=size, processes=2, flush=flush)
    with standalone(flush, data) as server:
        before = server.child.cpu()
        config = ClientConfig(nameservers=(f"127.0.0.1:{server.nameserver}",))
        found = asyncio.run(measure(load, config))
        busy = server.child.cpu() - before
    figures, checks = found["figures"], found["checks"]
    due = int(rate * (load.warmup + seconds))
    if [checks[name] for name in ("acknowledged", "received", "lost", "duplicates")] != [due, due, 0, 0]:
        raise BenchError(f"{due} messages were due: {checks}")
    send, listener = (
        {name: figures[f"{kind}_{name}_ms"] for name in ("p50", "p99", "p99.9")} for kind in ("send", "end_to_end")
    )
    return {
        "count": int(rate * seconds),
        "listener_ms": listener,
        "acknowledged_ms": send,
        "producer_late_ms": round(figures["most_behind_ms"], 2),
        "broker_cores": round(busy / (load.warmup + seconds), 3),
    }


def start(repeat: int = 5, *, idle: float = 1.0, data: str | None = None) -> dict[str, Any]:
    """Milliseconds from the start of the ``aiorocket broker`` process to its first answer, and its memory when idle."""
    times, memory = [], []
    with ExitStack() as stack:
        nameserver = free_port()
        names = stack.enter_context(Child("nameserver", "-c", COMMAND, "nameserver", "--port", str(nameserver)))
        names.line()
        for _ in range(repeat):
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="aiorocket-start-", dir=data))
            port = free_port()
            argv = ["broker", "--port", str(port), "--nameserver", f"127.0.0.1:{nameserver}", "--data", directory]
            with Child("broker", "-c", COMMAND, *argv) as broker:
                times.append(answering(broker, port))
                broker.line()
                time.sleep(idle)
                memory.append(broker.rss_mib())
        nameserver_memory = names.rss_mib()
    return {
        "ready_ms": round(median(times), 1),
        "ready_ms_all": [round(each, 1) for each in times],
        "rss_mib": round(median(memory), 1),
        "nameserver_rss_mib": round(nameserver_memory, 1),
    }


def answering(broker: Child, port: int) -> float:
    while True:
        try:
            wire.request(port, wire.GET_MAX_OFFSET, topic="TBW102", queueId=0)
        except OSError:
            if broker.process.poll() is not None:
                raise BenchError(f"the broker ended with exit code {broker.process.returncode}") from None
            time.sleep(0.001)
        else:
            return (time.monotonic() - broker.started) * 1e3
