"""The short ways to a batch's tags give what the long way gives."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.send_checks import TAGS_OF_BATCH, batch_codes, property_value, unserved_batch
from aiorocket.broker.core.topics import Topic
from aiorocket.storage.queue_recovery import tags_code_in
from aiorocket_protocol import decode_properties, find_property, tags_code

VALUES = st.sampled_from(["", "a", "b", "TAGS", "ä", "\0"])
PAIRS = st.lists(st.tuples(st.sampled_from(["TAGS", "XTAGS", "KEYS", "UNIQ_KEY"]), VALUES), max_size=3)
CUT = st.booleans()


def encoded(pairs: list[tuple[str, str]], cut: bool) -> bytes:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    return (text[:-1] if cut else text).encode()


@given(st.lists(st.tuples(PAIRS, CUT), max_size=6))
def test_the_code_of_each_message_is_that_of_its_last_tag(messages: list[tuple[list[tuple[str, str]], bool]]) -> None:
    items = [(b"x", 0, encoded(*message)) for message in messages]
    codes = batch_codes(Topic("t", 1, 1), items, len(items))
    tags = [decode_properties(own).get("TAGS") for _, _, own in items]
    assert tags == [property_value(own.decode(), "TAGS") for _, _, own in items]
    assert codes == [0 if tag is None else tags_code(tag) for tag in tags]


@given(st.lists(st.tuples(PAIRS, CUT).map(lambda message: encoded(*message)), max_size=6))
@example([b"TAGS\1\xe4\xb8\2", b"XTAGS\1a\2TAGS\1\xff\2KEYS\1TAGS\1b"])
def test_a_store_finds_the_same_code_in_the_records(properties: list[bytes]) -> None:
    """It believes the record, not the unit: one with another code there would be kept from who asks for its tag."""
    codes = batch_codes(Topic("t", 1, 1), [(b"x", 0, own) for own in properties], len(properties))
    assert not isinstance(codes, Refusal)
    assert codes == [tags_code_in(b"body" + own + b"TAGS\1", 4, 4 + len(own)) for own in properties]


@pytest.mark.parametrize("hashed", [True, False])
def test_so_many_characters_of_tags_are_hashed_and_no_more(hashed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 MiB of them took 0.5 s, and what only looks like a tag 0.1."""
    seen = [0]

    def counted(tag: str) -> int:
        seen[0] += len(tag)
        return 1

    monkeypatch.setattr("aiorocket.broker.core.topics.tags_code", counted)
    own = [b"TAGS\1%05d%b\2" % (n, b"x" * 400) for n in range(8_000)] if hashed else [b"XTAGS\1a\2" * 1_000] * 100
    items = [(b"", 0, one) for one in own]
    codes = batch_codes(Topic("t", 1, 1), items, b"".join(own).count(b"TAGS\1"))
    assert isinstance(codes, Refusal) and f"all may have {TAGS_OF_BATCH} characters" in codes.remark
    assert seen[0] < TAGS_OF_BATCH * hashed + 500
    few = [(b"", 0, b"UNIQ_KEY\1%d\2TAGS\1tag of twenty letters %d\2" % (n, n % 2_000)) for n in range(8_192)]
    assert batch_codes(Topic("t", 1, 1), few, 8_192) == [1] * 8_192


@pytest.mark.parametrize("length", [0, 430])
def test_of_tags_that_all_differ_few_are_looked_at(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """8,192 took 60 ms when they were short, and 112 until they were refused when they had 430 characters."""
    looked = found(monkeypatch)
    items = [(b"", 0, b"UNIQ_KEY\1%d\2TAGS\1%d%b\2" % (n, n, b"x" * length)) for n in range(8_192)]
    assert isinstance(batch_codes(Topic("t", 1, 1), items, 8_192), Refusal)
    assert len(looked) <= TAGS_OF_BATCH // (32 + length)


@pytest.mark.parametrize("own", [b"TAGS\1t\2K\1%d", b"K\1%d\2TAGS\1t\2", b"K\1%d\2TAGS\1t"])
def test_one_tag_of_all_is_looked_for_once(own: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind other properties it was looked for in each of 8,192 messages: 58 ms."""
    looked = found(monkeypatch)
    items = [(b"", 0, own % number) for number in range(8_192)]
    assert batch_codes(Topic("t", 1, 1), items, 8_192) == [tags_code("t")] * 8_192
    assert len(looked) == 1


def found(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The property strings in which a tag is looked for."""
    looked: list[bytes] = []

    def noted(own: bytes, name: bytes) -> bytes | None:
        looked.append(own)
        return find_property(own, name)

    monkeypatch.setattr("aiorocket.broker.core.send_checks.find_property", noted)
    return looked


@given(st.lists(st.tuples(st.sampled_from(["DELAY", "XDELAY", "TIMER_DELAY_MS", "TIMER_X", "a"]), st.just("1"))))
def test_what_a_batch_cannot_have_is_found_in_all_of_it(pairs: list[tuple[str, str]]) -> None:
    refusal = unserved_batch(b"\2" + encoded(pairs, False))
    names = dict(pairs)
    assert (refusal is not None) is ("DELAY" in names or "TIMER_DELAY_MS" in names)
    assert refusal is None or ("delayed" in refusal.remark) is ("DELAY" in names)
