"""Queues that a broker wants to be popped: the task that pops, and acknowledgements in the background.

One of these stands for a whole broker of a topic (queue id -1), or for one of its queues. What it has is kept invisible
by renewals until a listener has ended with it, so there is no offset to commit and no lock; what is given up comes
again when its time is over.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

from aiorocket.client.core.process_queue import Entry, Limits, ProcessQueue
from aiorocket.client.pop.popped import PoppedMessage
from aiorocket.client.pop.pops import Pops
from aiorocket.client.push.fetcher import Fetcher, Pulling
from aiorocket.errors import RocketError
from aiorocket.model import Queue
from aiorocket_protocol import MAX_POP, ProtocolError

__all__ = ("PopFetcher",)

log = logging.getLogger("aiorocket.client")

#: Java's popThresholdForQueue: messages here that nobody has finished, above which nothing more is popped.
_MOST_CACHED = 96


class PopFetcher(Fetcher):
    """See above; ``Fetcher`` has the rest."""

    pops = True

    def __init__(self, pulling: Pulling, queue: Queue, limits: Limits, requests: Pops) -> None:
        self._requests = requests
        self._unacknowledged: list[PoppedMessage] = []
        self._acknowledging: asyncio.Task[None] | None = None
        cache = _PoppedQueue(self, _limits(limits))
        super().__init__(pulling, queue, 0, cache.limits, cache)

    def limit(self, limits: Limits) -> None:
        super().limit(_limits(limits))

    async def _pull(self) -> float:
        queue, config = self.queue, self._config
        subscription = self.member.subscriptions[queue.topic]
        began = self.last_pull = self._session.loop.time()
        if not self._expects and self.last_error is None and not await self._requests.wait(queue, config.hold):
            return 0.0  # a question takes nothing, so being stopped meanwhile leaves nothing invisible
        self._expects = False
        messages = await self._requests.pop(queue, subscription, MAX_POP, invisible=config.pop_invisible)
        self.last_error = None
        if not messages:
            return 0.0
        self._expects = True
        for message in messages:
            message._source = self
        tags = subscription.tags_set
        found = messages if not tags else [message for message in messages if message.tag in tags]
        if len(found) != len(messages):  # the broker matched hashes
            self.acknowledge([message for message in messages if message.tag not in tags])
        self.process_queue.put(found, sum(message.size for message in found), 0)
        for message in found:
            self._requests.renew(message)
        if found:
            self._pulling.topics.dispatch(queue.topic, list(found))
        self._pulling.stats.pulled(queue.topic, len(found), (self._session.loop.time() - began) * 1000)
        return config.pull_interval

    def acknowledge(self, messages: Sequence[PoppedMessage]) -> None:
        """Soon, together with what ends meanwhile."""
        self._unacknowledged += messages
        if self._acknowledging is None or self._acknowledging.done():
            self._acknowledging = self.member.scope.start(self._acknowledge(), name="acknowledge")

    def forget(self, message: PoppedMessage) -> None:
        """It is given up without an end: it comes again by itself."""
        self._requests.stop_renewing(message)

    async def settle(self) -> None:
        if self._acknowledging is not None:
            await asyncio.wait([self._acknowledging])

    async def _acknowledge(self) -> None:
        await asyncio.sleep(0)
        while self._unacknowledged:
            messages, self._unacknowledged = self._unacknowledged, []
            try:
                await self._requests.ack_all(self.queue, messages)
            except (RocketError, ProtocolError) as error:
                log.warning("%d messages of %s come again: %s", len(messages), self.queue, error)


class _PoppedQueue(ProcessQueue):
    """Finishing a message acknowledges it."""

    __slots__ = ("_fetcher",)

    def __init__(self, fetcher: PopFetcher, limits: Limits) -> None:
        super().__init__(0, limits)
        self._fetcher = fetcher

    def done(self, entry: Entry) -> bool:
        if not self.finish(entry):
            return False
        assert isinstance(entry, PoppedMessage)
        self._fetcher.acknowledge([entry])
        return True

    def finish(self, entry: Entry) -> bool:
        """The broker has been told of it."""
        return super().done(entry)

    def drop(self) -> None:
        for entry in self._order:
            if entry._process_queue is self and isinstance(entry, PoppedMessage):
                self._fetcher.forget(entry)
        super().drop()


def _limits(limits: Limits) -> Limits:
    # Offsets of several queues are no span.
    return limits._replace(messages=min(limits.messages, _MOST_CACHED), span=sys.maxsize)
