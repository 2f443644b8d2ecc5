"""A run: sessions side by side, a healthy client beside them, an eye on the process, and what was found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from aiorocket.fuzz.coverage import Coverage
from aiorocket.fuzz.findings import LATE, Finding, Sample
from aiorocket.fuzz.neighbour import Neighbour
from aiorocket.fuzz.session import BROKER, NAMESERVER, Session
from aiorocket.fuzz.shrinking import replay, shrink
from aiorocket.fuzz.wire import Wire, connect
from aiorocket_protocol import JSON, MSGPACK, ROCKETMQ, RemotingCommand, RequestCode, encode
from aiorocket_protocol.fuzzing import LEGAL, Drawn

__all__ = ("Fuzzing", "Report", "fuzz", "role_of")

#: Windows of one connection: what is held back or half open ends with it, and a sample of a finding stays small.
_WINDOWS = 20
#: Seconds after which a process has what it keeps, at the latest: its memory is compared with that of then.
_SETTLES = 300.0
#: Findings that are made small and kept; a server that does everything wrong is known by then.
_MOST_FOUND = 20


class Fuzzing(NamedTuple):
    """What is wanted. ``kinds``: serialize types; ``growth``: MiB that the process ``pid`` may gain after the first
    tenth of a run; ``now``: the wall clock in milliseconds."""

    server: str
    role: str
    now: int
    frames: int = 100_000
    seconds: float = float("inf")
    seed: int = 0
    connections: int = 16
    window: int = 50
    codes: Sequence[int] = ()
    kinds: Sequence[int] = (JSON, ROCKETMQ, MSGPACK)
    pid: int | None = None
    growth: float = 256.0
    patience: float = 10.0
    shrink: bool = True


class Report(NamedTuple):
    """``memory``: MiB of the process at a tenth and at the end; ``slowest``: seconds of the neighbour's worst round;
    ``stalls``: answers that came late, and not so when the same was sent again."""

    frames: int
    answers: int
    connections: int
    seconds: float
    memory: tuple[float, float] | None
    rounds: int
    slowest: float
    stalls: Sequence[str]
    coverage: Coverage
    found: list[Sample]
    interrupted: bool


async def role_of(server: str, patience: float = 10.0) -> str:
    """Is it a broker or a name server? OSError when nobody listens there, TimeoutError when nobody answers."""
    wire = await connect(server, patience)
    try:
        code = int(RequestCode.GET_BROKER_CLUSTER_INFO)
        asked = Drawn(code, JSON, LEGAL, "", 1, True, encode(RemotingCommand(code, 1), JSON))
        if not await wire.exchange([asked], patience):
            raise TimeoutError(f"{server} does not answer in {patience:g} s: is it a RocketMQ server?")
        return NAMESERVER if wire.answered[1].code == 0 else BROKER
    finally:
        wire.close()


async def fuzz(wanted: Fuzzing, progress: Callable[[int, int], None] = lambda _frames, _found: None) -> Report:
    """Run until the frames are sent, the time is up, the server is gone, or it is cancelled (the report is then of what
    was). ``progress`` is called with frames and findings so far. OSError when the server cannot be reached."""
    return await _Run(wanted, progress).run()


class _Run:
    def __init__(self, wanted: Fuzzing, progress: Callable[[int, int], None]) -> None:
        self._wanted = wanted
        self._progress = progress
        codes = Session(Random(0), wanted.role, wanted.now, codes=wanted.codes).codes
        self._coverage = Coverage(codes, wanted.kinds)
        self._neighbour = Neighbour(wanted.server, wanted.role, wanted.patience, wanted.seed)
        self._frames = self._answers = self._connections = 0
        self._found: list[Sample] = []
        self._stalls: list[str] = []
        self._seen: set[tuple[str, int, str]] = set()
        self._gone = False
        self._first_memory: float | None = None

    async def run(self) -> Report:
        loop = asyncio.get_running_loop()
        began = self._began = loop.time()
        (await connect(self._wanted.server, self._wanted.patience)).close()
        neighbour = asyncio.ensure_future(self._neighbour.run())
        # Each sends a window at least: no more of them than windows are wanted.
        count = min(self._wanted.connections, -(-self._wanted.frames // self._wanted.window))
        sessions = [asyncio.ensure_future(self._sessions(number)) for number in range(count)]
        interrupted = False
        try:
            await asyncio.gather(*sessions)
        except asyncio.CancelledError:
            interrupted = True  # the report says how far it came
        finally:
            for task in (*sessions, neighbour):
                task.cancel()
            await asyncio.gather(*sessions, neighbour, return_exceptions=True)
        if not neighbour.cancelled() and (error := neighbour.exception()) is not None:
            raise error
        if self._neighbour.finding is not None and not self._gone:
            self._found.append(self._sample(self._neighbour.finding, []))
        memory = self._memory()
        if memory is not None and memory[1] - memory[0] > self._wanted.growth:
            told = f"from {memory[0]:.0f} to {memory[1]:.0f} MiB; {self._wanted.growth:g} more are allowed"
            self._found.append(self._sample(Finding("growth", told), []))
        return Report(
            self._frames, self._answers, self._connections, loop.time() - began, memory,
            self._neighbour.rounds, self._neighbour.slowest, self._stalls, self._coverage, self._found,
            interrupted,
        )  # fmt: skip

    def _goes_on(self) -> bool:
        late = asyncio.get_running_loop().time() - self._began > self._wanted.seconds
        return not self._gone and not late and self._frames < self._wanted.frames and len(self._found) < _MOST_FOUND

    async def _sessions(self, number: int) -> None:
        await self._neighbour.began.wait()
        turn = 0
        while self._goes_on():
            draw = Random(f"{self._wanted.seed}/{number}/{turn}")
            turn += 1
            wanted = self._wanted
            session = Session(draw, wanted.role, wanted.now, codes=wanted.codes, kinds=wanted.kinds)
            try:
                wire = await connect(wanted.server, wanted.patience)
            except (OSError, TimeoutError) as error:
                await self._is_gone(f"nobody answers at {wanted.server} any more: {str(error) or 'time is up'}", [])
                return
            self._connections += 1
            sent: list[Drawn] = []
            try:
                await self._one(wire, session, sent)
            finally:
                wire.close()
                self._answers += wire.answers
            for finding in wire.findings:
                await self._keep(finding, sent)

    async def _one(self, wire: Wire, session: Session, sent: list[Drawn]) -> None:
        for number in range(_WINDOWS):
            if number % 5 == 4:
                for drawn in session.story():
                    sent.append(drawn)
                    alive = await self._say(wire, [drawn])
                    if (answer := wire.answered.get(drawn.opaque)) is not None:
                        session.learn(drawn, answer)
                    if not alive:
                        return
            else:
                frames = session.window(self._wanted.window, last=number == _WINDOWS - 2)
                sent += frames
                if not await self._say(wire, frames):
                    return
            self._progress(self._frames, len(self._found))
            early = asyncio.get_running_loop().time() - self._began < _SETTLES
            if self._first_memory is None and (self._frames >= self._wanted.frames / 10 or not early):
                self._first_memory = self._rss()
            if not self._goes_on():
                return

    async def _say(self, wire: Wire, frames: Sequence[Drawn]) -> bool:
        self._frames += len(frames)
        self._coverage.add(frames)
        alive = await wire.exchange(frames, self._wanted.patience)
        asked = {drawn.opaque: drawn.code for drawn in frames}
        self._coverage.answers.update(
            (asked[opaque], answer.code) for opaque, answer in wire.answered.items() if opaque in asked
        )
        return alive

    async def _keep(self, finding: Finding, sent: Sequence[Drawn]) -> None:
        if finding.signature in self._seen or len(self._found) >= _MOST_FOUND:
            return
        if finding.kind == LATE and not await self._again(finding, sent):
            self._stalls.append(finding.detail)
            return
        self._seen.add(finding.signature)
        if finding.kind == "closed" and await self._is_dead():
            await self._is_gone("the server hung up and is gone", sent)
            return
        sample = self._sample(finding, sent)
        if self._wanted.shrink:
            sample = await shrink(sample, patience=self._wanted.patience)
        self._found.append(sample)

    async def _again(self, finding: Finding, sent: Sequence[Drawn]) -> bool:
        found = await replay(self._wanted.server, sent, self._wanted.patience)
        return any(each.kind == finding.kind for each in found)

    async def _is_dead(self) -> bool:
        return any(each.kind == "crash" for each in await replay(self._wanted.server, [], self._wanted.patience))

    async def _is_gone(self, what: str, sent: Sequence[Drawn]) -> None:
        if not self._gone:
            self._gone = True
            self._found.append(self._sample(Finding("crash", what), sent))

    def _sample(self, finding: Finding, sent: Sequence[Drawn]) -> Sample:
        return Sample(self._wanted.server, finding, sent, self._wanted.seed)

    def _memory(self) -> tuple[float, float] | None:
        last = self._rss()
        if last is None:
            return None
        return (last if self._first_memory is None else self._first_memory), last

    def _rss(self) -> float | None:
        """MiB; None when no process is watched, or it has ended."""
        if self._wanted.pid is None:
            return None
        try:
            status = Path(f"/proc/{self._wanted.pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), None)
