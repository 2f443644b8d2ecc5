"""Pulls (codes 11 and 361): the request header by the names of its fields, and the head of an answer with messages."""

from __future__ import annotations

from struct import Struct

from aiorocket_protocol.codec import encode_head
from aiorocket_protocol.command import FLAG_RESPONSE, JSON, RemotingCommand
from aiorocket_protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from aiorocket_protocol.limits import MAX_FRAME
from aiorocket_protocol.names import ALL_TAGS, PULL_SUBSCRIPTION, TAG, VERSION

__all__ = ("found_head", "pull_header")

_pack_words = Struct(">II").pack
#: As codec_json.py makes it of such an answer.
_FOUND = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"},'
    b'"flag":1,"language":"PYTHON","opaque":%d,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":%d}'
)


def pull_header(
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    max_messages: int,
    *,
    flags: int = PULL_SUBSCRIPTION,
    commit_offset: int = 0,
    hold_ms: int = 0,
    version: int = 0,
    expression: str | None = ALL_TAGS,
    expression_type: str | None = TAG,
    max_bytes: int | None = None,
) -> PullMessageRequestHeader:
    """Everything from ``offset`` on, at once, unless more is said. ``flags`` are the PULL_ bits: ``commit_offset``
    counts with PULL_COMMIT only, ``hold_ms`` with PULL_SUSPEND, ``expression`` with PULL_SUBSCRIPTION; without that the
    broker takes what heartbeats said, at least of this ``version``. Apache's brokers have limits of their own below
    ``max_messages`` and ``max_bytes``."""
    return PullMessageRequestHeader(
        group, topic, queue_id, offset, max_messages, flags, commit_offset, hold_ms, version, expression,
        expression_type, max_bytes,
    )  # fmt: skip


def found_head(serialize_type: int, opaque: int, next_offset: int, low: int, high: int, size: int) -> bytes:
    """``encode_head`` of the answer with ``size`` bytes of messages, whose queue goes from ``low`` to ``high``."""
    if serialize_type == JSON and size < MAX_FRAME - 1024:
        header = _FOUND % (next_offset, low, high, opaque, VERSION)
        return _pack_words(4 + len(header) + size, len(header)) + header
    answer = PullMessageResponseHeader(0, next_offset, low, high)
    return encode_head(RemotingCommand(0, opaque, FLAG_RESPONSE, remark="FOUND", header=answer), serialize_type, size)
