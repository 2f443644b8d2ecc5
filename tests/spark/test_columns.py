"""The row schema: Spark and Arrow agree, choices are checked, the legacy schema is that of the Scala connector."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from aiorocket.errors import UsageError
from aiorocket.spark.columns import (
    LEGACY_COLUMNS,
    ROW_COLUMNS,
    arrow_schema,
    check_columns,
    columns_of,
    selected_columns,
    spark_schema,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about optional packages, when there are any to warn about
    from pyspark.sql.pandas.types import to_arrow_schema


@dataclass
class Options:
    columns: tuple[str, ...] = ()
    include_properties: bool = True
    legacy_schema: bool = False


@pytest.mark.parametrize("legacy", [False, True])
def test_arrow_schema_is_what_spark_makes_of_its_own(legacy: bool) -> None:
    names = LEGACY_COLUMNS if legacy else ROW_COLUMNS
    expected = to_arrow_schema(spark_schema(names, legacy=legacy), timezone="UTC")
    assert arrow_schema(names, legacy=legacy).equals(expected, check_metadata=True)
    for name in names:
        one = to_arrow_schema(spark_schema([name], legacy=legacy), timezone="UTC")
        assert arrow_schema([name], legacy=legacy).equals(one, check_metadata=True)


def test_the_columns_of_a_row() -> None:
    assert spark_schema(ROW_COLUMNS).simpleString() == (
        "struct<topic:string,brokerName:string,queueId:int,queueOffset:bigint,msgId:string,offsetMsgId:string,"
        "keys:string,tags:string,body:binary,properties:map<string,string>,bornTimestamp:timestamp,"
        "storeTimestamp:timestamp,bornHost:string,storeHost:string,reconsumeTimes:int,sysFlag:int,flag:int,bodyCrc:int,"
        "physicalOffset:bigint,preparedTransactionOffset:bigint>"
    )


def test_the_legacy_columns_are_the_scala_connectors() -> None:
    assert spark_schema(LEGACY_COLUMNS, legacy=True).simpleString() == (
        "struct<topic:string,flag:int,body:binary,properties:string,brokerName:string,queueId:int,queueOffset:bigint,"
        "bornTimestamp:timestamp,storeTimestamp:timestamp>"
    )


def test_options_choose() -> None:
    assert selected_columns(Options()) == ROW_COLUMNS
    assert selected_columns(Options(columns=("body", "topic"))) == ("body", "topic")
    assert selected_columns(Options(legacy_schema=True)) == LEGACY_COLUMNS
    without = selected_columns(Options(include_properties=False))
    assert without == tuple(name for name in ROW_COLUMNS if name != "properties")
    legacy = Options(columns=("properties",), legacy_schema=True)
    assert spark_schema(legacy).simpleString() == "struct<properties:string>"
    assert arrow_schema(legacy) == pa.schema([("properties", pa.string())])


@pytest.mark.parametrize(
    ("names", "legacy", "text"),
    [
        (["queueoffset"], False, r"'queueoffset' is not a column of a row; did you mean queueOffset\?"),
        (["tag"], False, r"did you mean tags\?"),
        (["qqq"], False, r"'qqq' is not a column of a row \(there are: topic,"),
        (["msgId"], True, "'msgId' is not a column of the legacy schema"),
        (["body", "body"], False, "body is asked for 2 times"),
        ([], False, "no columns"),
    ],
)
def test_columns_that_do_not_exist(names: list[str], legacy: bool, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        check_columns(names, legacy=legacy)


def test_a_schema_given_by_the_user_chooses() -> None:
    assert columns_of(spark_schema(["body", "queueOffset"])) == ("body", "queueOffset")
    assert columns_of(spark_schema(["properties"], legacy=True), legacy=True) == ("properties",)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"name": "body", "type": "string", "nullable": True}, "body is BINARY, the schema given says STRING"),
        ({"name": "flag", "type": "integer", "nullable": False}, "flag: leave out NOT NULL"),
        ({"name": "queueoffset", "type": "long", "nullable": True}, "did you mean queueOffset"),
    ],
)
def test_a_schema_that_a_row_does_not_fit(given: dict[str, object], text: str) -> None:
    schema = StructType.fromJson({"type": "struct", "fields": [{**given, "metadata": {}}]})
    with pytest.raises(UsageError, match=text):
        columns_of(schema)
