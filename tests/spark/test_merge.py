"""Files of an hour become few: sorted, all rows, whatever the order they came in."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aiorocket.errors import RocketError
from aiorocket.model import Queue
from aiorocket.spark.steps.archives import merge as merging
from aiorocket.spark.steps.archives.merge import Pieces, merge
from tests.spark.lakes import add, make, rows_of

QUEUES = [Queue("t", broker, number) for broker in ("broker-b", "broker-a") for number in (0, 10, 2)]
_HOUR = "data/topic=t/dt=2026-03-01/hour=12"


@pytest.mark.parametrize("parts", [1, 3])
def test_rows_that_came_in_any_order_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    monkeypatch.setattr(merging, "_ROWS", 7)  # several pieces of a queue in a file
    archive, draw = make(tmp_path), Random(parts)
    (tmp_path / _HOUR).mkdir(parents=True)
    paths = []
    for name in range(3):
        batches = [rows_of(queue, range(name, 40, 3)) for queue in QUEUES]
        rows = pa.Table.from_batches(batches)
        order = list(range(rows.num_rows))
        draw.shuffle(order)
        paths.append(f"{_HOUR}/{name}.parquet")
        pq.write_table(rows.take(order), tmp_path / paths[-1])

    files = merge(archive.folder, paths, "_staging/x", archive.columns, parts)
    assert [file.rows for file in files] == [240 // parts] * parts
    found = pa.concat_tables(pq.ParquetFile(tmp_path / "_staging/x" / file.path).read() for file in files)
    expected = pa.Table.from_batches([rows_of(queue, range(40)) for queue in sorted(QUEUES)])
    assert found.equals(expected)
    counted = [(queue, *file.queues[queue]) for file in files for queue in file.queues]
    assert sum(rows for *_, rows in counted) == sum(end - begin for _, begin, end, _ in counted) == 240


def test_many_queues_are_read_side_by_side_with_one_file(tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as file:
        pieces = Pieces(rows_of(QUEUES[0], range(2)).schema, file)
        queues = [Queue("t", "broker-a", number) for number in range(50)]
        for queue in queues:
            pieces.add(queue, np.arange(2), rows_of(queue, range(2)))
        opened = len(os.listdir("/dev/fd"))
        reading = [pieces.sorted_of(queue) for queue in queues]
        assert [next(rows).num_rows for rows in reading] == [2] * 50
        assert len(os.listdir("/dev/fd")) <= opened + 1


def test_an_offset_that_is_there_twice_is_an_error_and_what_spark_wrote_is_taken(tmp_path: Path) -> None:
    archive = make(tmp_path)
    add(archive, {QUEUES[0]: range(5)})
    one = archive.snapshot().files[0].path
    with pytest.raises(RocketError, match="out of order or again"):
        merge(archive.folder, [one, one], "_staging/x", archive.columns, 1)
    # Spark's writer knows no Arrow schema, and has the columns in another order.
    table = pq.ParquetFile(tmp_path / one).read()
    pq.write_table(table.select(table.column_names[::-1]), tmp_path / _HOUR / "spark.parquet", store_schema=False)
    (file,) = merge(archive.folder, [f"{_HOUR}/spark.parquet"], "_staging/y", archive.columns, 1)
    assert pq.ParquetFile(tmp_path / "_staging/y" / file.path).read().equals(table)


def test_a_page_that_is_damaged_names_its_file(tmp_path: Path) -> None:
    archive = make(tmp_path)
    path = add(archive, {QUEUES[0]: range(1000)}).files[0].path
    data = bytearray((tmp_path / path).read_bytes())
    data[4:400] = bytes(396)
    (tmp_path / path).write_bytes(data)
    schema = pq.read_schema(tmp_path / path)
    with pytest.raises(RocketError, match=f"{path} cannot be read .*: put it back from a copy"):
        list(merging.batches_of(archive.folder, path, schema))
