"""What POP writes as text comes back from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket_protocol import (
    BatchAck,
    PopHandle,
    ProtocolError,
    pop_retry_topic,
    pop_retry_topic_v1,
    popped_topic,
    read_offset_lists,
    read_offsets,
    retry_mark,
    set_of_offsets,
    write_offset_lists,
    write_offsets,
)

NUMBERS = st.integers(0, 2**40)
MARKS = st.sampled_from("012")


def test_a_handle_as_apache_writes_it() -> None:
    handle = PopHandle.from_text("0 1795243487401 10000 5 0 broker-a 3 7")
    assert handle == (0, 1795243487401, 10000, 5, "0", "broker-a", 3, 7) and not handle.in_order
    assert PopHandle.from_text("0 1 2 999 0 b 3 7").in_order
    proxy = "0 1795362744622 10000 0 0 broker-a 2 0 924"  # with the message's place in the log
    assert PopHandle.from_text(proxy) == (0, 1795362744622, 10000, 0, "0", "broker-a", 2, 0)


@given(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, MARKS, st.text("ab-_%|", min_size=1), NUMBERS, NUMBERS))
def test_handles(values: tuple[int, int, int, int, str, str, int, int]) -> None:
    handle = PopHandle(*values)
    assert PopHandle.from_text(handle.to_text()) == handle


@pytest.mark.parametrize("text", ["", "1 2 3", "a b c d e f g h", "0 1 2 3 0 b 4 " + "9" * 5000])
def test_no_handles(text: str) -> None:
    with pytest.raises(ProtocolError):
        PopHandle.from_text(text)


@given(st.dictionaries(st.tuples(MARKS, NUMBERS), st.lists(NUMBERS, min_size=1)))
def test_lists_of_offsets(queues: dict[tuple[str, int], list[int]]) -> None:
    text = write_offset_lists((mark, queue_id, offsets) for (mark, queue_id), offsets in queues.items())
    assert read_offset_lists(text) == {(mark, str(queue_id)): offsets for (mark, queue_id), offsets in queues.items()}
    starts = write_offsets((mark, queue_id, offsets[0]) for (mark, queue_id), offsets in queues.items())
    assert read_offsets(starts) == {(mark, str(queue_id)): offsets[0] for (mark, queue_id), offsets in queues.items()}


def test_lists_that_are_none() -> None:
    assert read_offsets(None) == read_offset_lists("") == {}
    assert read_offsets("0 qo1%7 3;0 1 2") == {("0", "qo1%7"): 3, ("0", "1"): 2}
    for text in ("1", "0 1", "0 1 x", "0 1 2 3"):
        with pytest.raises(ProtocolError):
            read_offsets(text)
        with pytest.raises(ProtocolError):
            read_offset_lists(text)


def test_retry_topics() -> None:
    for mark, topic in (("0", "T"), ("1", pop_retry_topic_v1("g", "T")), ("2", pop_retry_topic("g", "T"))):
        assert retry_mark(topic) == mark and popped_topic(mark, "g", "T") == topic
    with pytest.raises(ProtocolError):
        popped_topic("3", "g", "T")


@given(NUMBERS, st.sets(st.integers(0, 300)))
def test_batches(start: int, wanted: set[int]) -> None:
    bits = set_of_offsets(start, (start + number for number in wanted))
    ack = BatchAck("g", "T", "0", start, 1, 0, 5, 6, bits)
    assert BatchAck.from_plain(ack.to_plain()) == ack
    assert list(ack.offsets()) == sorted(start + number for number in wanted)


def test_a_batch_as_java_writes_it() -> None:
    plain = {"b": "BQ==", "c": "g", "it": 60000, "pt": 7, "q": 3, "r": "1", "rq": 2, "so": 10, "t": "T"}
    ack = BatchAck.from_plain(plain)
    assert list(ack.offsets()) == [10, 12] and ack.to_plain() == plain
    with pytest.raises(ProtocolError):
        BatchAck.from_plain({**plain, "b": "?"})
