"""How a consumer gets its listeners: decorators, included routers, and how many handlers run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from aiorocket.client.core.lifecycle import Lifecycle, State
from aiorocket.client.core.namespace import unwrap
from aiorocket.client.core.stats import SAMPLE_INTERVAL, ConsumeStats
from aiorocket.client.push.direct import Inspected, consume_directly
from aiorocket.client.push.router import Handler, Listener, Router
from aiorocket.client.pushed import from_record
from aiorocket.config import ConsumerConfig
from aiorocket.errors import UsageError

if TYPE_CHECKING:
    from aiorocket.client.push.sinks import Sink

__all__ = ("Listening",)

H = TypeVar("H", bound=Handler)


class Listening(Router):
    """The part of a Consumer that is about listeners: a Router whose listeners run here."""

    group: str
    config: ConsumerConfig
    stats: ConsumeStats
    _namespace: str
    _lifecycle: Lifecycle
    _sinks: dict[str, list[Sink]]

    def add(self, listener: Listener) -> None:
        """UsageError after the start."""
        self._before_start()
        super().add(listener)

    def include(self, router: Router) -> None:
        """Run a router's listeners too. UsageError when it is for another group, or after the start."""
        self._before_start()
        if router.group is not None and router.group != self.group:
            raise UsageError(f"the router is for group {router.group!r}, this consumer for {self.group!r}")
        for each in router.listeners:
            self.add(each)

    def set_concurrency(self, topic: str, concurrency: int) -> None:
        """Let so many handlers (1 to 1024) of each of the topic's listeners run at once from now on. What runs is not
        interrupted; surplus workers end with what they have. UsageError when no listener of the topic runs."""
        sinks = self._sinks.get(unwrap(self._namespace, topic))
        if not sinks:
            known = ", ".join(sorted(self._sinks)) or "none, or it is not started"
            raise UsageError(f"consumer {self.group!r} runs no listener of topic {topic!r} (topics: {known})")
        for sink in sinks:
            sink.workers.set_concurrency(concurrency)

    def listener_of(self, topic: str, tag: str) -> Listener | None:
        """The listener that messages of ``topic`` with ``tag`` go to; as with retries, the topic's first one when none
        takes the tag."""
        found = [each for each in self.listeners if unwrap(self._namespace, each.topic) == topic]
        return next((each for each in found if not each.tags or tag in each.tags), found[0] if found else None)

    async def consume_directly(self, record: bytes, broker_name: str) -> dict[str, Any]:
        """Give the stored message to its listener, outside of all consumption (309). The body of the answer; UsageError
        when no listener is for its topic."""
        message = from_record(self._namespace, record, broker_name, Inspected)
        listener = self.listener_of(message.topic, message.tag)
        if listener is None:
            raise UsageError(f"consumer group {self.group} has no listener for topic {message.topic}")
        return await consume_directly(self.group, listener, message, self.config.batch_size)

    def _before_start(self) -> None:
        if self._lifecycle.state is not State.NEW:
            raise UsageError(f"consumer {self.group!r} was started: register listeners before that")

    async def _sample_forever(self) -> None:
        """The statistics' one timer."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL)
            self.stats.sample(loop.time())
