"""The answers to plain sends in Python, as many in one go as came behind each other: what compiled code does if there
is any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_type_hints

from aiorocket.model import SendReceipt, SendStatus
from aiorocket_protocol import MSGPACK, SendMessageResponseHeader
from aiorocket_protocol.compiled import Int32, Language, Version, header_decoder

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection, Frame

__all__ = ("Sent", "take_answers")

_HINTS = get_type_hints(SendMessageResponseHeader, include_extras=True)
_TYPES: Any = tuple([_HINTS[name] for name in SendMessageResponseHeader._fields])
#: A plain success, without undeclared fields.
_open = header_decoder(tuple[Literal[0], Literal[1], Int32, Version, Language, str | None, tuple[_TYPES]])
_OK = SendStatus.SEND_OK
_receipt: Callable[[tuple[object, ...]], SendReceipt] = partial(tuple.__new__, SendReceipt)


class Sent(NamedTuple):
    """A plain send under way. To its connection it is the future of the answer; ``future`` gets the receipt of a plain
    one, else the answer, or the error there was instead."""

    future: asyncio.Future[Any]
    publish: Any
    target: Any
    msg_id: str
    born: int

    def done(self) -> bool:
        return self.future.done()

    def set_result(self, result: object) -> None:
        self.future.set_result(result)

    def set_exception(self, error: Exception) -> None:
        """Who awaits it looks at errors anyway, and one that nobody awaits is no news."""
        self.future.set_result(error)


def take_answers(connection: Connection, frames: list[Frame]) -> bool:
    """Takes off ``frames``, the next of which stands last, the plain answers to plain sends; whether there were any."""
    if connection._peer_type != MSGPACK:
        return False
    requests: dict[int, Any] = connection._requests
    taken = 0
    for kind, header, body in reversed(frames):
        if body or kind != MSGPACK:
            break
        try:
            _, _, opaque, _, _, _, (stored_id, _, offset, _, _, _, _, _) = _open(header)
        except ValueError:
            break
        sent = requests.get(opaque)
        if type(sent) is not Sent:
            break
        future, _, target, msg_id, _ = sent
        receipt = _receipt((msg_id, target.queue, offset, stored_id, _OK, None))
        # Not before there is a result: the end of the connection is that of whatever waits in there.
        del requests[opaque]
        taken += 1
        if not future.done():
            future.set_result(receipt)
    if taken:
        del frames[-taken:]
    return taken > 0
