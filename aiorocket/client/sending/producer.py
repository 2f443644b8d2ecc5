"""Sending. ``send`` is the hot path: one coroutine frame, no task, no timer; everything rare is in ``attempts``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self

from aiorocket.client.core.lifecycle import Lifecycle, State
from aiorocket.client.core.typed_body import Body
from aiorocket.client.message import Message
from aiorocket.client.middleware import Middleware
from aiorocket.client.registered import GroupProducer
from aiorocket.client.sending.around import send_oneway_through, send_through
from aiorocket.client.sending.bulk import Item, SendOutcome, send_batch, send_many
from aiorocket.client.sending.outgoing import EncodedMessage, as_bytes, as_message, property_text
from aiorocket.client.sending.request_reply import Requests, reply, request
from aiorocket.client.sending.send_hooks import SendHook
from aiorocket.client.sending.sender import Selector, Sender, seconds
from aiorocket.client.sending.timed import not_timed, recall, send_timed
from aiorocket.client.session import HasSession, Session
from aiorocket.config import ProducerConfig
from aiorocket.errors import RocketError, UsageError
from aiorocket.model import OutgoingMessage, Queue, SendReceipt, SendStatus, check_group
from aiorocket.remoting.connection import Connection
from aiorocket.runtime.env import Env
from aiorocket.runtime.own_loop import wrong_loop
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    LANGUAGE_PYTHON,
    PROPERTY_UNIQ_KEY,
    VERSION,
    CheckTransactionStateRequestHeader,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from aiorocket_protocol.fast import compiled

__all__ = ("Producer",)

_SEND = int(RequestCode.SEND_MESSAGE_V2)
_OK = SendStatus.SEND_OK
_running_loop = asyncio.get_running_loop
_ID_BEGIN = PROPERTY_UNIQ_KEY + "\x01"
# A NamedTuple's own constructor is a Python function; this is half its price, twice per message.
_header: Callable[[tuple[object, ...]], SendMessageRequestHeaderV2] = partial(tuple.__new__, SendMessageRequestHeaderV2)
_command = partial(RemotingCommand, _SEND, 0, 0, LANGUAGE_PYTHON, VERSION, None, None)
#: RemotingCommand and Connection.request in one compiled call; it answers None for what they must look at.
_post: Callable[..., asyncio.Future[RemotingCommand] | None] | None = compiled("post")
_receipt: Callable[[tuple[object, ...]], SendReceipt] = partial(tuple.__new__, SendReceipt)


class Producer:
    """Sends messages. ``group`` names the application to brokers and tools; ``nameservers`` opens connections of
    its own, ``client`` shares those of a ``Client``. Start it by ``async with`` or ``start()``; it is used once.

    Every send ends within its timeout, in a receipt or in SendError, whose ``may_be_stored`` says whether a broker
    may have the message all the same. Messages without a sharding key or a pinned queue are retried on another queue
    or broker. ``hooks`` are called around every attempt to send, ``middleware`` around every send.
    """

    def __init__(
        self,
        group: str,
        *,
        nameservers: str | Sequence[str] | None = None,
        client: HasSession | None = None,
        config: ProducerConfig | None = None,
        env: Env | None = None,
        hooks: Iterable[SendHook] = (),
        middleware: Iterable[Middleware] = (),
    ) -> None:
        if client is not None and (nameservers is not None or env is not None):
            raise UsageError("a Producer takes either client= or nameservers= and env=: the client has them already")
        self.group = check_group(group)
        self._own_client = client is None
        self.client = client.session if client is not None else Session(nameservers=nameservers, env=env)
        self.config = config or self.client.config.producer
        self._lifecycle = Lifecycle(f"producer {group!r}")
        #: What its verbs are made of, for pipelines that prepare messages by themselves.
        self.sender = Sender(group, self.client, self.config, self._lifecycle, hooks, middleware)
        self._wire_group = self.sender.wire_group
        #: Who waits for a reply.
        self._requests = Requests(self.client.env.entropy)
        self._time = _not_started
        self._wall_ms = self.client.env.clock.wall_ms
        self._live = self.client.remoting.live
        self._unwatch: Callable[[], None] = _nothing
        self._ended = asyncio.Event()

    # -- life --

    async def start(self) -> None:
        """Register the group. Name servers and brokers are asked at the first send to a topic."""
        self.sender.check_compression()
        self._lifecycle.move("start")
        try:
            if self._own_client:
                await self.client.start()
            self.client.need_running()
            self.client.add_producer(self._wire_group, GroupProducer(self, self._check, self._requests.complete))
        except BaseException:
            self._lifecycle.move("stop")
            if self._own_client:
                await self.client.stop()
            self._lifecycle.move("stopped")
            self._ended.set()
            raise
        self._loop: asyncio.AbstractEventLoop = self.client.loop
        self._time = self._loop.time
        self._unwatch = self.client.watch_routes(self.sender.on_route)
        self._lifecycle.move("started")

    async def stop(self) -> None:
        """Take no more, wait for the sends under way (each ends within its timeout), leave. Being cancelled only ends
        the wait. A second ``stop`` returns with the first."""
        before = self._lifecycle.state
        self._lifecycle.move("stop")
        if before is State.STOPPING:
            await self._ended.wait()
        if before is not State.RUNNING:
            return
        try:
            await self.flush()
        finally:
            self._requests.close()
            self._unwatch()
            self.sender.opened.clear()  # so that a later send looks at the lifecycle
            try:
                await self.client.remove_producer(self._wire_group)
            finally:
                try:
                    if self._own_client:
                        await self.client.stop()
                finally:
                    self._lifecycle.move("stopped")
                    self._ended.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

    async def flush(self) -> None:
        """Return when no send is under way: each ends within its timeout, one way or the other."""
        await self.sender.in_flight.idle()

    @property
    def in_flight(self) -> int:
        """Sends under way."""
        return self.sender.in_flight.count

    # -- sending --

    async def send(
        self,
        topic: str | OutgoingMessage,
        body: Body | None = None,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: Queue | None = None,
        select: Selector | None = None,
        arg: Any = None,
        delay_level: int = 0,
        at: datetime | None = None,
        after: timedelta | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send one message and wait for the broker's acknowledgement.

        ``body`` is bytes; a dict, dataclass, msgspec Struct or pydantic model is sent as JSON (property contentType).

        ``sharding_key``: the same key goes to the same queue, and one message of a key is sent at a time, so that the
        order of calls is the order stored. ``queue`` pins one queue, ``select(queues, message, arg)`` chooses the one
        to pin. ``delay_level`` 1 to 18 delivers later, ``at`` (a time with its zone) or ``after`` to the millisecond;
        ``recall(receipt.recall_handle)`` takes such a message back. ``timeout`` in seconds bounds the whole call,
        look-ups and retries included (default: ``ProducerConfig.send_timeout``).

        UsageError for what can never be sent, TopicNotFoundError when nobody has the topic, SendError otherwise.
        """
        if timeout is None:
            timeout = self.config.send_timeout
        elif not (isinstance(timeout, (float, int)) and timeout > 0):
            seconds(timeout)  # says what is wrong with it
        deadline = self._time() + timeout
        if _running_loop() is not self._loop:
            raise wrong_loop(self._lifecycle.what)
        sender, in_flight, flag, sys_flag, given_id = self.sender, self.sender.in_flight, 0, 0, None
        full = in_flight.count >= in_flight.most
        more = tag or keys or properties or delay_level or queue or sharding_key is not None
        special = select is not None or at is not None or after is not None or sender.steps
        if special or type(topic) is not str or type(body) is not bytes:
            message = as_message(topic, body, tag, keys, properties, sharding_key, delay_level, at, after)
            if sender.steps:
                return await send_through(sender, message, queue, select, arg, deadline)
            if select is not None:
                queue = await sender.select(message, queue, select, arg, timeout)
                timeout = max(0.001, deadline - self._time())
            if message.at is not None or message.after is not None:
                return await send_timed(sender, message, queue, deadline)
            topic, body, tag, keys = message.topic, message.body, message.tag, message.keys
            properties, delay_level, flag = message.properties, message.delay_level, message.flag
            sharding_key, given_id = message.sharding_key, message.msg_id
        elif not (more or full) and sender.plain and (begun := sender.plain(topic, body, timeout, deadline)):
            in_flight.count += 1
            try:
                end = await begun.future
                return end if type(end) is SendReceipt else await sender.not_plain(begun, body, end, deadline)
            finally:
                in_flight.count -= 1
                if in_flight.waited_for:
                    in_flight.ended()
        key = sharding_key if queue is None else None
        if key is not None:
            await sender.take_turn(topic, key, deadline)
            timeout = max(0.001, deadline - self._time())
        first: RemotingCommand | Exception | None = None
        try:
            publish = sender.opened.get(topic)
            if publish is None or in_flight.count >= in_flight.most:
                publish = await sender.admit(topic, timeout, in_turn=key is not None)
                timeout = max(0.001, deadline - self._time())
            born = self._wall_ms()
            msg_id = given_id or sender.next_id(born)
            if tag or keys or properties or sharding_key or delay_level or sender.system:
                text = property_text(msg_id, tag, keys, properties, sharding_key, delay_level, sender.system)
            else:
                text = _ID_BEGIN + msg_id + "\x02"
            if not 0 < len(body) < self.config.compress_over:
                body, sys_flag = sender.packed(body)
            in_flight.count += 1
            try:
                moves = sharding_key is None and queue is None
                target = publish.next() if moves else publish.target(queue, key)
                connection = self._live(target.address)
                if connection is not None and not publish.slow:
                    fields = (
                        self._wire_group, publish.name, AUTO_CREATE_TOPIC, 4, target.queue_id, sys_flag, born, flag,
                        text, 0, False, None, False, target.broker_name,
                    )  # fmt: skip
                    try:
                        if _post is None or (sent := _post(connection, _SEND, VERSION, fields, body, timeout)) is None:
                            sent = connection.request(_command(_header(fields), None, body), timeout)
                        first = await sent
                        if not first.code:
                            stored = first.read(SendMessageResponseHeader)
                            return _receipt((msg_id, target.queue, stored.queue_offset, stored.msg_id, _OK, None))
                    except (RocketError, ProtocolError) as error:
                        first = first or error  # an answer that cannot be read is one
                encoded = EncodedMessage(self._wire_group, publish.name, body, text, msg_id, sys_flag, flag, born)
                return await sender.attempts.run(publish, target, encoded, deadline, moves=moves, first=first)
            finally:
                in_flight.count -= 1
                if in_flight.waited_for:
                    in_flight.ended()
        finally:
            if key is not None:
                sender.end_turn(topic, key)

    async def recall(self, handle: str, *, timeout: float | None = None) -> str:
        """Take back a message sent with ``at`` or ``after``, by its receipt's ``recall_handle``: once this returns,
        with the message's id, it is not delivered. RemoteError when it was due, or its broker recalls nothing;
        NotConnectedError when that is away."""
        return await recall(self.sender, handle, timeout)

    async def send_oneway(
        self,
        topic: str | OutgoingMessage,
        body: Body | None = None,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: Queue | None = None,
        select: Selector | None = None,
        arg: Any = None,
        timeout: float | None = None,
    ) -> str:
        """Hand a message to the socket and return its id; nobody acknowledges it and nothing is retried.

        Waits only for the route, the connection, a peer that reads and, of a sharding key, for the sends before it.
        Arguments and errors as of ``send``; a message that is lost later is lost silently.
        """
        sender, flag, delay_level, given_id = self.sender, 0, 0, None
        deadline = sender.deadline(timeout)
        if sender.steps or select is not None or type(topic) is not str or type(body) is not bytes:
            message = as_message(topic, body, tag, keys, properties, sharding_key, 0)
            if sender.steps:
                return await send_oneway_through(sender, message, queue, select, arg, deadline)
            not_timed(message, "what nobody acknowledges")
            if select is not None:
                queue = await sender.select(message, queue, select, arg, deadline - self._time())
            topic, body, tag, keys = message.topic, message.body, message.tag, message.keys
            properties, delay_level, flag = message.properties, message.delay_level, message.flag
            sharding_key, given_id = message.sharding_key, message.msg_id
        body = as_bytes(body)
        key = sharding_key if queue is None else None
        if key is not None:
            await sender.take_turn(topic, key, deadline)
        try:
            left = deadline - self._time()
            publish = sender.opened.get(topic) or await sender.admit(topic, left, in_turn=key is not None)
            born = self._wall_ms()
            msg_id = given_id or sender.next_id(born)
            text = property_text(msg_id, tag, keys, properties, sharding_key, delay_level, sender.system)
            body, sys_flag = sender.packed(body)
            encoded = EncodedMessage(self._wire_group, publish.name, body, text, msg_id, sys_flag, flag, born)
            await sender.attempts.oneway(publish.target(queue, key), encoded, deadline)
        finally:
            if key is not None:
                sender.end_turn(topic, key)
        return msg_id

    async def send_batch(
        self, topic: str, messages: Iterable[Item], *, queue: Queue | None = None, timeout: float | None = None
    ) -> list[SendReceipt]:
        """Send several messages of one topic as one request: stored together, with consecutive offsets in one queue.

        ``messages`` are bodies or OutgoingMessages without delay. All together must fit ``max_message_size``. Their
        sharding keys, if any, must be the same, or ``queue`` given. Errors as of ``send``; a batch is stored whole or
        not at all.
        """
        return await send_batch(self.sender, topic, messages, queue, timeout)

    def send_many(
        self,
        topic: str,
        messages: Iterable[Item] | AsyncIterable[Item],
        *,
        sharding_key: str | Callable[[Any], str] | None = None,
        ordered: bool = False,
        in_flight: int = 256,
        timeout: float | None = None,
    ) -> AsyncIterator[SendOutcome]:
        """Send a stream, at most ``in_flight`` messages at a time, and give the outcome of each.

        Outcomes come as sends end, or in the order of ``messages`` with ``ordered=True``. A send that fails is an
        outcome with ``error``, it does not end the stream. Memory is bounded: taking outcomes is what keeps the
        stream going. ``sharding_key`` is the key of all, or says each message's: those of a key are stored in the
        order of ``messages``. When ``messages`` raises, the outcomes of all that it gave come first.
        """
        return send_many(self.send, topic, messages, sharding_key, ordered, in_flight, timeout)

    async def request(
        self,
        topic: str | OutgoingMessage,
        body: Body | None = None,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> Message:
        """Send a message and wait for the reply of whoever consumes it (``reply``), ``timeout`` seconds in all.

        RequestTimeoutError when the message was sent and no reply came; a reply that comes later is counted in
        ``late_replies``. Errors as of ``send`` when it was not sent.
        """
        message = as_message(topic, body, tag, keys, properties, sharding_key, 0)
        return await request(self.sender, self._requests, message, queue, timeout)

    async def reply(
        self,
        request: Message,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Answer a message that was sent by ``request``, through the broker it came from. Returns when the requester
        has the reply. SendError when it does not get it, because it has gone or is out of reach; UsageError for a
        message that asks for no reply."""
        await reply(self.sender, request, as_bytes(body), properties, timeout)

    def _check(self, connection: Connection, header: CheckTransactionStateRequestHeader, record: bytes) -> bool:
        """There are no transactions here; a TransactionProducer has some."""
        return False

    @property
    def late_replies(self) -> int:
        """Replies that came when nobody waited for them any more."""
        return self._requests.late


def _nothing() -> None:
    """There is nobody to be told."""


def _not_started() -> float:
    raise UsageError("this producer is not started: use 'async with' or await start() first")
