"""END_TRANSACTION (37), the sends that open a transaction, and RESUME_CHECK_HALF_MESSAGE (323).

A message with TRAN_MSG=true is stored as a half message in a queue that consumers do not know; its receipt carries that
queue's offset and the offset id of the half message, and the producer names both when it ends the transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket.broker.answers import put_refusal, refuse, store_refusal
from aiorocket.broker.copies import Copy, store_copy
from aiorocket.broker.core import shares
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.send_checks import SendHeader, added_properties, check_sizes
from aiorocket.broker.core.shares import Holds
from aiorocket.broker.core.transactions import HalfState, immunity
from aiorocket.broker.transaction_check import TransactionChecks, name_of
from aiorocket.errors import StoreError
from aiorocket.remoting.awaited import shed
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import (
    DEFAULT_REGION,
    HALF_TOPIC,
    MAX_CHECKS_TOPIC,
    PROPERTY_DELAY,
    PROPERTY_PGROUP,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_UNIQ_KEY,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    EndTransactionRequestHeader,
    ProtocolError,
    RecordView,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    ResumeCheckHalfMessageRequestHeader,
    SendMessageResponseHeader,
    encode_properties,
    offset_msg_id,
    parse_offset_msg_id,
    tags_code,
)

if TYPE_CHECKING:
    from aiorocket.config import BrokerConfig
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.runtime.env import Env
    from aiorocket.storage.store import MessageStore

__all__ = ("TransactionHandlers",)

#: commitOrRollback of a producer that does not know yet.
UNKNOWN = 0
#: Bytes of properties that checking a half message adds to it.
ROOM_FOR_CHECKS = 128

_GONE = "Find prepared transaction message failed"


class TransactionHandlers:
    """Handler for 37 and 323; ``store_half`` is called by the send handlers."""

    def __init__(self, env: Env, config: BrokerConfig, store: MessageStore, checks: TransactionChecks) -> None:
        self._clock = env.clock
        self._config = config
        self._store = store
        self._checks = checks
        self._cluster = config.cluster

    def codes(self) -> dict[int, RequestHandler]:
        return {RequestCode.END_TRANSACTION: self.end, RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume}

    def store_half(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: SendHeader,
        topic: str,
        queue_id: int,
        values: dict[str, str],
    ) -> RemotingCommand | None:
        """Store an admitted message, whose properties are ``values``, as a half message. Answers when it is durable."""
        if self._config.reject_transactions:
            return _refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.name}] sending transaction message is forbidden (reject_transactions)",
            )
        if (too_many := self._full(topic, connection.holds)) is not None:
            return refuse(too_many)
        # A delay is dropped, as Java's producer does; what names an earlier check is the broker's own.
        for name in (PROPERTY_DELAY, PROPERTY_TRANSACTION_CHECK_TIMES, PROPERTY_TRAN_PREPARED_QUEUE_OFFSET):
            values.pop(name, None)
        unique = values[PROPERTY_UNIQ_KEY]
        values.update(
            added_properties(self._cluster), REAL_TOPIC=topic, REAL_QID=str(queue_id), __transactionId__=unique
        )
        try:
            text = encode_properties(values)
        except ProtocolError as error:  # too long by what was added
            return _refused(ResponseCode.MESSAGE_ILLEGAL, str(error))
        refusal = check_sizes(0, len(text) + ROOM_FOR_CHECKS, self._config.max_message_size)
        if refusal is not None:
            return refuse(refusal)
        wait = immunity(values)
        tag = values.get(PROPERTY_TAGS)

        def done(result: PutResult) -> None:
            if result.status is not PutStatus.OK:
                connection.reply(command, refuse(put_refusal(result)))
                return
            self._checks.stored(result, wait, connection.holds)
            answer = SendMessageResponseHeader(
                offset_msg_id(self._store.store_host, result.physical_offset),
                queue_id,
                result.queue_offset,
                unique,
                None,
                None,
                DEFAULT_REGION,
                "true",
            )
            connection.reply(command, RemotingCommand.response(0, answer))

        body = command.body
        shed(command)
        try:
            self._store.append(
                HALF_TOPIC,
                0,
                body,
                text,
                flag=header.flag,
                sys_flag=header.sys_flag & ~SYS_FLAG_TRANSACTION_MASK,
                born_timestamp=header.born_timestamp,
                born_host=connection.peer_host,
                reconsume_times=header.reconsume_times or 0,
                tags_code=tags_code(tag) if tag else 0,
                done=done,
            )
        except StoreError as error:
            return refuse(store_refusal(error))
        except ProtocolError as error:  # a length or number that a record cannot hold
            return _refused(ResponseCode.MESSAGE_ILLEGAL, str(error))
        return None

    def end(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 37: commit, rollback, or "not known yet", which changes nothing. Usually one-way; whoever wants an
        answer gets it when the end is durable."""
        header = command.read(EndTransactionRequestHeader)
        outcome = header.commit_or_rollback
        if outcome == UNKNOWN:
            return RemotingCommand.response()
        if outcome not in (SYS_FLAG_TRANSACTION_COMMIT, SYS_FLAG_TRANSACTION_ROLLBACK):
            return _refused(
                ResponseCode.INVALID_PARAMETER, f"commitOrRollback={outcome}: 8 commits, 12 rolls back, 0 is unknown"
            )
        data = self._store.read_record(header.commit_log_offset)
        view = None if data is None else RecordView(data, 0, len(data))
        if view is None or view.topic != HALF_TOPIC:
            return _refused(ResponseCode.SYSTEM_ERROR, f"{_GONE}: no half message at {header.commit_log_offset}")
        refusal = self._check(header, view)
        if refusal is not None:
            return refuse(refusal)
        name = name_of(view)
        half = self._checks.table.get(name)
        commits = outcome == SYS_FLAG_TRANSACTION_COMMIT
        if half is None or half.state is HalfState.DISCARDED or (half.state is HalfState.DELIVERED and not commits):
            return _refused(ResponseCode.SYSTEM_ERROR, f"{_GONE}: the transaction of half message {name} has ended")
        if half.state is HalfState.ENDING:
            return _refused(ResponseCode.SYSTEM_ERROR, f"the transaction of half message {name} is being ended already")

        shed(command)

        def ended(refusal: Refusal | None) -> None:
            connection.reply(command, RemotingCommand.response() if refusal is None else refuse(refusal))

        if commits:
            self._checks.commit(half, view, ended)
        else:
            self._checks.rollback(half, ended)
        return None

    def resume(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 323: a message that nobody answered for, and that lies in TRANS_CHECK_MAX_TIME_TOPIC, is a half message
        once more: its producers are asked about it from the beginning. Each call stores it anew."""
        text = command.read(ResumeCheckHalfMessageRequestHeader).msg_id or ""
        try:
            _, _, offset = parse_offset_msg_id(text)
        except ProtocolError as error:
            return _refused(ResponseCode.SYSTEM_ERROR, f"msgId {text!r:.80}: {error}")
        data = self._store.read_record(offset)
        view = None if data is None else RecordView(data, 0, len(data))
        if view is None or view.topic != MAX_CHECKS_TOPIC:
            return _refused(ResponseCode.SYSTEM_ERROR, f"msgId {text}: no message of {MAX_CHECKS_TOPIC}")
        values = dict(view.properties)
        if (too_many := self._full(values.get(PROPERTY_REAL_TOPIC, ""), connection.holds)) is not None:
            return refuse(too_many)
        shed(command)
        for name in (PROPERTY_TRANSACTION_CHECK_TIMES, PROPERTY_TRAN_PREPARED_QUEUE_OFFSET):
            values.pop(name, None)

        def done(result: PutResult) -> None:
            if result.status is PutStatus.OK:
                self._checks.stored(result, immunity(values), connection.holds)
                connection.reply(command, RemotingCommand.response())
            else:
                connection.reply(command, refuse(put_refusal(result)))

        try:
            store_copy(self._store, Copy(view, HALF_TOPIC, 0, encode_properties(values)), done)
        except StoreError as error:
            return refuse(store_refusal(error))
        return None

    def _full(self, topic: str, who: Holds) -> Refusal | None:
        """Why no more transactions may be open."""
        most, open_now = self._config.limits.transactions, len(self._checks.table)
        return shares.refusal("transactions", most, open_now, f"a transaction of topic {topic}", who)

    def _check(self, header: EndTransactionRequestHeader, view: RecordView) -> Refusal | None:
        """May this producer end this half message now? The checks are RocketMQ's, in its order."""
        values = view.properties
        wait = immunity(values)
        if wait is not None and not header.from_transaction_check:
            age = self._clock.wall_ms() - view.born_timestamp
            if age > wait * 1000:
                return Refusal(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the message is {age} ms old and asked to be left alone for {wait:g} s only "
                    "(CHECK_IMMUNITY_TIME_IN_SECONDS): it can be ended by answering a check",
                )
        if values.get(PROPERTY_PGROUP) != header.producer_group:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The producer group wrong: the half message is of {values.get(PROPERTY_PGROUP)!r:.255}, "
                f"not of {header.producer_group!r:.255}",
            )
        if view.queue_offset != header.tran_state_table_offset:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The transaction state table offset wrong: {header.tran_state_table_offset}, "
                f"the half message has {view.queue_offset}",
            )
        return None


def _refused(code: ResponseCode, remark: str) -> RemotingCommand:
    return refuse(Refusal(code, remark))
