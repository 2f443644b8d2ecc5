"""Listeners that answer with a status, as Java's do: ``(messages, context)`` in, an enum out.

For people who port RocketMQ code. Elsewhere returning is success and an exception is a retry; here the status says it,
and None, which Java calls RETURNNULL, is a retry.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiorocket.model import Queue

__all__ = (
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "Handler",
    "takes_context",
)

#: A listener as the workers call it: of a Message, a list of them or a Batch, and perhaps a context. A plain function
#: was made awaitable.
Handler = Callable[..., Awaitable[object]]


class ConsumeConcurrentlyStatus(enum.Enum):
    """What a concurrent listener in status mode returns."""

    #: The messages up to ``context.ack_index`` are done (all, unless it was set).
    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    #: All go back to the broker, by ``context.delay_level``.
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(enum.Enum):
    """What an orderly listener in status mode returns. COMMIT and ROLLBACK are for ``context.auto_commit = False``."""

    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


@dataclass(slots=True)
class ConsumeConcurrentlyContext:
    """Of one call. ``queue`` is where the messages were pulled from (of the retry topic, for retries)."""

    queue: Queue
    #: Index of the last message that is done when the status is CONSUME_SUCCESS; -1 for none, None for all. What comes
    #: after it goes back (broadcasting: is logged and dropped).
    ack_index: int | None = None
    #: Of what goes back: 1 to 18, 0 leaves it to the broker, below 0 means to the dead letters.
    delay_level: int = 0


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """Of one call."""

    queue: Queue
    #: False: the position moves with COMMIT only.
    auto_commit: bool = True
    #: Seconds the queue rests after SUSPEND_CURRENT_QUEUE_A_MOMENT or ROLLBACK; None is the listener's ``suspend``.
    suspend: float | None = None

    def __setattr__(self, name: str, value: object) -> None:
        # In the listener, whose mistake it is, and not in the worker afterwards.
        if name == "suspend" and not isinstance(value, int | float | None):
            raise TypeError(f"context.suspend={value!r}: a number of seconds, or None")
        object.__setattr__(self, name, value)


def takes_context(handler: Callable[..., Any]) -> bool:
    """Is this handler in status mode: does it need a second argument besides its messages? One that is called
    ``state`` is the application's, not ours."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # some callables of extension modules have none
        return False
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len([each for each in positional if each.default is each.empty and each.name != "state"]) == 2
