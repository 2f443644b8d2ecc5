"""What an exactly-once sink has decided: which attempts of which batch are the ones that count.

The ledger is a topic with one queue. An entry names a query, a batch of it, and the task attempts whose half messages
are to be delivered; a mark says that they have been. Entries are only ever added, and the first one of a batch wins, so
whoever reads far enough comes to the same decision: a driver that writes, one that was restarted, a second one that
should not be there, and everybody whom a broker asks about a half message.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from aiorocket.client.pipeline.reading import QueueScan, wrap
from aiorocket.errors import (
    BrokerBusyError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    SendError,
    TopicNotFoundError,
    UsageError,
)
from aiorocket.model import OutgoingMessage, Queue, SendStatus, TxState
from aiorocket_protocol import AUTO_CREATE_TOPIC, PROPERTY_UNIQ_KEY, RecordView, RequestCode, SendMessageRequestHeaderV2

if TYPE_CHECKING:
    from aiorocket import Producer
    from aiorocket.client.pipeline.reading import Session, TopicRoute

__all__ = ("Entry", "Fold", "Ledger", "Mark", "Record", "decode", "encode", "lower_bound", "search")

_log = logging.getLogger(__name__)

_VERSION = 1
#: Records read at a time when a query's entries are looked for from the end.
_PAGE = 256
#: Batches whose decision is remembered.
_REMEMBERED = 1024
#: How long a broker that is away is waited for when the ledger is read, and how often it is tried.
_PATIENCE = 10.0
_PAUSE = 0.1
_LATER = (NotConnectedError, ConnectionLostError, RequestTimeoutError, BrokerBusyError)
#: How often a broker is asked whether it shows what it has acknowledged, or has made a topic.
_LOOK_AGAIN = 0.01


@dataclass(frozen=True, slots=True)
class Entry:
    """The decision on a batch. ``attempts`` are those whose ``rows`` half messages are delivered; ``brokers`` holds a
    topic of each broker that has some. ``latest`` is when the youngest was born (wall clock, ms), ``immunity`` how many
    seconds brokers leave them alone. ``read_to``: who wrote it had read the ledger up to that offset, and found no
    entry of this batch or a later one."""

    query: str
    batch: int
    attempts: tuple[str, ...]
    rows: int = 0
    brokers: tuple[tuple[str, str], ...] = ()
    latest: int = 0
    immunity: int = 0
    read_to: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """All half messages of the batch have been delivered."""

    query: str
    batch: int


Record = Entry | Mark


def encode(record: Record) -> bytes:
    """The body of its message."""
    plain: dict[str, object] = {"v": _VERSION, "query": record.query, "batch": record.batch}
    if isinstance(record, Mark):
        plain["ended"] = True
    else:
        plain.update(
            attempts=record.attempts, rows=record.rows, brokers=dict(record.brokers), latest=record.latest,
            immunity=record.immunity, readTo=record.read_to,
        )  # fmt: skip
    return json.dumps(plain, separators=(",", ":")).encode()


def decode(body: bytes) -> Record | None:
    """The record of a message; None for what is no record, or of a version that is not known here."""
    try:
        plain = json.loads(body)
        if plain["v"] != _VERSION:
            return None
        query, batch = str(plain["query"]), int(plain["batch"])
        if plain.get("ended"):
            return Mark(query, batch)
        return Entry(
            query, batch, tuple(map(str, plain["attempts"])), int(plain["rows"]),
            tuple((str(name), str(topic)) for name, topic in plain["brokers"].items()), int(plain["latest"]),
            int(plain["immunity"]), int(plain["readTo"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class Scan(Protocol):
    """A queue that is read by offset: QueueScan."""

    queue: Queue

    def messages(self, begin: int, end: int, view: type[RecordView]) -> AsyncIterator[RecordView]: ...


class Fold:
    """What the ledger says of one batch of one query, from its records in the order of their offsets."""

    __slots__ = ("_newest", "batch", "ended", "entry", "query")

    def __init__(self, query: str, batch: int) -> None:
        self.query = query
        self.batch = batch
        #: The entry that counts.
        self.entry: Entry | None = None
        #: Its half messages are all delivered.
        self.ended = False
        self._newest = -1

    def add(self, record: Record | None) -> None:
        """The next one. An entry that comes after one of the same or a later batch is void."""
        if record is None or record.query != self.query:
            return
        if isinstance(record, Mark):
            self.ended = self.ended or (record.batch == self.batch and self.entry is not None)
        elif record.batch > self._newest:
            self._newest = record.batch
            if record.batch == self.batch:
                self.entry = record
                self.ended = not record.rows

    @property
    def decided(self) -> bool:
        """Nothing can change any more: the batch, or a later one, has its entry."""
        return self._newest >= self.batch

    def state_of(self, attempt: str) -> TxState:
        """What is to become of the half messages of ``attempt``."""
        if self.entry is not None:
            return TxState.COMMIT if attempt in self.entry.attempts else TxState.ROLLBACK
        return TxState.ROLLBACK if self.decided else TxState.UNKNOWN


def lower_bound(query: str, batch: int, record: Record | None) -> int:
    """The offset below which ``record`` proves that nothing matters for ``batch``; 0 when it proves nothing."""
    if isinstance(record, Entry) and record.query == query and record.batch <= batch:
        return record.read_to
    return 0


class _Remembered:
    __slots__ = ("at", "end", "fold")

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.end = -1
        self.at = -1.0


class Ledger:
    """The ledger in ``topic``, read and written through ``producer`` and its client."""

    def __init__(self, client: Session, producer: Producer, topic: str) -> None:
        self.topic = topic
        self._client = client
        self._producer = producer
        self._name = wrap(client.config.namespace, topic)
        self._known: OrderedDict[tuple[str, int], _Remembered] = OrderedDict()
        self._reading = asyncio.Lock()

    async def look(self, query: str, batch: int, *, first: bool = False) -> Fold:
        """What is decided on the batch. A decision that is known is given without asking anybody; its ``ended`` may be
        behind. ``first`` allows to make the topic, which otherwise has to be there (TopicNotFoundError)."""
        known = self._known.get((query, batch))
        if known is not None and known.fold.decided:
            self._known.move_to_end((query, batch))
            return known.fold
        return (await self._read(query, batch, first)).fold

    async def decide(self, entry: Entry, timeout: float) -> Fold:
        """Write the entry unless the batch is decided, and say what counts: ``fold.entry`` may be another one.
        SendError or RequestTimeoutError when it is not certain that it was written: the next look tells."""
        known = await self._read(entry.query, entry.batch, False)
        if known.fold.decided:
            return known.fold
        offset = await self._append(replace(entry, read_to=known.end), timeout)
        async with asyncio.timeout(timeout) as limit:
            try:
                # A broker may acknowledge a moment before it shows.
                while True:
                    known = await self._read(entry.query, entry.batch, False)
                    if known.end > offset:
                        return known.fold
                    await asyncio.sleep(_LOOK_AGAIN)
            except TimeoutError:
                if not limit.expired():
                    raise
                text = f"ledger {self.topic!r}: entry {offset} is stored and not shown after {timeout:g} s"
                raise RequestTimeoutError(text) from None

    async def refresh(self, query: str, batch: int) -> Fold:
        """As ``look``, asking the broker in any case."""
        return (await self._read(query, batch, False)).fold

    async def mark(self, query: str, batch: int, timeout: float) -> None:
        """Note that the batch needs nothing more. SendError."""
        await self._append(Mark(query, batch), timeout)

    # ---- reading

    async def _read(self, query: str, batch: int, first: bool) -> _Remembered:
        asked = self._client.loop.time()
        async with self._reading:
            known = self._known.get((query, batch))
            if known is None:
                known = self._known[query, batch] = _Remembered(Fold(query, batch))
                while len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
            self._known.move_to_end((query, batch))
            if known.at >= asked:
                return known  # somebody has read it while this one waited for its turn
            now = self._client.loop.time()
            while True:
                try:
                    await self._read_on(known, first)
                    break
                except _LATER as error:
                    if self._client.loop.time() >= now + _PATIENCE:
                        raise
                    _log.info("ledger %s: %s", self.topic, error)
                    await asyncio.sleep(_PAUSE)
            known.at = now
            return known

    async def _read_on(self, known: _Remembered, first: bool) -> None:
        queue, address = await self._queue(first)
        scan = QueueScan(self._client, queue, address)
        begin, end = await scan.bounds()
        fold = known.fold
        if end < known.end and not fold.decided:
            # Its broker lost its last messages, or it was made anew: none of them was an entry of this batch.
            known.end = -1
        if known.end < 0:
            fold = Fold(fold.query, fold.batch)
            await search(scan, fold, begin, end)
        else:
            for record in await _records(scan, max(begin, min(known.end, end)), end):
                fold.add(record)
        known.fold, known.end = fold, end

    # ---- the topic

    async def _append(self, record: Record, timeout: float) -> int:
        queue, _ = await self._queue(False)
        message = OutgoingMessage(
            topic=self.topic, body=encode(record), tag="ended" if isinstance(record, Mark) else "decided",
            keys=(record.query,),
        )  # fmt: skip
        receipt = await self._producer.send(message, queue=queue._replace(topic=self.topic), timeout=timeout)
        if receipt.status is not SendStatus.SEND_OK:
            raise SendError(f"ledger {self.topic!r}: stored with {receipt.status.name}", may_be_stored=True)
        return receipt.offset

    async def _queue(self, first: bool) -> tuple[Queue, str]:
        """Its one queue, and who has it."""
        try:
            route = await self._client.route(self._name)
        except TopicNotFoundError as error:
            if not first:
                raise TopicNotFoundError(
                    f"the ledger {self.topic!r} of this sink is not there, and this is not the query's first batch: "
                    "either its broker is down, or nothing was written with sinkMode exactlyOnce so far; then create "
                    f"the topic, with one queue on one broker ({error})"
                ) from error
            route = await self._create()
        if len(names := sorted({each.broker_name for each in (*route.publish, *route.subscribe)})) > 1:
            raise UsageError(
                f"the ledger {self.topic!r} is on the brokers {', '.join(names)}: while one of them is away another "
                "would decide on batches anew, and they come twice. Delete it on all but the one with its messages, or "
                "name another topic (ledgerTopic) with one queue on one broker"
            )
        queue = min(route.publish, default=None)
        address = None if queue is None else route.master(queue.broker_name)
        if queue is None or address is None:
            raise NotConnectedError(f"the ledger {self.topic!r} has no broker that can be written to just now")
        return queue, address

    async def _create(self) -> TopicRoute:
        client = self._client
        try:
            template = await client.route(AUTO_CREATE_TOPIC)
        except TopicNotFoundError:
            raise UsageError(
                f"the ledger {self.topic!r} is not there and the brokers do not create topics by themselves: create "
                "it, with one queue on one broker"
            ) from None
        broker = min((name for name in template.addresses if template.master(name)), default=None)
        address = None if broker is None else template.master(broker)
        if address is None:
            raise NotConnectedError(f"no broker to make the ledger {self.topic!r} on")
        # By a first message, since that needs no administrator's rights: a mark that means nothing.
        header = SendMessageRequestHeaderV2(
            self._producer.sender.wire_group, self._name, AUTO_CREATE_TOPIC, 1, 0, 0, client.env.clock.wall_ms(), 0,
            f"{PROPERTY_UNIQ_KEY}\x01{self._producer.sender.next_ids(1)[0]}\x02", 0, False, None, False, broker,
        )  # fmt: skip
        await client.call(address, RequestCode.SEND_MESSAGE_V2, header, body=encode(Mark("", 0)))
        _log.info("made the ledger %s on %s", self.topic, broker)
        deadline = client.loop.time() + client.config.remoting.request_timeout
        while True:
            try:
                return await client.route(self._name, refresh=True)
            except TopicNotFoundError:
                if client.loop.time() >= deadline:
                    raise
                await asyncio.sleep(_LOOK_AGAIN)


async def search(scan: Scan, fold: Fold, begin: int, end: int) -> None:
    """Give ``fold`` what it needs of the offsets from ``begin`` up to ``end``: backwards, as far as something may stand
    that matters for its batch."""
    pages: list[list[Record | None]] = []
    bound = begin
    while end > bound:
        start = max(bound, end - _PAGE)
        pages.append(await _records(scan, start, end))
        bound = max([bound, *(lower_bound(fold.query, fold.batch, record) for record in pages[-1])])
        end = start
    for page in reversed(pages):
        for record in page:
            fold.add(record)


async def _records(scan: Scan, begin: int, end: int) -> list[Record | None]:
    found: list[Record | None] = []
    async for view in scan.messages(begin, end, RecordView):
        record = decode(view.body)
        if record is None:
            _log.warning("message %d of the ledger %s is no entry", view.queue_offset, scan.queue.topic)
        found.append(record)
    return found
