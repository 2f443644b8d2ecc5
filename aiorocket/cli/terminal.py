"""What a command needs to know before it knows anything: how wide the terminal is, and how it ends when interrupted.
Nothing is imported here, so that ``--help`` starts quickly."""

from __future__ import annotations

import os
import sys

__all__ = ("INTERRUPTED", "columns")

#: Exit code of a client command that Ctrl-C or SIGTERM ended before its work was done (128 + SIGINT, as shells count).
INTERRUPTED = 130


def columns() -> int:
    """As ``shutil.get_terminal_size``, with which all kinds of archives would come."""
    try:
        found = int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        found = 0
    if found <= 0:
        try:
            found = os.get_terminal_size(sys.__stdout__.fileno()).columns if sys.__stdout__ is not None else 0
        except (ValueError, OSError):  # closed, or no terminal
            found = 0
    return found if found > 0 else 80
