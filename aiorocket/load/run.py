"""A measurement: topics, processes, their figures put together, counts that must add up, a verdict."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
import zlib
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from hdrh.histogram import HdrHistogram

import aiorocket
from aiorocket.config.addresses import mapped
from aiorocket.load.machine import busy_ticks
from aiorocket.load.scenario import Scenario
from aiorocket.load.verdict import verdict
from aiorocket.runtime.clock import WallClock

__all__ = ("measure",)

#: Nanoseconds between the last process that is ready and the start of all.
_SOON = 500_000_000
#: Seconds between two looks at what has come.
_LOOK = 0.1
_PERCENTILES = (0, 50, 75, 90, 95, 99, 99.9, 99.99, 100)
#: Seconds in which a process begins, and in which it ends what it does when it is told to.
_PATIENCE = 120.0

Progress = Callable[[str, int, int], None]


class _Child:
    def __init__(self, process: Process) -> None:
        self._process = process
        self.acknowledged = self.received = self.failed = 0

    @classmethod
    async def start(cls) -> _Child:
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "aiorocket.load.worker", stdin=PIPE, stdout=PIPE, limit=1 << 28
            )
        )

    def tell(self, **what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")

    async def until(self, word: str, progress: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The next line that says ``word``. RocketError when the process fails."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said: dict[str, Any] = json.loads(line)
            if "error" in said:
                raise aiorocket.RocketError(f"a load process failed: {said['error']}")
            for name in ("acknowledged", "received", "failed"):
                setattr(self, name, said.get(name, getattr(self, name)))
            if word in said:
                return said
            progress()
        raise aiorocket.RocketError(f"a load process ended with {await self._process.wait()}")

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def measure(
    scenario: Scenario, config: aiorocket.ClientConfig, progress: Progress = lambda _what, _sent, _received: None
) -> dict[str, Any]:
    """One run against the cluster of ``config``: figures, checks, verdict. Its topics and groups are made for it and
    deleted. RocketError when the cluster or a process of the load fails. ``progress`` gets the phase, and messages
    acknowledged and received so far."""
    run = f"{WallClock().wall_ms() & 0x7FFFFFFF:08x}"
    named, plain = replace(scenario, topic=f"{scenario.topic}-{run}"), _plain(config)
    async with aiorocket.Admin(config=config) as admin:
        about = await _brokers(admin, scenario.flush)
        brokers: list[str] = []
        for topic in named.topic_names():
            await admin.create_topic(topic, named.queues)
            brokers += [
                mapped(plain["address_map"], entry.addresses[0])
                for entry in await admin.topics.route(topic) if 0 in entry.addresses
            ]  # fmt: skip
        try:
            return {**await _measure(named, run, sorted(set(brokers)), plain, progress), "brokers": about}
        finally:
            for topic in named.topic_names():
                await admin.topics.delete(topic)
            for number in range(named.groups if named.consumers else 0):
                await admin.groups.delete(f"{named.topic}-group-{number}")


async def _brokers(admin: aiorocket.Admin, flush: str) -> list[dict[str, Any]]:
    """Each master's version, and how it flushes: None when it does not say. RocketError when that is not ``flush``, or
    when nobody knows whether it is."""
    found = []
    try:
        runtimes = await admin.brokers.runtime()
    except aiorocket.RemoteError as error:  # topics may be measured by others than administrators
        if flush:
            raise aiorocket.RocketError(f"nobody knows whether brokers flush {flush}: {error}") from error
        return []
    if flush and runtimes.missing:
        server, why = runtimes.missing[0]
        raise aiorocket.RocketError(f"nobody knows whether broker {server} flushes {flush}: {why}")
    for each in runtimes:
        try:
            mode = (await admin.brokers.config(each.address)).get("flushDiskType", "").partition("_")[0].lower()
        except aiorocket.RemoteError:  # administrators may ask that
            mode = ""
        if flush and mode != flush:
            raise aiorocket.RocketError(f"broker {each.name} flushes {mode or 'as it does not say'}, not {flush}")
        found.append({"broker": each.name, "version": each.version, "flush": mode or None})
    return found


async def _measure(
    scenario: Scenario, run: str, brokers: list[str], config: dict[str, Any], progress: Progress
) -> dict[str, Any]:
    children: list[_Child] = []
    try:
        for number in range(scenario.processes):
            child = await _Child.start()
            children.append(child)
            child.tell(scenario=scenario.to_plain(), config=config, number=number, brokers=brokers, run=run)
        async with asyncio.timeout(_PATIENCE):
            await asyncio.gather(*(child.until("ready") for child in children))

        def shown(phase: str) -> None:
            progress(phase, sum(c.acknowledged for c in children), sum(c.received for c in children))

        start = time.perf_counter_ns() + _SOON
        for child in children:
            child.tell(go=start)
        watched = asyncio.ensure_future(_machine(start, scenario))
        await asyncio.gather(*(child.until("sent", lambda: shown("sending")) for child in children))
        machine = await watched
        await _drained(scenario, children, lambda: shown("draining"))
        for child in children:
            child.tell(stop=True)
        async with asyncio.timeout(_PATIENCE):
            results = [(await child.until("result"))["result"] for child in children]
    finally:
        for child in children:
            await child.end()
    return _together(scenario, results, machine)


def _plain(config: aiorocket.ClientConfig) -> dict[str, Any]:
    """What of a config the command line can say."""
    tls, address_map = config.tls, config.address_map
    if callable(address_map):
        raise aiorocket.ConfigError("address_map: a function cannot be given to the processes of a load; give a dict")
    if not isinstance(tls, (bool, aiorocket.TlsConfig)):
        raise aiorocket.ConfigError(
            "tls: an ssl.SSLContext cannot be given to the processes of a load; give a TlsConfig"
        )
    return {
        "nameservers": list(config.nameservers), "namespace": config.namespace, "access_key": config.access_key,
        "secret_key": config.secret_key, "security_token": config.security_token,
        "credentials_file": config.credentials_file, "address_map": dict(address_map),
        "tls": tls if isinstance(tls, bool) else asdict(tls),
    }  # fmt: skip


async def _machine(start: int, scenario: Scenario) -> float | None:
    """The busy share of all cores while it was measured."""
    await asyncio.sleep(max(0.0, (start - time.perf_counter_ns()) / 1e9 + scenario.warmup))
    before = busy_ticks()
    await asyncio.sleep(scenario.seconds)
    after = busy_ticks()
    if before is None or after is None or after[1] == before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


async def _drained(scenario: Scenario, children: list[_Child], progress: Callable[[], None]) -> None:
    """Until everything that was acknowledged has come to every group, or ``drain`` seconds bring nothing more."""
    if not scenario.consumers or not scenario.producers:
        return
    now = asyncio.get_running_loop().time
    most, last = -1, now()
    while True:
        for child in children:
            child.tell(look=True)
            await child.until("failed")
        progress()
        received = sum(child.received for child in children)
        enough = received >= scenario.groups * sum(child.acknowledged for child in children)
        # Among as many may be some that came twice, or whose send failed and was stored: which came, the bits say.
        if enough and received != most and not await _lacking(scenario, children):
            return
        if received > most:
            most, last = received, now()
        elif now() - last > scenario.drain:
            return
        await asyncio.sleep(_LOOK)


async def _lacking(scenario: Scenario, children: list[_Child]) -> int:
    """How many were acknowledged and have not come."""
    for child in children:
        child.tell(bits=True)
    return _lost(scenario, [(await child.until("bits"))["bits"] for child in children])[0]


def _together(scenario: Scenario, results: list[dict[str, Any]], machine: float | None) -> dict[str, Any]:
    def total(name: str) -> int:
        return sum(result[name] for result in results)

    histograms = {name: _merged(result["histograms"][name] for result in results) for name in results[0]["histograms"]}
    seconds: dict[int, list[int]] = {}
    for result in results:
        for second, (sent, came, slowest) in result["seconds"].items():
            place = seconds.setdefault(int(second), [0, 0, 0])
            place[0], place[1], place[2] = place[0] + sent, place[1] + came, max(place[2], slowest)
    cpu = max(result["cpu"] for result in results) / scenario.seconds
    lag = histograms["lag"].get_value_at_percentile(99) / 1000 if histograms["lag"].total_count else 0.0
    reached = total("measured") / scenario.seconds
    figures: dict[str, float | None] = {
        "acknowledged_per_s": reached if scenario.producers else None,
        "received_per_s": total("measured_received") / scenario.seconds / scenario.groups
        if scenario.consumers
        else None,
        "generator_cpu_us": sum(r["cpu"] for r in results) / max(1, total("measured")) * 1e6,
        "generator_cpu_busiest": cpu,
        "loop_lag_p99_ms": lag,
        "machine_busy": machine,
        "most_behind_ms": max(result["behind_ms"] for result in results),
    }
    for name in ("send", "service", "end_to_end"):
        for percentile in (50, 99, 99.9):
            value = (
                histograms[name].get_value_at_percentile(percentile) / 1000 if histograms[name].total_count else None
            )
            figures[f"{name}_p{percentile:g}_ms"] = value
    checks = _checked(scenario, results)
    checks["failed_sends"], checks["errors"] = (
        total("failed"),
        dict(sum((Counter(r["errors"]) for r in results), Counter())),
    )
    limit = verdict(
        wanted=scenario.rate if scenario.producers else 0.0, reached=reached, cpu=cpu, lag_ms=lag, machine=machine,
        processes=scenario.processes,
    )  # fmt: skip
    return {
        "figures": figures,
        "checks": checks,
        "verdict": limit._asdict(),
        "percentiles": {name: _curve(each) for name, each in histograms.items()},
        "seconds": [[second, *values] for second, values in sorted(seconds.items())],
    }


def _checked(scenario: Scenario, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each group: what was acknowledged and never came, what came twice, what came out of order."""
    lost, again = _lost(scenario, results)
    acknowledged = (_bits(bits) for result in results for bits in result["sent_bits"].values())
    return {
        "acknowledged": sum(bits.bit_count() for bits in acknowledged),
        "received": sum(result["received"] for result in results),
        "lost": lost,
        "duplicates": again + sum(result["duplicates"] for result in results),
        "out_of_order": sum(result["out_of_order"] for result in results),
    }


