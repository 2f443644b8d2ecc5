"""Metrics of a client for Prometheus (extra ``metrics``).

Counted is what passes the middleware; what consumers hold, and how far behind they are, is looked at when Prometheus
asks. All names begin with ``rocketmq_client_``; ``aiorocket/telemetry/README.md`` lists them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any
from weakref import WeakSet

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aiorocket import (
    Client,
    ConsumeNext,
    ConsumerState,
    DeadLetter,
    Health,
    Message,
    Middleware,
    OutgoingMessage,
    PublishNext,
    Queue,
    Skip,
)
from aiorocket.telemetry.legible import topic_of
from aiorocket_protocol import MAX_TOPIC

__all__ = ("Prometheus",)

_PREFIX = "rocketmq_client"
#: Seconds; from a listener in memory to one that calls others.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_MOST_TOPICS = 1000
#: How long a scrape in another thread waits for the client's loop.
_PATIENCE = 5.0


class Prometheus(Middleware, Collector):
    """``Client(middleware=[Prometheus()])``: one for any number of clients of a process. ``registry`` is where the
    metrics go, prometheus_client's own unless told otherwise; ValueError for a second one there. It is read by
    ``generate_latest`` in the client's loop or by ``start_http_server``, whose thread asks the loop."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, buckets: Iterable[float] = _BUCKETS) -> None:
        sizes, group = tuple(buckets), ("group", "topic")
        self._sent = Counter(f"{_PREFIX}_sent_messages", "Messages that were sent", ["topic"], registry=registry)
        self._send_errors = Counter(
            f"{_PREFIX}_send_errors", "Sends that failed", ["topic", "error"], registry=registry
        )
        self._send_retries = Counter(
            f"{_PREFIX}_send_retries", "Repetitions of sends, by what made them needed", ["topic", "error"],
            registry=registry,
        )  # fmt: skip
        self._send_seconds = Histogram(
            f"{_PREFIX}_send_seconds", "How long a send took, its retries with it", ["topic"], registry=registry,
            buckets=sizes,
        )  # fmt: skip
        self._sending = Gauge(f"{_PREFIX}_sends_in_flight", "Sends under way", ["topic"], registry=registry)
        self._consumed = Counter(
            f"{_PREFIX}_consumed_messages", "Messages that listeners ended with: done, failed, dead_letter or skipped",
            [*group, "end"], registry=registry,
        )  # fmt: skip
        self._again = Counter(
            f"{_PREFIX}_redelivered_messages", "Messages that came a further time", group, registry=registry
        )
        self._consume_seconds = Histogram(
            f"{_PREFIX}_consume_seconds", "How long a call of a listener took", group, registry=registry, buckets=sizes
        )
        self._consuming = Gauge(f"{_PREFIX}_consuming", "Calls of listeners that run", group, registry=registry)
        self._clients: WeakSet[Client] = WeakSet()
        self._topics: set[str] = set()
        registry.register(self)

    def attached(self, client: Client) -> None:
        self._clients.add(client)

    async def publish(self, messages: list[OutgoingMessage], call_next: PublishNext) -> Any:
        topic = self._label(messages[0].topic)
        with self._sending.labels(topic).track_inprogress(), self._send_seconds.labels(topic).time():
            try:
                receipts = await call_next(messages)
            except BaseException as error:
                self._send_errors.labels(topic, type(error).__name__).inc()
                raise
        self._sent.labels(topic).inc(len(messages))
        return receipts

    def retrying(self, topic: str, error: Exception) -> None:
        self._send_retries.labels(self._label(topic), type(error).__name__).inc()

    async def consume(self, messages: list[Message], call_next: ConsumeNext) -> Any:
        group, topic = messages[0].group, self._label(topic_of(messages[0]))
        again = sum(each.attempt > 1 for each in messages)
        if again:
            self._again.labels(group, topic).inc(again)
        end = "failed"
        try:
            running, seconds = self._consuming.labels(group, topic), self._consume_seconds.labels(group, topic)
            with running.track_inprogress(), seconds.time():
                answer = await call_next(messages)
            end = "done"
            return answer
        except DeadLetter:
            end = "dead_letter"
            raise
        except Skip:
            end = "skipped"
            raise
        finally:
            self._consumed.labels(group, topic, end).inc(len(messages))

    def _label(self, topic: str) -> str:
        """``topic``, "other" behind the first thousand: a message of a retry topic says itself where it was sent first,
        and each name is kept for ever."""
        topics = self._topics
        if topic not in topics:
            if len(topics) >= _MOST_TOPICS or len(topic) > MAX_TOPIC:
                return "other"
            topics.add(topic)
        return topic

    # -- what is looked at --

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client.registry.Collector``. What a client says that does not answer is left out."""
        looks = [look for look in map(_look, list(self._clients)) if look is not None]
        yield from _of_consumers([state for states, _ in looks for state in states])
        connected = GaugeMetricFamily(f"{_PREFIX}_broker_connected", "Is a broker connected?", labels=["address"])
        known: dict[str, bool] = {}
        for each in (each for _, health in looks for each in health.brokers):
            known[each.address] = each.connected or known.get(each.address, False)  # by one of the clients
        for address, is_connected in known.items():
            connected.add_metric([address], is_connected)
        yield connected
        ready = GaugeMetricFamily(f"{_PREFIX}_ready", "Is the client fit for work?", labels=["client"])
        for _, health in looks:
            ready.add_metric([health.client_id], health.ready)
        yield ready

    def describe(self) -> list[Metric]:
        """Nothing has to be asked to register this."""
        return []


def _look(client: Client) -> tuple[list[ConsumerState], Health] | None:
    """In its own loop, whose state it is."""
    if not client.session.started:
        return None
    try:
        inside = asyncio.get_running_loop() is client.session.loop
    except RuntimeError:
        inside = False
    if inside:
        return client.consumer_states(), client.health()
    future: Future[tuple[list[ConsumerState], Health]] = Future()

    def answer() -> None:
        try:
            future.set_result((client.consumer_states(), client.health()))
        except Exception as error:  # noqa: BLE001 - it is the asking thread's
            future.set_exception(error)

    try:
        client.session.loop.call_soon_threadsafe(answer)
        return future.result(_PATIENCE)
    except (TimeoutError, RuntimeError):  # a loop that stands still, or has ended
        return None


def _of_consumers(states: list[ConsumerState]) -> Iterator[Metric]:
    queue = ["group", "topic", "broker", "queue"]
    lag = GaugeMetricFamily(f"{_PREFIX}_lag_messages", "Messages a held queue has that are not done", labels=queue)
    held = GaugeMetricFamily(f"{_PREFIX}_held_queues", "Queues that are assigned", labels=["group"])
    cached = GaugeMetricFamily(f"{_PREFIX}_cached_messages", "Messages that wait here", labels=["group"])
    in_work = GaugeMetricFamily(f"{_PREFIX}_messages_in_work", "Messages that listeners have", labels=["group"])
    running = GaugeMetricFamily(f"{_PREFIX}_consumer_running", "Is the consumer running?", labels=["group"])
    counts = {
        name: CounterMetricFamily(f"{_PREFIX}_{name}_messages", text, labels=["group"])
        for name, text in (
            ("retried", "Messages that went back to be delivered again"),
            ("dead_lettered", "Messages that became dead letters"),
            ("timed_out", "Messages whose handler was cancelled at its timeout"),
            ("late", "Messages whose result came when they were somebody else's"),
        )
    }
    groups: dict[str, list[ConsumerState]] = {}
    for state in states:
        groups.setdefault(state.group, []).append(state)
    for group, members in groups.items():  # of several clients: a series that is there twice would be taken once
        behind: dict[Queue, int] = {}
        for each in (each for state in members for each in state.queues):
            if each.behind is not None:
                behind[each.queue] = max(each.behind, behind.get(each.queue, 0))
        for held_queue, count in behind.items():
            lag.add_metric([group, held_queue.topic, held_queue.broker_name, str(held_queue.queue_id)], count)
        held.add_metric([group], sum(len(state.queues) for state in members))
        cached.add_metric([group], sum(state.cached for state in members))
        in_work.add_metric([group], sum(state.in_work for state in members))
        running.add_metric([group], all(state.running for state in members))
        for name, family in counts.items():
            family.add_metric([group], sum(getattr(state.counters, name) for state in members))
    yield from (lag, held, cached, in_work, running, *counts.values())
