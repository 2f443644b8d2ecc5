"""The lag that progress reports show, by queue."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from aiorocket.model import Queue
from aiorocket.spark import LagListener
from aiorocket.spark.lag_metrics import PrometheusListener
from aiorocket.spark.offsets import to_nested
from tests.spark.producing import send

A0, A1, B0 = Queue("t", "broker-a", 0), Queue("t", "broker-a", 1), Queue("u", "broker-b", 0)


def progress(number: str, name: str | None, *sources: tuple[Any, Any]) -> Any:
    """What Spark reports of a batch; each source with its end and its latest offset."""
    made = [
        SimpleNamespace(endOffset=as_text(end), latestOffset=as_text(latest), description="") for end, latest in sources
    ]
    return SimpleNamespace(progress=SimpleNamespace(id=number, name=name, sources=made))


def as_text(offsets: Any) -> Any:
    return json.dumps(to_nested(offsets)) if isinstance(offsets, dict) else offsets


def test_lag_is_what_lies_beyond_the_last_batch() -> None:
    said: list[tuple[str, Mapping[Queue, int]]] = []
    listener = LagListener(lambda query, lag: said.append((query, lag)))
    listener.onQueryStarted(SimpleNamespace(id="1", name="orders"))  # type: ignore[arg-type]
    assert listener.lag() == {}
    listener.onQueryProgress(progress("1", "orders", ({A0: 5, A1: 7}, {A0: 9, A1: 7, B0: 3})))
    # B0 is new: the next batch begins to read it.
    assert listener.lag("orders") == listener.lag("1") == {A0: 4, A1: 0, B0: 0}
    assert said == [("orders", {A0: 4, A1: 0, B0: 0})]
    listener.onQueryProgress(progress("2", None, ({A0: 1}, {A0: 9})))
    assert listener.lag() == {A0: 8, A1: 0, B0: 0}
    assert (listener.total(), listener.total("orders"), listener.total("2"), listener.total("no such")) == (8, 4, 8, 0)
    assert said[-1] == ("2", {A0: 8})
    listener.onQueryTerminated(SimpleNamespace(id="2"))  # type: ignore[arg-type]
    assert listener.total() == 4


def test_sources_that_are_not_ours_are_passed_over() -> None:
    listener = LagListener()
    for end, latest in (("5", "9"), (None, None), ("null", "null"), ("{bad", "{}"), ('{"k":{"0":5}}', '{"k":{"0":9}}')):
        listener.onQueryProgress(progress("1", None, (end, latest)))
        assert listener.lag() == {}
    # The same topic twice in one query: the source that is further behind counts.
    listener.onQueryProgress(progress("1", None, ({A0: 5}, {A0: 9}), ("7", "8"), ({A0: 8}, {A0: 9})))
    assert listener.lag() == {A0: 4}


def test_prometheus_is_told_of_queries_by_their_name() -> None:
    registry = CollectorRegistry()
    listener = PrometheusListener(registry)

    def batch(number: int, rows: int, lag: int) -> Any:
        made = progress("1", "orders", ({A0: 5}, {A0: 5 + lag}))
        made.progress.__dict__.update(batchId=number, numInputRows=rows, batchDuration=1500)
        return made

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"aiorocket_spark_{name}", {"query": "orders", **labels})

    for number, rows, lag in ((0, 10, 7), (1, 5, 2), (2, 0, 2), (2, 0, 3)):  # the last two found nothing to read
        listener.onQueryProgress(batch(number, rows, lag))
    assert value("lag_messages", topic="t", broker="broker-a", queue="0") == 3
    counted = (value("rows_total"), value("batches_total"), value("batch_seconds_total"), value("failed"))
    assert counted == (15, 2, 3.0, 0)
    listener.onQueryTerminated(SimpleNamespace(id="1", exception="gone"))  # type: ignore[arg-type]
    assert value("lag_messages", topic="t", broker="broker-a", queue="0") is None
    assert (value("rows_total"), value("failed")) == (15, 1)
    listener.onQueryProgress(batch(0, 4, 0))  # another query of that name, with a checkpoint of its own
    assert (value("rows_total"), value("batches_total"), value("failed")) == (19, 3, 0)


@pytest.mark.spark_long
def test_a_running_query_reports_it(spark: SparkSession, nameserver: str, topic: str, tmp_path: Path) -> None:
    send(nameserver, topic, [str(number) for number in range(30)], queues=2)
    seen: list[tuple[int, float]] = []
    done = threading.Event()
    registry = CollectorRegistry()

    def value(name: str, **labels: str) -> float:
        return registry.get_sample_value(f"aiorocket_spark_{name}", {"query": "lagging", **labels}) or 0

    def note(query: str, lag: Mapping[Queue, int]) -> None:
        assert query == "lagging"
        told = (
            value("lag_messages", topic=each.topic, broker=each.broker_name, queue=str(each.queue_id)) for each in lag
        )
        seen.append((sum(lag.values()), sum(told)))
        if not sum(lag.values()):
            done.set()

    # Spark tells them in this order.
    listeners = [PrometheusListener(registry), LagListener(note)]
    for listener in listeners:
        spark.streams.addListener(listener)
    try:
        source = spark.readStream.format("rocketmq").options(nameServer=nameserver, topic=topic)
        source = source.options(startingOffsets="earliest", maxOffsetsPerTrigger="20")
        stream = source.schema("body BINARY").load()
        writer = stream.writeStream.format("noop").queryName("lagging").option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(100)
        assert done.wait(30)
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)
    assert seen[:2] == [(10, 10.0), (0, 0.0)]
    assert (value("rows_total"), value("batches_total"), value("failed")) == (30, 2, 0)
    assert value("batch_seconds_total") > 0
