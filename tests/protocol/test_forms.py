"""Values in every form that peers write: spec/forms.toml, form by form, in header fields and in body members."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket_protocol import (
    JSON,
    MSGPACK,
    SPECS,
    ConsumerData,
    HeartbeatData,
    LockBatchBody,
    MessageQueue,
    ProtocolError,
    RemotingCommand,
    SendMessageRequestHeader,
    SubscriptionData,
    decode,
    decode_body,
    encode_body,
    fastjson,
)
from aiorocket_protocol.names import CONSUME_FROM_WHERE, CONSUME_TYPES, MESSAGE_MODELS
from aiorocket_protocol.plain import Plain

FORMS = tomllib.loads((Path(__file__).parents[2] / "protocol" / "spec" / "forms.toml").read_text(encoding="utf-8"))
ABSENT = object()

#: How a body's member of each type is read; the default shows that it was absent.
MEMBERS: dict[str, Callable[[Plain], Any]] = {
    "number": lambda plain: plain.number("key", 7777),
    "flag": lambda plain: plain.flag("key", None),  # type: ignore[arg-type]  # shows what was absent
    "text": lambda plain: plain.text_or_none("key"),
    "name": lambda plain: plain.name("key", CONSUME_TYPES, "absent"),
    "numbers": lambda plain: plain.numbers("key"),
    "texts": lambda plain: plain.texts("key"),
    "table": lambda plain: plain.text_table("key"),
    "object": lambda plain: Plain(plain.members["key"], "Body.key").text("name"),
}
WHEN_ABSENT: dict[str, Any] = {"number": 7777, "name": "absent", "numbers": [], "texts": [], "table": {}}
#: An optional field of each type in the header of code 10.
FIELDS = {"number": "reconsumeTimes", "flag": "unitMode", "text": "properties"}


def rows() -> list[Any]:
    found: list[Any] = []
    for kind, forms in FORMS.items():
        meanings = [
            *forms["read"],
            *((form, False) for form in forms.get("false", ())),
            *((form, json.loads(form)) for form in forms.get("kept", ())),
            *((form, ABSENT) for form in forms.get("absent", ())),
            *((form, ProtocolError) for form in (*forms.get("refused", ()), *forms.get("ours", ()))),
        ]
        found += (pytest.param(kind, form, meant, id=f"{kind}-{form}") for form, meant in meanings)
    return found


@pytest.mark.parametrize(("kind", "form", "meant"), rows())
def test_a_member_of_a_body(kind: str, form: str, meant: Any) -> None:
    plain = fastjson.loads(b'{"key":%s}' % form.encode())
    bodies = [plain]
    if form != "99999999999999999999":  # more than msgpack can hold
        bodies.append(msgpack.unpackb(msgpack.packb(plain)))
    for found in bodies:
        if meant is ProtocolError:
            with pytest.raises(ProtocolError) as caught:
                MEMBERS[kind](Plain(found, "Body"))
            assert caught.value.where == "Body.key"
        else:
            value = MEMBERS[kind](Plain(found, "Body"))
            wanted = WHEN_ABSENT.get(kind) if meant is ABSENT else meant
            assert value == wanted
            assert type(value) is type(wanted)


def send(field: str, form: str) -> RemotingCommand:
    fields = {
        "producerGroup": "g", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
    }  # fmt: skip
    text = json.dumps(fields)[:-1] + f', "{field}": {form}}}'
    return decode(JSON, f'{{"code":10,"opaque":1,"extFields":{text}}}'.encode(), b"")


# A raw boolean in a header is read as its text, so it is no number there; nor is it for Java.
@pytest.mark.parametrize(
    ("kind", "form", "meant"),
    [
        row
        for row in rows()
        if row.values[0] in FIELDS and row.values[:2] not in (("number", "true"), ("number", "false"))
    ],
)
def test_a_header_field(kind: str, form: str, meant: Any) -> None:
    wire = FIELDS[kind]
    spec = next(spec for spec in SPECS[SendMessageRequestHeader] if spec.wire == wire)
    if meant is ProtocolError:
        with pytest.raises(ProtocolError) as caught:
            send(wire, form).read(SendMessageRequestHeader)
        assert caught.value.where.endswith(f".{wire}")
        return
    found = getattr(send(wire, form).read(SendMessageRequestHeader), spec.name)
    wanted = None if meant is ABSENT else meant
    assert found == wanted
    assert type(found) is type(wanted)


# ---- whole bodies, each value in any form that means it ------------------------------------------------------------

TEXTS = st.text("abcT%_-|", min_size=1, max_size=8)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
heartbeats = st.builds(
    HeartbeatData,
    TEXTS,
    st.lists(TEXTS, max_size=2),
    st.lists(
        st.builds(
            ConsumerData,
            TEXTS,
            st.sampled_from(CONSUME_TYPES),
            st.sampled_from(MESSAGE_MODELS),
            st.sampled_from(CONSUME_FROM_WHERE),
            st.lists(
                st.builds(
                    SubscriptionData, TEXTS, TEXTS, st.frozensets(TEXTS), st.frozensets(INT32), INT64,
                    st.sampled_from(["TAG", "SQL92"]),
                ),
                max_size=2,
            ),
            st.booleans(),
        ),
        max_size=2,
    ),
    INT32,
    st.booleans(),
)  # fmt: skip
locks = st.builds(LockBatchBody, TEXTS, TEXTS, st.lists(st.builds(MessageQueue, TEXTS, TEXTS, INT32), max_size=2))
ENUMS = {"consumeType": CONSUME_TYPES, "messageModel": MESSAGE_MODELS, "consumeFromWhere": CONSUME_FROM_WHERE}


def otherwise(draw: Callable[..., Any], key: str, value: Any) -> Any:
    """``value`` in another form that means the same."""
    if isinstance(value, dict):
        members = {name: otherwise(draw, name, item) for name, item in value.items()}
        return {**members, "unknown": draw(st.sampled_from([None, 1, "x", [{}]]))} if draw(st.booleans()) else members
    if isinstance(value, list):
        return [otherwise(draw, "", item) for item in value] or draw(st.sampled_from([[], None]))
    if type(value) is bool:
        same = [value, str(value), str(value).lower(), int(value), str(int(value))]
        return draw(st.sampled_from(same if value else [*same, None, 2, "no"]))
    if type(value) is int:
        return draw(st.sampled_from([value, str(value), f"{value}.0", *([float(value)] if abs(value) < 2**50 else [])]))
    if key in ENUMS:
        ordinal = ENUMS[key].index(value)
        return draw(st.sampled_from([value, value.lower(), value.title(), ordinal, str(ordinal)]))
    return value


@given(heartbeats | locks, st.data())
def test_a_body_in_other_forms_is_the_same_body(value: Any, data: st.DataObject) -> None:
    plain = otherwise(data.draw, "", value.to_plain())
    for serialize_type in (JSON, MSGPACK):
        assert decode_body(type(value), encode_body(plain, serialize_type), serialize_type) == value
