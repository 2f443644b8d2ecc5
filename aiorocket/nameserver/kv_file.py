"""Where a name server's key-values live."""

from __future__ import annotations

from typing import Any

from aiorocket.runtime.env import Env
from aiorocket.storage.snapshots import Snapshot

__all__ = ("KvFile",)


class KvFile:
    """A snapshot of two generations in ``directory``, which is made when it is loaded."""

    def __init__(self, env: Env, directory: str) -> None:
        self._disk = env.disk
        self._directory = directory
        self._snapshot = Snapshot(env.disk, f"{directory}/kvConfig")

    async def load(self) -> dict[str, dict[str, str]]:
        def load() -> dict[str, Any]:
            self._disk.makedirs(self._directory)
            return self._snapshot.load() or {}

        return await self._disk.run(load)

    async def save(self, tables: dict[str, dict[str, str]]) -> None:
        await self._disk.run(self._snapshot.save, tables)
