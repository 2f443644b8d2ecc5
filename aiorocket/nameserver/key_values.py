"""Key-values: 100 to 102 and 219."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from aiorocket.nameserver.core.kv import KeyValues
from aiorocket.nameserver.state_file import StateFile
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import (
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
    RemotingCommand,
    ResponseCode,
    table_body,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection

__all__ = ("KeyValueHandlers",)


class KeyValueHandlers:
    """Changes are saved to ``file``, if there is one, before they are acknowledged."""

    def __init__(self, kv: KeyValues, file: StateFile | None) -> None:
        self._kv = kv
        self._file = file
        #: Changes, and how many of them are saved: what is asked for once more may be in memory alone.
        self._changes = self._saved = 0

    def put(self, connection: Connection, command: RemotingCommand) -> Any:
        """Code 100."""
        header = command.read(PutKVConfigRequestHeader)
        return self.changed(self._kv.put(header.namespace, header.key, header.value))

    def get(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 101."""
        header = command.read(GetKVConfigRequestHeader)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            return RemotingCommand.response(
                ResponseCode.QUERY_NOT_FOUND,
                remark=f"No config item, Namespace: {header.namespace:.200} Key: {header.key:.200}",
            )
        return RemotingCommand.response(header=GetKVConfigResponseHeader(value))

    def delete(self, connection: Connection, command: RemotingCommand) -> Any:
        """Code 102."""
        header = command.read(DeleteKVConfigRequestHeader)
        return self.changed(self._kv.delete(header.namespace, header.key))

    async def all_of(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 219."""
        namespace = command.read(GetKVListByNamespaceRequestHeader).namespace
        if self._kv.table(namespace) is None:
            remark = f"No config item, Namespace: {namespace:.200}"
            return RemotingCommand.response(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return RemotingCommand.response(body=await in_turns(self.written(namespace, connection.reply_type(command))))

    def written(self, namespace: str, serialize_type: int) -> Generator[None, None, bytes]:
        """A KVTable, little by little."""
        return table_body({}, "table", (self._kv.table(namespace) or {}).items(), lambda item: item, serialize_type)

    def changed(self, changed: bool) -> Any:
        """The answer."""
        self._changes += changed
        if self._file is not None and self._saved < self._changes:
            return self._save(self._file)
        return RemotingCommand.response()

    async def _save(self, file: StateFile) -> RemotingCommand:
        tables, changes = self._kv.to_dict(), self._changes
        await file.save(lambda: tables)
        self._saved = max(self._saved, changes)
        return RemotingCommand.response()
