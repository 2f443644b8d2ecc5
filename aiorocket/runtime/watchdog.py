"""Who keeps an event loop from turning: a thread asks it for a sign, and looks at its stack when none comes. No
function is blamed when the loop's thread was ready meanwhile and got no core, as far as Linux tells.

One thread for each loop, however many watch it; it asks twice in the shortest of their times, and ends with the last
of them or with its loop. What is found is logged from the thread: a loop that never turns again says so too.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from types import FrameType

__all__ = ("watch_loop",)

log = logging.getLogger("aiorocket.watchdog")

#: Seconds between two warnings of one function.
_INTERVAL = 60.0

_watches: dict[asyncio.AbstractEventLoop, _Watch] = {}


async def watch_loop(caller: str, limit: float) -> None:
    """Until it is cancelled: warn when a function that was called from files under ``caller`` keeps the running loop
    from turning for ``limit`` seconds."""
    loop = asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        watch = _Watch(loop)
        watch.wanted.append((caller, limit))
        watch.start()
        _watches[loop] = watch
    else:
        watch.wanted.append((caller, limit))
    try:
        await loop.create_future()
    finally:
        watch.wanted.remove((caller, limit))
        if not watch.wanted:
            _watches.pop(loop, None)
            watch.end()


class _Watch(threading.Thread):
    """``wanted``: (caller, limit) of each that watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="aiorocket-watchdog", daemon=True)
        self.wanted: list[tuple[str, float]] = []
        self._loop = loop
        self._of_loop, self._of_system = threading.get_ident(), threading.get_native_id()
        self._over = threading.Event()
        self._turned = threading.Event()
        #: By function, "" for want of a core: when it may be told of again, and how often it was left out.
        self._told: dict[str, tuple[float, int]] = {}

    def end(self) -> None:
        """Returns at once: the thread waits for nothing but these two."""
        self._over.set()
        self._turned.set()
        self.join()

    def run(self) -> None:
        while True:
            limit = min((limit for _, limit in self.wanted.copy()), default=1.0)
            self._turned.clear()
            if self._over.wait(limit / 2):
                return
            asked, waited = time.monotonic(), _waited_for_core(self._of_system)
            try:
                self._loop.call_soon_threadsafe(self._turned.set)
            except RuntimeError:  # the loop was closed
                _watches.pop(self._loop, None)
                return
            blocked = ""
            while not self._turned.wait(limit / 2):
                if self._loop.is_closed():  # and forgot that it was asked
                    _watches.pop(self._loop, None)
                    return
                if not blocked and time.monotonic() - asked >= limit:
                    waits = _waited_for_core(self._of_system) - waited
                    blocked = self._blocked_by(time.monotonic() - asked, waits)
            if blocked:
                log.warning("the event loop turns again, after %.1f s: %s", time.monotonic() - asked, blocked)

    def _blocked_by(self, seconds: float, waited: float) -> str:
        """By which function or what else, told now; empty when it is none of ours, or was told of a moment ago."""
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._of_loop)
        found = None if frame is None else _called_from(tuple({caller for caller, _ in self.wanted.copy()}), frame)
        if frame is None or found is None:
            return ""
        starved = waited > seconds / 2
        function = "" if starved else f"{found.f_code.co_qualname} ({found.f_code.co_filename}:{found.f_lineno})"
        now = time.monotonic()
        until, left_out = self._told.get(function, (now, 0))
        if now < until:
            self._told[function] = until, left_out + 1
            return ""
        self._told[function] = now + _INTERVAL, 0
        more = f" ({left_out} times more since the last warning)" if left_out else ""
        if starved:
            log.warning(
                "the event loop has not turned for %.1f s, of which it waited %.1f s for a core%s: the machine "
                "has more to do than cores, or a container used up its limit: heartbeats and listeners wait for it",
                seconds, waited, more,
            )  # fmt: skip
            return "it waited for a core"
        name = f"{function}, in task {task.get_name()}" if task is not None else function
        deepest = "" if frame is found else f", just now in {frame.f_code.co_filename}:{frame.f_lineno}"
        log.warning(
            "the event loop has not turned for %.1f s because of %s%s%s: heartbeats, pulls and every other listener "
            "wait for it. A plain function (def) runs in a thread; an async one has to await what takes long",
            seconds, name, deepest, more,
        )  # fmt: skip
        return name


def _waited_for_core(thread: int) -> float:
    """Seconds in all that a thread was ready to run and did not: schedstat's second field, in ns. 0 but on Linux."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _called_from(callers: tuple[str, ...], frame: FrameType | None) -> FrameType | None:
    """The outermost frame that one of a file under ``callers`` has called, and that is in none of them."""
    found: FrameType | None = None
    outside: FrameType | None = None
    while frame is not None:
        if frame.f_code.co_filename.startswith(callers):
            found = outside or found
            outside = None
        else:
            outside = frame
        frame = frame.f_back
    return found
