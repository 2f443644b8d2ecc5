"""What a running broker tells those who watch it: ``/metrics`` for Prometheus (extra ``metrics``), ``/healthz`` and
``/readyz``.

Numbers are read in the broker's loop when they are asked for, in turns; their text is made in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from itertools import islice

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aiorocket import __version__
from aiorocket.broker.broker import Broker
from aiorocket.broker.core.traffic import GROUP_GET_NUMS, TOPIC_PUT_NUMS
from aiorocket.broker.lags import MOST_PAIRS, lags
from aiorocket.broker.parts import Parts
from aiorocket.runtime.threads import in_thread
from aiorocket.telemetry.http import Page, serve_pages

__all__ = ("MOST_SERIES", "metrics", "not_ready", "watched")

_PREFIX = "aiorocket_broker"
#: Series of one name: beyond them the youngest topics and groups are left out, which ``series_left_out`` counts.
MOST_SERIES = MOST_PAIRS

Row = tuple[Sequence[str], float]
Family = CounterMetricFamily | GaugeMetricFamily


def not_ready(broker: Broker) -> list[str]:
    """Why nobody should send it messages: one line each, none when it is ready. One name server that knows it is
    enough."""
    parts = broker.parts
    if parts is None:
        return ["the broker is starting or ending"]
    why = [] if broker.store.problem is None else [f"the store takes no messages: {broker.store.problem}"]
    failures = parts.registration.failures
    if failures and all(each in failures for each in broker.config.nameservers):
        why += [f"not registered with name server {each}: {failure}" for each, failure in failures.items()]
    return why


async def metrics(broker: Broker, most: int = MOST_SERIES) -> list[Metric]:
    """As they are now; of what belongs to topics and groups ``most`` of each name, the oldest. Those of a broker that
    is starting or ending are few."""
    ready = GaugeMetricFamily(f"{_PREFIX}_ready", "Is it fit for work?", value=not not_ready(broker))
    info = GaugeMetricFamily(f"{_PREFIX}_info", "Who it is", labels=["name", "cluster", "version"])
    info.add_metric([broker.config.name, broker.config.cluster, __version__], 1)
    parts = broker.parts
    if parts is None:
        return [ready, info]
    behind = await _lags(broker, most)
    alarms = GaugeMetricFamily(f"{_PREFIX}_alarms", "Things there is an alarm about", labels=["alarm"])
    for name, things in broker.alarms.raised.items():
        alarms.add_metric([name], len(things))
    registered = GaugeMetricFamily(f"{_PREFIX}_registered", "Does it know the broker?", labels=["nameserver"])
    for each in broker.config.nameservers:
        registered.add_metric([each], each not in parts.registration.failures)
    left_out = GaugeMetricFamily(f"{_PREFIX}_series_left_out", "Series beyond the most there may be", labels=["metric"])
    several: list[Metric] = []
    for family, rows in (*_of_topics_and_groups(broker, parts), behind):
        given = iter(rows)
        for labels, value in islice(given, most):
            family.add_metric(labels, value)
        left_out.add_metric([family.name], sum(1 for _ in given))
        several.append(family)
    return [ready, info, alarms, registered, *_of_the_whole(broker, parts), *several, left_out]


def _of_the_whole(broker: Broker, parts: Parts) -> Iterator[Metric]:
    store, counters = broker.store, broker.counters
    total, free = store.retention.space()
    for name, text, value in (
        ("writable", "Does the store take messages?", store.problem is None),
        ("disk_bytes", "Size of the disk that holds the store", total),
        ("disk_free_bytes", "What of it is free", free),
        ("log_bytes", "Bytes of the commit log that are kept", store.max_physical - store.min_physical),
        ("damaged_ranges", "Damaged ranges of the log, which are not served", len(store.damaged)),
        ("damaged_messages", "Messages that were in them", sum(each.messages for each in store.damaged)),
        ("key_index_behind_bytes", "Log that the key index does not have yet", store.keys.behind),
        ("topics", "Topics", len(broker.topics)),
        ("groups", "Consumer groups that have settings", sum(1 for _ in broker.configs)),
        ("connected_groups", "Consumer groups with members", sum(1 for _ in broker.consumers)),
        ("connections", "Open connections", len(broker.server.connections)),
        ("parked_pulls", "Pulls that wait for messages", broker.parked_pulls),
        ("popped_messages", "Messages with consumers that popped them", broker.popped),
        ("timer_messages", "Timer messages that wait", len(broker.timers)),
        ("open_transactions", "Half messages that are neither committed nor rolled back", len(broker.transactions)),
    ):
        yield GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)
    for name, text, value in (
        ("stored_bytes", "What the commit log grew by since the start", parts.traffic.bytes_stored),
        ("pulls_found", "Pulls answered with messages", counters.gets_found),
        ("pulls_empty", "Pulls answered without", counters.gets_missed),
        ("refused_connections", "Connections turned away", broker.server.refused),
    ):
        yield CounterMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _of_topics_and_groups(broker: Broker, parts: Parts) -> Iterator[tuple[Family, Iterable[Row]]]:
    """Families and their rows, of topics and groups that are there."""
    topics, counters = broker.topics, broker.counters
    totals = list(parts.traffic.now().totals.items())
    groups = {each.name for each in broker.configs}
    yield (
        CounterMetricFamily(f"{_PREFIX}_stored_messages", "Messages stored since the start", labels=["topic"]),
        (([name], count) for (kind, name), count in totals if kind == TOPIC_PUT_NUMS and name in topics),
    )
    delivered = [(name.partition("@"), count) for (kind, name), count in totals if kind == GROUP_GET_NUMS]
    yield (
        CounterMetricFamily(
            f"{_PREFIX}_delivered_messages", "Messages in answers to pulls and pops", labels=["group", "topic"]
        ),
        (([group, name], count) for (name, _, group), count in delivered if name in topics and group in groups),
    )
    for name, text, counts in (
        ("send_backs", "Messages that consumers sent back", counters.send_backs),
        ("dead_letters", "Messages that became dead letters", counters.dead_letters),
        ("stale_commits", "Commits refused: the queue's lock has another owner", counters.stale_commits),
    ):
        yield (
            CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=["group"]),
            (([group], count) for group, count in list(counts.items()) if group in groups),
        )
    yield (
        GaugeMetricFamily(f"{_PREFIX}_members", "Members of a consumer group", labels=["group"]),
        (([live.name], len(live.members)) for live in broker.consumers),
    )
    yield (
        GaugeMetricFamily(
            f"{_PREFIX}_subscriptions_differ", "1 for a group whose members subscribe differently", labels=["group"]
        ),
        (([live.name], 1) for live in broker.consumers if live.differs),
    )


async def _lags(broker: Broker, most: int) -> tuple[GaugeMetricFamily, list[Row]]:
    """How far groups are behind in each topic."""
    text = "Messages of a topic that a group has not consumed"
    rows: list[Row] = [(pair, lag) async for pair, lag in lags(broker, most)]
    return GaugeMetricFamily(f"{_PREFIX}_lag_messages", text, labels=["group", "topic"]), rows


class _Taken(Collector):
    """What was read before, for ``generate_latest``."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _text(families: list[Metric]) -> bytes:
    """With what the process itself says: memory, CPU, open files and how many there may be."""
    registry = CollectorRegistry()
    registry.register(_Taken(families))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


@asynccontextmanager
async def watched(broker: Broker, host: str, port: int) -> AsyncIterator[int]:
    """Answer ``/metrics``, ``/healthz`` and ``/readyz`` about ``broker`` while the block runs, from before its start to
    after its end; gives the port bound. UsageError when it cannot be bound."""
    one = asyncio.Lock()  # scrapers that come together wait for each other, so that they cost the loop no more

    async def shown() -> Page:
        async with one:
            return Page(await in_thread(_text, await metrics(broker)), kind=CONTENT_TYPE_LATEST)

    async def alive() -> Page:
        return Page(b"alive\n")

    async def ready() -> Page:
        why = not_ready(broker)
        status = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
        alarms = [f"alarm {text}" for text in broker.alarms.texts()]  # to be known; no reason to send nothing here
        return Page(("\n".join([*(why or ["ready"]), *alarms]) + "\n").encode(), status)

    async with serve_pages(host, port, {"/metrics": shown, "/healthz": alive, "/readyz": ready}) as bound:
        yield bound
