"""The msgpack header (serialize type 0x4D): an array, our default between our own peers (spec/headers.md).

``[code, flag, opaque, version, language, remark | nil, fields | nil, ext?]``. ``fields`` holds the declared header
fields in declared order, so a header NamedTuple is packed as it is; ``ext`` is a map of the undeclared ones and is left
out when empty. Items after the eighth belong to a newer peer and are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from aiorocket_protocol.command import MSGPACK, RemotingCommand
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import INT32_MAX, INT32_MIN, MAX_EXT_FIELDS, MAX_HEADER_FIELDS

__all__ = ("decode_header", "encode_header", "pack")

# Making a Packer costs as much as packing a header, so one is kept. It is safe across threads: for numbers, text, None
# and tuples pack() runs no Python code, so it holds the interpreter lock from start to end.
pack: Callable[[object], bytes] = msgpack.Packer().pack

_unpack = msgpack.unpackb


def encode_header(command: RemotingCommand) -> bytes:
    """ProtocolError when a field has a value that msgpack cannot hold."""
    header = command.header if command.header is not None else command.fields
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
    """ProtocolError for anything but the array above. Field types are checked by ``read``, which knows the header
    class."""
    try:
        # Limits as keywords of the call: through functools.partial the same call takes half as long again.
        items = _unpack(
            data,
            use_list=False,
            max_array_len=MAX_HEADER_FIELDS,
            max_map_len=MAX_EXT_FIELDS,
            max_ext_len=0,
            max_bin_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"not msgpack: {error or type(error).__name__}", where="msgpack header") from None
    if type(items) is not tuple or len(items) < 7:
        found = f"{len(items)} items" if type(items) is tuple else type(items).__name__
        raise ProtocolError(f"an array of 7 or 8 items is needed, found {found}", where="msgpack header")
    code, flag, opaque, version, language, remark, fields = items[:7]
    ext = items[7] if len(items) > 7 else None
    if not (
        type(code) is type(flag) is type(opaque) is type(version) is type(language) is int
        and (remark is None or type(remark) is str)
        and (fields is None or type(fields) is tuple)
        and (ext is None or type(ext) is dict)
    ):
        found = ", ".join(type(item).__name__ for item in items[:8])
        raise ProtocolError(f"5 numbers, text, array and map are needed; found {found}", where="msgpack header")
    if not (
        INT32_MIN <= code <= INT32_MAX
        and INT32_MIN <= opaque <= INT32_MAX
        and INT32_MIN <= flag <= INT32_MAX
        and 0 <= version <= INT32_MAX
        and 0 <= language <= 255
    ):
        raise ProtocolError(
            f"out of range: code {code}, flag {flag}, opaque {opaque}, version {version} or language {language}",
            where="msgpack header",
        )
    if ext is not None:
        _check_ext(ext)
    return RemotingCommand(code, opaque, flag, language, version, remark, ext, None, fields, b"", MSGPACK)


def _check_ext(ext: dict[Any, Any]) -> None:
    for key, value in ext.items():
        if type(key) is not str or (type(value) is not str and value is not None):
            raise ProtocolError(
                f"text to text is needed, found {key!r:.100} to {value!r:.100}", where="msgpack header.ext"
            )
