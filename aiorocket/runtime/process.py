"""Python in a process of its own."""

from __future__ import annotations

import subprocess
import sys

__all__ = ("last_words",)

#: The process that ends is to leave no core file.
_WITHOUT_A_CORE = "import resource, sys\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"


def last_words(code: str, *arguments: str) -> str | None:
    """What a process wrote to stderr that a signal ended as it ran ``code`` (``sys.argv[1:]`` are ``arguments``); None
    when it ended otherwise, well or with an error. Waits for it: not for a loop's thread."""
    given = [sys.executable, "-c", f"{_WITHOUT_A_CORE}{code}", *arguments]
    done = subprocess.run(given, capture_output=True, text=True, errors="replace")
    return done.stderr if done.returncode < 0 else None
