"""How many files, sockets among them, this process may have open."""

from __future__ import annotations

import os
import sys

__all__ = ("allow_most_files", "most_files", "open_files")

_UNBOUNDED = 1 << 30


def open_files() -> int | None:
    """How many are open; None where the system has no ``/proc``."""
    try:
        # Linux says their number as the directory's size since 6.2; a list of 20,000 takes milliseconds.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


if sys.platform == "win32":

    def most_files() -> int:
        return _UNBOUNDED

    def allow_most_files() -> None: ...

else:
    import resource

    def most_files() -> int:
        """What ``ulimit -n`` allows now."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return _UNBOUNDED if soft == resource.RLIM_INFINITY else soft

    def allow_most_files() -> None:
        """As many as this user may have, as Java does: shells give 1,024, which a few hundred clients and queues use
        up."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            if soft != hard:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # macOS allows less than it says; it stays as it is
