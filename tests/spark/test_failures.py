"""What Spark raises, in a line."""

from __future__ import annotations

import pytest

from aiorocket.spark.failures import explain

READING = """An error occurred while calling o1745.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 39.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 39.0 (TID 31) (localhost executor driver): org.apache.spark.SparkException: \
[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///lake/a.parquet.  SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:853)
Caused by: org.apache.parquet.io.ParquetDecodingException: could not read page in col [properties]
\t... 44 more
Caused by: org.apache.parquet.io.ParquetDecodingException: Corrupted RLE data: invalid length 1095124038
\t... 56 more
"""
FULL = """An error occurred while calling o7.save.
: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
STOPPED = "An error occurred while calling o7.count"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            READING,
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///lake/a.parquet: "
            "Corrupted RLE data: invalid length 1095124038; put the file back from a copy",
        ),
        (FULL, "No space left on device"),
        (STOPPED, STOPPED),
    ],
)
def test_of_a_java_trace_what_went_wrong_is_told(text: str, line: str) -> None:
    assert explain(RuntimeError(text)) == line
