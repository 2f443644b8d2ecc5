"""Ranges of queues as large pieces of stored bytes, with a window of pulls in flight.

Brokers give little at a time (Apache's: 32 messages from memory, 8 from disk), so the speed comes from asking ahead:
queue offsets are dense, and s, s+n, s+2n … can be asked for at once. What a short answer leaves out is asked for again,
and n follows what the broker really gives. Nothing is done for each record unless a filter makes the answers sparse.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.client.pipeline.reading import BUSY_CODES, remote_error, wrap
from aiorocket.errors import (
    BackPressureError,
    BrokerBusyError,
    ConnectionLostError,
    NotConnectedError,
    ProtocolError,
    RemoteError,
    RequestTimeoutError,
    RocketError,
    TopicNotFoundError,
    UsageError,
)
from aiorocket.model import Queue
from aiorocket.spark.bridge import holding
from aiorocket.spark.cluster import address_of, has_master
from aiorocket.spark.fetch_state import HEAD, Answer, Pace, Part, first_offset, within
from aiorocket_protocol import (
    ALL_TAGS,
    OFFSET_RESET,
    TAG,
    TOOLS_GROUP,
    PullMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    pull_header,
)

if TYPE_CHECKING:
    from aiorocket.client.pipeline.reading import Session
    from aiorocket.spark.options import SourceOptions
    from aiorocket.spark.planner import QueueRange

__all__ = ("AHEAD_BYTES", "CHUNK_BYTES", "CHUNK_ROWS", "Chunk", "DataLossError", "check_rows", "fetch")

log = logging.getLogger("aiorocket.spark")

#: A chunk is handed out from this many records on: decoding fewer at a time is slow (measured: 86,000 records/s by 32,
#: 0.5 million by 256, 1.7 million from 4,000 on), and more than twice as many again leave the processor's caches.
CHUNK_ROWS = 8_000
_MOST_ROWS = 2 * CHUNK_ROWS
CHUNK_BYTES = 8 << 20
#: Bytes that are asked for or wait to be handed out. Beyond them only what is needed next is asked for.
AHEAD_BYTES = 32 << 20
#: Asked for at a time; Apache's brokers have their own limit of 256 KiB.
_PULL_BYTES = 1 << 20
#: Offsets that a broker looks at for a pull with a filter, at least (Apache: 16,000 bytes of its consume queue).
_SCAN = 800
_PAUSE, _LONGEST_PAUSE = 0.05, 2.0

_FOUND = int(ResponseCode.SUCCESS)
_RETRY = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_EMPTY = (int(ResponseCode.PULL_NOT_FOUND), _RETRY, int(ResponseCode.PULL_OFFSET_MOVED))
_GONE = (int(ResponseCode.TOPIC_NOT_EXIST), int(ResponseCode.INVALID_PARAMETER))
#: "Not now": busy, an exception in the broker, GO_AWAY of a 5.x broker that shuts down.
_LATER = BUSY_CODES | {int(ResponseCode.SYSTEM_ERROR), int(ResponseCode.GO_AWAY)}
#: GetMessageStatus: the file of these messages is being deleted. The code is that of "nothing matches the filter".
_REMOVING = "MESSAGE_WAS_REMOVING"
_PASSING = (
    NotConnectedError, ConnectionLostError, RequestTimeoutError, BackPressureError, BrokerBusyError, TopicNotFoundError,
)  # fmt: skip


class DataLossError(RocketError):
    """Messages of the range asked for do not exist any more: retention removed them, or their queue is gone."""


class Chunk(NamedTuple):
    """``data`` is what the broker stored of ``queue`` from ``begin`` up to ``end``: whole records, end to end.

    ``rows`` says how many. Without a filter that is what offsets say, ``end - begin``, and ``data`` was not looked
    through (see ``check_rows``); with one it was counted.
    """

    queue: Queue
    begin: int
    end: int
    data: bytes
    rows: int


def check_rows(chunk: Chunk, found: int, settings: SourceOptions) -> None:
    """To be told how many records with offsets of the chunk its data was ``found`` to have: DataLossError when some are
    missing, a warning with ``fail_on_data_loss=False``. (A compacted topic has such holes, and so has a broken log.)"""
    if found != chunk.rows:
        queue = chunk.queue
        text = (
            f"topic {queue.topic}, broker {queue.broker_name}, queue {queue.queue_id}: {found} messages from offset "
            f"{chunk.begin} up to {chunk.end}, where there were {chunk.rows}"
        )
        if settings.fail_on_data_loss:
            raise DataLossError(f"{text}. failOnDataLoss=false goes on with those that are there")
        log.warning("%s", text)


async def fetch(client: Session, ranges: Sequence[QueueRange], settings: SourceOptions) -> AsyncGenerator[Chunk, None]:
    """Everything in ``ranges``, range by range and in the order of offsets, in chunks of one queue.

    Of ``settings`` it uses the filter, ``group_id``, ``pull_batch_size``, ``pulls_in_flight`` (over all ranges),
    ``pull_timeout`` and ``fail_on_data_loss``. With a filter a chunk has what matches in it (by tag hash, so tags are
    to be compared again); chunks without any are left out.

    What fails and may pass (broker restarting, connection lost, busy) is tried again until nothing has come for
    ``pull_timeout`` seconds, then RocketError says queue, offset and address. DataLossError when messages are gone, or
    with ``fail_on_data_loss=False`` a warning, and the next chunk begins behind the hole. RemoteError for what
    trying again does not change (no permission, a bad filter), ProtocolError for answers that cannot be right.
    """
    with holding(client):
        reader = _Reader(client, ranges, settings)
        try:
            while (chunk := await reader.next()) is not None:
                yield chunk
                del chunk  # not kept in memory while the next one is waited for
        finally:
            await reader.close()


class _Pull(NamedTuple):
    part: Part
    begin: int
    end: int
    sent: float


class _Reader:
    """Works in callbacks of the pulls' futures, so that it keeps asking while the consumer is busy with a chunk.

    Every offset of a part is in exactly one place: a gap (to be asked for), a pull, an answer, or behind ``position``.
    """

    def __init__(self, client: Session, ranges: Iterable[QueueRange], settings: SourceOptions) -> None:
        self._client = client
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        namespace = client.config.namespace
        self._group = wrap(namespace, settings.group_id) if settings.group_id else TOOLS_GROUP
        self._expression, self._type = settings.expression
        self._filtered = (self._expression, self._type) != (ALL_TAGS, TAG)
        limit = max(settings.pull_batch_size, _SCAN) if self._filtered else settings.pull_batch_size
        paces: dict[str, Pace] = {}
        self._parts: list[Part] = []
        for span in ranges:
            if span.begin < 0:
                raise UsageError(f"{span}: a range begins at an offset, 0 or more")
            if span.begin < span.end:
                pace = paces.setdefault(span.queue.broker_name, Pace(limit))
                topic = wrap(namespace, span.queue.topic)
                self._parts.append(Part(len(self._parts), span, topic, pace))
        # Smallest first, which is the order in which they will be needed.
        self._gaps = [(part.index, part.begin, part.end) for part in self._parts]
        self._pulls: dict[asyncio.Future[RemotingCommand], _Pull] = {}
        self._window = settings.pulls_in_flight
        self._repairs = 0
        self._timeout = max(settings.pull_timeout / 4, min(3.0, settings.pull_timeout))
        self._head = 0
        self._wake: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._closed = False
        #: Bytes of answers that were not handed out, and what one more may bring.
        self._waiting = 0
        self._typical = _PULL_BYTES // 4
        self._gathered: list[bytes] = []
        self._chunk_begin = self._parts[0].begin if self._parts else 0
        self._chunk_rows = self._chunk_bytes = 0

    # -- the consumer's side --

    async def next(self) -> Chunk | None:
        """The next chunk, None at the end."""
        while True:
            if self._error is not None:
                raise self._error
            chunk = self._gather()
            self._fill()
            if chunk is not None:
                return chunk
            if self._head == len(self._parts):
                return None
            if not self._ready:
                self._wake = self._loop.create_future()
                await self._wake

    @property
    def _ready(self) -> bool:
        """There is something for ``next`` to do."""
        if self._error is not None:
            return True
        part = self._parts[self._head] if self._head < len(self._parts) else None
        return part is not None and part.position in part.answers

    def _gather(self) -> Chunk | None:
        """Take up what was answered, in order; a chunk when there is enough for one."""
        while self._head < len(self._parts):
            part = self._parts[self._head]
            while (answer := part.answers.get(part.position)) is not None:
                rows, size = self._chunk_rows + answer.rows, self._chunk_bytes + len(answer.data)
                full = answer.lost or rows > _MOST_ROWS or size > CHUNK_BYTES
                if full and (chunk := self._cut(part)) is not None:
                    return chunk
                del part.answers[part.position]
                part.position = answer.end
                if answer.lost:
                    self._chunk_begin = part.position
                    continue
                if answer.data:
                    self._gathered.append(answer.data)
                    self._chunk_rows += answer.rows
                    self._chunk_bytes += len(answer.data)
                if self._chunk_rows >= CHUNK_ROWS or self._chunk_bytes >= CHUNK_BYTES:
                    return self._cut(part)
            if part.position < part.end:
                return None
            chunk = self._cut(part)
            self._head += 1
            if self._head < len(self._parts):
                self._chunk_begin = self._parts[self._head].begin
            if chunk is not None:
                return chunk
        return None

    def _cut(self, part: Part) -> Chunk | None:
        if not self._gathered:
            return None
        data = self._gathered[0] if len(self._gathered) == 1 else b"".join(self._gathered)
        chunk = Chunk(part.queue, self._chunk_begin, part.position, data, self._chunk_rows)
        self._waiting -= self._chunk_bytes
        self._gathered = []
        self._chunk_begin = part.position
        self._chunk_rows = self._chunk_bytes = 0
        return chunk

    async def close(self) -> None:
        """Forget the pulls in flight and end everything."""
        self._closed = True
        for future in self._pulls:
            future.cancel()
        repairs = [part.repair for part in self._parts if part.repair is not None]
        for task in repairs:
            task.cancel()
        await asyncio.gather(*repairs, return_exceptions=True)

    # -- asking --

    def _fill(self) -> None:
        """Send what the window has room for, what is needed first before all."""
        while self._gaps and not self._closed and self._error is None:
            index, begin, end = self._gaps[0]
            part = self._parts[index]
            if begin >= part.lost_from:
                heappop(self._gaps)
                self._settle(part, begin, Answer(end, b"", 0, lost=True), end)
                continue
            if len(self._pulls) + self._repairs >= self._window:
                return
            ahead = self._waiting + (len(self._pulls) + 1) * self._typical
            if ahead > AHEAD_BYTES and not (index == self._head and begin == part.position):
                return
            connection = self._client.remoting.live(part.address) if part.address else None
            if part.repair is not None or connection is None:
                heappop(self._gaps)
                part.held.append((begin, end))
                self._start_repair(part)
                continue
            stop = min(end, begin + part.pace.span)
            if stop < end:
                heapreplace(self._gaps, (index, stop, end))
            else:
                heappop(self._gaps)
            header = pull_header(
                self._group, part.wire_topic, part.queue.queue_id, begin,
                min(stop - begin, self._settings.pull_batch_size),
                expression=self._expression, expression_type=self._type, max_bytes=_PULL_BYTES,
            )  # fmt: skip
            pull = _Pull(part, begin, stop, self._loop.time())
            try:
                future = connection.request(RemotingCommand.request(RequestCode.PULL_MESSAGE, header), self._timeout)
            except RocketError as error:
                self._try_later(pull, error)
                continue
            self._pulls[future] = pull
            future.add_done_callback(self._answered)

    def _answered(self, future: asyncio.Future[RemotingCommand]) -> None:
        pull = self._pulls.pop(future)
        if self._closed or future.cancelled():
            return
        try:
            error = future.exception()
            if error is None:
                self._take(pull, future.result())
            elif isinstance(error, _PASSING):
                self._try_later(pull, error)
            else:
                raise error
            self._fill()
        except Exception as trouble:  # noqa: BLE001 - the consumer gets it: nobody else waits for this callback
            self._fail(trouble)
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done() and self._ready:
            self._wake.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error if isinstance(error, Exception) else RocketError(f"fetch ended by {error!r}")
        self._notify()

    # -- answers --

    def _take(self, pull: _Pull, answer: RemotingCommand) -> None:
        part, begin, end, _ = pull
        code = answer.code
        if code in _GONE:
            self._lose(part, begin, part.end, end, f"its broker says {answer.remark or code}")
        elif code in _LATER:
            self._try_later(pull, self._refusal(part, begin, answer))
        elif code not in (_FOUND, *_EMPTY):
            raise self._refusal(part, begin, answer)
        else:
            header = answer.read(PullMessageResponseHeader)
            following = header.next_begin_offset
            if code == _FOUND:
                if following <= begin:
                    raise ProtocolError(
                        f"{part.at(begin)}: a pull found messages and leads back to {following}", where="pull answer"
                    )
                self._found(pull, answer.body, following)
            elif header.min_offset > begin and header.max_offset >= header.min_offset:
                why = f"the queue begins at {header.min_offset} now (retention)"
                self._lose(part, begin, header.min_offset, end, why)
            elif answer.remark == OFFSET_RESET or following <= begin:
                text = f"the queue has the offsets {header.min_offset} to {header.max_offset}, {answer.remark or code}"
                short = header.max_offset <= begin
                if short and not has_master(self._client, part.queue):
                    text, short = f"{text} (a replica, which may be behind its master)", False
                self._try_later(pull, _ShortError(text) if short else RocketError(text))
            elif code == _RETRY and self._filtered and answer.remark != _REMOVING:
                self._keep(pull, following, b"", 0)
            else:
                self._lose(part, begin, following, end, f"the broker goes on at {following}: {answer.remark or code}")

    def _refusal(self, part: Part, begin: int, answer: RemotingCommand) -> RemoteError:
        request = f"PULL_MESSAGE ({part.at(begin)})"
        return remote_error(answer.code, answer.remark, request=request, address=part.address or "")

    def _found(self, pull: _Pull, data: bytes, following: int) -> None:
        part, begin, end, _ = pull
        if len(data) < HEAD:
            raise ProtocolError(f"{part.at(begin)}: an answer of {len(data)} bytes", where="pull answer")
        first = first_offset(data)
        if not self._filtered and first == begin and following <= end:
            self._keep(pull, following, data, following - begin)
            return
        data, rows, first = within(data, begin, min(end, following))
        if first > begin and not self._filtered:
            # Pulled again from there, which keeps the bookkeeping simple: it happens once in a lifetime.
            self._lose(part, begin, first, end, f"the broker goes on at {first}")
        else:
            self._keep(pull, following, data, rows)

    def _keep(self, pull: _Pull, following: int, data: bytes, rows: int) -> None:
        part, begin, end, _ = pull
        part.pace.note(end - begin, following - begin)
        part.failed_since, part.failures = None, 0
        self._window = min(self._settings.pulls_in_flight, self._window + 1)
        size = len(data)
        self._waiting += size
        self._typical = max(size, self._typical * 15 // 16)
        self._settle(part, begin, Answer(min(following, end), data, rows), end)

    def _lose(self, part: Part, begin: int, upto: int, end: int, why: str) -> None:
        """The offsets from ``begin`` up to ``upto`` are gone; ``end`` is how far this pull was responsible."""
        upto = min(upto, part.end)
        if upto == part.end:
            part.lost_from = min(part.lost_from, begin)
        text = f"{part.at(begin)}: up to {upto} messages are gone ({upto - begin} offsets): {why}"
        if self._settings.fail_on_data_loss:
            raise DataLossError(f"{text}. They cannot be read; failOnDataLoss=false goes on without them")
        if not part.warned:
            part.warned = True
            log.warning("%s; going on without them", text)
        part.failed_since, part.failures = None, 0
        self._settle(part, begin, Answer(min(upto, end), b"", 0, lost=True), end)

    def _settle(self, part: Part, begin: int, answer: Answer, end: int) -> None:
        part.answers[begin] = answer
        if answer.end < end:
            heappush(self._gaps, (part.index, answer.end, end))

    # -- trouble --

    def _try_later(self, pull: _Pull, error: Exception) -> None:
        """Ask again after a pause, unless nothing has come for too long."""
        part, begin, end, sent = pull
        if isinstance(error, RequestTimeoutError):
            # Perhaps the line is slow: then fewer at a time come in time.
            self._window = max(1, self._window // 2)
        if part.failed_since is None:
            part.failed_since = sent
        if self._given_up(part, begin, end, error):
            return
        part.held.append((begin, end))
        self._start_repair(part)

    def _given_up(self, part: Part, begin: int, end: int, error: Exception) -> bool:
        """Nothing has come for ``pull_timeout``: the hole is skipped (True), or it is the end."""
        patience = self._settings.pull_timeout
        if part.failed_since is None or self._loop.time() - part.failed_since < patience:
            return False
        if isinstance(error, (_ShortError, TopicNotFoundError)):
            self._lose(part, begin, part.end, end, f"{error}, for {patience:g} s")
            return True
        raise RocketError(f"{part.at(begin)}: nothing could be read for {patience:g} s: {error}") from error

    def _start_repair(self, part: Part) -> None:
        if part.repair is None:
            self._repairs += 1
            part.repair = self._loop.create_task(self._repair(part), name=f"fetch/{part.wire_topic}")
            part.repair.add_done_callback(partial(self._repaired, part))

    async def _repair(self, part: Part) -> None:
        """Ends when there is a connection to ask the held gaps over."""
        while True:
            if part.failed_since is not None:
                pause = min(_LONGEST_PAUSE, _PAUSE * 2.0 ** min(part.failures, 10))
                part.failures += 1
                await asyncio.sleep(self._client.env.entropy.jitter(pause))
            began = self._loop.time()
            try:
                part.address = await address_of(self._client, part.queue, refresh=part.failures > 1)
                await self._client.connection(part.address)
                return
            except _PASSING as error:
                if part.failed_since is None:
                    part.failed_since = began
                part.held.sort()
                if self._given_up(part, *part.held[0], error):
                    del part.held[0]
                    return

    def _repaired(self, part: Part, task: asyncio.Task[None]) -> None:
        part.repair = None
        self._repairs -= 1
        if task.cancelled() or self._closed:
            return
        error = task.exception()
        if error is not None:
            self._fail(error)
            return
        for begin, end in part.held:
            heappush(self._gaps, (part.index, begin, end))
        part.held = []
        try:
            self._fill()
        except Exception as trouble:  # noqa: BLE001 - as in _answered
            self._fail(trouble)
        self._notify()


class _ShortError(RocketError):
    """The queue ends before the offset that was asked for; a broker that restarts may say so for a while."""
