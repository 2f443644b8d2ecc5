"""What operators ask by command: on one embedded broker, in this process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from aiorocket import Admin, ClientConfig, Message, Queue, embed
from aiorocket.cli.asked import SCHEMA, _work
from aiorocket.cli.main import COMMANDS, cli
from aiorocket.cli.running import run, told_in_a_line
from aiorocket.cli.show import say_json, table, when
from aiorocket.cli.topic import topic
from aiorocket.client.admin.asking import Broker
from aiorocket.client.admin.brokers import ProducerConnection
from aiorocket.client.admin.offsets import OffsetMove, OffsetPlan, Offsets
from aiorocket.client.admin.pops import Checkpoint
from aiorocket.client.admin.timers import PendingTimer
from aiorocket.client.admin.users import AclEntry, User
from aiorocket.errors import (
    BadNameError,
    ConnectionLostError,
    NotConnectedError,
    ProtocolError,
    RemoteError,
    UsageError,
)
from aiorocket.runtime.threads import in_thread
from aiorocket.testing.server import RocketMQServer, broker_thread
from aiorocket_protocol import TRACE_TOPIC
from aiorocket_protocol.message_trace import TraceRecord, write_trace
from tests.broker.peer import away
from tests.interop import migration

Run = Callable[..., Result]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[RocketMQServer]:
    with broker_thread() as server:
        server.create_topic("orders", queues=2)

        for number in range(4):
            server.send("orders", b"%d" % number, tag="paid", keys=[f"o-{number}"])
        yield server


@pytest.fixture
def ask(server: RocketMQServer) -> Run:
    def call(*arguments: str) -> Result:
        return CliRunner().invoke(cli, [*arguments, "--nameserver", server.nameserver_address])

    return call


def rows(result: Result, kind: str) -> list[dict[str, Any]]:
    return read(result.stdout, kind)


def read(text: str, kind: str) -> list[dict[str, Any]]:
    document = json.loads(text)
    assert set(document) == {"schema", "kind", "rows", "missing"}
    assert (document["schema"], document["kind"], document["missing"]) == (SCHEMA, kind, [])
    found: list[dict[str, Any]] = document["rows"]
    return found


def documented() -> dict[str, list[str]]:
    """The fields of each kind of row, as the page has them: they are what other people's programs read."""
    table = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8").partition("| kind | of | fields |")[2]
    rows = [re.split(r" *\| *", line)[1:4] for line in table.partition("\n\n")[0].splitlines()[2:]]
    return {kind.strip("`"): fields.split() for kind, _, fields in rows}


FIELDS = documented()


def test_every_kind_of_document_is_on_the_page() -> None:
    source = "".join(each.read_text(encoding="utf-8") for each in (ROOT / "aiorocket" / "cli").glob("*.py"))
    assert set(re.findall(r'told\(\s*"([a-z ]+)"', source)) == FIELDS.keys()
    assert (User._fields, AclEntry._fields) == (tuple(FIELDS["user"]), tuple(FIELDS["right"]))
    assert [*ProducerConnection._fields] == FIELDS["producer"] and [*Checkpoint._fields] == FIELDS["checkpoint"]
    assert [*PendingTimer._fields] == FIELDS["timer"]


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("topic", "topic list"),
        ("queue", "topic status orders"),
        ("route", "topic route orders"),
        ("group", "group create billing"),
        ("group", "group list"),
        ("lag", "group lag billing orders"),
        ("offset move", "offsets reset billing orders --to last --dry-run"),
        ("message", "message list orders"),
        ("message", "message key orders o-1"),
        ("message", "message at orders broker-a 0 0"),
        ("receipt", "send posted hello --tag t --key p-1 --property n=1"),
        ("broker", "cluster list"),
        ("runtime", "cluster status"),
        ("setting", "cluster config broker-a"),
        ("finding", "doctor"),
        ("offset move", "offsets reset billing orders --to last"),
        ("group name", "topic groups orders"),
        ("mode", "group mode billing orders PULL"),
        ("cloned", "offsets clone billing cloned orders"),
        ("changed", "cluster set broker-a transactionCheckMax=15"),
        ("cleaned", "cluster clean topics"),
        ("write permission", "cluster write broker-a on"),
        ("nameserver changed", "cluster names put fields key value"),
        ("key value", "cluster names values fields"),
        ("deleted", "group delete cloned --yes"),
    ],
)
def test_what_machines_read(ask: Run, kind: str, command: str) -> None:
    result = ask(*command.split(), "--json")
    assert result.exit_code == 0, result.output
    found = rows(result, kind)
    assert found and all(list(row) == FIELDS[kind] for row in found)


