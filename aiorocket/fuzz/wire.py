"""One connection to the server under test: requests out as bytes, answers in, each looked at."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import cast

from aiorocket.fuzz.findings import LATE, Finding
from aiorocket_protocol import (
    JSON,
    FrameSplitter,
    ProtocolError,
    RemotingCommand,
    ResponseCode,
    decode,
    encode,
)
from aiorocket_protocol.fuzzing import BROKEN, LEGAL, Drawn

__all__ = ("Wire", "connect")

#: No request that is served: its answer says that all before it were read.
_LAST = 2_147_483_647
_BARRIER = encode(RemotingCommand(31_337, _LAST), JSON)
#: Times ``patience`` in which a server that answers nobody may come back.
_STALL = 6
#: Seconds in which a connection ends after the end of what was sent.
_AFTER_BAD = 1.0
_CODES = frozenset(map(int, ResponseCode))
#: How a failure that nobody foresaw looks in an answer: an exception's name, of Python or of Java.
_INTERNAL = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)\b")


class Wire(asyncio.Protocol):
    """``exchange`` sends requests and waits for their answers. ``findings`` grows by what no server may do."""

    def __init__(self, address: str = "") -> None:
        self._address = address
        self.findings: list[Finding] = []
        self.answers = 0
        self.lost = False
        #: The last exchange: opaque -> answer.
        self.answered: dict[int, RemotingCommand] = {}
        self._splitter = FrameSplitter()
        self._asked: dict[int, Drawn] = {}
        self._pending: set[int] = set()
        # Bytes went out that a server may read as another request than was meant, and nothing goes out after them.
        self._wild = False
        self._changed: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _error: Exception | None) -> None:
        self.lost = True
        self._wake()

    def data_received(self, data: bytes) -> None:
        try:
            commands = [decode(*frame) for frame in self._splitter.feed(data)]
        except ProtocolError as error:
            self.findings.append(Finding("answer", f"cannot be read: {error}"))
            self._transport.abort()
            return
        for command in commands:
            if command.is_response:
                self._take(command)
            elif not command.is_oneway and not self._wild:  # the server asks: it is answered, as no client would
                reply = RemotingCommand(int(ResponseCode.SYSTEM_ERROR), command.opaque, 1, remark="fuzz")
                self._transport.write(encode(reply, command.serialize_type))

    def _take(self, answer: RemotingCommand) -> None:
        self.answers += 1
        opaque = answer.opaque
        self._pending.discard(opaque)
        if opaque != _LAST:
            asked = self._asked.pop(opaque, None)
            self.answered[opaque] = answer
            wrong = self._wrong(asked, answer)
            if wrong is not None:
                code, form, part = (asked.code, asked.form, asked.part) if asked is not None else (0, "", "")
                self.findings.append(Finding(*wrong, code, form, part))
        if not self._pending:
            self._wake()

    def _wrong(self, asked: Drawn | None, answer: RemotingCommand) -> tuple[str, str] | None:
        if answer.code not in _CODES:
            return "answer", f"of a code that nobody knows: {answer.code}"
        if not self._wild:  # else it may be to another request than this
            if asked is None:
                return "answer", f"to nothing that was asked: code {answer.code}"
            if asked.answered is False:
                return "answer", f"to what asked for none: code {answer.code}"
            if asked.form == LEGAL and answer.serialize_type != asked.kind:
                return "answer", f"in serialize type {answer.serialize_type} to one in {asked.kind}"
        if answer.code == ResponseCode.SYSTEM_ERROR and _INTERNAL.match(answer.remark or ""):
            return "internal", (answer.remark or "").partition("\n")[0][:200]
        return None

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def exchange(self, frames: Sequence[Drawn], patience: float) -> bool:
        """Send, and wait until everything that must be answered is, or the connection has ended; False when it has.
        Nothing more is said on it after a frame whose header or length is broken: it may be read as anything."""
        self.answered = {}
        bad = False
        for drawn in frames:
            self._asked[drawn.opaque] = drawn
            if drawn.answered:
                self._pending.add(drawn.opaque)
            bad = bad or (drawn.form == BROKEN and drawn.part in ("header", "frame"))
        self._wild = self._wild or bad
        begun = self._say(b"".join(drawn.data for drawn in frames))
        if bad and not self.lost:
            self._transport.write_eof()
        if not await _done(begun, min(patience, _AFTER_BAD) if bad else patience) and (
            bad or not await self._comes_late(begun, patience)
        ):
            if not bad:
                self._hangs(patience)
            self.close()
            return False
        if self.lost and not bad and self._pending:
            self._hung_up(frames)
        if bad:
            self.close()
        return not self.lost

    async def ask(self, drawn: Drawn, seconds: float) -> RemotingCommand | None:
        """One request; None when it is not answered in time, or hung up on."""
        self.answered = {}
        self._asked[drawn.opaque] = drawn
        self._pending = {drawn.opaque}
        self._changed = asyncio.get_running_loop().create_future()
        if self.lost:
            return None
        self._transport.write(drawn.data)
        await _done(self._changed, seconds)
        return self.answered.get(drawn.opaque)

    def _say(self, data: bytes) -> asyncio.Future[None]:
        """It is done when everything that must be answered is, or the connection has ended."""
        self._pending.add(_LAST)
        self._changed = asyncio.get_running_loop().create_future()
        if self.lost:
            self._wake()
        else:
            self._transport.write(data + _BARRIER)
        return self._changed

    async def _comes_late(self, begun: asyncio.Future[None], patience: float) -> bool:
        """Time is up. A request on a connection of its own says when the server answers anybody; what was asked before
        it and is answered by then, or ``patience`` later, does not hang: the server stood still, or its machine."""
        now = asyncio.get_running_loop().time
        began = now()
        try:
            control = await connect(self._address, _STALL * patience)
        except (OSError, TimeoutError):
            return False
        try:
            if not await _done(control._say(b""), _STALL * patience) or control.lost:
                return False
        finally:
            control.close()
        if not await _done(begun, max(patience, 2 * (now() - began))):  # a disk may stand still by itself
            return False
        self.findings.append(Finding(LATE, f"answered after {patience + now() - began:.1f} s"))
        return True

    def _hangs(self, patience: float) -> None:
        waiting = [self._asked[opaque] for opaque in self._pending if opaque in self._asked]
        first = min(waiting, key=lambda drawn: drawn.opaque, default=None)
        if first is None:
            self.findings.append(Finding("hang", f"no answer in {patience:g} s to what came last"))
        else:
            self.findings.append(Finding("hang", f"no answer in {patience:g} s", first.code, first.form, first.part))

    def _hung_up(self, frames: Sequence[Drawn]) -> None:
        first = next((drawn for drawn in frames if drawn.opaque in self._pending), frames[-1])
        self.findings.append(
            Finding("closed", "the server hung up on frames that are whole", first.code, first.form, first.part)
        )

    def close(self) -> None:
        """Whatever is on its way is dropped."""
        self._transport.abort()
        self.lost = True


async def connect(address: str, patience: float = 10.0) -> Wire:
    """OSError when nobody listens there, TimeoutError when nobody answers."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(patience):
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: Wire(address), host.strip("[]"), int(port))
    return wire


async def _done(begun: asyncio.Future[None], seconds: float) -> bool:
    return bool((await asyncio.wait((begun,), timeout=seconds))[0])
