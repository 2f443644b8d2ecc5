"""Small state files: one JSON object, two generations, each with its checksum; the newest valid one wins.

A save replaces the *older* generation atomically, so a crash, a torn write or a flipped bit in one file leaves the
other; the first save makes both, so that a file that is missing later is known to have been there. The first line of a
file is ``aiorocket-state 1 CRC32 GENERATION``, then the JSON text follows; the checksum covers the generation, its
newline and the text.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from aiorocket.errors import StoreCorruptedError
from aiorocket.runtime.disk import Disk
from aiorocket.storage.files import read_whole

__all__ = ("Snapshot",)

_MAGIC = b"aiorocket-state"
_VERSION = 1
#: Values written in one call: some 100 us. A call that writes hundreds of thousands keeps the interpreter, and with it
#: the loop in the other thread, until it is done.
_A_PIECE = 1_000
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Snapshot:
    """The state file ``path`` (its two generations are ``path.a`` and ``path.b``). Methods block: give them to
    ``disk.run``."""

    __slots__ = ("_disk", "_generation", "path", "problems")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._generation = 0
        #: Generations that were there and could not be read when this was loaded, and why: what they said is lost.
        self.problems: list[str] = []

    def load(self) -> dict[str, Any] | None:
        """The newest valid state, None when there is none yet. StoreCorruptedError when files exist and none is
        valid."""
        newest: dict[str, Any] | None = None
        problems = self.problems = []
        for path in (self.path + ".a", self.path + ".b"):
            if not self._disk.exists(path):
                continue
            try:
                generation, value = _parse(read_whole(self._disk, path))
            except (ValueError, UnicodeDecodeError) as error:
                problems.append(f"{path}: {error}")
                continue
            if generation > self._generation:
                self._generation, newest = generation, value
        missing = [path for path in (self.path + ".a", self.path + ".b") if not self._disk.exists(path)]
        if newest is not None and self._generation > 1 and missing:
            problems.append(f"{missing[0]}: missing, although there were {self._generation} saves")
        if newest is None and problems:
            raise StoreCorruptedError("; ".join(problems))
        return newest

    def save(self, value: dict[str, Any]) -> None:
        """Make ``value`` the state, durably. OSError leaves the previous state in force, or this one in one file."""
        text = "".join(_pieces(value)).encode()
        self._write(text)
        if self._generation == 1:
            self._write(text)

    def _write(self, text: bytes) -> None:
        generation = self._generation + 1
        number = b"%d\n" % generation
        checksum = zlib.crc32(text, zlib.crc32(number))  # of both, without a copy: a text may be many MB
        whole = b"%s %d %08x %s%s" % (_MAGIC, _VERSION, checksum, number, text)
        self._disk.replace(f"{self.path}.{'ab'[generation & 1]}", whole)
        self._generation = generation


def _pieces(value: dict[str, Any] | list[Any], *, inside: bool = False) -> Iterator[str]:
    """As JSON, piece by piece: the members of ``value``, and what is large in them."""
    named = isinstance(value, dict)
    some: list[Any] = []
    count = 0
    mark = "{" if named else "["
    entries: Iterable[Any] = value.items() if isinstance(value, dict) else value
    for entry in entries:
        inner = entry[1] if named else entry
        size = len(inner) if isinstance(inner, dict | list) else 0
        alone = size >= _A_PIECE or (size > 0 and not inside)
        if some and (alone or count + size >= _A_PIECE):
            yield mark + _encode(dict(some) if named else some)[1:-1]
            some, count, mark = [], 0, ","
        if alone:
            yield mark + (_encode(entry[0]) + ":" if named else "")
            yield from _pieces(inner, inside=True)
            mark = ","
        else:
            some.append(entry)
            count += 1 + size
    if some or not value:
        yield mark + _encode(dict(some) if named else some)[1:-1]
    yield "}" if named else "]"


def _parse(data: bytes) -> tuple[int, dict[str, Any]]:
    magic, _, rest = data.partition(b" ")
    version, _, rest = rest.partition(b" ")
    checksum, _, covered = rest.partition(b" ")
    if magic != _MAGIC:
        raise ValueError("not a state file of aiorocket")
    if version != b"%d" % _VERSION:
        raise ValueError(f"state format {version!r:.20}, this program understands {_VERSION}")
    if checksum != b"%08x" % zlib.crc32(covered):
        raise ValueError("the checksum does not fit the content")
    generation, _, text = covered.partition(b"\n")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("the content is not an object")
    return int(generation), value
