"""Every option is read, and what is wrong with one is said with its name."""

from __future__ import annotations

import logging
import pickle
from dataclasses import fields

import pytest

from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.spark.option_text import NAMES
from aiorocket.spark.options import ConnectionOptions, OffsetSpec, OptionError, SinkOptions, SourceOptions
from aiorocket.spark.partition import cores

BASE = {"nameServer": "127.0.0.1:9876", "topic": "orders"}


def source(**options: str) -> SourceOptions:
    return SourceOptions.parse({**BASE, **options})


def test_the_least_there_can_be() -> None:
    options = source()
    assert options.connection == ConnectionOptions(name_servers=("127.0.0.1:9876",))
    assert options.topics == ("orders",)
    assert options.expression == ("*", "TAG")
    assert options.fail_on_data_loss and options.include_properties and options.decompress
    assert (options.pull_batch_size, options.pulls_in_flight, options.max_trigger_delay) == (1024, 16, 900.0)


def test_every_source_option_is_read() -> None:
    given = {
        "ENDPOINTS": "a:9876;b:9877, c:1",
        "namespace": "ns",
        "accessKey": "me",
        "secretKey": "hidden-1",
        "securityToken": "hidden-2",
        "tls": "true",
        "tlsCa": "ca.pem",
        "tlsCert": "cert.pem",
        "tlsKey": "key.pem",
        "tlsVerify": "false",
        "idleTimeout": "2m",
        "addressMap": "172.17.0.2:10911=localhost:20911; 10.4.0.7 = mq.example",
        "topic": " a, %DLQ%g ,a",
        "startingOffsets": '{"a":{"b":{"0":5}}}',
        "endingOffsets": "latest",
        "startingOffsetsByTimestampStrategy": "LATEST",
        "maxOffsetsPerTrigger": "1000",
        "minOffsetsPerTrigger": "10",
        "maxTriggerDelay": "1500ms",
        "minPartitions": "2",
        "maxPartitions": "8",
        "rowsPerPartition": "5000",
        "parallelism": "12",
        "failOnDataLoss": "False",
        "tags": "A || B||A",
        "groupId": "g",
        "commitOffsets": "true",
        "includeProperties": "false",
        "columns": "topic, body",
        "verifyCrc": "true",
        "decompress": "false",
        "pullBatchSize": "32",
        "pullsInFlight": "4",
        "pullTimeout": "5s",
    }
    options = SourceOptions.parse(given)
    assert options.connection == ConnectionOptions(
        name_servers=("a:9876", "b:9877", "c:1"), namespace="ns", access_key="me", secret_key="hidden-1",
        security_token="hidden-2", tls=True, tls_ca="ca.pem", tls_cert="cert.pem", tls_key="key.pem", tls_verify=False,
        idle_timeout=120.0, address_map=(("172.17.0.2:10911", "localhost:20911"), ("10.4.0.7", "mq.example")),
    )  # fmt: skip
    assert options.topics == ("a", "%DLQ%g")
    assert options.starting == OffsetSpec(kind="offsets", offsets={Queue("a", "b", 0): 5})
    assert options.ending == OffsetSpec(kind="latest")
    assert options.starting_offsets_by_timestamp_strategy == "latest"
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (1000, 10)
    assert options.max_trigger_delay == 1.5
    assert (options.min_partitions, options.max_partitions, options.rows_per_partition) == (2, 8, 5000)
    assert cores(options) == 12
    assert (options.tags, options.expression) == (("A", "B"), ("A || B", "TAG"))
    assert (options.group_id, options.commit_offsets, options.columns) == ("g", True, ("topic", "body"))
    assert (options.pull_batch_size, options.pulls_in_flight, options.pull_timeout) == (32, 4, 5.0)
    assert options.verify_crc
    assert not options.fail_on_data_loss and not options.include_properties and not options.decompress
    assert pickle.loads(pickle.dumps(options)) == options
    assert "hidden" not in repr(options)
    assert hash(options.connection) == hash(pickle.loads(pickle.dumps(options.connection)))


