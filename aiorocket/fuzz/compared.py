"""What two servers answered differently, as a run counts it, and the file from which another run goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiorocket.errors import ConfigError
from aiorocket.fuzz.coverage import Coverage
from aiorocket.fuzz.differences import Rule

__all__ = ("Compared",)

_SCHEMA = 2

#: Case and difference.
_Pair = tuple[str, str]


@dataclass
class Compared:
    """``differences``: (case, difference) -> how often. A case is code, form and the part that is odd or broken, as in
    "310 broken queueId"; "apart" behind it says that the two had been told different things of a name in it. Behind a
    difference is the code that both refused with, as in "-MSG_REGION of 16", or the exception that one of them had, as
    in "code 0/1 NullPointerException".
    ``examples``: what was asked, and both remarks, of the first of each. ``sessions``: so many have begun.
    ``drawn_from``: seed, role and codes, from which the sessions are drawn."""

    coverage: Coverage
    rules: Sequence[Rule] = ()
    requests: int = 0
    seconds: float = 0.0
    sessions: int = 0
    drawn_from: Mapping[str, Any] = field(default_factory=dict)
    differences: Counter[_Pair] = field(default_factory=Counter)
    examples: dict[_Pair, str] = field(default_factory=dict)
    _allowed: dict[_Pair, bool] = field(default_factory=dict)

    def allows(self, case: str, what: str) -> bool:
        """Is there a rule for it?"""
        pair = case, what
        if pair not in self._allowed:
            self._allowed[pair] = any(rule.allows(case, what) for rule in self.rules)
        return self._allowed[pair]

    def add(self, case: str, what: str, example: Callable[[], str]) -> None:
        pair = case, what
        self.differences[pair] += 1
        if pair not in self.examples:
            self.examples[pair] = example()

    @property
    def known(self) -> Counter[_Pair]:
        """Those that a rule foresees."""
        return Counter({pair: count for pair, count in self.differences.items() if self.allows(*pair)})

    @property
    def unknown(self) -> Counter[_Pair]:
        """All others."""
        return Counter({pair: count for pair, count in self.differences.items() if not self.allows(*pair)})

    def to_text(self) -> str:
        """As a file keeps it; rules are not in it."""
        plain = {
            "schema": _SCHEMA, **self.drawn_from,
            "requests": self.requests, "seconds": self.seconds, "sessions": self.sessions,
            "differences": [[*pair, count, self.examples.get(pair, "")] for pair, count in self.differences.items()],
            "sent": [[*key, count] for key, count in self.coverage.sent.items()],
        }  # fmt: skip
        return json.dumps(plain, ensure_ascii=False)

    def read(self, text: str) -> None:
        """Go on from what ``to_text`` gave. ConfigError for what is no such text, or of sessions that are drawn from
        something else."""
        try:
            plain: dict[str, Any] = json.loads(text)
            if plain["schema"] != _SCHEMA:
                raise ConfigError(f"differences of schema {plain['schema']!r}; this version reads {_SCHEMA}")
            kept = {name: plain[name] for name in self.drawn_from}
            if kept != self.drawn_from:
                told = (", ".join(f"{name} {each}" for name, each in of.items()) for of in (kept, self.drawn_from))
                raise ConfigError("it is of another comparison: {}; this one has {}".format(*told))
            self.requests, self.seconds = int(plain["requests"]), float(plain["seconds"])
            self.sessions = int(plain["sessions"])
            for case, what, count, example in plain["differences"]:
                self.differences[case, what] = count
                self.examples[case, what] = example
            for code, kind, form, part, count in plain["sent"]:
                self.coverage.sent[code, kind, form, part] = count
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"not what aiorocket fuzz --against keeps: {error!r}") from None
