"""A broker's queue locks as an orderly consumer holds them: taken before the first pull, renewed, lost, given back."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection

from aiorocket.client.core.lease_table import LeaseTable
from aiorocket.client.core.retry import remote_error
from aiorocket.client.session import Session
from aiorocket.config import ConsumerConfig
from aiorocket.errors import NotConnectedError, RocketError
from aiorocket.model import Queue
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket_protocol import (
    LockBatchBody,
    LockBatchResult,
    MessageQueue,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    decode_body,
    encode_body,
)

__all__ = ("Leases",)

log = logging.getLogger("aiorocket.client")

#: Queues that one request names: with the longest names these fit into what our broker reads as a body in msgpack.
AT_ONCE = 500


class Leases:
    """The locks of one member of ``group`` (as brokers call it); made and used on its running loop. ``master`` is the
    address of a queue's broker, None while nobody knows it. ``renew_forever`` is to run as a task of the member's
    scope, ``close`` ends it."""

    def __init__(
        self, session: Session, group: str, config: ConsumerConfig, master: Callable[[Queue], str | None]
    ) -> None:
        self._session = session
        self._group = group
        self._master = master
        self._loop = asyncio.get_running_loop()
        self.table = LeaseTable(validity=config.lock_validity, renew=config.lock_renew_interval)
        #: A later answer finds the lease ended, and waiting for it would hold up the renewals at other brokers.
        self._patience = config.lock_validity - config.lock_renew_interval
        self._expiry = DeadlineDriver(self._loop, self.table.next_expiry, self._on_expiry)
        self._wake = asyncio.Event()
        self._waiting: defaultdict[Queue, list[Callable[[], None]]] = defaultdict(list)
        self._watchers: list[Callable[[Queue], None]] = []
        self._held_back: Counter[Queue] = Counter()
        #: Asked for, or given back, and not answered: the broker may hold them for us.
        self._doubtful: set[Queue] = set()
        #: Being given back: a request for one of them must not overtake that, or it would free what was granted anew.
        self._leaving: set[Queue] = set()
        self._closed = False

    def valid(self, queue: Queue, now: float) -> bool:
        """Held at loop time ``now``: less than ``lock_validity`` seconds since before the last request that got it."""
        return self.table.valid(queue, now)

    def until(self, queue: Queue) -> float:
        """The end of the lease in loop time; minus infinity when it is not held."""
        return self.table.until(queue)

    def last_lock(self, queue: Queue) -> float | None:
        """When the latest request that got the lock was sent, in loop time; None when it is not held."""
        until = self.until(queue)
        return until - self.table.validity if until > 0 else None

    def epoch(self, queue: Queue) -> int | None:
        """The number our broker gave this ownership; None from a broker that has none. It differs after a lost lease
        when somebody else had the queue in between."""
        return self.table.epoch(queue)

    def term(self, queue: Queue) -> int | None:
        """A number that stays the same for as long as the lease is held without a gap; None when it is not valid."""
        return self.table.term(queue) if self.valid(queue, self._loop.time()) else None

    def when_valid(self, queue: Queue, callback: Callable[[], None]) -> None:
        """Call ``callback`` once: when the queue is held again, or now when it is. A release forgets it."""
        if self.valid(queue, self._loop.time()):
            callback()
        elif callback not in self._waiting[queue]:
            self._waiting[queue].append(callback)

    def watch_lost(self, callback: Callable[[Queue], None]) -> None:
        """Call ``callback`` with every queue whose lease ends before it is released: at the second it expires, or when
        the broker does not name it any more."""
        self._watchers.append(callback)

    def lost(self, queue: Queue) -> None:
        """Tell the watchers that the lease of ``queue`` has ended."""
        for callback in self._watchers:
            callback(queue)

    # -- lock --

    async def acquire(self, queues: Collection[Queue]) -> set[Queue]:
        """Ask the master of each broker for the locks of ``queues``; those that are held now. A broker that refuses or
        does not answer grants nothing and disturbs no other."""
        if self._closed:
            return set()
        queues = [queue for queue in queues if queue not in self._leaving]
        await asyncio.gather(*(self._lock(part) for part in _by_broker(queues)))
        now = self._loop.time()
        # One that is being given up and was not granted anew would be unlocked under its new reader.
        return {queue for queue in queues if self.valid(queue, now) and not self.table.releasing(queue)}

    async def _lock(self, queues: list[Queue]) -> None:
        table = self.table
        ticket = table.ask()
        self._doubtful.update(queues)
        try:
            async with asyncio.timeout(self._patience):
                sent_at, answer = await self._request(RequestCode.LOCK_BATCH_MQ, queues)
            result = decode_body(LockBatchResult, answer.body, answer.serialize_type)
        except (RocketError, ProtocolError, TimeoutError) as error:
            broker, what = queues[0].broker_name, f"locking {len(queues)} queues"
            self._session.outages.failed(broker, what, error)
            table.failed(queues, self._loop.time())
            self._wake.set()
            return
        if self._closed:
            return
        self._doubtful.difference_update(queues)
        epochs: list[int | None] = list(result.epochs) or [None] * len(result.queues)
        granted = {
            Queue(each.topic, each.broker_name, each.queue_id): epoch
            for each, epoch in zip(result.queues, epochs, strict=True)
        }
        change = table.answer(ticket, queues, granted, sent_at, self._loop.time())
        self._expiry.update()
        self._wake.set()
        if change.lost:
            log.warning(
                "the broker does not grant the locks of %d queues any more: %s", len(change.lost), change.lost[0]
            )
        for queue in change.lost:
            self.lost(queue)
        for queue in change.won:
            for callback in self._waiting.pop(queue, ()):
                callback()

    async def renew_forever(self) -> None:
        """Renew what is held every ``lock_renew_interval`` seconds, and get back soon what was lost."""
        while not self._closed:
            self._wake.clear()
            due = self.table.next_due()
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                # A loop may wake a hair before the time it was asked for.
                await self.acquire(self.table.due(max(self._loop.time(), due or 0.0)))

    def _on_expiry(self, now: float) -> None:
        expired = self.table.expire(now)
        for queue in expired:
            self.lost(queue)
        for broker, count in Counter(queue.broker_name for queue in expired).items():
            text = "the locks of %d queues of broker %s were not renewed in time, nothing more of them is consumed"
            log.warning(text, count, broker)
        self._wake.set()

    # -- unlock --

    def strays(self, wanted: Collection[Queue]) -> list[Queue]:
        """The queues not in ``wanted`` whose lock is renewed here, or may be ours unbeknown to us."""
        held = sorted({*self.table.queues(), *self._doubtful} - self._leaving)
        return [queue for queue in held if queue not in wanted and not self.table.releasing(queue)]

    def hold_back(self, queue: Queue) -> None:
        """A handler still runs for ``queue``: a release only stops the renewals, until ``let_go``."""
        self._held_back[queue] += 1

    async def release(self, queue: Queue) -> None:
        """Give the lock back (UNLOCK_BATCH_MQ) and forget the queue. When a handler of it still runs this returns at
        once, and the lock is given back when that has ended."""
        self._waiting.pop(queue, None)
        if self._held_back[queue]:
            self.table.release_later(queue)
        else:
            await self._unlock(queue)

    async def let_go(self, queue: Queue) -> None:
        """The handler for which ``hold_back`` was called has ended: release now, if a release came meanwhile and the
        queue has not come back to this member since."""
        self._held_back[queue] -= 1
        if not self._held_back[queue] and self.table.releasing(queue):
            await self._unlock(queue)

    async def close(self) -> None:
        """Give back every lock at once, those whose request was not answered too, and take no more. For the consumer's
        end, after the sinks are drained: those that are held back still are left for the broker to end."""
        self._closed = True
        # In doubt until that is answered: it is called once more when it was cut short.
        queues = self._doubtful = {*self.table.queues(), *self._doubtful}
        for queue in queues:
            self.table.release(queue)
        self._expiry.close()
        self._wake.set()
        self._waiting.clear()
        free = [queue for queue in queues if not self._held_back[queue]]
        await asyncio.gather(*(self._send_unlock(part) for part in _by_broker(free)))
        queues.clear()

    async def _unlock(self, queue: Queue) -> None:
        known = self.table.release(queue) or queue in self._doubtful
        self._expiry.update()
        if known:
            self._doubtful.add(queue)
            self._leaving.add(queue)
            try:
                await self._send_unlock([queue])
            finally:
                self._leaving.discard(queue)
            self._doubtful.discard(queue)

    async def _send_unlock(self, queues: list[Queue]) -> None:
        try:
            await self._request(RequestCode.UNLOCK_BATCH_MQ, queues)
        except (RocketError, ProtocolError) as error:
            text = "unlocking %d queues of %s: %s; the broker ends its locks by itself"
            log.info(text, len(queues), queues[0].broker_name, error)

    async def _request(self, code: int, queues: list[Queue]) -> tuple[float, RemotingCommand]:
        """To the master of the queues' broker; the loop time before it was sent, and the answer."""
        session = self._session
        address = self._master(queues[0])
        if address is None:
            raise NotConnectedError(f"broker {queues[0].broker_name!r} has no master that could lock its queues")
        connection = await session.connection(address)
        wanted = [MessageQueue(queue.topic, queue.broker_name, queue.queue_id) for queue in queues]
        asked = LockBatchBody(session.client_id, self._group, wanted)
        body = encode_body(asked, connection.serialize_type)
        sent_at = self._loop.time()
        command = RemotingCommand.request(code, body=body)
        answer = await connection.request(command, session.config.remoting.request_timeout)
        if answer.code != 0:
            raise remote_error(answer.code, answer.remark, request=RequestCode(code).name, address=address)
        return sent_at, answer


def _by_broker(queues: Collection[Queue]) -> list[list[Queue]]:
    """What goes into one request each."""
    brokers: defaultdict[str, list[Queue]] = defaultdict(list)
    for queue in sorted(queues):
        brokers[queue.broker_name].append(queue)
    return [part[at : at + AT_ONCE] for part in brokers.values() for at in range(0, len(part), AT_ONCE)]
