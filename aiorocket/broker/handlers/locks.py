"""Queue locks for orderly consumers: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).

A request that only renews is answered at once. One that changes an owner waits until the change is saved; all that come
while a save runs share the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator
from itertools import islice
from typing import TYPE_CHECKING, Any

from aiorocket.broker.answers import refuse
from aiorocket.broker.core.locks import QueueKey
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.turns import each, whole
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import (
    MAX_LENIENT,
    MessageQueue,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_plain,
    list_body,
)
from aiorocket_protocol.plain import Plain

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.remoting.server import RemotingServer

__all__ = ("MAX_QUEUES", "LockHandlers")

_log = logging.getLogger("aiorocket.broker")

#: Queues one request may name.
MAX_QUEUES = 10_000
#: Bytes of a request that is read at once, and queues that are locked or answered.
_AT_ONCE, _FEW = 64 << 10, 500
#: In the data of a connection that a request of many queues came on.
_IN_LINE = "locks"


class LockHandlers:
    """Handlers for 41 and 42, and the check of ``_epoch``. ``save`` begins to save the lock table and returns a future
    that is done when it is durable, or fails with OSError."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tables: Tables,
        server: RemotingServer,
        *,
        broker: str,
        save: Callable[[], asyncio.Future[None]],
    ) -> None:
        self._loop = loop
        self._table = tables.locks
        self._topics = tables.topics
        self._consumers = tables.consumers
        self._counters = tables.counters
        self._server = server
        self._broker = broker
        self._save = save
        #: What the running save covers, and the futures that wait for it; then those that wait for the one after it.
        self._saving: asyncio.Future[None] | None = None
        self._covered = 0
        self._waiting: list[asyncio.Future[str]] = []
        self._next: list[asyncio.Future[str]] = []
        #: (group, client id) of who holds locks → number of the newest connection it asked for them on, and when it
        #: last did; who did so longest ago is first.
        self._locked: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._one_long = asyncio.Lock()  # one of many queues works in turns of the loop, not each of many

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def lock(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:
        """Code 41: renew what the client holds, take what is free; answers what it holds then."""
        if (line := _line(connection, command)) is not None:
            return self._lock_behind(line, connection, command)
        return whole(self._lock(connection, command))

    async def _lock_behind(
        self, line: asyncio.Lock, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        async with line, self._one_long:
            await asyncio.sleep(0)
            answer = await in_turns(self._lock(connection, command))
        return await answer if isinstance(answer, Awaitable) else answer

    def _lock(
        self, connection: Connection, command: RemotingCommand
    ) -> Generator[None, None, RemotingCommand | Coroutine[Any, Any, RemotingCommand]]:
        """Some queues in a turn."""
        request = yield from _reading(command)
        if isinstance(request, Refusal):
            return refuse(request)
        group, client, queues = request
        if (refusal := self._consumers.refusal(group, connection, client)) is not None:
            return refuse(refusal)
        waits, existing, too_many = False, list[QueueKey](), ""
        for at in range(0, len(queues), _FEW):
            if at:
                yield
            if connection.closed:  # meanwhile: nobody would know that they are held
                break
            now = self._loop.time()
            some = [queue for queue in queues[at : at + _FEW] if self._exists(queue)]
            existing += some
            waits = self._table.lock(group, client, some, now, connection.holds) or waits
            too_many = too_many or self._table.too_many
            # Of who holds nothing nothing can be freed; and anybody could ask under one name after another.
            if waits or any(self._table.owner(group, queue) == client for queue in some):
                self._heard(connection, group, client, now)
        request = group, client, existing
        if waits:  # recorded also when nobody waits for it: the queue of a claim that is not is nobody's for ever
            return self._when_recorded(connection, command, request, self._recorded(), too_many)
        return self._answered(connection, command, request, "", too_many)

    def unlock(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:
        """Code 42, also one-way. What is saved of it is saved later: to lose it delays the next owner, no more."""
        if (line := _line(connection, command)) is not None:
            return self._unlock_behind(line, connection, command)
        return self._unlock(connection, whole(_reading(command)))

    async def _unlock_behind(
        self, line: asyncio.Lock, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        async with line, self._one_long:
            await asyncio.sleep(0)
            return self._unlock(connection, await in_turns(_reading(command)))

    def _unlock(self, connection: Connection, request: tuple[str, str, list[QueueKey]] | Refusal) -> RemotingCommand:
        if isinstance(request, Refusal):
            return refuse(request)
        # Of a long one the connection may have closed meanwhile, and the client have another.
        if connection.closed or self._is_overtaken(connection, *request[:2]):
            return RemotingCommand.response(remark="nothing unlocked: the client has a newer connection with locks")
        self._table.unlock(*request, self._loop.time())
        return RemotingCommand.response()

    def _exists(self, queue: QueueKey) -> bool:
        topic = self._topics.get(queue.topic)
        return topic is not None and queue.broker == self._broker and 0 <= queue.queue_id < topic.max_queues

    def _is_overtaken(self, connection: Connection, group: str, client: str) -> bool:
        """Bytes of a link that hung may arrive when the client has another one long since. A lock it got there must
        not be freed by them: it trusts that lock, also when the newer link is closed again."""
        last = self._locked.get((group, client))
        return last is not None and self._server.number(connection) < last[0]

    def _heard(self, connection: Connection, group: str, client: str, now: float) -> None:
        """For each that comes two may go: nothing older can arrive for them, their locks have ended by themselves, or
        they are more than there may be locks."""
        locked, table = self._locked, self._table
        if not self._is_overtaken(connection, group, client):
            locked[group, client] = self._server.number(connection), now
            locked.move_to_end((group, client))
        oldest = self._server.oldest
        for key, (number, asked) in list(islice(locked.items(), 2)):
            if number > oldest and asked + table.lease > now and len(locked) <= table.most:
                break
            del locked[key]

    def has_locks(self, group: str) -> bool:
        """Does a client hold a queue of this group now?"""
        return self._table.has_locks(group, self._loop.time())

    def stale(self, connection: Connection, group: str, topic: str, queue_id: int, epoch: str) -> Refusal | None:
        """The answer to a commit with ``_epoch=epoch``: None when its sender was the queue's last owner, and has no
        newer connection that says more."""
        if not epoch.isascii() or not epoch.isdecimal() or len(epoch) > 20:
            raise ProtocolError(f"{epoch!r:.50} is not a number", where="field _epoch")
        queue = QueueKey(topic, self._broker, queue_id)
        if not self._table.is_stale(group, queue, int(epoch)):
            owner = self._table.owner(group, queue)
            if not owner:
                return None
            if not self._is_overtaken(connection, group, owner):
                self._heard(connection, group, owner, self._loop.time())
                return None
            self._counters.stale_commits[group] += 1
            return Refusal(
                ResponseCode.NO_PERMISSION,
                f"overtaken: {owner} has a newer connection with news of {topic} queue {queue_id}, the commit is not "
                "stored",
            )
        self._counters.stale_commits[group] += 1
        return Refusal(
            ResponseCode.NO_PERMISSION,
            f"stale epoch {epoch}: {topic} queue {queue_id} of group {group} has been locked anew since, "
            "the commit is not stored; lock the queue before consuming it",
        )

    # ---- saving

    async def _when_recorded(
        self,
        connection: Connection,
        command: RemotingCommand,
        request: tuple[str, str, list[QueueKey]],
        recorded: asyncio.Future[str],
        too_many: str,
    ) -> RemotingCommand:
        answer = self._answered(connection, command, request, await recorded, too_many)
        return await answer if isinstance(answer, Awaitable) else answer

    def _answered(
        self, connection: Connection, command: RemotingCommand, request: tuple[str, str, list[QueueKey]], problem: str,
        too_many: str,
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:  # fmt: skip
        """``_answer``, of many queues in turns."""
        answering = self._answer(connection, command, request, problem, too_many)
        return whole(answering) if len(request[2]) <= _FEW else self._in_turns(answering)

    async def _in_turns(self, answering: Generator[None, None, RemotingCommand]) -> RemotingCommand:
        async with self._one_long:
            await asyncio.sleep(0)
            return await in_turns(answering)

    def _recorded(self) -> asyncio.Future[str]:
        """Done with "" when every claim made so far is durable, with the reason when they could not be saved."""
        future: asyncio.Future[str] = self._loop.create_future()
        self._next.append(future)
        if self._saving is None:
            self._begin()
        return future

    def _begin(self) -> None:
        self._waiting, self._next = self._next, []
        self._covered = self._table.counter
        self._saving = self._save()
        self._saving.add_done_callback(self._saved)

    def _saved(self, job: asyncio.Future[None]) -> None:
        self._saving = None
        error = asyncio.CancelledError("the broker stops") if job.cancelled() else job.exception()
        problem = ""
        if error is None:
            self._table.recorded(self._covered, self._loop.time())
        else:
            self._table.failed(self._covered)
            problem = f"{type(error).__name__}: {error}"
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(problem)
        self._next = [future for future in self._next if not future.done()]  # cancelled ones: the broker stops
        if self._next:
            self._begin()

    def _answer(
        self,
        connection: Connection,
        command: RemotingCommand,
        request: tuple[str, str, list[QueueKey]],
        problem: str,
        too_many: str,
    ) -> Generator[None, None, RemotingCommand]:
        now = self._loop.time()
        held = self._table.held(*request, now)
        remark = too_many or None  # Java's clients take those that they get, and ask again
        if problem:
            remark = f"queue locks cannot be granted, their new owners could not be recorded ({problem})"
            if not held:
                return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark=remark)
        elif (seconds := self._table.closed_for(now)) > 0:
            remark = (
                "the record of queue locks was lost with the broker's last stop: "
                f"none is granted for another {seconds:.0f} s, until those it granted before have run out"
            )
        queues = (MessageQueue(*lock.queue).to_plain() for lock in held)
        epochs = {"_epochs": [lock.epoch for lock in held]} if held else {}
        body = yield from list_body({}, "lockOKMQSet", queues, connection.reply_type(command), epochs)
        return RemotingCommand.response(body=body, remark=remark)


def _line(connection: Connection, command: RemotingCommand) -> asyncio.Lock | None:
    """What requests of a connection follow one another by when one of many queues came on it: else what one gives back
    would be locked behind it, and nobody got it until the lease is over."""
    line: asyncio.Lock | None = connection.data.get(_IN_LINE)
    if line is None and len(command.body) > _AT_ONCE:
        line = connection.data[_IN_LINE] = asyncio.Lock()
    return line


def _reading(command: RemotingCommand) -> Generator[None, None, tuple[str, str, list[QueueKey]] | Refusal]:
    """``LockBatchBody``, some queues in a turn."""
    body = Plain(
        decode_plain(command.body, command.serialize_type, "LockBatchBody", lenient=MAX_LENIENT), "LockBatchBody"
    )
    group, client, queues = body.text("consumerGroup"), body.text("clientId"), body.items("mqSet")
    if not group or not client:
        missing = "consumerGroup" if not group else "clientId"
        return Refusal(ResponseCode.INVALID_PARAMETER, f"the lock request names no client or group: {missing} is empty")
    if len(queues) > MAX_QUEUES:
        return Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"a request for {len(queues)} queue locks: at most {MAX_QUEUES} at once, split it",
        )
    return group, client, (yield from each(_queue, queues))


def _queue(plain: Any) -> QueueKey:
    return QueueKey(*MessageQueue.from_plain(plain))
