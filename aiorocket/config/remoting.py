"""Settings of connections, both ends, and what all settings share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal

from aiorocket.errors import ConfigError

__all__ = ("MIB", "RemotingConfig", "Serializer", "check_numbers", "check_positive")

Serializer = Literal["auto", "json", "rocketmq", "msgpack"]

MIB = 1 << 20


def check_positive(owner: object, *names: str) -> None:
    """ConfigError for the first of ``names`` whose value is not above 0."""
    for name in names:
        if not getattr(owner, name) > 0:
            raise ConfigError(f"{type(owner).__name__}.{name}={getattr(owner, name)!r}: must be above 0")


def check_numbers(owner: Any) -> None:
    """ConfigError for the first field of the dataclass ``owner`` that is to be a number and is none: most often a text
    that comes straight from the environment."""
    config: Any = type(owner)
    for name, kind in _numbers_of(config):
        value = getattr(owner, name)
        if type(value) is int:  # as most are: to ask an abstract class takes twenty times as long
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            what = "a whole number" if kind is Integral else "a number"
            raise ConfigError(f"{config.__name__}.{name}={value!r}: must be {what}")


_NUMBERS: dict[str, Any] = {"int": Integral, "float": Real, "float | None": Real | None}


@cache
def _numbers_of(config: Any) -> list[tuple[str, Any]]:
    """The fields of a dataclass that are to be numbers, and of what kind."""
    return [(each.name, _NUMBERS[str(each.type)]) for each in fields(config) if str(each.type) in _NUMBERS]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotingConfig:
    """Connections, both ends. ``serializer="auto"`` negotiates msgpack and stays JSON with Apache's peers."""

    serializer: Serializer = "auto"
    connect_timeout: float = 3.0
    #: A server with TLS: how long a new connection may take to say something, and then for its handshake.
    handshake_timeout: float = 10.0
    request_timeout: float = 3.0
    #: A connection with no traffic either way for this long is closed (RocketMQ: 120 s).
    idle_timeout: float = 120.0
    #: A frame that has begun must be complete within this time, else the peer is stuck or hostile.
    partial_frame_timeout: float = 30.0
    #: Requests one connection may have unanswered at a server; reading pauses above it.
    max_in_flight: int = 8192
    #: Bytes of requests that a server keeps while their handlers wait for somebody, a quarter of it of one connection.
    #: Above it the answer is SYSTEM_BUSY.
    max_in_flight_bytes: int = 256 * MIB
    #: Bytes waiting to be written before senders wait / before a peer that never reads is cut off.
    write_high_water: int = 4 * MIB
    write_limit: int = 64 * MIB
    max_connections: int = 20_000
    #: Connections from one host.
    max_per_host: int = 16_000
    #: Bytes that all connections of a server may hold of half frames and of answers that wait to be read. The one that
    #: passes it is closed.
    max_held: int = 1024 * MIB
    backoff_initial: float = 0.1
    backoff_max: float = 5.0

    def __post_init__(self) -> None:
        check_numbers(self)
        check_positive(
            self, "connect_timeout", "handshake_timeout", "request_timeout", "idle_timeout", "partial_frame_timeout",
            "max_in_flight", "max_in_flight_bytes", "write_high_water", "write_limit", "max_connections",
            "max_per_host", "max_held", "backoff_initial", "backoff_max",
        )  # fmt: skip
        if self.write_limit < self.write_high_water:
            raise ConfigError(f"write_limit={self.write_limit} is below write_high_water={self.write_high_water}")
        if self.backoff_max < self.backoff_initial:
            raise ConfigError(f"backoff_max={self.backoff_max} is below backoff_initial={self.backoff_initial}")
