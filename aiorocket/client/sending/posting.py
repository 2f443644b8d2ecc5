"""What the verbs of a producer share: topics opened once, message ids, letters, the room for sends under way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from aiorocket.client.core.lifecycle import Lifecycle
from aiorocket.client.core.namespace import unwrap, wrap
from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.sending.attempts import Attempts, Letter
from aiorocket.client.sending.outgoing import COMPRESSIONS, property_text, squeeze
from aiorocket.client.sending.publish import Publish
from aiorocket.client.sending.send_hooks import SendHook
from aiorocket.client.session import Session
from aiorocket.config import ProducerConfig
from aiorocket.errors import NotConnectedError, SendError, TopicNotFoundError, UsageError
from aiorocket.model import OutgoingMessage, Queue, SendReceipt, SendStatus, check_group, check_topic
from aiorocket_protocol import (
    PROPERTY_INSTANCE_ID,
    ProtocolError,
    RemotingCommand,
    SendMessageResponseHeader,
    UniqueIds,
    compress,
    pack_host,
)

__all__ = ("ONE_OR_THE_OTHER", "Posting", "Selector", "as_bytes", "as_message")

ONE_OR_THE_OTHER = (
    "(topic, body, tag=, keys=, properties=, delay_level=) or (OutgoingMessage(...)), which has all of these itself"
)

#: ``select=``: from the queues that can be written to, the message, and ``arg``, to the queue it goes to (Java's
#: MessageQueueSelector).
Selector = Callable[[Sequence[Queue], OutgoingMessage, Any], Queue]

_FIRST_PAUSE = 0.05


class Posting:
    """The part of a ``Producer`` that is not its verbs."""

    def __init__(self, group: str, client: Session, config: ProducerConfig, hooks: Iterable[SendHook]) -> None:
        self.group = check_group(group)
        self.client: Session = client
        self.config = config
        namespace = client.config.namespace
        #: The group as brokers know it.
        self.wire_group = check_group(wrap(namespace, group))
        #: What every message carries beside what its sender says.
        self.system: Mapping[str, str] | None = {PROPERTY_INSTANCE_ID: namespace} if namespace else None
        self._hooks = tuple(hooks)
        self._compression = COMPRESSIONS[config.compress_type]
        self._lifecycle = Lifecycle(f"producer {group!r}")
        self._publish: dict[str, Publish] = {}
        self._in_flight = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._ids: UniqueIds | None = None
        self._time = _not_started
        self._attempts = Attempts(client, config, self._open, self._receipt, self._hooks)

    def _check_compression(self) -> None:
        try:
            compress(b"", self.config.compress_level, self._compression)
        except ProtocolError as error:
            raise UsageError(f"compress_type={self.config.compress_type!r}: {error}") from error

    def _begin(self) -> None:
        """The loop is here and the client runs."""
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._wall_ms = self.client.env.clock.wall_ms
        self._unwatch = self.client.watch_routes(self._on_route)

    def need_running(self) -> None:
        """UsageError unless started and not stopped."""
        self._lifecycle.need_running()

    def next_id(self) -> str:
        """A message id (UNIQ_KEY). It carries our address, so it is drawn after the first connection was made."""
        if self._ids is None:
            self._ids = self._new_ids()
        return self._ids.next(self._wall_ms())

    def next_ids(self, count: int) -> list[str]:
        """As many calls of ``next_id``."""
        if self._ids is None:
            self._ids = self._new_ids()
        return self._ids.next_many(self._wall_ms(), count)

    @property
    def in_flight(self) -> int:
        """Sends under way."""
        return self._in_flight

    @property
    def attempts(self) -> Attempts:
        """The slow path of a send; batches go there directly."""
        return self._attempts

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A send under way, for ``flush`` and ``max_in_flight``."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            if self._room or self._idle:
                self._make_room()

    def letter(
        self, publish: Publish, message: OutgoingMessage, system: Mapping[str, str] | None = None, sys_flag: int = 0
    ) -> Letter:
        """``message`` ready for the wire, with a new id; ``system`` are properties and ``sys_flag`` bits that only
        RocketMQ itself sets."""
        if not message.body:
            raise UsageError("an empty body: RocketMQ's brokers and clients refuse it, send at least one byte")
        msg_id, born = self.next_id(), self._wall_ms()
        text = property_text(
            msg_id, message.tag, message.keys, message.properties, message.sharding_key, message.delay_level,
            {**(self.system or {}), **(system or {})},
        )  # fmt: skip
        body, bits = self.packed(message.body)
        return Letter(publish.name, body, text, msg_id, sys_flag | bits, message.flag, born, group=self.wire_group)

    async def post(
        self,
        message: OutgoingMessage,
        system: Mapping[str, str],
        *,
        sys_flag: int = 0,
        queue: Queue | None = None,
        deadline: float,
    ) -> SendReceipt:
        """Send a message as ``letter`` makes it."""
        async with self.turn(message.topic, message.sharding_key if queue is None else None, deadline):
            publish = await self.open_topic(message.topic, max(0.001, deadline - self._time()))
            return await self.post_to(publish, message, system, sys_flag=sys_flag, queue=queue, deadline=deadline)

    async def post_to(
        self,
        publish: Publish,
        message: OutgoingMessage,
        system: Mapping[str, str],
        *,
        sys_flag: int = 0,
        queue: Queue | None = None,
        deadline: float,
    ) -> SendReceipt:
        """As ``post``, to a topic that is open, in the turn of the message."""
        letter = self.letter(publish, message, system, sys_flag)
        with self.counted():
            return await self.place(publish, queue, message.sharding_key, letter, deadline)

    @asynccontextmanager
    async def turn(self, topic: str, key: str | None, deadline: float) -> AsyncIterator[None]:
        """Around everything that a send of ``key`` waits for, the route and the room too: only so the order of calls is
        the order stored. Nothing for None."""
        if key is None:
            yield
            return
        name = await self._take_turn(topic, key, deadline)
        try:
            yield
        finally:
            self._end_turn(name, key)

    async def _take_turn(self, topic: str, key: str, deadline: float) -> str:
        """The topic's name on the wire, for ``_end_turn``."""
        self._lifecycle.need_running()
        name = wrap(self.client.config.namespace, topic)
        try:
            await self._attempts.turn(name, key, deadline)
        finally:
            # Who is given the turn and cannot take it may have been the last that `flush` waits for.
            if self._idle:
                self._make_room()
        return name

    def _end_turn(self, name: str, key: str) -> None:
        self._attempts.pass_on(name, key)
        if self._idle:
            self._make_room()

    async def place(
        self, publish: Publish, queue: Queue | None, sharding_key: str | None, letter: Letter, deadline: float
    ) -> SendReceipt:
        """Send to the queue that is asked for, or to the next; with a key, in its turn."""
        if queue is not None:
            return await self._attempts.pinned(publish, queue, letter, deadline)
        if sharding_key is not None:
            return await self._attempts.in_turn(publish, sharding_key, letter, deadline)
        return await self._attempts.run(publish, publish.next(), letter, deadline)

    async def _select(
        self, message: OutgoingMessage, queue: Queue | None, select: Selector, arg: Any, timeout: float | None
    ) -> tuple[Queue, float]:
        """The queue that ``select`` chooses, and the time that is left."""
        if queue is not None:
            raise UsageError("either queue= or select=: both say where the message goes")
        timeout = self.config.send_timeout if timeout is None else timeout
        deadline = self._time() + timeout
        publish = await self.open_topic(message.topic, timeout)
        chosen = publish.pinned(select(publish.queues, message, arg)).queue
        return chosen, max(0.001, deadline - self._time())

    async def open_topic(self, topic: str, timeout: float) -> Publish:
        """The topic's targets, looked up within ``timeout`` if they are not known."""
        return self._publish.get(topic) or await self._admit(topic, timeout)

    async def _admit(self, topic: str, timeout: float) -> Publish:
        self._lifecycle.need_running()
        return await self._let_in(topic, timeout)

    async def _let_in(self, topic: str, timeout: float) -> Publish:
        """Wait for the route and for room among the sends under way. The caller begins its send at once."""
        check_topic(topic)
        trouble = ""
        try:
            async with asyncio.timeout(timeout):
                pause = _FIRST_PAUSE
                while True:
                    try:
                        publish = await self._open(topic)
                        break
                    except NotConnectedError as error:
                        # Name servers come back; the time of this send is there to wait for them.
                        trouble = str(error)
                        await asyncio.sleep(pause)
                        pause = min(2 * pause, 1.0)
                if self._in_flight >= self.config.max_in_flight:
                    waiter = self._loop.create_future()
                    self._room.append(waiter)
                    try:
                        await waiter
                    except BaseException:
                        if waiter.done() and not waiter.cancelled():
                            self._in_flight -= 1  # the place was ours and we cannot take it
                            self._make_room()
                        raise
                    self._in_flight -= 1  # the caller counts itself, before anybody else can
                    self._loop.call_soon(self._make_room)  # unless what it sends is refused
                return publish
        except TimeoutError:
            if self._in_flight >= self.config.max_in_flight:
                trouble = f"{self._in_flight} sends are in flight, max_in_flight allows no more"
            elif not trouble:
                servers = ", ".join(self.client.config.nameservers)
                trouble = self.client.routes.trouble or f"no route from {servers} so far"
            text = f"topic {topic!r}: {trouble} (tried for {timeout:g} s)"
            raise SendError(text, may_be_stored=False) from None

    async def _open(self, topic: str, *, refresh: bool = False) -> Publish:
        publish = self._publish.get(topic)
        if publish is not None and not refresh:
            return publish
        routes = self.client.routes
        provisional = False
        name = check_topic(wrap(self.client.config.namespace, topic))
        try:
            route = await routes.get(name, refresh=refresh)
        except TopicNotFoundError:
            template = await routes.template(name, self.config.default_topic_queues)
            if template is None:
                raise
            route, provisional = template, True
        publish = self._publish.get(topic)
        if publish is not None and not refresh:
            return publish  # many first sends at once: one of them has built it while this one waited
        if self._ids is None:
            self._ids = self._new_ids()
        start = self.client.env.entropy.randrange(1 << 16)
        publish = Publish(route, start=start, provisional=provisional, topic=topic, slow=self._attempts.watching)
        if not provisional:
            # A provisional route is asked for again by the next send: by then the first one has created the topic.
            self._publish[topic] = publish
        return publish

    def _new_ids(self) -> UniqueIds:
        entropy = self.client.env.entropy
        ip = self.client.local_ip
        packed = pack_host(f"[{ip}]:0" if ":" in ip else f"{ip}:0")[:-4]
        return UniqueIds(packed, entropy.randrange(1 << 16), entropy.randrange(1 << 31))

    def packed(self, body: bytes) -> tuple[bytes, int]:
        """The body as it is sent, and its sysFlag bits."""
        return self._fit(body) if len(body) >= self.config.compress_over else (body, 0)

    def _fit(self, body: bytes) -> tuple[bytes, int]:
        limit = self.config.max_message_size
        if len(body) > limit:
            raise UsageError(f"the body has {len(body)} bytes, max_message_size is {limit}")
        return squeeze(body, self.config.compress_level, self._compression)

    def _receipt(self, letter: Letter, queue: Queue, answer: RemotingCommand) -> SendReceipt:
        stored = answer.read(SendMessageResponseHeader)
        if stored.queue_id != queue.queue_id:
            queue = queue._replace(queue_id=stored.queue_id)
        return SendReceipt(letter.msg_id, queue, stored.queue_offset, stored.msg_id, SendStatus(answer.code))

    def _on_route(self, route: TopicRoute) -> None:
        self._publish.pop(route.topic, None)
        if self.system is not None:
            self._publish.pop(unwrap(self.client.config.namespace, route.topic), None)

    def _make_room(self) -> None:
        """After the end of a send somebody waits for: the next one may begin, or all are done."""
        while self._room and self._in_flight < self.config.max_in_flight:
            waiter = self._room.popleft()
            if not waiter.done():
                # Its place is taken from now on, or who sends without a pause would be there first, again and again.
                self._in_flight += 1
                waiter.set_result(None)
        if not (self._in_flight or self._attempts.turns):
            idle, self._idle = self._idle, []
            for waiter in idle:
                if not waiter.done():
                    waiter.set_result(None)


def _not_started() -> float:
    raise UsageError("this producer is not started: use 'async with' or await start() first")


def as_bytes(body: object) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise UsageError(f"the body must be bytes, not {type(body).__name__}: encode it first")


def as_message(
    topic: str | OutgoingMessage,
    body: object,
    tag: str,
    keys: Sequence[str],
    properties: Mapping[str, str] | None,
    sharding_key: str | None,
    delay_level: int,
) -> OutgoingMessage:
    """What was given to a verb, as one value."""
    if isinstance(topic, OutgoingMessage):
        if body is not None or tag or keys or properties or delay_level:
            raise UsageError(ONE_OR_THE_OTHER)
        if topic.sharding_key is None and sharding_key is not None:
            topic = replace(topic, sharding_key=sharding_key)
        return topic if type(topic.body) is bytes else replace(topic, body=as_bytes(topic.body))
    return OutgoingMessage(
        topic=topic, body=as_bytes(body), tag=tag, keys=keys, properties=properties or {}, delay_level=delay_level,
        sharding_key=sharding_key,
    )  # fmt: skip
