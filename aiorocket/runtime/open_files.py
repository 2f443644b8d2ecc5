"""How many files, sockets among them, this process may have open."""

from __future__ import annotations

import sys

__all__ = ("allow_most_files", "most_files")

_UNBOUNDED = 1 << 30

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