def test_a_group_is_put_somewhere_else(ask: Run) -> None:
    assert ask("group", "create", "auditors").exit_code == 0
    done = ask("offsets", "reset", "auditors", "orders", "--to", "last")
    assert done.exit_code == 0 and "0 messages come again, 4 will not come" in done.output, done.output
    assert [row["lag"] for row in rows(ask("group", "lag", "auditors", "orders", "--json"), "lag")] == [0, 0]
    back = ask("offsets", "reset", "auditors", "orders", "--queue", "broker-a:1=0")
    assert back.exit_code == 0 and sum(row["lag"] for row in rows(ask("top", "--json"), "group lag")) == 2
    assert list(rows(ask("top", "--json"), "group lag")[0]) == FIELDS["group lag"]
    for wrong in (
        [],
        ["--to", "first", "--skip", "1"],
        ["--to", "yesterday"],
        ["--queue", "0=1"],
        ["--queue", "a:\u00b2=1"],
    ):
        assert ask("offsets", "reset", "auditors", "orders", *wrong).exit_code == 2


def test_of_a_group_that_has_committed_nothing_it_is_not_said_that_nothing_waits(ask: Run) -> None:
    assert ask("group", "create", "newcomers").exit_code == 0
    said = ask("group", "lag", "newcomers")
    assert said.exit_code == 0 and "has committed none" in said.output and "wait" not in said.output, said.output
    assert rows(ask("group", "lag", "newcomers", "--json"), "lag") == []


@pytest.mark.parametrize(
    "command", ["group lag billin", "group lag billin orders", "dlq list billin", "dlq replay billin"]
)
def test_a_group_that_nobody_knows_is_no_group_without_messages(ask: Run, command: str) -> None:
    said = ask(*command.split())
    assert said.exit_code == 1 and "no broker knows a group 'billin'" in said.output, said.output


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "create", "a b"),
        ("group", "create", "a b"),
        ("offsets", "reset", "a b", "orders", "--to", "last"),
        ("offsets", "clone", "billing", "a b", "orders"),
        ("send", "a b", "body"),
        ("send", "orders", "body", "--tag", "a || b"),
        ("produce", "a b", os.devnull),
        ("consume", "a b", "--group", "g"),
        ("consume", "orders", "--group", "a b"),
        ("dlq", "list", "a b"),
        ("dlq", "replay", "a b"),
    ],
)
def test_a_name_that_cannot_be_is_bad_usage(ask: Run, command: tuple[str, ...]) -> None:
    said = ask(*command)
    assert said.exit_code == 2 and re.search(r"Error: (topic|group|tag) 'a (\|\| )?b'", said.stderr), said.output


def test_people_get_a_table_in_which_ids_are_whole(ask: Run) -> None:
    (message,) = rows(ask("message", "key", "orders", "o-2", "--json"), "message")
    shown = ask("message", "key", "orders", "o-2").output
    assert message["msg_id"] in shown and message["offset_msg_id"] in shown and " orders " in shown
    for identity in ([message["offset_msg_id"]], [message["msg_id"], "--topic", "orders"]):
        assert rows(ask("message", "get", *identity, "--json"), "message") == [message]
    assert ask("message", "get", "nothing").exit_code == 1 and ask("message", "key", "orders", "none").exit_code == 1


def test_a_trace_is_who_sent_and_who_consumed(ask: Run, server: RocketMQServer) -> None:
    records = [
        TraceRecord("Pub", "ID-1", timestamp=1_700_000_000_000, group="shop", topic="orders", cost=3),
        TraceRecord("SubBefore", "ID-1", timestamp=1_700_000_000_500, group="billing", request_id="R"),
    ]
    assert ask("trace", "ID-1").exit_code == 1
    server.send(TRACE_TOPIC, "".join(map(write_trace, records)).encode(), keys=["ID-1"])
    found = rows(ask("trace", "ID-1", "--json"), "trace")
    assert [(row["kind"], row["group"], row["at_ms"]) for row in found] == [
        ("Pub", "shop", 1_700_000_000_000), ("SubBefore", "billing", 1_700_000_000_500)
    ]  # fmt: skip
    assert list(found[0]) == FIELDS["trace"]


