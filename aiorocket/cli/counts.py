"""``1 line``, ``2 lines``."""

from __future__ import annotations

__all__ = ("counted",)


def counted(number: int, noun: str) -> str:
    """The number and its noun, whose plural is formed with an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
