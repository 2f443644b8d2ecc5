"""Bodies that are a Java properties file: a line ``name=value`` for each setting (25, 26, 318 and 319)."""

from __future__ import annotations

from collections.abc import Mapping

from aiorocket_protocol.errors import ProtocolError

__all__ = ("decode_configuration", "encode_configuration")

_MAX_LINES = 4_096


def encode_configuration(values: Mapping[str, str]) -> bytes:
    """As RocketMQ writes it: without escapes. ProtocolError for a name or value of more lines than one, which would be
    other properties at the reader's, and for half a surrogate pair."""
    for name, value in values.items():
        if (line := f"{name}={value}").splitlines() != [line]:
            raise ProtocolError(f"property {name!r:.80} has a line end in it, and properties none", where="body")
    try:
        return "".join(f"{name}={value}\n" for name, value in values.items()).encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"properties that are no text: {error.reason}", where="body") from None


def decode_configuration(body: bytes) -> dict[str, str]:
    """``name=value`` or ``name:value`` a line, without comments (``#``, ``!``). ProtocolError for what is no UTF-8, or
    has more than 4,096 lines."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"properties that are no UTF-8: {error}", where="body") from None
    lines = text.splitlines()
    if len(lines) > _MAX_LINES:  # 1 MiB of short ones takes 0.3 s
        raise ProtocolError(f"properties of {len(lines)} lines: at most {_MAX_LINES} are read", where="body")
    found = {}
    for line in map(str.strip, lines):
        if line and line[0] not in "#!":
            cut = min((at for at in (line.find("="), line.find(":")) if at >= 0), default=len(line))
            found[line[:cut].strip()] = line[cut + 1 :].strip()
    return found
