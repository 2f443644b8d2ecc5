"""Transactional messages: stored first as a half message that nobody sees, then committed or rolled back with what the
application does in its own database. What stays open is asked for by the broker later."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, TypeVar

from aiorocket.client.core.dead_reason import text_of
from aiorocket.client.core.namespace import wrap
from aiorocket.client.core.typed_body import Body
from aiorocket.client.exits import failure_of
from aiorocket.client.message import Message
from aiorocket.client.middleware import Middleware
from aiorocket.client.pushed import broker_of, from_record
from aiorocket.client.sending.around import around_one
from aiorocket.client.sending.outgoing import as_message
from aiorocket.client.sending.producer import Producer
from aiorocket.client.sending.send_hooks import SendHook
from aiorocket.client.sending.timed import not_timed
from aiorocket.client.session import HasSession
from aiorocket.config import ProducerConfig
from aiorocket.errors import RocketError, SendError, UsageError
from aiorocket.model import OutgoingMessage, Queue, SendReceipt, SendStatus, TxState
from aiorocket.remoting.connection import Connection
from aiorocket.runtime.env import Env
from aiorocket.runtime.tasks import TaskScope
from aiorocket.runtime.threads import in_thread
from aiorocket_protocol import (
    PROPERTY_PGROUP,
    PROPERTY_TRAN_MSG,
    SYS_FLAG_TRANSACTION_PREPARED,
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    parse_offset_msg_id,
    reason_text,
)

__all__ = ("Checker", "Transaction", "TransactionProducer", "TransactionResult")

log = logging.getLogger("aiorocket.client")

#: Says what became of the local transaction of a half message.
Checker = Callable[[Message], TxState | Awaitable[TxState]]
C = TypeVar("C", bound=Checker)


class TransactionResult(NamedTuple):
    """How ``send_in_transaction`` ended: the half message's receipt, and what was told to the broker."""

    receipt: SendReceipt
    state: TxState


