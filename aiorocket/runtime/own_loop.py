"""The loop that something was started in is the only one it can be used in."""

from __future__ import annotations

import asyncio

from aiorocket.errors import WrongLoopError

__all__ = ("need_loop", "wrong_loop")


def need_loop(mine: asyncio.AbstractEventLoop | None, what: str) -> None:
    """WrongLoopError unless ``mine``, where ``what`` was started, is the loop that runs here."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:  # in a forked child asyncio forgets the loop that the parent was running
        here = None
    if here is not mine:
        raise wrong_loop(what)


def wrong_loop(what: str) -> WrongLoopError:
    return WrongLoopError(
        f"{what} was started in another event loop (or process), and its sockets belong there: make one in this "
        "loop. From a thread, hand the call to its loop: asyncio.run_coroutine_threadsafe(call, loop)"
    )
