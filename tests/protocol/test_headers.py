"""Commands through the three header codecs: round trips, tolerance of real peers, typed reading."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket_protocol import (
    CODECS,
    JSON,
    LANGUAGE_NAMES,
    MSGPACK,
    REQUEST_HEADERS,
    ROCKETMQ,
    SPECS,
    FrameSplitter,
    GetMaxOffsetRequestHeader,
    GetRouteInfoRequestHeader,
    PopMessageRequestHeader,
    ProtocolError,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    decode,
    encode,
    encode_head,
    found_head,
    pull_header,
)
from aiorocket_protocol.command import HeaderReader
from aiorocket_protocol.compiled import Packed

INT32 = st.integers(-(2**31), 2**31 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    "int": INT32,
    "long": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
}
TYPES = (JSON, ROCKETMQ, MSGPACK)


def packed(*fields: Any) -> Packed:
    return Packed(msgpack.packb(fields))


@st.composite
def headers(draw: st.DrawFn) -> Any:
    header_class = draw(st.sampled_from(sorted(SPECS, key=lambda item: item.__name__)))
    values = [
        draw(VALUES[spec.kind] if spec.required else st.none() | VALUES[spec.kind]) for spec in SPECS[header_class]
    ]
    return header_class(*values)


commands = st.builds(
    RemotingCommand,
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=INT32,
    flag=INT32,
    language=st.sampled_from(sorted(LANGUAGE_NAMES)),
    version=st.integers(0, 2**15 - 1),
    remark=st.none() | VALUES["str"],
    ext=st.none() | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map("x-".__add__),
                                    VALUES["str"], min_size=1, max_size=4),
    header=st.none() | headers(),
    body=st.binary(max_size=50),
)  # fmt: skip


@given(commands)
def test_round_trip_in_every_codec(command: RemotingCommand) -> None:
    seen = []
    for serialize_type in TYPES:
        (frame,) = FrameSplitter().feed(encode(command, serialize_type))
        found = decode(*frame)
        assert found.serialize_type == serialize_type
        for name in ("code", "opaque", "flag", "language", "version", "remark", "body"):
            assert getattr(found, name) == getattr(command, name)
        for key, value in (command.ext or {}).items():
            assert found.ext_value(key) == value
        if command.header is not None:
            assert found.read(type(command.header)) == command.header
            seen.append(found.ext_fields(type(command.header)))
        assert encode(command, serialize_type) == encode_head(command, serialize_type) + command.body
    assert all(fields == seen[0] for fields in seen)


@given(st.sampled_from(TYPES), st.binary(max_size=200))
def test_any_header_bytes_end_in_a_command_or_one_error(serialize_type: int, data: bytes) -> None:
    try:
        command = decode(serialize_type, data, b"")
    except ProtocolError:
        return
    for header_class in SPECS:
        try:
            command.read(header_class)
        except ProtocolError as error:
            assert header_class.__name__ in error.where


@given(st.lists(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
                | st.binary(max_size=3), max_size=16))  # fmt: skip
def test_positional_fields_of_any_type_are_checked(fields: list[Any]) -> None:
    header_class = SendMessageRequestHeaderV2
    command = RemotingCommand(310, fields=packed(*fields))
    try:
        header = command.read(header_class)
    except ProtocolError as error:
        assert error.where.startswith("SendMessageRequestHeaderV2.")
    else:
        for value, spec in zip(header, SPECS[header_class], strict=True):
            assert value is None or type(value) is {"str": str, "bool": bool}.get(spec.kind, int)
            assert value is not None or not spec.required


def test_unknown_serialize_type() -> None:
    with pytest.raises(ProtocolError, match="serialize type 9"):
        decode(9, b"", b"")


# ---- typed reading -------------------------------------------------------------------------------------------------


def read_text(ext: dict[str, str | None], header_class: type[Any] = GetMaxOffsetRequestHeader) -> Any:
    return RemotingCommand(30, ext=ext).read(header_class)


@pytest.mark.parametrize(
    ("ext", "field", "what"),
    [
        ({"queueId": "0"}, "topic", "missing"),
        ({"topic": None, "queueId": "0"}, "topic", "missing"),
        ({"topic": "T"}, "queueId", "missing"),
        ({"topic": "T", "queueId": "x"}, "queueId", "int is needed, found 'x'"),
        ({"topic": "T", "queueId": ""}, "queueId", "int is needed"),
        ({"topic": "T", "queueId": "1_0"}, "queueId", "int is needed"),
        ({"topic": "T", "queueId": " 1"}, "queueId", "int is needed"),
        ({"topic": "T", "queueId": "\u0661"}, "queueId", "int is needed"),
        ({"topic": "T", "queueId": "2147483648"}, "queueId", "does not fit int"),
        ({"topic": "T", "queueId": "9" * 5000}, "queueId", "int is needed"),
    ],
)
def test_text_fields_that_are_wrong(ext: dict[str, str | None], field: str, what: str) -> None:
    with pytest.raises(ProtocolError, match=what) as caught:
        read_text(ext)
    assert caught.value.where == f"GetMaxOffsetRequestHeader.{field}"
    assert len(str(caught.value)) < 300


def test_text_fields_as_peers_write_them() -> None:
    assert read_text({"topic": "T", "queueId": "-1", "committed": "True", "ns": "x"}) == ("T", -1, True)
    assert read_text({"topic": "", "queueId": "+5"}) == ("", 5, None)
    assert read_text({"topic": "T", "queueId": "1", "committed": "yes"}) == ("T", 1, False)


@pytest.mark.parametrize(
    ("position", "value", "field"),
    [(1, 2**31, "queueId"), (1, "x", "queueId"), (1, float("inf"), "queueId"), (0, b"T", "topic"), (0, None, "topic"),
     (2, (), "committed"), (1, (), "queueId")],
)  # fmt: skip
def test_positional_fields_that_are_wrong(position: int, value: object, field: str) -> None:
    fields: list[Any] = ["T", 3, True]
    assert RemotingCommand(30, fields=packed(*fields)).read(GetMaxOffsetRequestHeader) == ("T", 3, True)
    fields[position] = value
    with pytest.raises(ProtocolError) as caught:
        RemotingCommand(30, fields=packed(*fields)).read(GetMaxOffsetRequestHeader)
    assert caught.value.where == f"GetMaxOffsetRequestHeader.{field}"


def test_positional_fields_in_other_forms() -> None:
    """Each time: what is remembered of a header's types are the declared ones."""
    for _ in range(2):
        found = RemotingCommand(30, fields=packed(5, "3", 1)).read(GetMaxOffsetRequestHeader)
        assert found == ("5", 3, True)
        assert found[2] is True


