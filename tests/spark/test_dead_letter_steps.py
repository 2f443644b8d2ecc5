"""Dead letters through Spark: sorted by cause and age, and replayed once, whoever does it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal, cast

import pytest
from pyspark.sql import functions as F

from aiorocket.client.admin.admin import Admin
from aiorocket.client.admin.dead_message import DeadMessage
from aiorocket.client.admin.replay import ReplayOutcome
from aiorocket.client.app import Client
from aiorocket.client.exits import DeadLetter
from aiorocket.client.message import Message
from aiorocket.client.push.consumer import Consumer
from aiorocket.errors import UsageError
from aiorocket.model import OutgoingMessage
from aiorocket.runtime import run
from aiorocket.spark.steps.functions.dead_letters import describe, make_readable, select, top_causes, triage
from aiorocket.spark.steps.functions.replay import _Tally, replay
from aiorocket.spark.steps.report import Progress
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import CreateTopicRequestHeader, RequestCode
from tests.spark.producing import create_topic, send
from tests.spark.row_frames import at, frame, row, shuffled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DLQ = "%DLQ%billing"
HOUR, DAY = 3600.0, 86_400.0


@pytest.mark.spark_long
def test_the_cause_is_what_a_consumer_recorded(spark: SparkSession) -> None:
    recorded = [
        ({"DLQ_ERROR": "KeyError", "DLQ_REASON": "'id'", "error": "of the sender"}, "KeyError: 'id'"),
        ({"DLQ_ERROR": "DeadLetter", "DLQ_REASON": "no stock"}, "no stock"),
        ({"DLQ_ERROR": "TimeoutError"}, "TimeoutError"),
        ({"DLQ_ERROR": "TimeoutError", "error": "of the application"}, "of the application"),
        ({}, "gave up after 0 failed deliveries"),
    ]
    rows = [row(n, topic=DLQ, properties=properties) for n, (properties, _) in enumerate(recorded)]
    found = describe(frame(spark, rows)).orderBy("queueOffset").select("cause").collect()
    assert [each.cause for each in found] == [cause for _, cause in recorded]


@pytest.mark.spark_long
def test_a_condition_knows_causes_and_does_without_where_an_archive_has_few_columns(spark: SparkSession) -> None:
    df = frame(spark, [row(n, topic=DLQ, tags="ab"[n], properties={"error": f"no {n}"}) for n in range(2)])
    for rows, where in ((df, "cause = 'no 1'"), (df, "tags = 'b'"), (df.drop("body", "reconsumeTimes"), "tags = 'b'")):
        assert [each.queueOffset for each in select(rows, where).collect()] == [1]


@pytest.mark.spark_long
def test_triage_groups_causes_ages_and_samples(spark: SparkSession) -> None:
    orders = {"RETRY_TOPIC": "orders", "error": "no such account\n  at line 7"}
    mail = {"DLQ_ORIGIN_TOPIC": "mail"}
    now = 10 * DAY
    told = {**orders, "DLQ_HOST": "10.0.0.7@b"}
    rows = [
        row(0, topic=DLQ, tags="paid", properties=told, stored=now - 60, reconsume_times=16, body=b"newest"),
        row(1, topic=DLQ, tags="paid", properties=orders, stored=now - 2 * HOUR, reconsume_times=3, body=b"older"),
        row(2, topic=DLQ, tags="paid", properties=orders, stored=now - 3 * DAY, reconsume_times=16, body=b"x" * 99),
        row(3, topic=DLQ, tags="paid", properties=orders, stored=now - 9 * DAY, reconsume_times=16, body=b"\xff\x00"),
        row(4, topic=DLQ, properties=mail, stored=now - DAY, reconsume_times=1, body=b"\xff" * 9),
        row(0, topic="%DLQ%other", properties={**orders, "ERROR": "no such account"}, stored=now, reconsume_times=2),
        row(1, topic="%DLQ%other", stored=now, reconsume_times=2, body=None),
        row(9, topic="orders", properties=orders),  # no dead letter
    ]
    df = frame(spark, shuffled(rows))
    table = triage(df, samples=2, now=at(now), body_chars=8).cache()
    found = table.collect()
    first = found[0].asDict(recursive=True)
    assert {name: first[name] for name in ("consumerGroup", "originTopic", "tag", "cause", "letters")} == {
        "consumerGroup": "billing", "originTopic": "orders", "tag": "paid", "cause": "no such account", "letters": 4
    }  # fmt: skip
    assert [first[name] for name in ("lastHour", "lastDay", "lastWeek", "older")] == [1, 1, 1, 1]
    assert (first["fewestFailures"], first["mostFailures"]) == (3, 16)
    assert first["newest"] - first["oldest"] == timedelta(days=9) - timedelta(seconds=60)
    assert first["samples"] == [
        {
            "msgId": f"id-{DLQ}/broker-a/0/{n}", "offsetMsgId": f"at-{DLQ}/broker-a/0/{n}", "keys": None, "host": host,
            "body": body,
        }
        for n, (host, body) in enumerate([("10.0.0.7@b", "newest"), (None, "older")])
    ]  # fmt: skip
    rest = sorted((r["consumerGroup"], r["originTopic"] or "", r["cause"], r["letters"]) for r in found[1:])
    assert rest == [
        ("billing", "mail", "gave up after 1 failed delivery", 1),
        ("other", "", "gave up after 2 failed deliveries", 1),
        ("other", "orders", "no such account", 1),
    ]
    causes = top_causes(table, 1).collect()
    assert [(r["cause"], r["letters"], r["groups"], r["topics"]) for r in causes] == [
        ("no such account", 5, ["billing", "other"], ["orders"])
    ]
    table.unpersist()
    shown = describe(df, cause=F.get_json_object(F.col("body").cast("string"), "$.why"), now=at(now), body_chars=8)
    shown = shown.select("topic", "queueOffset", "sample")
    samples = {(r["topic"], r["queueOffset"]): r["sample"] for r in shown.collect()}
    assert (samples[DLQ, 2], samples[DLQ, 3], samples[DLQ, 4]) == ("xxxxxxx…", "0xff00", "0xffffffff")
    assert samples["%DLQ%other", 1] is None


def bury(nameserver: str, group: str, topic: str, bodies: list[str]) -> None:
    """Send ``bodies`` to ``topic`` and have ``group`` give each of them up."""
    create_topic(nameserver, topic)
    send(nameserver, topic, [OutgoingMessage(topic=topic, body=body.encode(), tag=body[:1]) for body in bodies])

    async def give_up() -> None:
        consumer, left, done = Consumer(group, nameservers=nameserver), len(bodies), asyncio.Event()

        @consumer.listener(topic, start_from="first")
        async def refuse(message: Message) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()
            raise DeadLetter("not for us")

        async with consumer:
            await asyncio.wait_for(done.wait(), 30)

    run(give_up())


def test_progress_of_a_replay_is_a_line_a_second_and_each_failure() -> None:
    told: list[Progress] = []
    letter = cast(DeadMessage, SimpleNamespace(msg_id="M"))

    async def main(_: Simulation) -> None:
        tally = _Tally(1000, told.append)
        for number in range(1, 1001):
            status: Literal["failed", "skipped"] = "failed" if number == 7 else "skipped"
            tally.tell(ReplayOutcome(letter, "orders", status))
            await asyncio.sleep(0.0025)

    simulate(main)
    assert [line.done_rows for line in told if line.done_rows != 7][::3] == [1, 1000]
    assert {line.text for line in told} == {"M was sent before", "M not sent to orders"}
    assert len(told) == 5  # the first, one failure, two seconds, the last


@pytest.mark.spark_long
def test_causes_that_differ_in_numbers_are_one_where_they_are_many(spark: SparkSession) -> None:
    said = [
        *(f"order {n} costs {n * 9}.50, not {'9' * n} at 0x{n * 99:x}" for n in range(1, 7)),
        *(f"unknown 3f2504e0-4f89-11d3-9a0c-0305e82c330{n}, deadbeef{n} " + "x" * 200 for n in range(6)),
        "HTTP 404", "HTTP 500", "HTTP 500", "defaced", "wanted " + "1," * 50_000,
    ]  # fmt: skip
    rows = [
        row(n, topic=DLQ, tags="ab"[n % 2], properties={"DLQ_ERROR": "DeadLetter", "DLQ_REASON": text})
        for n, text in enumerate(said)
    ]
    found = top_causes(triage(frame(spark, rows), now=at(0)), 9).collect()
    assert sorted((each["cause"], each["letters"]) for each in found) == [
        ("HTTP 404", 1), ("HTTP 500", 2), ("defaced", 1), ("order # costs #, not # at #", 6),
        ("unknown #, # " + "x" * 187, 6), ("wanted " + "1," * 96 + "1", 1),
    ]  # fmt: skip


@pytest.mark.spark_long
def test_a_replay_sends_what_spark_selects_and_only_once(spark: SparkSession, nameserver: str, topic: str) -> None:
    group = f"g-{topic}"
    bury(nameserver, group, topic, ["a1", "a2", "b1", "b2", "b3"])
    make_readable(nameserver, group)
    options = {"nameServer": nameserver, "topic": f"%DLQ%{group}"}
    letters = spark.read.format("rocketmq").options(**options).load().cache()
    [found] = triage(letters, samples=1).where("tag = 'b'").collect()
    assert (found["originTopic"], found["consumerGroup"], found["letters"]) == (topic, group, 3)
    wanted = letters.where("tags = 'b'")

    dry = replay(wanted, nameserver, dry_run=True)
    assert (dry.rows_in, dry.rows_out, dry.details["sent"], dry.details["skipped"]) == (3, 3, 0, 0)
    told: list[Progress] = []
    first = replay(wanted, nameserver, confirm=True, limit=1, rate=1000.0, on_progress=told.append)
    assert (first.rows_in, first.rows_out, first.details["left"]) == (3, 1, 2)
    assert [(line.done_rows, line.total_rows) for line in told] == [(0, None), (1, 3)]
    second = replay(wanted, nameserver, confirm=True, on_progress=told.append)
    texts = [line.text.partition(" ")[2] for line in told]
    assert texts[1:3] == [f"sent to {topic}", "the dead letters"] and told[-1].done_rows == 3
    assert (second.rows_out, second.details["skipped"], second.details["not_found"]) == (2, 1, 0)

    async def by_admin() -> tuple[int, int]:
        async with Admin(nameservers=nameserver) as admin:
            report = await admin.dlq(group).replay(confirm=True)
            return report.sent, report.skipped

    assert run(by_admin()) == (2, 3)  # a1 and a2; what Spark sent is marked for everybody
    third = replay(letters, nameserver, dry_run=True)
    assert (third.rows_in, third.rows_out, third.details["skipped"]) == (5, 0, 5)
    lost = letters.withColumn("offsetMsgId", F.concat(F.lit("gone"), "offsetMsgId"))
    assert replay(lost, nameserver, confirm=True).details["not_found"] == 5
    again = spark.read.format("rocketmq").options(nameServer=nameserver, topic=topic).load()
    rows = again.where("properties['REPLAY_ID'] IS NOT NULL").select("body", "properties").collect()
    assert sorted(bytes(r["body"]) for r in rows) == [b"a1", b"a2", b"b1", b"b2", b"b3"]
    ids = {r["offsetMsgId"] for r in letters.select("offsetMsgId").collect()}
    assert {r["properties"]["REPLAY_ID"] for r in rows} == ids
    letters.unpersist()


def test_a_hidden_dead_letter_topic_is_made_readable(nameserver: str, topic: str) -> None:
    hidden = f"%DLQ%g-{topic}"

    async def readable(make: bool) -> bool:
        async with Client(nameservers=nameserver) as client:
            if make:  # as old brokers do
                header = CreateTopicRequestHeader(hidden, "TBW102", 1, 1, 2, "SINGLE_TAG", False)
                address = (await client.session.route("TBW102")).master("broker-a")
                assert address is not None
                await client.session.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            return bool((await client.session.route(hidden, refresh=True)).subscribe)

    assert run(readable(True)) is False
    make_readable(nameserver, f"g-{topic}")
    assert run(readable(False)) is True


def test_refusals(spark: SparkSession) -> None:
    df = frame(spark, [row(0)])
    with pytest.raises(UsageError, match="confirm=True does it"):
        replay(df, "localhost:9876")
    with pytest.raises(UsageError, match="only dead letters"):
        replay(df, "localhost:9876", dry_run=True)
    with pytest.raises(UsageError, match="rate=0"):
        replay(df, "localhost:9876", dry_run=True, rate=0)
    with pytest.raises(UsageError, match="zone"):
        triage(df, now=at(0).replace(tzinfo=None))
    with pytest.raises(UsageError, match="needs the columns offsetMsgId"):
        triage(df.drop("offsetMsgId"))
