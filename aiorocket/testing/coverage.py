"""How much of what can happen did happen in many runs: a checker that never saw a state has proved nothing about it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from itertools import combinations

from aiorocket.testing.history import Event, History

__all__ = ("Coverage",)


class Coverage:
    """``add`` each run; ``text`` says what they came by, and which faults never met."""

    def __init__(self, faults: Collection[str]) -> None:
        self._faults = sorted(faults)
        self.runs = 0
        #: In how many runs each kind of event was seen.
        self.seen: Counter[str] = Counter()
        #: What happened to a message, from its send to its end, and to how many.
        self.lives: Counter[tuple[str, ...]] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()

    def add(self, history: History, struck: Iterable[str]) -> None:
        """A run in which these faults struck."""
        self.runs += 1
        kinds = set()
        lives: defaultdict[str, list[str]] = defaultdict(list)
        for event in history:
            kind = _kind(event)
            kinds.add(kind)
            if event.what in ("sent", "acknowledged", "rejected", "unknown", "delivered", "finished", "dead"):
                lives[event.key].append(kind)
        self.seen.update(kinds)
        self.lives.update(map(tuple, lives.values()))
        self.pairs.update(combinations(sorted(set(struck)), 2))

    def text(self) -> str:
        """A few lines."""
        pairs = list(combinations(self._faults, 2))
        never = [" and ".join(pair) for pair in pairs if not self.pairs[pair]]
        lines = [
            f"states: {len(self.lives)} different lives of {sum(self.lives.values())} messages in {self.runs} runs",
            "seen in runs: " + ", ".join(f"{kind} {count}" for kind, count in sorted(self.seen.items())),
            f"faults that met: {len(pairs) - len(never)} of {len(pairs)} pairs",
        ]
        if never:
            lines.append("never met: " + ", ".join(never[:10]) + (" ..." if len(never) > 10 else ""))
        return "\n".join(lines)


def _kind(event: Event) -> str:
    if event.what == "finished":
        return f"finished {event.outcome}"
    if event.what == "delivered" and event.attempt > 1:
        return f"delivered, attempt {event.attempt}"
    return event.what
