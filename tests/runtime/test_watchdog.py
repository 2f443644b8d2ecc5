"""Who keeps a loop from turning is named while it does, and nobody else."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aiorocket.runtime import watchdog
from aiorocket.runtime.watchdog import watch_loop

#: The application's function, in a file of its own.
_SOURCE = "def on_paid(wait):\n    deeper(wait)\n\ndef deeper(wait):\n    wait()\n"
_names: dict[str, Any] = {}
exec(compile(_SOURCE, "/app/listeners.py", "exec"), _names)
on_paid: Callable[[Callable[[], object]], None] = _names["on_paid"]


class Lines(logging.Handler):
    """What is logged, from whichever thread."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.came = threading.Semaphore(0)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        self.came.release()

    def wait(self) -> None:
        """For the next line, wherever that keeps the thread."""
        assert self.came.acquire(timeout=30)


@contextmanager
def lines() -> Iterator[Lines]:
    handler = Lines()
    watchdog.log.addHandler(handler)
    try:
        yield handler
    finally:
        watchdog.log.removeHandler(handler)


@contextmanager
def watching(caller: str, limit: float = 0.02) -> Iterator[None]:
    task = asyncio.create_task(watch_loop(caller, limit), name="watch")
    try:
        yield
    finally:
        task.cancel()


waited_for_core = watchdog._waited_for_core


@pytest.fixture(autouse=True)
def whole_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine is busy with."""
    monkeypatch.setattr(watchdog, "_waited_for_core", lambda _thread: 0.0)


async def test_a_function_that_keeps_the_loop_is_named_once_a_minute() -> None:
    with lines() as log, watching(__file__), watching("/elsewhere", 1.0):
        await asyncio.sleep(0)
        on_paid(log.wait)
        assert "has not turned for 0.0" in log.said[0] and "because of on_paid (/app/listeners.py:2)" in log.said[0]
        assert "just now in" in log.said[0] and "async one has to await" in log.said[0]
        while len(log.said) < 2:
            await asyncio.sleep(0.01)
        assert log.said[1].startswith("the event loop turns again, after ")
        assert log.said[1].endswith(f"in task {asyncio.current_task().get_name()}")  # type: ignore[union-attr] # in one
        turned = threading.Event()
        on_paid(lambda: turned.wait(0.2))  # again, in the same minute
        await asyncio.sleep(0.1)
        assert len(log.said) == 2
    await asyncio.sleep(0)
    assert not watchdog._watches


async def test_who_waits_for_a_core_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    monkeypatch.setattr(watchdog, "_waited_for_core", lambda _thread: 0.9 * (time.monotonic() - began))
    with lines() as log, watching(__file__):
        await asyncio.sleep(0)
        on_paid(log.wait)
        assert "has not turned for 0.0" in log.said[0] and "for a core: the machine" in log.said[0]
        assert "on_paid" not in log.said[0]
        while len(log.said) < 2:
            await asyncio.sleep(0.01)
    assert log.said[1].endswith(" it waited for a core")


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux says it, when it was built to")
def test_how_long_a_thread_waited_for_a_core_only_grows() -> None:
    thread = threading.get_native_id()
    waited = [waited_for_core(thread) for _ in range(100)]
    assert waited == sorted(waited) and waited[0] >= 0.0
    assert waited_for_core(0) == 0.0  # nobody's


async def test_what_others_do_is_not_told() -> None:
    with lines() as log, watching("/elsewhere"):
        await asyncio.sleep(0)
        on_paid(lambda: threading.Event().wait(0.2))
        await asyncio.sleep(0.1)
    assert not log.said


def test_it_ends_with_a_loop_that_nobody_tells_it_of() -> None:
    loop = asyncio.new_event_loop()
    watch = watchdog._watches[loop] = watchdog._Watch(loop)
    watch.wanted.append((__file__, 0.01))
    watch.start()
    loop.close()
    watch.join(30)
    assert not watch.is_alive() and loop not in watchdog._watches


def test_it_ends_with_a_loop_that_is_closed_before_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    asked = threading.Event()
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda _callback: asked.set())
    watch = watchdog._watches[loop] = watchdog._Watch(loop)
    watch.wanted.append((__file__, 0.01))
    watch.start()
    assert asked.wait(30)
    loop.close()
    watch.join(10)
    ended = not watch.is_alive()
    watch.end()
    assert ended and loop not in watchdog._watches
