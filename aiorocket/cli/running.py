"""From a command into the event loop and back: exit codes, one-line errors. Needs neither asyncio nor a client."""

from __future__ import annotations

import errno
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click

import aiorocket
from aiorocket.cli.show import visible

__all__ = ("INTERRUPTED", "run", "told_in_a_line")

T = TypeVar("T")

#: Exit code of a client command that Ctrl-C or SIGTERM ended before its work was done (128 + SIGINT, as shells count).
INTERRUPTED = 130


def run(work: Coroutine[object, object, T]) -> T:
    """The result of ``work``, errors as of ``told_in_a_line``."""
    with told_in_a_line():
        return aiorocket.run(work)


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """An error that a user can act on becomes one line on standard error and exit code 1."""
    try:
        yield
    except (aiorocket.RocketError, aiorocket.ProtocolError) as error:
        # What servers and members say may be anything.
        raise click.ClickException("\n".join(map(visible, str(error).split("\n")))) from error
    except BrokenPipeError:
        raise  # whoever read our output is gone: click ends the process without a word
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            where += "a directory is needed here and something else is in its place; give another one. "
        raise click.ClickException(f"{where}{error.strerror or error}") from error
