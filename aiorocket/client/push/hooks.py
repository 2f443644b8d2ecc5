"""Hooks around the listeners of a consumer: tracing, audit, metrics."""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiorocket.client.message import Message
from aiorocket.model import Queue

__all__ = ("ConsumeContext", "ConsumeHook", "ConsumeReturnType", "run_after", "run_before")

log = logging.getLogger("aiorocket.client")

#: The member of ``ConsumeContext.props`` that names the return type, RocketMQ's CONSUME_CONTEXT_TYPE.
RETURN_TYPE = "ConsumeContextType"


class ConsumeReturnType(enum.Enum):
    """How a call of a listener ended."""

    SUCCESS = "SUCCESS"
    #: It ended with a result, but only after the consume timeout.
    TIME_OUT = "TIME_OUT"
    EXCEPTION = "EXCEPTION"
    #: A listener in status mode returned None.
    RETURNNULL = "RETURNNULL"
    #: RECONSUME_LATER, or SUSPEND_CURRENT_QUEUE_A_MOMENT; Retry and DeadLetter mean the same.
    FAILED = "FAILED"


@dataclass(slots=True)
class ConsumeContext:
    """One call of a listener. ``status`` is the name of RocketMQ's status, ``success`` whether it was the good one;
    both are set for ``after``, as is ``props["ConsumeContextType"]``, the name of a ConsumeReturnType."""

    namespace: str
    group: str
    #: Where the first message came from.
    queue: Queue
    messages: Sequence[Message]
    #: Wall clock, milliseconds: RocketMQ's CONSUME_START_TIME of these messages.
    started_ms: int = 0
    success: bool = False
    status: str = ""
    props: dict[str, str] = field(default_factory=dict)


class ConsumeHook(Protocol):
    """``Consumer(hooks=[...])``. Plain functions, called in the loop: they must not block. What they raise is logged
    and changes nothing."""

    def before(self, context: ConsumeContext) -> None:
        """Called before the listener."""

    def after(self, context: ConsumeContext) -> None:
        """Called with the same context when the listener has ended, before its messages are settled."""


def run_before(hooks: Sequence[ConsumeHook], context: ConsumeContext) -> None:
    for hook in hooks:
        try:
            hook.before(context)
        except Exception:  # a hook must not change what becomes of a message
            log.warning("a consume hook failed before the listener: %r", hook, exc_info=True)


def run_after(hooks: Sequence[ConsumeHook], context: ConsumeContext, kind: ConsumeReturnType) -> None:
    context.props[RETURN_TYPE] = kind.value
    for hook in hooks:
        try:
            hook.after(context)
        except Exception:
            log.warning("a consume hook failed after the listener: %r", hook, exc_info=True)
