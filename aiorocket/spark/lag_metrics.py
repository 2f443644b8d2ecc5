"""Streaming queries for Prometheus (extra ``metrics``): what they have read, how long batches take, how far they are
behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aiorocket.spark.lag import LagListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

__all__ = ("PrometheusListener",)

_PREFIX = "aiorocket_spark"


@dataclass
class _Counted:
    """Of one query, by its name."""

    rows: int = 0
    batches: int = 0
    batch_seconds: float = 0.0
    last_batch: int = -1
    failed: bool = False


class PrometheusListener(LagListener, Collector):
    """``spark.streams.addListener(PrometheusListener())``: a LagListener whose numbers Prometheus reads, where
    ``prometheus_client.start_http_server(9107)`` or the application's own page gives them out. ``registry`` is
    prometheus_client's own unless told otherwise; ValueError for a second one there.

    ``aiorocket_spark_lag_messages`` (query, topic, broker, queue) is there while a query runs, ``…_rows_total``,
    ``…_batches_total`` and ``…_batch_seconds_total`` (query) as long as the process, ``…_failed`` (query) is 1
    behind a query that ended with an error."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__()
        self._lock = threading.Lock()  # Spark's thread calls the listener, Prometheus asks in another
        self._counted: dict[str, _Counted] = {}
        registry.register(self)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        super().onQueryProgress(event)
        progress: Any = event.progress
        name = progress.name or str(progress.id)
        with self._lock:
            counted = self._counted.setdefault(name, _Counted())
            counted.failed = False
            # A trigger that found nothing reports the batch that is to come.
            if progress.batchId > counted.last_batch and progress.numInputRows:
                counted.last_batch = progress.batchId
                counted.batches += 1
                counted.rows += progress.numInputRows
                counted.batch_seconds += progress.batchDuration / 1000

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        name = self.name_of(str(event.id))
        super().onQueryTerminated(event)
        with self._lock:
            counted = self._counted.setdefault(name, _Counted())
            counted.failed = event.exception is not None
            counted.last_batch = -1  # the next of this name may have a new checkpoint, whose batches begin at 0

    def collect(self) -> Iterator[Metric]:
        """As they are now; for the registry."""
        behind = GaugeMetricFamily(
            f"{_PREFIX}_lag_messages", "Messages beyond the last batch", labels=["query", "topic", "broker", "queue"]
        )
        for name, queues in self.lags().items():
            for queue, lag in queues.items():
                behind.add_metric([name, queue.topic, queue.broker_name, str(queue.queue_id)], lag)
        yield behind
        with self._lock:
            counted = {name: replace(each) for name, each in self._counted.items()}
        for field, kind, text in (
            ("rows", CounterMetricFamily, "Rows that batches read"),
            ("batches", CounterMetricFamily, "Batches that read rows"),
            ("batch_seconds", CounterMetricFamily, "How long these batches took, together"),
            ("failed", GaugeMetricFamily, "Did the query end with an error?"),
        ):
            family = kind(f"{_PREFIX}_{field}", text, labels=["query"])
            for name, each in counted.items():
                family.add_metric([name], getattr(each, field))
            yield family
