"""From finished messages to offsets at the brokers: every 10 s, when a queue is given up, and at the end."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from aiorocket.client.core.offsets import OffsetTable
from aiorocket.client.core.retry import remote_error
from aiorocket.errors import NotConnectedError, RocketError
from aiorocket_protocol import ProtocolError, RemotingCommand, RequestCode, UpdateConsumerOffsetRequestHeader

if TYPE_CHECKING:
    from aiorocket.client.consumer import Consumer
    from aiorocket.client.fetcher import Fetcher
    from aiorocket.model import Queue

__all__ = ("Commits",)

log = logging.getLogger("aiorocket.client")


class Commits:
    """Knows what each queue's position is and what the broker has of it."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.offsets = OffsetTable()
        self._flushing = asyncio.Lock()

    async def forever(self) -> None:
        while True:
            await asyncio.sleep(self._consumer.config.offset_flush_interval)
            await self.flush(self._consumer.fetchers())

    async def flush(self, fetchers: Iterable[Fetcher]) -> dict[Queue, Exception]:
        """Commit what has advanced and wait for the answers; what failed stays due. The failures by queue."""
        # One at a time: a slow answer to an old commit must not be taken for the state after a newer one.
        async with self._flushing:
            for fetcher in fetchers:
                process_queue = fetcher.process_queue
                if not process_queue.dropped:
                    self.offsets.advance(fetcher.queue, process_queue.committable())
            return await self._send(self.offsets.dirty())

    async def give_up(self, fetcher: Fetcher) -> None:
        """The queue goes to another member: commit its last position, then know nothing of it any more."""
        await self.flush([fetcher])
        fetcher.process_queue.drop()
        self.offsets.forget(fetcher.queue)

    async def _send(self, due: list[tuple[Queue, int]]) -> dict[Queue, Exception]:
        failures: dict[Queue, Exception] = {}
        by_address: defaultdict[str | None, list[tuple[Queue, int]]] = defaultdict(list)
        for queue, offset in due:
            by_address[self._consumer.master_address(queue)].append((queue, offset))
        await asyncio.gather(*(self._send_to(address, part, failures) for address, part in by_address.items()))
        for queue, error in failures.items():
            log.info("committing %s: %s", queue, error)
        return failures

    async def _send_to(
        self, address: str | None, due: list[tuple[Queue, int]], failures: dict[Queue, Exception]
    ) -> None:
        client, group = self._consumer.client, self._consumer.group
        waiting: list[asyncio.Future[RemotingCommand]] = []
        try:
            if address is None:
                raise NotConnectedError(f"no route to broker {due[0][0].broker_name!r}")
            connection = await client.connection(address)
            for queue, offset in due:
                header = UpdateConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id, offset)
                command = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
                waiting.append(connection.request(command, client.config.remoting.request_timeout))
        except (RocketError, ProtocolError) as error:
            failures.update((queue, error) for queue, _ in due[len(waiting) :])
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        for (queue, offset), answer in zip(due, answers, strict=False):
            if isinstance(answer, BaseException):
                failures[queue] = answer if isinstance(answer, Exception) else ConnectionError("cancelled")
            elif answer.code != 0:
                failures[queue] = remote_error(
                    answer.code, answer.remark, request="UPDATE_CONSUMER_OFFSET", address=address or ""
                )
            else:
                self.offsets.note_committed(queue, offset)