def test_topics_come_change_and_go(ask: Run) -> None:
    assert ask("topic", "create", "events", "--queues", "3").exit_code == 0
    changed = rows(ask("topic", "update", "events", "--permission", "R", "--json"), "topic")
    assert [(row["permission"], row["write_queues"]) for row in changed] == [("R", 3)]
    unsure = ask("topic", "delete", "events")
    assert unsure.exit_code == 2 and "--yes" in unsure.output
    assert ask("topic", "delete", "events", "--yes").exit_code == 0
    gone = ask("topic", "status", "events")
    assert gone.exit_code == 1 and "no broker has topic 'events': `aiorocket topic list` names" in gone.output


def test_a_group_changes_in_what_is_given_and_nothing_else(ask: Run) -> None:
    assert ask("group", "create", "clerks", "--retries", "5").exit_code == 0
    (off,) = rows(ask("group", "update", "clerks", "--disabled", "--json"), "group")
    assert (off["enabled"], off["retries"]) == (False, 5)
    (more,) = rows(ask("group", "update", "clerks", "--retries", "7", "--json"), "group")
    assert (more["enabled"], more["retries"]) == (False, 7)
    nobody = ask("group", "update", "nobody", "--enabled")
    assert nobody.exit_code == 1 and "no broker has group 'nobody'" in nobody.output


def test_what_waits_for_its_time_is_listed(ask: Run, server: RocketMQServer) -> None:
    sent = server.send("parcels", b"later", keys=["o-later"], after=timedelta(hours=1))
    (row,) = rows(ask("message", "timers", "--json"), "timer")
    assert list(row) == FIELDS["timer"]
    assert (row["topic"], row["msg_id"], row["keys"]) == ("parcels", sent.msg_id, ["o-later"])


def test_a_dry_run_says_that_it_was_one(ask: Run) -> None:
    again = ["offsets", "reset", "billing", "orders", "--to", "first"]
    assert "will not come, without --dry-run\n" in ask(*again, "--dry-run").output
    assert "--dry-run" not in ask(*again).output
    assert ask("group", "create", "starters").exit_code == 0
    known, mistyped = (ask(*again[:2], name, *again[3:], "--dry-run") for name in ("starters", "starter"))
    assert known.stderr == "" and "Note: no broker knows a group 'starter'" in mistyped.stderr


def test_an_error_names_the_next_step(ask: Run) -> None:
    nobody = "127.0.0.1:1"
    for command in (
        "topic list", "topic route t", "topic delete t --yes", "message dump t", "group lag g", "cluster write b off",
        "cluster names config", "cluster names values s", "cluster names put s k v",
    ):  # fmt: skip
        alone = CliRunner().invoke(cli, [*command.split(), "--nameserver", nobody])
        assert alone.exit_code == 1 and alone.output.count(nobody) == 1, alone.output
        assert "`aiorocket standalone` starts one" in alone.output, alone.output
    # Who says where a broker is needs no word about addresses that brokers register.
    given = ask("topic", "list", "--broker", nobody)
    assert given.exit_code == 1 and "refused" in given.output and "address_map" not in given.output
    for unique in ("zz", "7F000001CE287B46F0CF8AD8FB88F0D0"):
        other = ask("message", "get", unique)
        assert other.exit_code == 1 and "looked up in its topic (by_unique_key, --topic)" in other.output
    # Nobody else may either: no word about signing in.
    fixed = ask("cluster", "set", "broker-a", "brokerName=b")
    assert fixed.exit_code == 1 and "is fixed" in fixed.output and "sign in" not in fixed.output


def test_settings_change_while_it_runs(ask: Run) -> None:
    assert ask("cluster", "set", "broker-a", "transactionCheckMax=14").exit_code == 0
    settings = {row["name"]: row["value"] for row in rows(ask("cluster", "config", "broker-a", "--json"), "setting")}
    assert settings["transactionCheckMax"] == "14"
    assert ask("cluster", "write", "broker-a", "off").exit_code == 0
    sick = ask("doctor")
    assert "no broker lets it be written" in sick.output and "aiorocket cluster write BROKER on" in sick.output
    assert ask("cluster", "write", "broker-a", "on").exit_code == 0
    assert ask("cluster", "set", "broker-a", "nonsense").exit_code == 2


