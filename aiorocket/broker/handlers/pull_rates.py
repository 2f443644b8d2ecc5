"""Limits on what each group may have a second (``BrokerConfig.rates``, or as changed since), around the handlers of 11,
361 and 200050.

A pull or pop above its group's rate is held until there is room, the longest waiting first, as one is that waits for
messages: at most as long as its client allows, then it is answered that there is nothing for now at its offset. One
that allows none waits for a second and is answered SYSTEM_BUSY, for "nothing" would look like the end of the queue.
While others wait each gets its share of a second's worth, so that all of them come to their turn. What was delivered is
read off the broker's counters, so pulls that wait for messages cost nothing; those that came to them are paid
for by the next pull.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.broker.answers import refuse
from aiorocket.broker.core.long_poll import LongPolls, ParkedPull
from aiorocket.broker.core.names import Refusal, is_system_group
from aiorocket.broker.core.rates import BURST, Rate
from aiorocket.broker.core.tables import Tables
from aiorocket.remoting.processors import error_response
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket_protocol import (
    EXT_ACCEPT,
    EXT_EPOCH,
    PULL_SUSPEND,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)

if TYPE_CHECKING:
    from aiorocket.config import BrokerConfig, RateLimits
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
#: Nothing may be left of them long before the rate has room.
_LONGEST_LOOK = 5.0
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
    """The limits of pulls and pops, and those that they hold; ``follow`` says them first."""

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
        self._counters = tables.counters
        self._messages, self._bytes = Rate(0), Rate(0)
        #: What of the broker's counts was paid for.
        self._paid: dict[tuple[str, str], int] = {}
        self._paid_bytes: dict[tuple[str, str], int] = {}
        limits = replace(config.limits, parked_per_queue=config.limits.parked_pulls)
        self.held = LongPolls(config.max_hold, limits)
        self._max_hold = config.max_hold
        #: When the next of a group is looked at that waits; a group is here as long as something of it waits.
        self._looks: dict[str, asyncio.TimerHandle] = {}
        self._driver = DeadlineDriver(loop, self.held.next_deadline, self._expired)

    def follow(self, limits: RateLimits) -> None:
        """These are the limits from now on; handlers are to be ``limited`` anew. What was delivered without a limit is
        not paid for, what waits is looked at."""
        counters = self._counters
        if not self._messages.per_second:
            self._paid = dict(counters.delivered)
        if not limits.group_bytes:
            counters.delivered_bytes, self._paid_bytes = None, {}
        elif counters.delivered_bytes is None:
            counters.delivered_bytes = defaultdict(int)
        self._messages.change(limits.group_messages)
        self._bytes.change(limits.group_bytes)
        for group, look in list(self._looks.items()):
            look.cancel()
            self._look(group)

    def limited(self, code: int, handler: RequestHandler) -> RequestHandler:
        """``handler`` of requests with ``code``, within the limits if there are any."""
        header = _HEADERS.get(code)
        limited = self._messages.per_second or self._bytes.per_second
        return handler if header is None or not limited else partial(self._get, handler, header)

    def lost(self, connection: Connection) -> int:
        """A connection ended."""
        return self.held.lost(connection)

    def ask_again(self) -> None:
        """End the holds of all that wait: who may pull or pop is judged when they come anew."""
        self.held.end()
        self._driver.update()

    async def close(self) -> None:
        """Answer all that wait with "nothing", some in each turn: the server reads no more, and is about to close and
        waits for answers."""
        self._driver.close()
        for look in self._looks.values():
            look.cancel()
        self._looks.clear()
        while pulls := self.held.expire(inf):
            self._end(pulls)
            await asyncio.sleep(0)

    def _get(
        self,
        handler: RequestHandler,
        header_class: type[PullMessageRequestHeader] | type[PopMessageRequestHeader],
        connection: Connection,
        command: RemotingCommand,
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        header: Header = command.read(header_class)
        group = header.consumer_group
        if is_system_group(group):
            return handler(connection, command)
        now = self._loop.time()
        self._pay(header, now)
        wait = self._wait(group, now)
        if not wait and group not in self._looks:
            return self._serve(_Held(handler, connection, command, header, now), now, 1)
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
            self._look_later(group, wait)
        return None

    def _serve(
        self, held: _Held, now: float, waiting: int
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Within its share of what so many may have, and for what is left of its hold."""
        handler, connection, command, header, until = held
        most = header.max_msg_nums
        if self._messages.per_second:
            most = min(most, max(1, int(self._messages.per_second * BURST / waiting)))
        waited = until > now and _hold(header) > 0
        rest = max(1, int((until - now) * 1000))
        if isinstance(header, PopMessageRequestHeader):
            header = header._replace(max_msg_nums=most, poll_time=rest if waited else header.poll_time)
        else:
            suspend = rest if waited else header.suspend_timeout_millis
            header = header._replace(max_msg_nums=most, suspend_timeout_millis=suspend)
        command.fields, command.header = None, header
        answer = handler(connection, command)
        self._pay(header, now)
        return answer

    def _wait(self, group: str, now: float) -> float:
        """Seconds until the group may have more."""
        return max(self._messages.wait(group, now), self._bytes.wait(group, now))

    def _pay(self, header: Header, now: float) -> None:
        """For what the group got since the last look."""
        key = self._counters.pair(header.topic, header.consumer_group)
        for rate, delivered, paid in (
            (self._messages, self._counters.delivered, self._paid),
            (self._bytes, self._counters.delivered_bytes, self._paid_bytes),
        ):
            got = delivered.get(key, 0) if delivered is not None else 0
            if (more := got - paid.get(key, 0)) > 0:
                paid[key] = got
                rate.spend(header.consumer_group, more, now)

    # ---- waiting

    def _look_later(self, group: str, wait: float) -> None:
        self._looks[group] = self._loop.call_later(max(_LOOK, min(wait, _LONGEST_LOOK)), self._look, group)

    def _look(self, group: str) -> None:
        """Serve those that waited longest, as far as the rates reach."""
        now = self._loop.time()
        waiting = self.held.waiting((group, None))
        for served, pull in enumerate(waiting):
            wait = self._wait(group, now)
            if wait or served == _SERVED:
                self._look_later(group, wait)
                return
            if not self.held.is_parked(pull):
                continue
            self.held.answered(pull)
            held: _Held = pull.request
            try:
                answer = self._serve(held, now, len(waiting))
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
        now = self._loop.time()
        more = self._bytes.wait(group, now) > self._messages.wait(group, now)
        rate, unit = (self._bytes, "bytes") if more else (self._messages, "messages")
        remark = (
            f"[OVERLOAD]system busy, start flow control for a while: group {group} may have {rate.per_second:g} {unit} "
            f"a second of this broker (rates.group_{unit})"
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
