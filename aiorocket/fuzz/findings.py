"""What a run has found, and the file that shows it again."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from aiorocket.errors import ConfigError
from aiorocket_protocol.fuzzing import Drawn

__all__ = ("LATE", "Finding", "Sample")

#: A kind of finding that a busy machine brings about, too: it is one when it is so again.
LATE = "late"

_SCHEMA = 1
_VARIES = re.compile(r"0x[0-9a-f]+|[0-9]+")


class Finding(NamedTuple):
    """``kind``: crash, hang, late, closed, answer, internal, neighbour, growth. ``code``, ``form`` and ``part`` are of
    the request that it hangs on, where it hangs on one."""

    kind: str
    detail: str
    code: int = 0
    form: str = ""
    part: str = ""

    @property
    def signature(self) -> tuple[str, int, str]:
        """Findings with one signature are one defect, most likely."""
        return self.kind, self.code, _VARIES.sub("#", self.detail)[:80]

    def __str__(self) -> str:
        about = f" (code {self.code}{', ' + self.form if self.form else ''}{' ' + self.part if self.part else ''})"
        return f"{self.kind}: {self.detail}{about if self.code else ''}"


class Sample(NamedTuple):
    """A finding, and the requests of one connection that bring it about."""

    server: str
    finding: Finding
    frames: Sequence[Drawn]
    seed: int = 0
    shrunk: bool = False

    def to_text(self) -> str:
        """As a file keeps it."""
        frames = [{**drawn._asdict(), "data": drawn.data.hex()} for drawn in self.frames]
        plain = {"schema": _SCHEMA, "server": self.server, "seed": self.seed, "shrunk": self.shrunk,
                 "finding": self.finding._asdict(), "frames": frames}  # fmt: skip
        return json.dumps(plain, indent=1, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> Sample:
        """ConfigError for what is no such file."""
        try:
            plain: dict[str, Any] = json.loads(text)
            if plain["schema"] != _SCHEMA:
                raise ConfigError(f"a finding of schema {plain['schema']!r}; this version reads {_SCHEMA}")
            frames = [Drawn(**{**each, "data": bytes.fromhex(each["data"])}) for each in plain["frames"]]
            return cls(plain["server"], Finding(**plain["finding"]), frames, plain["seed"], plain["shrunk"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"not a finding of aiorocket fuzz: {error!r}") from None
