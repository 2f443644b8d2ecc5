"""One session, said to two servers at once: where their answers differ."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from importlib.resources import files
from random import Random
from typing import NamedTuple

from aiorocket.fuzz.compared import Compared
from aiorocket.fuzz.coverage import Coverage
from aiorocket.fuzz.differences import Rule, differences, said
from aiorocket.fuzz.session import BROKER, Session
from aiorocket.fuzz.wire import Wire, connect
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    JSON,
    LANGUAGE_JAVA,
    LANGUAGE_PYTHON,
    PROPERTY_TRAN_MSG,
    ROCKETMQ,
    SYS_FLAG_TRANSACTION_PREPARED,
    FrameSplitter,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode,
    encode,
)
from aiorocket_protocol.fuzzing import BROKEN, LEGAL, Drawn

__all__ = ("apaches_rules", "compare")

#: What both read.
KINDS = (JSON, ROCKETMQ)
#: Windows of one session, and requests of one window.
_WINDOWS, _WINDOW = 10, 20
#: Seconds for a code that a server has left unanswered before, on purpose.
_SILENT = 0.2
#: Requests that store messages. Apache's broker shows them some time after their receipt: seconds in which it should,
#: seconds until it is looked at again, and where it says how much it does not show yet (28). For that it walks over
#: 1.2 million places for timers (0.3 s of CPU), so that of what a queue's end shows, that is asked.
_STORES = frozenset((10, 36, 37, 310, 320, 324, 325))
_SHOWN, _LOOK = 2.0, 0.005
_BEHIND = re.compile(rb'"dispatchBehindBytes":"[1-9]')
#: Properties and system flag of a send, in its long and its short header; properties for which a message comes later.
_FIELDS = (("properties", "i"), ("sysFlag", "f"))
_SENDS = frozenset((10, 310, 320))
_LATER = re.compile("TIMER_D|DELAY\x01")
#: Seconds until a server that was busy is asked again.
_BUSY = 0.2
#: What a session makes is deleted at its end: topics, groups.
_DELETES = (("topic", 215, "topic"), ("group", 207, "groupName"))
#: Requests that change what is known of the topics, groups, brokers and clients in them. A send that only one of the
#: two takes makes queues of another length.
_CHANGES = frozenset((
    10, 310, 320, 324, 325, 36, 37, 17, 18, 215, 353, 34, 35, 46, 200, 225, 207, 15, 222, 314, 41, 42, 401, 370, 11,
    361, 200050, 200051, 200053, 200151, 100, 102, 103, 104, 205, 216, 217, 327, 904,
))  # fmt: skip
#: Never two of these at a time, of whatever sessions: Apache's broker dies when it cleans a queue (306) while a
#: topic is deleted.
_ALONE = frozenset((215, 306, 316, 329))
#: Names of a session, and of a topic that all sessions change.
_NAME = re.compile(rb"fuzz-\d+-\d+(?:[@-]\w+)?")
_SHARED = AUTO_CREATE_TOPIC.encode()
_OF_SHARED = re.compile(rb"(?:topic|\bb)\W{3,5}(%b)" % _SHARED)
_EXCEPTION = re.compile(r"\b\w+(?:Exception|Error)\b")


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
    connections: int = 1,
    before: str | None = None,
    loop_time: Callable[[], float],
    progress: Callable[[Compared], None] = lambda _: None,
) -> Compared:
    """Each request goes to both at once, and is answered by both before the next of its session is sent; what may hang
    a connection up is left out. ``connections`` sessions are side by side, each with names of its own, so that what one
    server took and the other refused differs no longer than it lasts. When the first server is ours and the second one
    of Apache's, ``apaches_rules`` hold too.

    ``before`` is what an earlier run of the same seed, role and codes kept (``Compared.to_text``): this one goes on
    behind its sessions, and ``requests`` counts both. After ``seconds`` nothing more is asked, and what sessions made
    is deleted for as long as ``patience``. ``progress`` is called after each session. OSError when a server cannot be
    reached; ConfigError when ``before`` is no such text."""
    if await _are_ours_and_apaches(servers, patience):
        rules = (*rules, *apaches_rules())
    known_codes = Session(Random(0), role, now, codes=codes).codes
    drawn_from = {"seed": seed, "role": role, "codes": list(codes)}
    compared = Compared(Coverage(known_codes, KINDS), rules, drawn_from=drawn_from)
    run = _Run(servers, role, now, seed, codes, patience, loop_time, compared)
    if before is not None:
        run.compared.read(before)
    end = loop_time() + seconds
    try:
        async with asyncio.TaskGroup() as side_by_side:
            for _ in range(connections):
                side_by_side.create_task(run.sessions(requests, end, progress))
    except ExceptionGroup as errors:  # not except*, where Python 3.11.2 puts the one into a group again
        raise errors.exceptions[0] from None
    return run.compared


class _Run:
    def __init__(
        self,
        servers: tuple[str, str],
        role: str,
        now: int,
        seed: int,
        codes: Sequence[int],
        patience: float,
        loop_time: Callable[[], float],
        compared: Compared,
    ) -> None:
        self._servers = servers
        self._role = role
        self._now = now
        self._seed = seed
        self._codes = codes
        self._patience = patience
        self._loop_time = loop_time
        self._began = loop_time()
        #: Which of the two has left which code unanswered before, on purpose.
        self._silent: set[tuple[int, int]] = set()
        self._alone = asyncio.Lock()
        self.compared = compared

    async def sessions(self, requests: int, end: float, progress: Callable[[Compared], None]) -> None:
        compared = self.compared
        earlier = compared.seconds
        while compared.requests < requests and self._loop_time() < end:
            number = compared.sessions
            compared.sessions += 1
            await self._one(number, requests, end)
            compared.seconds = earlier + self._loop_time() - self._began
            progress(compared)

    async def _one(self, number: int, requests: int, end: float) -> None:
        compared = self.compared
        session = Session(Random(f"{self._seed}/{number}"), self._role, self._now, codes=self._codes, kinds=KINDS)
        for meaning, values in session.words.items():
            session.words[meaning] = [
                each.replace("fuzz", f"fuzz-{self._seed}-{number}") if isinstance(each, str) else each
                for each in values
            ]
        pair = [await connect(server, self._patience) for server in self._servers]
        apart = {_SHARED}
        try:
            for _ in range(_WINDOWS):
                passed = round((self._loop_time() - self._began) * 1000)
                session.words["bornTime"] = [self._now + passed]  # old pops are not served
                asked: list[Drawn] = []
                for drawn in session.steps(_WINDOW):
                    if drawn.answered:
                        if self._loop_time() > end:
                            break
                        asked.append(drawn)
                        await self._ask(drawn, session, pair, apart)
                compared.coverage.add(asked)
                compared.requests += len(asked)
                if compared.requests >= requests or self._loop_time() > end:
                    break
            if self._role == BROKER:
                async with self._alone:
                    await self._forget(session, pair, end + self._patience)
        finally:
            for wire in pair:
                wire.close()

    async def _ask(self, drawn: Drawn, session: Session, pair: list[Wire], apart: set[bytes]) -> None:
        """``apart``: names of which the two know different things by now."""
        waits = [min(self._patience, _SILENT) if (at, drawn.code) in self._silent else self._patience for at in (0, 1)]
        async with self._alone if drawn.code in _ALONE else nullcontext():
            ours, theirs = await asyncio.gather(*(self._answer(pair, at, drawn, waits[at]) for at in (0, 1)))
        if drawn.form == LEGAL and ours is not None:
            session.learn(drawn, ours)
        header, body = _cut(drawn.data)
        names = {*_NAME.findall(header), *_NAME.findall(body), *_OF_SHARED.findall(drawn.data)}
        form = drawn.form, drawn.part, "apart" * (not apart.isdisjoint(names))
        case = " ".join(filter(None, (str(drawn.code), *form)))
        for what in _found(ours, theirs):
            self.compared.add(case, what, lambda: _example(drawn, (ours, theirs)))
            if None in (ours, theirs) and self.compared.allows(case, what):
                self._silent.add((0 if ours is None else 1, drawn.code))
        stored = theirs is not None and theirs.code == ResponseCode.SUCCESS
        if drawn.code in _STORES and stored:
            if _shows_soon(drawn):
                await self._until_shown(pair[1], *_place(drawn, theirs))
            else:
                apart |= _topic(drawn)
        differ = ours is None or theirs is None or ours.code != theirs.code
        # A refused send may have made its topic, where that comes first, or been stored. Each looks when it likes whose
        # time is over.
        # Apache's reads the body of a registration of an old version (odd header) as it was then. A group to which
        # offsets are copied is made here, and a commit below 0 is kept there.
        doubtful = (
            drawn.form == BROKEN
            or (drawn.code in _STORES and not stored)
            or drawn.part in ("header", "commitOffset")
            or drawn.part.startswith("heartbeatTimeout")
            or drawn.code == RequestCode.CLONE_GROUP_OFFSET
        )
        if drawn.code in _CHANGES and (differ or doubtful):
            apart |= names
            if drawn.code == RequestCode.REGISTER_BROKER:  # its body may be compressed
                apart.update(_NAME.findall(" ".join(session.words["topic"]).encode()))

    async def _forget(self, session: Session, pair: Sequence[Wire], end: float) -> None:
        """A server that is slow keeps what is not deleted by then."""
        for meaning, code, field in _DELETES:
            for name in session.words[meaning]:
                if "fuzz" in name and self._loop_time() < end:
                    asked = _request(code, {field: name, "cleanOffset": "true"})
                    await asyncio.gather(*(wire.ask(asked, self._patience) for wire in pair))

    async def _until_shown(self, wire: Wire, topic: str, queue: str, after: int) -> None:
        """Without a topic, until everything is."""
        code = int(RequestCode.GET_MAX_OFFSET if topic else RequestCode.GET_BROKER_RUNTIME_INFO)
        asked = _request(code, {"topic": topic, "queueId": queue} if topic else {})
        end = self._loop_time() + _SHOWN
        while self._loop_time() < end:
            answer = await wire.ask(asked, self._patience)
            if answer is None or (_end(answer) > after if topic else not _BEHIND.search(answer.body)):
                return
            await asyncio.sleep(_LOOK)

    async def _answer(self, pair: list[Wire], at: int, drawn: Drawn, wait: float) -> RemotingCommand | None:
        """A server that is busy (flow control) has not looked at it, and is asked again. So is, once, one that hung up:
        Apache's name server does, some time after a broker's time is over; and, where that changes nothing, one that
        did not answer: on a busy machine it may be late."""
        end = self._loop_time() + self._patience
        again = False
        while True:
            answer = await pair[at].ask(drawn, wait)
            hung_up = pair[at].lost
            if hung_up:
                pair[at] = await connect(self._servers[at], self._patience)
            late = wait == self._patience and drawn.code not in _CHANGES
            if answer is None and (hung_up or late) and not again:
                again = True
            elif answer is None or answer.code != ResponseCode.SYSTEM_BUSY or self._loop_time() > end:
                return answer
            else:
                await asyncio.sleep(_BUSY)


def _cut(frame: bytes) -> tuple[bytes, bytes]:
    """Header and body."""
    end = 8 + int.from_bytes(frame[5:8], "big")
    return frame[:end], frame[end:]


def _place(drawn: Drawn, receipt: RemotingCommand | None) -> tuple[str, str, int]:
    """Topic, queue and last offset of what a send stored; ``("", "", 0)`` where its receipt does not say so."""
    with suppress(ProtocolError, ValueError, KeyError):
        if receipt is not None and drawn.code in _SENDS:
            told, fields = receipt.ext_fields(), _fields(drawn)
            if PROPERTY_TRAN_MSG not in (fields.get("properties") or fields.get("i") or ""):
                count = (told.get("msgId") or "").count(",") + 1  # of a batch
                place = fields.get("topic") or fields.get("b") or "", str(int(told["queueId"] or ""))
                return *place, int(told["queueOffset"] or "") + count - 1
    return "", "", 0


def _end(answer: RemotingCommand) -> int:
    """Of a queue; more than any offset where it is not said."""
    with suppress(ProtocolError, ValueError, KeyError):
        return int(answer.ext_fields()["offset"] or "")
    return 1 << 63


def _fields(drawn: Drawn) -> dict[str, str | None]:
    return next(decode(*frame).ext_fields() for frame in FrameSplitter().feed(drawn.data))


def _shows_soon(drawn: Drawn) -> bool:
    """Not a message that Apache's shows later, to the second (timers, delays), or never (system flags of a half
    transaction, or one rolled back, without TRAN_MSG), or as one (a batch that its header calls none)."""
    with suppress(ProtocolError):
        fields = _fields(drawn)
        properties, flag = (fields.get(long) or fields.get(short) or "" for long, short in _FIELDS)
        hidden = (
            flag.isdigit()
            and int(flag) & SYS_FLAG_TRANSACTION_PREPARED
            and f"{PROPERTY_TRAN_MSG}\x01" not in properties
        )
        one = drawn.code == RequestCode.SEND_BATCH_MESSAGE and (fields.get("batch") or fields.get("m")) != "true"
        return not (hidden or one or _LATER.search(properties) or drawn.code == RequestCode.CONSUMER_SEND_MSG_BACK)
    return True


def _topic(drawn: Drawn) -> set[bytes]:
    """In which it stores, by a session's name."""
    with suppress(ProtocolError):
        fields = _fields(drawn)
        return set(_NAME.findall((fields.get("topic") or fields.get("b") or fields.get("group") or "").encode()))
    return set()


