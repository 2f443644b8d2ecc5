"""Where a name server's key-values, and its users, live."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from aiorocket.runtime.env import Env
from aiorocket.storage.snapshots import Snapshot

__all__ = ("StateFile",)

_log = logging.getLogger("aiorocket.nameserver")


class StateFile:
    """A snapshot ``name`` of two generations in ``directory``, which is made when it is loaded."""

    def __init__(self, env: Env, directory: str, name: str) -> None:
        self._disk = env.disk
        self._directory = directory
        self._snapshot = Snapshot(env.disk, f"{directory}/{name}")

    async def load(self) -> dict[str, Any]:
        """What was saved last, nothing when nothing was. StoreCorruptedError when both generations are damaged; of one
        the log tells, for what it said last may be lost: a user who was deleted is there again."""

        def load() -> dict[str, Any]:
            self._disk.makedirs(self._directory)
            return self._snapshot.load() or {}

        loaded = await self._disk.run(load)
        if self._snapshot.problems:
            problems = "; ".join(self._snapshot.problems)
            _log.warning("%s is damaged, what was changed last may be lost: %s", self._snapshot.path, problems)
        return loaded

    async def save(self, content: Callable[[], dict[str, Any]]) -> None:
        """Durable when it returns. The disk's thread calls ``content``. OSError."""
        await self._disk.run(lambda: self._snapshot.save(content()))
