"""What POP writes as text: handles of messages, lists of offsets, names of retry topics, sets of offsets.

A message that was popped is acknowledged by its handle, which says where it is and in which pop it came (RocketMQ's
extraInfo, and POP_CK among its properties). The reader of an answer builds it from the lists in the answer's header.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.names import RETRY_PREFIX
from aiorocket_protocol.plain import Plain

if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from aiorocket_protocol.rows import NamedTuple

__all__ = (
    "ANY_QUEUE",
    "INIT_MAX",
    "INIT_MIN",
    "MAX_POP",
    "ORDER_REVIVE_QUEUE",
    "POP_MODE",
    "PULL_MODE",
    "REVIVE_GROUP",
    "REVIVE_TOPIC_PREFIX",
    "BatchAck",
    "PopHandle",
    "is_pop_retry_topic",
    "pop_retry_topic",
    "pop_retry_topic_v1",
    "popped_topic",
    "read_offset_lists",
    "read_offsets",
    "retry_mark",
    "revive_topic",
    "set_of_offsets",
    "write_offset_lists",
    "write_offsets",
)

#: Messages of one pop: brokers refuse to be asked for more.
MAX_POP: Final = 32
#: The queue id that means "of any queue of the topic".
ANY_QUEUE: Final = -1
#: initMode, where a group begins that has no offset yet: at the oldest message, or at the newest.
INIT_MIN: Final = 0
INIT_MAX: Final = 1
#: The reviveQid of messages that were popped in order.
ORDER_REVIVE_QUEUE: Final = 999
#: How a group is to get the messages of a topic (messageRequestMode).
PULL_MODE: Final = "PULL"
POP_MODE: Final = "POP"
#: Where brokers record what is with consumers; behind the prefix, the cluster. The group stands for the broker itself.
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"


def pop_retry_topic(group: str, topic: str) -> str:
    """Where messages of ``topic`` are that ``group`` popped and did not acknowledge (version 2 of the name)."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def pop_retry_topic_v1(group: str, topic: str) -> str:
    """The older name, which two pairs of group and topic may share: ``a_b`` with ``c``, ``a`` with ``b_c``."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def is_pop_retry_topic(name: str, topic: str) -> bool:
    """Whether ``name`` is the ``pop_retry_topic`` of ``topic`` for any group; neither has a "+" of its own."""
    return name.startswith(RETRY_PREFIX) and name.endswith("+" + topic)


def revive_topic(cluster: str) -> str:
    """Where the brokers of a cluster keep those records."""
    return REVIVE_TOPIC_PREFIX + cluster


def retry_mark(topic: str) -> str:
    """What stands for the kind of topic in handles and lists: "0" ordinary, "1" and "2" retry topics by version."""
    if not topic.startswith(RETRY_PREFIX):
        return "0"
    return "2" if "+" in topic else "1"


def popped_topic(mark: str, group: str, topic: str) -> str:
    """The topic whose queue a message was popped from, given the one that was asked for. ProtocolError for a mark that
    is none."""
    if mark == "0":
        return topic
    if mark == "1":
        return pop_retry_topic_v1(group, topic)
    if mark == "2":
        return pop_retry_topic(group, topic)
    raise ProtocolError(f"retry mark {mark!r:.20}: 0, 1 or 2", where="handle")


class PopHandle(NamedTuple):
    """One message as it was popped once. Times are the broker's wall clock and a length, both in milliseconds."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_qid: int
    #: As ``retry_mark``.
    retry: str
    broker_name: str
    queue_id: int
    offset: int

    @property
    def in_order(self) -> bool:
        return self.revive_qid == ORDER_REVIVE_QUEUE

    def to_text(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """ProtocolError when it is no handle. Apache's proxy adds words of its own."""
        parts = text.split(" ")
        if len(parts) < 8:
            raise ProtocolError(f"{text!r:.200}: 8 words are needed, {len(parts)} found", where="handle")
        start, pop_time, invisible, revive, retry, broker, queue, offset = parts[:8]
        try:
            return cls(int(start), int(pop_time), int(invisible), int(revive), retry, broker, int(queue), int(offset))
        except ValueError:
            raise ProtocolError(f"{text!r:.200}: not numbers where numbers are needed", where="handle") from None


# ---- startOffsetInfo, msgOffsetInfo, orderCountInfo: items of three words, joined by semicolons


def write_offsets(items: Iterable[tuple[str, object, int]]) -> str:
    """(retry mark, queue id, number) of each queue; as ``orderCountInfo`` has it also ``qo<queue id>%<offset>`` for the
    queue id."""
    return ";".join(f"{mark} {key} {number}" for mark, key, number in items)


def read_offsets(text: str | None) -> dict[tuple[str, str], int]:
    """What ``write_offsets`` wrote, by mark and key. ProtocolError when it is malformed."""
    try:
        return {(mark, key): int(number) for mark, key, number in _items(text)}
    except ValueError:
        raise ProtocolError(f"{text!r:.200}: not items of three words", where="offsets") from None


def write_offset_lists(items: Iterable[tuple[str, int, Sequence[int]]]) -> str:
    """(retry mark, queue id, offsets of the messages) of each queue."""
    return ";".join(f"{mark} {queue_id} {','.join(map(str, offsets))}" for mark, queue_id, offsets in items)


def read_offset_lists(text: str | None) -> dict[tuple[str, str], list[int]]:
    """What ``write_offset_lists`` wrote, by mark and queue id as text. ProtocolError when it is malformed."""
    try:
        return {(mark, key): [int(one) for one in numbers.split(",")] for mark, key, numbers in _items(text)}
    except ValueError:
        raise ProtocolError(f"{text!r:.200}: not items of three words", where="offset lists") from None


def _items(text: str | None) -> Iterator[list[str]]:
    return (item.split(" ") for item in (text or "").split(";") if item)


# ---- BATCH_ACK_MESSAGE


def set_of_offsets(start: int, offsets: Iterable[int]) -> bytes:
    """A set of bits, the least first: which offsets from ``start`` on. ValueError for one before it."""
    bits = 0
    for offset in offsets:
        bits |= 1 << (offset - start)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


_SOME = re.compile(rb"[^\0]")


class BatchAck(NamedTuple):
    """Messages of one pop of one queue to acknowledge, in the body of BATCH_ACK_MESSAGE: ``bits`` are as
    ``set_of_offsets`` makes them."""

    group: str
    topic: str
    #: As ``retry_mark``.
    retry: str
    start_offset: int
    queue_id: int
    revive_qid: int
    pop_time: int
    invisible_time: int
    bits: bytes

    def offsets(self) -> Iterator[int]:
        """Ascending, each found when it is asked for: a mebibyte names millions."""
        for found in _SOME.finditer(self.bits):
            first = self.start_offset + 8 * found.start()
            yield from (first + bit for bit in range(8) if found[0][0] >> bit & 1)

    def to_plain(self) -> dict[str, Any]:
        return {
            "b": b64encode(self.bits).decode(),
            "c": self.group,
            "it": self.invisible_time,
            "pt": self.pop_time,
            "q": self.queue_id,
            "r": self.retry,
            "rq": self.revive_qid,
            "so": self.start_offset,
            "t": self.topic,
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "BatchAck")
        try:
            bits = b64decode(plain.text("b", ""), validate=True)
        except (Base64Error, ValueError):
            raise ProtocolError("b: not base64", where="BatchAck") from None
        return cls(
            plain.text("c"),
            plain.text("t"),
            plain.text("r", "0"),
            plain.number("so"),
            plain.number("q"),
            plain.number("rq", 0),
            plain.number("pt"),
            plain.number("it", 0),
            bits,
        )
