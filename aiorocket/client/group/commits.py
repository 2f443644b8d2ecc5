"""From finished messages to stored offsets: every 10 s, when a queue is given up, and at the end."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from aiorocket.client.core.offsets import OffsetTable
from aiorocket.client.core.retry import remote_error
from aiorocket.client.core.start_from import Start
from aiorocket.client.group.held_queue import HeldQueue
from aiorocket.client.group.member import Member
from aiorocket.errors import NotConnectedError, RemoteError, RocketError
from aiorocket.model import Queue
from aiorocket.remoting.connection import Connection
from aiorocket_protocol import (
    EXT_EPOCH,
    ProtocolError,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    UpdateConsumerOffsetRequestHeader,
)

__all__ = ("Commits", "OffsetStore", "RemoteOffsets")

log = logging.getLogger("aiorocket.client")

_NO_OFFSET = int(ResponseCode.QUERY_NOT_FOUND)
_REFUSED = int(ResponseCode.NO_PERMISSION)
#: How our broker's remark begins when the queue has had another owner since the lock was granted.
_STALE = "stale epoch"


class OffsetStore(Protocol):
    """Where a group's offsets lie: at the brokers, or in a file beside a broadcasting member."""

    async def read(self, queue: Queue) -> int:
        """The stored offset, -1 when there is none. RocketError or ProtocolError when that cannot be found out."""

    async def write(self, due: list[tuple[Queue, int]]) -> dict[Queue, Exception]:
        """Store these, also backwards. The failures by queue; whatever is not in it is stored."""


class Commits:
    """Knows what each queue's position is and what the store has of it."""

    def __init__(self, member: Member, offset_store: OffsetStore) -> None:
        self.offset_store = offset_store
        self.offsets = OffsetTable()
        self._member = member
        self._flushing = asyncio.Lock()

    async def forever(self, interval: float, fetchers: Callable[[], Iterable[HeldQueue]]) -> None:
        while True:
            await asyncio.sleep(interval)
            await self.flush(fetchers())

    async def flush(self, fetchers: Iterable[HeldQueue]) -> dict[Queue, Exception]:
        """Commit what has advanced in these and wait for the answers; what failed stays due. The failures by queue."""
        # One at a time: a slow answer to an old commit must not be taken for the state after a newer one.
        async with self._flushing:
            held = {fetcher.queue: fetcher for fetcher in fetchers}

            def due() -> list[tuple[Queue, int]]:
                for fetcher in held.values():
                    self.note(fetcher)
                # Of other queues the position is not up to date, and pulls may have committed more.
                return self._due(held)

            return await self._write(due)

    async def store(self, queues: Collection[Queue]) -> dict[Queue, Exception]:
        """As ``flush``, of what was set in ``offsets`` for these queues."""
        async with self._flushing:
            return await self._write(lambda: self._due(queues))

    def note(self, fetcher: HeldQueue) -> None:
        """Take over the position of an assignment that is not dropped. Concurrent results move it forward only; what an
        orderly listener has committed is set as it is."""
        cache = fetcher.cache
        if cache.dropped:
            return
        if self._member.leases is not None:
            self.offsets.set(fetcher.queue, cache.committable())
        else:
            self.offsets.advance(fetcher.queue, cache.committable())

    async def repair(self, positions: Mapping[Queue, int]) -> dict[Queue, Exception]:
        """Set these positions, also backwards, and store them now. The failures by queue."""
        async with self._flushing:
            for queue, offset in positions.items():
                self.offsets.repair(queue, offset)
            return await self._write(lambda: list(positions.items()))

    async def store_ends(self, starts: Mapping[Queue, Start]) -> dict[Queue, Start]:
        """``starts``, and those at an end are stored before anything is read: until the first commit the group would
        have no offset there, and who looks for the end next passes over what has come meanwhile. Not those whose lock
        is lost again: their next owner may be further."""
        ends = [(queue, start.offset) for queue, start in starts.items() if start.at_end]
        if not ends:
            return dict(starts)
        async with self._flushing:
            for queue, offset in self._ours(ends):
                self.offsets.repair(queue, offset)
            await self._write(lambda: self._ours(ends))
        stored = {entry for entry in ends if self.offsets.committed(entry[0]) == entry[1]}
        return {
            queue: start._replace(stored=True) if start.at_end and (queue, start.offset) in stored else start
            for queue, start in starts.items()
        }

    def forget(self, queue: Queue) -> None:
        """The queue is given up; what comes of it later changes nothing here."""
        self.offsets.forget(queue)

    def _due(self, queues: Collection[Queue]) -> list[tuple[Queue, int]]:
        return self._ours([entry for entry in self.offsets.dirty() if entry[0] in queues])

    def _ours(self, due: list[tuple[Queue, int]]) -> list[tuple[Queue, int]]:
        """Whoever may own a queue by now has a newer position: without our lock, ours is not news but damage."""
        leases = self._member.leases
        if leases is None:
            return due
        now = self._member.session.loop.time()
        return [(queue, offset) for queue, offset in due if leases.valid(queue, now)]

    async def _write(self, due: Callable[[], list[tuple[Queue, int]]]) -> dict[Queue, Exception]:
        written = due()
        failures: dict[Queue, Exception] = {}
        if not self._member.broadcasting and (ahead := self.offsets.ahead(written)):
            # Apache's broker makes the table of a group's topic when its first offset comes: of several at once it may
            # keep one and acknowledge all. So one goes ahead, and all are written then. They are found anew: meanwhile
            # pulls may have committed more, and another member may have got the queue.
            failures = await self.offset_store.write(ahead)
            # Who did not answer that is not asked again: a stop would wait for both.
            silent = {q.broker_name: error for q, error in failures.items() if not isinstance(error, RemoteError)}
            written = [entry for entry in due() if entry[0] not in failures]
            failures |= {queue: silent[queue.broker_name] for queue, _ in written if queue.broker_name in silent}
            written = [entry for entry in written if entry[0] not in failures]
        if written:
            failures |= await self.offset_store.write(written)
        for queue, offset in written:
            if queue not in failures:
                self.offsets.note_committed(queue, offset)
        for queue, error in failures.items():
            self._member.session.outages.failed(queue.broker_name, f"committing {queue}", error)
        return failures


