"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320): the hot path in.

Nothing here waits: a message that passes the checks is given to the store, and the answer leaves from the store's
callback once the message is as durable as configured. Per message this costs the two dict look-ups of topic and tag, a
few substring scans of the property string, and one closure; everything rarer sits behind one of those tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.broker.answers import put_refusal, refuse, store_refusal
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.send_checks import (
    Admitted,
    SendFacts,
    SendHeader,
    added_properties,
    admit,
    batch_codes,
    check_sizes,
    no_timer,
    property_value,
    unserved_batch,
)
from aiorocket.broker.core.shares import Holds
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.timers import TIMER_PROPERTIES, due_of, wait_code
from aiorocket.broker.core.transactions import is_transactional
from aiorocket.broker.repetitions import Repetitions
from aiorocket.broker.timers import counted
from aiorocket.errors import RocketError, StoreError
from aiorocket.remoting.awaited import shed
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import (
    DEFAULT_REGION,
    DLQ_PREFIX,
    EXT_ONCE,
    LANGUAGE_PYTHON,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_MSG_REGION,
    PROPERTY_POP_CK,
    PROPERTY_TAGS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_TRACE_ON,
    PROPERTY_TRAN_MSG,
    PROPERTY_UNIQ_KEY,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYS_FLAG_TRANSACTION_MASK,
    TIMER_PREFIX,
    TIMER_TOPIC,
    VERSION,
    BatchItem,
    ProtocolError,
    RecallHandle,
    RecordView,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    UniqueIds,
    decode_batch,
    decode_properties,
    encode_properties,
    offset_msg_ids,
    tags_code,
)
from aiorocket_protocol.fast import compiled
from aiorocket_protocol.limits import MAX_PROPERTIES

if TYPE_CHECKING:
    from aiorocket.config import BrokerConfig
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.runtime.env import Env
    from aiorocket.storage.store import MessageStore

__all__ = ("SendHandlers",)

TRACE_ON = "true"
# How a property begins in a property string, as text and as bytes.
_UNIQ_KEY, _TRAN_MSG = f"{PROPERTY_UNIQ_KEY}\x01", f"{PROPERTY_TRAN_MSG}\x01"
_TAGS, _DELAY, _POP_CK = f"{PROPERTY_TAGS}\x01", f"{PROPERTY_DELAY}\x01", f"{PROPERTY_POP_CK}\x01"
_TAGS_BYTES, _DELAY_BYTES, _TIMER_BYTES = _TAGS.encode(), _DELAY.encode(), TIMER_PREFIX.encode()
#: Bytes of properties that a timer message gets on its way (TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES).
ROOM_FOR_TIMER = 128

_new = tuple.__new__
_OK = PutStatus.OK
#: The messages of a batch body in one piece, where none has a tag, a delay or a timer, in compiled code.
_plain_batch: Callable[[bytes, int], Sequence[BatchItem] | None] | None = compiled("plain_batch")

PutDone = Callable[[PutResult], None]
#: Stores an admitted message, whose topic, queue and properties are the last three, as a half message.
StoreHalf = Callable[["Connection", RemotingCommand, SendHeader, str, int, dict[str, str]], RemotingCommand | None]


class Accepted(NamedTuple):
    """A message that may be stored: where, with which properties and tags code, and the queue that its sender is told
    (a delayed message waits in another one). ``due`` is when a timer message that may be recalled is, in
    milliseconds."""

    topic: str
    queue_id: int
    properties: str
    tags_code: int
    told_queue: int
    due: int = 0


class AcceptedBatch(NamedTuple):
    """Messages of one queue that may be stored, and the batch's UNIQ_KEY."""

    topic: str
    queue_id: int
    items: Sequence[BatchItem]
    tags_codes: list[int]
    unique: str | None


