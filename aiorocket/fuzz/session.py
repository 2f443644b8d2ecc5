"""What one connection says: requests of every kind in windows, and in between the story of a client that registers,
sends, pulls, acknowledges, with what the server told it before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aiorocket_protocol import JSON, MSGPACK, RESPONSE_HEADERS, ROCKETMQ, ProtocolError, RemotingCommand
from aiorocket_protocol.fuzzing import BROKEN, CODES, LEGAL, ODD, Draw, Drawn, Words, legal_words, pick, request

__all__ = ("BROKER", "CHANGES_SETTINGS", "ENDING", "NAMESERVER", "Session")

BROKER, NAMESERVER = "broker", "nameserver"

#: Requests that change how the server runs: only where they are asked for by name.
CHANGES_SETTINGS = frozenset((25, 318))

#: Parts that are broken so that nobody can say what a server reads.
ENDING = ("header", "frame")

_STORIES: dict[str, tuple[tuple[int, ...], ...]] = {
    BROKER: (
        (17, 200, 34, 310, 310, 320, 30, 11, 14, 15, 14, 36, 11, 12, 33, 35),  # sends, pulls, commits, sends back
        (17, 34, 38, 41, 11, 15, 41, 42, 203, 35),  # an orderly member
        (17, 34, 310, 200050, 200053, 200051, 200050, 200151, 200055, 35),  # pops
        (17, 310, 37, 323, 310, 370, 30, 29, 32),  # transactions, recalls
        (34, 34, 34, 208, 300, 307, 309, 345, 35, 35),  # who is there
    ),
    NAMESERVER: (
        (103, 105, 106, 901, 205, 105, 327, 105, 904, 104, 105),
        (100, 101, 219, 102, 101),
        (103, 206, 224, 304, 216, 206, 104),
    ),
}
#: Values of one meaning that a session remembers.
_MOST = 12
_KINDS = (JSON, ROCKETMQ, MSGPACK)


class Session:
    """``kinds``: serialize types that the server reads. ``now`` is the wall clock in milliseconds."""

    def __init__(
        self, draw: Draw, role: str, now: int, *, codes: Sequence[int] = (), kinds: Sequence[int] = _KINDS
    ) -> None:
        self._draw = draw
        self.codes = codes or [code for code in CODES if code not in CHANGES_SETTINGS]
        told = (tuple(code for code in story if code in self.codes) for story in _STORIES[role])
        self._stories = [story for story in told if story]
        self._kinds = kinds
        self._opaque = 0
        self.words: Words = legal_words()
        self.words["bornTime"] = [now]
        self.words["bornTimestamp"] = [now]

    def window(self, count: int, *, last: bool = False) -> list[Drawn]:
        """So many requests, independent of one another. Frames whose header or length is broken end a connection, so
        they come in the last one only."""
        draw = self._draw
        found: list[Drawn] = []
        while len(found) < count:
            drawn = self._draw_one(pick(draw, self.codes), pick(draw, (LEGAL, ODD, BROKEN, BROKEN)))
            if last or not (drawn.form == BROKEN and drawn.part in ENDING):
                found.append(drawn)
        return found

    def steps(self, count: int) -> Iterator[Drawn]:
        """A story, or a window of so many."""
        return self.story() if self._draw.random() < 0.3 else iter(self.window(count))

    def story(self) -> Iterator[Drawn]:
        """Requests to be sent one after the other, each after ``learn`` of the answer before; one in eight is odd or
        broken, left out or sent twice."""
        if not self._stories:
            return
        kind = pick(self._draw, self._kinds)
        for code in pick(self._draw, self._stories):
            turn = self._draw.random()
            form = ODD if turn < 0.03 else BROKEN if turn < 0.06 else LEGAL
            if turn > 0.97:
                continue
            drawn = self._draw_one(code, form, kind)
            while drawn.form == BROKEN and drawn.part in ENDING:
                drawn = self._draw_one(code, form, kind)
            yield drawn
            if turn > 0.94:
                yield self._draw_one(code, form, kind)

    def _draw_one(self, code: int, form: str, kind: int | None = None) -> Drawn:
        self._opaque += 1
        oneway = form == LEGAL and self._draw.random() < 0.02
        of = pick(self._draw, self._kinds) if kind is None else kind
        return request(self._draw, code, self.words, kind=of, form=form, opaque=self._opaque, oneway=oneway)

    def learn(self, drawn: Drawn, answer: RemotingCommand) -> None:
        """Offsets, ids and handles of the answer are values for requests to come."""
        try:
            fields = answer.ext_fields(RESPONSE_HEADERS.get(drawn.code))
        except ProtocolError:
            return
        for wire in ("queueOffset", "nextBeginOffset", "offset"):
            self._remember("offset", _number(fields.get(wire)))
        self._remember("msgId", fields.get("msgId"))
        self._remember("recallHandle", fields.get("recallHandle"))
        if place := (fields.get("msgId") or "")[-16:]:
            self._remember("logOffset", _number(place, 16))
        if popped := fields.get("popTime"):
            words = 0, popped, fields.get("invisibleTime"), fields.get("reviveQid"), 0, "fuzz-broker", 0, 0
            self._remember("extraInfo", " ".join(map(str, words)))

    def _remember(self, meaning: str, value: Any) -> None:
        if value is not None:
            values = self.words.setdefault(meaning, [])
            values.append(value)
            del values[:-_MOST]


def _number(text: str | None, base: int = 10) -> int | None:
    try:
        found = int(text or "", base)
    except ValueError:
        return None
    return found if 0 <= found < 1 << 62 else None
