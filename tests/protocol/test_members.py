"""Long bodies read little by little: the same members as of the whole, whatever stands around them, and small steps."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket_protocol import JSON, MSGPACK, ProtocolError, fastjson
from aiorocket_protocol import members as module
from aiorocket_protocol.members import PIECE, members

PATHS = ((), ("a",), ("a", "b"))
scalars = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)
tables = st.dictionaries(st.text(max_size=3), values, max_size=4)
wholes = st.builds(
    lambda root, inner, table: {**root, "a": {**inner, "b": table}},
    tables,
    tables,
    st.none() | st.lists(values) | tables,
)


def expected(value: Any, path: tuple[str, ...] = ()) -> list[Any]:
    found = []
    for name, item in value.items():
        inside = (*path, name)
        found += expected(item, inside) if inside in PATHS and isinstance(item, dict) else [(path, name, item)]
    return found


def read(data: bytes, kind: int) -> tuple[list[Any], int]:
    """Members, and turns that others had."""
    steps = list(members(data, kind, PATHS, "it"))
    return [step for step in steps if step is not None], steps.count(None)


@given(wholes, st.sampled_from((40, 400, PIECE)), st.booleans())
def test_members_are_those_of_the_whole_and_long_values_are_left_out(whole: Any, piece: int, spaced: bool) -> None:
    text = json.dumps(whole, ensure_ascii=spaced, separators=None if spaced else (",", ":")).encode()
    for data, kind in ((text, JSON), (msgpack.packb(whole), MSGPACK)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "PIECE", piece)
            found = read(data, kind)[0]
        for (path, name, value), wanted in zip(found, expected(whole), strict=True):
            left_out = value is None and isinstance(wanted[2], (list, dict)) and piece < PIECE
            assert (path, name) == wanted[:2] and (value == wanted[2] or left_out)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"b":{"t":{0:"x",{"q":1}:2,},"u":"line\nbreak",7:[true,],},"c":null,},}',
        '{"z":[{0:1},[[1,],],],"a":{"b":{"t":{"n":"\\ud83d\\ude00"}}}}',
        '{ "a" : { "b" : { } } }',
        "{}",
    ],
)
def test_json_that_is_not_standard_is_read_as_elsewhere(text: str) -> None:
    found = read(text.encode(), JSON)[0]
    for (path, name, value), wanted in zip(found, expected(fastjson.loads(text.encode())), strict=True):
        assert (path, name) == wanted[:2] and value in (wanted[2], None if path == () else wanted[2])


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "{", '{"a"', '{"a":', '{"a":1', '{"a":{"b":{"t":[1,', "{}x", '{"a" 1}', '{"a":1 2}',
             "{a:1}", '{"a":"\\ud800"}', '{"a":{"b":{"t":["\\ud800"]}}}', '{"a":nul}', '{"z":' + "[" * 100]
)  # fmt: skip
def test_malformed_json_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        read(text.encode(), JSON)


@pytest.mark.parametrize(
    "data", [b"", b"\x90", b"\x81", b"\x81\xa1a", b"\x81\xa1a\x92\x01", b"\x80\x80", b"\x81\x01\x01", b"\x81\xa1a\xc1",
             b"\x81\xa1a\xd4\x01\x01", b"\x81\xa1a\xa1\xff", b"\x81\xa1z" + b"\x91" * 100, b"\xdf\xff"]
)  # fmt: skip
def test_malformed_msgpack_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(data, MSGPACK)


MANY = 4 * PIECE


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"z":[' + b"[]," * (MANY // 3) + b"[]]}", JSON),
        (b'{"a":{"b":{' + b'"t":{},' * (MANY // 7) + b"}}}", JSON),
        (b'{"a":{"b":{"t":{' + b"0:[1,]," * (MANY // 7) + b"}}}}", JSON),
        (b'{"z":{' + b"{1:2}:0," * (MANY // 8) + b"}}", JSON),
        (b"\x81\xa1z\xdd" + MANY.to_bytes(4, "big") + b"\x90" * MANY, MSGPACK),
        (b"\x81\xa1z\xdd" + (MANY // 2).to_bytes(4, "big") + b"\x91\x90" * (MANY // 2), MSGPACK),
        (b"\x81\xa1a\x81\xa1b\xdf" + (MANY // 3).to_bytes(4, "big") + b"\xa1t\x90" * (MANY // 3), MSGPACK),
    ],
)
def test_others_have_their_turn_in_whatever_is_long(data: bytes, kind: int) -> None:
    assert read(data, kind)[1] >= 4


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b'{"z":"' + bytes(module.LONGEST + 1).replace(b"\0", b"z") + b'"}', JSON),
     (b"\x81\xa1z\xdb" + (2 * module.LONGEST).to_bytes(4, "big") + bytes(2 * module.LONGEST), MSGPACK)],
)  # fmt: skip
def test_one_text_is_not_as_long_as_a_frame(data: bytes, kind: int) -> None:
    with pytest.raises(ProtocolError, match="in one text"):
        read(data, kind)


def test_of_very_many_no_more_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Reader, "left", 1000)
    for data, kind in (
        (b'{"z":[' + b"1," * PIECE + b"1]}", JSON),
        (b"\x81\xa1z\xdd" + (2 * PIECE).to_bytes(4, "big") + bytes(2 * PIECE), MSGPACK),
    ):
        with pytest.raises(ProtocolError, match="members and items"):
            read(data, kind)
