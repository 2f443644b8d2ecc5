"""Lines of a server's log: what peers say in them stays within its line, and nobody fills a disk with them."""

from __future__ import annotations

import logging

__all__ = ("NotTooMany", "OneLine")

#: Control characters, which a name that a peer gave may have, as escapes.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(0x80, 0xA0))}
#: Lines of one kind in a second.
_MOST = 20


class OneLine(logging.Formatter):
    """A record is one line, and a traceback behind it, whatever is in its message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).translate(_ESCAPES)


class NotTooMany(logging.Filter):
    """At most 20 lines a second of one kind, which is the text before its values are in it; the first line of the kind
    in a later second says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        #: The second, lines of it, and how many were left out since one said so.
        self._said: dict[tuple[str, str], tuple[int, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.name, str(record.msg)
        if len(kind[1]) > 1000 or (kind not in self._said and len(self._said) >= 1000):
            kind = "", ""  # texts with their values in them already
        second = int(record.created)
        last, count, left_out = self._said.get(kind, (second, 0, 0))
        if second != last:
            count = 0
        if count >= _MOST:
            self._said[kind] = second, count, left_out + 1
            return False
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out:,} more lines like this were left out)"
            record.args = None
        self._said[kind] = second, count + 1, 0
        return True
