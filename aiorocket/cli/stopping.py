"""What Ctrl-C and SIGTERM do."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

__all__ = ("ONE_WISH", "stop_signals", "until_stopped")

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Seconds in which more signals are the same wish: ``timeout`` and shells signal the process, and its group with it.
ONE_WISH = 0.5


@contextmanager
def stop_signals(action: Callable[[], object]) -> Iterator[None]:
    """Call ``action`` in the loop on the first Ctrl-C or SIGTERM. A second one, half a second later or more, ends the
    process the hard way."""
    running = asyncio.get_running_loop()
    asked: asyncio.TimerHandle | None = None

    def restore() -> None:
        for number in _SIGNALS:
            try:
                running.remove_signal_handler(number)
            except NotImplementedError:
                signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)

    def first() -> None:
        nonlocal asked
        if asked is None:
            asked = running.call_later(ONE_WISH, restore)
            action()

    for number in _SIGNALS:
        try:
            running.add_signal_handler(number, first)
        except NotImplementedError:  # Windows: its loops take no handlers, the interpreter does
            signal.signal(number, lambda *_: running.call_soon_threadsafe(first) and None)
    try:
        yield
    finally:
        if asked is not None:
            asked.cancel()
        restore()


async def until_stopped(work: Coroutine[object, object, T]) -> asyncio.Task[T]:
    """``work`` as a task that has ended: by itself, or cancelled by the first Ctrl-C or SIGTERM."""
    task = asyncio.ensure_future(work)
    with stop_signals(task.cancel):
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()  # nothing to it when it has ended
    return task
