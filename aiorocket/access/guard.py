"""Processors that serve only what the asker may have.

A class of its own, so that servers without access control pay nothing for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from aiorocket.access.audit import Audit
from aiorocket.access.core.accounts import Accounts
from aiorocket.access.core.judge import Verdict, judging
from aiorocket.access.core.requests import RecordAt, is_administration
from aiorocket.errors import StoreError
from aiorocket.remoting.address import host_of
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import ProcessorTable, error_response
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import ProtocolError, RemotingCommand, RequestCode, ResponseCode

__all__ = ("USER", "GuardedProcessors")

#: In a connection's data: whose heartbeat it carried last.
USER = "user"

_NAMES = {code.value: code.name for code in RequestCode}


class GuardedProcessors(ProcessorTable):
    """As ``ProcessorTable``; what ``accounts`` do not allow is answered NO_PERMISSION, with the reason, and noted in
    the audit log, as is all administration. ``record_at`` is the message at a place in the server's log."""

    __slots__ = ("_accounts", "_audit", "_cluster", "_one_long", "_record_at")

    def __init__(self, accounts: Accounts, *, cluster: str, server: str, record_at: RecordAt) -> None:
        super().__init__()
        self._accounts = accounts
        self._cluster = cluster
        self._record_at = record_at
        self._audit = Audit(server)
        self._one_long = asyncio.Lock()  # one is judged in turns of the loop, not each of many

    def dispatch(self, connection: Connection, request: RemotingCommand) -> None:
        """As of ``ProcessorTable``, for those who may."""
        if self.is_too_large(connection, request):  # before it is looked at
            return
        if next(self._judge(connection, request), request) is None:  # one of few names is at its end
            self._later(connection, request, self._in_turns(connection, request), alone=True)

    async def _in_turns(self, connection: Connection, request: RemotingCommand) -> None:
        async with self._one_long:  # read when it is its turn: it takes several times as much then
            await asyncio.sleep(0)
            await in_turns(self._judge(connection, request, long=True))

    def _judge(
        self, connection: Connection, request: RemotingCommand, *, long: bool = False
    ) -> Generator[None, None, None]:
        source = host_of(connection.peer)
        try:
            verdict = yield from judging(self._accounts, request, source, self._cluster, self._record_at)
        except (ProtocolError, StoreError, OSError) as error:  # the last two by the log
            verdict = Verdict("", f"it cannot be read: {error}")
            self._note(connection, request, verdict)
            connection.reply(request, error_response(error))
            return
        if verdict.refusal is not None:
            self._note(connection, request, verdict)
            connection.reply(request, RemotingCommand.response(ResponseCode.NO_PERMISSION, remark=verdict.refusal))
            return
        if long:  # its handler reads it once more
            yield
        if connection.closed:  # meanwhile, and was told to be lost: nobody would take out again what it registers
            return
        if request.code == RequestCode.HEART_BEAT:
            connection.data[USER] = verdict.name
        if is_administration(request.code):
            self._note(connection, request, verdict)
        super().dispatch(connection, request)

    def _note(self, connection: Connection, request: RemotingCommand, verdict: Verdict) -> None:
        now = asyncio.get_running_loop().time()
        code = request.code
        name = f"{code} ({_NAMES.get(code, 'unknown')})"
        if verdict.refusal is not None:
            self._audit.refused(
                now, user=verdict.name, peer=connection.peer, request=name, code=code, why=verdict.refusal
            )
        else:
            wants = "".join(f", {want}" for want in verdict.wants)
            self._audit.served(now, user=verdict.name, peer=connection.peer, request=name, wants=wants)
