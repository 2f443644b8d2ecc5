"""Commit log, consume queues, recovery; README.md here explains the directory, what an acknowledgement means and how
a start goes."""

from aiorocket.storage.results import (
    PutResult,
    PutStatus,
    ReadResult,
    ReadStatus,
    Recovery,
    StoreBrokenError,
    StoreBusyError,
)
from aiorocket.storage.snapshots import Snapshot
from aiorocket.storage.store import MessageStore

__all__ = (
    "MessageStore",
    "PutResult",
    "PutStatus",
    "ReadResult",
    "ReadStatus",
    "Recovery",
    "Snapshot",
    "StoreBrokenError",
    "StoreBusyError",
)
