"""Up to 128 records of one queue in memory, as they were written: what the tail cache is made of."""

from __future__ import annotations

__all__ = ("BLOCK_MASK", "BLOCK_SHIFT", "Block")

#: Blocks are aligned by queue offset.
BLOCK_SHIFT = 7
BLOCK_MASK = (1 << BLOCK_SHIFT) - 1


class Block:
    """Records ``first`` to ``first + len(records)`` of one queue; their sizes and tags codes beside them.

    The first record of a batch stands in ``records`` with all bytes of the batch, the others as nothing: what is read
    from the first of one batch to the last of another is a plain join.
    """

    __slots__ = ("codes", "first", "records", "size", "sizes")

    def __init__(self, first: int) -> None:
        self.first = first
        self.size = 0
        self.records: list[bytes] = []
        self.sizes: list[int] = []
        self.codes: list[int] = []

    def before(self, index: int) -> tuple[int, int]:
        """Where the bytes of record ``index`` are: in which of ``records``, behind how many bytes."""
        head = index
        while not self.records[head]:
            head -= 1
        return head, sum(self.sizes[head:index])
