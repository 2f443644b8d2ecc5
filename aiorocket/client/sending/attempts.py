"""The slow path of a send: retries, pinned queues, one message of a key at a time. All within one deadline."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from aiorocket.client.core.latency import LatencyTable
from aiorocket.client.core.retry import STORED_CODES, judge, remote_error
from aiorocket.client.sending.publish import Publish, Target
from aiorocket.client.sending.send_hooks import SendContext, SendHook, run_after_send, run_before_send
from aiorocket.client.session import Session
from aiorocket.config import ProducerConfig
from aiorocket.errors import BackPressureError, NotConnectedError, RocketError, SendError, UsageError
from aiorocket.model import Queue, SendReceipt
from aiorocket.remoting.connection import Connection
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    SendMessageRequestHeaderV2,
    decode_properties,
)

__all__ = ("Attempts", "Letter")

#: First pause before trying again what waits; doubled up to the second, with jitter.
_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
#: With less than this left the time is over: uvloop's timers are of whole milliseconds, so a request's timeout may come
#: a little before the deadline that it was made from, and no attempt may follow it.
_LEAST = 0.001


class Letter(NamedTuple):
    """A message ready for the wire, ``topic`` and ``group`` as they are called there. ``batch``: the body is in the
    batch encoding of request 320."""

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
    """``opener`` gives a topic's targets, ``receipt`` makes the result; both are the producer's. ``hooks`` see every
    attempt; with ``config.send_latency_fault`` brokers that failed or were slow are left alone for a while."""

    def __init__(
        self,
        client: Session,
        config: ProducerConfig,
        opener: _Opener,
        receipt: Receipt,
        hooks: Sequence[SendHook] = (),
    ) -> None:
        self._client = client
        self._config = config
        self._open = opener
        self._receipt = receipt
        self._hooks = tuple(hooks)
        self._latency = LatencyTable() if config.send_latency_fault else None
        self._once = self._watched if self.watching else self._exchange
        self._keys: dict[tuple[str, str], deque[asyncio.Future[None]]] = {}

    @property
    def watching(self) -> bool:
        """Something looks at every attempt, so none may take the producer's short way."""
        return bool(self._hooks) or self._latency is not None

    async def run(
        self, publish: Publish, target: Target, letter: Letter, deadline: float, *, moves: bool = True
    ) -> SendReceipt:
        """Try now, and again as the table in core/retry says. ``moves``: it may go to another queue than ``target``."""
        if moves and self._latency is not None:
            now = self._client.loop.time()
            if not self._latency.available(target.broker_name, now):
                target = self._latency.choose(publish.choice, now)
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
        await self.turn(publish.name, key, deadline)
        try:
            return await self.in_turn(publish, key, letter, deadline)
        finally:
            self.pass_on(publish.name, key)

    async def in_turn(self, publish: Publish, key: str, letter: Letter, deadline: float) -> SendReceipt:
        """``keyed`` between ``turn`` and ``pass_on``."""
        return await self.run(publish, publish.choice.by_key(key), letter, deadline, moves=False)

    async def turn(self, topic: str, key: str, deadline: float) -> None:
        """Return when it is our turn among the messages of a key; what comes later waits for ``pass_on``. The place in
        the line counts from the call. SendError at the deadline."""
        lane = (topic, key)
        if lane not in self._keys:
            self._keys[lane] = deque()
            return
        turn: asyncio.Future[None] = self._client.loop.create_future()
        self._keys[lane].append(turn)
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.pass_on(topic, key)
            if isinstance(error, TimeoutError):
                raise SendError(
                    f"topic {topic!r}: earlier messages of key {key!r} are still unresolved at the timeout",
                    may_be_stored=False,
                ) from None
            raise

    def pass_on(self, topic: str, key: str) -> None:
        """The turn is over: the next one's begins."""
        lane = (topic, key)
        waiting = self._keys[lane]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._keys[lane]

    @property
    def turns(self) -> int:
        """Keys of which a message has its turn."""
        return len(self._keys)

    async def oneway(self, target: Target, letter: Letter, deadline: float) -> None:
        """Hand the letter to the socket of ``target``."""
        command = RemotingCommand.request(
            RequestCode.SEND_MESSAGE_V2, _header(target, letter), body=letter.body, oneway=True
        )
        if self._hooks:
            started = self._client.loop.time()
            context = self._before(target, letter, "oneway")
            try:
                await self._hand_over(command, target, letter, deadline)
            except SendError as error:
                self._after(context, started, error=error)
                raise
            self._after(context, started)
        else:
            await self._hand_over(command, target, letter, deadline)

    async def _hand_over(self, command: RemotingCommand, target: Target, letter: Letter, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                connection = self._client.remoting.live(target.address) or await self._connection(target, deadline)
                connection.oneway(command)
                if not connection.writable:
                    await connection.drain()
        except TimeoutError:
            raise SendError(f"{target.address} does not take more in time", may_be_stored=True) from None
        except (RocketError, ProtocolError) as error:
            raise SendError(f"topic {letter.topic!r}: {error}", may_be_stored=judge(error).may_be_stored) from error

    async def _connection(self, target: Target, deadline: float) -> Connection:
        if not target.address:
            raise NotConnectedError(f"broker {target.broker_name!r} has no master just now")
        return await self._client.connection(target.address, max(0.001, deadline - self._client.loop.time()))

    async def _watched(self, target: Target, letter: Letter, deadline: float) -> RemotingCommand:
        """One attempt, for those who look at each."""
        loop, started = self._client.loop, self._client.loop.time()
        context = self._before(target, letter, "batch" if letter.batch else "sync") if self._hooks else None
        receipt: SendReceipt | None = None
        error: Exception | None = None
        try:
            answer = await self._exchange(target, letter, deadline)
            if answer.code in STORED_CODES:
                receipt = self._receipt(letter, target.queue, answer)
            else:
                error = remote_error(answer.code, answer.remark, request="SEND_MESSAGE", address=target.address)
        except (RocketError, ProtocolError) as failed:
            error = failed
            raise
        finally:
            if error is not None or receipt is not None:
                if self._latency is not None and not isinstance(error, UsageError):
                    now = loop.time()
                    self._latency.note(target.broker_name, now - started, now, failed=error is not None)
                if context is not None:
                    self._after(context, started, receipt, error)
        return answer

    def _before(self, target: Target, letter: Letter, mode: Literal["sync", "batch", "oneway"]) -> SendContext:
        context = SendContext(
            self._client.config.namespace, letter.group, letter.msg_id, target.queue, target.address, mode,
            decode_properties(letter.properties.encode("utf-8", "replace")), letter.body, letter.born,
        )  # fmt: skip
        run_before_send(self._hooks, context)
        return context

    def _after(
        self,
        context: SendContext,
        started: float,
        receipt: SendReceipt | None = None,
        error: Exception | None = None,
    ) -> None:
        context.receipt, context.error, context.took = receipt, error, self._client.loop.time() - started
        run_after_send(self._hooks, context)

    async def _exchange(self, target: Target, letter: Letter, deadline: float) -> RemotingCommand:
        connection = self._client.remoting.live(target.address) or await self._connection(target, deadline)
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
            if not verdict.retry or left <= _LEAST or (verdict.counts and attempts > self._config.retries):
                raise SendError(_text(letter, error, attempts), may_be_stored=stored) from error
            if verdict.counts:
                attempts += 1
            if verdict.wait:
                await asyncio.sleep(min(left, self._client.env.entropy.jitter(pause)))
                pause = min(2 * pause, _LONGEST_PAUSE)
            if verdict.stale_route:
                publish = await self._fresh(publish, deadline)
            if moves and self._latency is not None:
                target = self._latency.choose(publish.choice, loop.time(), target.broker_name)
            elif moves:
                target = publish.choice.next_avoiding(target.broker_name)
            else:
                # The address of the same queue may have changed; a queue that is gone keeps its old one, and fails
                # clearly.
                try:
                    target = publish.pinned(target.queue)
                except UsageError:
                    pass
            left = deadline - loop.time()
            if left <= _LEAST:
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