def _found(ours: RemotingCommand | None, theirs: RemotingCommand | None) -> list[str]:
    """Where they differ, as ``Compared`` counts it."""
    if _are_alike(ours, theirs):
        return []
    more = _more(ours, theirs)
    return [each + more for each in differences(said(_plain(ours)), said(_plain(theirs)))]


def _more(ours: RemotingCommand | None, theirs: RemotingCommand | None) -> str:
    """Of a failure with the same code that code; of one that an exception brought about its name; of a pop that was on
    its way for too long, of a list that names one topic twice, and of a queue of which Apache's has nothing, that."""
    if ours is None or theirs is None:
        return ""
    if "timeout too much" in (theirs.remark or ""):
        return " too late"
    if "is not exist!" in (theirs.remark or ""):
        return " nothing there"
    if ours.code == theirs.code:
        return f" of {ours.code}" if ours.code else ""
    if "Duplicate key" in (theirs.remark or ""):
        return " twice"
    for answer in (ours, theirs):
        if answer.code == ResponseCode.SYSTEM_ERROR and (found := _EXCEPTION.search(answer.remark or "")):
            return f" {found[0]}"
    return ""


def _are_alike(ours: RemotingCommand | None, theirs: RemotingCommand | None) -> bool:
    """Certainly; those of which this does not say so may be, too."""
    if ours is None or theirs is None:
        return ours is theirs
    return ours.code == theirs.code and not ours.body and not theirs.body and not ours.ext and not theirs.ext


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


def _request(code: int, fields: dict[str, str | None]) -> Drawn:
    return Drawn(code, JSON, LEGAL, "", 0, True, encode(RemotingCommand(code, 0, ext=fields), JSON))


def _plain(answer: RemotingCommand | None) -> _Answer | None:
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
