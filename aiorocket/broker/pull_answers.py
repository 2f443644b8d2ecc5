"""What a read means for a pull: the answer, or that it may wait."""

from __future__ import annotations

from aiorocket.storage.results import ReadResult, ReadStatus
from aiorocket_protocol import PullMessageResponseHeader, RemotingCommand, ResponseCode

__all__ = ("found", "has_seen_all", "is_at_end", "not_found")

_new = tuple.__new__

#: Statuses of an empty pull that long polling turns into a wait, given that the offset asked for is the queue's end.
_HELD = frozenset({ReadStatus.OFFSET_OVERFLOW_ONE, ReadStatus.OFFSET_FOUND_NULL})
_EMPTY = frozenset({ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE})
_RETRY = frozenset({ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING})


def has_seen_all(result: ReadResult) -> bool:
    """News, and none for this filter."""
    return result.status is ReadStatus.NO_MATCHED_MESSAGE and result.next_offset >= result.max_offset


def is_at_end(result: ReadResult, offset: int) -> bool:
    """Nothing there yet, and the next message will have the offset asked for: worth waiting."""
    return result.status in _HELD or (result.status in _EMPTY and offset == 0)


def _header(result: ReadResult) -> PullMessageResponseHeader:
    # All four numbers, whatever the code: Java decodes this header for 0, 19, 20 and 21 and fails without one of them.
    return _new(
        PullMessageResponseHeader, (0, result.next_offset, result.min_offset, result.max_offset, None, None, None, None)
    )


def found(result: ReadResult) -> RemotingCommand:
    return RemotingCommand.response(0, _header(result), remark="FOUND")


def not_found(result: ReadResult, offset: int) -> RemotingCommand:
    status = result.status
    if status in _HELD or (status in _EMPTY and offset == 0):
        code = ResponseCode.PULL_NOT_FOUND
    elif status in _RETRY:
        code = ResponseCode.PULL_RETRY_IMMEDIATELY
    else:
        code = ResponseCode.PULL_OFFSET_MOVED
    return RemotingCommand.response(int(code), _header(result), remark=status.name)
