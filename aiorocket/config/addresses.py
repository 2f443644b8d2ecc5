"""Addresses as users write them."""

from __future__ import annotations

from collections.abc import Mapping

from aiorocket.errors import ConfigError, UsageError

__all__ = ("check_address_map", "check_nameservers", "mapped", "parse_address", "read_address_map")


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``. UsageError names what is wrong with it."""
    host, colon, port = address.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(
            f"address {address!r:.200}: an IPv6 host stands in brackets and its port behind them, as in [::1]:9876"
        )
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


def read_address_map(text: str) -> dict[str, str]:
    """An ``address_map`` as ``FROM=TO[,FROM=TO]``, ``;`` too. ConfigError."""
    found = dict[str, str]()
    for part in filter(None, (each.strip() for each in text.replace(",", ";").split(";"))):
        registered, equals, reached = (each.strip() for each in part.partition("="))
        if not equals or registered in found:
            raise ConfigError(f"address_map: {part!r:.200}: FROM=TO is needed, each FROM once")
        found[registered] = reached
    check_address_map(found)
    return found


def check_address_map(given: Mapping[str, str]) -> None:
    """ConfigError unless it leads from HOST:PORT to HOST:PORT or HOST, and from HOST to HOST."""
    for registered, reached in given.items():
        where = f"address_map: {registered!r} to {reached!r:.200}"
        for each in (registered, reached):
            if not isinstance(each, str) or not each.strip("[] "):
                raise ConfigError(f"{where}: HOST or HOST:PORT is needed on both sides")
            try:
                parse_address(f"{each}:1" if _is_host(each) else each)
            except UsageError as error:
                raise ConfigError(f"{where}: {error}") from None
        if _is_host(registered) and not _is_host(reached):
            raise ConfigError(f"{where}: a host stands for all its ports, which stay as they are: leave the port out")


def mapped(address_map: Mapping[str, str], address: str) -> str:
    """Where ``address`` is dialled: by its own entry, else by that of its host."""
    host, _, port = address.rpartition(":")
    reached = address_map.get(address) or address_map.get(host) or address
    return f"{reached}:{port}" if _is_host(reached) else reached


def _is_host(text: str) -> bool:
    return ":" not in text or text.endswith("]")