class SendHandlers:
    """Handlers for the three send codes. ``topics_changed`` is called after a send made a topic; ``has_locks(group)``
    says whether a client holds a queue of the group, that is: whether it consumes in order."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        tables: Tables,
        store: MessageStore,
        *,
        store_half: StoreHalf,
        has_locks: Callable[[str], bool],
        topics_changed: Callable[[], None],
        once: Repetitions,
    ) -> None:
        self._clock = env.clock
        self._entropy = env.entropy
        self._store = store
        self._append = store.append
        self._topics = tables.topics
        self._topic = tables.topics.get
        self._configs = tables.configs
        self._delays = tables.delays
        self._once = once
        self._timers = tables.timers
        self._max_timers = config.limits.timers
        self._max_delay = round(config.timer_max_delay * 1000)
        self._name = config.name
        self._counters = tables.counters
        self._store_half = store_half
        self._has_locks = has_locks
        self._topics_changed = topics_changed
        self._max_body, self._max_batch = config.max_message_size, config.limits.batch
        #: What a broker adds to every message but the items of a batch.
        self.added = "".join([f"{name}\x01{value}\x02" for name, value in added_properties(config.cluster).items()])
        #: How many characters the properties may have that nobody needs to count.
        self.max_user_properties = MAX_PROPERTIES - len(self.added.encode()) - 64
        #: An offset id is the store's host and the physical offset in hex; the host never changes.
        self._store_host = host = store.store_host
        self._id_prefix = host.hex().upper()
        self._unique = UniqueIds(host[:-4], env.entropy.randrange(1 << 16), env.entropy.randrange(1 << 31))

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.send_batch,
        }

    def send(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 10."""
        return self._send(connection, command, command.read(SendMessageRequestHeader))

    def send_v2(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 310."""
        return self._send(connection, command, command.read(SendMessageRequestHeaderV2))

    def _send(self, connection: Connection, command: RemotingCommand, header: SendHeader) -> RemotingCommand | None:
        if header.batch:
            return self._send_batch(connection, command, header)
        topic = self._topic(header.topic)
        queue_id = header.queue_id
        properties = header.properties or ""
        body = command.body
        if (
            topic is None
            or not topic.plain
            or not 0 <= queue_id < topic.max_queues
            or len(body) > self._max_body
            or len(properties) > self.max_user_properties
            or _DELAY in properties
            or _TRAN_MSG in properties
            or _POP_CK in properties
            or TIMER_PREFIX in properties
        ):
            accepted = self._checked(connection, command, header)
            if not isinstance(accepted, Accepted):
                return accepted
        else:
            code = 0
            if _TAGS in properties:
                tag = property_value(properties, PROPERTY_TAGS)
                if tag is not None:
                    code = topic.tag_codes.get(tag) or topic.tag_code(tag)
            accepted = _new(Accepted, (topic.name, queue_id, properties, code, queue_id, 0))
        self._store_one(connection, command, header, accepted)
        return None

    def _store_one(
        self, connection: Connection, command: RemotingCommand, header: SendHeader, accepted: Accepted
    ) -> None:
        """Give the message to the store; its callback answers. Appends what a broker adds, and UNIQ_KEY when it is
        missing."""
        topic, queue_id, properties, code, told_queue, due = accepted
        unique = property_value(properties, PROPERTY_UNIQ_KEY) if _UNIQ_KEY in properties else None
        if properties and properties[-1] != "\x02":
            properties += "\x02"
        if unasked := unique is None:
            unique = self._unique.next(self._clock.wall_ms())
            properties += f"{_UNIQ_KEY}{unique}\x02"
        prefix = self._id_prefix
        recall = str(RecallHandle(header.topic, self._name, due, unique)) if due else None

        def done(result: PutResult) -> None:
            # A send is answered from here, in the loop turn in which its group became durable.
            if result.status is not _OK:
                connection.reply(command, refuse(put_refusal(result)))
                return
            header = _new(
                SendMessageResponseHeader,
                (
                    f"{prefix}{result.physical_offset:016X}",
                    told_queue,
                    result.queue_offset,
                    unique,
                    None,
                    recall,
                    DEFAULT_REGION,
                    TRACE_ON,
                ),
            )
            connection.reply(command, RemotingCommand(0, 0, 1, LANGUAGE_PYTHON, VERSION, None, None, header))

        data = (properties + self.added).encode()  # raises before anything waits for the message
        stored: PutDone = done
        ext, body = command.ext, command.body
        once = ext is not None and EXT_ONCE in ext
        began = ext[EXT_ONCE] if ext is not None and once else None
        command.body, command.fields, command.remark = b"", None, None
        if command.ext is not None:  # as rarely as it is, it costs a plain send no call
            shed(command)
        if once:
            if unasked or header.queue_id < 0:  # the next attempt would have another id, or go to another queue
                why = f"to be sent once only (field {EXT_ONCE}) a message needs a UNIQ_KEY and a queue"
                connection.reply(command, refuse(Refusal(ResponseCode.MESSAGE_ILLEGAL, why)))
                return
            elsewhere = None
            if topic == TIMER_TOPIC:
                elsewhere = header.topic, told_queue
            elif TIMER_PREFIX in properties:
                elsewhere = TIMER_TOPIC, 0
            tell: PutDone = done
            repeats = True  # until it is known that it does not
            if due:

                def tell(result: PutResult) -> None:
                    nonlocal recall
                    recall = self._recall_handle(header.topic, unique, result) if repeats else recall
                    done(result)

            first = self._once.begin(topic, queue_id, unique, began, body, header.sys_flag, tell, elsewhere)
            if first is None:
                return
            if isinstance(first, Refusal):
                connection.reply(command, refuse(first))
                return
            stored, repeats = first, False
        try:
            self._append(
                topic,
                queue_id,
                body,
                data,
                flag=header.flag,
                sys_flag=header.sys_flag & ~SYS_FLAG_TRANSACTION_MASK,
                born_timestamp=header.born_timestamp,
                born_host=connection.peer_host,
                reconsume_times=header.reconsume_times or 0,
                tags_code=code,
                done=stored if topic != TIMER_TOPIC else counted(self._timers, connection, stored),
            )
        except StoreError as error:
            connection.reply(command, refuse(store_refusal(error)))
        except ProtocolError as error:  # a length or number that a record cannot hold
            connection.reply(command, refuse(Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))))
        except MemoryError:
            if once:
                self._once.failed(topic, queue_id, unique)
            raise
        else:
            return
        if once:
            self._once.failed(topic, queue_id, unique)

    def _recall_handle(self, topic: str, unique: str, result: PutResult) -> str | None:
        """What recalls the message as it is stored: an earlier attempt of it may be due at another time."""
        try:
            data = self._store.read_record(result.physical_offset) if result.status is _OK else None
            values = {} if data is None else RecordView(data, 0, len(data)).properties
            due = int(values.get(PROPERTY_TIMER_OUT_MS, ""))  # as its sender says if it is no timer message
        except (RocketError, ProtocolError, OSError, ValueError):
            return None
        return str(RecallHandle(topic, self._name, due, unique)) if values.get(PROPERTY_UNIQ_KEY) == unique else None

    def admit(self, connection: Connection, command: RemotingCommand, header: SendHeader) -> Admitted | Refusal:
        """Where the message goes, with every check; may make its topic."""
        version = self._topics.version
        admitted = admit(
            self._topics,
            self._configs,
            SendFacts(
                topic=header.topic,
                default_topic=header.default_topic,
                default_queues=header.default_topic_queue_nums,
                queue_id=header.queue_id,
                reconsume_times=header.reconsume_times or 0,
                max_reconsume_times=header.max_reconsume_times,
                client_version=command.version,
                draw=self._entropy.randrange(1 << 30),
                unit_mode=bool(header.unit_mode),
            ),
            self._has_locks,
            connection.holds,
        )
        if self._topics.version != version:
            self._topics_changed()
        if isinstance(admitted, Admitted) and admitted.dead:
            self._counters.dead_letters[admitted.topic.name.removeprefix(DLQ_PREFIX)] += 1
        return admitted

    def _checked(
        self, connection: Connection, command: RemotingCommand, header: SendHeader
    ) -> Accepted | RemotingCommand | None:
        """The same with every check: unknown topics, retries, delays, sizes near the limit. An answer, or None when
        one will follow, is all there is to do; half messages end here."""
        admitted = self.admit(connection, command, header)
        if isinstance(admitted, Refusal):
            return refuse(admitted)
        topic, queue_id, dead = admitted
        properties = header.properties or ""
        refusal = check_sizes(len(command.body), len((properties + self.added).encode()), self._max_body)
        if refusal is not None:
            return refuse(refusal)
        values = decode_properties(properties.encode())
        retried = bool(header.reconsume_times) and (dead or _delay_level(values) > 0)
        transactional = is_transactional(values, retried=retried)
        delayed = not dead and _delay_level(values) > 0
        due = self._due(connection.holds, values, transactional=transactional, delayed=delayed)
        if isinstance(due, Refusal):
            return refuse(due)
        for name in (PROPERTY_CLUSTER, PROPERTY_MSG_REGION, PROPERTY_TRACE_ON, PROPERTY_POP_CK):
            values.pop(name, None)
        if transactional:
            if command.ext_value(EXT_ONCE) is not None:
                why = f"a half message cannot be sent once only (field {EXT_ONCE})"
                return refuse(Refusal(ResponseCode.MESSAGE_ILLEGAL, why))
            values.setdefault(PROPERTY_UNIQ_KEY, self._unique.next(self._clock.wall_ms()))
            return self._store_half(connection, command, header, topic.name, queue_id, values)
        code = tags_code(tag) if (tag := values.get(PROPERTY_TAGS)) else 0
        level = 0 if dead else _delay_level(values)
        if dead:
            values[PROPERTY_DELAY] = "-1"
        name, store_queue = topic.name, queue_id
        if level > 0:
            level = self._delays.clamp(level)
            code = self._delays.put_off(values, level, name, queue_id, self._clock.wall_ms(), self._store.timestamp)
            name, store_queue = SCHEDULE_TOPIC, level - 1
        elif due:
            values.pop(PROPERTY_TIMER_ROLL_TIMES, None)  # counted from here
            values.update(TIMER_OUT_MS=str(due), REAL_TOPIC=name, REAL_QID=str(queue_id))
            name, store_queue = TIMER_TOPIC, 0
            code = wait_code(values, max(self._clock.wall_ms(), self._store.timestamp))
        text = encode_properties(values).decode()
        more = len(self.added) + 64 + (ROOM_FOR_TIMER if due else 0)
        refusal = check_sizes(0, len(text.encode()) + more, self._max_body)
        if refusal is not None:
            return refuse(refusal)
        return Accepted(name, store_queue, text, code, queue_id, 0 if topic.name.startswith(RETRY_PREFIX) else due)

    def _due(self, who: Holds, values: dict[str, str], *, transactional: bool, delayed: bool) -> int | Refusal:
        """When a timer message is due, 0 when it is none. A delay level wins, and the timer is forgotten."""
        if transactional:
            return no_timer(values, "a transactional message") or 0
        if delayed:
            for name in TIMER_PROPERTIES:
                values.pop(name, None)
            return 0
        due = due_of(values, self._clock.wall_ms(), self._max_delay)
        if due and not isinstance(due, Refusal):
            return self._timers.refusal(self._max_timers, who) or due
        return due

    def send_batch(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Code 320: several messages of one queue, stored by one append with consecutive offsets."""
        return self._send_batch(connection, command, command.read(SendMessageRequestHeaderV2))

    def _send_batch(
        self, connection: Connection, command: RemotingCommand, header: SendHeader
    ) -> RemotingCommand | None:
        accepted = self._checked_batch(connection, command, header)
        if isinstance(accepted, Refusal):
            return refuse(accepted)
        topic, queue_id, items, codes, unique = accepted

        def done(result: PutResult) -> None:
            if result.status is not _OK:
                connection.reply(command, refuse(put_refusal(result)))
                return
            ids = offset_msg_ids(self._store_host, result.physical_offsets)
            # No batchUniqId: with it a client would show one id for all of them.
            answer = SendMessageResponseHeader(
                ids, queue_id, result.queue_offset, unique, None, None, DEFAULT_REGION, TRACE_ON
            )
            connection.reply(command, RemotingCommand.response(0, answer))

        command.body, command.fields, command.remark = b"", None, None
        if command.ext is not None:  # as above
            shed(command)
        try:
            self._store.append_batch(
                topic,
                queue_id,
                items,
                codes,
                sys_flag=header.sys_flag & ~SYS_FLAG_TRANSACTION_MASK,
                born_timestamp=header.born_timestamp,
                born_host=connection.peer_host,
                done=done,
            )
        except StoreError as error:
            connection.reply(command, refuse(store_refusal(error)))
        except ProtocolError as error:  # a length or number that a record cannot hold
            connection.reply(command, refuse(Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))))
        return None

    def _checked_batch(
        self, connection: Connection, command: RemotingCommand, header: SendHeader
    ) -> AcceptedBatch | Refusal:
        if command.ext_value(EXT_ONCE) is not None:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"a batch cannot be sent once only (field {EXT_ONCE})")
        topic = self._topic(header.topic)
        queue_id = header.queue_id
        if topic is None or not topic.plain or not 0 <= queue_id < topic.max_queues:
            if header.topic.startswith(RETRY_PREFIX):
                # Each retry has its own count of attempts and its own delay; a batch has neither.
                why = f"batch request does not support retry group {header.topic}"
                return Refusal(ResponseCode.MESSAGE_ILLEGAL, why)
            admitted = self.admit(connection, command, header)
            if isinstance(admitted, Refusal):
                return admitted
            topic, queue_id, _ = admitted
        if len(command.body) > self._max_body:
            why = f"batch of {len(command.body)} bytes: this broker accepts {self._max_body}"
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, why)
        # Properties of the batch itself are not its messages': each has its own, UNIQ_KEY among them.
        of_batch = header.properties or ""
        unique = property_value(of_batch, PROPERTY_UNIQ_KEY) if _UNIQ_KEY in of_batch else None
        special = _DELAY in of_batch or TIMER_PREFIX in of_batch
        if not special and _plain_batch is not None and (whole := _plain_batch(command.body, self._max_batch)):
            return _new(AcceptedBatch, (topic.name, queue_id, whole, [0] * len(whole), unique))
        try:
            messages = decode_batch(command.body, self._max_batch)
        except ProtocolError as error:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"{error} (the broker's limit batch={self._max_batch})")
        if not messages:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, "a batch without a message")
        # What is rare is looked for in all of them at once.
        every = b"\2".join([own for _, _, own in messages])
        special = special or _DELAY_BYTES in every or _TIMER_BYTES in every
        if special and (refusal := unserved_batch(b"\2".join((b"", of_batch.encode(), every)))) is not None:
            return refusal
        tags = every.count(_TAGS_BYTES)
        codes = batch_codes(topic, messages, tags) if tags else [0] * len(messages)
        if isinstance(codes, Refusal):
            return codes
        return _new(AcceptedBatch, (topic.name, queue_id, messages, codes, unique))


def _delay_level(values: dict[str, str]) -> int:
    try:
        return int(values.get(PROPERTY_DELAY, "0"))
    except ValueError:
        return 0
