"""dlq list, show and replay as processes, and what --where understands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiorocket as rocket
from aiorocket.cli.conditions import condition, every
from aiorocket.cli.counts import counted
from aiorocket.cli.dlq import dlq


def bury(nameserver: str, *bodies: str, **options: Any) -> None:
    """Send messages to "orders" and have group "billing" give each of them up."""

    async def main() -> None:
        left, seen = asyncio.Event(), len(bodies)
        async with rocket.Producer("p", nameservers=nameserver) as producer:
            for body in bodies:
                await producer.send("orders", body.encode(), **options)
        consumer = rocket.Consumer("billing", nameservers=nameserver)

        @consumer.listener("orders", start_from="first")
        async def give_up(message: rocket.Message) -> None:
            nonlocal seen
            seen -= 1
            if not seen:
                left.set()
            raise rocket.DeadLetter("not for us")

        async with consumer:
            await asyncio.wait_for(left.wait(), 30)

    rocket.run(main())


@pytest.fixture
def dlq_command(aiorocket: Any, standalone: str) -> Callable[..., Any]:
    def call(*arguments: str) -> Any:
        return aiorocket.run("dlq", *arguments, AIOROCKET_NAMESERVER=standalone)

    return call


def test_list_and_show_tell_what_there_is(
    standalone: str, dlq_command: Callable[..., Any], aiorocket: Any, tmp_path: Path
) -> None:
    nothing = dlq_command("list", "billing")
    assert (nothing.code, nothing.out) == (1, "") and "no broker knows a group 'billing'" in nothing.err
    bury(standalone, "42 EUR", tag="paid", keys=["o-1"], properties={"tenant": "acme"})
    listed = dlq_command("list", "billing")
    assert listed.code == 0 and listed.out.endswith("\n1 dead letter of group billing\n"), listed
    assert "Dead letters of group billing" in listed.out and " orders " in listed.out and " paid " in listed.out

    (line,) = dlq_command("list", "billing", "--json").out.splitlines()
    message = json.loads(line)
    assert (message["body"], message["origin_topic"], message["tag"], message["keys"]) == (
        "42 EUR", "orders", "paid", ["o-1"]
    )  # fmt: skip
    assert message["properties"]["tenant"] == "acme" and message["replayed"] is False
    assert (message["error"], message["reason"]) == ("DeadLetter", "not for us") and "@" in message["host"]
    assert "DeadLetter: not for us" in " ".join(listed.out.split())
    shown = dlq_command("show", "billing", message["msg_id"])
    assert shown.code == 0 and shown.out.endswith("\n\n42 EUR\n") and "property tenant" in shown.out
    for said in ("DeadLetter", "not for us", message["host"]):
        assert said in shown.out
    assert json.loads(dlq_command("show", "billing", message["replay_id"], "--json").out) == message
    missing = dlq_command("show", "billing", "0" * 32)
    assert (missing.code, missing.out) == (1, "")
    assert missing.err == f"Error: no dead letter of group billing has the id {'0' * 32}\n"
    (tmp_path / "export").write_text(line, encoding="utf-8")
    loaded = aiorocket.run("message", "load", str(tmp_path / "export"), "--nameserver", standalone)
    assert (loaded.code, loaded.err) == (0, "1 message sent\n")
    found = aiorocket.run("message", "dump", "orders", "--nameserver", standalone)
    first, again = sorted(
        map(json.loads, found.out.splitlines()), key=lambda row: bool(row["msg_id"] != message["msg_id"])
    )
    assert (again["topic"], again["body"], again["tag"], again["keys"]) == ("orders", "42 EUR", "paid", ["o-1"])
    assert again["properties"]["tenant"] == "acme" and again["msg_id"] != first["msg_id"] == message["msg_id"]


def test_replay_sends_what_was_picked_once(standalone: str, dlq_command: Callable[..., Any], aiorocket: Any) -> None:
    bury(standalone, *(f"{n} EUR" for n in range(4)), "5 USD", tag="paid")
    dry = dlq_command("replay", "billing", "--where", "body~EUR", "--limit", "3", "--dry-run")
    assert (dry.code, dry.out) == (0, "3 dead letters of group billing would be sent\n"), dry
    some = dlq_command("replay", "billing", "--where", "body ~ EUR", "--where", "tag=paid", "--limit", "3")
    assert (some.code, some.out) == (0, "3 dead letters of group billing sent\n"), some
    rest = dlq_command("replay", "billing", "--json")
    lines = [json.loads(line) for line in rest.out.splitlines()]
    assert sorted(line["status"] for line in lines) == ["sent", "sent", "skipped", "skipped", "skipped"]
    assert {line["topic"] for line in lines} == {"orders"}
    assert rest.err == "2 dead letters of group billing sent, 3 replayed before\n"
    read = aiorocket.run("consume", "orders", "--group", "audit", "--nameserver", standalone)
    assert sorted(read.out.splitlines()) == sorted([*(f"{n} EUR" for n in range(4)), "5 USD"] * 2)
    assert dlq_command("list", "billing").out.count(" yes") == 5


def test_a_replay_that_fails_says_so(standalone: str, dlq_command: Callable[..., Any]) -> None:
    bury(standalone, "x")
    failed = dlq_command("replay", "billing", "--to", "no/where")
    assert failed.code == 2 and "no/where" in failed.err and len(failed.err.splitlines()) == 1
    bad = dlq_command("replay", "billing", "--where", "colour=red")
    assert bad.code == 2 and "no field 'colour'; there are tag, keys, topic" in " ".join(bad.err.split())
    nobody = dlq_command("list", "billing", "--nameserver", "127.0.0.1:1")
    assert nobody.code == 1 and "127.0.0.1:1" in nobody.err and len(nobody.err.splitlines()) == 1


def test_a_killed_replay_repeats_one_message_at_most(
    standalone: str, dlq_command: Callable[..., Any], aiorocket: Any, read_line: Callable[..., str]
) -> None:
    bury(standalone, *(str(n) for n in range(30)))
    options = ("--json", "--rate", "100", "--nameserver", standalone)
    process = aiorocket.start("dlq", "replay", "billing", *options)
    for _ in range(5):
        assert json.loads(read_line(process))["status"] == "sent"
    process.kill()
    process.wait(60)
    rest = dlq_command("replay", "billing")
    assert rest.code == 0, rest
    read = aiorocket.run("consume", "orders", "--group", "audit", "--nameserver", standalone)
    assert set(read.out.split()) == {str(n) for n in range(30)}
    assert len(read.out.split()) in (60, 61)


def test_a_stopped_replay_says_how_far_it_came(
    standalone: str, dlq_command: Callable[..., Any], aiorocket: Any, read_line: Callable[..., str],
    stop: Callable[..., Any],
) -> None:  # fmt: skip
    bury(standalone, *(str(n) for n in range(10)))
    process = aiorocket.start("dlq", "replay", "billing", "--json", "--rate", "2", "--nameserver", standalone)
    read_line(process)
    result = stop(process)
    assert result.code == 130 and result.err.startswith("interrupted after 1 dead letter of group billing; "), result
    assert "9 dead letters of group billing sent, 1 replayed before" in dlq_command("replay", "billing").out


def test_the_package_is_a_command(aiorocket: Any) -> None:
    run = "runpy.run_module('aiorocket', run_name='__main__')"
    script = f"import runpy, sys; sys.argv = ['aiorocket', '--version']; {run}"
    assert aiorocket.python(script).startswith("aiorocket ")


# -- without a process --


def message(**changes: Any) -> Any:
    values = {
        "tag": "paid", "keys": ["o-1", "o-2"], "origin_topic": "orders", "msg_id": "7F", "body_or_raw": b"42 EUR",
        "reconsume_times": 16, "queue": SimpleNamespace(queue_id=0), "queue_offset": 7,
        "properties": {"tenant": "acme"},
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("tag=paid", True), ("tag=unpaid", False), ("tag != unpaid", True), ("tag~ai", True),
        ("keys=o-2", True), ("keys=o-3", False), ("keys!=o-1", False), ("keys~o-", True), ("keys~x", False),
        ("topic=orders", True), ("id=7F", True), ("body~EUR", True), ("body~USD", False), ("body=42 EUR", True),
        ("reconsume_times>=16", True), ("reconsume_times<16", False), ("reconsume_times != 16", False),
        ("reconsume_times<=16", True), ("reconsume_times>15", True), ("offset=7", True), ("queue=1", False),
        ("property.tenant=acme", True), ("property.tenant!=acme", False), ("property.other=", True),
        ("body~a=b", False),
    ],
)  # fmt: skip
def test_conditions(text: str, holds: bool) -> None:
    assert condition(text)(message()) is holds


def test_without_a_key_a_message_has_none_that_is_equal() -> None:
    assert condition("keys!=o-1")(message(keys=[])) and not condition("keys=o-1")(message(keys=[]))
    assert condition("keys=")(message(keys=[]))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not FIELD=VALUE"), ("tag", "not FIELD=VALUE"), ("colour=red", "no field 'colour'"),
        ("tag>a", "=, != or ~"), ("reconsume_times~1", "number"), ("offset=-1", "number"), ("offset>=x", "number"),
        ("property.=1", "not FIELD=VALUE"),
    ],
)  # fmt: skip
def test_conditions_that_mean_nothing(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        condition(text)


@given(st.text(), st.sampled_from(["=", "!=", "~"]))
def test_any_value_can_be_asked_for(value: str, operator: str) -> None:
    wanted = value.strip()
    assert condition(f"tag{operator}{value}")(message(tag=wanted)) is (operator != "!=")


def test_all_conditions_must_hold() -> None:
    assert every([]) is None
    both = every([condition("tag=paid"), condition("body~USD")])
    assert both is not None and not both(message()) and both(message(body_or_raw=b"1 USD"))


def test_every_command_of_the_group_explains_itself() -> None:
    assert set(dlq.commands) == {"list", "show", "replay"}
    assert all(command.help for command in dlq.commands.values())


@pytest.mark.parametrize(("number", "text"), [(0, "0 lines"), (1, "1 line"), (2, "2 lines")])
def test_counts_are_english(number: int, text: str) -> None:
    assert counted(number, "line") == text
