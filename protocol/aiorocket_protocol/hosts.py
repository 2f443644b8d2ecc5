"""Addresses as a record stores them: 4 or 16 IP bytes and a 32-bit port."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from aiorocket_protocol.errors import ProtocolError

__all__ = ("HOST_V4", "HOST_V6", "pack_host", "unpack_host", "unpack_ip")

#: Bytes of a stored address.
HOST_V4, HOST_V6 = 8, 20

_PORT = Struct(">i")
_V4 = Struct(">BBBBi")


def pack_host(address: str) -> bytes:
    """``"10.0.0.1:10911"`` to 8 bytes, ``"[::1]:10911"`` to 20. A name is not an address: ProtocolError."""
    host, colon, port_text = address.rpartition(":")
    try:
        port = int(port_text) if colon and port_text.isascii() and port_text.isdigit() else -1
        if not 0 <= port <= 65535:
            raise ValueError("port")
        if host.startswith("[") and host.endswith("]"):
            from ipaddress import IPv6Address  # takes as long as twenty modules, and few have such addresses

            return IPv6Address(host[1:-1].partition("%")[0]).packed + _PORT.pack(port)
        parts = host.split(".")
        if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
            raise ValueError("address")
        return _V4.pack(*map(int, parts), port)
    except (ValueError, StructError):
        raise ProtocolError(
            f"{address!r:.100} is not an IP address and port such as 10.0.0.1:10911 or [::1]:10911", where="host"
        ) from None


def unpack_ip(ip: bytes) -> str:
    """4 or 16 bytes as text, IPv6 in brackets."""
    if len(ip) == 4:
        return "%d.%d.%d.%d" % tuple(ip)  # noqa: UP031 - twice as fast as an f-string over four indexes
    if len(ip) == 16:
        from ipaddress import IPv6Address

        return f"[{IPv6Address(ip)}]"
    raise ProtocolError(f"{len(ip)} bytes; an IP address has 4 or 16", where="host")


def unpack_host(host: bytes) -> str:
    """The inverse of ``pack_host``; the port is shown as it was stored, even outside 0 to 65535."""
    if len(host) == HOST_V4:
        return "%d.%d.%d.%d:%d" % _V4.unpack(host)  # noqa: UP031
    if len(host) == HOST_V6:
        return f"{unpack_ip(host[:16])}:{_PORT.unpack_from(host, 16)[0]}"
    raise ProtocolError(f"{len(host)} bytes; a host has {HOST_V4} or {HOST_V6}", where="host")
