"""A client that does nothing wrong, beside those that do: what it sends it gets back, whole and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiorocket.fuzz.findings import Finding
from aiorocket.fuzz.session import NAMESERVER
from aiorocket.fuzz.wire import Wire, connect
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    JSON,
    SINGLE_TAG,
    TAG,
    ProtocolError,
    RemotingCommand,
    ResponseCode,
    encode,
    split_records,
)
from aiorocket_protocol.fuzzing import LEGAL, Drawn

__all__ = ("Neighbour",)

_NAME = "fuzz-neighbour"
#: Seconds between two of its rounds.
_EVERY = 0.2
#: Rounds in a row that may not take longer than a request may: a busy machine stands still once.
_SLOW = 2
_LATER = (ResponseCode.SYSTEM_BUSY, ResponseCode.PULL_NOT_FOUND)
_TOPIC = {"topic": _NAME, "defaultTopic": AUTO_CREATE_TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
          "topicFilterType": SINGLE_TAG, "topicSysFlag": 0, "order": "false"}  # fmt: skip
_SEND = {"a": _NAME, "b": _NAME, "c": AUTO_CREATE_TOPIC, "d": 1, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0,
         "k": "false", "m": "false"}  # fmt: skip
_PULL = {"consumerGroup": _NAME, "topic": _NAME, "queueId": 0, "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0,
         "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": TAG}  # fmt: skip


class Neighbour:
    """``run`` until it is cancelled. Not yet disturbed: ``finding`` is None. Those of several runs at one name server
    have keys of their own, by ``seed``."""

    def __init__(self, address: str, role: str, patience: float, seed: int = 0) -> None:
        self._address = address
        self._key = {"namespace": _NAME, "key": f"k{seed}"}
        self._round = self._at_nameserver if role == NAMESERVER else self._at_broker
        self._patience = patience
        self._opaque = 0
        self._wire: Wire | None = None
        self.rounds = 0
        #: Its first round is over.
        self.began = asyncio.Event()
        #: Seconds.
        self.slowest = 0.0
        self.finding: Finding | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        slow = 0
        try:
            while self.finding is None:
                began = loop.time()
                self.finding = await self._try()
                took = loop.time() - began
                self.slowest = max(self.slowest, took)
                slow = slow + 1 if took > self._patience else 0
                if self.finding is None and slow == _SLOW:
                    self.finding = Finding("neighbour", f"rounds {self.rounds - 1} and {self.rounds} took {took:.1f} s")
                self.rounds += 1
                self.began.set()
                await asyncio.sleep(_EVERY)
        finally:
            self.began.set()
            if self._wire is not None:
                self._wire.close()

    async def _try(self) -> Finding | None:
        try:
            wrong = await self._round()
        except (OSError, TimeoutError, ProtocolError) as error:
            wrong = f"round {self.rounds}: {str(error) or type(error).__name__}"
        return None if wrong is None else Finding("neighbour", wrong)

    async def _at_broker(self) -> str | None:
        if self.rounds == 0:
            await self._ask(17, _TOPIC)
        body = f"{_NAME} {self.rounds}".encode()
        sent = await self._ask(310, _SEND, body)
        if sent is None or sent.code != 0:
            return self._said("its message was not stored", sent)
        offset = (sent.ext or {}).get("queueOffset")
        found = await self._ask(11, {**_PULL, "queueOffset": offset})
        if found is None or found.code != 0:
            return self._said(f"its message at offset {offset} was not found", found)
        stored = [bytes(record.body) for record in split_records(found.body)]
        return None if stored[:1] == [body] else f"offset {offset} holds {stored!r:.80}, not {body!r}"

    async def _at_nameserver(self) -> str | None:
        wanted = str(self.rounds)
        put = await self._ask(100, {**self._key, "value": wanted})
        if put is None or put.code != 0:
            return self._said("its value was not stored", put)
        got = await self._ask(101, self._key)
        if got is None or got.code != 0 or (got.ext or {}).get("value") != wanted:
            return self._said(f"its value {wanted} was not found", got)
        return None

    def _said(self, what: str, answer: RemotingCommand | None) -> str:
        if answer is None:
            return f"round {self.rounds}: {what}: no answer in {self._patience:g} s, or hung up on"
        return f"round {self.rounds}: {what}: code {answer.code}, {answer.remark}"

    async def _ask(self, code: int, fields: Mapping[str, Any], body: bytes = b"") -> RemotingCommand | None:
        """The answer. A server may be busy for a while (flow control), or find later what it has acknowledged: Apache's
        does."""
        now = asyncio.get_running_loop().time
        end = now() + self._patience
        while (answer := await self._ask_once(code, fields, body)) is not None:
            if answer.code not in _LATER or now() > end:
                break
            await asyncio.sleep(_EVERY)
        return answer

    async def _ask_once(self, code: int, fields: Mapping[str, Any], body: bytes) -> RemotingCommand | None:
        if self._wire is None or self._wire.lost:
            self._wire = await connect(self._address, self._patience)
        self._opaque += 1
        ext: dict[str, str | None] = {name: str(value) for name, value in fields.items()}
        data = encode(RemotingCommand(code, self._opaque, ext=ext, body=body), JSON)
        await self._wire.exchange([Drawn(code, JSON, LEGAL, "", self._opaque, True, data)], self._patience)
        return self._wire.answered.get(self._opaque)
