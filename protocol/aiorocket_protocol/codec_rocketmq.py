"""The ROCKETMQ binary header (serialize type 1), layout in spec/headers.md."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from aiorocket_protocol.command import ROCKETMQ, RemotingCommand
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import MAX_EXT_FIELDS

__all__ = ("decode_header", "encode_header")

_FIXED = Struct(">hBhiii")  # code, language, version, opaque, flag, remark length
_SHORT = Struct(">h")
_INT = Struct(">i")


def encode_header(command: RemotingCommand) -> bytes:
    """ProtocolError when the code needs more than 16 bits (the POP family): such commands need JSON or msgpack."""
    try:
        remark = command.remark.encode() if command.remark else b""
        parts = [b"", remark, b""]
        total = 0
        ext = command.ext_fields()
        if ext:
            for key, value in ext.items():
                if value is None:
                    continue
                name = key.encode()
                content = value.encode()
                parts += (_SHORT.pack(len(name)), name, _INT.pack(len(content)), content)
                total += 6 + len(name) + len(content)
        parts[0] = _FIXED.pack(
            command.code, command.language, command.version, command.opaque, command.flag, len(remark)
        )
        parts[2] = _INT.pack(total)
    except StructError:
        raise ProtocolError(
            f"code {command.code}, language {command.language}, version {command.version}, opaque {command.opaque}, "
            f"flag {command.flag} or the length of a key does not fit its field",
            where="ROCKETMQ header",
        ) from None
    except UnicodeEncodeError as error:
        raise ProtocolError(f"text that is not Unicode: {error.reason}", where="ROCKETMQ header") from None
    return b"".join(parts)


def decode_header(data: bytes) -> RemotingCommand:
    """Zero-length values read as None and a zero-length remark as none, as Java does."""
    size = len(data)
    if size < 21:
        raise ProtocolError(f"{size} bytes; at least 21 are needed", where="ROCKETMQ header")
    code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(data)
    at = 17 + remark_length
    if remark_length < 0 or at > size - 4:
        raise ProtocolError(f"remark of {remark_length} bytes in {size - 21}", where="ROCKETMQ header.remark")
    (total,) = _INT.unpack_from(data, at)
    if total != size - at - 4:
        raise ProtocolError(f"{total} bytes claimed, {size - at - 4} present", where="ROCKETMQ header.extFields")
    try:
        remark = data[17:at].decode() if remark_length else None
        ext = _ext(data, at + 4, size) if total else None
    except UnicodeDecodeError as error:
        raise ProtocolError(f"text that is not UTF-8: {error.reason}", where="ROCKETMQ header") from None
    return RemotingCommand(code, opaque, flag, language, version, remark, ext, None, None, b"", ROCKETMQ)


def _ext(data: bytes, at: int, size: int) -> dict[str, str | None]:
    ext: dict[str, str | None] = {}
    short, integer = _SHORT.unpack_from, _INT.unpack_from
    count = 0
    while at < size:
        (length,) = short(data, at) if size - at >= 6 else (-1,)
        key_end = at + 2 + length
        if length < 0 or key_end + 4 > size:
            raise ProtocolError(f"a key runs past the end at byte {at}", where="ROCKETMQ header.extFields")
        key = data[at + 2 : key_end].decode()
        (length,) = integer(data, key_end)
        at = key_end + 4 + length
        if length < 0 or at > size:
            raise ProtocolError(
                f"value of {length} bytes in {size - key_end - 4}", where=f"ROCKETMQ header.extFields.{key:.100}"
            )
        ext[key] = data[at - length : at].decode() if length else None
        count += 1  # also of one key: 80,000 fit into a header
        if count > MAX_EXT_FIELDS:
            raise ProtocolError(f"more than {MAX_EXT_FIELDS} entries", where="ROCKETMQ header.extFields")
    return ext
