"""The life of a server, and its log."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import NamedTuple

import click

from aiorocket.cli.log_lines import NotTooMany, OneLine
from aiorocket.cli.running import run
from aiorocket.cli.stopping import stop_signals
from aiorocket.runtime.open_files import allow_most_files
from aiorocket.runtime.systemd import Notifier
from aiorocket.runtime.tasks import TaskScope

__all__ = (
    "LOG_FILE",
    "LOG_JSON",
    "LOG_KEEP",
    "LOG_LEVEL",
    "LOG_ROTATE",
    "Ready",
    "serve",
    "spare_the_collector",
)

#: Where a command keeps what its options say of the log, in its context's ``meta``.
LOG_LEVEL, LOG_JSON = "aiorocket.log_level", "aiorocket.log_json"
LOG_FILE, LOG_ROTATE, LOG_KEEP = "aiorocket.log_file", "aiorocket.log_rotate", "aiorocket.log_keep"


class Ready(NamedTuple):
    """``line`` says that a server is ready, and where; ``reload`` reads its access file and certificates again, None
    when it has none: SIGHUP is then what it always was."""

    line: str
    reload: Callable[[], object] | None


def serve(server: Callable[[], AbstractAsyncContextManager[Ready]]) -> None:
    """Run a server until Ctrl-C or SIGTERM; SIGHUP reloads it. Entering the context starts it."""
    allow_most_files()
    run(_serve(server))


class _JsonLines(logging.Formatter):
    """One object a line; ``time`` is UTC."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _log_handler() -> logging.Handler:
    """Where the options of the command say that its log goes: standard error, or a file, which is opened again when
    somebody else has moved it, or is rotated here by its size or its age. OSError when it cannot be opened."""
    wanted = click.get_current_context().meta
    path, rotate = wanted.get(LOG_FILE), wanted.get(LOG_ROTATE)
    if path is None:
        return logging.StreamHandler()
    # Imported here: it brings sockets, queues and pickle, and few log to a file.
    from logging.handlers import RotatingFileHandler, TimedRotatingFileHandler, WatchedFileHandler

    if rotate is None:
        return WatchedFileHandler(path, encoding="utf-8")
    number, unit, keep = int(rotate[:-1]), rotate[-1], wanted[LOG_KEEP]
    if unit in "kMG":
        size = number << {"k": 10, "M": 20, "G": 30}[unit]
        return RotatingFileHandler(path, maxBytes=size, backupCount=keep, encoding="utf-8")
    return TimedRotatingFileHandler(path, unit, number, keep, encoding="utf-8", utc=True)


class _Held(logging.Handler):
    """Keeps what is logged while a server starts: a start that fails is told in one line, its error's own."""

    def __init__(self) -> None:
        super().__init__()
        self.target = _log_handler()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def release_logs(self) -> None:
        """From now on to where the log goes, beginning with what was kept."""
        logging.getLogger().removeHandler(self)
        wanted = click.get_current_context().meta
        handler = self.target
        handler.setFormatter(_JsonLines() if wanted.get(LOG_JSON) else OneLine())
        handler.addFilter(NotTooMany())
        logging.basicConfig(handlers=[handler], level=str(wanted.get(LOG_LEVEL, "warning")).upper())
        for record in self.records:
            if record.levelno >= logging.getLogger().level:
                logging.getLogger().handle(record)


def spare_the_collector() -> None:
    """What a server holds after its start lives as long as it does, and messages in flight form no cycles: looking at
    them all the time cost 2.5 times as much (0.71 against 0.29 us per object held). Nor does what peers make grow: it
    is looked at twice while it is young, 20,000 at a time at the most, and then rarely, for all of it at once holds
    the loop (a million, after 200,000 pulls that wait, for 280 ms). A process of our own may do this; a library may
    not."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 0, 500)


async def _serve(server: Callable[[], AbstractAsyncContextManager[Ready]]) -> None:
    task = asyncio.current_task()
    assert task is not None
    stop = asyncio.Event()
    ready = False
    held, systemd, life = _Held(), Notifier(), TaskScope("life")
    logging.getLogger().addHandler(held)

    def stopping() -> None:
        stop.set()
        if not ready:
            task.cancel()  # still starting: recovery of a large store must not make a signal wait

    with stop_signals(stopping):
        try:
            async with server() as started:
                ready = True
                if started.reload is not None and hasattr(signal, "SIGHUP"):  # Windows has none
                    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, started.reload)
                click.echo(started.line)
                systemd.tell("READY=1", f"STATUS={started.line}")
                life.start(systemd.keep_alive(), name="watchdog")
                spare_the_collector()
                held.release_logs()
                logging.getLogger("aiorocket.audit").setLevel(logging.INFO)
                await stop.wait()
                systemd.tell("STOPPING=1")
        except asyncio.CancelledError:
            if not stop.is_set() or task.uncancel() > 0:
                raise
        finally:
            await life.close()
