"""A warning when a group's offset goes back, whether by a commit (15) or by one in a pull (11)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aiorocket.broker.core.offsets import ConsumerOffsets

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection

__all__ = ("warn_of_lower",)

_log = logging.getLogger("aiorocket.broker")
_MAX_QUIET = 4096


def warn_of_lower(
    offsets: ConsumerOffsets, connection: Connection, group: str, topic: str, queue_id: int, offset: int
) -> None:
    """A commit below the stored offset has been accepted, as resets and repairs need it; anything else is a mistake.
    Two clients of one id would make it with each pull: one line a minute for a group's topic."""
    now = asyncio.get_running_loop().time()
    if now < offsets.quiet.get((group, topic), 0.0):
        return
    if len(offsets.quiet) >= _MAX_QUIET:
        offsets.quiet.clear()
    offsets.quiet[group, topic] = now + 60.0
    _log.warning("%s set the offset of %s, %s queue %d back to %d", connection.peer, group, topic, queue_id, offset)
