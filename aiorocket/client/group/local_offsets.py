"""Offsets of a broadcasting member: nobody else reads its queues for the group, so they lie in a file beside it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from aiorocket.client.core.offsets import read_offset_file, write_offset_file
from aiorocket.errors import StoreError
from aiorocket.model import Queue
from aiorocket.runtime.disk import Disk
from aiorocket_protocol import ProtocolError

__all__ = ("DEFAULT_DIRECTORY", "LocalOffsets", "offset_path")

log = logging.getLogger("aiorocket.client")

#: Java's: a group that moves from a Java client to this one goes on where it was.
DEFAULT_DIRECTORY = "~/.rocketmq_offsets"


def offset_path(directory: str | None, client_id: str, group: str) -> str:
    """``<directory>/<clientId>/<group>/offsets.json``."""
    return os.path.join(os.path.expanduser(directory or DEFAULT_DIRECTORY), client_id, group, "offsets.json")


class LocalOffsets:
    """The OffsetStore of one group in one file. It is replaced as a whole, and what it was before stays beside it as
    ``.bak``, for the day it is found torn. ``path`` is asked for at the first use: the client id in it is known from
    the first connection on."""

    def __init__(self, disk: Disk, path: Callable[[], str]) -> None:
        self._disk = disk
        self._path = path
        self._found: str | None = None
        self._offsets: dict[Queue, int] | None = None
        self._loading = asyncio.Lock()

    @property
    def path(self) -> str:
        if self._found is None:
            self._found = self._path()
        return self._found

    async def read(self, queue: Queue) -> int:
        """The stored offset, -1 when there is none. StoreError when the file is there and neither it nor its backup can
        be read: beginning somewhere else would be a guess."""
        return (await self._loaded()).get(queue, -1)

    async def write(self, due: list[tuple[Queue, int]]) -> dict[Queue, Exception]:
        """Store these offsets durably, beside those of queues that are not mentioned. The failures by queue."""
        try:
            offsets = await self._loaded()
            wanted = {**offsets, **dict(due)}
            await self._disk.run(self._replace, write_offset_file(wanted))
        except (OSError, StoreError) as error:
            failure = error if isinstance(error, StoreError) else StoreError(f"{self.path}: {error}")
            return {queue: failure for queue, _ in due}
        offsets.update(due)
        return {}

    async def _loaded(self) -> dict[Queue, int]:
        async with self._loading:
            if self._offsets is None:
                self._offsets = await self._disk.run(self._load)
        return self._offsets

    # -- in the disk's thread --

    def _load(self) -> dict[Queue, int]:
        found = False
        for path in (self.path, self.path + ".bak"):
            try:
                offsets = read_offset_file(self._disk.read_bytes(path))
            except FileNotFoundError:
                continue
            except (OSError, ProtocolError) as error:
                found = True
                log.warning("offset file %s cannot be read: %s", path, error)
                continue
            if found:
                log.warning("going on with the backup %s", path)
            return offsets
        if found:
            raise StoreError(f"neither {self.path} nor its .bak can be read: repair or remove them")
        return {}

    def _replace(self, data: bytes) -> None:
        disk, path = self._disk, self.path
        disk.makedirs(os.path.dirname(path))
        try:
            before = disk.read_bytes(path)
            read_offset_file(before)
        except (FileNotFoundError, ProtocolError):
            pass  # nothing to keep: a torn file must not replace a good backup
        else:
            disk.replace(path + ".bak", before)
        disk.replace(path, data)