def test_64_bit_fields_reach_to_the_end_of_their_range() -> None:
    header = PullMessageResponseHeader(0, 2**63 - 1, -(2**63), 0)
    (frame,) = FrameSplitter().feed(encode(RemotingCommand.response(0, header), MSGPACK))
    assert decode(*frame).read(PullMessageResponseHeader) == header
    too_large = PullMessageResponseHeader(0, 2**63, 0, 0)  # msgpack could carry it, a Java long could not
    (frame,) = FrameSplitter().feed(encode(RemotingCommand.response(0, too_large), MSGPACK))
    with pytest.raises(ProtocolError, match="does not fit long"):
        decode(*frame).read(PullMessageResponseHeader)


@given(st.data())
def test_what_msgspec_reads_is_what_the_forms_say(data: st.DataObject) -> None:
    """msgspec's word is final where it gives one, so it must be the same."""
    header_class = data.draw(st.sampled_from(sorted(SPECS, key=lambda found: found.__name__)))
    reader = HeaderReader(header_class, SPECS[header_class])
    odd = st.sampled_from(["", "null", "NULL", "true", "True", "0", "1", "-7", "+7", "7.5", "1e2", "x"])
    texts = st.none() | odd | st.text("0123456789+-.", max_size=4)
    ext = {spec.wire: data.draw(texts) for spec in SPECS[header_class]}
    any_value = texts | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    fields = [data.draw(any_value) for _ in range(data.draw(st.integers(0, len(ext) + 2)))]
    for fast, slow in (
        (
            lambda: reader.convert(ext),
            lambda: reader.from_text(ext),
        ),
        (lambda: reader.decode(packed(*fields)), lambda: reader.from_positions(tuple(fields))),
    ):
        try:
            found = fast()
        except ValueError:
            continue
        assert type(found) is header_class
        assert [(type(value), value) for value in found] == [(type(value), value) for value in slow()]


