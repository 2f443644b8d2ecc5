"""SQL92 filters: the grammar, the logic against a small model of its own, and pulls through a broker."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiorocket.broker import Broker
from aiorocket.broker.core.record_filter import RecordFilter
from aiorocket.broker.core.sql92 import MAX_DEPTH, Sql92Error, parse
from aiorocket_protocol import (
    SubscriptionData,
    encode_batch,
    encode_body,
    encode_properties,
    encode_record,
    split_records,
)
from tests.broker.peer import SUSPEND, Peer, heartbeat, pull_header, records, running, send_header, span

# ---- what matches


@pytest.mark.parametrize(
    ("text", "properties", "value"),
    [
        ("a > 5", {"a": "6"}, True),
        ("a > 5", {"a": "5"}, False),
        ("a >= 5 and a <= 5", {"a": "+5"}, True),
        ("a = 5", {"a": "05"}, True),
        ("a = '5'", {"a": "05"}, False),
        ("a <> 'x'", {"a": "y"}, True),
        ("a <> 'x'", {}, None),
        ("5 < a", {"a": "5.5"}, None),  # no integer: the whole expression gives up
        ("a = 5 OR b = 'x'", {"a": "abc", "b": "x"}, None),
        ("b = 'x' OR a = 5", {"a": "abc", "b": "x"}, True),
        ("a > 5.0", {"a": "5.5"}, True),
        ("a > 5.", {"a": " 1e3 "}, True),
        ("a > .5", {"a": "NaN"}, True),  # above every number, in Java's order
        ("a = 0.0", {"a": "-0.0"}, False),
        ("a < 3000000000", {"a": "2147483648"}, True),
        ("a < 2000000000", {"a": "2147483648"}, None),  # 32 bits beside 32 bits
        ("a > -5", {"a": "-4"}, True),
        ("a > - 5L", {"a": "-6"}, False),
        ("a < b", {"a": "9", "b": "10"}, True),
        ("a < b", {"a": "x", "b": "y"}, None),
        ("a = b", {"a": "x", "b": "x"}, True),
        ("a = b", {}, True),
        ("a <> b", {"a": "x"}, True),
        ("a = b", {"b": "x"}, None),
        ("a IS NULL", {}, True),
        ("a IS NULL", {"a": ""}, False),
        ("a IS NOT NULL", {"a": "x"}, True),
        ("a IS NOT NULL", {}, False),
        ("a BETWEEN 1 AND 3", {"a": "3"}, True),
        ("a BETWEEN 1 AND 3", {"a": "4"}, False),
        ("a NOT BETWEEN 1 AND 3", {"a": "4"}, True),
        ("a BETWEEN 1 AND 3", {}, None),
        ("a IN ('x', 'y''z')", {"a": "y'z"}, True),
        ("a NOT IN ('x')", {"a": "y"}, True),
        ("a NOT IN ('x')", {}, None),
        ("a CONTAINS 'b'", {"a": "abc"}, True),
        ("a NOT CONTAINS 'b'", {"a": "ac"}, True),
        ("a NOT CONTAINS 'b'", {}, False),
        ("a startswith 'ab' AND a EndsWith 'bc'", {"a": "abc"}, True),
        ("a CONTAINS ''", {"a": "abc"}, False),
        ("NOT (a = 1) CONTAINS ''", {"a": "x"}, False),  # without looking at the left side
        ("NOT a = 'x'", {"a": "x"}, None),  # NOT takes a alone, and truth cannot be compared with a text
        ("NOT (a = 'x')", {"a": "x"}, False),
        ("a", {"a": "true"}, False),
        ("a", {}, None),
        ("NOT a", {"a": "x"}, True),
        ("a = TRUE", {"a": "TrUe"}, True),
        ("a <> FALSE", {"a": "yes"}, False),
        ("TRUE", {}, True),
        ("FALSE OR NULL", {}, None),
        ("FALSE AND NULL", {}, False),
        ("a = 'x' OR b = 'y' AND c = 'z'", {"a": "x"}, True),
        ("a = 'x' /* one */ AND b = 'y' -- two", {"a": "x", "b": "y"}, True),
        ("TAGS = 'red' AND $p_1 = 'v'", {"TAGS": "red", "$p_1": "v"}, True),
        ("A = 'x'", {"a": "x"}, None),
        ("-a > 1", {"a": "-5"}, None),  # a text cannot be negated
    ],
)
def test_expressions(text: str, properties: dict[str, str], value: bool | None) -> None:
    expression = parse(text)
    assert expression.evaluate(properties) is value
    assert expression.matches(properties) is (value is True)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("a =", 3),
        ("a = 'x", 4),
        ("a > 'x'", 0),
        ("a > TRUE", 0),
        ("a = NULL", 0),
        ("TRUE = 5", 0),
        ("5", 0),
        ("a AND 'x'", 6),
        ("NOT 5", 0),
        ("a = 1 b", 6),
        ("a = 007", 5),
        ("(a = 1", 6),
        ("a BETWEEN 3 AND 1", 0),
        ("a BETWEEN 1, 3", 11),
        ("a IN (1)", 6),
        ("a IN ()", 6),
        ("'a' IN ('a')", 0),
        ("a LIKE 'x'", 2),
        ("a.b = 1", 1),
        ("a = 9223372036854775808", 4),
        ("a = 1e999", 4),
        ("/* a", 0),
        ("a # b", 2),
        ("a IS 5", 5),
        ("a CONTAINS b", 11),
    ],
)
def test_what_does_not_compile_names_its_place(text: str, position: int) -> None:
    with pytest.raises(Sql92Error, match=f"at position {position}$") as caught:
        parse(text)
    assert caught.value.position == position


def test_depth_is_bounded_and_length_is_not_depth() -> None:
    for text in ("(" * 500 + "a" + ")" * 500, "NOT " * 500 + "a", "a" + " = a" * 500, "-" * 501 + "a"):
        with pytest.raises(Sql92Error):
            parse(text)
    nested = "(" * (MAX_DEPTH - 1) + "a = 1" + ")" * (MAX_DEPTH - 1)
    assert parse(nested).matches({"a": "1"})
    assert parse(" OR ".join(f"a = {n}" for n in range(1000))).matches({"a": "999"})
    with pytest.raises(Sql92Error, match="more than 4000 names, constants and operators"):
        parse(" OR ".join(f"a = {n}" for n in range(1100)))
    with pytest.raises(Sql92Error, match="characters"):
        parse("a = 'x'" + " " * 300_000)


def test_a_text_is_compiled_once() -> None:
    assert parse("a = 'once'") is parse("a = 'once'")


@given(st.text() | st.text(alphabet="ab'=<>() 019.eLNOTADRISUL-/*+,_$"))
@example("a = '\ud800'")
@example("A" * 10_000)
@example("İ = 1")
def test_the_parser_raises_nothing_but_its_own_error(text: str) -> None:
    try:
        expression = parse(text)
    except Sql92Error as error:
        assert 0 <= error.position <= len(text)
    else:
        assert expression.evaluate({"a": "1"}) in (True, False, None)


# ---- against a model: truth tables and integers only, written as data

NAMES = st.sampled_from("abc")
TEXTS = st.sampled_from(["x", "y", "it's", "1", "2"])
NUMBERS = st.integers(-3, 3)
LEAVES = st.one_of(
    st.tuples(st.just("text="), NAMES, TEXTS),
    st.tuples(st.just("text<>"), NAMES, TEXTS),
    st.tuples(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), NAMES, NUMBERS),
    st.tuples(st.just("null"), NAMES, st.booleans()),
    st.tuples(st.just("in"), NAMES, st.lists(TEXTS, min_size=1, max_size=6)),
    st.tuples(st.just("between"), NAMES, NUMBERS, NUMBERS),
    st.tuples(st.just("constant"), st.sampled_from([True, False, None])),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=8,
)
MESSAGES = st.dictionaries(NAMES, st.one_of(NUMBERS.map(str), TEXTS), max_size=3)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def written(tree: Any) -> str:
    match tree:
        case ("text=" | "text<>", name, text):
            return f"{name} {tree[0][4:]} {quoted(text)}"
        case ("null", name, yes):
            return f"{name} IS {'' if yes else 'NOT '}NULL"
        case ("in", name, texts):
            return f"{name} IN ({', '.join(map(quoted, texts))})"
        case ("between", name, low, high):
            return f"{name} NOT BETWEEN {low} AND {high}"
        case ("constant", value):
            return {True: "TRUE", False: "FALSE", None: "NULL"}[value]
        case ("not", inner):
            return f"NOT ({written(inner)})"
        case ("and" | "or", parts):
            return f" {tree[0].upper()} ".join(f"({written(part)})" for part in parts)
        case (operator, name, number):
            return f"{name} {operator} {number}"
    raise AssertionError(tree)


class NoNumber(Exception):
    pass


def integer(properties: dict[str, str], name: str) -> int | None:
    text = properties.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise NoNumber from None


def meant(tree: Any, properties: dict[str, str]) -> Any:
    match tree:
        case ("text=" | "text<>", name, text):
            found = properties.get(name)
            return None if found is None else (found == text) is (tree[0] == "text=")
        case ("null", name, yes):
            return (name not in properties) is yes
        case ("in", name, texts):
            return properties[name] in texts if name in properties else None
        case ("between", name, low, high):
            number = integer(properties, name)
            return None if number is None else not low <= number <= high
        case ("constant", value):
            return value
        case ("not", inner):
            value = meant(inner, properties)
            return None if value is None else not value
        case ("and" | "or", parts):
            ends = tree[0] == "or"
            values = []
            for part in parts:
                values.append(meant(part, properties))
                if values[-1] is ends:
                    return ends
            return None if None in values else not ends
        case (operator, name, number):
            value = integer(properties, name)
            if value is None:
                return None
            order = {"=": value == number, "<>": value != number, "<": value < number, "<=": value <= number}
            return {**order, ">": value > number, ">=": value >= number}[operator]
    raise AssertionError(tree)


@given(TREES, MESSAGES)
def test_evaluation_is_what_the_model_says(tree: Any, properties: dict[str, str]) -> None:
    try:
        expected = meant(tree, properties)
    except NoNumber:
        expected = None
    assert parse(written(tree)).evaluate(properties) is expected


def test_digits_without_end_are_read_once() -> None:
    """One message with 32,000 of them and a letter held a broker for 28 s, an expression with as many zeros for 0.4."""
    before = time.thread_time()
    number = parse("a > 0.5")
    assert number.evaluate({"a": "1" * 32_000}) is True
    for end in ("x", ".x", "e", ".1.1"):
        assert number.evaluate({"a": "1" * 4_000 + end}) is None
    with pytest.raises(Sql92Error, match="unexpected character '0' at position 5"):
        parse("a > " + "0" * 16_000)
    assert time.thread_time() - before < 0.2  # 4 ms; it was 2 s


# ---- selecting from what was read


def found(*properties: dict[str, str], first: int = 0) -> bytes:
    return b"".join(
        encode_record(
            topic=b"T", body=b"b", properties=encode_properties(values), queue_id=0, queue_offset=first + n,
            physical_offset=n * 1000, flag=0, sys_flag=0, born_timestamp=1, born_host=bytes(8), store_timestamp=1,
            store_host=bytes(8),
        )
        for n, values in enumerate(properties)
    )  # fmt: skip


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(1, 20), st.integers(1, 2000))
def test_a_selection_loses_nothing_and_repeats_nothing(wanted: list[bool], most: int, size: int) -> None:
    chosen = RecordFilter(parse("a = 'y'"))
    everything = [{"a": "y" if yes else "n"} for yes in wanted]
    offset, seen = 7, 0
    while offset < 7 + len(wanted):
        part = found(*everything[offset - 7 :], first=offset)
        result = chosen.select(part, most, size)
        assert result.seen and result.taken <= most
        assert result.taken == 1 or len(result.data) <= size
        assert len(split_records(result.data)) == result.taken
        seen += result.taken
        offset += result.seen
    assert seen == sum(wanted)


# ---- through a broker

SQL: dict[str, Any] = {"expression_type": "SQL92"}


async def fill(peer: Peer, count: int = 6) -> None:
    await peer.create_topic("T", 1)
    for n in range(count):
        await peer.send(b"%d" % n, {"n": str(n), "TAGS": "even" if n % 2 == 0 else "odd"})


async def test_a_pull_with_its_own_expression(peer: Peer) -> None:
    await fill(peer)
    answer = await peer.pull(subscription="n > 1 AND TAGS = 'odd'", **SQL)
    assert answer.code == 0 and [record.body for record in records(answer)] == [b"3", b"5"]
    assert span(answer).next_begin_offset == 6
    answer = await peer.pull(subscription="n > 1", max_msg_nums=2, **SQL)
    assert [record.body for record in records(answer)] == [b"2", b"3"]
    assert span(answer).next_begin_offset == 4
    answer = await peer.pull(subscription="n > 9", **SQL)  # a filtered-out tail moves on
    assert answer.code == 20 and span(answer).next_begin_offset == 6
    assert (await peer.pull(subscription="n >", **SQL)).code == 23
    answer = await peer.pull(subscription="n > 1", sys_flag=SUSPEND | 4 | 8, **SQL)
    assert answer.code == 1 and "class filter" in (answer.remark or "")


async def test_a_registered_expression(peer: Peer) -> None:
    await fill(peer)

    async def register(text: str, version: int) -> None:
        wanted = [SubscriptionData("T", text, sub_version=version, expression_type="SQL92")]
        assert (await peer.call(34, body=heartbeat("c", subscriptions=wanted))).code == 0

    push = {"sys_flag": SUSPEND, "subscription": None}
    await register("n BETWEEN 2 AND 3", 1)
    answer = await peer.pull(sub_version=1, **push)
    assert [record.body for record in records(answer)] == [b"2", b"3"]
    await register("n BETWEEN", 2)
    answer = await peer.pull(sub_version=2, **push)
    assert answer.code == 27 and "position" in (answer.remark or "")


async def test_a_client_asks_whether_its_expression_compiles(peer: Peer) -> None:
    async def check(text: str) -> int:
        data = {"expressionType": "SQL92", "subString": text, "topic": "T"}
        body = encode_body({"clientId": "c", "group": "g", "subscriptionData": data}, 0)
        return (await peer.call(46, body=body)).code

    assert await check("a > 1") == 0
    assert await check("a >") == 23
    assert (await peer.call(46, body=b'{"subscriptionData":5}')).code == 0


async def test_property_filters_can_be_switched_off() -> None:
    async with running(property_filter=False) as broker:
        peer = await Peer.connect(broker.port)
        await fill(peer, 1)
        answer = await peer.pull(subscription="n > 1", **SQL)
        assert answer.code == 1 and "property_filter" in (answer.remark or "")
        body = b'{"subscriptionData":{"expressionType":"SQL92","subString":"a > 1"}}'
        assert (await peer.call(46, body=body)).code == 1
        await peer.close()


async def test_a_waiting_pull_is_woken_by_what_matches_only(broker: Broker, peer: Peer) -> None:
    await fill(peer, 2)
    other = await Peer.connect(broker.port)
    await other.ask(11, pull_header(offset=2, subscription="n = 7", **SQL))
    while not broker.parked_pulls:
        await asyncio.sleep(0)
    await peer.send(b"6", {"n": "6"})
    assert broker.parked_pulls == 1
    await peer.send(b"7", {"n": "7"})
    answer = await other.answer()
    assert answer.code == 0 and [record.body for record in records(answer)] == [b"7"]
    assert span(answer).next_begin_offset == 4
    await other.close()


@pytest.mark.parametrize(
    ("properties", "changes"), [("n\x017", SQL | {"subscription": "n = 7"}), ("TAGS\x01B", {"subscription": "B"})]
)
async def test_a_match_far_behind_in_one_group_of_arrivals_wakes(
    broker: Broker, peer: Peer, properties: str, changes: dict[str, Any]
) -> None:
    await fill(peer, 1)
    other = await Peer.connect(broker.port)
    await other.ask(11, pull_header(offset=1, **changes))
    while not broker.parked_pulls:
        await asyncio.sleep(0)
    items = [(b"x", 0, b"")] * 900 + [(b"y", 0, properties.encode())]
    assert (await peer.call(320, send_header(batch=True), encode_batch(items))).code == 0
    answer = await other.answer()
    assert answer.code == 0 and [record.body for record in records(answer)] == [b"y"]
    await other.close()


def test_properties_that_are_not_text_match_nothing() -> None:
    data = found({"a": "y"})
    broken = data.replace(b"a\x01y", b"a\x01\xff")
    assert RecordFilter(parse("TRUE")).select(broken, 1, 100).taken == 1
    assert RecordFilter(parse("a IS NOT NULL")).select(broken, 1, 100).taken == 0
    assert RecordFilter(parse("a = 'y'")).select(data, 1, 100).taken == 1


def test_of_messages_with_long_properties_few_are_decided_at_once() -> None:
    """A thousand comparisons of 32 KiB took 45 ms, and eleven messages with them were one turn."""
    data = found(*[{"a": "0" * size} for size in (30_000, 30_000, 10, 10, 30_000)])
    chosen = RecordFilter(parse("a > 1.0" + " OR a > 2.0" * 500))
    once, twice = chosen.select(data, 9, 1 << 20, 35 * chosen.cost), chosen.select(data, 9, 1 << 20, 1)
    assert once.seen == 1 and once.work == 30 * chosen.cost and twice.seen == 1
    rest = b"".join(bytes(view.buffer[view.start : view.end]) for view in split_records(data)[2:])
    assert chosen.select(rest, 9, 1 << 20, 31 * chosen.cost)[2:] == (2, 2 * chosen.cost)
    assert chosen.select(rest, 9, 1 << 20, 32 * chosen.cost).seen == 3


def test_long_expressions_are_not_kept() -> None:
    """128 of them that somebody made up took 110 MB, in no limit's sight."""
    text = "a = 1" + " OR b > 1" * 500
    assert parse(text) is not parse(text) and parse("a = 1") is parse("a = 1")
