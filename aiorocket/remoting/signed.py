"""Connections whose requests are signed, for brokers with access control.

A class of its own, so that connections without credentials pay nothing for it. Answers are not signed: RocketMQ's
brokers do not look at a signature there.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiorocket.remoting.connection import Connection
from aiorocket_protocol import RemotingCommand
from aiorocket_protocol.signing import Signer

__all__ = ("SignedConnection",)


class SignedConnection(Connection):
    """A client's connection under ``signer``. Its config's serializer is "json": what is signed are the fields in the
    form JSON gives them, and nothing may be put beside them afterwards."""

    __slots__ = ("_signer",)

    def __init__(self, signer: Signer, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._signer = signer

    def request(self, command: RemotingCommand, timeout: float) -> asyncio.Future[RemotingCommand]:
        """As of ``Connection``, signed."""
        self._signer.sign(command)
        return super().request(command, timeout)

    def oneway(self, command: RemotingCommand) -> None:
        """As of ``Connection``, signed."""
        self._signer.sign(command)
        super().oneway(command)