class RemoteOffsets:
    """The OffsetStore of a clustering group: each queue's broker (codes 14 and 15)."""

    def __init__(self, member: Member) -> None:
        self._member = member

    async def read(self, queue: Queue) -> int:
        member = self._member
        header = QueryConsumerOffsetRequestHeader(member.wire_group, queue.topic, queue.queue_id)
        code = RequestCode.QUERY_CONSUMER_OFFSET
        stored = await member.session.call(member.address(queue), code, header, accept=(0, _NO_OFFSET))
        return stored.read(QueryConsumerOffsetResponseHeader).offset if stored.code == 0 else -1

    async def write(self, due: list[tuple[Queue, int]]) -> dict[Queue, Exception]:
        failures: dict[Queue, Exception] = {}
        by_address: defaultdict[str | None, list[tuple[Queue, int]]] = defaultdict(list)
        for queue, offset in due:
            by_address[self._member.master_address(queue)].append((queue, offset))
        ends = []
        for address, part in by_address.items():
            # In this very step where it can be: by the next a pull may have committed more, and this would set it back.
            connection = None if address is None else self._member.session.live(address)
            answers = None if connection is None else self._ask(connection, part, failures)
            ends.append(self._settle(address, part, answers, failures))
        await asyncio.gather(*ends)
        return failures

    def _ask(
        self, connection: Connection, due: list[tuple[Queue, int]], failures: dict[Queue, Exception]
    ) -> asyncio.Future[list[RemotingCommand | BaseException]]:
        session, group, leases = self._member.session, self._member.wire_group, self._member.leases
        waiting: list[asyncio.Future[RemotingCommand]] = []
        try:
            for queue, offset in due:
                header = UpdateConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id, offset)
                epoch = leases.epoch(queue) if leases is not None else None
                ext = None if epoch is None else {EXT_EPOCH: str(epoch)}
                command = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, ext=ext)
                waiting.append(connection.request(command, session.config.remoting.request_timeout))
        except (RocketError, ProtocolError) as error:
            failures.update((queue, error) for queue, _ in due[len(waiting) :])
        return asyncio.gather(*waiting, return_exceptions=True)

    async def _settle(
        self,
        address: str | None,
        due: list[tuple[Queue, int]],
        answers: asyncio.Future[list[RemotingCommand | BaseException]] | None,
        failures: dict[Queue, Exception],
    ) -> None:
        if answers is None:
            try:
                if address is None:
                    raise NotConnectedError(f"no route to broker {due[0][0].broker_name!r}")
                connection = await self._member.session.connection(address)
            except (RocketError, ProtocolError) as error:
                failures.update((queue, error) for queue, _ in due)
                return
            answers = self._ask(connection, due, failures)
        for (queue, offset), answer in zip(due, await answers, strict=False):
            if isinstance(answer, BaseException):
                failures[queue] = answer if isinstance(answer, Exception) else ConnectionError("cancelled")
            elif answer.code == _REFUSED and (answer.remark or "").startswith(_STALE):
                # The queue has another owner, whose position counts.
                self._member.counters.stale_commits += 1
                log.info("commit of %s at %d is ignored: %s", queue, offset, answer.remark)
            elif answer.code != 0:
                failures[queue] = remote_error(
                    answer.code, answer.remark, request="UPDATE_CONSUMER_OFFSET", address=address or ""
                )
