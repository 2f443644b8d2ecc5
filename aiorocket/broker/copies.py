"""A stored message stored once more: due, sent back, checked or committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.storage.queue_recovery import tags_code_in
from aiorocket_protocol import (
    SYS_FLAG_STORE_HOST_V6,
    SYS_FLAG_TRANSACTION_MASK,
    ProtocolError,
    RecordView,
    decode_properties,
)

if TYPE_CHECKING:
    from aiorocket.broker.core.topics import TopicTable
    from aiorocket.storage.results import PutResult
    from aiorocket.storage.store import MessageStore

__all__ = ("NOT_COPIED", "Copy", "copied_properties", "store_copy", "where_read")

#: No copy of a message that failed is of a transaction, and the store sets the bit of its own host.
NOT_COPIED = SYS_FLAG_TRANSACTION_MASK | SYS_FLAG_STORE_HOST_V6


class Copy(NamedTuple):
    """The message of ``view`` in another queue, with other ``properties``: body, flag and whatever says where it was
    born stay, and so does what is None. Without a ``tags_code`` it gets the hash of its tag."""

    view: RecordView
    topic: str
    queue_id: int
    properties: bytes
    tags_code: int | None = None
    sys_flag: int | None = None
    reconsume_times: int | None = None
    #: Physical offset of the half message that it was.
    prepared: int = 0


def where_read(topics: TopicTable, copy: Copy) -> Copy:
    """What waited for its topic, which may have fewer queues by now: in one of these, for nobody would read another."""
    topic = topics.get(copy.topic)
    if topic is None or copy.queue_id < topic.max_queues:
        return copy
    return copy._replace(queue_id=copy.queue_id % max(1, topic.write_queues))


def store_copy(store: MessageStore, copy: Copy, done: Callable[[PutResult], None]) -> None:
    """Append it. Raises as ``MessageStore.append``."""
    view, code = copy.view, copy.tags_code
    if code is None:
        code = tags_code_in(copy.properties, 0, len(copy.properties))
    store.append(
        copy.topic,
        copy.queue_id,
        view.raw_body,
        copy.properties,
        flag=view.flag,
        sys_flag=view.sys_flag if copy.sys_flag is None else copy.sys_flag,
        born_timestamp=view.born_timestamp,
        born_host=view.born_host_bytes,
        reconsume_times=view.reconsume_times if copy.reconsume_times is None else copy.reconsume_times,
        prepared_transaction_offset=copy.prepared,
        tags_code=code,
        done=done,
    )


def copied_properties(view: RecordView) -> dict[str, str]:
    """Those of a message to be stored again. A batch is stored as it comes, also with text that is not UTF-8 or has
    separators in it: the copy gets question marks there (Java's replacement characters may make it too long), because a
    message whose consumer fails on it must not stay there for ever."""
    try:
        found = dict(view.properties)
    except ProtocolError:
        found = decode_properties(view.raw_properties.decode("utf-8", "replace").replace("\ufffd", "?").encode())
    return {name: value.replace("\1", "?") for name, value in found.items()}
