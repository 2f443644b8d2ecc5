"""The broker's configuration: GET_BROKER_CONFIG (26) and UPDATE_BROKER_CONFIG (25)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiorocket.broker.answers import refuse
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.tables import Tables
from aiorocket_protocol import (
    JSON,
    DataVersion,
    GetBrokerConfigResponseHeader,
    RemotingCommand,
    RequestCode,
    decode_configuration,
    encode_body,
    encode_configuration,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler

__all__ = ("SettingsHandlers",)

_log = logging.getLogger("aiorocket.broker")


class SettingsHandlers:
    """``save`` returns when a change is durable and name servers know of it; the administrator is answered after.
    ``port`` is what the broker listens on, ``boot`` when it began, in wall-clock milliseconds."""

    def __init__(self, tables: Tables, *, save: Callable[[], Awaitable[None]], port: int, boot: int) -> None:
        self._tables = tables
        self._save = save
        self._port = port
        self._boot = boot

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_BROKER_CONFIG: self.show,
            RequestCode.UPDATE_BROKER_CONFIG: self.change,
        }

    def show(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 26."""
        settings = self._tables.settings
        version = encode_body(DataVersion(self._boot, settings.version), JSON).decode()
        body = encode_configuration({**settings.properties(), "listenPort": str(self._port)})
        return RemotingCommand.response(header=GetBrokerConfigResponseHeader(version), body=body)

    async def change(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 25."""
        wanted = decode_configuration(command.body)
        if wanted.get("listenPort") == str(self._port):
            del wanted["listenPort"]
        changed = self._tables.settings.change(wanted)
        if isinstance(changed, Refusal):
            return refuse(changed)
        if changed:
            _log.warning(
                "settings changed by %s: %s", connection.peer, ", ".join(f"{k}={v}" for k, v in wanted.items())
            )
            self._tables.follow_settings()
        await self._save()  # also when nothing changed: an earlier request may not have come so far, or failed
        return RemotingCommand.response()