def test_the_other_ways_to_say_what_and_where() -> None:
    assign = SourceOptions.parse({"nameServer": "a:1", "assign": '{"t":{"b":[0,2]}}', "sqlFilter": "a > 5"})
    assert assign.assign == (Queue("t", "b", 0), Queue("t", "b", 2))
    assert assign.expression == ("a > 5", "SQL92")
    assert SourceOptions.parse({"nameServer": "a:1", "topicPattern": "orders-.*"}).topic_pattern == "orders-.*"
    assert source(tags="*").tags == ()
    assert source(startingOffsets="Group", groupId="g").starting == OffsetSpec(kind="group")
    timed = source(startingTimestamp="1700000000000").starting
    assert timed is not None and timed.millis_for(Queue("t", "b", 0)) == 1_700_000_000_000
    by = source(startingOffsetsByTimestamp='{"t":{"b":{"0":5}},"u":6}').starting
    assert by is not None
    assert [by.millis_for(Queue(*queue)) for queue in (("t", "b", 0), ("u", "c", 9), ("t", "b", 1))] == [5, 6, None]


def test_the_options_that_spark_keeps_from_a_table_are_explained() -> None:
    with pytest.raises(OptionError, match="CREATE TEMPORARY VIEW"):
        SourceOptions.parse({})