def _lost(scenario: Scenario, results: list[dict[str, Any]]) -> tuple[int, int]:
    """What was acknowledged and did not come, and what came to more than one process, over all groups."""
    acknowledged = {who: _bits(bits) for result in results for who, bits in result["sent_bits"].items()}
    came: dict[tuple[int, str], int] = {}
    again = 0
    for result in results:
        for name, packed in result["came_bits"].items():
            group, _, who = name.partition("/")
            bits = _bits(packed)
            before = came.get((int(group), who), 0)
            again += (before & bits).bit_count()
            came[int(group), who] = before | bits
    groups = range(scenario.groups if scenario.consumers and scenario.producers else 0)
    lost = sum(
        (bits & ~came.get((group, who), 0)).bit_count() for group in groups for who, bits in acknowledged.items()
    )
    return lost, again


def _bits(packed: str) -> int:
    return int.from_bytes(zlib.decompress(base64.b64decode(packed)), "little")


def _merged(encoded: Iterable[str]) -> Any:
    whole = HdrHistogram(1, 3_600_000_000, 3)
    for each in encoded:
        whole.decode_and_add(each)
    return whole


def _curve(histogram: Any) -> list[list[float]]:
    """[percentile, milliseconds]."""
    if not histogram.total_count:
        return []
    return [[each, histogram.get_value_at_percentile(each) / 1000] for each in _PERCENTILES]
