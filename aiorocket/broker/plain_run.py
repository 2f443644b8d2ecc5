"""The plainest sends in Python, as many in one go as came behind each other: what compiled code does if there is any.

One long function on purpose, as ``MessageStore.append`` is: what connection, topic, log and tail cache say is read once
for a run of sends, and of the property string, the record and the answer only what each send has of its own is made for
each.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Literal, get_type_hints
from zlib import crc32

from aiorocket.broker.core.send_checks import property_value
from aiorocket.storage.block import BLOCK_MASK
from aiorocket.storage.commit_group import KEPT_IN_RUN
from aiorocket_protocol import (
    LANGUAGE_PYTHON,
    MSGPACK,
    PROPERTY_DELAY,
    PROPERTY_POP_CK,
    PROPERTY_TAGS,
    PROPERTY_TRAN_MSG,
    PROPERTY_UNIQ_KEY,
    SYS_FLAG_TRANSACTION_MASK,
    TIMER_PREFIX,
    RequestCode,
    SendMessageRequestHeaderV2,
)
from aiorocket_protocol.compiled import Int32, Language, Version, header_decoder, open_msgpack, pack
from aiorocket_protocol.limits import MAX_PROPERTIES, MAX_TOPIC
from aiorocket_protocol.record_layout import ANY_V6, RECORD_MAGIC_V1, V4_HEAD

if TYPE_CHECKING:
    import asyncio

    from aiorocket.broker.core.topics import Topic
    from aiorocket.remoting.connection import Connection, Frame
    from aiorocket.storage.checkpoint import QueueTable
    from aiorocket.storage.commit_log import CommitLog
    from aiorocket.storage.results import PutResult, PutStatus
    from aiorocket.storage.store import MessageStore
    from aiorocket.storage.tail_cache import TailCache

__all__ = ("PlainSends",)

#: How the header of a SEND_MESSAGE_V2 begins that is to be answered and has no undeclared fields.
_BEGIN = b"\x97\xcd\x01\x36\x00"
_HINTS = get_type_hints(SendMessageRequestHeaderV2, include_extras=True)
_TYPES: Any = tuple([_HINTS[name] for name in SendMessageRequestHeaderV2._fields])
_open = header_decoder(tuple[Literal[310], Literal[0], Int32, Version, Language, str | None, tuple[_TYPES]])

_UNIQ_KEY, _TAGS = f"{PROPERTY_UNIQ_KEY}\x01", f"{PROPERTY_TAGS}\x01"
_RARE = f"{PROPERTY_DELAY}\x01", f"{PROPERTY_TRAN_MSG}\x01", f"{PROPERTY_POP_CK}\x01", TIMER_PREFIX
#: Where an id of RocketMQ's 32 characters stands in a property string that begins with it.
_ID_AT = len(_UNIQ_KEY)
_ID_END = _ID_AT + 32
_CLEARED = ~(ANY_V6 | SYS_FLAG_TRANSACTION_MASK)

#: Parts after which a turn's write goes out early, see connection.py.
_BURST = 64

_pack_words = Struct(">II").pack
_pack_short = Struct(">H").pack
_pack_unit = Struct(">qiq").pack
# A record's head, see record_writer.py: what is its own, and what those of a run mostly share.
_pack_own = Struct(">iiiiiqq").pack
_pack_shared = Struct(">iq8sq8siqi").pack


class PlainSends:
    """Called with a connection and its frames, the next of which stands last, it takes those off that are plain sends,
    and says whether there were any. It is given, works in and changes what ``PlainSends`` of the speedups does."""

    def __init__(
        self,
        *,
        running_loop: asyncio.AbstractEventLoop,
        served_by: Callable[[int], object],
        handler: object,
        topic: Callable[[str], Topic | None],
        store: MessageStore,
        log: CommitLog,
        tail: TailCache,
        queues: QueueTable,
        wall_ms: Callable[[], int],
        take_back: Callable[..., None],
        result: Callable[[tuple[Any, ...]], PutResult],
        ok: PutStatus,
        refused: Callable[[Connection, int, PutResult], None],
        max_pending: int,
        max_body: int,
        max_properties: int,
        store_host: bytes,
        added: bytes,
        region: str,
        trace: str,
        version: int,
    ) -> None:
        self._loop = running_loop
        self._served_by = served_by
        self._handler = handler
        self._topic = topic
        self._store = store
        self._log = log
        self._tail = tail
        self._queues = queues
        self._wall_ms = wall_ms
        self._take_back = take_back
        self._result = result
        self.ok = ok
        self.refused = refused
        self._max_pending = max_pending
        self._max_body = max_body
        self._max_properties = max_properties
        self._store_host = store_host
        self._id_prefix = store_host.hex().upper()
        self._added = added
        self._region = region
        self._trace = trace
        self._version = version

    def __call__(self, connection: Connection, frames: list[Frame]) -> bool:
        if not frames[-1][1].startswith(_BEGIN) or connection._peer_type != MSGPACK:
            return False
        log, tail, born_host, config = self._log, self._tail, connection.peer_host, connection.config
        group = log.group
        handler = self._served_by(RequestCode.SEND_MESSAGE_V2)
        if handler != self._handler or log.refusal is not None or len(born_host) != 8:
            return False
        # Where Connection looks after each request whether the next one may be begun, and append whether to flush.
        full = connection._paused_writing or connection._out_bytes > config.write_high_water
        room = log.burst - len(group.dones)
        most = min(1 if full else config.max_in_flight - connection._in_flight, room)
        end, limit, pending, cached, budget = log.end, log.limit, log.pending, tail.size, tail.budget
        max_pending, max_body, max_properties = self._max_pending, self._max_body, self._max_properties
        region, trace, prefix, version, host = (
            self._region, self._trace, self._id_prefix, self._version, self._store_host,
        )  # fmt: skip
        topic: Topic | None = None
        said = rest = None
        born = sys_flag = reconsumed = length = properties_length = answer_length = -1
        code = now = taken = 0
        topic_field = shared = added = behind = words = b""
        queues: dict[int, Any] = {}
        answers = _Answers(self, connection)
        answer, buffered = answers.parts.append, log.buffers.append
        try:
            while True:
                kind, header, body = frames[-1]
                if kind != MSGPACK:
                    break
                try:
                    (
                        _, _, opaque, _, _, _,
                        (_, name, _, _, queue_id, its_flag, its_born, flag, properties, retries, _, _, batch, _),
                    ) = _open(header)  # fmt: skip
                except ValueError:
                    break
                # Every check, and nothing else.
                queue = queues.get(queue_id)
                if queue is None or name != said:
                    if said is None:
                        topic = self._topic(name)
                        if topic is None or not topic.plain:
                            break
                        said = name
                    if topic is None or name != said or not 0 <= queue_id < topic.max_queues:
                        break
                    queue = self._queues.get((topic.name, queue_id))
                    if queue is None or len(queue.topic_bytes) > MAX_TOPIC:
                        break
                    topic_field = bytes((len(queue.topic_bytes),)) + queue.topic_bytes
                    queues[queue_id] = queue
                if batch or len(body) > max_body or pending > max_pending or not properties:
                    break
                unique = properties[_ID_AT:_ID_END]
                if properties[_ID_END:] != rest or not unique.isalnum() or not properties.startswith(_UNIQ_KEY):
                    assert topic is not None
                    found = _said(topic, properties)
                    if found is None or len(properties) > max_properties:
                        break
                    unique, code, begins = found
                    rest = properties[_ID_END:] if begins else None
                    added = self._added if properties[-1] == "\x02" else b"\x02" + self._added
                data = properties.encode()
                if len(data) + len(added) != properties_length:
                    properties_length = len(data) + len(added)
                    if properties_length > MAX_PROPERTIES:
                        properties_length = -1
                        break
                    behind = topic_field + _pack_short(properties_length)
                size = V4_HEAD + len(body) + len(behind) + properties_length
                following = end + size
                if following > limit:
                    break
                # The record as append makes it.
                if not taken:
                    now = max(self._wall_ms(), self._store.timestamp)
                retries = retries or 0
                if its_born != born or len(body) != length or its_flag != sys_flag or retries != reconsumed:
                    born, length, sys_flag, reconsumed = its_born, len(body), its_flag, retries
                    shared = _pack_shared(sys_flag & _CLEARED, born, born_host, now, host, reconsumed, 0, length)
                offset = queue.next_offset
                own = _pack_own(size, RECORD_MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue_id, flag, offset, end)
                record = b"".join((own, shared, body, behind, data, added))
                head = pack(
                    (0, 1, opaque, version, LANGUAGE_PYTHON, None,
                     (f"{prefix}{end:016X}", queue_id, offset, unique, None, None, region, trace))
                )  # fmt: skip
                if len(head) != answer_length:
                    answer_length = len(head)
                    words = _pack_words(4 + answer_length, MSGPACK << 24 | answer_length)
                # What may find no memory comes first, and leaves nothing then.
                unit = _pack_unit(end, size, code)
                behind_it, more_pending, more_cached, count = offset + 1, pending + size, cached + size, taken + 1
                block = queue.block
                try:
                    if not taken:
                        if not log.scheduled:
                            self._loop.call_soon(log.flush)
                            log.scheduled = True
                        group.dones.append(answers)
                    if block is None or not offset & BLOCK_MASK:
                        block = self._tail.start(queue, offset)
                    of_block = block.size + size
                    block.records.append(record)
                    block.sizes.append(size)
                    block.codes.append(code)
                    queue.tail += unit
                    buffered(record)
                    if not queue.marked:
                        group.touched.append(queue)
                    answer(words)
                    answer(head)
                    if not taken:
                        group.results.append(self._result((self.ok, end, offset, now, ())))
                except MemoryError:
                    del answers.parts[2 * taken :]
                    self._take_back(log, tail, (queue,), record)
                    raise
                queue.next_offset = behind_it
                block.size = of_block
                if not queue.marked:
                    queue.marked = True
                    queue.code = code
                elif queue.code != code:
                    queue.code = None
                end, pending, cached, taken = following, more_pending, more_cached, count
                frames.pop()
                if taken >= most or cached > budget or not frames:
                    break
        finally:
            if taken:
                log.end, log.pending, tail.size = end, pending + KEPT_IN_RUN * taken, cached
                self._store._timestamp = now
                connection._in_flight += taken
        if cached > budget:
            tail.evict()
        if taken >= room:
            log.flush()
        return taken > 0


def _said(topic: Topic, properties: str) -> tuple[str, int, bool] | None:
    """What the properties say of where the message goes: its id, its tags code, and whether both stay when only the
    characters of the id change. None for what is not plain."""
    if _UNIQ_KEY not in properties or any(map(properties.__contains__, _RARE)):
        return None
    unique = property_value(properties, PROPERTY_UNIQ_KEY)
    if unique is None:
        return None
    code = 0
    if _TAGS in properties and (tag := property_value(properties, PROPERTY_TAGS)) is not None:
        code = topic.tag_codes.get(tag, 0)
        if not code:  # a new one: SendHandlers makes it known
            return None
    begins = properties.rfind(_UNIQ_KEY) == 0 and properties[_ID_END : _ID_END + 1] in ("", "\x02")
    return unique, code, begins


class _Answers:
    """What the store calls when the messages of a run are as durable as was asked for. ``parts`` are words and header
    of each answer."""

    __slots__ = ("_connection", "_sends", "parts")

    def __init__(self, sends: PlainSends, connection: Connection) -> None:
        self._sends = sends
        self._connection = connection
        self.parts: list[bytes] = []

    def __call__(self, result: PutResult) -> None:
        connection, parts = self._connection, self.parts
        if result.status is not self._sends.ok:
            for head in parts[1::2]:
                self._sends.refused(connection, open_msgpack(head).opaque, result)
            return
        if connection.closed:
            return
        # As Connection.reply does.
        count = len(parts) // 2
        data = b"".join(parts)
        connection._in_flight -= count
        out = connection._out
        if not out:
            connection._loop.call_soon(connection._flush)
        out.append(data)
        if len(out) - 1 + count >= _BURST or connection._out_bytes > connection.config.write_limit:
            connection._flush()
        if connection._blocked:
            connection._release()
