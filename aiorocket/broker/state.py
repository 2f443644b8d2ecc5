"""The broker's small state: topics, groups, offsets, delay progress and queue locks, saved as snapshots when they
changed.

Topics are saved at once, in the disk's one writer thread, and before the first message of a new topic can be stored
(``ahead``); many that are made side by side share few saves. A queue lock is granted when it is
saved. The rest is saved every few seconds and at the end: a crash costs repeated deliveries, never a lost message. What
says how far something has come is saved behind a sync of the log: with ``flush="async"`` it would outlive the copies
that it passes in a power cut. A table that may have hundreds of thousands of entries is read in turns, and its saves
follow one another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Generator, Mapping
from typing import Any, Protocol, cast

from aiorocket.broker.core.turns import A_TURN
from aiorocket.errors import StoreCorruptedError
from aiorocket.runtime.disk import Disk
from aiorocket.runtime.turns import in_turns
from aiorocket.storage.snapshots import Snapshot

__all__ = ("BrokerState",)

_log = logging.getLogger("aiorocket.broker")

#: Tables that say how far something has come.
_BEHIND = ("offsets", "delays", "timers", "transactions", "sent")


class Table(Protocol):
    """What can be saved: ``version`` differs from the saved one when there is something to save."""

    @property
    def version(self) -> int: ...

    def to_dict(self) -> dict[str, Any]: ...

    def load(self, data: Mapping[str, Any]) -> None: ...


class LargeTable(Table, Protocol):
    """One that is read in turns when it has many entries; what is there when a save begins is in it."""

    def __len__(self) -> int: ...

    def in_turns(self) -> Generator[None, None, dict[str, Any]]: ...


class ListTable(Table, Protocol):
    """One whose entries are values, and none of those that wait for the log: ``later`` is ``to_dict`` of now, to be
    called in the disk's thread. A save writes what is newest when it begins; those behind it find their news there."""

    def later(self) -> Callable[[], dict[str, Any]]: ...


class _Saved:
    __slots__ = ("large", "listed", "running", "snapshot", "table", "version", "waits", "wanted", "written")

    def __init__(self, table: Table, snapshot: Snapshot) -> None:
        self.table = table
        # Known by what only they have: to ask for all of a protocol's methods was a tenth of a broker's start.
        self.large = cast("LargeTable", table) if hasattr(table, "in_turns") else None
        self.listed = cast("ListTable", table) if hasattr(table, "later") else None
        self.snapshot = snapshot
        self.version = table.version
        self.running: asyncio.Future[None] | None = None
        #: The newest version that a job is to write, and what makes it; set by the loop.
        self.wanted: tuple[int, Callable[[], dict[str, Any]]] = (self.version, table.to_dict)
        #: A job that will write what is wanted has not begun.
        self.waits = False
        #: The version that is written; the disk's thread's own.
        self.written: int | None = None

    def write(self) -> None:
        """Blocking: make what is wanted durable, unless a job before this one has."""
        self.waits = False  # first: what is wanted from now on has a job of its own
        version, content = self.wanted
        if self.written != version:
            self.snapshot.save(content())
            self.written = version


