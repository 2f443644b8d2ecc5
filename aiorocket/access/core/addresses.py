"""Lists of addresses as they stand in rules, of both of RocketMQ's versions."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

__all__ = ("check_addresses", "matches_any")

_OCTET = r"(?:\d{1,3}|\*|\d{1,3}-\d{1,3}|\{\d{1,3}(?:,\d{1,3})*\})"
_PATTERN = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}", re.ASCII)
#: Characters of one: what is longer repeats itself.
_LONGEST = 1024
_EVERYBODY = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")


def check_addresses(rules: Iterable[str]) -> str | None:
    """Why one of ``rules`` is no address, network (``10.0.0.0/8``), ``*`` or IPv4 pattern as of RocketMQ 4
    (``192.168.0-3.*``, ``10.0.0.{1,2}``); None when all of them are."""
    for rule in rules:
        if rule in _EVERYBODY:
            continue
        if len(rule) > _LONGEST:
            return f"an address of {len(rule)} characters: at most {_LONGEST} are read"
        try:
            _read(rule)
        except ValueError:
            return f"{rule!r} is no address: 10.0.0.1, 10.0.0.0/8, 10.0.0.*, 10.0.1-3.*, 10.0.0.{{1,2}}, ::1 or * is"
    return None


def matches_any(rules: Collection[str], source: str) -> bool:
    """Whether the address ``source`` is in one of ``rules``, which were checked."""
    if not rules:
        return False
    if any(rule in _EVERYBODY or rule == source for rule in rules):
        return True
    try:
        address = ip_address(source.partition("%")[0])
    except ValueError:
        return False
    if address.version == 6 and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(_matches(_read(rule), address) for rule in rules)


def _matches(rule: _Pattern | IPv4Network | IPv6Network, address: IPv4Address | IPv6Address) -> bool:
    if address.version != rule.version:
        return False
    if isinstance(rule, _Pattern):
        return all(octet in allowed for octet, allowed in zip(address.packed, rule.octets, strict=True))
    return address in rule


class _Pattern(NamedTuple):
    octets: tuple[Container[int], ...]
    version: int = 4


@lru_cache(maxsize=4096)  # each request asks, and it takes 8 us
def _read(rule: str) -> _Pattern | IPv4Network | IPv6Network:
    """ValueError when it is none."""
    if _PATTERN.fullmatch(rule):
        return _Pattern(tuple(map(_octets, rule.split("."))))
    return ip_network(rule, strict=False)


def _octets(rule: str) -> Container[int]:
    if rule == "*":
        return range(256)
    if rule.startswith("{"):
        return frozenset(map(int, rule[1:-1].split(",")))
    low, _, high = rule.partition("-")
    return range(int(low), int(high or low) + 1)
