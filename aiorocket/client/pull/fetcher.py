"""One queue of a pull consumer: a task that pulls ahead of ``fetch``, by long polls (LITE_PULL_MESSAGE, 361)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from aiorocket.client.core.namespace import unwrap
from aiorocket.client.core.pull_cursor import PullBuffer, PullCursor
from aiorocket.client.core.pull_gate import pull_flags
from aiorocket.client.core.retry import remote_error
from aiorocket.client.group.member import Reader
from aiorocket.client.message import Message, Settler
from aiorocket.errors import NotConnectedError, RemoteError, RocketError
from aiorocket_protocol import (
    PULL_LITE,
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
    from aiorocket.config import PullConsumerConfig
    from aiorocket.model import Queue
    from aiorocket.runtime.tasks import TaskScope

__all__ = ("Basket", "Fetching", "PullFetcher")

log = logging.getLogger("aiorocket.client")

_LITE_PULL = int(RequestCode.LITE_PULL_MESSAGE)
_PULL = int(RequestCode.PULL_MESSAGE)
_FOUND = int(ResponseCode.SUCCESS)
_EMPTY = (int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY))
_ILLEGAL = int(ResponseCode.PULL_OFFSET_MOVED)
_UNSUPPORTED = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
_FLOW_CONTROL = int(ResponseCode.FLOW_CONTROL)
_FLOW_CONTROL_DELAY = 0.02
#: Where a connection keeps that its broker is older than code 361.
_NO_LITE = "client.no_lite_pull"


class Fetching(Reader, Settler, Protocol):
    """For whom it pulls."""

    @property
    def config(self) -> PullConsumerConfig: ...


class Basket(Protocol):
    """Where it puts what it pulled."""

    @property
    def buffer(self) -> PullBuffer[Message]: ...
    @property
    def waiting(self) -> dict[PullFetcher, None]: ...

    def put(
        self, fetcher: PullFetcher, generation: int, messages: Sequence[Message], size: int, next_offset: int
    ) -> None: ...
    def repair(self, fetcher: PullFetcher, offset: int) -> None: ...


class PullFetcher:
    """Owns one assignment of ``queue``. It is the ``source`` of its messages: a later assignment of the same queue is
    another one, which is how a stale commit is known."""

    def __init__(self, consumer: Fetching, queues: Basket, queue: Queue, offset: int) -> None:
        self.queue = queue
        self.namespace = consumer.client.config.namespace
        #: The queue as the application knows it, without the namespace.
        self.shown = queue._replace(topic=unwrap(self.namespace, queue.topic)) if self.namespace else queue
        self.settler = consumer
        self.cursor: PullCursor[Message] = PullCursor(offset)
        self.blocked: str | None = None
        #: When the latest pull went out, in loop time.
        self.last_pull: float | None = None
        self.last_error: str | None = None
        self.last_consume: float | None = None
        #: Which offsets the queue has, as the latest answer says.
        self.min_offset: int | None = None
        self.max_offset: int | None = None
        self._queues = queues
        self._client = consumer.client
        self._config = consumer.config
        self._began: float | None = None
        self._repaired = float("-inf")
        self._suggested = 0
        self._wake = asyncio.Event()
        self._scope: TaskScope | None = None
        self._task: asyncio.Task[None] | None = None

    # -- life --

    def start(self, scope: TaskScope) -> None:
        self._scope = scope
        queue = self.queue
        name = f"pull/{queue.topic}/{queue.broker_name}/{queue.queue_id}"
        self._task = scope.start(self._run(), name=name)

    def restart(self) -> None:
        """Pull from the cursor's new offset at once: the answer that is being waited for is not wanted any more.
        Nothing happens before the start."""
        if self._task is not None and self._scope is not None:
            self._task.cancel()
            self._began = None
            self.start(self._scope)

    async def stop(self) -> None:
        """Pull no more. What is cached stays until the cursor is dropped."""
        self.cursor.closing = True
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    def wake(self) -> None:
        """Look again whether the next pull may go out."""
        self._wake.set()

    def wall_ms(self, then: float) -> int:
        """The wall clock at ``then``, a moment in loop time."""
        return self._client.env.clock.wall_ms() - round(1000 * (self._client.loop.time() - then))

    def idle_since(self, now: float) -> float:
        """For how many seconds the present pull has been under way; 0 when none is."""
        return 0.0 if self._began is None else now - self._began

    # -- pulling --

    async def _run(self) -> None:
        while await self._wait_for_turn():
            self._began = self._client.loop.time()
            try:
                pause = await self._pull()
            except (RocketError, ProtocolError) as error:
                pause = self._note(error)
            self._began = None
            if pause:
                await asyncio.sleep(pause)

    async def _wait_for_turn(self) -> bool:
        """Return when the next pull may go out; False when there is none to come."""
        while not self.cursor.closing:
            self.blocked = self.why_not()
            if self.blocked is None:
                return True
            self._wake.clear()
            if self.blocked != "paused":
                self._queues.waiting[self] = None
            await self._wake.wait()
        return False

    def why_not(self) -> str | None:
        """What holds the next pull back: "paused", "messages", "bytes", or "total"."""
        cursor, config = self.cursor, self._config
        if cursor.paused:
            return "paused"
        if cursor.count > config.max_cached_messages:
            return "messages"
        if cursor.size > config.max_cached_bytes:
            return "bytes"
        return "total" if self._queues.buffer.count > config.max_cached_messages_total else None

    async def _pull(self) -> float:
        """One request and what follows from its answer; how long to wait before the next."""
        queue, cursor, config, consumer = self.queue, self.cursor, self._config, self.settler
        subscription = consumer.subscription(queue.topic)
        address = consumer.reader_address(queue, self._suggested)
        if address is None:
            await self._client.route(queue.topic, refresh=True)
            address = consumer.reader_address(queue, self._suggested)
            if address is None:
                raise NotConnectedError(f"no route to broker {queue.broker_name!r} for topic {queue.topic!r}")
        connection = await self._client.connection(address)
        generation, offset = cursor.generation, cursor.next_offset
        # After an error the first pull is not held, so that it is known at once that all is well again.
        held = self.last_error is None
        header = pull_header(
            consumer.wire_group,
            queue.topic,
            queue.queue_id,
            offset,
            config.pull_batch_size,
            flags=pull_flags(commit=False, suspend=held, subscription=True) | PULL_LITE,
            hold_ms=int(config.hold * 1000),
            expression=subscription.sub_string,
            expression_type=subscription.expression_type,
        )
        request = _PULL if _NO_LITE in connection.data else _LITE_PULL
        self.last_pull = self._client.loop.time()
        answer = await connection.request(RemotingCommand.request(request, header), config.pull_timeout)
        code = answer.code
        if code == _UNSUPPORTED and request == _LITE_PULL:
            # Brokers before 5.0 serve lite pulls under the code of all others.
            connection.data[_NO_LITE] = True
            return 0.0
        if code == _FOUND or code in _EMPTY:
            found = answer.read(PullMessageResponseHeader)
            self._suggested = found.suggest_which_broker_id
            self.min_offset, self.max_offset = found.min_offset, found.max_offset
            following = found.next_begin_offset
            self.last_error = None
            if following < offset:
                return self._repair(following, f"the broker leads from offset {offset} back to {following}")
            data = answer.body if code == _FOUND else b""
            messages = self._messages(data, subscription)
            size = len(data)
            if len(messages) and subscription.tags_set:
                size = sum(message.size for message in messages)
            self._queues.put(self, generation, messages, size, following)
            return 0.0
        if code == _ILLEGAL:
            following = answer.read(PullMessageResponseHeader).next_begin_offset
            return self._repair(following, f"offset {offset} does not exist at the broker, going on at {following}")
        raise remote_error(code, answer.remark, request="LITE_PULL_MESSAGE", address=address)

    def _messages(self, data: bytes, subscription: SubscriptionData) -> list[Message]:
        messages = split_records(data, Message) if data else []
        tags = subscription.tags_set
        if tags:
            # The broker matched hashes; different tags can share one.
            messages = [message for message in messages if message.tag in tags]
        for message in messages:
            message.source = self
            message.holder = None
        return messages

    def _repair(self, offset: int, text: str) -> float:
        """The group is elsewhere, or the broker does not have what it should have: go on where it says."""
        if text != self.last_error:
            log.warning("%s: %s", self.queue, text)
        self.last_error = text
        self._queues.repair(self, offset)
        # Two brokers that disagree about the queue must not make this spin.
        now, pause = self._client.loop.time(), self._config.pull_error_delay
        again, self._repaired = now - self._repaired < 2 * pause, now
        return pause if again else 0.0

    def _note(self, error: Exception) -> float:
        text = str(error)
        if text != self.last_error:
            log.warning("pulling %s: %s", self.queue, text)
        self.last_error = text
        if isinstance(error, NotConnectedError):
            # The broker may have moved.
            self._client.routes.refresh_soon(self.queue.topic)
        if isinstance(error, RemoteError) and error.code == _FLOW_CONTROL:
            return _FLOW_CONTROL_DELAY
        return self._config.pull_error_delay
