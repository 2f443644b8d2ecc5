"""Messages that are delivered at a time of their own, and their recall."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

from aiorocket.client.core.namespace import unwrap
from aiorocket.errors import ConnectionLostError, NotConnectedError, RequestTimeoutError, SendError, UsageError
from aiorocket.model import OutgoingMessage, Queue, SendReceipt
from aiorocket_protocol import (
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELIVER_MS,
    VERSION_WITH_TIMERS,
    ProtocolError,
    RecallHandle,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    RequestCode,
)

if TYPE_CHECKING:
    from aiorocket.client.sending.publish import Publish
    from aiorocket.client.sending.sender import Sender

__all__ = ("need_timers", "not_timed", "recall", "send_timed")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_FIRST_PAUSE = 0.05


def not_timed(message: OutgoingMessage, what: str) -> None:
    """UsageError for a message with ``at`` or ``after``, which ``what`` cannot have."""
    if message.at is not None or message.after is not None:
        raise UsageError(f"at={message.at}, after={message.after}: {what} is delivered at once")


def _timer(message: OutgoingMessage) -> dict[str, str]:
    """The property that says when; parts of a millisecond are rounded up, so that nothing comes early."""
    if message.delay_level or (message.at is not None and message.after is not None):
        _one_of(message)
    if message.at is not None:
        if not isinstance(message.at, datetime) or message.at.utcoffset() is None:
            raise UsageError(f"at={message.at}: a time with its zone is needed, such as datetime.now(UTC) + ...")
        return {PROPERTY_TIMER_DELIVER_MS: str(-((_EPOCH - message.at) // _MS))}
    if not isinstance(message.after, timedelta) or message.after < timedelta(0):
        raise UsageError(f"after={message.after}: a timedelta of 0 or more is needed, such as timedelta(seconds=5)")
    return {PROPERTY_TIMER_DELAY_MS: str(-(-message.after // _MS))}


def _one_of(message: OutgoingMessage) -> NoReturn:
    raise UsageError(
        f"at={message.at}, after={message.after}, delay_level={message.delay_level}: one of them, each says when"
    )


async def send_timed(sender: Sender, message: OutgoingMessage, queue: Queue | None, deadline: float) -> SendReceipt:
    """See ``Producer.send``, of a message with ``at`` or ``after``."""
    system = _timer(message)
    time = asyncio.get_running_loop().time
    publish = await sender.open_topic(message.topic, deadline - time())
    pause, trouble = _FIRST_PAUSE, ""
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                try:
                    await need_timers(sender, publish, deadline - time())
                    break
                except (NotConnectedError, ConnectionLostError, RequestTimeoutError) as error:
                    # Brokers come back; the time of this send is there to wait for them.
                    trouble = str(error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, 1.0)
    except TimeoutError:
        text = f"topic {message.topic!r}: whether its brokers know timer messages is not known in time. {trouble}"
        raise SendError(text, may_be_stored=False) from None
    return await sender.send(message, deadline, queue=queue, system=system)


async def need_timers(sender: Sender, publish: Publish, timeout: float) -> None:
    """UsageError unless every broker of the topic knows timer messages; one that has them switched off says so itself.
    NotConnectedError when one cannot be asked."""
    for address in sorted(publish.masters()):
        connection = await sender.client.member_connection(address, timeout)
        version = sender.client.broker_version(connection)
        if version < VERSION_WITH_TIMERS:
            raise UsageError(
                f"broker {address} has version {version}, timer messages came with 5.0.0 ({VERSION_WITH_TIMERS}): it "
                "would deliver at once. Use a delay level"
            )


async def recall(sender: Sender, handle: str, timeout: float | None) -> str:
    """See ``Producer.recall``."""
    deadline = sender.deadline(timeout)
    time = asyncio.get_running_loop().time
    try:
        named = RecallHandle.parse(handle)
    except ProtocolError as error:
        raise UsageError(f"a receipt's recall_handle is needed: {error}") from error
    publish = await sender.open_topic(unwrap(sender.client.config.namespace, named.topic), deadline - time())
    address = next((t.address for t in publish.choice.queues if t.queue.broker_name == named.broker_name), "")
    if not address:
        raise NotConnectedError(f"broker {named.broker_name!r}, which has the message, has no master just now")
    header = RecallMessageRequestHeader(named.topic, handle, sender.wire_group)
    answer = await sender.client.call(
        address, RequestCode.RECALL_MESSAGE, header, timeout=max(0.001, deadline - time())
    )
    return answer.read(RecallMessageResponseHeader).msg_id
