"""The plainest sends: in Python, or in compiled code where the fast lane is installed.

Of a body that is not compressed, to an opened topic, with nothing but an id among its properties, over a connection
that speaks msgpack, all that ``Producer.send`` and ``Connection.request`` do before the answer is one call, and so are
the answers that came behind each other: what is awaited is the receipt. ``Producer.send`` takes every other send.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from aiorocket.client.sending.plain_run import ProducerSends
from aiorocket.client.sending.publish import Publish, Target
from aiorocket.client.session import Session
from aiorocket.model import SendReceipt, SendStatus
from aiorocket.runtime.clock import WallClock
from aiorocket_protocol import AUTO_CREATE_TOPIC, VERSION, RemotingCommand, UniqueIds
from aiorocket_protocol.fast import compiled

__all__ = ("End", "HasIds", "PlainSend", "Sent", "plain_sends")

End = SendReceipt | RemotingCommand | Exception


class HasIds(Protocol):
    """Who knows the message ids once there is a connection."""

    @property
    def ids(self) -> UniqueIds: ...


class Sent(Protocol):
    """A plain send under way. ``future`` gets the receipt, and instead of it the answer where that is no plain success,
    or the error where there is none."""

    @property
    def future(self) -> asyncio.Future[End]: ...
    @property
    def publish(self) -> Publish: ...
    @property
    def target(self) -> Target: ...
    @property
    def msg_id(self) -> str: ...
    @property
    def born(self) -> int: ...


#: Begins a send of a body to a topic, with a timeout in seconds and its end in loop time; or answers None, and nothing
#: was done.
PlainSend = Callable[[str, bytes, float, float], Sent | None]


def plain_sends(
    sender: HasIds, *, group: str, client: Session, opened: dict[str, Publish], compress_over: int
) -> PlainSend:
    """The compiled way where there is one, unless a limit is over a machine's number. ``opened`` are the topics,
    ``group`` is the name on the wire."""
    made = compiled("ProducerSends")
    clock = client.env.clock
    shared: dict[str, Any] = {
        "opened": opened, "live": client.remoting.by_address, "compress_over": compress_over,
        "version": VERSION, "group": group, "default_topic": AUTO_CREATE_TOPIC, "queues": 4,
    }  # fmt: skip
    if made is None or compress_over > sys.maxsize:
        return ProducerSends(**shared, next_id=sender.ids.next, wall_ms=clock.wall_ms)
    plain: PlainSend = made(
        **shared,
        sender=sender,
        wall_ms=None if type(clock) is WallClock else clock.wall_ms,
        receipt=partial(tuple.__new__, SendReceipt),
        ok=SendStatus.SEND_OK,
    )
    return plain