def test_what_spark_adds_and_what_is_for_the_other_direction_is_let_through() -> None:
    own = {"path": "x", "checkpointLocation": "y", "queryName": "q", "owner": "me", "provider": "rocketmq"}
    source(**own, **{"option.topic": "orders"}, sinkMode="exactlyOnce")
    assert SinkOptions.parse({**BASE, **own, "startingOffsets": "earliest", "pullBatchSize": "5"}).topic == "orders"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nameSrever": "x"}, "did you mean nameServer"),
        ({"startingOffset": "x"}, "did you mean startingOffsets"),
        ({"maxOffsetPerTriger": "x"}, "did you mean maxOffsetsPerTrigger"),
        ({"subscribe": "x"}, "called topic"),
        ({"kafka.bootstrap.servers": "x"}, "called nameServer"),
        ({"subExpression": "x"}, "called tags"),
        ({"bootstrap.servers": "x"}, "called nameServer"),
        ({"kafka.enable.idempotence": "x"}, "called sinkMode=idempotent"),
        ({"kafka.transactional.id": "x"}, "called sinkMode=exactlyOnce"),
        ({"kafka.ssl.truststore.password": "x"}, "tlsCa, tlsCert and tlsKey"),
        ({"kafka.sasl.client.callback.handler.class": "x"}, "accessKey, with secretKey"),
        ({"fetchOffset.numRetries": "x"}, "called pullTimeout"),
        ({"kafka.linger.ms": "x"}, "leave it out"),
        ({"maxOffsets": "x"}, "did you mean maxOffsetsPerTrigger"),
        ({"sql": "x"}, "did you mean sqlFilter"),
        ({"qqqqq": "x"}, "unknown$"),
        ({"bla": "x"}, "unknown$"),
        ({"user": "x"}, "unknown$"),
        ({"topic": ""}, "give one of topic, topicPattern and assign"),
        ({"topic": " , "}, "names no topic"),
        ({"topic": "a b"}, "topic: .*allowed"),
        ({"topicPattern": "x"}, "contradict"),
        ({"assign": '{"t":{"b":[0]}}'}, "contradict"),
        ({"topic": "", "topicPattern": "("}, "topicPattern.*regular expression"),
        ({"nameServer": ""}, "nameServer is missing"),
        ({"nameServer": "host"}, "'host' is no HOST:PORT"),
        ({"nameServer": ";"}, "names no server"),
        ({"endpoints": "b:1"}, "mean the same thing"),
        ({"accessKey": "a"}, "accessKey needs secretKey"),
        ({"secretKey": "a"}, "secretKey needs accessKey"),
        ({"accessKey": "a", "secretKey": "b", "credentialsFile": "c"}, "contradict"),
        ({"tlsCa": "x"}, "tlsCa is given without tls"),
        ({"tls": "true", "tlsKey": "x"}, "tlsKey needs tlsCert"),
        ({"tls": "yes"}, "true or false"),
        ({"startingOffsets": "first"}, "earliest, latest, group, or JSON"),
        ({"startingOffsets": "{"}, "startingOffsets.*not JSON"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "contradict"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp='yesterday'"),
        ({"startingOffsets": "group"}, "needs groupId"),
        ({"endingOffsets": "group"}, "needs groupId"),
        ({"commitOffsets": "true"}, "needs groupId"),
        ({"groupId": "a b"}, "groupId: .*allowed"),
        ({"startingOffsetsByTimestampStrategy": "latset"}, "did you mean latest"),
        ({"tags": "A", "sqlFilter": "a > 5"}, "contradict"),
        ({"tags": "||"}, "names no tag"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger=5 is above"),
        ({"minPartitions": "5", "maxPartitions": "4"}, "minPartitions=5 is above"),
        ({"maxOffsetsPerTrigger": "0"}, "a whole number, 1 or more"),
        ({"maxTriggerDelay": "5 parsecs"}, "maxTriggerDelay='5 parsecs'"),
        ({"idleTimeout": "0"}, "a time above 0"),
        ({"columns": "bdoy"}, "did you mean body"),
        ({"columns": "body,body"}, "each once"),
        ({"columns": "body", "legacySchema": "true"}, "contradicts columns"),
        ({"columns": "properties", "includeProperties": "false"}, "contradicts columns"),
        ({"legacySchema": "true", "includeProperties": "false"}, "contradicts legacySchema"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        source(**options)
    assert issubclass(OptionError, UsageError)


def test_a_batch_has_an_end_and_no_triggers(caplog: pytest.LogCaptureFixture) -> None:
    options = source(maxOffsetsPerTrigger="5", commitOffsets="true", groupId="g").for_batch()
    assert (options.starting, options.ending) == (OffsetSpec(kind="earliest"), OffsetSpec(kind="latest"))
    assert "maxOffsetsPerTrigger, commitOffsets: ignored in a batch query" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING
    for wrong in (
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t":{"b":{"0":-1}}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"t":{"b":{"0":-2}}}'},
        {"startingOffsets": '{"t":{"b":{"0":5}}}', "endingOffsets": '{"t":{"b":{"0":4}}}'},
        {"startingOffsets": '{"t":{"b":{"0":5}}}', "endingOffsets": '{"t":{"b":{"1":6}}}'},
        {"startingTimestamp": "5", "endingTimestamp": "4"},
        {"startingOffsetsByTimestamp": '{"t":"2025-03-02"}', "endingTimestamp": "2025-03-01"},
        {"startingTimestamp": "5", "endingOffsetsByTimestamp": '{"t":{"b":{"0":4}}}'},
        {"startingOffsetsByTimestamp": '{"t":5,"u":5}', "endingOffsetsByTimestamp": '{"t":5,"u":4}'},
    ):
        with pytest.raises(OptionError, match=r"starting|ending") as caught:
            source(**wrong).for_batch()
        assert "Queue(" not in str(caught.value)


def test_a_stream_has_no_end() -> None:
    assert source().for_stream().starting == OffsetSpec(kind="latest")
    assert source(startingOffsets="earliest").for_stream().starting == OffsetSpec(kind="earliest")
    for name, value in (("endingOffsets", "latest"), ("endingTimestamp", "5"), ("endingOffsetsByTimestamp", '{"t":5}')):
        with pytest.raises(OptionError, match=f"{name}: a stream has no end"):
            source(**{name: value}).for_stream()


def test_every_sink_option_is_read() -> None:
    options = SinkOptions.parse(
        {
            **BASE,
            "sinkmode": "EXACTLYONCE",
            "groupId": "g",
            "batchSize": "8",
            "sendsInFlight": "2",
            "sendTimeout": "4s",
            "compressOver": "100",
            "ledgerTopic": "ledger",
            "queryId": "nightly",
        }
    )
    assert (options.topic, options.mode) == ("orders", "exactlyOnce")
    assert (options.group_id, options.query_id) == ("g", "nightly")
    assert (options.batch_size, options.sends_in_flight, options.send_timeout) == (8, 2, 4.0)
    assert (options.compress_over, options.ledger_topic) == (100, "ledger")
    assert SinkOptions.parse({"nameServer": "a:1"}).topic is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "a,b"}, "the sink takes one"),
        ({"sinkMode": "exactlyTwice"}, "did you mean exactlyOnce"),
        ({"batchSise": "5"}, "did you mean batchSize"),
        ({"ledgerTopic": "a b"}, "ledgerTopic: .*allowed"),
    ],
)
def test_what_is_wrong_with_a_sink_is_said(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        SinkOptions.parse({**BASE, **options})


def test_each_option_has_a_field_and_each_field_an_option() -> None:
    kinds = [*fields(ConnectionOptions), *fields(SourceOptions), *fields(SinkOptions)]
    known = {each.name.replace("_", "").lower() for each in kinds} - {"connection", "given"}
    spoken = {name.lower() for name in NAMES}
    own_words = {
        "nameserver": "nameservers", "endpoints": "nameservers", "topic": "topics", "sinkmode": "mode",
        "startingoffsets": "starting", "startingtimestamp": "starting", "startingoffsetsbytimestamp": "starting",
        "endingoffsets": "ending", "endingtimestamp": "ending", "endingoffsetsbytimestamp": "ending",
    }  # fmt: skip
    assert {own_words.get(name, name) for name in spoken} | {"topic"} == known
