"""An append that found no memory: log, tail cache and queues as they were before it."""

from __future__ import annotations

from collections.abc import Sequence

from aiorocket.storage.commit_log import CommitLog
from aiorocket.storage.consume_queue import UNIT_SIZE, ConsumeQueue
from aiorocket.storage.tail_cache import TailCache

__all__ = ("take_back",)


def take_back(log: CommitLog, tail: TailCache, queues: Sequence[ConsumeQueue], first: bytes) -> None:
    """What appends to ``queues`` have left before one found no memory: nothing was assigned, the next ones take their
    places. ``first`` is the first buffer of theirs."""
    for queue in queues:
        tail.forget(queue, queue.next_offset)
        del queue.tail[(queue.next_offset - queue.tail_first) * UNIT_SIZE :]
    for at, buffer in enumerate(log.buffers):
        if buffer is first:
            del log.buffers[at:]
            break
    group = log.group
    while group.touched and not group.touched[-1].marked:
        group.touched.pop()
    del group.dones[len(group.results) :]