def test_messages_go_to_lines_and_come_back(server: RocketMQServer, ask: Run, tmp_path: Path) -> None:
    server.create_topic("copies", queues=1)
    server.create_topic("source", queues=1)
    server.send("source", b"\xff\x00", tag="raw", keys=["k1", "k2"], properties={"tenant": "acme"})
    server.send("source", "42 €".encode())
    dumped = ask("message", "dump", "source")
    assert dumped.exit_code == 0 and len(dumped.stdout.splitlines()) == 2
    (tmp_path / "lines").write_text(dumped.stdout, encoding="utf-8")
    loaded = ask("message", "load", str(tmp_path / "lines"), "--topic", "copies")
    assert loaded.exit_code == 0 and loaded.stderr == "2 messages sent\n", loaded.output
    raw, text = (json.loads(line) for line in ask("message", "dump", "copies").stdout.splitlines())
    assert (raw["body_base64"], raw["tag"], raw["keys"], raw["properties"]["tenant"]) == (
        "/wA=", "raw", ["k1", "k2"], "acme",
    )  # fmt: skip
    assert text["body"] == "42 €" and not text["tag"] and not text["keys"]
    (tmp_path / "bad").write_text(dumped.stdout.splitlines()[0] + "\n{}\n", encoding="utf-8")
    half = ask("message", "load", str(tmp_path / "bad"), "--topic", "copies")
    assert half.exit_code == 2 and "1 message sent" in half.stderr and "line 2 is none of" in half.stderr
    rows = [json.loads(line) for line in dumped.stdout.splitlines()]
    rows[1]["topic"] = "SCHEDULE_TOPIC_XXXX"  # which a broker lets nobody send to
    (tmp_path / "refused").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    refused = ask("message", "load", str(tmp_path / "refused"))
    assert refused.exit_code == 1 and "1 message sent" in refused.stderr and "Error: line 2: " in refused.stderr


def test_what_is_no_text_or_too_deep_is_told_in_a_line(server: RocketMQServer, ask: Run, tmp_path: Path) -> None:
    server.create_topic("bytes", queues=1)
    assert ask("send", "bytes", os.fsdecode(b"\xff\xe4")).exit_code == 0
    assert [each.body for each in server.messages("bytes")] == [b"\xff\xe4"]
    said = ask("cluster", "set", "broker-a", f"name={os.fsdecode(bytes([255]))}")
    assert said.exit_code == 1 and said.stderr.startswith("Error: ") and said.stderr.count("\n") == 1
    (tmp_path / "deep").write_text("[" * 100_000, encoding="utf-8")
    said = ask("message", "load", str(tmp_path / "deep"))
    assert said.exit_code == 2 and "Error: line 1 is none of" in said.stderr
    (tmp_path / "keyed").write_text('{"k": 1}\n' + '{"k":' * 100_000 + '\n{"k": "3"}\n', encoding="utf-8")
    said = ask("produce", "bytes", str(tmp_path / "keyed"), "--key-field", "k")
    assert said.exit_code == 1 and "1 not acknowledged: line 2\n  line 2: not JSON" in said.stderr
    assert len(server.messages("bytes")) == 3


def test_name_servers_keep_settings_and_key_values(ask: Run) -> None:
    assert {row["name"] for row in rows(ask("cluster", "names", "config", "--json"), "setting")}
    assert ask("cluster", "names", "put", "NS", "key", "a value").exit_code == 0
    kept = rows(ask("cluster", "names", "values", "NS", "--json"), "key value")
    assert kept == [{"key": "key", "value": "a value"}]
    assert ask("cluster", "names", "delete", "NS", "key").exit_code == 2
    assert ask("cluster", "names", "delete", "NS", "key", "--yes").exit_code == 0
    assert rows(ask("cluster", "names", "values", "NS", "--json"), "key value") == []


def test_a_table_that_does_not_fit_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    columns, row = ["message id", "topic"], ("AC1100011F0018B4AAC2" * 2, "orders")
    table("Messages", columns, [row, row], pretty=False, width=80)
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"  {'message id':40}   topic",
        f"  {row[0]}  orders",
        f"  {row[0]}  orders",
    ]
    table("Messages", columns, [row], pretty=False, width=40)
    assert capsys.readouterr().out.splitlines()[2:] == ["", f"  message id  {row[0]}", "  topic       orders"][:3]


ESCAPES = "\x1b]0;owned\x07\x1b[2J"


