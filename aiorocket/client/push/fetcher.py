"""One assigned queue: a task that pulls, and the process queue it fills.

The next pull goes out as soon as the cached count is at or below the limit, while the messages of the last one are
still being consumed, so that the way to the broker and the listener's work overlap. core/pull_gate.py decides before
each pull whether it may go out, in RocketMQ's order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiorocket.client.core.process_queue import Limits, ProcessQueue
from aiorocket.client.core.pull_gate import DROPPED, Facts, gate, pull_flags
from aiorocket.client.core.retry import remote_error
from aiorocket.client.core.stats import ConsumeStats
from aiorocket.client.group.held_queue import HeldQueue
from aiorocket.client.group.member import Member
from aiorocket.client.message import Message, Settler
from aiorocket.client.push.backlog import Backlog
from aiorocket.client.push.topics import Topics
from aiorocket.config import ConsumerConfig
from aiorocket.model import Queue
from aiorocket_protocol import (
    EXT_EPOCH,
    PullMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    pull_header,
    split_records,
)

__all__ = ("Fetcher", "Pulling")

log = logging.getLogger("aiorocket.client")

_PULL = int(RequestCode.PULL_MESSAGE)
_FOUND = int(ResponseCode.SUCCESS)
_NO_NEW = int(ResponseCode.PULL_NOT_FOUND)
_NO_MATCHED = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_ILLEGAL = int(ResponseCode.PULL_OFFSET_MOVED)
_NO_TOPIC = int(ResponseCode.TOPIC_NOT_EXIST)
#: The broker does not know us, or knows an older subscription: tell it, then pull again.
_UNKNOWN_TO_BROKER = frozenset(
    (
        int(ResponseCode.SUBSCRIPTION_NOT_EXIST),
        int(ResponseCode.SUBSCRIPTION_NOT_LATEST),
        int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulling:
    """What the fetchers of one consumer share. ``begin_anew`` is called with where the broker wants a queue to be, None
    for where it has the group."""

    member: Member
    config: ConsumerConfig
    topics: Topics
    backlog: Backlog
    stats: ConsumeStats
    settler: Settler
    begin_anew: Callable[[Mapping[Queue, int | None]], None]


class Fetcher(HeldQueue):
    """A queue whose messages go to listeners and the stream; those that come after ``stop`` do not."""

    def __init__(
        self, pulling: Pulling, queue: Queue, offset: int, limits: Limits, cache: ProcessQueue | None = None
    ) -> None:
        self.process_queue = cache if cache is not None else ProcessQueue(offset, limits)
        super().__init__(pulling.member, queue, self.process_queue, pulling.settler, self._next)
        self.paused = False
        #: Where the queue is to go on, once it is begun anew.
        self.reset_to: int | None = None
        self._pulling = pulling
        self._session = pulling.member.session
        self._config = pulling.config
        #: The next pull may bring messages at once: there are more, or nobody knows yet.
        self._expects = True
        #: Below this a pull carries no commit: the broker led back, and what was committed before is not taken back.
        self._floor = 0

    def limit(self, limits: Limits) -> None:
        """Flow control from now on."""
        if limits != self.process_queue.limits:
            self.process_queue.limits = limits
            self.wake()

    async def settle(self) -> None:
        """Return when the broker has been told of every message that is finished, where it is told of each."""

    async def _next(self) -> float | None:
        if not await self._wait_for_turn():
            return None
        if not self._expects:
            self.pulling_since = self._session.loop.time()
            return await self._pull()
        backlog, topic, broker = self._pulling.backlog, self.queue.topic, self.queue.broker_name
        await backlog.acquire(broker, topic)
        try:
            if self.paused:  # while it waited for its turn
                return 0.0
            self.pulling_since = self._session.loop.time()
            return await self._pull()
        finally:
            backlog.release(broker, topic)

    async def _wait_for_turn(self) -> bool:
        """Return when the next pull may go out; False when there is none to come."""
        member, topics, topic = self.member, self._pulling.topics, self.queue.topic
        while not self.stopped:
            process_queue, leases = self.process_queue, member.leases
            facts = Facts(
                process_queue.dropped,
                member.pulling,
                self.paused,
                process_queue.full(),
                # One pull answer may go to the stream as well as to listeners; the stream's buffer counts for both.
                topics.stream_full(topic),
                leases is None or leases.valid(self.queue, self._session.loop.time()),
                topic in member.subscriptions,
            )
            hold = gate(facts, self._config.pull_error_delay)
            if hold is DROPPED:
                return False
            self.blocked = hold.reason if hold is not None else None
            if hold is None:
                return True
            self.woken.clear()
            process_queue.on_room = self.woken.set
            if hold.reason == "buffer":
                topics.stream.when_room(self.woken.set)
            elif hold.reason == "lock" and leases is not None:
                leases.when_valid(self.queue, self.woken.set)
            try:
                async with asyncio.timeout(hold.wait):
                    await self.woken.wait()
            except TimeoutError:
                pass
        return False

    async def _pull(self) -> float:
        """One request and what follows from its answer; how long to wait before the next."""
        queue, process_queue, config, member = self.queue, self.process_queue, self._config, self.member
        subscription = member.subscriptions[queue.topic]
        address = await self.reader()
        connection = await self._session.member_connection(address)
        commit = 0 if member.broadcasting else process_queue.committable()
        # A slave does not take commits.
        carries = commit > 0 and commit >= self._floor and address == member.master_address(queue)
        short, offset = config.short_poll, process_queue.next_offset
        # After an error the first pull is not held, so that it is known at once, not after the hold, that all is well.
        # Nor is one that holds a place in the line of those that will be answered at once.
        held = short is None and self.last_error is None and not self._expects
        flags = pull_flags(commit=carries, suspend=held, subscription=config.post_subscription)
        header = pull_header(
            member.wire_group,
            queue.topic,
            queue.queue_id,
            offset,
            config.pull_batch_size,
            flags=flags,
            commit_offset=max(commit, 0),
            hold_ms=int(config.hold * 1000),
            version=subscription.sub_version,
            expression=subscription.sub_string if config.post_subscription else None,
            expression_type=subscription.expression_type,
        )
        epoch = member.leases.epoch(queue) if member.leases is not None else None
        request = RemotingCommand.request(_PULL, header, ext=None if epoch is None else {EXT_EPOCH: str(epoch)})
        began = self.last_pull = self._session.loop.time()
        answer = await connection.request(request, config.pull_timeout)
        if process_queue.dropped:  # in the moment before this task was told
            return 0.0
        code = answer.code
        self._expects = False
        if code == _FOUND:
            found = self.found(answer)
            messages = self._take(answer.body, found.next_begin_offset, subscription)
            if self._session.outages.open:
                self.well()
            self.last_error = None
            if found.next_begin_offset < offset or (messages and messages[0].queue_offset < offset):
                self._report_backwards(offset, found.next_begin_offset)
            self._expects = found.max_offset > found.next_begin_offset
            self._pulling.stats.pulled(queue.topic, len(messages), (self._session.loop.time() - began) * 1000)
            return config.pull_interval
        if code in (_NO_NEW, _NO_MATCHED):
            found = self.found(answer)
            if self._session.outages.open:
                self.well()
            self.last_error = None
            if found.next_begin_offset < offset:
                self._report_backwards(offset, found.next_begin_offset)
                if code == _NO_MATCHED:
                    # This is how a reset kept at the broker arrives there, other than as "illegal".
                    return self._illegal(found.next_begin_offset)
            process_queue.next_offset = found.next_begin_offset
            # At once, the interval is for pulls that bring messages; short polls rest where there is nothing more.
            return 0.0 if short is None or code == _NO_MATCHED else short
        if code == _ILLEGAL:
            return self._illegal(answer.read(PullMessageResponseHeader).next_begin_offset)
        error = remote_error(code, answer.remark, request="PULL_MESSAGE", address=address)
        if code in _UNKNOWN_TO_BROKER:
            self._session.forget_registration(connection)
            return min(1.0, self.note(error))
        if code == _NO_TOPIC:
            # Deleted, and the group's offset with it: in a new topic of the name ours would pass over its beginning.
            member.gone.add(queue.topic)
            self._pulling.begin_anew({queue: 0 if member.broadcasting else None})
        raise error

    def _take(self, data: bytes, next_offset: int, subscription: SubscriptionData) -> list[Message]:
        """Hot: a pull answer on its way to the listeners."""
        messages = found = split_records(data, Message)
        size = len(data)
        tags = subscription.tags_set
        if tags:
            # The broker matched hashes; different tags can share one.
            wanted = [message for message in messages if message.tag in tags]
            if len(wanted) != len(messages):
                messages = wanted
                size = sum(message.size for message in messages)
        for message in messages:
            message._source = self
        self.process_queue.put(messages, size, next_offset)
        if messages:
            self._pulling.topics.dispatch(self.queue.topic, messages)
        return found

    def _report_backwards(self, offset: int, next_offset: int) -> None:
        self.member.counters.backwards += 1
        self._floor = max(self._floor, offset)
        log.warning("%s: asked for offset %d and was led back, to go on at %d", self.queue, offset, next_offset)

    def _illegal(self, next_offset: int) -> float:
        """The broker does not have the offset, or wants the group to be elsewhere: what is cached counts no more, and
        after a while for running listeners the queue begins anew where the broker says."""
        text = f"offset {self.process_queue.next_offset} does not exist at the broker, going on at {next_offset}"
        log.warning("%s: %s", self.queue, text)
        self.last_error = text
        self._pulling.begin_anew({self.queue: next_offset})
        return 0.0
