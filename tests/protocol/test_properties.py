"""Property strings, unique ids, hosts."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiorocket_protocol import (
    RESERVED,
    ProtocolError,
    RecallHandle,
    UniqueIds,
    check_user_properties,
    decode_properties,
    encode_properties,
    find_property,
    offset_msg_id,
    offset_msg_ids,
    pack_host,
    parse_offset_msg_id,
    unpack_host,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20)


@given(st.dictionaries(TEXT, TEXT, max_size=8))
def test_round_trip(properties: dict[str, str]) -> None:
    data = encode_properties(properties)
    assert decode_properties(data) == properties
    assert decode_properties(data[:-1]) == properties  # 4.9 leaves the last separator out
    for name, value in properties.items():
        assert find_property(data, name.encode()) == value.encode()


@given(st.text(st.sampled_from("AB\x01\x02"), max_size=40))
def test_find_property_agrees_with_decoding(text: str) -> None:
    data = text.encode()
    properties = decode_properties(data)
    for name in ("A", "B", "AA", "AB", "BA", "ABA"):
        found = find_property(data, name.encode())
        assert (None if found is None else found.decode()) == properties.get(name)


@given(st.binary(max_size=100))
def test_any_bytes_end_in_properties_or_one_error(data: bytes) -> None:
    try:
        properties = decode_properties(data)
    except ProtocolError as error:
        assert error.where == "properties"
    else:
        assert all(properties) and all(properties.values())


@pytest.mark.parametrize(
    ("properties", "what"),
    [
        ({"": "v"}, "empty"),
        ({"k": ""}, "empty"),
        ({"k\x01": "v"}, "separator"),
        ({"k": "a\x02b"}, "separator"),
        ({"k": "a\x01b"}, "separator"),
        ({"a": "x\x01", "b": "y"}, "separator"),
        ({"k": "\ud800"}, "not Unicode"),
        ({"k": "v" * 32767}, "at most 32767"),
    ],
)
def test_what_would_not_come_back_is_refused(properties: dict[str, str], what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        encode_properties(properties)


def test_user_properties() -> None:
    check_user_properties({"mine": "yes"})
    for properties in ({"TAGS": "x"}, {"__RMQ.TRANSIENT.a": "x"}, {"a": ""}, {"a": "\x01"}, {"a": 5}, {5: "a"}):
        with pytest.raises(ProtocolError):
            check_user_properties(properties)  # type: ignore[arg-type]
    assert {
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "UNIQ_KEY",
        "__SHARDINGKEY",
        "1ST_POP_TIME",
        "__CRC32#",
        "DLQ_REASON",
    } <= RESERVED
    assert len(RESERVED) == 63


# ---- ids -----------------------------------------------------------------------------------------------------------


@given(st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.integers(0, 65535),
       st.integers(0, 2**63 - 1))  # fmt: skip
def test_offset_ids_and_hosts_round_trip(ip: bytes, port: int, offset: int) -> None:
    host = ip + port.to_bytes(4, "big")
    address = unpack_host(host)
    assert pack_host(address) == host
    msg_id = offset_msg_id(host, offset)
    assert msg_id == msg_id.upper()
    found_ip, found_port, found_offset = parse_offset_msg_id(msg_id)
    assert (f"{found_ip}:{found_port}", found_offset) == (address, offset)
    assert offset_msg_ids(host, (offset, 7, offset)).split(",") == [msg_id, offset_msg_id(host, 7), msg_id]


@pytest.mark.parametrize(
    "address",
    ["", ":", "localhost:1", "1.2.3.4", "1.2.3.4:", "1.2.3.4:x", "1.2.3.4:65536", "1.2.3.4:-1", "1.2.3:1",
     "1.2.3.256:1", "1.2.3.4444:1",
     "1.2.3.+4:1", "::1:1", "[::1]", "[x]:1", "[1.2.3.4]:1", "1.2.3.\u0664:1", "1.2.3.4:" + "9" * 5000],
)  # fmt: skip
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        pack_host(address)
    assert caught.value.where == "host"
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("size", [0, 4, 7, 9, 16, 21])
def test_hosts_of_other_sizes(size: int) -> None:
    with pytest.raises(ProtocolError):
        unpack_host(bytes(size))


def test_scoped_ipv6_address_loses_its_scope() -> None:
    assert unpack_host(pack_host("[fe80::1%eth0]:5")) == "[fe80::1]:5"


@pytest.mark.parametrize("msg_id", ["", "00" * 15, "0" * 31 + "g", " " * 32, "0" * 57, "\u0660" * 32])
def test_offset_ids_that_are_none(msg_id: str) -> None:
    with pytest.raises(ProtocolError):
        parse_offset_msg_id(msg_id)


WORD = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1)


@given(st.builds(RecallHandle, WORD, WORD, st.integers(0, 10**18 - 1), WORD))
def test_recall_handles_round_trip(handle: RecallHandle) -> None:
    text = str(handle)
    assert RecallHandle.parse(text) == RecallHandle.parse(text.rstrip("=")) == handle


@pytest.mark.parametrize(
    "raw", ["", "v1", "v1 T b 5", "v2 T b 5 u", "v1 T b -5 u", "v1 T b \u0665 u", "v1 T b " + "9" * 5000 + " u"]
)
def test_recall_handles_that_are_none(raw: str) -> None:
    for text in (raw, urlsafe_b64encode(raw.encode()).decode(), "\u00fc", "a", "_w=="):
        with pytest.raises(ProtocolError):
            RecallHandle.parse(text)


NOW = 1_700_000_000_000


def test_unique_ids_have_rocketmqs_layout() -> None:
    ids = UniqueIds(b"\x0a\0\0\1", 0x1_2345, 0xDEADBEEF)
    first = ids.next(NOW)
    assert len(first) == 32
    assert first[:20] == "0A000001" + "2345" + "DEADBEEF"
    assert int(ids.next(NOW + 5)[20:28], 16) - int(first[20:28], 16) == 5
    assert int(first[20:28], 16) < 31 * 24 * 3600 * 1000
    assert len(UniqueIds(bytes(16), 1, 1).next(NOW)) == 56
    with pytest.raises(ProtocolError):
        UniqueIds(b"123", 1, 1)


@example([(0, 70_000), (1, 66_000)], 3, 0x10000)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=5), st.integers(-3, 9), st.integers(0, 9))
def test_many_ids_at_once_are_the_ids_one_by_one(draws: list[tuple[int, int]], before_month: int, left: int) -> None:
    at_once, one_by_one = UniqueIds(bytes(4), 1, 1), UniqueIds(bytes(4), 1, 1)
    at_once.next(NOW), one_by_one.next(NOW)
    now = at_once._end - before_month  # a month may end within them
    for ids in (at_once, one_by_one):
        ids.next(now)
        ids._count = ids._stop - left  # and a millisecond
    for pause, count in draws:
        now += pause
        assert at_once.next_many(now, count) == [one_by_one.next(now) for _ in range(count)]


@given(st.lists(st.integers(NOW - 10, NOW + 10), min_size=2, max_size=60))
def test_unique_ids_never_repeat_when_the_clock_jumps(times: list[int]) -> None:
    ids = UniqueIds(bytes(4), 1, 1)
    drawn = [ids.next(now) for now in times]
    assert len(set(drawn)) == len(drawn)
    stamps = [int(unique[20:28], 16) for unique in drawn]
    assert stamps == sorted(stamps)


def test_unique_ids_never_repeat_within_one_millisecond() -> None:
    ids = UniqueIds(bytes(4), 1, 1)
    drawn = {ids.next(NOW) for _ in range(150_000)}
    assert len(drawn) == 150_000


def test_unique_ids_start_anew_each_month() -> None:
    ids = UniqueIds(bytes(4), 1, 1)
    day = 24 * 3600 * 1000
    stamps = [int(ids.next(NOW + days * day)[20:28], 16) for days in range(0, 400, 7)]
    assert max(stamps) < 31 * day + 3_600_000  # an hour for a change of daylight saving time
    assert any(later < earlier for earlier, later in pairwise(stamps))
