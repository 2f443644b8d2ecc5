"""One queue of a pull consumer: a task that pulls ahead of ``fetch``, by long polls (LITE_PULL_MESSAGE, 361)."""

from __future__ import annotations

import logging
from math import inf

from aiorocket.client.core.pull_cursor import PullCursor
from aiorocket.client.core.pull_gate import pull_flags
from aiorocket.client.core.retry import remote_error
from aiorocket.client.group.commits import Commits
from aiorocket.client.group.held_queue import HeldQueue
from aiorocket.client.group.member import Member
from aiorocket.client.group.start_offset import start_offset
from aiorocket.client.message import Message
from aiorocket.client.pull.prefetch import Prefetch
from aiorocket.config import PullConsumerConfig
from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket_protocol import (
    PULL_LITE,
    PullMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    pull_header,
    split_records,
)

__all__ = ("PullFetcher",)

log = logging.getLogger("aiorocket.client")

_LITE_PULL = int(RequestCode.LITE_PULL_MESSAGE)
_PULL = int(RequestCode.PULL_MESSAGE)
_FOUND = int(ResponseCode.SUCCESS)
_EMPTY = (int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY))
_ILLEGAL = int(ResponseCode.PULL_OFFSET_MOVED)
_NO_TOPIC = int(ResponseCode.TOPIC_NOT_EXIST)
_UNSUPPORTED = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
#: Where a connection keeps that its broker is older than code 361.
_NO_LITE = "client.no_lite_pull"


class PullFetcher(HeldQueue):
    """A queue whose messages wait in ``prefetch`` for ``fetch``. What the application is done with is noted in
    ``commits``."""

    def __init__(
        self,
        member: Member,
        config: PullConsumerConfig,
        prefetch: Prefetch,
        commits: Commits,
        queue: Queue,
        offset: int,
    ) -> None:
        self.cursor: PullCursor[Message] = PullCursor(offset)
        super().__init__(member, queue, self.cursor, self, self._next)
        self._config = config
        self._prefetch = prefetch
        self._commits = commits
        self._repaired = -inf

    async def stop(self) -> None:
        """Pull and hand out no more. What is cached stays until ``drop``."""
        self.cursor.closing = True
        await super().stop()

    def drop(self) -> None:
        """The assignment has ended: what comes of it later has no effect."""
        self._prefetch.forget(self._go_on)
        self._prefetch.drop(self.cursor)

    # -- what the application says --

    def seek(self, offset: int) -> None:
        """Go on at ``offset``. What is cached, and what is on its way, is dropped."""
        self._prefetch.seek(self.cursor, offset)
        self.restart()

    def reset(self, offset: int) -> None:
        """As ``seek``, and the offset to commit is this one from now on."""
        self._repair(offset)
        self.restart()

    def pause(self, paused: bool) -> None:
        """Neither pull nor hand out, or go on with both."""
        self.cursor.paused = paused
        if not paused:
            self._prefetch.resume(self.cursor)
            self.wake()

    def finish(self, end: int) -> None:
        """The application is done with everything before ``end``."""
        self._commits.offsets.set(self.queue, self.cursor.finish(end))

    # -- Settler --

    async def send_back(
        self, message: Message, delay_level: int, max_attempts: int | None = None, error: BaseException | None = None
    ) -> bool:
        """UsageError: there is no way back to the broker for a pulled message."""
        raise UsageError(
            f"message {message.msg_id} was fetched by a PullConsumer, which has no retries: seek back to "
            f"{message.queue_offset} in {message.queue}, or commit past it"
        )

    def count_skipped(self) -> None:
        self.member.counters.skipped += 1

    # -- pulling --

    async def _next(self) -> float | None:
        while not self.stopped:
            self.blocked = self.why_not()
            if self.blocked is None:
                self.pulling_since = self.member.session.loop.time()
                return await self._pull()
            self.woken.clear()
            if self.blocked != "paused":
                self._prefetch.when_room(self._go_on)
            await self.woken.wait()
        return None

    def _go_on(self) -> bool:
        if self.why_not() is not None:
            return False
        self.wake()
        return True

    def why_not(self) -> str | None:
        """What holds the next pull back: "paused", "messages", "bytes", or "total"."""
        cursor, config = self.cursor, self._config
        if cursor.paused:
            return "paused"
        if cursor.count > config.max_cached_messages:
            return "messages"
        if cursor.size > config.max_cached_bytes:
            return "bytes"
        return "total" if self._prefetch.count > config.max_cached_messages_total else None

    async def _pull(self) -> float:
        """One request and what follows from its answer; how long to wait before the next."""
        queue, cursor, config, session = self.queue, self.cursor, self._config, self.member.session
        subscription = self.member.subscriptions[queue.topic]
        address = await self.reader()
        connection = await session.connection(address)
        generation, offset = cursor.generation, cursor.next_offset
        # After an error the first pull is not held, so that it is known at once that all is well again.
        held = self.last_error is None
        header = pull_header(
            self.member.wire_group,
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
        self.last_pull = session.loop.time()
        answer = await connection.request(RemotingCommand.request(request, header), config.pull_timeout)
        code = answer.code
        if code == _UNSUPPORTED and request == _LITE_PULL:
            # Brokers before 5.0 serve lite pulls under the code of all others.
            connection.data[_NO_LITE] = True
            return 0.0
        if code == _FOUND or code in _EMPTY:
            following = self.found(answer).next_begin_offset
            data = answer.body if code == _FOUND else b""
            messages = self._messages(data, subscription)
            if self.member.session.outages.open:
                self.well()
            self.last_error = None
            if following < offset:
                return self._led(following, f"the broker leads from offset {offset} back to {following}")
            size = len(data)
            if len(messages) and subscription.tags_set:
                size = sum(message.size for message in messages)
            self._prefetch.put(cursor, generation, messages, size, following)
            return 0.0
        if code == _ILLEGAL:
            following = answer.read(PullMessageResponseHeader).next_begin_offset
            return self._led(following, f"offset {offset} does not exist at the broker, going on at {following}")
        if code == _NO_TOPIC:
            # Deleted, and the group's offset with it: in a new topic of the name ours would pass over its beginning.
            self._repair((await start_offset(self.member, self._commits.offset_store, queue)).offset)
        raise remote_error(code, answer.remark, request="LITE_PULL_MESSAGE", address=address)

    def _messages(self, data: bytes, subscription: SubscriptionData) -> list[Message]:
        messages = split_records(data, Message) if data else []
        tags = subscription.tags_set
        if tags:
            # The broker matched hashes; different tags can share one.
            messages = [message for message in messages if message.tag in tags]
        for message in messages:
            message._source = self
            message._process_queue = None
        return messages

    def _led(self, offset: int, text: str) -> float:
        """The group is elsewhere, or the broker does not have what it should have: go on where it says."""
        if text != self.last_error:
            log.warning("%s: %s", self.queue, text)
        self.last_error = text
        self._repair(offset)
        # Two brokers that disagree about the queue must not make this spin.
        now, pause = self.member.session.loop.time(), self._config.pull_error_delay
        again, self._repaired = now - self._repaired < 2 * pause, now
        return pause if again else 0.0

    def _repair(self, offset: int) -> None:
        self._prefetch.seek(self.cursor, offset)
        self.cursor.done = offset
        self._commits.offsets.repair(self.queue, offset)