def test_what_others_wrote_does_not_steer_the_terminal(ask: Run, server: RocketMQServer) -> None:
    server.create_topic("hostile", queues=1)
    server.send("hostile", f"a{ESCAPES}\nb\u202e".encode(), tag=f"t{ESCAPES}", keys=["k-h"], properties={"p\x9b": "v"})
    for command in ("list hostile", "key hostile k-h", "at hostile broker-a 0 0"):
        shown = ask("message", *command.split()).output
        assert "a\\x1b]0;owned\\x07\\x1b[2J\\nb\\u202e" in shown and r"p\x9b=v" in shown
        assert "\x1b" not in shown and "\x9b" not in shown and "\u202e" not in shown
    machines = rows(ask("message", "list", "hostile", "--json"), "message")
    assert machines[0]["body"] == f"a{ESCAPES}\nb\u202e" and machines[0]["tag"] == f"t{ESCAPES}"
    with pytest.raises(click.ClickException) as raised, told_in_a_line():
        raise RemoteError(1, f"a member said {ESCAPES}\nand more")
    assert "\x1b" not in raised.value.message and "\nand more" in raised.value.message
    with pytest.raises(click.ClickException, match="time is up"), told_in_a_line():
        raise TimeoutError


def test_a_body_does_not_steer_the_terminal_that_shows_it(server: RocketMQServer) -> None:
    """A pipe or a file gets the very bytes."""
    server.create_topic("shown", queues=1)
    server.send("shown", f"a\t{ESCAPES}\nb €".encode())
    command = [sys.executable, "-m", "aiorocket", "consume", "shown", "--nameserver", server.nameserver_address]
    piped = subprocess.run([*command, "--group", "g"], capture_output=True, timeout=60, check=True)
    assert piped.stdout == f"a\t{ESCAPES}\nb €\n".encode()
    ours, terminal = os.openpty()
    try:
        subprocess.run([*command, "--group", "h"], stdout=terminal, stderr=subprocess.PIPE, timeout=60, check=True)
        assert os.read(ours, 1000).replace(b"\r\n", b"\n") == "a\t\\x1b]0;owned\\x07\\x1b[2J\nb €\n".encode()
    finally:
        os.close(ours)
        os.close(terminal)


def test_times_that_no_calendar_has(ask: Run) -> None:
    assert when(1 << 62) == str(1 << 62) and when(0).startswith("19")
    for wrong in ("99999999999999999999", "1900-01-01", "0001-01-02", "2030-13-01"):
        said = ask("message", "list", "orders", "--since", wrong)
        assert said.exit_code == 2 and "neither a time" in said.output, said.output


