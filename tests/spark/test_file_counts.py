"""Rows of an archive's files counted without Spark's reader: the same as offsets say, or nothing."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from aiorocket.errors import RocketError
from aiorocket.model import Queue
from aiorocket.spark.steps.files import file_counts
from aiorocket.spark.steps.files.file_counts import count_files_by_queue
from aiorocket.spark.steps.files.hours import by_queue
from aiorocket.spark.steps.proof import QueueCount
from tests.spark.lakes import add, make

Q0, Q1 = Queue("t", "broker-a", 0), Queue("t", "broker-b", 7)
#: Few rows are counted without a job, so no session is used.
NO_SPARK: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))


def test_files_are_counted_by_queue_and_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = []

    def here(spark: object, work: object, given: list[object]) -> list[object]:
        tasks.extend(given)
        return [held for task in given for held in work(task)]  # type: ignore[operator]  # it is the function itself

    monkeypatch.setattr(file_counts, "run_tasks", here)
    monkeypatch.setattr(file_counts, "_TASK_ROWS", 100)
    archive = make(tmp_path)
    add(archive, {Q0: range(100), Q1: [3, 5, 6]})
    add(archive, {Q0: range(100, 130)})
    files = archive.snapshot().files
    few = count_files_by_queue(NO_SPARK, archive, files)
    assert few is not None and not tasks
    monkeypatch.setattr(file_counts, "_HERE_ROWS", sum(file.rows for file in files) - 1)
    assert count_files_by_queue(NO_SPARK, archive, files) == few == {
        Q0: QueueCount(130, 0, 129, 130), Q1: QueueCount(3, 3, 6, 3)
    }  # fmt: skip
    assert len(tasks) >= 2
    tasks.clear()
    monkeypatch.setattr(file_counts, "_TASK_ROWS", 1)
    monkeypatch.setattr(file_counts, "_TASKS", 1)
    monkeypatch.setattr(file_counts, "_HERE_ROWS", 0)
    count_files_by_queue(NO_SPARK, archive, files)
    assert len(tasks) == 1  # as many as there are cores, however many files
    some = count_files_by_queue(NO_SPARK, archive, files, {Q0: (95, 105)})
    assert some == {Q0: QueueCount(10, 95, 104, 10)}
    # Rows that are there twice are for Spark to count, as is what cannot be told from the ends of files.
    assert count_files_by_queue(NO_SPARK, archive, [*files, files[0]]) is None
    assert count_files_by_queue(NO_SPARK, archive, []) == {}


@pytest.mark.parametrize("damage", [b"", b"PAR1 no Parquet PAR1", None])
def test_a_file_that_cannot_be_read_is_named_in_a_line(tmp_path: Path, damage: bytes | None) -> None:
    archive = make(tmp_path)
    add(archive, {Q0: range(100)})
    files = archive.snapshot().files
    place = tmp_path / files[0].path
    place.unlink()
    if damage is not None:
        place.write_bytes(damage)
    with pytest.raises(RocketError, match="put it back from a copy") as told:
        count_files_by_queue(NO_SPARK, archive, files)
    assert str(place) in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("longest", [1, 3, 40])
def test_places_of_queues_that_take_turns(longest: int) -> None:
    """Rows alone and in runs, in chunks that each have a dictionary of their own, or none."""
    draw = random.Random(longest)
    runs = [(f"broker-{draw.choice('abc')}", draw.randrange(3), draw.randint(1, longest)) for _ in range(60)]
    rows = [(name, queue_id) for name, queue_id, count in runs for _ in range(count)]
    expected: dict[Queue, list[int]] = {}
    for place, (name, queue_id) in enumerate(rows):
        expected.setdefault(Queue("t", name, queue_id), []).append(place)
    names, ids = pa.array([name for name, _ in rows]), pa.array([queue_id for _, queue_id in rows], pa.int32())
    halves = [names.slice(0, len(rows) // 2).dictionary_encode(), names.slice(len(rows) // 2).dictionary_encode()]
    for brokers in (names, pa.chunked_array(halves)):
        table = pa.table({"brokerName": brokers, "queueId": ids})
        assert {queue: places.tolist() for queue, places in by_queue("t", table)} == expected
    assert not list(by_queue("t", table.slice(0, 0)))
