"""Limits on what each group may have a second (``BrokerConfig.rates``), around the handlers of 11, 361 and 200050.

A pull or pop above its group's rate is held until there is room, the longest waiting first, as one is that waits for
messages: at most as long as its client allows, then it is answered that there is nothing for now at its offset. One
that allows none waits for a second and is answered SYSTEM_BUSY, for "nothing" would look like the end of the queue.
While others wait each gets its share of a second's worth, so that all of them come to their turn. What was delivered is
read off the broker's counters, so pulls that wait for messages cost nothing; those that came to them are paid
for by the next pull.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.broker.answers import refuse
from aiorocket.broker.core.long_poll import LongPolls, ParkedPull
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.rates import BURST, Rate
from aiorocket.broker.core.tables import Tables
from aiorocket.remoting.processors import error_response
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket_protocol import (
    EXT_ACCEPT,
    EXT_EPOCH,
    PULL_SUSPEND,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)

if TYPE_CHECKING:
    from aiorocket.config import BrokerConfig
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.runtime.clock import Clock
    from aiorocket.storage.store import MessageStore

__all__ = ("PullRates",)

Header = PullMessageRequestHeader | PopMessageRequestHeader

_HEADERS: dict[int, type[PullMessageRequestHeader] | type[PopMessageRequestHeader]] = {
    RequestCode.PULL_MESSAGE: PullMessageRequestHeader,
    RequestCode.LITE_PULL_MESSAGE: PullMessageRequestHeader,
    RequestCode.POP_MESSAGE: PopMessageRequestHeader,
}
#: Seconds between two looks at those of one group that wait, and how many of them are served at one.
_LOOK = 0.05
_SERVED = 64
#: Seconds that one waits whose client allows none: far below every client's timeout.
_LEAST_HOLD = 1.0


class _Held(NamedTuple):
    handler: RequestHandler
    connection: Connection
    command: RemotingCommand
    header: Header
    #: Loop time at which its client wants an answer.
    until: float


class PullRates:
    """The limit of pulls and pops, and those that it holds."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        config: BrokerConfig,
        tables: Tables,
        store: MessageStore,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._store = store
        self._delivered = tables.counters.delivered
        #: What of these was paid for.
        self._paid: dict[tuple[str, str], int] = {}
        self._limit = limit = config.rates.group_messages
        self._rate = Rate(limit) if limit else None
        limits = replace(config.limits, parked_per_queue=config.limits.parked_pulls)
        self.held = LongPolls(config.max_hold, limits)
        self._max_hold = config.max_hold
        #: When the next of a group is looked at that waits; a group is here as long as something of it waits.
        self._looks: dict[str, asyncio.TimerHandle] = {}
        self._driver = DeadlineDriver(loop, self.held.next_deadline, self._expired)

    def limited(self, code: int, handler: RequestHandler) -> RequestHandler:
        """``handler`` of requests with ``code``, within the limit if there is one."""
        header = _HEADERS.get(code)
        return handler if header is None or self._rate is None else partial(self._get, self._rate, handler, header)

    def lost(self, connection: Connection) -> None:
        """A connection ended."""
        self.held.lost(connection)

    def close(self) -> None:
        """Answer all that wait with "nothing": the server is about to close and waits for answers."""
        self._driver.close()
        for look in self._looks.values():
            look.cancel()
        self._looks.clear()
        self._end(self.held.withdraw_all())

    def _get(
        self,
        rate: Rate,
        handler: RequestHandler,
        header_class: type[PullMessageRequestHeader] | type[PopMessageRequestHeader],
        connection: Connection,
        command: RemotingCommand,
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        header: Header = command.read(header_class)
        group = header.consumer_group
        if group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX):
            return handler(connection, command)
        now = self._loop.time()
        self._pay(rate, header, now)
        wait = rate.wait(group, now)
        if not wait and group not in self._looks:
            return self._serve(rate, _Held(handler, connection, command, header, now), now, 1)
        hold = min(_hold(header) or _LEAST_HOLD, self._max_hold)
        # It may wait for half a minute: nothing is kept of it that is not needed, and its texts are counted.
        command.body, command.fields, command.header = b"", None, header
        command.ext = {name: text for name in (EXT_ACCEPT, EXT_EPOCH) if (text := command.ext_value(name))} or None
        weight = sum([len(text) for text in header if type(text) is str])
        held = _Held(handler, connection, command, header, now + hold)
        pull = ParkedPull((group, None), 0, None, connection, held, weight)
        if (refusal := self.held.refusal(pull)) is not None:
            return refuse(refusal)
        if self.held.park(pull, hold, now):
            self._driver.update()
        if group not in self._looks:
            self._look_later(rate, group, wait)
        return None

    def _serve(
        self, rate: Rate, held: _Held, now: float, waiting: int
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Within its share of what so many may have, and for what is left of its hold."""
        handler, connection, command, header, until = held
        share = max(1, int(rate.per_second * BURST / waiting))
        most = min(header.max_msg_nums, share)
        waited = until > now and _hold(header) > 0
        rest = max(1, int((until - now) * 1000))
        if isinstance(header, PopMessageRequestHeader):
            header = header._replace(max_msg_nums=most, poll_time=rest if waited else header.poll_time)
        else:
            suspend = rest if waited else header.suspend_timeout_millis
            header = header._replace(max_msg_nums=most, suspend_timeout_millis=suspend)
        command.fields, command.header = None, header
        answer = handler(connection, command)
        self._pay(rate, header, now)
        return answer

    def _pay(self, rate: Rate, header: Header, now: float) -> None:
        """For what the group got since the last look."""
        key = header.topic, header.consumer_group
        got = self._delivered.get(key, 0)
        paid = self._paid.get(key, 0)
        if got > paid:
            self._paid[key] = got
            rate.spend(header.consumer_group, got - paid, now)

    # ---- waiting

    def _look_later(self, rate: Rate, group: str, wait: float) -> None:
        self._looks[group] = self._loop.call_later(max(_LOOK, wait), self._look, rate, group)

    def _look(self, rate: Rate, group: str) -> None:
        """Serve those that waited longest, as far as the rate reaches."""
        now = self._loop.time()
        waiting = self.held.waiting((group, None))
        for served, pull in enumerate(waiting):
            wait = rate.wait(group, now)
            if wait or served == _SERVED:
                self._look_later(rate, group, wait)
                return
            if not self.held.is_parked(pull):
                continue
            self.held.answered(pull)
            held: _Held = pull.request
            try:
                answer = self._serve(rate, held, now, len(waiting))
            except Exception as error:  # noqa: BLE001 - a handler's failure is an answer, as in the processor table
                answer = error_response(error)
            if isinstance(answer, RemotingCommand):
                held.connection.reply(held.command, answer)
        del self._looks[group]

    def _expired(self, now: float) -> None:
        self._end(self.held.expire(now))

    def _end(self, pulls: list[ParkedPull]) -> None:
        for pull in pulls:
            held: _Held = pull.request
            answer = self._nothing(held.header) if _hold(held.header) else self._busy(held.header.consumer_group)
            held.connection.reply(held.command, answer)

    def _busy(self, group: str) -> RemotingCommand:
        remark = (
            f"[OVERLOAD]system busy, start flow control for a while: group {group} may have {self._limit:g} messages a "
            "second of this broker (rates.group_messages)"
        )
        return refuse(Refusal(ResponseCode.SYSTEM_BUSY, remark))

    def _nothing(self, header: Header) -> RemotingCommand:
        if isinstance(header, PopMessageRequestHeader):
            answer = PopMessageResponseHeader(self._clock.wall_ms(), header.invisible_time, 0, 0)
            return RemotingCommand.response(ResponseCode.POLLING_TIMEOUT, answer, remark="NO_MESSAGE_IN_QUEUE")
        topic, queue_id, offset = header.topic, header.queue_id, header.queue_offset
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        return RemotingCommand.response(
            ResponseCode.PULL_RETRY_IMMEDIATELY,  # PULL_NOT_FOUND would say that the queue ends here
            PullMessageResponseHeader(0, offset, low, high),
            remark="NO_MATCHED_MESSAGE",
        )


def _hold(header: Header) -> float:
    """Seconds that the client allows."""
    if isinstance(header, PopMessageRequestHeader):
        return max(0.0, header.poll_time / 1000)
    return max(0.0, header.suspend_timeout_millis / 1000) if header.sys_flag & PULL_SUSPEND else 0.0