def test_halves_of_characters_are_json_all_the_same(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    say_json({"half": "\ud800", "whole": "\u65e5"})
    line = capfdbinary.readouterr().out
    assert json.loads(line) == {"half": "\ud800", "whole": "\u65e5"} and "\u65e5".encode() in line


def test_a_terminal_of_another_encoding_gets_what_it_has(server: RocketMQServer) -> None:
    server.create_topic("accents", queues=1)
    server.send("accents", "caf\u00e9 \u65e5".encode())
    command = [sys.executable, "-m", "aiorocket", "message", "list", "accents"]
    environment = {**os.environ, "AIOROCKET_NAMESERVER": server.nameserver_address, "PYTHONIOENCODING": "latin-1"}
    shown = subprocess.run(command, capture_output=True, env=environment, timeout=140, check=True).stdout
    assert b"caf\xe9 \\u65e5\n" in shown


async def test_what_a_member_hangs_on_is_below_what_else_it_says() -> None:
    async with embed() as mq:
        await mq.create_topic("orders", queues=1)
        consumer, begun, looked = mq.consumer("billing"), asyncio.Event(), asyncio.Event()

        @consumer.listener("orders", start_from="first")
        async def on_order(message: Message) -> None:
            begun.set()
            await looked.wait()

        async def ask(*words: str) -> str:
            command = [sys.executable, "-m", "aiorocket", *words, "--nameserver", mq.nameserver_address]
            done = await in_thread(lambda: subprocess.run(command, capture_output=True, text=True, timeout=140))
            assert done.returncode == 0, done
            return done.stdout

        async with mq.producer("shop") as producer:
            await producer.send("orders", b"1")
            async with consumer, asyncio.timeout(120):
                await begun.wait()
                behind = read(await ask("group", "lag", "billing", "--json"), "lag")
                assert sum(row["lag"] for row in behind) == 1, "it has no offset yet"
                (most, *_) = read(await ask("top", "--json"), "group lag")
                assert (most["group"], most["lag"]) == ("billing", 1)
                (member,) = read(await ask("group", "members", "billing", "--json"), "member")
                (sender,) = read(await ask("cluster", "producers", "shop", "--json"), "producer")
                assert (list(member), list(sender)) == (FIELDS["member"], FIELDS["producer"])
                info = ("group", "info", "billing", member["client_id"], "--stacks")
                said = read(await ask(*info, "--json"), "running info")
                assert list(said[0]) == FIELDS["running info"] and "on_order" in said[-1]["value"]
                shown = await ask(*info)
                (hangs,) = (line for line in shown.splitlines() if "on_order(" in line)
                assert hangs.startswith("    ") and len(hangs) < 120, "a line each, below the table"
                looked.set()  # a stop waits for it


async def test_messages_of_the_brokers_that_answer_are_shown_though_one_is_away() -> None:
    async with embed() as mq, away(mq.nameserver.port, mq.config.cluster, "orders"):
        await mq.create_topic("orders", queues=1)

        async def ask(*words: str) -> tuple[int, str, str]:
            command = [sys.executable, "-m", "aiorocket", *words, "--nameserver", mq.nameserver_address]
            done = await in_thread(lambda: subprocess.run(command, capture_output=True, text=True, timeout=140))
            return done.returncode, done.stdout, done.stderr

        async with mq.producer("shop") as producer:
            queue = Queue("orders", "broker-a", 0)
            for number in range(2):
                await producer.send("orders", b"%d" % number, keys=["k"], queue=queue)
            record = TraceRecord("Pub", "ID-9", timestamp=1_700_000_000_000, group="shop", topic="orders", cost=3)
            where = Queue(TRACE_TOPIC, "broker-a", 0)
            receipt = await producer.send(TRACE_TOPIC, write_trace(record).encode(), keys=["ID-9"], queue=where)

        for count, words in (
            (2, ("message", "list", "orders")),
            (1, ("message", "list", "orders", "--limit", "1")),
            (2, ("message", "key", "orders", "k")),
            (1, ("trace", "ID-9")),
        ):
            code, out, said = await ask(*words, "--json")
            document = json.loads(out)
            ((server, why),) = [(each["server"], each["why"]) for each in document["missing"]]
            assert (code, len(document["rows"]), server) == (1, count, "away"), (words, document)
            assert "127.0.0.1:1" in why and said == f"missing: away: {why}\n"
        code, out, said = await ask("message", "dump", "orders")
        assert (code, [json.loads(line)["body"] for line in out.splitlines()]) == (1, ["0", "1"])
        assert said.startswith("missing: away: ")
        code, out, said = await ask("message", "list", "there")
        assert (code, out) == (1, "") and said.startswith("Error: "), "nobody could be asked"
        tailing = asyncio.ensure_future(ask("message", "tail", "orders", "--count", "1"))
        async with mq.producer("shop") as producer, asyncio.timeout(60):
            while not tailing.done():  # it begins with what comes after its first look
                await producer.send("orders", b"came", queue=queue)
                await asyncio.sleep(0.02)
        code, out, said = tailing.result()
        assert (code, out.count("came"), said) == (1, 1, f"missing: away: {why}\n")

        given = ["127.0.0.1:1", f"localhost:{mq.broker.server.port}"]
        async with Admin(nameservers=mq.nameservers, brokers=given) as admin:
            found = await admin.messages.by_id(receipt.offset_msg_id)
            assert found is not None and found.queue_offset == receipt.offset
            with pytest.raises(NotConnectedError):  # it may be there
                await admin.messages.by_id(receipt.offset_msg_id[:-8] + "00FFFFFF")
        async with Admin(nameservers=mq.nameservers) as admin:
            with pytest.raises(NotConnectedError):
                assert [each async for each in admin.messages.by_time("orders")] == []


def commands_of(page: str) -> Iterator[list[str]]:
    """The commands that a page names in its tables and advice, without their options' values."""
    for quoted in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL).replace(r"\|", "|")):
        words = quoted.removeprefix("aiorocket ").split()
        if words and words[0] in COMMANDS and "." not in words[0]:
            yield words


def test_every_command_that_the_page_of_operators_names_is_one() -> None:
    assert known((ROOT / "docs" / "operating.md").read_text(encoding="utf-8")) > 60


def test_every_task_of_the_readme_has_a_command_and_a_page() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| task | command | page |")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    assert len(rows) > 6 and known("\n".join(rows)) > len(rows)
    for row in rows:
        page, _, heading = re.findall(r"\]\(([^)]+)\)", row)[-1].partition("#")
        text = (ROOT / page).read_text(encoding="utf-8")
        headings = [
            re.sub(r"[^a-z -]", "", each.lower()).strip().replace(" ", "-")
            for each in re.findall(r"^#+(.*)", text, re.M)
        ]
        assert not heading or heading in headings, row


