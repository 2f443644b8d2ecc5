"""From a command into the event loop and back: exit codes, one-line errors. Needs neither asyncio nor a client."""

from __future__ import annotations

import errno
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click

import aiorocket
from aiorocket.cli.options import BadInputError
from aiorocket.cli.show import visible

__all__ = ("in_lines", "run", "told_in_a_line")

T = TypeVar("T")

#: ResponseCode.NO_PERMISSION, without the import of all codes.
_NO_PERMISSION = 16
#: What its remark has when signing in as somebody else would not help: it says what does, or it is about a topic, a
#: group or a setting (the last of Apache's brokers).
_NOT_WHO = ("--", "access file", "forbidden", "not writable", "not allowed to set", "is fixed", "black list")


def run(work: Coroutine[object, object, T]) -> T:
    """The result of ``work``, errors as of ``told_in_a_line``."""
    with told_in_a_line():
        return aiorocket.run(work)


def in_lines(error: Exception) -> str:
    """Its text for a terminal: what servers and members say may be anything."""
    return "\n".join(map(visible, str(error).split("\n")))


@contextmanager
def told_in_a_line(credentials: str = "--credentials") -> Iterator[None]:
    """An error that a user can act on becomes one line on standard error and exit code 1, or 2 for a name that cannot
    be. ``credentials`` is where the command takes them from."""
    try:
        yield
    except (aiorocket.RocketError, aiorocket.ProtocolError) as error:
        kind = BadInputError if isinstance(error, aiorocket.BadNameError) else click.ClickException
        text = in_lines(error)
        refused = isinstance(error, aiorocket.RemoteError) and error.code == _NO_PERMISSION
        if refused and not any(words in text for words in _NOT_WHO):
            text += f"; sign in as one who may ({credentials})"
        raise kind(text) from error
    except BrokenPipeError:
        raise  # whoever read our output is gone: click ends the process without a word
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            where += "a directory is needed here and something else is in its place; give another one. "
        told = error.strerror or str(error) or "time is up"  # of a TimeoutError
        told = told.partition("\n")[0]  # libraries' may go on for pages
        raise click.ClickException(f"{where}{told}") from error
