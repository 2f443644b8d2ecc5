"""The kit for fuzz tests: what it draws is what it says, and everything that reads bytes survives all of it."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorocket_protocol import (
    JSON,
    MSGPACK,
    REQUEST_HEADERS,
    ROCKETMQ,
    FrameSplitter,
    ProtocolError,
    decode,
    decode_batch,
    encode,
    split_records,
)
from aiorocket_protocol.fuzzing import (
    BROKEN,
    CODES,
    LEGAL,
    VECTOR_FILES,
    Drawn,
    fields_of,
    legal_words,
    request,
    strategies,
    vectors,
)

ALL = tuple((code, kind) for code in CODES for kind in (JSON, ROCKETMQ, MSGPACK))


def test_a_legal_request_of_every_code_reads_as_its_header_in_every_codec() -> None:
    draw, known = Random(1), legal_words()
    for code, kind in ALL:
        drawn = request(draw, code, known, kind=kind, opaque=7)
        (frame,) = FrameSplitter().feed(drawn.data)
        command = decode(*frame)
        assert (command.code, command.opaque, drawn.answered, drawn.form) == (code, 7, True, LEGAL)
        header = REQUEST_HEADERS.get(code)
        if header is not None and kind != ROCKETMQ:  # which has no empty text
            command.read(header)


def test_a_header_put_together_from_kept_fields_says_what_encode_says() -> None:
    draw, known = Random(2), legal_words()
    for code, kind in ALL:
        data = request(draw, code, known, kind=kind, opaque=7).data
        command = decode(*FrameSplitter().feed(data)[0])
        (again,) = FrameSplitter().feed(encode(command, command.serialize_type))
        assert decode(*again) == command, (code, kind)
        if command.serialize_type != JSON:  # where the order of the fields is of no account
            assert encode(command, command.serialize_type) == data, (code, kind)


def test_the_same_source_of_chance_draws_the_same() -> None:
    def run() -> list[Drawn]:
        draw, known = Random(3), legal_words()
        return [request(draw, code, known, kind=kind, form=BROKEN) for code, kind in ALL]

    assert run() == run()


def test_every_field_is_broken_some_time() -> None:
    draw, known = Random(5), legal_words()
    for code in (310, 11, 200050):
        parts = {request(draw, code, known, form=BROKEN).part for _ in range(600)}
        assert parts >= {*fields_of(code), "body", "header"}


@settings(max_examples=50)
@given(strategies.requests(), st.booleans())
def test_any_request_is_read_or_refused(drawn: Drawn, halved: bool) -> None:
    with suppress(ProtocolError):
        for frame in FrameSplitter().feed(drawn.data[: len(drawn.data) // 2] if halved else drawn.data):
            command = decode(*frame)
            command.read(REQUEST_HEADERS.get(drawn.code, REQUEST_HEADERS[310]))


@settings(max_examples=30)
@given(strategies.records(), strategies.batches(), strategies.streams())
def test_records_batches_and_streams_are_read_or_refused(record: bytes, batch: bytes, stream: bytes) -> None:
    for read, data in ((split_records, record), (decode_batch, batch), (FrameSplitter().feed, stream)):
        with suppress(ProtocolError):
            read(data)


@settings(max_examples=10)
@given(strategies.headers(form=LEGAL), strategies.bodies(34, form=LEGAL))
def test_headers_and_bodies_alone(header: bytes, body: bytes) -> None:
    assert decode(JSON, header, body).body == body


def test_a_form_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'wrong': there are legal, odd, broken"):
        strategies.records(form="wrong")


def test_vectors_are_there_by_name() -> None:
    assert all(vectors(name) for name in VECTOR_FILES)
    with pytest.raises(ValueError, match="'nothing': there are allocation"):
        vectors("nothing")