class TransactionProducer(Producer):
    """A Producer whose messages can be bound to a local transaction::

        txp = aiorocket.TransactionProducer("pay", nameservers=...)

        @txp.checker
        async def check(message: aiorocket.Message) -> aiorocket.TxState:
            return TxState.COMMIT if await db.paid(message.keys[0]) else TxState.UNKNOWN

        async with txp, txp.transaction("payments", body, keys=[pay_id]) as tx:
            await db.mark_paid(pay_id, tx.id)

    The checker answers the broker's question about half messages whose end it has not heard of, also those of other
    producers of the group; without one ``start`` refuses. It may be asked more than once, and long after. Other verbs
    work as a Producer's.
    """

    def __init__(
        self,
        group: str,
        *,
        nameservers: str | Sequence[str] | None = None,
        client: HasSession | None = None,
        config: ProducerConfig | None = None,
        env: Env | None = None,
        hooks: Iterable[SendHook] = (),
        middleware: Iterable[Middleware] = (),
        checker: Checker | None = None,
    ) -> None:
        super().__init__(
            group, nameservers=nameservers, client=client, config=config, env=env, hooks=hooks, middleware=middleware
        )
        self._checker: Checker | None = None
        #: Check-backs that were left to the broker's next round because too many waited here.
        self.dropped_checks = 0
        self._checks = TaskScope(f"checks of {self.group}")
        self._check_turns = asyncio.Semaphore(self.config.check_concurrency)
        if checker is not None:
            self.checker(checker)

    def checker(self, function: C) -> C:
        """Decorator: ``function(message)`` says what became of a local transaction. It returns TxState.COMMIT or
        ROLLBACK, or UNKNOWN to be asked again; what it raises means UNKNOWN. Plain functions run in the loop's thread
        pool. UsageError for a second one."""
        if self._checker is not None:
            raise UsageError(f"producer {self.group!r} has a checker already: {self._checker!r}")
        if not callable(function):
            raise UsageError(f"the checker must be a function, {function!r} is not")
        self._checker = function
        return function

    async def start(self) -> None:
        """As ``Producer.start``. UsageError without a checker: nobody else could end a transaction whose outcome was
        lost."""
        if self._checker is None:
            raise UsageError(
                f"transaction producer {self.group!r} has no checker: decorate a function with @producer.checker that "
                "looks up what became of a message's local transaction"
            )
        await super().start()

    async def stop(self) -> None:
        """As ``Producer.stop``. Checks that run are cancelled; the broker asks again, perhaps another producer."""
        try:
            if self._lifecycle.running:
                await self._checks.close()
        finally:
            await super().stop()

    # -- transactions --

    def transaction(
        self,
        topic: str | OutgoingMessage,
        body: Body | None = None,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> Transaction:
        """``async with producer.transaction(topic, body, ...) as tx``: the half message is stored when the block
        begins; its normal end commits, an exception rolls back and goes on.

        Entering raises as ``send``. A transactional message cannot be delayed (UsageError; RocketMQ drops the delay).
        """
        message = _not_delayed(as_message(topic, body, tag, keys, properties, sharding_key, 0))
        return Transaction(self, message, queue, timeout)

    async def send_in_transaction(
        self,
        topic: str | OutgoingMessage,
        body: Body | None = None,
        *,
        local: Callable[[Transaction], Awaitable[TxState]],
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> TransactionResult:
        """The same as Java has it: send the half message, run ``local(transaction)`` and tell the broker the state that
        it returns. What it raises, or returns beside a TxState, means UNKNOWN and is logged: the checker decides.

        ``local`` is not run, and the state is ROLLBACK, when the half message was stored with a promise missing (a
        status other than SEND_OK). Arguments and errors as of ``transaction``.
        """
        tx = self.transaction(
            topic, body, tag=tag, keys=keys, properties=properties, sharding_key=sharding_key, queue=queue,
            timeout=timeout,
        )  # fmt: skip
        receipt = await tx.prepare()
        if receipt.status is not SendStatus.SEND_OK:
            await tx.end(TxState.ROLLBACK)
            return TransactionResult(receipt, TxState.ROLLBACK)
        remark = None
        try:
            state = _as_state(await local(tx))
        except Exception as error:
            log.warning("the local transaction of message %s failed", tx.id, exc_info=error)
            state, remark = TxState.UNKNOWN, _remark(error)
        except asyncio.CancelledError:
            await tx.end(TxState.UNKNOWN)
            raise
        await tx.end(state, remark)
        return TransactionResult(receipt, state)

    async def _end_transaction(self, receipt: SendReceipt, topic: str, state: TxState, remark: str | None) -> None:
        """Tell the broker that has the half message. One-way and once: whatever goes wrong is logged, the broker asks
        later."""
        try:
            self._lifecycle.need_running()
            host, port, commit_log_offset = parse_offset_msg_id(receipt.offset_msg_id)
            name = wrap(self.client.config.namespace, topic)
            header = EndTransactionRequestHeader(
                self._wire_group, receipt.offset, commit_log_offset, state.value, receipt.msg_id, False, receipt.msg_id,
                name,
            )  # fmt: skip
            route = self.client.routes.known(name)
            address = route.master(receipt.queue.broker_name) if route is not None else None
            connection = await self.client.connection(address or f"{host}:{port}")
            connection.oneway(_end_command(header, remark))
        except (RocketError, ProtocolError) as error:
            log.warning(
                "%s of message %s did not reach the broker, which will ask the checker: %s",
                state.name, receipt.msg_id, error,
            )  # fmt: skip

    # -- check-back --

    def _check(self, connection: Connection, header: CheckTransactionStateRequestHeader, record: bytes) -> bool:
        """The broker asks (39) what became of a half message of this group."""
        if not self._lifecycle.running or self._checks.closed:
            return True
        if len(self._checks) >= self.config.max_waiting_checks:
            self.dropped_checks += 1
            log.warning(
                "%d checks of transactions wait, the one of message %s is left to the broker's next round",
                len(self._checks), header.msg_id,
            )  # fmt: skip
            return True
        self._checks.start(self._answer_check(connection, header, record), name=str(header.msg_id))
        return True

    async def _answer_check(
        self, connection: Connection, header: CheckTransactionStateRequestHeader, record: bytes
    ) -> None:
        state, remark, msg_id, topic = TxState.UNKNOWN, None, header.msg_id or "", header.topic
        caller = asyncio.current_task()
        try:
            message = from_record(self.client.config.namespace, record, broker_of(self.client.routes, connection))
            msg_id, topic = message.msg_id, topic or message._wire_topic
            async with self._check_turns:
                state = _as_state(await _call(self._checker, message))
        except BaseException as error:
            remark = _remark(failure := failure_of(error, caller), "checker")
            log.warning("the check of transactional message %s failed", msg_id, exc_info=failure)
        answer = EndTransactionRequestHeader(
            self._wire_group, header.tran_state_table_offset, header.commit_log_offset, state.value, msg_id, True,
            header.transaction_id, topic,
        )  # fmt: skip
        try:
            connection.oneway(_end_command(answer, remark))
        except (RocketError, ProtocolError) as error:
            log.warning("the answer on transactional message %s did not reach the broker: %s", msg_id, error)


class Transaction:
    """One transactional message, see ``TransactionProducer.transaction``. ``id`` is the message's, ``state`` what the
    broker was told, None until then."""

    __slots__ = ("_message", "_producer", "_queue", "_timeout", "_wish", "receipt", "state")

    def __init__(
        self, producer: TransactionProducer, message: OutgoingMessage, queue: Queue | None, timeout: float | None
    ) -> None:
        self._producer = producer
        self._message = message
        self._queue = queue
        self._timeout = timeout
        self._wish: TxState | None = None
        self.receipt: SendReceipt | None = None
        self.state: TxState | None = None

    @property
    def id(self) -> str:
        """The message id (UNIQ_KEY), to be stored with the local transaction so that the checker finds it."""
        return self._sent().msg_id

    def leave_unknown(self) -> None:
        """Whatever the block ends in, let the checker decide."""
        self._wish = TxState.UNKNOWN

    def rollback(self) -> None:
        """Roll back at the end of the block, without an exception."""
        self._wish = TxState.ROLLBACK

    async def prepare(self) -> SendReceipt:
        """Store the half message. Errors as of ``Producer.send``; UsageError the second time."""
        if self.receipt is not None:
            raise UsageError(f"transaction {self.id} has begun already: a new one for each message")
        producer = self._producer
        system = {PROPERTY_TRAN_MSG: "true", PROPERTY_PGROUP: producer.sender.wire_group}
        deadline = producer.sender.deadline(self._timeout)

        async def send(message: OutgoingMessage) -> SendReceipt:
            return await producer.sender.send(
                _not_delayed(message),
                deadline,
                queue=self._queue,
                system=system,
                sys_flag=SYS_FLAG_TRANSACTION_PREPARED,
            )

        self.receipt = await around_one(producer.sender.steps, self._message, send)
        return self.receipt

    async def end(self, state: TxState, remark: str | None = None) -> None:
        """Tell the broker; never fails, see ``TransactionProducer._end_transaction``."""
        receipt, self.state = self._sent(), state
        await self._producer._end_transaction(receipt, self._message.topic, state, remark)

    async def __aenter__(self) -> Transaction:
        receipt = await self.prepare()
        if receipt.status is not SendStatus.SEND_OK:
            await self.end(TxState.ROLLBACK)
            raise SendError(
                f"topic {self._message.topic!r}, message {receipt.msg_id}: the half message was stored with "
                f"{receipt.status.name} and is rolled back",
                may_be_stored=False,
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):
            return  # the coroutine is thrown away, with its loop: nothing can be awaited any more
        if self._wish is not None:
            state = self._wish
        elif error is None:
            state = TxState.COMMIT
        elif isinstance(error, Exception):
            state = TxState.ROLLBACK
        else:
            # Cancelled: perhaps while the database was committing. Only the checker can know.
            state = TxState.UNKNOWN
        await self.end(state, None if error is None else _remark(error))

    def _sent(self) -> SendReceipt:
        if self.receipt is None:
            raise UsageError("the transaction has not begun: use 'async with'")
        return self.receipt


def _remark(error: BaseException, where: str = "local transaction") -> str:
    """As a frame can carry it, whatever the application raised."""
    return reason_text(f"{where}: {type(error).__name__}: {text_of(error)}")


def _not_delayed(message: OutgoingMessage) -> OutgoingMessage:
    """The message itself; UsageError when it, or a middleware, says that it comes later: RocketMQ drops that."""
    not_timed(message, "a transactional message")
    if message.delay_level:
        raise UsageError(f"delay_level={message.delay_level}: a transactional message cannot be delayed")
    return message


def _end_command(header: EndTransactionRequestHeader, remark: str | None) -> RemotingCommand:
    command = RemotingCommand.request(RequestCode.END_TRANSACTION, header, oneway=True)
    command.remark = remark
    return command


def _as_state(value: object) -> TxState:
    if isinstance(value, TxState):
        return value
    raise UsageError(f"{value!r} is not a TxState: COMMIT, ROLLBACK or UNKNOWN is expected")


async def _call(checker: Checker | None, message: Message) -> object:
    assert checker is not None
    if inspect.iscoroutinefunction(checker):
        return await checker(message)
    result = await in_thread(checker, message)
    return await result if inspect.isawaitable(result) else result
