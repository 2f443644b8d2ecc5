"""Looking at single messages (33). There is no key index, so 12 stays unserved and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket_protocol import (
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


class QueryHandlers:
    """Handlers for 12 and 33."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

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

    def query_message(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 12: "not found" would be a lie about messages that are there."""
        return RemotingCommand.response(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=" request type 12 not supported (QUERY_MESSAGE): this broker keeps no key index yet; "
            "look a message up by its offset id",
        )
