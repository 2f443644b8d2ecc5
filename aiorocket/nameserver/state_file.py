"""Where a name server's key-values, and its users, live."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from aiorocket.errors import StoreLockedError
from aiorocket.runtime.disk import Lock
from aiorocket.runtime.env import Env
from aiorocket.storage.snapshots import Snapshot

__all__ = ("StateFile",)

_log = logging.getLogger("aiorocket.nameserver")


class StateFile:
    """A snapshot ``name`` of two generations in ``directory``, which is made when it is loaded. It is one server's from
    then until ``close``: of two each would save what it knows alone over what the other has acknowledged."""

    def __init__(self, env: Env, directory: str, name: str) -> None:
        self._disk = env.disk
        self._directory = directory
        self._snapshot = Snapshot(env.disk, f"{directory}/{name}")
        self._lock: Lock | None = None

    async def load(self) -> dict[str, Any]:
        """What was saved last, nothing when nothing was. StoreLockedError when it is another server's.
        StoreCorruptedError when both generations are damaged; of one the log tells, for what it said last may be lost:
        a user who was deleted is there again."""
        path = self._snapshot.path

        def load() -> dict[str, Any]:
            self._disk.makedirs(self._directory)
            try:
                if self._lock is None:  # else a start that failed has it
                    self._lock = self._disk.lock(f"{path}.lock")
            except StoreLockedError:
                text = f"{path} is another name server's, which is running; stop it or give this one its own"
                raise StoreLockedError(text) from None
            return self._snapshot.load() or {}

        loaded = await self._disk.run(load)
        if self._snapshot.problems:
            problems = "; ".join(self._snapshot.problems)
            _log.warning("%s is damaged, what was changed last may be lost: %s", path, problems)
        return loaded

    async def save(self, content: Callable[[], dict[str, Any]]) -> None:
        """Durable when it returns. The disk's thread calls ``content``. OSError."""
        await self._disk.run(lambda: self._snapshot.save(content()))

    def close(self) -> None:
        """Another server may have it."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
