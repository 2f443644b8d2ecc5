"""Bodies with tens of thousands of entries, written little by little."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, TypeVar

from aiorocket_protocol.bodies import encode_body
from aiorocket_protocol.command import MSGPACK
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import MAX_FRAME

__all__ = ("bare_list", "list_body", "table_body")

#: Bytes, and entries, written before others have their turn: a millisecond or two.
_A_TURN, _ENTRIES = 128 << 10, 500

_T = TypeVar("_T")
_NONE: Mapping[str, Any] = {}


def table_body(
    head: Mapping[str, Any],
    name: str,
    entries: Iterable[_T],
    plain: Callable[[_T], tuple[Any, Any] | bytes],
    serialize_type: int,
    tail: Mapping[str, Any] = _NONE,
    *,
    at_once: int = _ENTRIES,
) -> Generator[None, None, bytes]:
    """``head``, an object of which ``plain`` makes each of ``entries`` a key and a value, and ``tail``: one object,
    as ``encode_body`` writes it. ProtocolError when it is more than a frame can hold. Bytes are an object with one
    key and value that was written before; others have their turn after ``at_once`` entries."""
    ones = (_bare(one, serialize_type) if isinstance(one, bytes) else dict([one]) for one in map(plain, entries))
    return _written({**head, name: {}, **tail}, tail, ones, serialize_type, at_once)


def list_body(
    head: Mapping[str, Any],
    name: str,
    entries: Iterable[Any],
    serialize_type: int,
    tail: Mapping[str, Any] = _NONE,
) -> Generator[None, None, bytes]:
    """The same with a list of ``entries``; those that are bytes were written before."""
    ones = (entry if type(entry) is bytes else [entry] for entry in entries)
    return _written({**head, name: [], **tail}, tail, ones, serialize_type)


def bare_list(entries: Iterable[Any], serialize_type: int) -> Generator[None, None, bytes]:
    """The same of a list that is all there is."""
    return _written([], _NONE, (entry if type(entry) is bytes else [entry] for entry in entries), serialize_type)


def _written(
    whole: dict[str, Any] | list[Any],
    tail: Mapping[str, Any],
    ones: Iterable[dict[Any, Any] | list[Any] | bytes],
    serialize_type: int,
    at_once: int = _ENTRIES,
) -> Generator[None, None, bytes]:
    """The last member of ``whole`` before ``tail`` is empty, or all of it, and ``ones`` are what it is to hold, each by
    itself."""
    packed = serialize_type == MSGPACK
    around = encode_body(whole, serialize_type)
    end = encode_body(dict(tail), serialize_type)[1:] if isinstance(whole, dict) else b""
    if not packed and tail:
        end = b"," + end
    at = len(around) - len(end) - (1 if packed else 2)  # where the empty one begins, but for its bracket
    parts: list[bytes] = []
    size = turn = 0
    for one in ones:
        part = one if isinstance(one, bytes) else _bare(encode_body(one, serialize_type), serialize_type)
        parts.append(part)
        size += len(part)
        if size > MAX_FRAME:
            raise ProtocolError(f"the answer would be larger than {MAX_FRAME} bytes", where="body")
        if size - turn >= _A_TURN or len(parts) % at_once == 0:
            turn = size
            yield
    if not packed:
        return b"".join((around[: at + 1], b",".join(parts), around[at + 1 :]))
    return b"".join((around[:at], _counted(len(parts), around[at]), *parts, end))


def _bare(one: bytes, serialize_type: int) -> bytes:
    """What is in an object or list of one."""
    return one[1:] if serialize_type == MSGPACK else one[1:-1]


def _counted(count: int, empty: int) -> bytes:
    """How msgpack begins a map or list of ``count``; ``empty`` is how it begins one of none."""
    if count < 16:
        return bytes((empty | count,))
    is_map = empty == 0x80
    if count < 1 << 16:
        return bytes((0xDE if is_map else 0xDC,)) + count.to_bytes(2, "big")
    return bytes((0xDF if is_map else 0xDD,)) + count.to_bytes(4, "big")
