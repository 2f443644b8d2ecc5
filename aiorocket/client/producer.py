"""Sending. ``send`` is the hot path: one coroutine frame, no task, no timer; everything rare is in ``attempts``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType

from aiorocket.client.attempts import Attempts, Letter
from aiorocket.client.bulk import Item, SendOutcome, send_batch, send_many
from aiorocket.client.core.lifecycle import Lifecycle
from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.outgoing import property_text, squeeze
from aiorocket.client.publish import Publish
from aiorocket.client.route_table import AUTO_CREATE_TOPIC
from aiorocket.client.session import Client
from aiorocket.config import ProducerConfig
from aiorocket.errors import NotConnectedError, RocketError, SendError, TopicNotFoundError, UsageError
from aiorocket.model import OutgoingMessage, Queue, SendReceipt, SendStatus, check_group, check_topic
from aiorocket.runtime.env import Env
from aiorocket_protocol import (
    LANGUAGE_PYTHON,
    VERSION,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    UniqueIds,
    pack_host,
)

__all__ = ("Producer",)

_SEND = int(RequestCode.SEND_MESSAGE_V2)
_OK = SendStatus.SEND_OK
_FIRST_PAUSE = 0.05
# A NamedTuple's own constructor is a Python function; this is half its price, twice per message.
_header: Callable[[tuple[object, ...]], SendMessageRequestHeaderV2] = partial(
    tuple.__new__, SendMessageRequestHeaderV2
)
_receipt: Callable[[tuple[object, ...]], SendReceipt] = partial(tuple.__new__, SendReceipt)


class Producer:
    """Sends messages. ``group`` names the application to brokers and tools; ``nameservers`` makes a private ``Client``,
    ``client`` shares one. Start it by ``async with`` or ``start()``; it is used once.

    Every send ends within its timeout, in a receipt or in SendError, whose ``may_be_stored`` says whether a broker
    may have the message all the same. Messages without a sharding key or a pinned queue are retried on another queue
    or broker.
    """

    def __init__(
        self,
        group: str,
        *,
        nameservers: str | Sequence[str] | None = None,
        client: Client | None = None,
        config: ProducerConfig | None = None,
        env: Env | None = None,
    ) -> None:
        if client is not None and (nameservers is not None or env is not None):
            raise UsageError("a Producer takes either client= or nameservers= and env=: the client has them already")
        self.group = check_group(group)
        self.config = config or ProducerConfig()
        self._own_client = client is None
        self.client = client or Client(nameservers=nameservers, env=env)
        self._lifecycle = Lifecycle(f"producer {group!r}")
        self._publish: dict[str, Publish] = {}
        self._in_flight = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._ids: UniqueIds | None = None
        self._time = _not_started

    # -- life --

    async def start(self) -> None:
        """Register the group. Name servers and brokers are asked at the first send to a topic."""
        self._lifecycle.move("start")
        try:
            if self._own_client:
                await self.client.start()
            self.client.need_running()
            self.client.add_producer(self.group, self)
        except BaseException:
            self._lifecycle.move("stop")
            if self._own_client:
                await self.client.stop()
            self._lifecycle.move("stopped")
            raise
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._live = self.client.remoting.live
        self._wall_ms = self.client.env.clock.wall_ms
        self._attempts = Attempts(self.client, self.config, self._open, self._receipt)
        self._unwatch = self.client.watch_routes(self._on_route)
        self._lifecycle.move("started")

    async def stop(self) -> None:
        """Take no more, wait for the sends under way (each ends within its timeout), leave."""
        if not self._lifecycle.running:
            self._lifecycle.move("stop")
            return
        self._lifecycle.move("stop")
        try:
            await self.flush()
            self._unwatch()
            await self.client.remove_producer(self.group)
        finally:
            if self._own_client:
                await self.client.stop()
            self._publish.clear()  # so that a later send looks at the lifecycle
            self._lifecycle.move("stopped")

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def flush(self) -> None:
        """Return when no send is under way: each ends within its timeout, one way or the other."""
        if self._in_flight:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    # -- sending --

    async def send(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: Queue | None = None,
        delay_level: int = 0,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send one message and wait for the broker's acknowledgement.

        ``sharding_key``: the same key goes to the same queue, and one message of a key is sent at a time, so that the
        order of calls is the order stored. ``queue`` pins one queue. ``delay_level`` 1 to 18 delivers later.
        ``timeout`` in seconds bounds the whole call, look-ups and retries included (default:
        ``ProducerConfig.send_timeout``).

        UsageError for arguments that can never be sent, TopicNotFoundError when the name servers say that nobody has
        the topic, SendError otherwise.
        """
        flag = 0
        if type(topic) is not str:
            if body is not None or not isinstance(topic, OutgoingMessage):
                raise UsageError("send(topic, body) or send(OutgoingMessage(...))")
            tag, keys, properties = topic.tag, topic.keys, topic.properties
            delay_level, flag = topic.delay_level, topic.flag
            body, topic = topic.body, topic.topic
        if type(body) is not bytes:
            body = _as_bytes(body)
        if timeout is None:
            timeout = self.config.send_timeout
        deadline = self._time() + timeout
        publish = self._publish.get(topic)
        if publish is None or self._in_flight >= self.config.max_in_flight:
            publish = await self._admit(topic, timeout)
            timeout = max(0.001, deadline - self._time())
        born = self._wall_ms()
        msg_id = self._ids.next(born)  # type: ignore[union-attr]  # set with the first topic
        if tag or keys or properties or sharding_key or delay_level:
            text = property_text(msg_id, tag, keys, properties, sharding_key, delay_level)
        else:
            text = "UNIQ_KEY\x01" + msg_id + "\x02"
        sys_flag = 0
        if len(body) >= self.config.compress_over:
            body, sys_flag = self._fit(body)
        elif not body:
            raise UsageError("an empty body: RocketMQ's brokers and clients refuse it, send at least one byte")
        self._in_flight += 1
        try:
            if sharding_key is not None or queue is not None:
                letter = Letter(topic, body, text, msg_id, sys_flag, flag, born, group=self.group)
                if queue is not None:
                    return await self._attempts.pinned(publish, queue, letter, deadline)
                return await self._attempts.keyed(publish, sharding_key or "", letter, deadline)
            target = publish.next()
            connection = self._live(target.address)
            if connection is None or publish.provisional:
                letter = Letter(topic, body, text, msg_id, sys_flag, flag, born, group=self.group)
                return await self._attempts.run(publish, target, letter, deadline)
            header = _header(
                (self.group, topic, AUTO_CREATE_TOPIC, 4, target.queue_id, sys_flag, born, flag, text,
                 0, False, None, False, target.broker_name)
            )  # fmt: skip
            try:
                answer = await connection.request(
                    RemotingCommand(_SEND, 0, 0, LANGUAGE_PYTHON, VERSION, None, None, header, None, body), timeout
                )
            except (RocketError, ProtocolError) as error:
                letter = Letter(topic, body, text, msg_id, sys_flag, flag, born, group=self.group)
                return await self._attempts.after(error, publish, target, letter, deadline)
            if answer.code:
                letter = Letter(topic, body, text, msg_id, sys_flag, flag, born, group=self.group)
                return await self._attempts.judge_answer(answer, publish, target, letter, deadline)
            stored = answer.read(SendMessageResponseHeader)
            return _receipt((msg_id, target.queue, stored.queue_offset, stored.msg_id, _OK))
        except ProtocolError as error:
            raise SendError(f"topic {topic!r}: the answer cannot be read: {error}", may_be_stored=True) from error
        finally:
            self._in_flight -= 1
            if self._room or self._idle:
                self._make_room()

    async def send_oneway(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> str:
        """Hand a message to the socket and return its id; nobody acknowledges it and nothing is retried.

        Waits only for the route, the connection, and a peer that reads. Errors as of ``send``; a message that is lost
        later is lost silently.
        """
        flag, delay_level = 0, 0
        if not isinstance(topic, str):
            tag, keys, properties = topic.tag, topic.keys, topic.properties
            delay_level, flag = topic.delay_level, topic.flag
            body, topic = topic.body, topic.topic
        body = _as_bytes(body)
        if not body:
            raise UsageError("an empty body: RocketMQ's brokers and clients refuse it, send at least one byte")
        timeout = self.config.send_timeout if timeout is None else timeout
        publish = self._publish.get(topic) or await self._admit(topic, timeout)
        born = self._wall_ms()
        msg_id = self._ids.next(born)  # type: ignore[union-attr]  # set with the first topic
        text = property_text(msg_id, tag, keys, properties, None, delay_level)
        body, sys_flag = self._fit(body) if len(body) >= self.config.compress_over else (body, 0)
        target = publish.pinned(queue) if queue is not None else publish.next()
        letter = Letter(topic, body, text, msg_id, sys_flag, flag, born, group=self.group)
        await self._attempts.oneway(target, letter, timeout)
        return msg_id

    async def send_batch(
        self, topic: str, messages: Iterable[Item], *, queue: Queue | None = None, timeout: float | None = None
    ) -> list[SendReceipt]:
        """Send several messages of one topic as one request: stored together, with consecutive offsets in one queue.

        ``messages`` are bodies or OutgoingMessages without delay. All together must fit ``max_message_size``. Errors
        as of ``send``; a batch is stored whole or not at all.
        """
        return await send_batch(self, topic, messages, queue, timeout)

    def send_many(
        self,
        topic: str,
        messages: Iterable[Item] | AsyncIterable[Item],
        *,
        ordered: bool = False,
        in_flight: int = 256,
        timeout: float | None = None,
    ) -> AsyncIterator[SendOutcome]:
        """Send a stream, at most ``in_flight`` messages at a time, and give the outcome of each.

        Outcomes come as sends end, or in the order of ``messages`` with ``ordered=True``. A send that fails is an
        outcome with ``error``, it does not end the stream. Memory is bounded: taking outcomes is what keeps the
        stream going.
        """
        return send_many(self, topic, messages, ordered, in_flight, timeout)

    # -- what the parts share --

    def next_id(self) -> str:
        """A message id (UNIQ_KEY). Only after a topic was opened."""
        assert self._ids is not None
        return self._ids.next(self._wall_ms())

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

    async def open_topic(self, topic: str, timeout: float) -> Publish:
        """The topic's targets, looked up within ``timeout`` if they are not known."""
        return self._publish.get(topic) or await self._admit(topic, timeout)

    async def _admit(self, topic: str, timeout: float) -> Publish:
        self._lifecycle.need_running()
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
                while self._in_flight >= self.config.max_in_flight:
                    waiter = self._loop.create_future()
                    self._room.append(waiter)
                    try:
                        await waiter
                    except BaseException:
                        if waiter.done() and not waiter.cancelled():
                            self._make_room()  # it was our turn and we cannot take it
                        raise
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
        try:
            route = await routes.get(topic, refresh=refresh)
        except TopicNotFoundError:
            template = await routes.template(topic, self.config.default_topic_queues)
            if template is None:
                raise
            route, provisional = template, True
        if self._ids is None:
            entropy = self.client.env.entropy
            ip = self.client.local_ip
            packed = pack_host(f"[{ip}]:0" if ":" in ip else f"{ip}:0")[:-4]
            self._ids = UniqueIds(packed, entropy.randrange(1 << 16), entropy.randrange(1 << 31))
        publish = Publish(route, start=self.client.env.entropy.randrange(1 << 16), provisional=provisional)
        if not provisional:
            # A provisional route is asked for again by the next send: by then the first one has created the topic.
            self._publish[topic] = publish
        return publish

    def _fit(self, body: bytes) -> tuple[bytes, int]:
        limit = self.config.max_message_size
        if len(body) > limit:
            raise UsageError(f"the body has {len(body)} bytes, max_message_size is {limit}")
        return squeeze(body, self.config.compress_level)

    def _receipt(self, letter: Letter, queue: Queue, answer: RemotingCommand) -> SendReceipt:
        stored = answer.read(SendMessageResponseHeader)
        if stored.queue_id != queue.queue_id:
            queue = queue._replace(queue_id=stored.queue_id)
        return SendReceipt(letter.msg_id, queue, stored.queue_offset, stored.msg_id, SendStatus(answer.code))

    def _on_route(self, route: TopicRoute) -> None:
        self._publish.pop(route.topic, None)

    def _make_room(self) -> None:
        """After the end of a send somebody waits for: the next one may begin, or all are done."""
        while self._room and self._in_flight < self.config.max_in_flight:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
        if not self._in_flight:
            idle, self._idle = self._idle, []
            for waiter in idle:
                if not waiter.done():
                    waiter.set_result(None)


def _not_started() -> float:
    raise UsageError("this producer is not started: use 'async with' or await start() first")


def _as_bytes(body: object) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise UsageError(f"the body must be bytes, not {type(body).__name__}: encode it first")