def known(page: str) -> int:
    """How many commands it names, each with its options one that there is."""
    seen = 0
    for words in commands_of(page):
        command, context = cli.get_command(click.Context(cli), words[0]), click.Context(cli)
        rest = words[1:]
        while isinstance(command, click.Group) and rest:
            command = command.get_command(context, rest.pop(0))
        assert command is not None, words
        options = {name for each in command.params for name in each.opts}
        assert {word for word in rest if word.startswith("--")} <= options | {"--json"}, words
        seen += 1
    return seen


def test_the_doctor_of_nobody() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--nameserver", "127.0.0.1:1"])
    assert result.exit_code == 1 and "is it up?" in result.output


def test_a_broker_may_be_asked_directly(server: RocketMQServer, tmp_path: Path) -> None:
    (broker,) = rows(
        CliRunner().invoke(cli, ["cluster", "list", "--json", "--nameserver", server.nameserver_address]), "broker"
    )
    asked = CliRunner().invoke(
        cli, ["topic", "list", "--json", "--nameserver", "127.0.0.1:1", "--broker", broker["address"]]
    )
    assert "orders" in {row["topic"] for row in rows(asked, "topic")}
    letters = CliRunner().invoke(
        cli, ["dlq", "list", "billing", "--nameserver", server.nameserver_address, "--broker", broker["address"]]
    )
    assert letters.exit_code == 0 and letters.output == "0 dead letters of group billing\n"
    nowhere = CliRunner().invoke(cli, ["topic", "list", "--broker", f"unix:{tmp_path / 'nothing'}"])
    assert nowhere.exit_code == 1 and "unix:" in nowhere.output


def test_a_topic_that_a_broker_could_not_be_asked_about_is_not_done(server: RocketMQServer) -> None:
    brokers = [server.embedded.broker.address, "127.0.0.1:1"]
    arguments = [part for each in brokers for part in ("--broker", each)]
    made = CliRunner().invoke(
        cli, ["topic", "create", "apart", "--nameserver", server.nameserver_address, "--json", *arguments]
    )
    assert made.exit_code == 1 and "missing: 127.0.0.1:1" in made.stderr, made.output
    assert [row["broker"] for row in json.loads(made.stdout)["rows"]] == ["broker-a"]


