"""One session, said to two servers at once: where their answers differ."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.resources import files
from random import Random
from typing import NamedTuple

from aiorocket.fuzz.coverage import Coverage
from aiorocket.fuzz.differences import Rule, differences, said
from aiorocket.fuzz.session import BROKER, Session
from aiorocket.fuzz.wire import Wire, connect
from aiorocket_protocol import JSON, LANGUAGE_JAVA, LANGUAGE_PYTHON, ROCKETMQ, ProtocolError, RemotingCommand, encode
from aiorocket_protocol.fuzzing import LEGAL, Drawn

__all__ = ("Compared", "apaches_rules", "compare")

#: What both read.
KINDS = (JSON, ROCKETMQ)
#: Windows of one connection.
_WINDOWS = 40
#: Seconds for a code that one of the two has left unanswered before.
_SILENT = 0.2
#: What a session makes is deleted at its end: topics, groups.
_DELETES = (("topic", 215, "topic"), ("group", 207, "groupName"))


class Compared(NamedTuple):
    """``known`` and ``unknown``: (case, difference) -> how often. A case is code, form and the part that is odd or
    broken, as in "310 broken queueId". ``examples``: what was asked, and both remarks, of the first of each unknown."""

    requests: int
    seconds: float
    known: Counter[tuple[str, str]]
    unknown: Counter[tuple[str, str]]
    coverage: Coverage
    examples: dict[tuple[str, str], str]


class _Answer(NamedTuple):
    code: int
    fields: dict[str, str]
    body: bytes


def apaches_rules() -> list[Rule]:
    """Where our servers differ from Apache's 5.5.0 on purpose: ``apache.toml``."""
    return Rule.read(files(__package__).joinpath("apache.toml").read_text(encoding="utf-8"))


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
    is left out. Each session has names of its own, so that what one server took and the other refused differs no longer
    than it lasts. When the first server is ours and the second one of Apache's, ``apaches_rules`` hold too. OSError
    when a server cannot be reached."""
    began, count, number = loop_time(), 0, 0
    known: Counter[tuple[str, str]] = Counter()
    unknown: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    coverage: Coverage | None = None
    if await _are_ours_and_apaches(servers, patience):
        rules = (*rules, *apaches_rules())
    allowed: dict[tuple[str, str], bool] = {}
    silent: set[int] = set()
    while count < requests and loop_time() - began < seconds:
        session = Session(Random(f"{seed}/{number}"), role, now, codes=codes, kinds=KINDS)
        for meaning in ("topic", "group"):
            session.words[meaning] = [each.replace("fuzz", f"fuzz-{seed}-{number}") for each in session.words[meaning]]
        coverage = coverage or Coverage(session.codes, KINDS)
        number += 1
        pair = [await connect(server, patience) for server in servers]
        try:
            for _ in range(_WINDOWS):
                asked: list[Drawn] = []
                session.words["bornTime"] = [now + round((loop_time() - began) * 1000)]  # old pops are not served
                for drawn in session.steps(20):
                    if not drawn.answered:
                        continue
                    asked.append(drawn)
                    wait = min(patience, _SILENT) if drawn.code in silent else patience
                    found = await asyncio.gather(*(wire.ask(drawn, wait) for wire in pair))
                    if None in found:
                        silent.add(drawn.code)
                    case = f"{drawn.code} {drawn.form} {drawn.part}".strip()
                    for what in differences(said(_plain(drawn, found[0])), said(_plain(drawn, found[1]))):
                        pair_of = case, what
                        if pair_of not in allowed:
                            allowed[pair_of] = any(rule.allows(case, what) for rule in rules)
                        (known if allowed[pair_of] else unknown)[pair_of] += 1
                        if not allowed[pair_of] and pair_of not in examples:
                            examples[pair_of] = _example(drawn, found)
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
            if role == BROKER:
                await _forget(session, pair, patience)
        finally:
            for wire in pair:
                wire.close()
    assert coverage is not None
    return Compared(count, loop_time() - began, known, unknown, coverage, examples)


async def _are_ours_and_apaches(servers: tuple[str, str], patience: float) -> bool:
    """As their answers say."""
    languages = []
    for server in servers:
        wire = await connect(server, patience)
        try:
            answer = await wire.ask(_request(106, {}), patience)
        finally:
            wire.close()
        languages.append(None if answer is None else answer.language)
    return languages == [LANGUAGE_PYTHON, LANGUAGE_JAVA]


async def _forget(session: Session, pair: Sequence[Wire], patience: float) -> None:
    for meaning, code, field in _DELETES:
        for name in session.words[meaning]:
            if "fuzz" in name:
                asked = _request(code, {field: name, "cleanOffset": "true"})
                await asyncio.gather(*(wire.ask(asked, patience) for wire in pair))


def _request(code: int, fields: dict[str, str | None]) -> Drawn:
    return Drawn(code, JSON, LEGAL, "", 0, True, encode(RemotingCommand(code, 0, ext=fields), JSON))


def _plain(drawn: Drawn, answer: RemotingCommand | None) -> _Answer | None:
    if answer is None:
        return None
    try:
        fields = answer.ext_fields()
    except ProtocolError:
        fields = {}
    return _Answer(answer.code, {name: value or "" for name, value in fields.items()}, answer.body)


def _example(drawn: Drawn, found: Sequence[RemotingCommand | None]) -> str:
    """The first of the request's bytes that can be read, and what both said of it."""
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in drawn.data[8:500])
    told = ("no answer" if answer is None else f"{answer.code} {(answer.remark or '')[:160]!r}" for answer in found)
    return f"{text} -> {' | '.join(told)}"
