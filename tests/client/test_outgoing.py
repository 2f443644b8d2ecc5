from __future__ import annotations

import zlib

import pytest

from aiorocket.client.sending.outgoing import COMPRESSED_ZLIB, property_text, squeeze
from aiorocket.errors import UsageError
from aiorocket_protocol import decode_properties


def text(**changes: object) -> str:
    settings: dict[str, object] = {"tag": "", "keys": (), "properties": None, "sharding_key": None, "delay_level": 0}
    return property_text("ID", **{**settings, **changes})  # type: ignore[arg-type]


def test_everything_comes_back() -> None:
    made = text(tag="t", keys=["a", "b"], properties={"x": "ä", "y": "2"}, sharding_key="k", delay_level=3)
    assert decode_properties(made.encode()) == {
        "UNIQ_KEY": "ID", "TAGS": "t", "KEYS": "a b", "__SHARDINGKEY": "k", "DELAY": "3", "x": "ä", "y": "2",
    }  # fmt: skip


def test_reserved_properties_are_ours_to_set() -> None:
    made = text(properties={"x": "y"}, system={"TRAN_MSG": "true", "PGROUP": "g"})
    assert decode_properties(made.encode()) == {"UNIQ_KEY": "ID", "x": "y", "TRAN_MSG": "true", "PGROUP": "g"}
    with pytest.raises(UsageError, match="must not contain"):
        text(system={"INSTANCE_ID": "a\x02b"})


@pytest.mark.parametrize(
    "changes",
    [
        {"tag": "a||b"},
        {"tag": " a"},
        {"tag": "a\x01b"},
        {"keys": "abc"},
        {"keys": ["a b"]},
        {"keys": [""]},
        {"keys": ["a\x02"]},
        {"properties": {"TAGS": "x"}},
        {"properties": {"TIMER_DELAY_MS": "5"}},
        {"properties": {"x": ""}},
        {"properties": {"x": 5}},
        {"properties": {"x": "\x01"}},
        {"properties": {"x": "y" * 33_000}},
        {"sharding_key": "\x02"},
        {"delay_level": 19},
        {"delay_level": -1},
    ],
)
def test_what_would_be_lost_or_changed_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        text(**changes)


def test_a_body_is_compressed_only_when_that_helps() -> None:
    packed, flag = squeeze(b"a" * 5000, 5)
    assert (zlib.decompress(packed), flag) == (b"a" * 5000, COMPRESSED_ZLIB == 0x301 and 0x301)
    noise = zlib.compress(bytes(range(256)) * 20)
    assert squeeze(noise, 5) == (noise, 0)
