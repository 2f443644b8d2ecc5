"""Looking at single messages (33) and at the broker (28). There is no key index, so 12 stays unserved and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket.broker.core.counters import GroupCounters
from aiorocket.broker.core.groups import GroupTable
from aiorocket_protocol import (
    VERSION,
    VERSION_NAME,
    KVTable,
    RemotingCommand,
    ResponseCode,
    ViewMessageRequestHeader,
    encode_body,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.runtime.env import Env
    from aiorocket.storage.store import MessageStore

__all__ = ("QueryHandlers",)

NO_TPS = "0.0 0.0 0.0"


class QueryHandlers:
    """Handlers for 12, 28 and 33."""

    def __init__(self, env: Env, *, store: MessageStore, consumers: GroupTable, counters: GroupCounters) -> None:
        self._counters = counters
        self._clock = env.clock
        self._store = store
        self._consumers = consumers
        self._boot = env.clock.wall_ms()

    def view_message(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 33: the stored record at a physical offset."""
        offset = command.read(ViewMessageRequestHeader).offset
        data = self._store.read_record(offset)
        if data is None:
            return RemotingCommand.response(
                ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {offset}"
            )
        return RemotingCommand.response(body=data)

    def query_message(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 12: "not found" would be a lie about messages that are there."""
        return RemotingCommand.response(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=" request type 12 not supported (QUERY_MESSAGE): this broker keeps no key index yet; "
            "look a message up by its offset id",
        )

    def runtime_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 28: what mqadmin's clusterList and brokerStatus read, as text."""
        store = self._store
        now = self._clock.wall_ms()
        table = {
            "bootTimestamp": str(self._boot),
            "runtime": f"[ {(now - self._boot) // 1000} seconds ]",
            "brokerActive": "true",
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_NAME,
            "commitLogMinOffset": str(store.min_physical),
            "commitLogMaxOffset": str(store.max_physical),
            "commitLogDiskRatio": "0.0",
            "consumeQueueDiskRatio": "0.0",
            "earliestMessageTimeStamp": str(self._boot),
            "startAcceptSendRequestTimeStamp": "0",
            "sendThreadPoolQueueSize": "0",
            "sendThreadPoolQueueCapacity": "0",
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueSize": "0",
            "pullThreadPoolQueueCapacity": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
            "dispatchBehindBytes": "0",
            "putTps": NO_TPS,
            "getFoundTps": NO_TPS,
            "getMissTps": NO_TPS,
            "getTotalTps": NO_TPS,
            "getTransferredTps": NO_TPS,
            "getTransferedTps": NO_TPS,
            "msgPutTotalYesterdayMorning": "0",
            "msgPutTotalTodayMorning": "0",
            "msgPutTotalTodayNow": "0",
            "msgGetTotalYesterdayMorning": "0",
            "msgGetTotalTodayMorning": "0",
            "msgGetTotalTodayNow": "0",
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            "consumerGroups": str(sum(1 for _ in self._consumers)),
            **self._counters.report(),
        }
        for live in self._consumers:
            if difference := live.difference():
                table[f"subscriptionsDiffer_{live.name}"] = difference
        return RemotingCommand.response(body=encode_body(KVTable(table), connection.reply_type(command)))
