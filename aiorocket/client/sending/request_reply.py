"""Request and reply: a message that asks for an answer, and the answer on its way back to who asked.

The request is an ordinary message with a correlation id and the client id of the requester. The replier sends its
answer to a broker, which pushes it over the connection that the requester's heartbeat came over. Nothing of a reply is
promised: it is lost with the requester's connection, and then the request times out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from aiorocket.client.core.retry import STORED_CODES, judge, remote_error
from aiorocket.client.message import Message
from aiorocket.client.sending.around import around
from aiorocket.client.sending.outgoing import property_text
from aiorocket.client.sending.publish import Publish
from aiorocket.client.sending.sender import Sender, seconds
from aiorocket.client.sending.timed import not_timed
from aiorocket.client.session import Session
from aiorocket.errors import RequestTimeoutError, RocketError, SendError, UsageError
from aiorocket.model import OutgoingMessage, Queue
from aiorocket.runtime.deadlines import TimeoutQueue
from aiorocket.runtime.entropy import Entropy
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_MSG_TYPE,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TTL,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    SendMessageRequestHeaderV2,
    reply_topic,
)

__all__ = ("Requests", "reply", "request")

log = logging.getLogger("aiorocket.client")

#: Hex digits behind the prefix of a correlation id.
_NUMBER: Final = 16
_HEX: Final = frozenset("0123456789ABCDEF")
#: How long a request waits at most until the other brokers of its topic know the requester: a replier may answer
#: through any of them, but one that is down must not use up the request's time.
_INTRODUCTION: Final = 1.0
#: A wait that ends so many seconds before its timeout was not ended by it.
_EARLY: Final = 0.01


class Requests:
    """Who waits for which reply."""

    def __init__(self, entropy: Entropy) -> None:
        #: Tells this producer's correlation ids from those of others.
        self._prefix = entropy.token(8).hex().upper()
        self._count = 0
        self._waiting: dict[int, asyncio.Future[Message | None]] = {}
        self._timeouts: TimeoutQueue[None] | None = None
        #: Replies for which nobody waited any more.
        self.late = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def waiting(self, timeout: float) -> Iterator[tuple[str, asyncio.Future[Message | None]]]:
        """A correlation id and its reply's future, which has None as result when no reply came within ``timeout``
        seconds, or before ``close``."""
        number = self._count = self._count + 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message | None] = loop.create_future()
        self._waiting[number] = future
        if self._timeouts is None:
            self._timeouts = TimeoutQueue(loop, self._waiting, _expire)
        self._timeouts.add(timeout, number, None)
        try:
            yield f"{self._prefix}{number:0{_NUMBER}X}", future
        finally:
            self._waiting.pop(number, None)

    def complete(self, correlation_id: str, reply: Message) -> bool:
        """A reply has come. False when no request of this producer had that id."""
        number = correlation_id.removeprefix(self._prefix)
        if not (correlation_id.startswith(self._prefix) and len(number) == _NUMBER and _HEX.issuperset(number)):
            return False
        future = self._waiting.pop(int(number, 16), None)
        if future is None or future.done():
            self.late += 1
            log.info("the reply to request %s came too late", correlation_id)
        else:
            future.set_result(reply)
        return True

    def close(self) -> None:
        """No reply comes any more: who waits for one behind a stop that was cancelled waits no longer."""
        if self._timeouts is not None:
            self._timeouts.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)


def _expire(future: asyncio.Future[Message | None], what: None, timeout: float) -> None:
    future.set_result(None)


async def request(
    sender: Sender, requests: Requests, message: OutgoingMessage, queue: Queue | None, timeout: float | None
) -> Message:
    """See ``Producer.request``."""
    if not sender.steps:
        return await _request(sender, requests, message, queue, timeout)
    replies: list[Message] = []

    async def last(messages: list[OutgoingMessage]) -> tuple[()]:
        replies.append(await _request(sender, requests, messages[0], queue, timeout))
        return ()

    await around(sender.steps, [message], last)
    return replies[-1]


async def _request(
    sender: Sender, requests: Requests, message: OutgoingMessage, queue: Queue | None, timeout: float | None
) -> Message:
    not_timed(message, "a request")
    if message.delay_level:
        raise UsageError(f"delay_level={message.delay_level}: a request that is delivered later would only time out")
    timeout = sender.config.send_timeout if timeout is None else seconds(timeout)
    time = asyncio.get_running_loop().time
    deadline = time() + timeout
    key = message.sharding_key if queue is None else None
    with ExitStack() as ends:
        correlation_id, future = ends.enter_context(requests.waiting(timeout))
        try:
            async with sender.turn(message.topic, key, deadline):
                publish = await sender.open_topic(message.topic, deadline - time())
                sender.need_running()
                ends.enter_context(sender.in_flight)  # until the reply is here
                await _introduce(sender.client, publish, deadline)
                system = {
                    PROPERTY_CORRELATION_ID: correlation_id,
                    PROPERTY_REPLY_TO_CLIENT: sender.client.client_id,
                    PROPERTY_TTL: str(max(1, round(timeout * 1000))),
                }
                encoded = sender.encode(publish, message, system)
                receipt = await sender.place(publish, queue, key, encoded, deadline)
        except SendError as error:
            # The acknowledgement was lost; who answered has had the message all the same.
            if error.may_be_stored and future.done() and (answer := future.result()) is not None:
                return answer
            raise
        answer = await future
    if answer is None:
        why = f"no reply within {timeout:g} s" if deadline - time() < _EARLY else "its producer stopped before a reply"
        raise RequestTimeoutError(
            f"topic {message.topic!r}, request {receipt.msg_id}: {why}. It is stored, and its "
            "consumer may still work on it; a consumer answers with Producer.reply(message, body)"
        )
    return answer


async def _introduce(client: Session, publish: Publish, deadline: float) -> None:
    """See to it that the brokers of the topic know us before a reply can come to one of them."""
    strangers = sorted(address for address in publish.masters() if not client.registered(address))
    if strangers and client.started:  # else the send fails, and says why
        registering = [
            client.start_task(_register(client, address), name=f"register-{address}") for address in strangers
        ]
        left = deadline - client.loop.time()
        await asyncio.wait(registering, timeout=max(0.0, min(_INTRODUCTION, left / 2)))


async def _register(client: Session, address: str) -> None:
    try:
        await client.member_connection(address)
    except (RocketError, ProtocolError) as error:
        log.info("%s does not know this client, replies through it would be lost: %s", address, error)


async def reply(
    sender: Sender, request: Message, body: bytes, properties: Mapping[str, str] | None, timeout: float | None
) -> None:
    """See ``Producer.reply``. One attempt: the broker that has the request is most likely to know who sent it."""
    client = sender.client
    client.need_running()
    sender.need_running()
    timeout = sender.config.send_timeout if timeout is None else seconds(timeout)
    deadline = client.loop.time() + timeout
    given = request.properties
    cluster, correlation_id = given.get(PROPERTY_CLUSTER), given.get(PROPERTY_CORRELATION_ID)
    requester = given.get(PROPERTY_REPLY_TO_CLIENT)
    if not cluster or not correlation_id or not requester:
        raise UsageError(
            f"message {request.msg_id} of topic {request.topic!r} asks for no reply: it was not sent by "
            "Producer.request, or its broker did not add its cluster's name"
        )
    body, sys_flag = sender.packed(body)
    system: dict[str, str] = {
        PROPERTY_MSG_TYPE: "reply",
        PROPERTY_CORRELATION_ID: correlation_id,
        PROPERTY_REPLY_TO_CLIENT: requester,
    }
    if PROPERTY_TTL in given:
        system[PROPERTY_TTL] = given[PROPERTY_TTL]
    what = f"the reply to request {request.msg_id} of topic {request.topic!r}"
    try:
        async with asyncio.timeout_at(deadline):
            address = await _broker_of(client, request)
            connection = await client.connection(address, timeout)
            text = property_text(sender.next_ids(1)[0], "", (), properties, None, 0, system)
            header = SendMessageRequestHeaderV2(
                sender.wire_group, reply_topic(cluster), AUTO_CREATE_TOPIC, 4, 0, sys_flag,
                client.env.clock.wall_ms(), 0, text, 0, False, None, False, request.queue.broker_name,
            )  # fmt: skip
            command: RemotingCommand = RemotingCommand.request(RequestCode.SEND_REPLY_MESSAGE_V2, header, body=body)
            with sender.in_flight:
                left = max(0.001, deadline - client.loop.time())
                answer: RemotingCommand = await connection.request(command, left)
    except TimeoutError:
        raise SendError(f"{what}: no answer within {timeout:g} s", may_be_stored=True) from None
    except UsageError:
        raise
    except (RocketError, ProtocolError) as error:
        raise SendError(f"{what}: {error}", may_be_stored=judge(error).may_be_stored) from error
    if answer.code not in STORED_CODES:
        failed = remote_error(answer.code, answer.remark, request="SEND_REPLY_MESSAGE", address=address)
        raise SendError(f"{what}: {failed}", may_be_stored=judge(failed).may_be_stored) from failed


async def _broker_of(client: Session, request: Message) -> str:
    """The address of the broker that ``request`` came from: by the route, else the one in the record."""
    try:
        route = await client.route(request._wire_topic)
    except RocketError:
        return request.store_host
    return route.master(request.queue.broker_name) or request.store_host
