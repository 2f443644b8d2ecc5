"""Threads in virtual time, and a store that goes by it: what waits for ages is tested without waiting."""

from __future__ import annotations

import heapq
import os
import random
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from aiorocket.spark.steps.files.folder import Folder

__all__ = ("Store", "Turns")

#: How long the machine may take for what one thread does between two sleeps, in seconds of its own.
_PATIENCE = 60.0
_RENEWING = "renewing"


class _OverError(BaseException):
    """Ends a thread that still sleeps when the test is over."""


class Turns:
    """A ``claims.Pace``. One thread runs at a time, until it sleeps; the next is whoever wakes first, of those that do
    so at the same moment the one that ``seed`` chooses. So a test is the same every time, however busy the machine."""

    def __init__(self, seed: int = 0) -> None:
        self._at = 0.0
        self.chance = random.Random(seed)
        self._numbers = count()
        self._sleeping: list[tuple[float, float, int, threading.Event]] = []
        self._threads: list[threading.Thread] = []
        self._over = False

    def now(self) -> float:
        return self._at

    def sleep(self, seconds: float) -> None:
        turn = self._wait_from(seconds)
        self._pass_on()
        self._await(turn)

    def every(self, seconds: float, work: Callable[[], object]) -> Callable[[], object]:
        ended = threading.Event()

        def run() -> None:
            while not ended.is_set():
                work()
                self.sleep(seconds)

        self._begin(run, seconds, _RENEWING)
        return ended.set

    def run(self, *works: Callable[[], object]) -> None:
        """All of them side by side, from begin to end."""
        ended: list[BaseException | None] = []

        def kept(work: Callable[[], object]) -> None:
            error = None
            try:
                work()
            except BaseException as raised:  # noqa: BLE001 - it is raised where the test sees it
                error = raised
            ended.append(error)

        for work in works:
            self._begin(partial(kept, work), 0.0)
        while len(ended) < len(works):
            self.sleep(1.0)
        for error in ended:
            if error is not None:
                raise error

    def date(self, path: str | Path) -> None:
        """Has the file be written now."""
        # Nothing in the store is of 1970: that is what a file that is not there looks like.
        os.utime(path, ns=(0, round((self._at + 1e9) * 1e9)))

    def end(self) -> None:
        """Wakes who still sleeps, and waits until all have ended."""
        self._over = True
        for _, _, _, turn in self._sleeping:
            turn.set()
        for thread in self._threads:
            thread.join(_PATIENCE)

    def _begin(self, work: Callable[[], object], seconds: float, name: str | None = None) -> None:
        turn = self._wait_from(seconds)

        def run() -> None:
            try:
                self._await(turn)
                work()
            except _OverError:
                return
            if not self._over:
                self._pass_on()

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))
        self._threads[-1].start()

    def _wait_from(self, seconds: float) -> threading.Event:
        turn = threading.Event()
        heapq.heappush(self._sleeping, (self._at + seconds, self.chance.random(), next(self._numbers), turn))
        return turn

    def _pass_on(self) -> None:
        self._at, _, _, turn = heapq.heappop(self._sleeping)
        turn.set()

    def _await(self, turn: threading.Event) -> None:
        assert turn.wait(_PATIENCE), "nobody passed the turn on"
        if self._over:
            raise _OverError


class Store(Folder):
    """An object store: no locks, files that appear whole, ages by ``turns``. ``before_put`` is called by each renewal;
    looks, and other puts, take up to ``slow`` seconds. With ``local`` a disk without locks."""

    def __init__(self, path: Path, turns: Turns, *, slow: float = 0.0, local: bool = False) -> None:
        super().__init__(str(path))
        self.before_put: Callable[[], object] = lambda: None
        self._turns = turns
        self._slow = slow
        self._local = local

    def put(self, name: str, data: bytes) -> None:
        if threading.current_thread().name == _RENEWING:
            self.before_put()  # its claim's lock is held: nobody may wait for it meanwhile
        else:
            self._wait()
        path = Path(self.full(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f".{path.name}")
        written.write_bytes(data)
        self._turns.date(written)
        os.replace(written, path)

    def names(self, name: str) -> list[str]:
        self._wait()
        return super().names(name)

    def _wait(self) -> None:
        if self._slow:
            self._turns.sleep(self._turns.chance.uniform(0, self._slow))
