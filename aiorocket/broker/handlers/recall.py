"""RECALL_MESSAGE (370): a timer message that was sent and is not due yet is not delivered.

The recall is stored in the timer topic, with the same due time; both are met then, the recall first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket.broker.answers import put_refusal, refuse, store_refusal, unknown_topic
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.timers import deletes, wait_code
from aiorocket.broker.timers import counted
from aiorocket.errors import StoreError
from aiorocket.remoting.awaited import shed
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import (
    PROPERTY_PGROUP,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQ_KEY,
    TIMER_TOPIC,
    ProtocolError,
    RecallHandle,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    encode_properties,
)

if TYPE_CHECKING:
    from aiorocket.config import BrokerConfig
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.runtime.env import Env
    from aiorocket.storage.store import MessageStore

__all__ = ("RecallHandler",)

#: Tag and body of a recall in the timer topic, as Apache's broker stores it.
RECALL_TAG = "_RECALL_TAG_"
RECALL_BODY = b"0"
_MEANWHILE = "recall failed, the message came due while the recall was stored: it may be delivered or not"


class RecallHandler:
    """Handler for 370."""

    def __init__(self, env: Env, config: BrokerConfig, tables: Tables, store: MessageStore) -> None:
        self._clock = env.clock
        self._broker = config.name
        self._max_delay = round(config.timer_max_delay * 1000)
        self._max_timers = config.limits.timers
        self._timers = tables.timers
        self._topics = tables.topics
        self._store = store

    def codes(self) -> dict[int, RequestHandler]:
        return {RequestCode.RECALL_MESSAGE: self.recall}

    def recall(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 370: answered when the recall is durable, with SYSTEM_ERROR when the message came due meanwhile. Nobody
        looks whether a message with the handle's id waits, as at Apache's."""
        header = command.read(RecallMessageRequestHeader)
        if header.topic not in self._topics:
            return refuse(unknown_topic(header.topic))
        try:
            handle = RecallHandle.parse(header.recall_handle)
        except ProtocolError as error:
            return refuse(Refusal(ResponseCode.ILLEGAL_OPERATION, f"recall handle is invalid: {error.what}"))
        refusal = self._check(connection, header, handle)
        if refusal is not None:
            return refuse(refusal)
        values = {
            PROPERTY_TAGS: RECALL_TAG,
            PROPERTY_TIMER_DEL_UNIQKEY: deletes(handle.topic, handle.unique),
            PROPERTY_UNIQ_KEY: handle.unique,
            PROPERTY_TIMER_DELIVER_MS: str(handle.deliver_ms),
            PROPERTY_TIMER_OUT_MS: str(handle.deliver_ms),
            PROPERTY_REAL_TOPIC: handle.topic,
            PROPERTY_REAL_QID: "0",
        }
        if header.producer_group:  # Apache's proxy names none
            values[PROPERTY_PGROUP] = header.producer_group

        shed(command)

        def done(result: PutResult) -> None:
            if result.status is not PutStatus.OK:
                connection.reply(command, refuse(put_refusal(result)))
            elif handle.deliver_ms <= self._clock.wall_ms():
                connection.reply(command, refuse(Refusal(ResponseCode.SYSTEM_ERROR, _MEANWHILE)))
            else:
                answer = RecallMessageResponseHeader(handle.unique)
                connection.reply(command, RemotingCommand.response(0, answer))

        try:
            now = self._clock.wall_ms()
            self._store.append(
                TIMER_TOPIC,
                0,
                RECALL_BODY,
                encode_properties(values),
                flag=0,
                sys_flag=0,
                born_timestamp=now,
                born_host=connection.peer_host,
                tags_code=wait_code(values, max(now, self._store.timestamp)),
                done=counted(self._timers, connection, done),
            )
        except StoreError as error:
            return refuse(store_refusal(error))
        except ProtocolError as error:
            return refuse(Refusal(ResponseCode.ILLEGAL_OPERATION, f"recall handle is invalid: {error.what}"))
        return None

    def _check(
        self, connection: Connection, header: RecallMessageRequestHeader, handle: RecallHandle
    ) -> Refusal | None:
        if handle.topic != header.topic:
            why = f"topic not match: the handle is of {handle.topic!r:.150}, not of {header.topic!r:.150}"
        elif handle.broker_name != self._broker:
            why = f"the handle is of broker {handle.broker_name!r:.150}, this is {self._broker!r}"
        elif not 0 < handle.deliver_ms - self._clock.wall_ms() <= self._max_delay:
            return _too_late(handle)
        else:  # it waits as a message does
            return self._timers.refusal(self._max_timers, connection.holds)
        return Refusal(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {why}")


def _too_late(handle: RecallHandle) -> Refusal:
    return Refusal(
        ResponseCode.ILLEGAL_OPERATION, f"recall failed, timestamp invalid: the message was due at {handle.deliver_ms}"
    )
