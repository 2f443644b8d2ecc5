"""The name server's configuration: GET_NAMESRV_CONFIG (319) and UPDATE_NAMESRV_CONFIG (318).

What may change while it runs is kept among the key-values, in a namespace of its own; the rest is shown and refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiorocket.config import NameServerConfig
from aiorocket.nameserver.core.kv import KeyValues
from aiorocket_protocol import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_configuration,
    encode_configuration,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler

__all__ = ("SettingsHandlers",)

_log = logging.getLogger("aiorocket.nameserver")

#: The namespace of settings that were changed.
NAMESPACE = "NAMESRV_CONFIG"
#: RocketMQ's name -> what it is until it is changed.
CHANGEABLE = {"orderMessageEnable": "true"}


class SettingsHandlers:
    """``port`` says what the server listens on, ``changed`` answers when the key-values are saved."""

    def __init__(
        self, config: NameServerConfig, kv: KeyValues, *, port: Callable[[], int], changed: Callable[[bool], Any]
    ) -> None:
        self._config = config
        self._kv = kv
        self._port = port
        self._changed = changed

    def codes(self) -> dict[int, RequestHandler]:
        return {RequestCode.GET_NAMESRV_CONFIG: self.show, RequestCode.UPDATE_NAMESRV_CONFIG: self.change}

    @property
    def order_topics(self) -> bool:
        """Whether routes say how ordered topics are divided (orderMessageEnable)."""
        return self._value("orderMessageEnable") == "true"

    def show(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 319."""
        return RemotingCommand.response(body=encode_configuration(self._properties()))

    def change(self, connection: Connection, command: RemotingCommand) -> Any:
        """Code 318: all or nothing, and durable before it is answered."""
        shown = self._properties()
        wanted = {name: value for name, value in decode_configuration(command.body).items() if shown.get(name) != value}
        for name, value in wanted.items():
            these = f"these change while it runs: {', '.join(CHANGEABLE)}"
            if name not in CHANGEABLE:
                code = ResponseCode.NO_PERMISSION if name in shown else ResponseCode.INVALID_PARAMETER
                why = "is fixed when the name server starts" if name in shown else "is no setting of this name server"
                return RemotingCommand.response(code, remark=f"{name:.100} {why}; {these}")
            if value not in ("true", "false"):
                return RemotingCommand.response(
                    ResponseCode.INVALID_PARAMETER, remark=f"{name}={value:.100}: true or false is needed"
                )
        for name, value in wanted.items():
            _log.warning("setting changed by %s: %s=%s", connection.peer, name, value)
            self._kv.put(NAMESPACE, name, value)
        return self._changed(bool(wanted))

    def _value(self, name: str) -> str:
        return self._kv.get(NAMESPACE, name) or CHANGEABLE[name]

    def _properties(self) -> dict[str, str]:
        return {
            "listenPort": str(self._port()),
            "bindAddress": self._config.host,
            "kvConfigPath": self._config.data or "",
            "scanNotActiveBrokerInterval": "0",  # none is scanned for: each has a deadline
            "brokerExpiry": str(round(self._config.broker_expiry * 1000)),
            "clusterTest": "false",
            "deleteTopicWithBrokerRegistration": "false",
            "enableAllTopicList": "true",
            "enableTopicList": "true",
            **{name: self._value(name) for name in CHANGEABLE},
        }
