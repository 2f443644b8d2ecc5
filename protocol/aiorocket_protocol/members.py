"""A long body, read little by little: members of its objects one by one, and nothing of the rest of it in memory.

What one call reads is small: a value within the next PIECE of the body is read by the library's own code, a longer one
is gone through item by item and left out. So the time that passes until others may have their turn depends neither on
the body's length nor on what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterator
from typing import Any

import msgpack

from aiorocket_protocol import fastjson
from aiorocket_protocol.command import MSGPACK
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import MAX_LENIENT, MAX_NESTING

__all__ = ("PIECE", "Member", "Path", "members")

#: Characters, or bytes of msgpack.
PIECE = 32 << 10
#: Of one text.
LONGEST = 1 << 20
#: Members and items that are read or gone through one by one: some seconds, in turns.
MOST = 1 << 19
#: What a name or a number costs beside its length.
_STEP = 32
#: First bytes of msgpack's arrays and maps.
_ARRAYS = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))
_MAPS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))

Path = tuple[Any, ...]
#: The object that it stands in (the outermost is the empty path), its name, its value: None in place of a long one.
Member = tuple[Path, Any, Any]


def members(data: bytes, serialize_type: int, into: Container[Path], where: str) -> Iterator[Member | None]:
    """Those of the objects ``into``, in their order; None wherever others may have their turn. ProtocolError for what
    is malformed, when it is come to."""
    reader = _Packed(data, into, where) if serialize_type == MSGPACK else _Text(data, into, where)
    return reader.document()


class _Reader:
    """``at`` is what is read next."""

    at = 0
    spent = 0
    left = MOST

    def __init__(self, into: Container[Path], where: str) -> None:
        self.into = into
        self.where = where

    def paid(self, cost: int) -> bool:
        """Whether it is the others' turn after this."""
        self.left -= 1
        if self.left < 0:
            raise ProtocolError(f"more than {MOST} members and items", where=self.where)
        self.spent += cost + _STEP
        if self.spent < PIECE:
            return False
        self.spent = 0
        return True

    def deeper(self, depth: int) -> int:
        if depth >= MAX_NESTING:
            raise ProtocolError(f"more than {MAX_NESTING} levels at {self.at}", where=self.where)
        return depth + 1


class _Text(_Reader):
    def __init__(self, data: bytes, into: Container[Path], where: str) -> None:
        super().__init__(into, where)
        self.read = fastjson.Tolerant(fastjson.text_of(data), None)

    def document(self) -> Iterator[Member | None]:
        read = self.read
        if read.blank() != "{":
            raise ProtocolError("an object is needed", where=self.where)
        yield from self.object((), 0)
        read.blank()
        if read.at != len(read.text):
            raise read.error("something follows the value")

    def object(self, path: Path, depth: int, wanted: bool = True) -> Iterator[Any]:
        read, depth = self.read, self.deeper(depth)
        read.at += 1
        while read.blank() != "}":
            begin = read.at
            name = self.key(depth)
            if read.blank() != ":":
                raise read.error("':' is needed after a key")
            read.at += 1
            if wanted and read.blank() == "{" and (inside := (*path, name)) in self.into:
                yield from self.object(inside, depth)
            else:
                value = yield from self.value(depth, wanted)
                if wanted:
                    yield path, name, value
            if self.paid(min(read.at - begin, PIECE)):
                yield None
            if not read.separator("}"):
                break
        read.at += 1

    def array(self, depth: int) -> Iterator[Any]:
        read, depth = self.read, self.deeper(depth)
        read.at += 1
        while read.blank() != "]":
            begin = read.at
            yield from self.value(depth, False)
            if self.paid(min(read.at - begin, PIECE)):
                yield None
            if not read.separator("]"):
                break
        read.at += 1

    def key(self, depth: int) -> Any:
        if self.read.blank() == "{":
            return self.small(lambda read: read.key(depth))
        return self.scalar(self.read.key, depth)

    def scalar(self, call: Callable[[int], Any], depth: int) -> Any:
        read = self.read
        begin = read.at
        try:
            found = call(depth)
        except (ValueError, IndexError) as error:
            if isinstance(error, ProtocolError):
                raise
            raise read.error("unexpected end or bad text") from None
        if read.at - begin > LONGEST:
            raise read.error(f"more than {LONGEST} characters in one text before this:")
        fastjson.check_pairs(read.text[begin : read.at])
        return found

    def small(self, call: Callable[[fastjson.Tolerant], Any]) -> Any:
        """Something in braces or brackets that ends within the next piece, in whatever JSON."""
        piece = fastjson.Tolerant(self.read.text[self.read.at : self.read.at + PIECE], MAX_LENIENT)
        try:
            found = call(piece)
        except (ValueError, IndexError) as error:
            if isinstance(error, ProtocolError):
                raise
            raise piece.error("unexpected end or bad text") from None
        fastjson.check_pairs(piece.text[: piece.at])
        self.read.at += piece.at
        return found

    def value(self, depth: int, wanted: bool) -> Generator[Any, None, Any]:
        read = self.read
        first = read.blank()
        if first != "{" and first != "[":
            return self.scalar(read.value, depth)
        piece = read.text[read.at : read.at + PIECE]
        try:
            found, end = fastjson.strict_part(piece, 0)
        except (ValueError, RecursionError, StopIteration):
            if self.paid(PIECE):
                yield None
        else:
            fastjson.check_pairs(piece[:end])
            read.at += end
            return found
        if wanted:
            try:
                return self.small(lambda read: read.value(depth))
            except ProtocolError:
                yield None
        yield from self.object((), depth, False) if first == "{" else self.array(depth)
        return None


