"""The name server's key-value configuration: namespaces of strings (RocketMQ keeps ordered topics' queue lists
there)."""

from __future__ import annotations

from collections.abc import Mapping

from aiorocket.config import Limits
from aiorocket.errors import BackPressureError
from aiorocket_protocol.forms import check_unicode

__all__ = ("KeyValues",)


class KeyValues:
    """(namespace, key) → value. ``put`` and ``delete`` return whether anything changed and must be saved."""

    def __init__(self, most: int = Limits().key_values) -> None:
        self._tables: dict[str, dict[str, str]] = {}
        self._most = most
        self._size = 0

    def put(self, namespace: str, key: str, value: str) -> bool:
        """BackPressureError when all of them would pass the limit ``key_values``, ProtocolError for what is no
        Unicode."""
        check_unicode(namespace, key, value, where="key-value")
        table = self._tables.get(namespace, {})
        before = table.get(key)
        if before == value:
            return False
        more = len(value) - len(before) if before is not None else _size(namespace, key, value)
        if more > 0 and self._size + more > self._most:
            what = f"{key:.100} of {namespace:.100} is not kept"
            raise BackPressureError(f"{what}: the name server's limit key_values={self._most} is reached")
        self._size += more
        self._tables.setdefault(namespace, table)[key] = value
        return True

    def get(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> bool:
        table = self._tables.get(namespace, {})
        value = table.pop(key, None)
        if value is None:
            return False
        self._size -= _size(namespace, key, value)
        if not table:
            del self._tables[namespace]
        return True

    def table(self, namespace: str) -> dict[str, str] | None:
        table = self._tables.get(namespace)
        return dict(table) if table else None

    def to_dict(self) -> dict[str, dict[str, str]]:
        return {namespace: dict(table) for namespace, table in self._tables.items() if table}

    def load(self, data: Mapping[str, Mapping[str, str]]) -> None:
        self._tables = {str(namespace): {str(k): str(v) for k, v in table.items()} for namespace, table in data.items()}
        self._size = sum(_size(name, *item) for name, table in self._tables.items() for item in table.items())


def _size(namespace: str, key: str, value: str) -> int:
    return 200 + len(namespace) + len(key) + len(value)