def test_reading_a_command_that_was_never_encoded() -> None:
    """Handlers can be called with what the sender made."""
    header = GetRouteInfoRequestHeader("T")
    command = RemotingCommand.request(105, header)
    assert command.read(GetRouteInfoRequestHeader) is header
    send = SendMessageRequestHeader("g", "T", "TBW102", 4, 0, 0, 1, 0)
    with pytest.raises(ProtocolError, match="missing"):
        RemotingCommand.request(10, send).read(SendMessageRequestHeaderV2)
    with pytest.raises(TypeError):
        command.read(tuple)


def test_ext_fields_of_a_positional_command() -> None:
    header = GetMaxOffsetRequestHeader("T", 3, True)
    (frame,) = FrameSplitter().feed(encode(RemotingCommand.request(30, header, ext={"k": "v"}), MSGPACK))
    command = decode(*frame)
    assert command.ext_fields() == {"k": "v", "topic": "T", "queueId": "3", "committed": "true"}
    assert command.ext_value("k") == "v"
    assert command.ext_value("absent") is None
    response = RemotingCommand(0, flag=1, fields=packed("x"))
    with pytest.raises(ProtocolError, match="no names"):
        response.ext_fields()
    assert RemotingCommand(0, flag=1, fields=packed()).ext_fields() == {}


def test_a_pull_header_says_each_thing_in_its_field() -> None:
    said: dict[str, Any] = {
        "flags": 2, "commit_offset": 3, "hold_ms": 4, "version": 5, "expression": "a > 1", "expression_type": "SQL92",
        "max_bytes": 6,
    }  # fmt: skip
    header = pull_header("g", "t", 7, 8, 9, **said)
    assert header == PullMessageRequestHeader(
        consumer_group="g", topic="t", queue_id=7, queue_offset=8, max_msg_nums=9, sys_flag=2, commit_offset=3,
        suspend_timeout_millis=4, sub_version=5, subscription="a > 1", expression_type="SQL92", max_msg_bytes=6,
    )  # fmt: skip
    plain = pull_header("g", "t", 7, 8, 9)
    assert plain[5:] == (4, 0, 0, 0, "*", "TAG", None, None, None) and len(plain) == len(header)


def test_flags() -> None:
    request = RemotingCommand.request(15, oneway=True)
    response = RemotingCommand.response(17, remark="no")
    assert (request.is_oneway, request.is_response) == (True, False)
    assert (response.is_oneway, response.is_response, response.remark) == (False, True, "no")
    assert request.version == response.version == 479


# ---- what other clients stumble over -------------------------------------------------------------------------------


def test_json_is_compact_and_its_values_are_strings() -> None:
    send = SendMessageRequestHeaderV2("g", "T", "TBW102", 4, 0, 0, 1, 0, unit_mode=False)
    data = CODECS[JSON].encode_header(RemotingCommand.request(310, send))
    assert b" " not in data
    plain = json.loads(data)
    assert all(type(value) is str for value in plain["extFields"].values())
    assert plain["extFields"]["k"] == "false"
    assert list(plain) == sorted(plain)


