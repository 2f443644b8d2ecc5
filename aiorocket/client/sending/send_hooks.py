"""Hooks around the sends of a producer: tracing, audit, metrics. The counterpart of ``hooks``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from aiorocket.model import Queue, SendReceipt

__all__ = ("SendContext", "SendHook", "run_after_send", "run_before_send")

log = logging.getLogger("aiorocket.client")


@dataclass(slots=True)
class SendContext:
    """One attempt to send: a message that is retried has several, as in RocketMQ. The last three are set for ``after``:
    ``receipt`` or ``error`` (a one-way send that was handed to the socket has neither), and the seconds it took."""

    namespace: str
    group: str
    msg_id: str
    queue: Queue
    #: The broker's, ``host:port``.
    address: str
    mode: Literal["sync", "batch", "oneway"]
    #: As they travel, RocketMQ's own included; of a batch, those of the batch.
    properties: dict[str, str]
    #: As it travels: compressed perhaps, or in the batch encoding.
    body: bytes
    #: Wall clock, milliseconds, when the message was made.
    born_ms: int
    #: For the hook's own use, from ``before`` to ``after``.
    props: dict[str, str] = field(default_factory=dict)
    receipt: SendReceipt | None = None
    error: Exception | None = None
    took: float = 0.0


class SendHook(Protocol):
    """``Producer(hooks=[...])``. Plain functions, called in the loop: they must not block. What they raise is logged
    and changes nothing. A producer without hooks pays nothing for them."""

    def before(self, context: SendContext) -> None:
        """Called before the request."""

    def after(self, context: SendContext) -> None:
        """Called with the same context when the attempt has ended. Not called when it was cancelled: nobody knows then
        how it ended."""


def run_before_send(hooks: Sequence[SendHook], context: SendContext) -> None:
    for hook in hooks:
        try:
            hook.before(context)
        except Exception:
            log.warning("a send hook failed before the send: %r", hook, exc_info=True)


def run_after_send(hooks: Sequence[SendHook], context: SendContext) -> None:
    for hook in hooks:
        try:
            hook.after(context)
        except Exception:
            log.warning("a send hook failed after the send: %r", hook, exc_info=True)
