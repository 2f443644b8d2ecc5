"""One assigned queue: a task that pulls, and the process queue it fills.

The next pull goes out as soon as the cached count is at or below the limit, while the messages of the last one are
still being consumed, so that the way to the broker and the listener's work overlap. core/pull_gate.py decides before
each pull whether it may go out, in RocketMQ's order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiorocket.client.core.namespace import unwrap
from aiorocket.client.core.process_queue import Limits, ProcessQueue
from aiorocket.client.core.pull_gate import DROPPED, Facts, gate, pull_flags
from aiorocket.client.core.retry import remote_error
from aiorocket.client.message import Message
from aiorocket.errors import NotConnectedError, RemoteError, RocketError
from aiorocket.model import Queue
from aiorocket_protocol import (
    EXT_EPOCH,
    ProtocolError,
    PullMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    pull_header,
    split_records,
)

if TYPE_CHECKING:
    from aiorocket.client.group.member import Puller

__all__ = ("Fetcher",)

log = logging.getLogger("aiorocket.client")

_PULL = int(RequestCode.PULL_MESSAGE)
_FOUND = int(ResponseCode.SUCCESS)
_NO_NEW = int(ResponseCode.PULL_NOT_FOUND)
_NO_MATCHED = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_ILLEGAL = int(ResponseCode.PULL_OFFSET_MOVED)
#: The broker does not know us, or knows an older subscription: tell it, then pull again.
_UNKNOWN_TO_BROKER = frozenset(
    (
        int(ResponseCode.SUBSCRIPTION_NOT_EXIST),
        int(ResponseCode.SUBSCRIPTION_NOT_LATEST),
        int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    )
)
_FLOW_CONTROL = int(ResponseCode.FLOW_CONTROL)
_FLOW_CONTROL_DELAY = 0.02


class Fetcher:
    """Owns the assignment of ``queue`` until ``stop``; messages that come later than that are not delivered."""

    def __init__(self, consumer: Puller, queue: Queue, offset: int, limits: Limits) -> None:
        self.queue = queue
        self.namespace = consumer.client.config.namespace
        #: The queue as the application knows it, without the namespace.
        self.shown = queue._replace(topic=unwrap(self.namespace, queue.topic)) if self.namespace else queue
        self.settler = consumer
        self.process_queue = ProcessQueue(offset, limits)
        self.paused = False
        self.blocked: str | None = None
        #: When the latest pull went out, in loop time.
        self.last_pull: float | None = None
        self.last_error: str | None = None
        #: Where the queue is to go on, once it is begun anew.
        self.reset_to: int | None = None
        #: When a listener last ended with a message of it.
        self.last_consume: float | None = None
        #: Which offsets the queue has, as the latest answer says.
        self.min_offset: int | None = None
        self.max_offset: int | None = None
        self._began: float | None = None
        self._consumer = consumer
        self._client = consumer.client
        self._config = consumer.config
        self._suggested = 0
        #: The next pull may bring messages at once: there are more, or nobody knows yet.
        self._expects = True
        self._wake = asyncio.Event()
        #: Below this a pull carries no commit: the broker led back, and what was committed before is not taken back.
        self._floor = 0
        self._start_task: Callable[..., asyncio.Task[None]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self, start_task: Callable[..., asyncio.Task[None]]) -> None:
        self._start_task = start_task
        name = f"pull/{self.queue.topic}/{self.queue.broker_name}/{self.queue.queue_id}"
        self._task = start_task(self._run(self._task), name=name)

    def wake(self) -> None:
        """Look again whether the next pull may go out."""
        self._wake.set()

    async def stop(self) -> None:
        """Pull no more and deliver no more; running listeners finish without effect once the process queue is
        dropped."""
        self._stopped = True
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    def restart(self) -> None:
        """Pull again from the same offset: the pull that is under way looks for what was wanted before."""
        if self._task is not None and self._start_task is not None and not self._stopped:
            self._task.cancel()
            self.start(self._start_task)

    def limit(self, limits: Limits) -> None:
        """Flow control from now on."""
        if limits != self.process_queue.limits:
            self.process_queue.limits = limits
            self._wake.set()

    def idle_since(self, now: float) -> float:
        """For how many seconds the present pull has been under way; 0 when none is. Infinitely long when it was stopped
        and the queue is neither given up nor begun anew: whoever was at that has been cancelled half-way."""
        if self._stopped and not self.process_queue.dropped:
            return float("inf")
        return 0.0 if self._began is None else now - self._began

    def wall_ms(self, then: float) -> int:
        """The wall clock at ``then``, a moment in loop time."""
        return self._client.env.clock.wall_ms() - round(1000 * (self._client.loop.time() - then))

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        backlog = self._consumer.backlog
        while await self._wait_for_turn():
            expects = self._expects
            if expects:
                await backlog.acquire(self.queue.broker_name)
                if self.paused:  # while it waited for its turn
                    backlog.release(self.queue.broker_name)
                    continue
            self._began = self._client.loop.time()
            try:
                pause = await self._pull()
            except (RocketError, ProtocolError) as error:
                pause = self._note(error)
            finally:
                self._began = None
                if expects:
                    backlog.release(self.queue.broker_name)
            if pause:
                await asyncio.sleep(pause)

    async def _wait_for_turn(self) -> bool:
        """Return when the next pull may go out; False when there is none to come."""
        consumer, topic = self._consumer, self.queue.topic
        while not self._stopped:
            process_queue, leases = self.process_queue, consumer.leases
            facts = Facts(
                process_queue.dropped,
                consumer.pulling,
                self.paused,
                process_queue.full(),
                # One pull answer may go to the stream as well as to listeners; the stream's buffer counts for both.
                consumer.stream_full(topic),
                leases is None or leases.valid(self.queue, self._client.loop.time()),
                consumer.subscribed(topic),
            )
            hold = gate(facts, self._config.pull_error_delay)
            if hold is DROPPED:
                return False
            self.blocked = hold.reason if hold is not None else None
            if hold is None:
                return True
            self._wake.clear()
            process_queue.on_room = self._wake.set
            if hold.reason == "buffer":
                consumer.stream.when_room(self._wake.set)
            elif hold.reason == "lock" and leases is not None:
                leases.when_valid(self.queue, self._wake.set)
            try:
                async with asyncio.timeout(hold.wait):
                    await self._wake.wait()
            except TimeoutError:
                pass
        return False

    async def _pull(self) -> float:
        """One request and what follows from its answer; how long to wait before the next."""
        queue, process_queue, config, consumer = self.queue, self.process_queue, self._config, self._consumer
        subscription = consumer.subscription(queue.topic)
        address = consumer.reader_address(queue, self._suggested)
        if address is None:
            await self._client.route(queue.topic, refresh=True)
            address = consumer.reader_address(queue, self._suggested)
            if address is None:
                raise NotConnectedError(f"no route to broker {queue.broker_name!r} for topic {queue.topic!r}")
        connection = await self._client.member_connection(address)
        commit = 0 if consumer.broadcasting else process_queue.committable()
        # A slave does not take commits.
        carries = commit > 0 and commit >= self._floor and address == consumer.master_address(queue)
        short, offset = config.short_poll, process_queue.next_offset
        # After an error the first pull is not held, so that it is known at once, not after the hold, that all is well.
        # Nor is one that holds a place in the line of those that will be answered at once.
        held = short is None and self.last_error is None and not self._expects
        flags = pull_flags(commit=carries, suspend=held, subscription=config.post_subscription)
        header = pull_header(
            consumer.wire_group,
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
        epoch = consumer.leases.epoch(queue) if consumer.leases is not None else None
        request = RemotingCommand.request(_PULL, header, ext=None if epoch is None else {EXT_EPOCH: str(epoch)})
        began = self.last_pull = self._client.loop.time()
        answer = await connection.request(request, config.pull_timeout)
        if process_queue.dropped:  # in the moment before this task was told
            return 0.0
        code = answer.code
        self._expects = False
        if code == _FOUND:
            found = answer.read(PullMessageResponseHeader)
            self._suggested = found.suggest_which_broker_id
            self.min_offset, self.max_offset = found.min_offset, found.max_offset
            messages = self._take(answer.body, found.next_begin_offset, subscription)
            if found.next_begin_offset < offset or (messages and messages[0].queue_offset < offset):
                self._report_backwards(offset, found.next_begin_offset)
            self._expects = found.max_offset > found.next_begin_offset
            consumer.stats.pulled(queue.topic, len(messages), (self._client.loop.time() - began) * 1000)
            self.last_error = None
            return config.pull_interval
        if code in (_NO_NEW, _NO_MATCHED):
            found = answer.read(PullMessageResponseHeader)
            self._suggested = found.suggest_which_broker_id
            self.min_offset, self.max_offset = found.min_offset, found.max_offset
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
            self._client.forget_registration(connection)
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
            message.source = self
        self.process_queue.put(messages, size, next_offset)
        if messages:
            self._consumer.dispatch(self.queue.topic, messages)
        return found

    def _report_backwards(self, offset: int, next_offset: int) -> None:
        self._consumer.counters.backwards += 1
        self._floor = max(self._floor, offset)
        log.warning("%s: asked for offset %d and was led back, to go on at %d", self.queue, offset, next_offset)

    def _illegal(self, next_offset: int) -> float:
        """The broker does not have the offset, or wants the group to be elsewhere: what is cached counts no more, and
        after a while for running listeners the queue begins anew where the broker says."""
        text = f"offset {self.process_queue.next_offset} does not exist at the broker, going on at {next_offset}"
        log.warning("%s: %s", self.queue, text)
        self.last_error = text
        self._consumer.begin_anew({self.queue: next_offset})
        return 0.0

    def _note(self, error: Exception) -> float:
        text = str(error)
        if text != self.last_error:
            log.warning("pulling %s: %s", self.queue, text)
        self.last_error = text
        if isinstance(error, NotConnectedError):
            # The broker may have moved.
            self._client.routes.refresh_soon(self.queue.topic)
        if isinstance(error, RemoteError):
            if error.code == _FLOW_CONTROL:
                return _FLOW_CONTROL_DELAY
            if error.code in _UNKNOWN_TO_BROKER:
                return min(1.0, self._config.pull_error_delay)
        return self._config.pull_error_delay
