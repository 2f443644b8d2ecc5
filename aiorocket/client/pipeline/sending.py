"""For pipelines that make the property text of messages by themselves: requests to a topic that ``producer.sender`` has
opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.client.sending.outgoing import EncodedMessage, as_message, property_text, squeeze
from aiorocket.client.sending.publish import Publish
from aiorocket.client.sending.timed import need_timers
from aiorocket.errors import UsageError
from aiorocket.model import Queue, SendReceipt
from aiorocket_protocol import PROPERTY_UNIQ_KEY, PROPERTY_WAIT, encode_batch

if TYPE_CHECKING:
    from aiorocket.client.sending.sender import Sender

__all__ = ("Prepared", "Publish", "as_message", "need_timers", "property_text", "send_prepared")

_ID = f"{PROPERTY_UNIQ_KEY}\x01"


class Prepared(NamedTuple):
    """``properties`` is what ``property_text`` gives, without the message id in front."""

    body: bytes
    properties: str


async def send_prepared(
    sender: Sender,
    publish: Publish,
    messages: Sequence[Prepared],
    queue: Queue | None,
    deadline: float,
    *,
    sys_flag: int = 0,
    compress_over: int,
) -> SendReceipt:
    """Send ``messages`` in one request, each with an id of its own: to ``queue``, or to the next of ``publish``.

    One goes by itself, its body compressed from ``compress_over`` bytes on and with ``sys_flag``; several go as a
    batch, as they are. The receipt is that of the first. Errors are those of ``Producer.send``."""
    ids = sender.next_ids(len(messages))
    born = sender.client.env.clock.wall_ms()
    system = "".join([f"{name}\x01{value}\x02" for name, value in sender.system.items()])
    if len(messages) > 1:
        items = [
            (body, 0, f"{_ID}{msg_id}\x02{properties}{system}".encode())
            for (body, properties), msg_id in zip(messages, ids, strict=True)
        ]
        encoded = EncodedMessage(
            sender.wire_group, publish.name, encode_batch(items), f"{PROPERTY_WAIT}\x01true\x02", ids[0], 0, 0, born,
            batch=True,
        )  # fmt: skip
    else:
        [(body, properties)] = messages
        text = f"{_ID}{ids[0]}\x02{properties}{system}"
        if len(body) >= compress_over:
            body, bits = squeeze(body, sender.config.compress_level)
            sys_flag |= bits
        if len(body) > sender.config.max_message_size:
            raise UsageError(f"the body has {len(body)} bytes, {sender.config.max_message_size} is the limit")
        encoded = EncodedMessage(sender.wire_group, publish.name, body, text, ids[0], sys_flag, 0, born)
    with sender.in_flight:
        return await sender.place(publish, queue, None, encoded, deadline)
