"""The slow path of a send: attempt after attempt, within one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Literal

from aiorocket.client.core.latency import LatencyTable
from aiorocket.client.core.retry import STORED_CODES, judge, remote_error
from aiorocket.client.sending.outgoing import EncodedMessage
from aiorocket.client.sending.publish import Publish, Target
from aiorocket.client.sending.send_hooks import SendContext, SendHook, run_after_send, run_before_send
from aiorocket.client.session import Session
from aiorocket.config import ProducerConfig
from aiorocket.errors import BackPressureError, NotConnectedError, RocketError, SendError, UsageError
from aiorocket.model import Queue, SendReceipt, SendStatus
from aiorocket.remoting.connection import Connection
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    EXT_ONCE,
    SYS_FLAG_TRANSACTION_MASK,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    decode_properties,
)

__all__ = ("Attempts",)

#: First pause before trying again what waits; doubled up to the second, with jitter.
_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
#: With less than this left the time is over: uvloop's timers are of whole milliseconds, so a request's timeout may come
#: a little before the deadline that it was made from, and no attempt may follow it.
_LEAST = 0.001


class Attempts:
    """``look_up`` gives a topic's targets by the newest route. ``hooks`` see every attempt; with
    ``config.send_latency_fault`` brokers that failed or were slow are left alone for a while. ``retrying`` is told of
    each repetition."""

    def __init__(
        self,
        client: Session,
        config: ProducerConfig,
        look_up: Callable[[str], Awaitable[Publish]],
        hooks: Iterable[SendHook] = (),
        retrying: Sequence[Callable[[str, Exception], None]] = (),
    ) -> None:
        self._client = client
        self._retrying = retrying
        self._config = config
        self._look_up = look_up
        self._hooks = tuple(hooks)
        self._latency = LatencyTable() if config.send_latency_fault else None
        self._once = self._watched if self.watching else self._exchange

    @property
    def watching(self) -> bool:
        """Something looks at every attempt, so none may take the producer's short way."""
        return bool(self._hooks) or self._latency is not None

    async def run(
        self,
        publish: Publish,
        target: Target,
        message: EncodedMessage,
        deadline: float,
        *,
        moves: bool = True,
        first: RemotingCommand | Exception | None = None,
    ) -> SendReceipt:
        """Try until a broker has the message, as often as the table in core/retry says. ``moves``: it may go to another
        queue than ``target``. ``first`` is how a first attempt ended that the caller has made."""
        loop = self._client.loop
        if self._config.idempotent and not message.batch and not message.sys_flag & SYS_FLAG_TRANSACTION_MASK:
            message, moves = message._replace(once=True), False
        stored = False
        attempts = 1
        pause = _PAUSE
        outcome = first
        if isinstance(outcome, ProtocolError):
            raise SendError(f"topic {message.topic!r}: cannot be encoded: {outcome}", may_be_stored=False) from outcome
        if outcome is None and moves and self._latency is not None:
            now = loop.time()
            if not self._latency.available(target.broker_name, now):
                target = self._latency.choose(publish.choice, now)
        while True:
            try:
                if outcome is None:
                    outcome = await self._once(target, message, deadline)
                if isinstance(outcome, RemotingCommand):
                    if outcome.code in STORED_CODES:
                        return _receipt(message, target.queue, outcome)
                    outcome = remote_error(outcome.code, outcome.remark, request="SEND_MESSAGE", address=target.address)
            except RocketError as error:
                outcome = error
            except ProtocolError as error:
                text = f"topic {publish.topic!r}: the answer cannot be read: {error}"
                raise SendError(text, may_be_stored=True) from error
            if isinstance(outcome, UsageError):
                raise outcome
            verdict = judge(outcome)
            stored = stored or verdict.may_be_stored
            left = deadline - loop.time()
            if not verdict.retry or left <= _LEAST or (verdict.counts and attempts > self._config.retries):
                raise SendError(_text(message, outcome, attempts), may_be_stored=stored) from outcome
            if verdict.counts:
                attempts += 1
            for tell in self._retrying:
                tell(publish.topic, outcome)
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
                with suppress(UsageError):
                    target = publish.pinned(target.queue)
            if deadline - loop.time() <= _LEAST:
                raise SendError(_text(message, outcome, attempts), may_be_stored=stored) from outcome
            outcome = None

    async def oneway(self, target: Target, message: EncodedMessage, deadline: float) -> None:
        """Hand the message to the socket of ``target``; nobody acknowledges it."""
        command = RemotingCommand.request(
            RequestCode.SEND_MESSAGE_V2, _header(target, message), body=message.body, oneway=True
        )
        if self._hooks:
            started = self._client.loop.time()
            context = self._before(target, message, "oneway")
            try:
                await self._hand_over(command, target, message, deadline)
            except SendError as error:
                self._after(context, started, error=error)
                raise
            self._after(context, started)
        else:
            await self._hand_over(command, target, message, deadline)

    async def _hand_over(
        self, command: RemotingCommand, target: Target, message: EncodedMessage, deadline: float
    ) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                connection = self._client.remoting.live(target.address) or await self._connection(target, deadline)
                connection.oneway(command)
                if not connection.writable:
                    await connection.drain()
        except TimeoutError:
            raise SendError(f"{target.address} does not take more in time", may_be_stored=True) from None
        except (RocketError, ProtocolError) as error:
            raise SendError(f"topic {message.topic!r}: {error}", may_be_stored=judge(error).may_be_stored) from error

    async def _connection(self, target: Target, deadline: float) -> Connection:
        if not target.address:
            raise NotConnectedError(f"broker {target.broker_name!r} has no master just now")
        return await self._client.connection(target.address, max(0.001, deadline - self._client.loop.time()))

    async def _watched(self, target: Target, message: EncodedMessage, deadline: float) -> RemotingCommand:
        """One attempt, for those who look at each."""
        loop, started = self._client.loop, self._client.loop.time()
        context = self._before(target, message, "batch" if message.batch else "sync") if self._hooks else None
        receipt: SendReceipt | None = None
        error: Exception | None = None
        try:
            answer = await self._exchange(target, message, deadline)
            if answer.code in STORED_CODES:
                receipt = _receipt(message, target.queue, answer)
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

    def _before(self, target: Target, message: EncodedMessage, mode: Literal["sync", "batch", "oneway"]) -> SendContext:
        context = SendContext(
            self._client.config.namespace, message.group, message.msg_id, target.queue, target.address, mode,
            decode_properties(message.properties.encode("utf-8", "replace")), message.body, message.born,
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

    async def _exchange(self, target: Target, message: EncodedMessage, deadline: float) -> RemotingCommand:
        connection = self._client.remoting.live(target.address) or await self._connection(target, deadline)
        if not connection.writable:
            try:
                async with asyncio.timeout_at(deadline):
                    await connection.drain()
            except TimeoutError:
                raise BackPressureError(
                    f"{target.address} does not read, {connection.pending} requests wait there"
                ) from None
        code = RequestCode.SEND_BATCH_MESSAGE if message.batch else RequestCode.SEND_MESSAGE_V2
        ext = {EXT_ONCE: target.broker_name} if message.once else None
        command = RemotingCommand.request(code, _header(target, message), body=message.body, ext=ext)
        try:
            future = connection.request(command, max(0.001, deadline - self._client.loop.time()))
        except ProtocolError as error:
            raise UsageError(f"topic {message.topic!r}: cannot be encoded: {error}") from error
        return await future

    async def _fresh(self, publish: Publish, deadline: float) -> Publish:
        """The newest route that can be had in time; the one we have when the name servers are silent."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._look_up(publish.topic)
        except (TimeoutError, RocketError):
            return publish


def _header(target: Target, message: EncodedMessage) -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2(
        message.group, message.topic, AUTO_CREATE_TOPIC, 4, target.queue_id, message.sys_flag, message.born,
        message.flag, message.properties, message.reconsume_times, False, message.max_reconsume_times, message.batch,
        target.broker_name,
    )  # fmt: skip


def _receipt(message: EncodedMessage, queue: Queue, answer: RemotingCommand) -> SendReceipt:
    stored = answer.read(SendMessageResponseHeader)
    if stored.queue_id != queue.queue_id:
        queue = queue._replace(queue_id=stored.queue_id)
    status = SendStatus(answer.code)
    return SendReceipt(message.msg_id, queue, stored.queue_offset, stored.msg_id, status, stored.recall_handle)


def _text(message: EncodedMessage, error: Exception, attempts: int) -> str:
    tries = f" (attempt {attempts})" if attempts > 1 else ""
    return f"topic {message.topic!r}, message {message.msg_id}{tries}: {error}"
