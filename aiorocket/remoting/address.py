"""Addresses as users write them and sockets report them."""

from __future__ import annotations

from aiorocket.errors import UsageError

__all__ = ("format_address", "host_of", "is_loopback", "parse_address", "unix_path")

_UNIX = "unix:"


def unix_path(address: str) -> str | None:
    """The path in ``unix:PATH``, the address of a unix socket; None for every other address."""
    return address.removeprefix(_UNIX) if address.startswith(_UNIX) else None


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``. UsageError names what is wrong with it."""
    host, colon, port = address.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"address {address!r:.200}: an IPv6 host stands in brackets, as in [::1]:9876")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"address {address!r:.200}: HOST:PORT is needed, with a port from 1 to 65535")
    return host, int(port)


def host_of(address: str) -> str:
    """The host of ``host:port`` or ``[v6]:port``, which is one."""
    return address.rpartition(":")[0].strip("[]")


def format_address(name: object) -> str:
    """``ip:port`` of a socket name as asyncio reports it; IPv6 in brackets. That of a unix socket is this machine."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "127.0.0.1:0" if isinstance(name, str | bytes) else str(name)


def is_loopback(host: str) -> bool:
    """Whether ``host``, as it stands in a configuration, is this machine only."""
    return host in ("localhost", "::1") or host.startswith("127.")
