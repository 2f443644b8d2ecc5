"""A stored message stored once more: due, sent back, checked or committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aiorocket_protocol import RecordView, tags_code

if TYPE_CHECKING:
    from aiorocket.storage.results import PutResult
    from aiorocket.storage.store import MessageStore

__all__ = ("store_copy",)


def store_copy(
    store: MessageStore,
    view: RecordView,
    topic: str,
    queue_id: int,
    properties: bytes,
    done: Callable[[PutResult], None],
    *,
    code: int | None = None,
    sys_flag: int | None = None,
    reconsume_times: int | None = None,
    prepared: int = 0,
) -> None:
    """Append the message of ``view`` to another queue with other ``properties``: body, flag and whatever says where it
    was born stay, and so does what is None. ``code`` is its tags code there (None: the hash of its tag). Raises as
    ``MessageStore.append``."""
    if code is None:
        tag = view.tag
        code = tags_code(tag) if tag else 0
    store.append(
        topic,
        queue_id,
        view.raw_body,
        properties,
        flag=view.flag,
        sys_flag=view.sys_flag if sys_flag is None else sys_flag,
        born_timestamp=view.born_timestamp,
        born_host=view.born_host_bytes,
        reconsume_times=view.reconsume_times if reconsume_times is None else reconsume_times,
        prepared_transaction_offset=prepared,
        tags_code=code,
        done=done,
    )
