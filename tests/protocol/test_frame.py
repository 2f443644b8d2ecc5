"""The splitter: any fragmentation gives the same frames, lengths are checked before memory is taken."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket_protocol import (
    JSON,
    MAX_FRAME,
    READ_SIZE,
    FrameSplitter,
    ProtocolError,
    RemotingCommand,
    encode_frame,
    encode_head,
)
from aiorocket_protocol.frame import Frame

frames = st.tuples(st.integers(0, 255), st.binary(max_size=300), st.binary(max_size=2000))


def split_at(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(edges)]


def read_into(splitter: FrameSplitter, data: bytes) -> list[Frame]:
    """As a BufferedProtocol does it: at most what ``writable`` offers per call."""
    found: list[Frame] = []
    while data:
        space = splitter.writable()
        assert len(space) > 0
        count = min(len(space), len(data))
        space[:count] = data[:count]
        found += splitter.received(count)
        data = data[count:]
    return found


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 1 << 30), max_size=12))
def test_any_split_of_a_stream_gives_the_same_frames(sent: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(*frame) for frame in sent)
    fed, read = FrameSplitter(), FrameSplitter(memoryview(bytearray(READ_SIZE)))
    assert [frame for piece in split_at(stream, cuts) for frame in fed.feed(piece)] == sent
    assert [frame for piece in split_at(stream, cuts) for frame in read_into(read, piece)] == sent
    assert not fed.partial
    assert not read.partial


def test_byte_by_byte() -> None:
    splitter = FrameSplitter()
    stream = encode_frame(0, b"{}", b"body") * 2
    seen = []
    for position, byte in enumerate(stream):
        seen += splitter.feed(bytes([byte]))
        assert splitter.partial == (position not in (len(stream) // 2 - 1, len(stream) - 1))
    assert seen == [(0, b"{}", b"body")] * 2


@pytest.mark.parametrize("size", [16_000, 16_384, 70_000, 262_144, 300_000, 1_500_000, 5_000_000])
def test_frames_larger_than_the_buffer(size: int) -> None:
    body = bytes(range(256)) * (size // 256)
    small = encode_frame(0x4D, b"h", b"s")
    stream = small + encode_frame(1, b"header", body) + small * 3 + encode_frame(1, b"", body) + small
    splitter = FrameSplitter()
    found = [frame for at in range(0, len(stream), 65_536) for frame in read_into(splitter, stream[at : at + 65_536])]
    assert [len(body) for _, _, body in found] == [1, len(body), 1, 1, 1, len(body), 1]
    assert found[1] == (1, b"header", body)
    assert not splitter.partial


def test_largest_frame_passes_and_one_byte_more_does_not() -> None:
    body = bytes(MAX_FRAME - 8)
    assert len(encode_frame(0, b"", body)) == MAX_FRAME
    assert FrameSplitter().feed(encode_frame(0, b"", body)) == [(0, b"", body)]
    with pytest.raises(ProtocolError, match="at most 16777216"):
        encode_frame(0, b"", bytes(MAX_FRAME - 7))
    command = RemotingCommand.request(10, body=b"body")
    room = MAX_FRAME - len(encode_head(command, JSON)) - len(command.body)
    encode_head(command, JSON, room)
    with pytest.raises(ProtocolError, match="16777217 bytes; at most 16777216"):
        encode_head(command, JSON, room + 1)
    with pytest.raises(ProtocolError, match="length field 16777213"):
        FrameSplitter().feed((MAX_FRAME - 3).to_bytes(4, "big") + bytes(4))


def test_memory_follows_what_arrived_not_what_is_claimed() -> None:
    splitter = FrameSplitter()
    claim = (MAX_FRAME - 4).to_bytes(4, "big") + b"\0\0\0\0"
    splitter.feed(claim)
    assert len(splitter.writable()) <= 16 * 1024
    read_into(splitter, bytes(300_000))
    assert len(splitter.writable()) <= 4 * 300_008


def test_a_large_frame_gives_its_memory_back() -> None:
    splitter = FrameSplitter()
    splitter.feed(encode_frame(0, b"", bytes(8_000_000)))
    assert len(splitter.writable()) <= 256 * 1024


def test_frames_before_a_bad_length_are_returned_then_the_error() -> None:
    good = encode_frame(0, b"{}", b"")
    splitter = FrameSplitter()
    assert splitter.feed(good * 2 + b"\xff" * 8) == [(0, b"{}", b"")] * 2
    assert splitter.partial
    assert splitter.error is not None
    for data in (b"", b"x", good):
        with pytest.raises(ProtocolError, match="length field 4294967295"):
            splitter.feed(data)


@given(st.lists(frames, max_size=3), st.binary(max_size=40), st.lists(st.integers(0, 1 << 30), max_size=6))
def test_any_split_of_a_damaged_stream_gives_the_same_frames_and_error(
    sent: list[Frame], garbage: bytes, cuts: list[int]
) -> None:
    stream = b"".join(encode_frame(*frame) for frame in sent) + garbage

    def outcome(pieces: list[bytes]) -> tuple[list[Frame], str]:
        splitter, found = FrameSplitter(), []
        try:
            for piece in pieces:
                found += splitter.feed(piece)
            if splitter.error is not None:
                splitter.feed(b"")
        except ProtocolError as error:
            return found, str(error)
        return found, "partial" if splitter.partial else ""

    assert outcome([stream]) == outcome(split_at(stream, cuts)) == outcome([bytes([byte]) for byte in stream])


def test_the_reused_buffer_never_shows_through() -> None:
    """Header and body are copies: what is read next does not change them."""
    splitter = FrameSplitter()
    first = splitter.feed(encode_frame(0, b"first", b"one"))
    splitter.feed(encode_frame(0, b"other", b"two"))
    assert first == [(0, b"first", b"one")]


@given(st.lists(st.tuples(st.integers(0, 2), frames), max_size=12), st.integers(0, 1 << 30))
def test_splitters_that_share_a_buffer_do_not_disturb_each_other(sent: list[tuple[int, Frame]], seed: int) -> None:
    shared = memoryview(bytearray(READ_SIZE))
    splitters = [FrameSplitter(shared) for _ in range(3)]
    streams = [b"".join(encode_frame(*frame) for owner, frame in sent if owner == number) for number in range(3)]
    found: list[list[Frame]] = [[], [], []]
    chance = Random(seed)
    while any(streams):
        number = chance.randrange(3)
        count = min(chance.choice((1, 3, 7, 100, 70_000)), len(streams[number]))
        found[number] += read_into(splitters[number], streams[number][:count])
        streams[number] = streams[number][count:]
    assert found == [[frame for owner, frame in sent if owner == number] for number in range(3)]


@pytest.mark.parametrize("size", [READ_SIZE - 9, READ_SIZE - 8, READ_SIZE - 7, 600_000, 3_000_000])
def test_a_frame_larger_than_the_shared_buffer(size: int) -> None:
    splitter = FrameSplitter(memoryview(bytearray(READ_SIZE)))
    small, large = encode_frame(0, b"", b"x"), encode_frame(0, b"", bytes(size))
    for sent in ([large], [small, large], [large, small, large]):
        assert len(read_into(splitter, b"".join(sent))) == len(sent)


def test_an_idle_splitter_keeps_no_memory_of_its_own() -> None:
    shared = memoryview(bytearray(READ_SIZE))
    splitter = FrameSplitter(shared)
    whole = encode_frame(0, b"{}", b"x" * 100)
    for _ in range(3):
        assert splitter.writable().obj is shared.obj
        assert read_into(splitter, whole[:50]) == []
        assert splitter.writable().obj is not shared.obj
        assert len(read_into(splitter, whole[50:])) == 1
