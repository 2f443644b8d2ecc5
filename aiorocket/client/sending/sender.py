"""What every way of sending goes through: topics opened once, message ids, encoding, the turn of a key, attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypedDict, cast

from aiorocket.client.core.lifecycle import Lifecycle
from aiorocket.client.core.namespace import unwrap, wrap
from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.middleware import Middleware, publishing, watchers
from aiorocket.client.sending.attempts import Attempts
from aiorocket.client.sending.in_flight import InFlight
from aiorocket.client.sending.outgoing import COMPRESSIONS, EMPTY_BODY, EncodedMessage, property_text, squeeze
from aiorocket.client.sending.plain_send import End, PlainSend, Sent, plain_sends
from aiorocket.client.sending.publish import Publish
from aiorocket.client.sending.send_hooks import SendHook
from aiorocket.client.session import Session
from aiorocket.config import ProducerConfig
from aiorocket.errors import NotConnectedError, ProtocolError, SendError, TopicNotFoundError, UsageError
from aiorocket.model import OutgoingMessage, Queue, SendReceipt, SendStatus, check_group, check_topic
from aiorocket.runtime.own_loop import need_loop
from aiorocket_protocol import (
    PROPERTY_INSTANCE_ID,
    RemotingCommand,
    SendMessageResponseHeader,
    UniqueIds,
    compress,
    pack_host,
)

__all__ = ("OnewayOptions", "Selector", "SendOptions", "Sender", "seconds")

#: ``select=``: from the queues that can be written to, the message, and ``arg``, to the queue it goes to (Java's
#: MessageQueueSelector).
Selector = Callable[[Sequence[Queue], OutgoingMessage, Any], Queue]


class OnewayOptions(TypedDict, total=False):
    """The options of ``Producer.send_oneway``, for whoever passes them on."""

    tag: str
    keys: Sequence[str]
    properties: Mapping[str, str] | None
    sharding_key: str | None
    queue: Queue | None
    select: Selector | None
    arg: Any
    timeout: float | None


class SendOptions(OnewayOptions, total=False):
    """Those of ``Producer.send``."""

    delay_level: int
    at: datetime | None
    after: timedelta | None


_FIRST_PAUSE = 0.05


def seconds(timeout: float) -> float:
    """What was given as a timeout. UsageError for what is no number, and for 0 or less: something would be sent before
    it is over."""
    if not isinstance(timeout, int | float) or not timeout > 0:  # which nan is not, either
        raise UsageError(f"timeout={timeout!r}: a number of seconds above 0")
    return timeout


class Sender:
    """Sends in the name of one producer group. ``lifecycle`` is its producer's: nothing new is begun unless it runs.

    Topics are by the names their users call them. Whatever sends ends by ``deadline`` (loop time), in a receipt or in
    the errors of ``Producer.send``.
    """

    def __init__(
        self,
        group: str,
        client: Session,
        config: ProducerConfig,
        lifecycle: Lifecycle,
        hooks: Iterable[SendHook] = (),
        middleware: Iterable[Middleware] = (),
    ) -> None:
        self.client = client
        self.config = config
        self._namespace = client.config.namespace
        #: The group as brokers know it.
        self.wire_group = check_group(wrap(self._namespace, group))
        #: What every message carries beside what its sender says.
        self.system: Mapping[str, str] = {PROPERTY_INSTANCE_ID: self._namespace} if self._namespace else {}
        #: What is around each send.
        around = (*client.middleware, *middleware)
        self.steps = publishing(around)
        self.in_flight = InFlight(config.max_in_flight)
        self.attempts = Attempts(client, config, self._look_up, hooks, watchers(around))
        #: Topics that were opened, for the hot path.
        self.opened: dict[str, Publish] = {}
        self._lifecycle = lifecycle
        self._compression = COMPRESSIONS[config.compress_type]
        self._wall_ms = client.env.clock.wall_ms
        #: A new message id (UNIQ_KEY) at this wall clock, once a topic was opened.
        self.next_id: Callable[[int], str] = self._first_id
        #: The way of plain sends, from the first send on that has looked at everything.
        self.plain: PlainSend | None = None

    def need_running(self) -> None:
        """UsageError unless its producer is started and not stopped; WrongLoopError in another loop."""
        self._lifecycle.need_running()
        need_loop(self.client.loop, self._lifecycle.what)

    def deadline(self, timeout: float | None) -> float:
        """In loop time; None is the config's. UsageError as of ``seconds``."""
        self.need_running()
        return self.client.loop.time() + (self.config.send_timeout if timeout is None else seconds(timeout))

    def check_compression(self) -> None:
        """UsageError when ``compress_type`` needs what is not installed."""
        try:
            compress(b"", self.config.compress_level, self._compression)
        except ProtocolError as error:
            raise UsageError(f"compress_type={self.config.compress_type!r}: {error}") from error

    # -- messages --

    @cached_property
    def ids(self) -> UniqueIds:
        """Makes message ids. They carry our address, so the first is drawn after the first connection was made."""
        entropy = self.client.env.entropy
        ip = self.client.routes.local_ip
        packed = pack_host(f"[{ip}]:0" if ":" in ip else f"{ip}:0")[:-4]
        return UniqueIds(packed, entropy.randrange(1 << 16), entropy.randrange(1 << 31))

    def _first_id(self, now_ms: int) -> str:
        self.next_id = self.ids.next  # a plain attribute: the hot path reads it
        if not (self.steps or self.system):
            self.plain = plain_sends(
                self, group=self.wire_group, client=self.client, opened=self.opened,
                compress_over=self.config.compress_over,
            )  # fmt: skip
        return self.next_id(now_ms)

    async def not_plain(self, sent: Sent, body: bytes, end: End, deadline: float) -> SendReceipt:
        """How a plain send ends whose ``end`` is no receipt."""
        if isinstance(end, RemotingCommand) and not end.code:
            with suppress(ProtocolError):  # an answer that cannot be read is one
                stored = end.read(SendMessageResponseHeader)
                queue = sent.target.queue
                return SendReceipt(sent.msg_id, queue, stored.queue_offset, stored.msg_id, SendStatus.SEND_OK)
        text = property_text(sent.msg_id, "", (), None, None, 0)
        encoded = EncodedMessage(self.wire_group, sent.publish.name, body, text, sent.msg_id, 0, 0, sent.born)
        first = cast(RemotingCommand | Exception, end)
        return await self.attempts.run(sent.publish, sent.target, encoded, deadline, first=first)

    def next_ids(self, count: int) -> list[str]:
        """So many new message ids (UNIQ_KEY), once a topic was opened."""
        return self.ids.next_many(self._wall_ms(), count)

    def encode(
        self, publish: Publish, message: OutgoingMessage, system: Mapping[str, str] | None = None, sys_flag: int = 0
    ) -> EncodedMessage:
        """``message`` ready for the wire, with a new id; ``system`` are properties and ``sys_flag`` bits that only
        RocketMQ itself sets."""
        born = self._wall_ms()
        msg_id = message.msg_id or self.next_id(born)
        text = property_text(
            msg_id, message.tag, message.keys, message.properties, message.sharding_key, message.delay_level,
            {**self.system, **system} if system else self.system,
        )  # fmt: skip
        body, bits = self.packed(message.body)
        return EncodedMessage(self.wire_group, publish.name, body, text, msg_id, sys_flag | bits, message.flag, born)

    def packed(self, body: bytes) -> tuple[bytes, int]:
        """The body as it is sent, and its sysFlag bits. UsageError for one that is empty or too long."""
        if not body:
            raise UsageError(EMPTY_BODY)
        if len(body) < self.config.compress_over:
            return body, 0
        limit = self.config.max_message_size
        if len(body) > limit:
            raise UsageError(f"the body has {len(body)} bytes, max_message_size is {limit}")
        return squeeze(body, self.config.compress_level, self._compression)

    # -- sending --

    async def send(
        self,
        message: OutgoingMessage,
        deadline: float,
        *,
        queue: Queue | None = None,
        system: Mapping[str, str] | None = None,
        sys_flag: int = 0,
    ) -> SendReceipt:
        """Send ``message`` as ``encode`` makes it: to ``queue``, else in the turn of its key, else anywhere."""
        key = message.sharding_key if queue is None else None
        async with self.turn(message.topic, key, deadline):
            publish = await self.admit(message.topic, deadline - asyncio.get_running_loop().time(), in_turn=True)
            encoded = self.encode(publish, message, system, sys_flag)
            with self.in_flight:
                return await self.place(publish, queue, key, encoded, deadline)

    async def take_turn(self, topic: str, key: str, deadline: float) -> None:
        """Before everything that a send of ``key`` waits for, the route and the room too: only so the order of calls is
        the order stored. SendError at the deadline."""
        self.need_running()
        await self.in_flight.turn(wrap(self._namespace, topic), key, deadline)

    def end_turn(self, topic: str, key: str) -> None:
        self.in_flight.pass_turn(wrap(self._namespace, topic), key)

    @asynccontextmanager
    async def turn(self, topic: str, key: str | None, deadline: float) -> AsyncIterator[None]:
        """From ``take_turn`` to ``end_turn``; nothing for None."""
        if key is None:
            self.need_running()
            yield
            return
        await self.take_turn(topic, key, deadline)
        try:
            yield
        finally:
            self.end_turn(topic, key)

    async def place(
        self, publish: Publish, queue: Queue | None, key: str | None, encoded: EncodedMessage, deadline: float
    ) -> SendReceipt:
        """Send to the queue that is asked for, else to that of ``key``, whose turn it has to be, else to the next."""
        moves = queue is None and key is None
        return await self.attempts.run(publish, publish.target(queue, key), encoded, deadline, moves=moves)

    async def select(
        self, message: OutgoingMessage, queue: Queue | None, select: Selector, arg: Any, timeout: float
    ) -> Queue:
        """The queue that ``select`` chooses."""
        if queue is not None:
            raise UsageError("either queue= or select=: both say where the message goes")
        publish = await self.open_topic(message.topic, timeout)
        return publish.pinned(select(publish.queues, message, arg)).queue

    # -- topics --

    async def open_topic(self, topic: str, timeout: float) -> Publish:
        """The topic's queues with their addresses, looked up within ``timeout`` seconds if they are not known."""
        return self.opened.get(topic) or await self.admit(topic, timeout)

    async def admit(self, topic: str, timeout: float, *, in_turn: bool = False) -> Publish:
        """The topic's queues, when there is room among the sends under way. The caller begins its send at once; what is
        ``in_turn`` was let in before it waited for that."""
        if not in_turn:
            self.need_running()
        timeout = max(0.001, timeout)
        in_flight = self.in_flight
        publish = self.opened.get(topic)
        if publish is not None and in_flight.count < in_flight.most:
            return publish
        check_topic(topic)
        trouble = ""
        in_flight.opening += 1
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
                await in_flight.room()
                return publish
        except TimeoutError:
            if in_flight.count >= in_flight.most:
                trouble = f"{in_flight.count} sends are in flight, max_in_flight allows no more"
            elif not trouble:
                servers = ", ".join(self.client.config.nameservers)
                trouble = self.client.routes.trouble or f"no route from {servers} so far"
            text = f"topic {topic!r}: {trouble} (tried for {timeout:g} s)"
            raise SendError(text, may_be_stored=False) from None
        finally:
            in_flight.opening -= 1
            if in_flight.waited_for:
                asyncio.get_running_loop().call_soon(in_flight.ended)  # the caller counts itself before

    async def _open(self, topic: str, *, refresh: bool = False) -> Publish:
        publish = self.opened.get(topic)
        if publish is not None and not refresh:
            return publish
        routes = self.client.routes
        provisional = False
        name = check_topic(wrap(self._namespace, topic))
        try:
            route = await routes.get(name, refresh=refresh)
        except TopicNotFoundError:
            template = await routes.template(name, self.config.default_topic_queues)
            if template is None:
                raise
            route, provisional = template, True
        publish = self.opened.get(topic)
        if publish is not None and not refresh:
            return publish  # many first sends at once: one of them has built it while this one waited
        start = self.client.env.entropy.randrange(1 << 16)
        slow = provisional or self.attempts.watching or self.config.idempotent
        publish = Publish(route, start=start, topic=topic, slow=slow)
        if not provisional:
            # A provisional route is asked for again by the next send: by then the first one has created the topic.
            self.opened[topic] = publish
        return publish

    async def _look_up(self, topic: str) -> Publish:
        return await self._open(topic, refresh=True)

    def on_route(self, route: TopicRoute) -> None:
        """The topic's route has changed."""
        self.opened.pop(route.topic, None)
        if self._namespace:
            self.opened.pop(unwrap(self._namespace, route.topic), None)
