"""What load is wanted, as options or as a TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, fields
from math import inf
from typing import Any, Self

from aiorocket.errors import ConfigError

__all__ = ("Scenario",)

#: Bytes of a body that the measurement needs for itself: who sent it, its number, when it was due.
HEAD = 24
_AT_LEAST: dict[str, float] = {
    "topics": 1, "queues": 1, "producers": 0, "consumers": 0, "groups": 1, "idle": 0, "size": HEAD, "batch": 1,
    "keys": 0, "tags": 0, "rate": 0, "in_flight": 1, "seconds": 0.1, "warmup": 0, "processes": 1, "drain": 0,
}  # fmt: skip
FLUSH = ("", "sync", "async")


@dataclass(frozen=True, slots=True)
class Scenario:
    """``rate``: messages a second of all producers together, sent when they are due whether or not answers come (open
    loop); 0: each producer keeps ``in_flight`` sends on their way (closed loop). ``keys``, ``tags``: how many
    different ones; ``idle``: connections that do nothing; ``consumers``: members of each group, over all processes;
    ``size``: bytes of a body; seconds of warm-up come before ``seconds`` and are in no figure; ``drain``: seconds that
    consumers get after the last send; ``flush``: "sync" or "async" when the figures are to be of brokers that flush so,
    which a broker decides when it starts. ConfigError for what cannot be."""

    topic: str = "bench"
    topics: int = 1
    queues: int = 8
    producers: int = 1
    consumers: int = 1
    groups: int = 1
    orderly: bool = False
    idle: int = 0
    size: int = 256
    batch: int = 1
    keys: int = 0
    tags: int = 0
    rate: float = 0.0
    in_flight: int = 64
    seconds: float = 10.0
    warmup: float = 2.0
    processes: int = 1
    drain: float = 30.0
    flush: str = ""

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if not least <= value < inf:
                raise ConfigError(f"{name}={value}: at least {least:g} is needed, and a finite number")
        if self.flush not in FLUSH:
            raise ConfigError(f"flush={self.flush!r}: sync or async is needed, or nothing for either")
        if self.producers + self.consumers + self.idle == 0:
            raise ConfigError("nothing to do: producers, consumers and idle are all 0")
        if self.size * self.batch > 4 << 20:
            raise ConfigError(f"size={self.size} times batch={self.batch} is more than a broker takes (4 MiB)")

    @classmethod
    def from_toml(cls, text: str, **changes: Any) -> Self:
        """Keys are the fields; ``changes`` win. ConfigError."""
        try:
            given: dict[str, Any] = {**tomllib.loads(text), **changes}
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"not TOML: {error}") from None
        kinds = {field.name: field.type for field in fields(cls)}
        for name, value in given.items():
            if name not in kinds:
                raise ConfigError(f"{name} is no setting of a scenario; there are {', '.join(kinds)}")
            wanted: Any = {"str": str, "int": int, "bool": bool, "float": (int, float)}[str(kinds[name])]
            if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
                raise ConfigError(f"{name}={value!r}: {kinds[name]} is needed")
        return cls(**given)

    def topic_names(self) -> list[str]:
        return [f"{self.topic}-{number}" for number in range(self.topics)]

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)
