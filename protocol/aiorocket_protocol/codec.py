"""Commands to frames, and what FrameSplitter cuts to commands, over the three header codecs."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from aiorocket_protocol import codec_json, codec_msgpack, codec_rocketmq
from aiorocket_protocol.command import JSON, MSGPACK, ROCKETMQ, RemotingCommand
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.fast import twin
from aiorocket_protocol.limits import MAX_FRAME

__all__ = ("CODECS", "HeaderCodec", "decode", "encode", "encode_head")

_pack_words = Struct(">II").pack


class HeaderCodec(NamedTuple):
    """One way to write the header."""

    encode_header: Callable[[RemotingCommand], bytes]
    decode_header: Callable[[bytes], RemotingCommand]


CODECS: dict[int, HeaderCodec] = {
    JSON: HeaderCodec(codec_json.encode_header, codec_json.decode_header),
    ROCKETMQ: HeaderCodec(codec_rocketmq.encode_header, codec_rocketmq.decode_header),
    MSGPACK: HeaderCodec(codec_msgpack.encode_header, codec_msgpack.decode_header),
}
_ENCODERS = {serialize_type: codec.encode_header for serialize_type, codec in CODECS.items()}
_DECODERS = {serialize_type: codec.decode_header for serialize_type, codec in CODECS.items()}


@twin
def encode_head(command: RemotingCommand, serialize_type: int, more: int = 0) -> bytes:
    """Length words and header; the caller writes ``command.body`` behind it and ``more`` further bytes of body, so a
    body is never copied. ProtocolError."""
    header = _ENCODERS[serialize_type](command)
    # As frame.encode_frame does, which would be one call more per command.
    length = 4 + len(header) + len(command.body) + more
    if length > MAX_FRAME - 4:
        raise ProtocolError(f"{length + 4} bytes; at most {MAX_FRAME} fit one frame", where="frame")
    return _pack_words(length, serialize_type << 24 | len(header)) + header


def encode(command: RemotingCommand, serialize_type: int) -> bytes:
    """The whole frame. ProtocolError when a value does not fit or the frame is over its cap."""
    return encode_head(command, serialize_type) + command.body


@twin
def decode(serialize_type: int, header: bytes, body: bytes) -> RemotingCommand:
    """The command of one frame of ``FrameSplitter``. ProtocolError when the header is malformed or its type unknown."""
    decoder = _DECODERS.get(serialize_type)
    if decoder is None:
        raise ProtocolError(f"serialize type {serialize_type} (0x{serialize_type:02x}) is unknown", where="frame")
    command = decoder(header)
    command.body = body
    return command
