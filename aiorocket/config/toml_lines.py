"""In which line of a TOML file a setting stands, which ``tomllib`` does not say."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ("line_of", "lines_of")

_TABLE = re.compile(r"\s*\[([^\[\]]+)\]")
_KEY = re.compile(r"""\s*([\w."' -]+?)\s*=""")


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The line, from 1, of each table and key in a file that ``tomllib`` has read."""
    lines, table = dict[tuple[str, ...], int](), tuple[str, ...]()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _TABLE.match(line):
            table = _parts(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_parts(key[1])), number)
    return lines


def line_of(lines: Mapping[tuple[str, ...], int], path: tuple[str, ...]) -> int | None:
    """The line of the key ``path``, or of what it stands in when it has none of its own, as in an inline table; None
    when neither is found."""
    return next((lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in lines), None)


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip(" \t\"'") for part in dotted.split("."))
