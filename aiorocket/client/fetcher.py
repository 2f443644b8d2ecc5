"""One assigned queue: a task that pulls, and the process queue it fills.

The next pull goes out as soon as the cached count is at or below the limit, while the messages of the last one are
still being consumed, so that the way to the broker and the listener's work overlap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiorocket.client.core.process_queue import Limits, ProcessQueue
from aiorocket.client.core.retry import remote_error
from aiorocket.client.message import Message
from aiorocket.errors import NotConnectedError, RemoteError, RocketError
from aiorocket_protocol import (
    ProtocolError,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    split_records,
)

if TYPE_CHECKING:
    from aiorocket.client.consumer import Consumer
    from aiorocket.model import Queue

__all__ = ("Fetcher",)

log = logging.getLogger("aiorocket.client")

_PULL = int(RequestCode.PULL_MESSAGE)
_FOUND = int(ResponseCode.SUCCESS)
_NOTHING = frozenset((int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY)))
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

# PullSysFlag (rocketmq-protocol 5.1).
_COMMIT = 1
_SUSPEND = 2


class Fetcher:
    """Owns the assignment of ``queue`` until ``stop``; messages that come later than that are not delivered."""

    def __init__(self, consumer: Consumer, queue: Queue, offset: int, limits: Limits) -> None:
        self.queue = queue
        self.settler = consumer
        self.process_queue = ProcessQueue(offset, limits)
        self.paused = False
        self.blocked: str | None = None
        self.last_pull: float | None = None
        self.last_error: str | None = None
        self._consumer = consumer
        self._client = consumer.client
        self._config = consumer.config
        self._limits = limits
        self._suggested = 0
        self._illegal_at = -1
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self, start_task: Callable[..., asyncio.Task[None]]) -> None:
        name = f"pull/{self.queue.topic}/{self.queue.broker_name}/{self.queue.queue_id}"
        self._task = start_task(self._run(), name=name)

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

    async def _run(self) -> None:
        while not self._stopped:
            await self._wait_for_room()
            try:
                pause = await self._pull()
            except (RocketError, ProtocolError) as error:
                pause = self._note(error)
            if pause:
                await asyncio.sleep(pause)

    async def _wait_for_room(self) -> None:
        while True:
            if self.paused:
                reason: str | None = "paused"
            else:
                # One pull answer may go to the stream as well as to listeners; the stream's buffer counts for both.
                streams = self._consumer.stream_full(self.queue.topic)
                reason = self.process_queue.full() or ("buffer" if streams else None)
            self.blocked = reason
            if reason is None:
                return
            self._wake.clear()
            self.process_queue.on_room = self._wake.set
            if reason == "buffer":
                self._consumer.stream.when_room(self._wake.set)
            await self._wake.wait()

    async def _pull(self) -> float:
        """One request and what follows from its answer; how long to wait before the next."""
        queue, process_queue, config = self.queue, self.process_queue, self._config
        subscription = self._consumer.subscription(queue.topic)
        address = self._consumer.reader_address(queue, self._suggested)
        if address is None:
            raise NotConnectedError(f"no route to broker {queue.broker_name!r} for topic {queue.topic!r}")
        connection = await self._client.member_connection(address)
        commit = process_queue.committable()
        header = PullMessageRequestHeader(
            self._consumer.group, queue.topic, queue.queue_id, process_queue.next_offset, config.pull_batch_size,
            _SUSPEND | _COMMIT if commit > 0 and self._suggested == 0 else _SUSPEND, max(commit, 0),
            int(config.hold * 1000), subscription.sub_version, None, subscription.expression_type,
        )  # fmt: skip
        self.last_pull = self._client.loop.time()
        answer = await connection.request(RemotingCommand.request(_PULL, header), config.pull_timeout)
        code = answer.code
        if code == _FOUND:
            found = answer.read(PullMessageResponseHeader)
            self._suggested = found.suggest_which_broker_id
            self._take(answer.body, found.next_begin_offset, subscription)
            self.last_error = None
            return config.pull_interval
        if code in _NOTHING:
            found = answer.read(PullMessageResponseHeader)
            self._suggested = found.suggest_which_broker_id
            process_queue.next_offset = found.next_begin_offset
            self.last_error = None
            return config.pull_interval
        if code == _ILLEGAL:
            return await self._illegal(answer.read(PullMessageResponseHeader).next_begin_offset)
        error = remote_error(code, answer.remark, request="PULL_MESSAGE", address=address)
        if code in _UNKNOWN_TO_BROKER:
            self._client.forget_told(connection)
        raise error

    def _take(self, data: bytes, next_offset: int, subscription: SubscriptionData) -> None:
        """Hot: a pull answer on its way to the listeners."""
        messages = split_records(data, Message)
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

    async def _illegal(self, next_offset: int) -> float:
        """The offset does not exist at the broker: begin again where it says, with a process queue of its own,
        because what is unfinished belongs to positions that are no more."""
        old = self.process_queue
        offset = old.next_offset
        text = f"offset {offset} does not exist at the broker, going on at {next_offset}"
        log.warning("%s: %s", self.queue, text)
        self.last_error = text
        again = self._illegal_at == next_offset
        self._illegal_at = next_offset
        delay = self._config.offset_illegal_delay
        if old.count or again:
            # Running listeners get the time to finish; and two brokers that disagree must not make this loop spin.
            old.drop()
            await asyncio.sleep(delay)
        self.process_queue = ProcessQueue(next_offset, self._limits)
        self._consumer.repaired(self.queue, next_offset)
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
