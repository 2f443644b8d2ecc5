"""Many messages by one call: a batch in one request, or a stream with a bounded number in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, cast

from aiorocket.client.core.typed_body import Body
from aiorocket.client.sending.around import around
from aiorocket.client.sending.outgoing import EncodedMessage, as_message, property_text
from aiorocket.client.sending.sender import Sender, seconds
from aiorocket.client.sending.timed import not_timed
from aiorocket.errors import RocketError, UsageError
from aiorocket.model import OutgoingMessage, Queue, SendReceipt
from aiorocket.runtime.tasks import TaskScope
from aiorocket_protocol import (
    BATCH_ITEM_OVERHEAD,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    BatchItem,
    encode_batch,
    encode_bodies,
)

__all__ = ("Item", "SendOutcome", "send_batch", "send_many")

#: A body, or a whole message.
Item = Body | OutgoingMessage

_receipt: Callable[[tuple[object, ...]], SendReceipt] = partial(tuple.__new__, SendReceipt)
_BYTES = frozenset((bytes,))
#: Bytes in a batch of a message with nothing but a body and an id, beside these.
_BARE = BATCH_ITEM_OVERHEAD + len(PROPERTY_UNIQ_KEY) + 2
_CANCELLED = "what gives the messages, or a middleware, ended with CancelledError"


class SendOutcome(NamedTuple):
    """How one message of ``send_many`` ended: ``number`` counts from 0, one of ``receipt`` and ``error`` is set."""

    number: int
    message: Item
    receipt: SendReceipt | None
    error: RocketError | None


async def send_batch(
    sender: Sender, topic: str, messages: Iterable[Item], queue: Queue | None, timeout: float | None
) -> list[SendReceipt]:
    """See ``Producer.send_batch``."""
    timeout = sender.config.send_timeout if timeout is None else seconds(timeout)
    deadline = asyncio.get_running_loop().time() + timeout
    try:
        messages = list(messages)
    except TypeError:
        if isinstance(messages, Iterable):
            raise  # what makes them failed
        raise UsageError(
            f"a batch is several bodies or OutgoingMessages, not {type(messages).__name__}: put it into [...]"
        ) from None
    if not sender.steps and _BYTES.issuperset(map(type, messages)):
        return await _send_batch(sender, topic, cast("list[bytes]", messages), queue, deadline, bare=True)
    ready = [each if type(each) is bytes else _whole(topic, each, number) for number, each in enumerate(messages)]
    if sender.steps:
        return await _through(sender, topic, ready, queue, deadline)
    return await _in_turn(sender, topic, ready, queue, deadline)


def _whole(topic: str, item: Item, number: int) -> OutgoingMessage:
    if isinstance(item, OutgoingMessage) and type(item.body) is bytes:
        return item
    try:
        return as_message(item, None) if isinstance(item, OutgoingMessage) else as_message(topic, item)
    except UsageError as error:
        raise UsageError(f"message {number} of the batch: {error}") from error


async def _through(
    sender: Sender, topic: str, messages: list[bytes | OutgoingMessage], queue: Queue | None, deadline: float
) -> list[SendReceipt]:
    async def last(messages: Sequence[bytes | OutgoingMessage]) -> list[SendReceipt]:
        return await _in_turn(sender, topic, messages, queue, deadline)

    whole = [OutgoingMessage(topic=topic, body=each) if isinstance(each, bytes) else each for each in messages]
    return await around(sender.steps, whole, last) if whole else []


async def _in_turn(
    sender: Sender, topic: str, messages: Sequence[bytes | OutgoingMessage], queue: Queue | None, deadline: float
) -> list[SendReceipt]:
    # All have the key of the first, or are refused.
    first = messages[0] if messages and queue is None else None
    key = first.sharding_key if isinstance(first, OutgoingMessage) else None
    if key is None:
        return await _send_batch(sender, topic, messages, queue, deadline)
    async with sender.turn(topic, key, deadline):
        return await _send_batch(sender, topic, messages, queue, deadline)


async def _send_batch(
    sender: Sender,
    topic: str,
    messages: Sequence[bytes | OutgoingMessage],
    queue: Queue | None,
    deadline: float,
    *,
    bare: bool = False,
) -> list[SendReceipt]:
    """``bare``: all of them are bytes."""
    publish = await sender.open_topic(topic, max(0.001, deadline - asyncio.get_running_loop().time()))
    ids = sender.next_ids(len(messages))
    if not ids:
        return []
    sharding_key: str | None = None
    if bare and not sender.system and all(messages):
        bodies = cast("list[bytes]", messages)
        _check_size(sender, sum(map(len, bodies)) + len(ids) * (_BARE + len(ids[0])))
        batch = encode_bodies(bodies, ids)
    else:
        items, sharding_key, keyed = _items(topic, messages, ids, sender.system)
        _check_size(sender, sum([BATCH_ITEM_OVERHEAD + len(body) + len(properties) for body, _, properties in items]))
        batch = encode_batch(items)
        if queue is None and sharding_key is not None and keyed < len(items):
            raise UsageError(
                "the messages of the batch have different sharding keys, and a batch goes to one queue: a batch for "
                "each key, or queue="
            )
    born = sender.client.env.clock.wall_ms()
    wait = f"{PROPERTY_WAIT}\x01true\x02"
    encoded = EncodedMessage(sender.wire_group, publish.name, batch, wait, ids[0], 0, 0, born, batch=True)
    with sender.in_flight:
        first = await sender.place(publish, queue, sharding_key, encoded, deadline)
    offset_ids = first.offset_msg_id.split(",")
    if len(offset_ids) != len(ids):
        # Apache's brokers with batch queues answer with one id for all.
        offset_ids = [offset_ids[0]] * len(ids)
    _, queue, offset, _, status, _ = first
    places = range(offset, offset + len(ids))
    return list(map(_receipt, zip(ids, repeat(queue), places, offset_ids, repeat(status), repeat(None))))


def _items(
    topic: str, messages: Sequence[bytes | OutgoingMessage], ids: list[str], system: Mapping[str, str]
) -> tuple[list[BatchItem], str | None, int]:
    """What the batch is made of, the first sharding key in it and how many have that."""
    items: list[BatchItem] = []
    keyed = 0
    sharding_key: str | None = None
    for msg_id, message in zip(ids, messages, strict=True):
        if isinstance(message, bytes):
            body, flag = message, 0
            text = property_text(msg_id, "", (), None, None, 0, system)
        else:
            not_timed(message, "a message of a batch")
            if message.topic != topic or message.delay_level or message.msg_id is not None:
                raise UsageError(f"message {len(items)} of the batch: topic {topic!r}, delay_level 0, no msg_id needed")
            body, flag, key = message.body, message.flag, message.sharding_key
            if key is not None and (not keyed or key == sharding_key):
                keyed, sharding_key = keyed + 1, key
            text = property_text(msg_id, message.tag, message.keys, message.properties, key, 0, system)
        if not body:
            raise UsageError(f"message {len(items)} of the batch has an empty body")
        items.append((body, flag, text.encode()))
    return items, sharding_key, keyed


def _check_size(sender: Sender, size: int) -> None:
    if size > (limit := sender.config.max_message_size):
        raise UsageError(f"the batch takes {size} bytes, max_message_size is {limit}: send fewer at once")


async def send_many(
    send: Callable[..., Awaitable[SendReceipt]],
    topic: str,
    messages: Iterable[Item] | AsyncIterable[Item],
    sharding_key: str | Callable[[Any], str] | None,
    ordered: bool,
    in_flight: int,
    timeout: float | None,
) -> AsyncIterator[SendOutcome]:
    """See ``Producer.send_many``; ``send`` is ``Producer.send``. A fixed number of tasks share the source, so no
    message costs one."""
    if in_flight < 1:
        raise UsageError(f"in_flight={in_flight}: 1 or more")
    source = _Source(messages)
    ready: deque[SendOutcome] = deque()
    early: dict[int, SendOutcome] = {}
    changed = asyncio.Event()
    room = asyncio.Event()
    due = 0
    key_of = sharding_key if callable(sharding_key) else None
    key = None if callable(sharding_key) else sharding_key
    crashed: list[BaseException] = []
    lost: set[int] = set()

    async def sender() -> None:
        while True:
            taken = await source.next()
            if taken is None:
                return
            index, message = taken
            receipt, error = None, None
            try:
                mine = key if key_of is None else key_of(message)
                if isinstance(message, OutgoingMessage):
                    receipt = await send(message, sharding_key=mine, timeout=timeout)
                else:
                    receipt = await send(topic, message, sharding_key=mine, timeout=timeout)
            except RocketError as failed:
                error = failed
            except asyncio.CancelledError:
                lost.add(index)
                raise
            outcome = SendOutcome(index, message, receipt, error)
            if ordered:
                early[index] = outcome
            else:
                ready.append(outcome)
            changed.set()
            # A consumer of outcomes that stops taking them stops the senders too.
            while len(ready) + len(early) >= 2 * in_flight and not (ordered and due in early):
                room.clear()
                await room.wait()

    def crash(_: object, error: BaseException) -> None:
        crashed.append(error)
        changed.set()

    async with TaskScope("send_many", on_crash=crash) as scope:
        tasks = [scope.start(sender(), name=str(number)) for number in range(in_flight)]
        for task in tasks:
            task.add_done_callback(lambda _: changed.set())
        while True:
            while ordered and due in early:
                ready.append(early.pop(due))
                due += 1
            if ready:
                yield ready.popleft()
                if not room.is_set():
                    room.set()
                continue
            if crashed:
                raise crashed[0]
            if all(task.done() for task in tasks):
                if source.failed is not None:
                    raise source.failed
                if any(task.cancelled() for task in tasks):  # not by us, who are still here
                    raise RuntimeError(_CANCELLED)
                return
            if ordered and due in lost:  # the others wait for it to be taken
                raise RuntimeError(_CANCELLED)
            room.set()
            changed.clear()
            await changed.wait()


class _Source:
    """The messages with their numbers, for several takers; an async source is asked by one at a time. One that
    ``failed`` has ended: what was taken from it is sent all the same."""

    def __init__(self, messages: Iterable[Item] | AsyncIterable[Item]) -> None:
        self.failed: Exception | None = None
        self._index = 0
        self._ended = False
        self._sync = iter(messages) if isinstance(messages, Iterable) else None
        self._async = None if isinstance(messages, Iterable) else aiter(messages)
        self._asking = asyncio.Lock()

    async def next(self) -> tuple[int, Item] | None:
        try:
            if self._sync is not None:
                for message in () if self._ended else self._sync:
                    return self._numbered(message)
            else:
                assert self._async is not None
                async with self._asking:
                    if not self._ended:
                        return self._numbered(await anext(self._async))
        except StopAsyncIteration:
            pass
        except Exception as error:  # noqa: BLE001 - whatever the application raises: told when all was sent
            self.failed = error
        self._ended = True
        return None

    def _numbered(self, message: Item) -> tuple[int, Item]:
        index = self._index
        self._index += 1
        return index, message
