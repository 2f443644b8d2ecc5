"""How a listener ends other than by returning (success) or by any other exception (retry by the broker's schedule)."""

from __future__ import annotations

import asyncio

from aiorocket.client.core.dead_reason import text_of
from aiorocket.errors import UsageError

__all__ = ("DeadLetter", "LeaseLost", "Retry", "Skip", "failure_of")

#: These end the process.
_NOT_OURS = (KeyboardInterrupt, SystemExit)


class _Exit(Exception):
    """Root of the explicit exits."""


class Retry(_Exit):
    """Deliver again later. ``after`` seconds, rounded up to the next delay level; None leaves it to the broker (10 s
    after the first failure, longer each time). ``delay_level`` 1 to 18 says it directly; as in RocketMQ 0 leaves it to
    the broker and one below 0 means the dead letters. UsageError for what is no number."""

    def __init__(self, after: float | None = None, *, delay_level: int | None = None) -> None:
        if after is not None and not (isinstance(after, int | float) and after == after):
            raise UsageError(f"Retry(after={after!r}): a number of seconds")
        if not isinstance(delay_level, int | None):
            raise UsageError(f"Retry(delay_level={delay_level!r}): 1 to 18")
        self.after = after
        self.delay_level = delay_level
        super().__init__(f"retry (after={after}, delay_level={delay_level})")


class DeadLetter(_Exit):
    """Give up now: the message goes to ``%DLQ%group``."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "dead letter")


class Skip(_Exit):
    """Acknowledge without having processed; counted apart."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "skip")


class LeaseLost(Exception):
    """Why the call of an orderly listener was cancelled: its queue may belong to another member by now, so what it does
    from here on can happen twice or out of order. The handler sees asyncio.CancelledError, as for any cancellation::

        except asyncio.CancelledError as error:
            if aiorocket.LeaseLost.caused(error):
                ...  # undo what can be undone
            raise

    However the call ends, its result is dropped (counted as ``late``) and the messages are delivered again.
    """

    @staticmethod
    def caused(error: BaseException) -> bool:
        """Is ``error`` the cancellation of a call whose lease was lost?"""
        return bool(error.args) and isinstance(error.args[0], LeaseLost)


def failure_of(error: BaseException, caller: asyncio.Task[None] | None) -> Exception:
    """What the application's code ended with, as a failure of its own: an Exception as it is, any other wrapped in a
    RuntimeError, CancelledError too when it comes from something it awaited and not from a cancellation of ``caller``,
    the task that runs it, and GeneratorExit when that runs: the coroutine of one that waits is being closed. Raised on
    is what is meant for the caller, or for the process."""
    if isinstance(error, Exception):
        return error
    cancelled = isinstance(error, asyncio.CancelledError) and (caller is None or caller.cancelling() > 0)
    closed = isinstance(error, GeneratorExit) and (
        caller is None or asyncio.current_task(caller.get_loop()) is not caller
    )
    if cancelled or closed or isinstance(error, _NOT_OURS):
        raise error
    failure = RuntimeError(f"it ended with {type(error).__qualname__}: {text_of(error)}")
    failure.__cause__ = error
    return failure