def test_a_reset_that_fails_on_its_way_says_how_far_it_came(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask("group", "create", "halfway").exit_code == 0
    whole = Offsets._reset

    async def first_only(self: Offsets, plan: OffsetPlan, broker: Broker, moves: list[OffsetMove]) -> None:
        await whole(self, plan, broker, moves[:1])
        raise ConnectionLostError("the broker is gone")

    monkeypatch.setattr(Offsets, "_reset", first_only)
    result = ask("offsets", "reset", "halfway", "orders", "--to", "last", "--json")
    assert result.exit_code == 1 and "the broker is gone" in result.stderr
    assert "queue 1 is at" in result.stderr and "queue 0 is at" not in result.stderr
    assert ask("group", "delete", "halfway", "--yes").exit_code == 0


def test_completing_a_word_asks_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(click, "confirm", asked.append)
    topic.commands["delete"].make_context("delete", ["events"], resilient_parsing=True)
    assert not asked


def test_ctrl_c_at_a_question_ends_as_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_question: str) -> bool:
        raise click.Abort

    monkeypatch.setattr(click, "confirm", interrupted)
    monkeypatch.setattr("aiorocket.cli.asked.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    ended = CliRunner().invoke(cli, ["topic", "delete", "events"])
    assert (ended.exit_code, ended.output) == (130, "\n")


@pytest.mark.parametrize(
    ("words", "code"),
    [(["topic", "list", "--watch", "0.1"], 0), (["message", "tail", "watched"], 0),
     (["message", "tail", "watched", "--count", "99"], 130)],
)  # fmt: skip
def test_what_goes_on_until_it_is_told_to_stop_ends_well(server: RocketMQServer, words: list[str], code: int) -> None:
    server.create_topic("watched", queues=1)
    arguments = [*words, "--nameserver", server.nameserver_address]
    command = [sys.executable, "-m", "aiorocket", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        try:
            assert watching.stdout is not None
            while not select.select([watching.stdout], [], [], 0.1)[0]:
                assert watching.poll() is None
                server.send("watched", b"x")  # which tail begins with is the one that comes next
            watching.send_signal(signal.SIGINT)
            _, said = watching.communicate(timeout=140)
        finally:
            watching.kill()
    assert (watching.returncode, said) == (code, "")


def test_watching_goes_on_after_an_error() -> None:
    async def work(admin: Any) -> int:
        seen.append(admin)
        error = outcomes.pop(0)
        if error is not None:
            raise error
        return 0

    def watch() -> None:
        run(_work(ClientConfig(nameservers=("127.0.0.1:1",)), (), work, 0.001))

    seen: list[Any] = []
    away, gone, enough = ConnectionLostError("it starts again"), UsageError("no broker 'a'"), KeyError("enough")
    outcomes: list[Exception | None] = [away, ProtocolError("no frame", where="test"), None, gone, None, enough]
    with pytest.raises(KeyError):
        watch()
    assert len(seen) == 6 and not outcomes
    outcomes += [away, BadNameError("topic 'a b'"), None]
    with pytest.raises(click.ClickException, match="topic 'a b'") as ended:
        watch()
    assert ended.value.exit_code == 2 and outcomes == [None]


def test_an_error_while_watching_is_said_and_ctrl_c_ends_it() -> None:
    command = [sys.executable, "-m", "aiorocket", "topic", "list", "--watch", "0.1", "--nameserver", "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        try:
            assert watching.stderr is not None
            first, again = watching.stderr.readline(), watching.stderr.readline()
            watching.send_signal(signal.SIGINT)
            shown, _ = watching.communicate(timeout=140)
        finally:
            watching.kill()
    assert first.startswith("Error: ") and again == first and "127.0.0.1:1" in first
    assert (watching.returncode, shown) == (0, "")


def test_ctrl_c_ends_what_sends_too(server: RocketMQServer) -> None:
    server.create_topic("loaded", queues=1)
    line = json.dumps({"topic": "orders", "body": "x", "tag": "", "keys": [], "properties": {}})
    arguments = ["message", "load", "--topic", "loaded", "--nameserver", server.nameserver_address]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", "aiorocket", *arguments], text=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as loading:
        try:
            assert loading.stdin is not None
            loading.stdin.write(2 * (line + "\n"))
            loading.stdin.flush()
            while len(server.messages("loaded")) < 2:
                assert loading.poll() is None
            loading.send_signal(signal.SIGINT)
            _, said = loading.communicate(timeout=140)
        finally:
            loading.kill()
    assert loading.returncode == 130 and said in ("1 message sent\n", "2 messages sent\n")


def test_a_message_that_comes_is_a_line(server: RocketMQServer) -> None:
    server.create_topic("coming", queues=1)
    arguments = ["message", "tail", "coming", "--count", "2", "--nameserver", server.nameserver_address]
    with subprocess.Popen(
        [sys.executable, "-m", "aiorocket", *arguments], stdout=subprocess.PIPE, text=True
    ) as tailing:
        try:
            while tailing.poll() is None:
                server.send("coming", b"first\nsecond", tag="t", keys=["k"])
            shown, _ = tailing.communicate(timeout=140)
        finally:
            tailing.kill()
    lines = shown.splitlines()
    assert len(lines) == 2 and all(each.endswith("  t  k  first\\nsecond") for each in lines)


def test_a_token_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(bytes(range(128, 160)))
    result = CliRunner().invoke(cli, ["broker", "--admin-token-file", str(file)])
    assert result.exit_code == 2 and "not text" in result.output


def test_no_command_that_changes_something_is_repeated() -> None:
    def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
        for name, command in group.commands.items():
            yield f"{path} {name}", command

    watched = set()
    for name in ("topic", "group", "offsets", "message", "cluster", "acl"):
        group = cli.get_command(click.Context(cli), name)
        assert isinstance(group, click.Group) and name in COMMANDS
        watched |= {
            path for path, command in commands(group, name) if any("--watch" in each.opts for each in command.params)
        }
    assert not {path for path in watched if path.split()[1].startswith(("create", "update", "delete", "set", "reset"))}
    assert {"topic list", "group lag", "cluster status"} <= watched


def test_the_table_from_mqadmin_is_in_the_documentation_and_its_commands_are_there() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    assert migration.table() in documented, "python -m tests.interop.migration prints it"
    assert len({each.split()[0] for row in migration.ROWS for each in row.mqadmin}) >= 40
    for words in (each.split() for row in migration.ROWS for each in row.ours):
        command: click.Command | None = cli
        while words and isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None and not isinstance(command, click.Group), words
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, words
