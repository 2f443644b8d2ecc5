"""Bodies that are a Java properties file: a line ``name=value`` for each setting (25, 26, 318 and 319)."""

from __future__ import annotations

from collections.abc import Mapping

from aiorocket_protocol.errors import ProtocolError

__all__ = ("decode_configuration", "encode_configuration")


def encode_configuration(values: Mapping[str, str]) -> bytes:
    """As RocketMQ writes it: without escapes. A value ends with its line."""
    return "".join(f"{name}={value}\n" for name, value in values.items()).encode()


def decode_configuration(body: bytes) -> dict[str, str]:
    """``name=value`` or ``name:value`` a line, without comments (``#``, ``!``). ProtocolError for what is no UTF-8."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"properties that are no UTF-8: {error}", where="body") from None
    found = {}
    for line in map(str.strip, text.splitlines()):
        if line and line[0] not in "#!":
            cut = min((at for at in (line.find("="), line.find(":")) if at >= 0), default=len(line))
            found[line[:cut].strip()] = line[cut + 1 :].strip()
    return found
