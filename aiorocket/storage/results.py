"""What the store answers: plain tuples and enums, and the two refusals that are not about space."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from aiorocket.errors import StoreError
from aiorocket.storage.walk import Bad

__all__ = (
    "Damage",
    "PutResult",
    "PutStatus",
    "ReadResult",
    "ReadStatus",
    "Recovery",
    "StoreBrokenError",
    "StoreBusyError",
    "TopicGoingError",
)


class StoreBusyError(StoreError):
    """More bytes wait for the disk than ``StoreConfig.max_pending`` allows; nothing was stored, trying again later is
    right."""


class TopicGoingError(StoreBusyError):
    """The topic is being deleted; whatever is for another is taken."""


class StoreBrokenError(StoreError):
    """The disk failed a write or a sync. What had been promised stands, nothing more is accepted until a restart."""


class PutStatus(Enum):
    """OK: as durable as the flush mode promises. FULL: not stored, no space. BROKEN: the disk failed, may or may not
    be stored. BUSY exists for callers that map ``StoreBusyError`` to a status; the store itself raises it."""

    OK = 0
    FULL = 1
    BUSY = 2
    BROKEN = 3


class PutResult(NamedTuple):
    """Outcome of one append. Offsets are those of the first message; ``physical_offsets`` has all of a batch, else
    nothing."""

    status: PutStatus
    physical_offset: int
    queue_offset: int
    store_timestamp: int
    physical_offsets: tuple[int, ...] = ()


class ReadStatus(Enum):
    """RocketMQ's GetMessageStatus; the names are the remark of a pull answer."""

    FOUND = 0
    NO_MATCHED_LOGIC_QUEUE = 1
    NO_MESSAGE_IN_QUEUE = 2
    OFFSET_TOO_SMALL = 3
    OFFSET_OVERFLOW_ONE = 4
    OFFSET_OVERFLOW_BADLY = 5
    OFFSET_FOUND_NULL = 6
    NO_MATCHED_MESSAGE = 7
    MESSAGE_WAS_REMOVING = 8

    # An Enum hashes its name by a call of Python code; every pull looks its status up in a set.
    __hash__ = object.__hash__


class ReadResult(NamedTuple):
    """``pieces`` are ``count`` stored records back to back, ready to be sent: few and large, or one; the offsets are
    queue offsets."""

    status: ReadStatus
    pieces: Sequence[bytes]
    next_offset: int
    min_offset: int
    max_offset: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody asks of a result

    @property
    def data(self) -> bytes:
        """The records as one buffer."""
        return b"".join(self.pieces)


class Damage(NamedTuple):
    """A range of the log that is not served any more: log offsets ``offset`` to ``end`` of ``file``. ``lost`` are the
    messages that stood there: (topic, queue id, first queue offset, number)."""

    file: str
    offset: int
    end: int
    reason: str
    lost: tuple[tuple[str, int, int, int], ...]

    @property
    def messages(self) -> int:
        """How many they are."""
        return sum(count for *_, count in self.lost)


class Recovery(NamedTuple):
    """What opening a store found and did. ``records`` and ``scanned_bytes`` count what was read again since the last
    checkpoint."""

    records: int
    scanned_bytes: int
    #: Bytes of a torn tail that were cut off; they had never been promised to anybody.
    truncated_bytes: int
    #: Why the tail ended where it did, in words; empty when nothing was cut.
    reason: str
    #: The last stop was a clean one.
    clean: bool
    #: The consume queues did not fit the log and were made again from its beginning.
    rebuilt: bool
    queues: int
    end: int
    #: Ranges of the log that were found damaged by this start and were not known before.
    damaged: tuple[Bad, ...] = ()
