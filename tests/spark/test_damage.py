"""Files of an archive or a table that are gone, cut short or have a flipped bit: named, and no other rows served."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from aiorocket.cli.main import cli
from aiorocket.errors import RocketError
from aiorocket.model import Queue
from aiorocket.spark.failures import explain
from aiorocket.spark.steps import archive_rows, compact, verify
from aiorocket.spark.steps.archives.merge import batches_of
from aiorocket.spark.steps.tables.table import Table
from tests.spark import lakes
from tests.spark.lakes import add, make

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUE = Queue("orders", "broker-a", 0)


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that cannot be compressed: Zstandard keeps them as they are, and finds nothing wrong with any bit."""
    plain, noise = lakes.rows_of, random.Random(1)

    def rows_of(*args: Any) -> pa.RecordBatch:
        rows = plain(*args)
        return rows.set_column(rows.schema.get_field_index("body"), "body", pa.array(map(noise.randbytes, [64] * 60)))

    monkeypatch.setattr(lakes, "rows_of", rows_of)


def flipped(path: Path, column: str) -> Iterator[bytes]:
    """The file with a bit flipped, in each of the last bytes of the first page of ``column``."""
    data, group = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0)
    found = [group.column(at) for at in range(group.num_columns) if group.column(at).path_in_schema == column]
    end = found[0].data_page_offset + found[0].total_compressed_size
    for at in range(end - 40, end):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        yield bytes(damaged)


@pytest.mark.usefixtures("noise")
def test_a_flipped_bit_is_not_another_body(tmp_path: Path) -> None:
    archive = make(tmp_path)
    path = add(archive, {QUEUE: range(60)}).files[0].path
    schema = pq.read_schema(tmp_path / path)
    before = pa.Table.from_batches(batches_of(archive.folder, path, schema))
    assert before.num_rows == 60
    for damaged in flipped(tmp_path / path, "body"):
        (tmp_path / path).write_bytes(damaged)
        with pytest.raises(RocketError, match=f"{path} cannot be read .*: put it back from a copy"):
            list(batches_of(archive.folder, path, schema))


@pytest.mark.parametrize("left", [None, 0, 500])
def test_a_file_that_is_gone_or_cut_short_is_no_smaller_archive(
    spark: SparkSession, tmp_path: Path, left: int | None
) -> None:
    archive = make(tmp_path)
    path = add(archive, {QUEUE: range(10)}).files[0].path
    add(archive, {QUEUE: range(10, 20)})
    assert archive_rows(spark, str(tmp_path)).count() == 20
    data = (tmp_path / path).read_bytes()
    (tmp_path / path).unlink()
    if left is not None:
        (tmp_path / path).write_bytes(data[:left])
    with pytest.raises(RocketError, match=f"{path} cannot be read .*: put it back from a copy") as told:
        archive_rows(spark, str(tmp_path))
    assert "\n" not in str(told.value)


def test_show_says_nothing_of_complete_where_a_file_is_empty(tmp_path: Path) -> None:
    archive = make(tmp_path)
    path = add(archive, {QUEUE: range(10)}).files[0].path
    assert "complete: 10 rows" in CliRunner().invoke(cli, ["lake", "show", str(tmp_path)]).stdout
    (tmp_path / path).write_bytes(b"")
    told = CliRunner().invoke(cli, ["lake", "show", str(tmp_path)])
    assert told.exit_code == 1 and "complete" not in told.stdout
    assert f"{path} cannot be read (0 bytes of" in told.stderr and told.stderr.count("\n") == 1


@pytest.mark.usefixtures("noise")
def test_spark_serves_no_body_with_a_flipped_bit(spark: SparkSession, tmp_path: Path) -> None:
    archive = make(tmp_path)
    path = add(archive, {QUEUE: range(60)}).files[0].path
    wrong = []
    for damaged in list(flipped(tmp_path / path, "body"))[::8]:
        (tmp_path / path).write_bytes(damaged)
        with pytest.raises(Exception, match="FAILED_READ_FILE") as told:
            wrong.append(archive_rows(spark, str(tmp_path)).select("body").collect())
        assert path in explain(told.value) and "put the file back from a copy" in explain(told.value)
    assert not wrong


