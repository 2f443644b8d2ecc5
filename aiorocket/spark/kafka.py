"""Rows as Spark's Kafka source has them, and rows made for its sink as ours takes them: for jobs that come from Kafka.

docs/spark-kafka.md has the table of options and columns. Both functions only rename and cast, and work on streams too.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from aiorocket.errors import UsageError
from aiorocket.spark.steps.fields import need
from aiorocket_protocol import PROPERTY_SHARDING_KEY

__all__ = ("kafka_as_rocketmq", "rocketmq_as_kafka")

#: Kafka's CreateTime.
_CREATED = 0
_NEEDED = ("topic", "brokerName", "queueId", "queueOffset", "keys", "body", "bornTimestamp", "properties")


def rocketmq_as_kafka(df: DataFrame) -> DataFrame:
    """Rows of the source with the columns of Spark's Kafka source: ``key`` (the sharding key, else the message's keys,
    else null), ``value`` (the body), ``topic``, ``partition`` (the number of the queue), ``offset``, ``timestamp``
    (the producer's), ``timestampType`` (0, the producer's) and ``headers`` (the properties); and ``brokerName``,
    since a queue's number counts on its broker: where a topic is on several, a partition is both.

    UsageError when a column of the source that is needed was left out.
    """
    need(df, "rocketmq_as_kafka", *_NEEDED)
    sharding = F.nullif(F.try_element_at("properties", F.lit(PROPERTY_SHARDING_KEY)), F.lit(""))
    pairs = F.transform(
        F.map_entries("properties"),
        lambda each: F.struct(each["key"].alias("key"), each["value"].cast("binary").alias("value")),
    )
    return df.select(
        F.coalesce(sharding, F.col("keys")).cast("binary").alias("key"),
        F.col("body").alias("value"),
        F.col("topic"),
        F.col("queueId").alias("partition"),
        F.col("queueOffset").alias("offset"),
        F.col("bornTimestamp").alias("timestamp"),
        F.lit(_CREATED).alias("timestampType"),
        pairs.alias("headers"),
        F.col("brokerName"),
    )


def kafka_as_rocketmq(df: DataFrame) -> DataFrame:
    """Rows made for Spark's Kafka sink (``value``, and where they are there ``key``, ``topic``, ``partition``,
    ``headers``) with the columns of ours. The key becomes ``keys`` and the sharding key: messages of one key stay in
    one queue, in order. A row with a partition goes to the queue of that number and keeps its key. An empty key is
    none. Of two headers of one name the last counts; key and headers have to be UTF-8. A null value, Kafka's tombstone,
    is the sink's error: RocketMQ knows none.

    UsageError when ``value`` is missing, or for a column that Kafka's sink does not have.
    """
    need(df, "kafka_as_rocketmq", "value")
    columns: list[Column] = [F.col("value").alias("body")]
    if "key" in df.columns:
        # The sink refuses empty ones.
        key = F.nullif(F.col("key").cast("string"), F.lit(""))
        columns += [key.alias("keys"), key.alias("shardingKey")]
    if "topic" in df.columns:
        columns.append(F.col("topic"))
    if "partition" in df.columns:
        columns.append(F.col("partition").cast("int").alias("queueId"))
    if "headers" in df.columns:
        headers = F.col("headers")
        # Of two with one name the last: a map refuses the second.
        last = F.filter(
            headers,
            lambda each, at: (
                ~F.exists(F.slice(headers, at + F.lit(2), F.size(headers)), lambda other: other["key"] == each["key"])
            ),
        )
        pairs = F.transform(last, lambda each: F.struct(each["key"], each["value"].cast("string")))
        columns.append(F.map_from_entries(pairs).alias("properties"))
    known = {"value", "key", "topic", "partition", "headers"}
    others = [name for name in df.columns if name not in known]
    if others:
        raise UsageError(
            f"kafka_as_rocketmq: {', '.join(others)}: Kafka's sink takes {', '.join(sorted(known))}; select() them"
        )
    return df.select(*columns)
