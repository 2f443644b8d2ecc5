"""The short ways to a batch's tags give what the long way gives."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from aiorocket.broker.core.send_checks import property_value
from aiorocket.broker.core.topics import Topic
from aiorocket.broker.handlers.send import SendHandlers
from aiorocket.storage.queue_recovery import tags_code_in
from aiorocket_protocol import decode_properties, tags_code

VALUES = st.sampled_from(["", "a", "b", "TAGS", "ä", "\0"])
PAIRS = st.lists(st.tuples(st.sampled_from(["TAGS", "XTAGS", "KEYS", "UNIQ_KEY"]), VALUES), max_size=3)
CUT = st.booleans()


def encoded(pairs: list[tuple[str, str]], cut: bool) -> bytes:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    return (text[:-1] if cut else text).encode()


@given(st.lists(st.tuples(PAIRS, CUT), max_size=6))
def test_the_code_of_each_message_is_that_of_its_last_tag(messages: list[tuple[list[tuple[str, str]], bool]]) -> None:
    handlers: Any = None  # it needs nothing of them
    items = [(b"x", 0, encoded(*message)) for message in messages]
    codes = SendHandlers._batch_codes(handlers, Topic("t", 1, 1), items)
    tags = [decode_properties(own).get("TAGS") for _, _, own in items]
    assert tags == [property_value(own.decode(), "TAGS") for _, _, own in items]
    assert codes == [0 if tag is None else tags_code(tag) for tag in tags]


@given(st.lists(st.tuples(PAIRS, CUT).map(lambda message: encoded(*message)), max_size=6))
@example([b"TAGS\1\xe4\xb8\2", b"XTAGS\1a\2TAGS\1\xff\2KEYS\1TAGS\1b"])
def test_a_store_finds_the_same_code_in_the_records(properties: list[bytes]) -> None:
    """It believes the record, not the unit: one with another code there would be kept from who asks for its tag."""
    handlers: Any = None  # it needs nothing of them
    codes = SendHandlers._batch_codes(handlers, Topic("t", 1, 1), [(b"x", 0, own) for own in properties])
    assert codes == [tags_code_in(b"body" + own + b"TAGS\1", 4, 4 + len(own)) for own in properties]
