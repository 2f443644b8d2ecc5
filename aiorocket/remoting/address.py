"""Addresses as users write them and sockets report them."""

from __future__ import annotations

from aiorocket.config.addresses import parse_address

__all__ = ("format_address", "host_of", "is_loopback", "parse_address", "unix_path")

_UNIX = "unix:"


def unix_path(address: str) -> str | None:
    """The path in ``unix:PATH``, the address of a unix socket; None for every other address."""
    return address.removeprefix(_UNIX) if address.startswith(_UNIX) else None


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
