"""What ``python -m bench.spark --check`` ends with 1 for."""

from __future__ import annotations

from typing import Any

import pytest

from bench import spark


def _missed(results: dict[str, Any]) -> set[str]:
    return {floor.name for floor in spark.floors_of(results) if not floor.met}


def test_a_read_is_held_to_parquet_and_a_batch_to_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"read": {"product": 410_000, "ceiling": 600_000}, "micro": {"product": 151}}
    good = {"read": {"product": 455_000, "ceiling": 600_000}, "micro": {"product": 149}}
    monkeypatch.setattr(spark, "SPEEDUPS", "0.1.0")
    assert _missed(slow) == {"read, fast lane: of Parquet", "micro: batch over four queues"}
    assert _missed(good) == set()
    monkeypatch.setattr(spark, "SPEEDUPS", None)
    assert _missed(slow) == {"micro: batch over four queues"}
