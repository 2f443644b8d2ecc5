"""Opening the files of a store: lock the directory, recover the log, find the parts of the key index."""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import replace
from typing import NamedTuple

from aiorocket.config import StoreConfig
from aiorocket.errors import StoreError
from aiorocket.runtime.disk import Disk, Lock
from aiorocket.storage.checksums import read_entries, sums_path
from aiorocket.storage.compaction import finish_renames
from aiorocket.storage.files import last_written
from aiorocket.storage.key_index import Parts, load_parts
from aiorocket.storage.queue_recovery import Codes
from aiorocket.storage.recovery import Recovered, recover
from aiorocket.storage.walk import Found, walk

__all__ = ("Opened", "open_files")

_LOG = logging.getLogger("aiorocket.storage")

_MIN_FREE = 512 << 20


class Opened(NamedTuple):
    """``lock`` is the caller's to give back; ``config`` says how much of this disk is to stay free."""

    lock: Lock
    found: Recovered
    parts: Parts
    config: StoreConfig


#: Also a start needs a little room: it records what it found. What the log has reserved gives it.
_FULL = (errno.ENOSPC, errno.EDQUOT)


async def open_files(disk: Disk, config: StoreConfig, directory: str, codes: Codes) -> Opened:
    """Everything in the disk's thread. StoreLockedError, StoreCorruptedError, or StoreError for an unusable directory;
    the lock is free again then."""
    locks: list[Lock] = []
    try:
        return await disk.run(_open, disk, config, directory, codes, locks)
    except asyncio.CancelledError:
        # The disk's thread goes on with it; nobody else may begin before it has ended.
        disk.run(_give_back, locks)
        raise
    except BaseException as error:
        _give_back(locks)
        if isinstance(error, OSError):
            hint = "make room on the disk" if error.errno in _FULL else "give a directory this user may write to"
            raise StoreError(f"data directory {directory} cannot be used: {error}; {hint}") from error
        raise


def _open(disk: Disk, config: StoreConfig, directory: str, codes: Codes, locks: list[Lock]) -> Opened:
    """Blocking. The lock is in ``locks`` as soon as it is held, so that it can be given back whatever happens then."""
    disk.makedirs(directory)
    locks.append(disk.lock(f"{directory}/lock"))
    disk.makedirs(f"{directory}/commitlog")
    disk.makedirs(f"{directory}/consumequeue")
    # A process may have been killed between the making of a file and this; what is found now has to stay.
    disk.fsync_dir(f"{directory}/commitlog")
    if config.min_free < 0:
        config = replace(config, min_free=min(_MIN_FREE, disk.total_bytes(directory) // 20))
    finish_renames(disk, f"{directory}/commitlog")
    try:
        found = recover(disk, directory, config, codes)
    except OSError as error:
        if error.errno not in _FULL or not (room := _make_room(disk, f"{directory}/commitlog")):
            raise
        _LOG.warning("%s: %s; the log gives %d bytes back that it had reserved", directory, error, room)
        found = recover(disk, directory, config, codes)
    start = found.segments[0].base if found.segments else found.end
    return Opened(locks[0], found, load_parts(disk, f"{directory}/index", start, found.end), config)


def _make_room(disk: Disk, directory: str) -> int:
    """Blocking. Give back what the newest segments of a log reserved and never wrote, which reads as zeros before and
    after; how many bytes that is."""
    room = 0
    for name in reversed([name for name in disk.listdir(directory) if len(name) == 20 and name.isdigit()]):
        path = f"{directory}/{name}"
        entries = read_entries(disk, sums_path(path), int(name))
        file = disk.open(path)
        try:
            covered, size = 0 if entries is None else entries.end, file.size()
            written = max(last_written(file, covered), covered)
            for item in walk(disk, path, int(name), size, entries, int(name) + covered):
                if isinstance(item, Found):  # it may end with zeros: the length of no properties
                    written = max(written, item.offset + item.size - int(name))
            if written < size:
                file.truncate(written)
                file.fdatasync()
                room += size - written
        finally:
            file.close()
        if written:
            break
    return room


def _give_back(locks: list[Lock]) -> None:
    for lock in locks:
        lock.release()
