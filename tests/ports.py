"""Loopback ports for the servers that tests start as processes."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack, suppress

__all__ = ("claims", "free_port")

#: Below those that systems draw for outgoing connections.
PORTS = range(12_000, 32_000)
_claimed: list[socket.socket] = []


def free_port(*around: int) -> int:
    """A loopback port that is free, with its neighbours at the distances ``around``. None of them is given out again
    while this process lives, here or in another worker: a JVM takes seconds until it listens, and is started again."""
    distances = {0, *around}
    for _ in range(200):
        port = random.choice(PORTS)
        with ExitStack() as stack, suppress(OSError):
            claimed = [stack.enter_context(socket.socket()) for _ in distances]
            for each, distance in zip(claimed, distances, strict=True):
                each.bind(("127.0.0.1", port + distance))
                # From here a server that sets this too, as they all do, may listen there; a bare bind() may not.
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stack.pop_all()
            _claimed.extend(claimed)
            return port
    raise RuntimeError("no free loopback ports found in 200 attempts")


def claims() -> set[str]:
    """The sockets that hold what was given out, by inode: no test has left them behind."""
    return {os.readlink(f"/proc/self/fd/{each.fileno()}") for each in _claimed}
