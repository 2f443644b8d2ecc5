"""Addresses as users write them."""

from __future__ import annotations

from aiorocket.errors import ConfigError, UsageError

__all__ = ("check_nameservers", "parse_address")


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


def check_nameservers(nameservers: object) -> None:
    """ConfigError unless it is a tuple of HOST:PORT, or unix:PATH of an administration listener."""
    if not isinstance(nameservers, tuple | list):
        raise ConfigError(f"nameservers={nameservers!r}: a tuple of HOST:PORT")
    for address in nameservers:
        if str(address).startswith("unix:"):
            continue
        try:
            parse_address(str(address))
        except UsageError as error:
            raise ConfigError(f"nameservers={nameservers!r}: {error}") from None
