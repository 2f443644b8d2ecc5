"""Lists of addresses as they stand in rules, of both of RocketMQ's versions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address, ip_network

__all__ = ("check_addresses", "matches_any")

_OCTET = r"(?:\d{1,3}|\*|\d{1,3}-\d{1,3}|\{\d{1,3}(?:,\d{1,3})*\})"
_PATTERN = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}", re.ASCII)
_EVERYBODY = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")


def check_addresses(rules: Iterable[str]) -> str | None:
    """Why one of ``rules`` is no address, network (``10.0.0.0/8``), ``*`` or IPv4 pattern as of RocketMQ 4
    (``192.168.0-3.*``, ``10.0.0.{1,2}``); None when all of them are."""
    for rule in rules:
        if rule in _EVERYBODY or _PATTERN.fullmatch(rule):
            continue
        try:
            ip_network(rule, strict=False)
        except ValueError:
            return f"{rule!r} is no address: 10.0.0.1, 10.0.0.0/8, 10.0.0.*, 10.0.1-3.*, 10.0.0.{{1,2}}, ::1 or * is"
    return None


def matches_any(rules: Iterable[str], source: str) -> bool:
    """Whether the address ``source`` is in one of ``rules``, which were checked."""
    return any(_matches(rule, source) for rule in rules)


def _matches(rule: str, source: str) -> bool:
    if rule in _EVERYBODY or rule == source:
        return True
    try:
        address = ip_address(source.partition("%")[0])
    except ValueError:
        return False
    if address.version == 6 and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if _PATTERN.fullmatch(rule):
        octets = str(address).split(".")
        return len(octets) == 4 and all(map(_octet, rule.split("."), map(int, octets)))
    network = ip_network(rule, strict=False)
    return address.version == network.version and address in network


def _octet(rule: str, octet: int) -> bool:
    if rule == "*":
        return True
    if rule.startswith("{"):
        return octet in map(int, rule[1:-1].split(","))
    low, _, high = rule.partition("-")
    return int(low) <= octet <= int(high or low)
