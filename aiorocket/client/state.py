"""What a consumer is doing right now, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from aiorocket.model import Queue

__all__ = ("ConsumerState", "Counters", "QueueState")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """One assigned queue. ``done`` is the offset a commit would store now, ``committed`` the one that is stored (-1 for
    none). What is cached lies between the offsets ``first_cached`` and ``last_cached``, both 0 when it is nothing.
    ``blocked`` says which limit holds back the next pull ("messages", "bytes", "span", "paused", "buffer"); ``dropped``
    that it is about to be begun anew. ``behind`` is how many messages the queue has from ``done`` on, as the last pull
    found it (None before any). ``locked``: the broker's lock is held, as of ``last_lock``. Times are loop times.
    """

    queue: Queue
    next_offset: int
    done: int
    committed: int
    behind: int | None
    cached: int
    cached_bytes: int
    first_cached: int
    last_cached: int
    dropped: bool
    blocked: str | None
    locked: bool
    last_lock: float | None
    last_pull: float | None
    last_consume: float | None
    last_error: str | None


@dataclass(slots=True)
class Counters:
    """Since the start. ``consumed`` counts every finished message, however it ended; ``late`` results came after the
    message was given to somebody else and changed nothing. ``suspended`` counts failures that were tried again in
    place (by key), ``send_back_failed`` the times no broker took a message back, ``broadcast_dropped`` failures of a
    group that broadcasts."""

    consumed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    timed_out: int = 0
    late: int = 0
    dropped: int = 0
    suspended: int = 0
    send_back_failed: int = 0
    broadcast_dropped: int = 0
    #: Commits refused because the queue has another owner, and pulls that led back to a smaller offset.
    stale_commits: int = 0
    backwards: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    """A snapshot: assigned queues, how much is cached and in work, and how it has gone so far. ``missing`` are topics
    that nobody has yet and that are waited for."""

    group: str
    client_id: str
    running: bool
    members: tuple[str, ...]
    queues: tuple[QueueState, ...]
    missing: tuple[str, ...]
    cached: int
    in_work: int
    counters: Counters
    last_error: str | None
