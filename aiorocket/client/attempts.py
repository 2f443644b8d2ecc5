"""The slow path of a send: retries, pinned queues, one message of a key at a time. All within one deadline."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from aiorocket.client.core.retry import STORED_CODES, judge, remote_error
from aiorocket.client.publish import Publish, Target
from aiorocket.client.route_table import AUTO_CREATE_TOPIC
from aiorocket.client.session import Client
from aiorocket.config import ProducerConfig
from aiorocket.errors import BackPressureError, RocketError, SendError, UsageError
from aiorocket.model import Queue, SendReceipt
from aiorocket_protocol import ProtocolError, RemotingCommand, RequestCode, SendMessageRequestHeaderV2

__all__ = ("Attempts", "Letter")

#: First pause before trying again what waits; doubled up to the second, with jitter.
_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class Letter(NamedTuple):
    """A message ready for the wire. ``batch`` is a body in the batch encoding of request 320."""

    topic: str
    body: bytes
    properties: str
    msg_id: str
    sys_flag: int
    flag: int
    born: int
    batch: bool = False
    group: str = ""
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


class _Opener(Protocol):
    async def __call__(self, topic: str, *, refresh: bool = False) -> Publish: ...


Receipt = Callable[[Letter, Queue, RemotingCommand], SendReceipt]


class Attempts:
    """``opener`` gives a topic's targets, ``receipt`` makes the result; both are the producer's."""

    def __init__(self, client: Client, config: ProducerConfig, opener: _Opener, receipt: Receipt) -> None:
        self._client = client
        self._config = config
        self._open = opener
        self._receipt = receipt
        self._keys: dict[tuple[str, str], deque[asyncio.Future[None]]] = {}

    async def run(
        self, publish: Publish, target: Target, letter: Letter, deadline: float, *, moves: bool = True
    ) -> SendReceipt:
        """Try now, and again as the table in core/retry says. ``moves``: further attempts may go to another queue."""
        try:
            answer = await self._once(target, letter, deadline)
        except RocketError as error:
            return await self._again(error, publish, target, letter, deadline, moves)
        return await self._accept(answer, publish, target, letter, deadline, moves)

    async def after(
        self, error: Exception, publish: Publish, target: Target, letter: Letter, deadline: float
    ) -> SendReceipt:
        """Go on after a first attempt that failed with ``error``."""
        if isinstance(error, ProtocolError):
            raise SendError(f"topic {letter.topic!r}: cannot be encoded: {error}", may_be_stored=False) from error
        return await self._again(error, publish, target, letter, deadline, True)

    async def judge_answer(
        self, answer: RemotingCommand, publish: Publish, target: Target, letter: Letter, deadline: float
    ) -> SendReceipt:
        """Go on after an answer whose code is not 0."""
        return await self._accept(answer, publish, target, letter, deadline, True)

    async def pinned(self, publish: Publish, queue: Queue, letter: Letter, deadline: float) -> SendReceipt:
        """Only to ``queue``, however often it takes."""
        return await self.run(publish, publish.pinned(queue), letter, deadline, moves=False)

    async def keyed(self, publish: Publish, key: str, letter: Letter, deadline: float) -> SendReceipt:
        """Only to the key's queue, and only while no other message of the key is unresolved: a retry of the first
        must not be overtaken by the second."""
        lane = (letter.topic, key)
        waiting = self._keys.get(lane)
        if waiting is None:
            self._keys[lane] = deque()
        else:
            turn: asyncio.Future[None] = self._client.loop.create_future()
            waiting.append(turn)
            try:
                async with asyncio.timeout_at(deadline):
                    await turn
            except BaseException as error:
                if turn.done() and not turn.cancelled():
                    self._pass_on(lane)
                if isinstance(error, TimeoutError):
                    raise SendError(
                        f"topic {letter.topic!r}: earlier messages of key {key!r} are still unresolved at the timeout",
                        may_be_stored=False,
                    ) from None
                raise
        try:
            return await self.run(publish, publish.choice.by_key(key), letter, deadline, moves=False)
        finally:
            self._pass_on(lane)

    async def oneway(self, target: Target, letter: Letter, timeout: float) -> None:
        """Hand the letter to the socket of ``target``."""
        command = RemotingCommand.request(
            RequestCode.SEND_MESSAGE_V2, _header(target, letter), body=letter.body, oneway=True
        )
        try:
            async with asyncio.timeout(timeout):
                connection = await self._client.connection(target.address)
                connection.oneway(command)
                if not connection.writable:
                    await connection.drain()
        except TimeoutError:
            raise SendError(f"{target.address} does not take more within {timeout:g} s", may_be_stored=True) from None
        except (RocketError, ProtocolError) as error:
            raise SendError(f"topic {letter.topic!r}: {error}", may_be_stored=judge(error).may_be_stored) from error

    def _pass_on(self, lane: tuple[str, str]) -> None:
        waiting = self._keys[lane]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._keys[lane]

    async def _once(self, target: Target, letter: Letter, deadline: float) -> RemotingCommand:
        connection = await self._client.connection(target.address, max(0.001, deadline - self._client.loop.time()))
        if not connection.writable:
            try:
                async with asyncio.timeout_at(deadline):
                    await connection.drain()
            except TimeoutError:
                raise BackPressureError(
                    f"{target.address} does not read, {connection.pending} requests wait there"
                ) from None
        code = RequestCode.SEND_BATCH_MESSAGE if letter.batch else RequestCode.SEND_MESSAGE_V2
        command = RemotingCommand.request(code, _header(target, letter), body=letter.body)
        try:
            future = connection.request(command, max(0.001, deadline - self._client.loop.time()))
        except ProtocolError as error:
            raise UsageError(f"topic {letter.topic!r}: cannot be encoded: {error}") from error
        return await future

    async def _accept(
        self, answer: RemotingCommand, publish: Publish, target: Target, letter: Letter, deadline: float, moves: bool
    ) -> SendReceipt:
        if answer.code in STORED_CODES:
            return self._receipt(letter, target.queue, answer)
        error = remote_error(answer.code, answer.remark, request="SEND_MESSAGE", address=target.address)
        return await self._again(error, publish, target, letter, deadline, moves)

    async def _again(
        self, error: Exception, publish: Publish, target: Target, letter: Letter, deadline: float, moves: bool
    ) -> SendReceipt:
        loop = self._client.loop
        stored = False
        attempts = 1
        pause = _PAUSE
        while True:
            if isinstance(error, UsageError):
                raise error
            verdict = judge(error)
            stored = stored or verdict.may_be_stored
            left = deadline - loop.time()
            if not verdict.retry or left <= 0 or (verdict.counts and attempts > self._config.retries):
                raise SendError(_text(letter, error, attempts), may_be_stored=stored) from error
            if verdict.counts:
                attempts += 1
            if verdict.wait:
                await asyncio.sleep(min(left, self._client.env.entropy.jitter(pause)))
                pause = min(2 * pause, _LONGEST_PAUSE)
            if verdict.stale_route:
                publish = await self._fresh(publish, deadline)
            if moves:
                target = publish.choice.next_avoiding(target.broker_name)
            else:
                # The address of the same queue may have changed; a queue that is gone keeps its old one, and fails
                # clearly.
                try:
                    target = publish.pinned(target.queue)
                except UsageError:
                    pass
            left = deadline - loop.time()
            if left <= 0:
                raise SendError(_text(letter, error, attempts), may_be_stored=stored) from error
            try:
                answer = await self._once(target, letter, deadline)
            except RocketError as failed:
                error = failed
                continue
            if answer.code in STORED_CODES:
                return self._receipt(letter, target.queue, answer)
            error = remote_error(answer.code, answer.remark, request="SEND_MESSAGE", address=target.address)

    async def _fresh(self, publish: Publish, deadline: float) -> Publish:
        """The newest route that can be had in time; the one we have when the name servers are silent."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._open(publish.topic, refresh=True)
        except (TimeoutError, RocketError):
            return publish


def _header(target: Target, letter: Letter) -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2(
        letter.group, letter.topic, AUTO_CREATE_TOPIC, 4, target.queue_id, letter.sys_flag, letter.born, letter.flag,
        letter.properties, letter.reconsume_times, False, letter.max_reconsume_times, letter.batch, target.broker_name,
    )  # fmt: skip


def _text(letter: Letter, error: Exception, attempts: int) -> str:
    tries = f" (attempt {attempts})" if attempts > 1 else ""
    return f"topic {letter.topic!r}, message {letter.msg_id}{tries}: {error}"