class _Packed(_Reader):
    def __init__(self, data: bytes, into: Container[Path], where: str) -> None:
        super().__init__(into, where)
        self.data = data
        #: Goes on where the last value ended, unless that was gone through.
        self.unpacker = self.fresh(0)
        self.begun = 0

    def document(self) -> Iterator[Member | None]:
        if self.data[:1] and self.data[0] not in _MAPS:
            raise ProtocolError("an object is needed", where=self.where)
        yield from self.object((), 0)
        if self.at != len(self.data):
            raise ProtocolError(f"something follows the value at {self.at}", where=self.where)

    def object(self, path: Path, depth: int, wanted: bool = True) -> Iterator[Any]:
        depth = self.deeper(depth)
        for _ in range(self.header(msgpack.Unpacker.read_map_header)):
            begin = self.at
            name = self.scalar()
            if type(name) is not str:
                raise ProtocolError(f"a name is needed at {begin}", where=self.where)
            if wanted and self.kind() in _MAPS and (inside := (*path, name)) in self.into:
                yield from self.object(inside, depth)
            else:
                value = yield from self.value(depth, wanted)
                if wanted:
                    yield path, name, value
            if self.paid(min(self.at - begin, PIECE)):
                yield None

    def array(self, depth: int) -> Iterator[Any]:
        depth = self.deeper(depth)
        for _ in range(self.header(msgpack.Unpacker.read_array_header)):
            begin = self.at
            yield from self.value(depth, False)
            if self.paid(min(self.at - begin, PIECE)):
                yield None

    def kind(self) -> int:
        if self.at >= len(self.data):
            raise self.cut_off()
        return self.data[self.at]

    def value(self, depth: int, wanted: bool) -> Generator[Any, None, Any]:
        kind = self.kind()
        if kind not in _MAPS and kind not in _ARRAYS:
            return self.scalar()
        for again in (False, True):  # what is left of a piece, and a piece
            try:
                return self.part(PIECE, fresh=again)
            except msgpack.OutOfData:
                continue
        if self.paid(PIECE):
            yield None
        yield from self.object((), depth, False) if kind in _MAPS else self.array(depth)
        return None

    def scalar(self) -> Any:
        for most, fresh in ((PIECE, False), (LONGEST, True)):
            try:
                return self.part(most, fresh=fresh)
            except msgpack.OutOfData:
                continue
        raise self.cut_off()

    def part(self, most: int, *, fresh: bool) -> Any:
        if fresh or self.begun + self.unpacker.tell() != self.at:
            self.unpacker, self.begun = self.fresh(most), self.at
        try:
            found = self.unpacker.unpack()
        except msgpack.OutOfData:
            raise
        except (ValueError, msgpack.UnpackException) as error:
            raise ProtocolError(f"not msgpack: {str(error) or type(error).__name__}", where=self.where) from None
        self.at = self.begun + self.unpacker.tell()
        return found

    def header(self, read: Callable[[msgpack.Unpacker], int]) -> int:
        unpacker = self.fresh(5)
        try:
            count = read(unpacker)
        except msgpack.OutOfData:
            raise self.cut_off() from None
        self.at += unpacker.tell()
        return count

    def fresh(self, most: int) -> msgpack.Unpacker:
        unpacker = msgpack.Unpacker(strict_map_key=True, max_ext_len=0)
        unpacker.feed(self.data[self.at : self.at + most])
        return unpacker

    def cut_off(self) -> ProtocolError:
        return ProtocolError(
            f"not msgpack: cut off at {self.at}, or more than {LONGEST} bytes in one text", where=self.where
        )
