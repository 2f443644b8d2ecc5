"""Sending. ``send`` is the hot path: one coroutine frame, no task, no timer; everything rare is in ``attempts``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from aiorocket.client.core.lifecycle import State
from aiorocket.client.message import Message
from aiorocket.client.sending.attempts import Letter
from aiorocket.client.sending.bulk import Item, SendOutcome, send_batch, send_many
from aiorocket.client.sending.outgoing import property_text
from aiorocket.client.sending.posting import ONE_OR_THE_OTHER, Posting, Selector, as_bytes, as_message
from aiorocket.client.sending.request_reply import Requests, reply, request
from aiorocket.client.sending.send_hooks import SendHook
from aiorocket.client.session import Session
from aiorocket.config import ProducerConfig
from aiorocket.errors import RocketError, SendError, UsageError
from aiorocket.model import OutgoingMessage, Queue, SendReceipt, SendStatus, check_group
from aiorocket.remoting.connection import Connection
from aiorocket.runtime.env import Env
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

__all__ = ("Producer",)

_SEND = int(RequestCode.SEND_MESSAGE_V2)
_OK = SendStatus.SEND_OK
_ID_BEGIN = PROPERTY_UNIQ_KEY + "\x01"
# A NamedTuple's own constructor is a Python function; this is half its price, twice per message.
_header: Callable[[tuple[object, ...]], SendMessageRequestHeaderV2] = partial(tuple.__new__, SendMessageRequestHeaderV2)
_receipt: Callable[[tuple[object, ...]], SendReceipt] = partial(tuple.__new__, SendReceipt)


class Producer(Posting):
    """Sends messages. ``group`` names the application to brokers and tools; ``nameservers`` makes a private ``Client``,
    ``client`` shares one. Start it by ``async with`` or ``start()``; it is used once.

    Every send ends within its timeout, in a receipt or in SendError, whose ``may_be_stored`` says whether a broker
    may have the message all the same. Messages without a sharding key or a pinned queue are retried on another queue
    or broker. ``hooks`` are called around every attempt to send.
    """

    client: Session

    def __init__(
        self,
        group: str,
        *,
        nameservers: str | Sequence[str] | None = None,
        client: Session | None = None,
        config: ProducerConfig | None = None,
        env: Env | None = None,
        hooks: Iterable[SendHook] = (),
    ) -> None:
        if client is not None and (nameservers is not None or env is not None):
            raise UsageError("a Producer takes either client= or nameservers= and env=: the client has them already")
        check_group(group)
        self._own_client = client is None
        client = client or Session(nameservers=nameservers, env=env)
        super().__init__(group, client, config or ProducerConfig(), hooks)
        self._ended = asyncio.Event()

    # -- life --

    async def start(self) -> None:
        """Register the group. Name servers and brokers are asked at the first send to a topic."""
        self._check_compression()
        self._lifecycle.move("start")
        try:
            if self._own_client:
                await self.client.start()
            self.client.need_running()
            self.client.add_producer(self.wire_group, self)
        except BaseException:
            self._lifecycle.move("stop")
            if self._own_client:
                await self.client.stop()
            self._lifecycle.move("stopped")
            self._ended.set()
            raise
        self._begin()
        self._live = self.client.remoting.live
        self._requests = Requests(self._loop, self.client.env.entropy.token(8))
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
            self._publish.clear()  # so that a later send looks at the lifecycle
            try:
                await self.client.remove_producer(self.wire_group)
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def flush(self) -> None:
        """Return when no send is under way: each ends within its timeout, one way or the other."""
        if self._in_flight or self._attempts.turns:
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
        select: Selector | None = None,
        arg: Any = None,
        delay_level: int = 0,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send one message and wait for the broker's acknowledgement.

        ``sharding_key``: the same key goes to the same queue, and one message of a key is sent at a time, so that the
        order of calls is the order stored. ``queue`` pins one queue, ``select(queues, message, arg)`` chooses the one
        to pin. ``delay_level`` 1 to 18 delivers later. ``timeout`` in seconds bounds the whole call, look-ups and
        retries included (default: ``ProducerConfig.send_timeout``).

        UsageError for arguments that can never be sent, TopicNotFoundError when the name servers say that nobody has
        the topic, SendError otherwise.
        """
        if select is not None:
            message = as_message(topic, body, tag, keys, properties, sharding_key, delay_level)
            queue, left = await self._select(message, queue, select, arg, timeout)
            return await self.send(message, queue=queue, timeout=left)
        flag = 0
        if type(topic) is not str:
            if body is not None or tag or keys or properties or delay_level or not isinstance(topic, OutgoingMessage):
                raise UsageError(ONE_OR_THE_OTHER)
            tag, keys, properties = topic.tag, topic.keys, topic.properties
            delay_level, flag = topic.delay_level, topic.flag
            if topic.sharding_key is not None:
                sharding_key = topic.sharding_key
            body, topic = topic.body, topic.topic
        if type(body) is not bytes:
            body = as_bytes(body)
        if timeout is None:
            timeout = self.config.send_timeout
        deadline = self._time() + timeout
        if sharding_key is not None and queue is None:
            return await self._send_in_turn(
                topic, body, tag, keys, properties, sharding_key, delay_level, flag, deadline
            )
        publish = self._publish.get(topic)
        if publish is None or self._in_flight >= self.config.max_in_flight:
            publish = await self._admit(topic, timeout)
            timeout = max(0.001, deadline - self._time())
        born = self._wall_ms()
        msg_id = self._ids.next(born)  # type: ignore[union-attr]  # set with the first topic
        if tag or keys or properties or sharding_key or delay_level or self.system:
            text = property_text(msg_id, tag, keys, properties, sharding_key, delay_level, self.system)
        else:
            text = _ID_BEGIN + msg_id + "\x02"
        sys_flag = 0
        if len(body) >= self.config.compress_over:
            body, sys_flag = self._fit(body)
        elif not body:
            raise UsageError("an empty body: RocketMQ's brokers and clients refuse it, send at least one byte")
        self._in_flight += 1
        try:
            if queue is not None:
                letter = Letter(publish.name, body, text, msg_id, sys_flag, flag, born, group=self.wire_group)
                return await self._attempts.pinned(publish, queue, letter, deadline)
            target = publish.next()
            connection = self._live(target.address)
            if connection is None or publish.slow:
                letter = Letter(publish.name, body, text, msg_id, sys_flag, flag, born, group=self.wire_group)
                return await self._attempts.run(publish, target, letter, deadline)
            header = _header(
                (self.wire_group, publish.name, AUTO_CREATE_TOPIC, 4, target.queue_id, sys_flag, born, flag, text,
                 0, False, None, False, target.broker_name)
            )  # fmt: skip
            try:
                answer = await connection.request(
                    RemotingCommand(_SEND, 0, 0, LANGUAGE_PYTHON, VERSION, None, None, header, None, body), timeout
                )
            except (RocketError, ProtocolError) as error:
                letter = Letter(publish.name, body, text, msg_id, sys_flag, flag, born, group=self.wire_group)
                return await self._attempts.after(error, publish, target, letter, deadline)
            if answer.code:
                letter = Letter(publish.name, body, text, msg_id, sys_flag, flag, born, group=self.wire_group)
                return await self._attempts.judge_answer(answer, publish, target, letter, deadline)
            stored = answer.read(SendMessageResponseHeader)
            return _receipt((msg_id, target.queue, stored.queue_offset, stored.msg_id, _OK))
        except ProtocolError as error:
            raise SendError(f"topic {topic!r}: the answer cannot be read: {error}", may_be_stored=True) from error
        finally:
            self._in_flight -= 1
            if self._room or self._idle:
                self._make_room()

    async def _send_in_turn(
        self,
        topic: str,
        body: bytes,
        tag: str,
        keys: Sequence[str],
        properties: Mapping[str, str] | None,
        sharding_key: str,
        delay_level: int,
        flag: int,
        deadline: float,
    ) -> SendReceipt:
        """``send`` with a key: its place among those of the key counts from the call, see ``turn``."""
        name = await self._take_turn(topic, sharding_key, deadline)
        try:
            publish = self._publish.get(topic)
            if publish is None or self._in_flight >= self.config.max_in_flight:
                publish = await self._let_in(topic, max(0.001, deadline - self._time()))
            born = self._wall_ms()
            msg_id = self._ids.next(born)  # type: ignore[union-attr]  # set with the first topic
            text = property_text(msg_id, tag, keys, properties, sharding_key, delay_level, self.system)
            if not body:
                raise UsageError("an empty body: RocketMQ's brokers and clients refuse it, send at least one byte")
            body, sys_flag = self.packed(body)
            letter = Letter(publish.name, body, text, msg_id, sys_flag, flag, born, group=self.wire_group)
            with self.counted():
                return await self._attempts.in_turn(publish, sharding_key, letter, deadline)
        except ProtocolError as error:
            raise SendError(f"topic {topic!r}: the answer cannot be read: {error}", may_be_stored=True) from error
        finally:
            self._end_turn(name, sharding_key)

    async def send_oneway(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
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
        if select is not None:
            topic = as_message(topic, body, tag, keys, properties, sharding_key, 0)
            queue, timeout = await self._select(topic, queue, select, arg, timeout)
            body, tag, keys, properties = None, "", (), None
        flag, delay_level = 0, 0
        if not isinstance(topic, str):
            if body is not None or tag or keys or properties:
                raise UsageError(ONE_OR_THE_OTHER)
            tag, keys, properties = topic.tag, topic.keys, topic.properties
            delay_level, flag = topic.delay_level, topic.flag
            if topic.sharding_key is not None:
                sharding_key = topic.sharding_key
            body, topic = topic.body, topic.topic
        body = as_bytes(body)
        if not body:
            raise UsageError("an empty body: RocketMQ's brokers and clients refuse it, send at least one byte")
        timeout = self.config.send_timeout if timeout is None else timeout
        deadline = self._time() + timeout
        key = sharding_key if queue is None else None
        name = "" if key is None else await self._take_turn(topic, key, deadline)
        try:
            publish = self._publish.get(topic) or await self._admit(topic, max(0.001, deadline - self._time()))
            born = self._wall_ms()
            msg_id = self._ids.next(born)  # type: ignore[union-attr]  # set with the first topic
            text = property_text(msg_id, tag, keys, properties, sharding_key, delay_level, self.system)
            body, sys_flag = self._fit(body) if len(body) >= self.config.compress_over else (body, 0)
            letter = Letter(publish.name, body, text, msg_id, sys_flag, flag, born, group=self.wire_group)
            if queue is not None:
                target = publish.pinned(queue)
            else:
                target = publish.next() if key is None else publish.choice.by_key(key)
            await self._attempts.oneway(target, letter, deadline)
        finally:
            if key is not None:
                self._end_turn(name, key)
        return msg_id

    async def send_batch(
        self, topic: str, messages: Iterable[Item], *, queue: Queue | None = None, timeout: float | None = None
    ) -> list[SendReceipt]:
        """Send several messages of one topic as one request: stored together, with consecutive offsets in one queue.

        ``messages`` are bodies or OutgoingMessages without delay. All together must fit ``max_message_size``. Their
        sharding keys, if any, must be the same, or ``queue`` given. Errors as of ``send``; a batch is stored whole or
        not at all.
        """
        return await send_batch(self, topic, messages, queue, timeout)

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
        order of ``messages``.
        """
        return send_many(self, topic, messages, sharding_key, ordered, in_flight, timeout)

    async def request(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
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
        return await request(self, message, queue, timeout)

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
        await reply(self, request, as_bytes(body), properties, timeout)

    # -- what brokers ask --

    def check(self, connection: Connection, header: CheckTransactionStateRequestHeader, record: bytes) -> bool:
        """There are no transactions here; a TransactionProducer has some."""
        return False

    def take_reply(self, correlation_id: str, reply: Message) -> bool:
        """A reply has come (326). False when no request of this producer had that id."""
        return self._requests.complete(correlation_id, reply)

    @property
    def requests(self) -> Requests:
        """Who waits for a reply."""
        return self._requests

    @property
    def late_replies(self) -> int:
        """Replies that came when nobody waited for them any more."""
        return self._requests.late
