"""The queues one member holds: a fetcher each, taken, paused, begun anew at another offset, given up."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from aiorocket.client.core.assignment import share
from aiorocket.client.core.process_queue import Limits
from aiorocket.client.core.start_from import Start
from aiorocket.client.group.commits import Commits
from aiorocket.client.group.rebalance_hooks import QueuesHook, call_hook
from aiorocket.client.pop.pops import Pops
from aiorocket.client.push.fetcher import Fetcher, Pulling
from aiorocket.client.push.pop_fetcher import PopFetcher
from aiorocket.client.push.sinks import Sink
from aiorocket.model import Queue

__all__ = ("Assigned",)

log = logging.getLogger("aiorocket.client")

_ALL = "*"


class Assigned:
    """A queue is in ``fetchers`` from ``take`` until everything about its end is done. ``sinks`` are those of the
    consumer's listeners, ``orderly`` says of which kind these are; ``rebalance`` is called when queues were given back
    that are to be taken anew."""

    def __init__(
        self,
        pulling: Pulling,
        commits: Commits,
        sinks: Sequence[Sink],
        *,
        orderly: Callable[[], bool],
        rebalance: Callable[[], None],
        on_assigned: QueuesHook | None,
        on_revoked: QueuesHook | None,
    ) -> None:
        self.fetchers: dict[Queue, Fetcher] = {}
        self._pulling = pulling
        self._member = pulling.member
        self._config = pulling.config
        self._commits = commits
        self._sinks = sinks
        self._orderly = orderly
        self._rebalance = rebalance
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        # What the application was told that it has, and not yet that it has lost it.
        self._told: set[Queue] = set()
        # Topics that are paused, "*" for all.
        self._paused: set[str] = set()
        self._pops = Pops(pulling.member, pulling.config.max_attempts, reason=pulling.config.dead_letter_reason)
        # Messages finished in assignments that have ended.
        self._retired = 0
        self._begun_anew: dict[Queue, float] = {}

    async def prepare(self, starts: Mapping[Queue, Start]) -> None:
        """Tell the application of queues that are about to be taken."""
        self._told.update(starts)
        await self._call_hook(self._on_assigned, starts)

    async def dismiss(self, queues: Collection[Queue]) -> None:
        """Of what was prepared, these are not taken after all."""
        await self._tell_revoked(queues)

    async def _tell_revoked(self, queues: Iterable[Queue]) -> None:
        told = self._told.intersection(queues)
        self._told -= told  # each is told once, whoever comes here first
        await self._call_hook(self._on_revoked, told)

    def take(self, queue: Queue, start: Start) -> None:
        """Begin with a queue."""
        if queue.topic in self._member.popping:
            fetcher: Fetcher = PopFetcher(self._pulling, queue, self._limits(1), self._pops)
        else:
            fetcher = Fetcher(self._pulling, queue, start.offset, self._limits(1))
            self._commits.offsets.begin(queue, start.offset, committed=start.stored)
        self.fetchers[queue] = fetcher
        fetcher.paused = self._is_paused(queue.topic)
        fetcher.start()

    def spread_limits(self) -> None:
        """What a topic may have in its cache is shared out to its queues."""
        counts = Counter(queue.topic for queue in self.fetchers)
        for queue, fetcher in self.fetchers.items():
            fetcher.limit(self._limits(counts[queue.topic]))

    def _limits(self, queues: int) -> Limits:
        config = self._config
        return Limits(
            share(config.max_cached_messages, config.max_cached_messages_per_topic, queues),
            share(config.max_cached_bytes, config.max_cached_bytes_per_topic, queues),
            # An orderly queue is consumed from its front only, so it cannot get wide.
            sys.maxsize if self._orderly() else config.max_span,
        )

    @property
    def finished(self) -> int:
        """Messages finished so far, however."""
        held = (fetcher.process_queue for fetcher in self.fetchers.values())
        return self._retired + sum(process_queue.taken - process_queue.count for process_queue in held)

    # -- pause --

    def pause(self, topics: Collection[str]) -> None:
        """Pull nothing more of ``topics`` (all, when there is none); queues of them that come later neither."""
        self._paused.update(topics or (_ALL,))
        self._look_at_pauses()

    def resume(self, topics: Collection[str]) -> None:
        """Undo ``pause`` for ``topics`` (all, when there is none)."""
        if topics:
            self._paused.difference_update(topics)
        else:
            self._paused.clear()
        self._look_at_pauses()

    def _is_paused(self, topic: str) -> bool:
        return topic in self._paused or _ALL in self._paused

    def _look_at_pauses(self) -> None:
        for fetcher in self.fetchers.values():
            fetcher.paused = self._is_paused(fetcher.queue.topic)
            fetcher.wake()

    def filter_changed(self, topic: str) -> None:
        """Pulls of ``topic`` that are under way have the filter from before, and pass over what only the new one wants:
        they are given up for new ones."""
        for fetcher in self.fetchers.values():
            if fetcher.queue.topic == topic:
                fetcher.restart()

    def lock_lost(self, queue: Queue) -> None:
        """Somebody else may own the queue by now and go on in it: what is cached counts no more, and our position
        neither, also should the lock come back before the queue has been given up here. It is taken anew with its lock,
        where the group is then."""
        self.begin_anew({queue: None}, 0.0)

    # -- ends --

    async def give_up(self, queues: Collection[Queue]) -> None:
        """End with ``queues``: nothing more is pulled, what must end before others begin has ended or its time is up,
        the positions are stored, the locks given back. Results that come later have no effect here."""
        fetchers = [self.fetchers[queue] for queue in sorted(queues)]
        if not fetchers:
            return
        await asyncio.gather(*(fetcher.stop() for fetcher in fetchers))
        await self._revoke(fetchers)
        await self.finish(fetchers)

    async def finish(self, fetchers: Collection[Fetcher], *, leaving: bool = False) -> None:
        """The last steps of ``give_up`` for fetchers that are stopped: tell the application, store, unlock, drop. An
        offset that was to be set in a while is what is stored, and not the position from before."""
        await self._tell_revoked(self._told if leaving else [fetcher.queue for fetcher in fetchers])
        for fetcher in fetchers:
            if fetcher.reset_to is not None:
                self._commits.offsets.repair(fetcher.queue, fetcher.reset_to)
        if fetchers:
            await asyncio.gather(self._commits.flush(fetchers), *(fetcher.settle() for fetcher in fetchers))
        leases = self._member.leases
        if leases is not None:
            if leaving:
                await leases.close()
            else:
                await asyncio.gather(*(leases.release(fetcher.queue) for fetcher in fetchers))
        for fetcher in fetchers:
            self._drop(fetcher)

    def begin_anew(self, positions: Mapping[Queue, int | None], delay: float) -> None:
        """What is cached of these queues belongs to positions that count no more. It is dropped at once; ``delay``
        seconds later, when running listeners have had time to end, the new offsets are set (also backwards) and stored,
        and the queues are given back to be taken again. None leaves the offset as the group has it: ours is stored no
        more. Queues that are not held are passed over; of one that is about to begin anew, the offset said last counts.
        """
        now, soon = asyncio.get_running_loop().time(), self._config.pull_error_delay
        fetchers: list[Fetcher] = []
        for queue, offset in positions.items():
            fetcher = self.fetchers.get(queue)
            if fetcher is None:
                continue
            if offset is not None:
                fetcher.reset_to = offset
            # Stored now, the position from before would take back what the broker keeps of a reset.
            self._commits.forget(queue)
            if not fetcher.process_queue.dropped:
                fetchers.append(fetcher)
                fetcher.process_queue.drop()
                # Two brokers that disagree about the queue must not make this spin.
                if now - self._begun_anew.get(queue, -soon) < soon:
                    delay = max(delay, soon)
                self._begun_anew[queue] = now
        if fetchers:
            self._member.scope.start(self._begin_anew(fetchers, delay), name="begin-anew")

    async def _begin_anew(self, fetchers: Collection[Fetcher], delay: float) -> None:
        await asyncio.gather(*(fetcher.stop() for fetcher in fetchers))
        await self._revoke(fetchers)
        await self._tell_revoked([fetcher.queue for fetcher in fetchers])
        await asyncio.sleep(delay)
        while fetchers := [each for each in fetchers if self.fetchers.get(each.queue) is each]:
            wanted = {each.queue: each.reset_to for each in fetchers if each.reset_to is not None}
            failures = await self._commits.repair(wanted) if wanted else {}
            for fetcher in fetchers:
                queue = fetcher.queue
                if queue in failures or self.fetchers.get(queue) is not fetcher:
                    continue
                if fetcher.reset_to != wanted.get(queue):
                    continue  # said meanwhile: that is stored next
                if self._member.leases is not None:
                    await self._member.leases.release(queue)
                    if fetcher.reset_to != wanted.get(queue):
                        continue
                self._drop(fetcher)
            self._rebalance()
            if failures:
                # Taken now, it would go on where the store has it, as if nobody had said anything.
                for queue, error in failures.items():
                    log.warning("%s cannot begin anew at offset %d yet: %s", queue, wanted[queue], error)
                await asyncio.sleep(self._config.pull_error_delay)

    async def _revoke(self, fetchers: Collection[Fetcher]) -> None:
        patience = self._config.revoke_timeout
        await asyncio.gather(*(sink.revoke(fetcher.queue, patience) for fetcher in fetchers for sink in self._sinks))

    def _drop(self, fetcher: Fetcher) -> None:
        process_queue = fetcher.process_queue
        process_queue.drop()
        if self.fetchers.get(fetcher.queue) is fetcher:
            del self.fetchers[fetcher.queue]
            self._commits.forget(fetcher.queue)
            self._retired += process_queue.taken - process_queue.count

    async def _call_hook(self, hook: QueuesHook | None, queues: Iterable[Queue]) -> None:
        await call_hook(hook, self._member.shown(queues), self._config.rebalance_hook_timeout)