def test_a_send_answer_has_ext_fields_java_reads_without_a_check() -> None:
    header = SendMessageResponseHeader("id", 0, 5, msg_region="DefaultRegion", trace_on="true")
    data = CODECS[JSON].encode_header(RemotingCommand.response(0, header))
    assert json.loads(data)["extFields"] == {
        "msgId": "id", "queueId": "0", "queueOffset": "5", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip


@pytest.mark.parametrize("serialize_type", TYPES)
@given(st.integers(-(2**31), 2**31 - 1), *[st.integers(-1, 2**63 - 1)] * 3, st.integers(0, 2**24))
def test_the_head_of_a_pull_that_found_is_that_of_its_command(
    serialize_type: int, opaque: int, following: int, low: int, high: int, size: int
) -> None:
    command = RemotingCommand.response(0, PullMessageResponseHeader(0, following, low, high), remark="FOUND")
    command.opaque = opaque
    try:
        wanted = encode_head(command, serialize_type, size)
    except ProtocolError as error:
        with pytest.raises(ProtocolError) as found:
            found_head(serialize_type, opaque, following, low, high, size)
        assert str(found.value) == str(error)
    else:
        assert found_head(serialize_type, opaque, following, low, high, size) == wanted


def test_pop_never_goes_into_16_bits() -> None:
    header = PopMessageRequestHeader("g", "T", 0, 32, 1, 1, 1, 0)
    command = RemotingCommand.request(RequestCode.POP_MESSAGE, header)
    with pytest.raises(ProtocolError, match="code 200050"):
        encode(command, ROCKETMQ)
    for serialize_type in (JSON, MSGPACK):
        (frame,) = FrameSplitter().feed(encode(command, serialize_type))
        assert decode(*frame).code == 200050


@pytest.mark.parametrize("serialize_type", TYPES)
def test_text_that_is_not_unicode_is_refused(serialize_type: int) -> None:
    for command in (
        RemotingCommand.response(1, remark="\ud800"),
        RemotingCommand.request(105, GetRouteInfoRequestHeader("\udfff")),
        RemotingCommand.request(105, ext={"k": "\ud800"}),
    ):
        with pytest.raises(ProtocolError):
            encode(command, serialize_type)


def test_values_that_no_field_holds_are_refused() -> None:
    with pytest.raises(ProtocolError, match="cannot be packed"):
        encode(RemotingCommand.request(30, GetMaxOffsetRequestHeader("T", 2**70)), MSGPACK)
    with pytest.raises(ProtocolError, match="opaque"):
        encode(RemotingCommand(1, opaque=2**31), ROCKETMQ)


def test_every_declared_request_header_can_be_read_from_both_forms() -> None:
    for code, header_class in REQUEST_HEADERS.items():
        values: list[Any] = [{"str": "x", "bool": True}.get(spec.kind, 7) for spec in SPECS[header_class]]
        header = header_class(*values)
        for serialize_type in (JSON, MSGPACK):
            (frame,) = FrameSplitter().feed(encode(RemotingCommand.request(code, header), serialize_type))
            assert decode(*frame).read(header_class) == header


def test_a_header_has_no_more_entries_than_may_be_although_they_are_of_one_key() -> None:
    """80,000 fit into one, and took 90 to 100 ms."""

    def header(count: int) -> bytes:
        ext = b"\0\1a\0\0\0\1b" * count
        return struct.pack(">hBhiiii", 30, 0, 1, 1, 0, 0, len(ext)) + ext

    assert decode(ROCKETMQ, header(1024), b"").ext == {"a": "b"}
    with pytest.raises(ProtocolError, match="more than 1024 entries"):
        decode(ROCKETMQ, header(1025), b"")


@pytest.mark.parametrize("value", [{"a": 1}, [[{"a": 1}]], msgpack.ExtType(5, b"x"), [msgpack.ExtType(5, b"x")]])
def test_fields_hold_no_maps_and_no_types_of_their_own(value: Any) -> None:
    """Half a mebibyte of them took 70 to 210 ms, and the request was served."""
    assert RemotingCommand(30, fields=packed("T", "0", None, [[]])).read(GetMaxOffsetRequestHeader).queue_id == 0
    with pytest.raises(ProtocolError, match="not msgpack"):
        RemotingCommand(30, fields=packed("T", 0, None, value)).read(GetMaxOffsetRequestHeader)


@pytest.mark.parametrize("many", ["[],", "{},", '":",'])
def test_a_header_in_any_form_has_so_many_members_and_lists(many: str) -> None:
    def header(count: int, code: str) -> bytes:
        text = many * count if many[0] != '"' else f'"{":" * count}",'
        return f'{{"code":{code},"opaque":1,"x":[{text}1]}}'.encode()

    assert decode(JSON, header(32_760, '"30"'), b"").code == 30
    with pytest.raises(ProtocolError, match="more than 32767 members, objects and lists"):
        decode(JSON, header(32_768, '"30"'), b"")
    assert decode(JSON, header(40_000, "30"), b"").code == 30  # what it does not know is passed over
