"""Times as users write them."""

from __future__ import annotations

import re
from datetime import datetime

__all__ = ("iso_time", "plain_millis")

_DATE = r"\d{4}-?(?:\d\d-?\d\d|W\d\d(?:-?\d)?)"
_ISO = re.compile(rf"{_DATE}(?:[Tt ].+)?", re.ASCII)


def iso_time(text: str) -> datetime:
    """A date or a time in ISO 8601, naive where it names no zone; ValueError. Between date and time stands a T or a
    blank: Python takes any sign for it, and ``2026-01-01+02:00`` for two o'clock."""
    if not _ISO.fullmatch(text):
        raise ValueError(f"no time in ISO 8601: {text!r:.50}")
    return datetime.fromisoformat(text)


def plain_millis(text: str) -> int | None:
    """Milliseconds since 1970 where ``text`` is a number that fits into 63 bits, else None. ValueError for eight digits
    that are a date too, such as 20260101: as milliseconds they would be a time on the first day of 1970."""
    if not (text.isascii() and text.isdigit()):
        return None
    if len(text) == 8 and text >= "1970" and _is_date(text):
        raise ValueError(f"{text} may be a date or milliseconds: a date is {text[:4]}-{text[4:6]}-{text[6:]}")
    return int(text) if len(text) < 20 and int(text) < 1 << 63 else None


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
