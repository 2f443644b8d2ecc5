"""The name server's key-value configuration: namespaces of strings (RocketMQ keeps ordered topics' queue lists
there)."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ("KeyValues",)


class KeyValues:
    """(namespace, key) → value. ``put`` and ``delete`` return whether anything changed and must be saved."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, str]] = {}

    def put(self, namespace: str, key: str, value: str) -> bool:
        table = self._tables.setdefault(namespace, {})
        if table.get(key) == value:
            return False
        table[key] = value
        return True

    def get(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> bool:
        return self._tables.get(namespace, {}).pop(key, None) is not None

    def table(self, namespace: str) -> dict[str, str] | None:
        table = self._tables.get(namespace)
        return dict(table) if table else None

    def to_dict(self) -> dict[str, dict[str, str]]:
        return {namespace: dict(table) for namespace, table in self._tables.items() if table}

    def load(self, data: Mapping[str, Mapping[str, str]]) -> None:
        self._tables = {str(namespace): {str(k): str(v) for k, v in table.items()} for namespace, table in data.items()}
