"""One session, said to two servers at once: where their answers differ."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from aiorocket.fuzz.coverage import Coverage
from aiorocket.fuzz.differences import Rule, differences, said
from aiorocket.fuzz.session import Session
from aiorocket.fuzz.wire import Wire, connect
from aiorocket_protocol import JSON, ROCKETMQ, ProtocolError, RemotingCommand
from aiorocket_protocol.fuzzing import LEGAL, Drawn

__all__ = ("Compared", "compare")

#: What both read.
KINDS = (JSON, ROCKETMQ)
#: Windows of one connection.
_WINDOWS = 40


class Compared(NamedTuple):
    """``known`` and ``unknown``: (case, difference) -> how often. A case is code, form and the part that is odd or
    broken, as in "310 broken queueId"."""

    requests: int
    seconds: float
    known: Counter[tuple[str, str]]
    unknown: Counter[tuple[str, str]]
    coverage: Coverage


class _Answer(NamedTuple):
    code: int
    fields: dict[str, str]
    body: bytes


async def compare(
    servers: tuple[str, str],
    role: str,
    *,
    now: int,
    seed: int = 0,
    requests: int = 10_000,
    seconds: float = float("inf"),
    codes: Sequence[int] = (),
    rules: Sequence[Rule] = (),
    patience: float = 10.0,
    loop_time: Callable[[], float],
    progress: Callable[[int], None] = lambda _: None,
) -> Compared:
    """Each request goes to both at once, and is answered by both before the next is sent; what may hang a connection up
    is left out. OSError when a server cannot be reached."""
    began, count, number = loop_time(), 0, 0
    known: Counter[tuple[str, str]] = Counter()
    unknown: Counter[tuple[str, str]] = Counter()
    coverage: Coverage | None = None
    while count < requests and loop_time() - began < seconds:
        session = Session(Random(f"{seed}/{number}"), role, now, codes=codes, kinds=KINDS)
        coverage = coverage or Coverage(session.codes, KINDS)
        number += 1
        pair = [await connect(server, patience) for server in servers]
        try:
            for _ in range(_WINDOWS):
                asked: list[Drawn] = []
                for drawn in session.steps(20):
                    if not drawn.answered:
                        continue
                    asked.append(drawn)
                    found = await asyncio.gather(*(_answer(wire, drawn, patience) for wire in pair))
                    case = f"{drawn.code} {drawn.form} {drawn.part}".strip()
                    for what in differences(said(_plain(drawn, found[0])), said(_plain(drawn, found[1]))):
                        tally = known if any(rule.allows(case, what) for rule in rules) else unknown
                        tally[case, what] += 1
                    if found[0] is not None and drawn.form == LEGAL:
                        session.learn(drawn, found[0])
                    for at, wire in enumerate(pair):
                        if wire.lost:
                            pair[at] = await connect(servers[at], patience)
                coverage.add(asked)
                count += len(asked)
                progress(count)
                if count >= requests or loop_time() - began > seconds:
                    break
        finally:
            for wire in pair:
                wire.close()
    assert coverage is not None
    return Compared(count, loop_time() - began, known, unknown, coverage)


async def _answer(wire: Wire, drawn: Drawn, patience: float) -> RemotingCommand | None:
    await wire.exchange([drawn], patience)
    return wire.answered.get(drawn.opaque)


def _plain(drawn: Drawn, answer: RemotingCommand | None) -> _Answer | None:
    if answer is None:
        return None
    try:
        fields = answer.ext_fields()
    except ProtocolError:
        fields = {}
    return _Answer(answer.code, {name: value or "" for name, value in fields.items()}, answer.body)