class BrokerState:
    """Named tables in one directory. Those named ``replaceable`` start anew when their file cannot be trusted; those
    that say how far something has come are saved by ``behind_sync`` (that of the store), else at once. ``ahead`` is
    told of saves that have to be done before what is appended to the store from then on."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        tables: Mapping[str, Table],
        replaceable: Container[str] = (),
        behind_sync: Callable[..., asyncio.Future[None]] | None = None,
        ahead: Callable[[asyncio.Future[None]], None] = lambda job: None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._replaceable = replaceable
        self._behind_sync = behind_sync or disk.run
        self._ahead = ahead
        #: Tables whose newest state was not found by ``load``: there is no file, or one of its generations is damaged.
        self.lost: set[str] = set()
        #: ``load`` found no file at all, good or bad.
        self.new = True
        self._saved = {name: _Saved(table, Snapshot(disk, f"{directory}/{name}")) for name, table in tables.items()}

    async def load(self) -> None:
        """Fill the tables from what was saved last. StoreCorruptedError when both generations of a file are damaged,
        unless its table is replaceable; it says what to do. What is whole and cannot be read back is left out."""

        def read() -> list[dict[str, Any] | None]:
            self._disk.makedirs(self._directory)
            return [self._read(name, saved.snapshot) for name, saved in self._saved.items()]

        for (name, saved), data in zip(self._saved.items(), await self._disk.run(read), strict=True):
            if data is None or saved.snapshot.problems:
                self.lost.add(name)
            if data is not None or saved.snapshot.problems:
                self.new = False
            if data is not None:
                try:
                    saved.table.load(data)
                except (LookupError, TypeError, ValueError) as error:
                    saved.snapshot.problems.append(f"{type(error).__name__}: {error}")
                    self.lost.add(name)
            if saved.snapshot.problems:
                _log.warning("%s of %s is damaged: %s", name, self._directory, "; ".join(saved.snapshot.problems))
            saved.version = saved.table.version

    def _read(self, name: str, snapshot: Snapshot) -> dict[str, Any] | None:
        try:
            return snapshot.load()
        except StoreCorruptedError as error:
            if name not in self._replaceable:
                raise StoreCorruptedError(
                    f"{error}; restore one of the two from a copy, or let `aiorocket store repair` put both aside: the"
                    f" broker then begins with no {name}"
                ) from None
            return None

    def save(self, name: str) -> asyncio.Future[None]:
        """Begin to save ``name`` now; await the result to know that it is durable (OSError). Nothing to do is done. Who
        is cancelled waits no longer; the save goes on, for it is others' too."""
        return asyncio.shield(self._save(name))

    def _save(self, name: str) -> asyncio.Future[None]:
        saved = self._saved[name]
        version = saved.table.version
        if version == saved.version:
            return saved.running if saved.running is not None else _done()
        run = self._behind_sync if name in _BEHIND else self._disk.run
        job: asyncio.Future[None]
        large, listed = saved.large, saved.listed
        if large is not None and (len(large) > A_TURN or isinstance(saved.running, asyncio.Task)):
            save = _in_turns(large, saved.snapshot, run, saved.running)
            job = asyncio.get_running_loop().create_task(save, name=f"save {name}")
        elif listed is not None:
            saved.wanted = version, listed.later()
            saved.waits = True
            job = self._disk.run(saved.write)
        else:
            job = run(saved.snapshot.save, saved.table.to_dict())
        saved.version, saved.running = version, job  # not before there was memory for it
        job.add_done_callback(lambda job: self._finished(saved, name, job))
        return job

    def begin(self, name: str) -> None:
        """Begin to save ``name`` now, before what is appended to the store from now on; failures are logged and tried
        again with the next save. A job that waits for the disk takes it along: thousands of topics made side by side
        would have one each in memory."""
        saved = self._saved[name]
        if saved.waits and saved.listed is not None:
            saved.wanted = saved.table.version, saved.listed.later()
            if saved.waits:  # still: it has not looked
                saved.version = saved.table.version
                return
        self._ahead(self._save(name))

    async def save_all(self) -> None:
        """Save whatever changed; what fails is logged and tried again with the next save."""
        for name in self._saved:
            try:
                await self.save(name)
            except OSError:
                continue  # logged by _finished, which also marks it as unsaved
            except MemoryError:  # it must not end what saves every few seconds
                _log.error("%s of %s could not be saved: there is no memory", name, self._directory)

    async def keep_saving(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            await self.save_all()

    def _finished(self, saved: _Saved, name: str, job: asyncio.Future[None]) -> None:
        if saved.running is job:
            saved.running = None
        if job.cancelled():
            saved.version, saved.waits = -1, False  # before the disk's thread came to it, perhaps
        elif (error := job.exception()) is not None:
            saved.version = -1
            _log.error("%s of %s could not be saved: %s", name, self._directory, error)


async def _in_turns(
    table: LargeTable, snapshot: Snapshot, run: Callable[..., asyncio.Future[None]], before: asyncio.Future[None] | None
) -> None:
    """Save a table, when the save ``before`` it is over."""
    if before is not None:
        await asyncio.wait([before])
    await run(snapshot.save, await in_turns(table.in_turns()))


def _done() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future
