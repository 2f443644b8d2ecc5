"""What a Client runs for an application: the consumers of its routers, which start and end together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from aiorocket.client.push.consumer import Consumer
from aiorocket.client.push.listener_state import bind_state
from aiorocket.client.push.router import Router
from aiorocket.client.session import Session
from aiorocket.client.state import ConsumerState
from aiorocket.config import ConsumerConfig
from aiorocket.errors import UsageError

__all__ = ("Service",)


class Service:
    """See ``Client.include`` and ``Client.running``."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._routers: dict[str, Router] = {}
        self._configs: dict[str, ConsumerConfig] = {}
        self._entered = False
        #: Those of ``running()``, from its begin on.
        self._consumers: tuple[Consumer, ...] = ()

    def include(self, router: Router, group: str | None, state: object, config: ConsumerConfig | None) -> None:
        if group is None:
            raise UsageError("which group? Router(group), or Client(group=...)")
        if self._entered:
            raise UsageError(f"the consumer of group {group!r} is running: include routers before that")
        if not router.listeners:
            raise UsageError(f"the router for group {group!r} has no listeners yet: import what declares them first")
        bound = [bind_state(each, state) for each in router.listeners]
        if config is not None and self._configs.setdefault(group, config) != config:
            raise UsageError(f"group {group!r} has another config already: its routers share one consumer")
        whole = self._routers.setdefault(group, Router(group))
        for each in bound:
            whole._add(each)

    @asynccontextmanager
    async def running(self, drain_timeout: float | None) -> AsyncIterator[None]:
        self._session.need_running()
        if self._entered:
            raise UsageError("the consumers of this Client are running already: running() is entered once at a time")
        self._entered = True
        try:
            self._consumers = tuple(
                Consumer(group, client=self._session, config=self._configs.get(group), router=router)
                for group, router in self._routers.items()
            )
            try:
                await _together(each.start for each in self._consumers)
                yield
            finally:
                await self.stop(drain_timeout)
        finally:
            self._entered = False

    async def stop(self, drain_timeout: float | None) -> None:
        """End all of them, the others too when one raises."""
        errors: list[Exception] = []

        def stop(consumer: Consumer) -> Callable[[], Awaitable[None]]:
            async def act() -> None:
                try:
                    await consumer.stop(timeout=drain_timeout)  # nothing happens when it has stopped, or never started
                except Exception as error:  # noqa: BLE001 - the others are to drain all the same
                    errors.append(error)

            return act

        await _together(map(stop, self._consumers))
        if errors:
            raise errors[0]

    def waiting(self) -> list[str]:
        """Groups whose consumer was not begun yet."""
        return [group for group in self._routers if not any(each.group == group for each in self._consumers)]

    def states(self) -> list[ConsumerState]:
        """Of these and of every other consumer of the session, from its start to its stop."""
        own = [each._registered for each in self._consumers]
        others = (each for each in self._session.consumers.values() if each not in own)
        return [each.state() for each in (*own, *others)]


async def _together(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """All calls at once; the first error when one fails, after the others were cancelled and have ended."""

    async def one(call: Callable[[], Awaitable[None]]) -> None:
        await call()

    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(one(call))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
