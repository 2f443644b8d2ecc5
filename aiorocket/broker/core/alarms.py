"""What an operator should be told of without asking: one table of alarms, when each is raised, what to say of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ("ALARMS", "Alarm", "AlarmBoard", "Growing", "Rising")

#: Share of the disk that is free below which it is low. Retention takes old messages from 75 % used on.
LOW_DISK = 0.15
#: Seconds after which a flush that has not ended is slow.
SLOW_FLUSH = 1.0
#: Messages that a group's lag has to have grown by, without once falling, in so many looks of a minute.
GROWTH, GROWING_LOOKS = 1000, 15
#: Seconds for which what happened once stays an alarm.
RECENT = 900.0
#: Seconds between two lines of log about one thing that goes on, or comes again.
SAID_EVERY = 3600.0
#: Things one alarm is raised about; more of them are counted and not named.
MOST_NAMED = 100
#: Of these so many are in one text.
_SHOWN = 5


class Alarm(NamedTuple):
    """``when`` it is raised, and what to do then."""

    when: str
    advice: str


#: By name, as metrics, ``/readyz``, the log and ``aiorocket doctor`` say it; docs/operating.md has the same table.
ALARMS: dict[str, Alarm] = {
    "disk_low": Alarm(
        f"less than {LOW_DISK:.0%} of the disk are free",
        "make room, or keep less: `aiorocket cluster clean messages`, a lower fileReservedTime or max_log_bytes",
    ),
    "flush_slow": Alarm(
        f"a flush takes longer than {SLOW_FLUSH:g} s, now or in the last minute",
        "look for what else writes to the disk (iostat -x 1), give the store a disk of its own or a faster one",
    ),
    "write_dead": Alarm(
        "the store takes no messages",
        "see the reason: make room, or mend the disk, stop the broker and run `aiorocket store verify DIR`",
    ),
    "lag_growing": Alarm(
        f"a group has fallen behind for {GROWING_LOOKS} minutes, by {GROWTH:,} messages or more",
        "`aiorocket group lag GROUP` says in which queues, `group info GROUP CLIENT --stacks` what its members hang on",
    ),
    "dead_letters": Alarm(
        f"a group gave up messages in the last {RECENT / 60:g} minutes",
        "`aiorocket dlq list GROUP` says which and why, `dlq replay GROUP` sends them again when that is mended",
    ),
    "lock_conflicts": Alarm(
        f"commits for a queue that another member has locked were refused in the last {RECENT / 60:g} minutes",
        "members of the group stall for longer than a lock lives: look at their event loops, clocks and pauses",
    ),
    "subscriptions_differ": Alarm(
        "members of a group subscribe to different topics or tags",
        "give every member the same: messages that a queue's owner does not want are lost to the group",
    ),
}


class Growing:
    """Which of many numbers have grown for a while without falling."""

    def __init__(self, looks: int = GROWING_LOOKS, growth: int = GROWTH) -> None:
        self._looks, self._growth = looks, growth
        #: Name -> where it began to grow, how many looks ago, and where it is.
        self._seen: dict[str, tuple[int, int, int]] = {}

    def look(self, now: Mapping[str, int]) -> dict[str, int]:
        """Those that grow, and by how much, of the numbers as they are ``now``; others are forgotten."""
        seen, found = {}, {}
        for name, value in now.items():
            first, looks, last = self._seen.get(name, (value, 0, value))
            seen[name] = (first, looks + 1, value) if value >= last else (value, 1, value)
            first, looks, _ = seen[name]
            if looks > self._looks and value - first >= self._growth:
                found[name] = value - first
        self._seen = seen
        return found


class Rising:
    """Which of many counters have risen lately."""

    def __init__(self, recent: float = RECENT) -> None:
        self._recent = recent
        #: Name -> its count, by how much it rose of late, and when it last did.
        self._seen: dict[str, tuple[int, int, float]] = {}

    def look(self, now: float, counts: Mapping[str, int]) -> dict[str, int]:
        """Those that rose, and by how much since they began to. A count that is new rose from 0."""
        found = {}
        for name, count in counts.items():
            before, by, at = self._seen.get(name, (0, 0, now))
            if now - at > self._recent:
                by = 0
            if count > before:
                by, at = by + count - before, now
            self._seen[name] = count, by, at
            if by:
                found[name] = by
        for name in self._seen.keys() - counts.keys():
            del self._seen[name]
        return found


class AlarmBoard:
    """What is raised now: name of the alarm -> what it is about ("" for the broker) -> why, in words."""

    def __init__(self) -> None:
        self.raised: dict[str, dict[str, str]] = {name: {} for name in ALARMS}
        #: When a line was last written, by alarm and what it is about.
        self._said: dict[tuple[str, str], float] = {}

    def look(self, now: float, found: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Take what was ``found`` for these alarms, others staying as they were; the lines to log, one for what is
        new and one each hour for what goes on."""
        lines = []
        for name, things in found.items():
            named = dict(list(things.items())[:MOST_NAMED])
            if (more := len(things) - len(named)) > 0:
                named["..."] = f"{more} more"
            self.raised[name] = named
            for about in named:
                if now >= self._said.get((name, about), now):
                    self._said[name, about] = now + SAID_EVERY
                    lines.append(f"alarm {self.text(name, about)}; what to do: {ALARMS[name].advice}")
        for key in [key for key, until in self._said.items() if now >= until and key[1] not in self.raised[key[0]]]:
            del self._said[key]
        return lines

    def text(self, name: str, about: str) -> str:
        """One line about one thing."""
        return f"{name}{f' {about}' if about else ''}: {self.raised[name][about]}"

    def texts(self) -> list[str]:
        """A line for each thing there is an alarm about."""
        return [self.text(name, about) for name, things in self.raised.items() for about in things]

    def report(self) -> dict[str, str]:
        """For GET_BROKER_RUNTIME_INFO: ``alarm_NAME``, what it is about, and after `` -> `` what to do."""
        table = {}
        for name, things in self.raised.items():
            if things:
                shown = [f"{about}: {why}" if about else why for about, why in things.items()][:_SHOWN]
                more = f" and {len(things) - _SHOWN} more" if len(things) > _SHOWN else ""
                table[f"alarm_{name}"] = f"{'; '.join(shown)}{more} -> {ALARMS[name].advice}"
        return table
