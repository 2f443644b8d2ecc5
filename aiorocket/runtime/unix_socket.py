"""A unix socket to listen on, for this user only."""

from __future__ import annotations

import errno
import os
import socket
import stat

__all__ = ("unix_socket",)


def unix_socket(path: str) -> socket.socket:
    """Bound to ``path``, which nobody but this user may connect to. What an ended server left there is replaced.
    OSError; EADDRINUSE when somebody listens there, or when there is something else."""
    _clear(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        made.bind(path)
    except BaseException:
        made.close()
        raise
    finally:
        os.umask(before)
    return made


def _clear(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EADDRINUSE, "something that is no socket is there")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # its backlog is full: somebody listens
    raise OSError(errno.EADDRINUSE, "somebody listens there")
