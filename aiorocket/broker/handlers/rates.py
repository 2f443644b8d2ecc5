"""Limits on what each topic may have a second (``BrokerConfig.rates``, or as changed since), around 10, 310 and 320.

A send above its topic's rate is answered SYSTEM_BUSY before anything is stored, with the words that Apache's broker has
for it, so clients try again later or at another broker. What is refused does not count. Retries and dead letters pass:
their messages did once, and consumers would have to keep what they cannot give back. Without a limit the handlers are
what they were.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from aiorocket.broker.answers import refuse
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.rates import Rate
from aiorocket.broker.core.topics import TopicTable
from aiorocket.remoting.rarely import Rarely
from aiorocket_protocol import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    decode_batch,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiorocket.broker.core.send_checks import SendHeader
    from aiorocket.config import RateLimits
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler

__all__ = ("SendRates",)

_log = logging.getLogger("aiorocket.broker")

#: Seconds between two warnings of one limit.
_WARN_EVERY = 60.0
_UNLIMITED = (RETRY_PREFIX, DLQ_PREFIX)

_HEADERS: dict[int, type[SendMessageRequestHeader] | type[SendMessageRequestHeaderV2]] = {
    RequestCode.SEND_MESSAGE: SendMessageRequestHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageRequestHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageRequestHeaderV2,
}


class SendRates:
    """The limits of sends, and what each topic has had; ``follow`` says them first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, topics: TopicTable) -> None:
        self._loop = loop
        self._topics = topics
        self._messages, self._bytes = Rate(0), Rate(0)
        #: Of those that there are: the setting, its unit, what is left of it, and how much of it one request takes.
        self._rates: list[tuple[str, str, Rate, Callable[[int, bytes, SendHeader], int]]] = []
        self._warnings = Rarely(_WARN_EVERY)

    def follow(self, limits: RateLimits) -> None:
        """These are the limits from now on; handlers are to be ``limited`` anew."""
        self._messages.change(limits.topic_messages)
        self._bytes.change(limits.topic_bytes)
        self._rates = [
            each
            for each in (
                ("topic_messages", "messages", self._messages, _messages),
                ("topic_bytes", "bytes", self._bytes, _bytes),
            )
            if each[2].per_second
        ]

    def limited(self, code: int, handler: RequestHandler) -> RequestHandler:
        """``handler`` of requests with ``code``, within the limits that it has."""
        header = _HEADERS.get(code)
        return handler if header is None or not self._rates else partial(self._send, handler, header)

    def _send(
        self,
        handler: RequestHandler,
        header_class: type[SendMessageRequestHeader] | type[SendMessageRequestHeaderV2],
        connection: Connection,
        command: RemotingCommand,
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        header: SendHeader = command.read(header_class)
        topic = header.topic
        if topic.startswith(_UNLIMITED):
            return handler(connection, command)
        now = self._loop.time()
        for setting, unit, rate, _ in self._rates:
            if wait := rate.wait(topic, now):
                remark = (
                    f"[OVERLOAD]system busy, start flow control for a while: topic {topic} may have "
                    f"{rate.per_second:g} {unit} a second at this broker (rates.{setting}), and has room for more in "
                    f"{wait:.3g} s"
                )
                if (unsaid := self._warnings.unsaid(setting, now)) is not None:
                    more = f" ({unsaid} more since the last such line)" if unsaid else ""
                    _log.warning("refused a send of %s: %s%s", connection.peer, remark, more)
                return refuse(Refusal(ResponseCode.SYSTEM_BUSY, remark))
        code, body = command.code, command.body
        answer = handler(connection, command)
        if answer is None and topic in self._topics:  # else it was refused
            for _, _, rate, measure in self._rates:
                rate.spend(topic, measure(code, body, header), now)
        return answer


def _messages(code: int, body: bytes, header: SendHeader) -> int:
    if header.batch or code == RequestCode.SEND_BATCH_MESSAGE:
        return len(decode_batch(body))
    return 1


def _bytes(code: int, body: bytes, header: SendHeader) -> int:
    return len(body) + len(header.properties or "")