def wrong_tails(data: bytes, tail: int) -> Iterator[bytes]:
    """The file with a bit flipped behind its last page, in each byte there in turn."""
    for at in range(len(data) - tail, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        yield bytes(damaged)


def test_no_flipped_bit_in_the_footer_of_an_archive_is_served(tmp_path: Path) -> None:
    """pyarrow has another value, or no such column, for one in 25 of them; it has no checksum to see it by."""
    archive = make(tmp_path)
    file = add(archive, {QUEUE: range(60)}).files[0]
    data = (tmp_path / file.path).read_bytes()
    assert 1000 < file.tail < file.bytes
    for damaged in wrong_tails(data, file.tail):
        (tmp_path / file.path).write_bytes(damaged)
        with pytest.raises(RocketError, match=f"{file.path} cannot be read .*footer.*: put it back from a copy"):
            archive.folder.need(archive.snapshot().files)
    (tmp_path / file.path).write_bytes(data)
    archive.folder.need(archive.snapshot().files)


def test_whoever_reads_an_archive_looks_at_footers(spark: SparkSession, tmp_path: Path) -> None:
    archive = make(tmp_path)
    path = add(archive, {QUEUE: range(30)}).files[0].path
    add(archive, {QUEUE: range(30, 60)})
    data = (tmp_path / path).read_bytes()
    at = data.rindex(b"body")  # in the footer, where Spark would find no body then, and all of them null
    (tmp_path / path).write_bytes(data[:at] + b"cody" + data[at + 4 :])
    for read in (archive_rows, verify, compact):
        with pytest.raises(RocketError, match=f"{path} cannot be read .*footer"):
            read(spark, str(tmp_path))
    shown = CliRunner().invoke(cli, ["lake", "show", str(tmp_path)])
    assert shown.exit_code == 1 and f"{path} cannot be read (its footer" in shown.stderr


def test_a_manifest_from_before_footers_were_checked_is_read(tmp_path: Path) -> None:
    archive = make(tmp_path)
    add(archive, {QUEUE: range(30)})
    (manifest,) = (tmp_path / "_manifest").iterdir()
    entry = json.loads(manifest.read_text())
    for file in entry["files"]:
        del file["tail"], file["crc"]
    manifest.write_text(json.dumps(entry))
    (file,) = archive.snapshot().files
    assert (file.rows, file.tail, file.crc) == (30, 0, 0)
    archive.folder.need([file])


def test_no_flipped_bit_behind_the_pages_of_a_table_is_served(spark: SparkSession, tmp_path: Path) -> None:
    """Spark writes indexes of pages there, by which it passes over rows: with one in 20 of them it finds none."""
    table = Table.open(str(tmp_path), "decode", {})
    table.write({"decoded": spark.range(0, 5000, 1, 1)}, {QUEUE: (0, 5000)}, 5000)
    (file,) = table.snapshot().files
    data, metadata = (tmp_path / file.path).read_bytes(), pq.read_metadata(tmp_path / file.path)
    assert file.tail > metadata.serialized_size + 8, "indexes too"
    for damaged in wrong_tails(data, file.tail):
        (tmp_path / file.path).write_bytes(damaged)
        with pytest.raises(RocketError, match=f"{file.path} cannot be read .*footer"):
            table.rows(spark, "decoded")
    (tmp_path / file.path).write_bytes(data)
    rows = table.rows(spark, "decoded")
    assert rows is not None and rows.count() == 5000
    (record,) = (tmp_path / "_runs").iterdir()
    entry = json.loads(record.read_text())
    entry["files"] = [each[:4] for each in entry["files"]]  # as it was before tails were
    record.write_text(json.dumps(entry))
    rows = table.rows(spark, "decoded")
    assert rows is not None and rows.count() == 5000


def test_a_table_without_one_of_its_files_is_no_smaller_table(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.open(str(tmp_path), "decode", {})
    for begin in (0, 10):
        frame = spark.range(begin, begin + 10, 1, 1)
        table.write({"decoded": frame}, {QUEUE: (begin, begin + 10)}, 10)
    rows = table.rows(spark, "decoded")
    assert rows is not None and rows.count() == 20
    path = table.snapshot().files[0].path
    (tmp_path / path).write_bytes(b"")
    with pytest.raises(RocketError, match=f"{path} cannot be read"):
        table.rows(spark, "decoded")
