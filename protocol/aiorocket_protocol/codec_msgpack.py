"""The msgpack header (serialize type 0x4D): an array, our default between our own peers (spec/headers.md).

``[code, flag, opaque, version, language, remark | nil, fields | nil, ext?]``. ``fields`` holds the declared header
fields in declared order, so a header NamedTuple is packed as it is; ``ext`` is a map of the undeclared ones and is left
out when empty. Items after the eighth belong to a newer peer and are ignored.
"""

from __future__ import annotations

from typing import Any

import msgpack

from aiorocket_protocol.command import MSGPACK, RemotingCommand, positions
from aiorocket_protocol.compiled import NIL, Packed, open_msgpack, pack
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import MAX_EXT_FIELDS, MAX_HEADER_FIELDS

__all__ = ("decode_header", "encode_header", "pack")


def encode_header(command: RemotingCommand) -> bytes:
    """ProtocolError when a field has a value that msgpack cannot hold."""
    header = command.header
    if header is None and command.fields is not None:
        header = positions(command.fields)
    ext = command.ext
    try:
        if ext and (present := {key: value for key, value in ext.items() if value is not None}):
            return pack(
                (command.code, command.flag, command.opaque, command.version, command.language, command.remark, header,
                 present)
            )  # fmt: skip
        return pack(
            (command.code, command.flag, command.opaque, command.version, command.language, command.remark, header)
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"cannot be packed: {error}", where="msgpack header") from None


def decode_header(data: bytes) -> RemotingCommand:
    """ProtocolError for anything but the array above. Fields are checked by ``read``, which knows the header class."""
    try:
        envelope = open_msgpack(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not 5 numbers, text, array and map: {error}", where="msgpack header") from None
    fields = envelope.fields
    view = memoryview(fields)
    first = view[0]
    if first & 0xF0 != 0x90 and first != 0xC0 and not (first == 0xDC and view[1] << 8 | view[2] <= MAX_HEADER_FIELDS):
        raise ProtocolError(f"an array of at most {MAX_HEADER_FIELDS} fields is needed", where="msgpack header")
    ext = envelope.ext
    return RemotingCommand(
        envelope.code,
        envelope.opaque,
        envelope.flag,
        envelope.language,
        envelope.version,
        envelope.remark,
        None if ext is NIL else _ext(ext),
        None,
        None if first == 0xC0 else fields,
        b"",
        MSGPACK,
    )


def _ext(packed: Packed) -> dict[str, str | None] | None:
    try:
        ext = msgpack.unpackb(packed, max_array_len=0, max_map_len=MAX_EXT_FIELDS, max_ext_len=0, max_bin_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"not msgpack: {str(error) or type(error).__name__}", where="msgpack header.ext") from None
    if ext is None:
        return None
    if type(ext) is not dict:
        raise ProtocolError(f"a map is needed, found {type(ext).__name__}", where="msgpack header.ext")
    _check_ext(ext)
    return ext


def _check_ext(ext: dict[Any, Any]) -> None:
    for key, value in ext.items():
        if type(key) is not str or (type(value) is not str and value is not None):
            raise ProtocolError(
                f"text to text is needed, found {key!r:.100} to {value!r:.100}", where="msgpack header.ext"
            )
