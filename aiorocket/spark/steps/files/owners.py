"""Which process holds a claim, and whether this machine knows that it has died."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

__all__ = ("is_dead", "named", "own")

_PROC = Path("/proc")


def own() -> bytes:
    """What this process writes into its claims: a line for people, and one for ``is_dead`` where there is ``/proc``."""
    said, here, began = f"process {os.getpid()} on {socket.gethostname()}\n", _here(), _began(os.getpid())
    if here is not None and began is not None:
        said += json.dumps([here, os.getpid(), began]) + "\n"
    return said.encode()


def named(text: bytes) -> str:
    """The process that wrote ``text``, for people."""
    return text.decode(errors="replace").partition("\n")[0] or "it does not say who"


def is_dead(text: bytes) -> bool:
    """Whether the process that wrote ``text`` is known to be dead: it ran since this boot of this machine and among the
    processes that can be seen from here, and its number is nobody's now, or that of one that began at another time.
    False when nobody can know, as of another machine or container."""
    try:
        there, pid, began = json.loads(text.split(b"\n")[1])
    except (ValueError, IndexError, TypeError):
        return False
    if there != _here() or not isinstance(there, list) or not isinstance(pid, int) or not 0 < pid < 1 << 31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # another user's
    now = _began(pid)
    return now is not None and now != began


def _here() -> list[str] | None:
    """Machine, boot, and which processes are seen in which time. A container has the first two of its host, or of
    another container. None where ``/proc`` does not say, or is about other processes than those that ``kill`` knows."""
    try:
        if os.readlink(_PROC / "self") != str(os.getpid()):
            return None
        own = _PROC / "self" / "ns"
        spaces = [os.readlink(own / name) for name in ("pid", "time") if name in os.listdir(own)]
        return [socket.gethostname(), (_PROC / "sys/kernel/random/boot_id").read_text().strip(), *spaces]
    except OSError:
        return None


def _began(pid: int) -> int | None:
    """When a process began, in ticks since the boot; None when that cannot be seen."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
        return int(stat.rpartition(")")[2].split()[19])  # behind the name, which may have anything in it
    except (OSError, IndexError, ValueError):
        return None
