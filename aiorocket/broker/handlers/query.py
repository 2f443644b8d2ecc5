"""Looking at single messages: by key (12), by place in the log (33)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket_protocol import (
    EXT_UNIQUE_KEY_QUERY,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    ViewMessageRequestHeader,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.storage.store import MessageStore

__all__ = ("QueryHandlers",)

#: Messages of one answer (maxMsgsNumBatch), and of one to a look-up by UNIQ_KEY (defaultQueryMaxNum).
_MAX, _MAX_UNIQUE = 64, 32
#: indexType of a look-up by tag, which RocketMQ 5 has; "K" and "U" are keys, and so is none.
_TAG = "T"


class QueryHandlers:
    """Handlers for 12 and 33. ``max_bytes`` bounds the messages of one answer."""

    def __init__(self, store: MessageStore, *, max_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message,
            RequestCode.QUERY_MESSAGE: self.query_message,
        }

    def view_message(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 33: the stored record at a physical offset."""
        offset = command.read(ViewMessageRequestHeader).offset
        data = self._store.read_record(offset)
        if data is None:
            return RemotingCommand.response(
                ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {offset}"
            )
        return RemotingCommand.response(body=data)

    async def query_message(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 12: the newest messages of a topic with a key, oldest first. The answer's header says how far the index
        is: to the newest message, but for one that is far behind. Then the remark says so, and that nothing was found
        is no "not found"."""
        header = command.read(QueryMessageRequestHeader)
        unique = (command.ext_value(EXT_UNIQUE_KEY_QUERY) or "").lower() == "true"
        limit = _MAX_UNIQUE if unique else min(header.max_num, _MAX)
        found: list[bytes] = []
        missing = 0
        if limit > 0:
            found, missing = await self._store.keys.find(
                header.topic,
                header.key,
                header.begin_timestamp,
                header.end_timestamp,
                tag=header.index_type == _TAG and not unique,
                limit=limit,
                max_bytes=self._max_bytes,
            )
        told = QueryMessageResponseHeader(self._store.timestamp, self._store.max_physical)
        if missing:
            told = QueryMessageResponseHeader(*self._store.keys.reached)
            remark = f"the index of keys is behind: the newest {missing:,} bytes of the log are missing, ask again"
            code = ResponseCode.SUCCESS if found else ResponseCode.SYSTEM_BUSY
            return RemotingCommand.response(code, told, remark=remark, body=b"".join(found))
        if not found:
            return RemotingCommand.response(
                ResponseCode.QUERY_NOT_FOUND, told, remark="can not find message, maybe time range not correct"
            )
        return RemotingCommand.response(header=told, body=b"".join(found))
