"""How much of the protocol a run has said: code, serialize type, field, and whether it was legal, odd or broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from aiorocket_protocol.fuzzing import BROKEN, LEGAL, ODD, Drawn, fields_of

__all__ = ("Coverage",)

_KIND_NAMES = {0: "json", 1: "rocketmq", 0x4D: "msgpack"}


class Coverage:
    """``add`` what was sent; ``summary`` says how much of all that there is."""

    def __init__(self, codes: Sequence[int], kinds: Sequence[int]) -> None:
        self._pairs = {(code, kind) for code in codes for kind in kinds if not (kind == 1 and code >= 1 << 15)}
        self._fields = {
            (code, kind, field, form)
            for code, kind in self._pairs
            for field in fields_of(code)
            for form in (ODD, BROKEN)
        }
        #: Requests by code, serialize type, form, and what of them was odd or broken.
        self.sent: Counter[tuple[int, int, str, str]] = Counter()
        #: Answers by code of the request and of the answer.
        self.answers: Counter[tuple[int, int]] = Counter()

    def add(self, frames: Iterable[Drawn]) -> None:
        self.sent.update([(drawn.code, drawn.kind, drawn.form, drawn.part) for drawn in frames])

    def summary(self) -> dict[str, Any]:
        """What a report has of it: counts, and what was never sent."""
        legal = {(code, kind) for code, kind, form, _ in self.sent if form == LEGAL}
        fields = {(code, kind, part, form) for code, kind, form, part in self.sent}
        missing = sorted(self._fields - fields)
        forms: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        for (_, kind, form, _), count in self.sent.items():
            forms[form] += count
            kinds[_KIND_NAMES[kind]] += count
        return {
            "code_and_codec": [len(legal & self._pairs), len(self._pairs)],
            "code_codec_and_field": [len(self._fields) - len(missing), len(self._fields)],
            "forms": dict(forms),
            "codecs": dict(kinds),
            "answers": {str(code): count for code, count in sorted(self._by_answer().items())},
            "never": [f"{code} {_KIND_NAMES[kind]} {field} {form}" for code, kind, field, form in missing[:20]],
        }

    def _by_answer(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for (_, answer), count in self.answers.items():
            found[answer] += count
        return found
