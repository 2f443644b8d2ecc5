"""Times as people give them."""

from __future__ import annotations

from datetime import datetime

from aiorocket.errors import UsageError

__all__ = ("Moment", "millis")

#: An aware datetime, or milliseconds since 1970.
Moment = datetime | int


def millis(name: str, value: Moment | None) -> int | None:
    """``value`` in milliseconds; UsageError names the argument ``name``."""
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UsageError(f"{name}={value!r}: the time needs a zone, such as datetime.now(UTC)")
        return int(value.timestamp() * 1000)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{name}={value!r}: an aware datetime or milliseconds since 1970")
    return value
