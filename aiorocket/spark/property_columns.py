"""The property strings of many records (``name 0x01 value 0x02`` …) taken apart at once, and cutting text out of
buffers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aiorocket.spark.columns import arrow_schema

__all__ = ("PropertyTable", "as_text", "bad_text", "cut", "map_of", "numbers")

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_AFTER_NAME, _AFTER_VALUE = 1, 2
#: Rows with more properties are read one by one: the search for names given twice compares each with so many others.
_MANY = 64
_MAP = arrow_schema(["properties"]).field(0).type


def cut(data: bytes, begins: Ints, ends: Ints) -> pa.BinaryArray:
    """``data[begin:end]`` of each row; rows are in order and do not overlap."""
    count = len(begins)
    if not count:
        return pa.array([], pa.binary())
    places = np.empty(2 * count, np.int32)
    places[0::2], places[1::2] = begins, ends
    # Every second piece lies between rows and is left out.
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(places), pa.py_buffer(data)])
    return pieces.take(numbers(np.arange(0, 2 * count, 2)))


def numbers(values: npt.NDArray[Any], valid: Mask | None = None) -> pa.Array:
    """An Arrow array over ``values``; null where not ``valid``. (``pa.array`` copies, and imports pandas if it can.)"""
    missing = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [missing, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def map_of(firsts: pa.Array, names: pa.StringArray, values: pa.StringArray) -> pa.MapArray:
    """A column of properties: those of row n are the ones from ``firsts[n]`` up to ``firsts[n + 1]``."""
    return pa.MapArray.from_arrays(firsts, names, values, _MAP)


def bad_text(column: pa.BinaryArray) -> Mask | None:
    """The rows that are not UTF-8; None when there is none."""
    _, text = _content(column)
    if not len(text) or text.max() < 0x80:
        return None
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([not _is_text(value) for value in column.to_pylist()])
    return None


def as_text(column: pa.BinaryArray) -> pa.StringArray:
    """The same bytes as text; only for what ``bad_text`` has found good."""
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers())


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _content(column: pa.BinaryArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Where the rows of an array without nulls begin and end in its bytes, and the bytes."""
    _, places, content = column.buffers()
    if not len(column) or content is None:
        return np.zeros(len(column) + 1, np.int32), np.empty(0, np.uint8)
    offsets = np.frombuffer(places, np.int32, len(column) + 1)
    return offsets, np.frombuffer(content, np.uint8, int(offsets[-1]))


def _repeats(values: npt.NDArray[Any], period: int) -> bool:
    return np.array_equal(values[period:], values[:-period])


class PropertyTable:
    """Properties of many rows. ``find_odd`` comes first: the columns are right only when it has found none."""

    def __init__(self, data: bytes, begins: Ints, ends: Ints) -> None:
        self._strings = cut(data, begins, ends)
        self._bounds, self._text = _content(self._strings)
        self._rows = len(begins)
        self._count = 0
        self._pieces: pa.StringArray = pa.array([], pa.string())
        self._names: pa.StringArray = self._pieces
        # The names that occur, and which of them each property has; no codes when all rows have `_known` in that order.
        self._known: list[str] = []
        self._codes: npt.NDArray[np.int32] | None = None
        self._first = np.zeros(self._rows + 1, np.int32)

    def find_odd(self, *, as_json: bool = False) -> Mask | None:
        """Rows that must be read one by one: not UTF-8, a separator too many or too few, an empty name or value, a name
        given twice, and for JSON text that needs escapes. None when there is none; the rows of one kind at a time
        otherwise, so ask again without them."""
        odd = bad_text(self._strings)
        if odd is None and as_json:
            odd = self._find_escapes()
        return odd if odd is not None else self._split()

    def map(self) -> pa.MapArray:
        """All of them, in stored order."""
        values = self._pieces.take(numbers(np.arange(2, 4 * self._count, 4)))
        return map_of(numbers(self._first), self._names, values)

    def json(self) -> pa.StringArray:
        """All of them as a compact JSON object."""
        # `a 1 b 2 c 1 d 2` -> `a":"b","c":"d`, in quotes and braces
        text = pc.ascii_rtrim(as_text(self._strings), "\x02")
        text = pc.replace_substring(pc.replace_substring(text, "\x01", '":"'), "\x02", '","')
        full = pc.binary_join_element_wise('{"', text, '"}', "")
        return pc.if_else(pa.array(np.diff(self._bounds) == 0), "{}", full)

    def values(self, name: str, *, otherwise: Callable[[], pa.Array] | None = None) -> pa.StringArray:
        """The property ``name`` of each row; rows without it are null, or have what ``otherwise`` gives for all."""
        if name not in self._known:
            return pa.nulls(self._rows, pa.string()) if otherwise is None else otherwise()
        place = self._known.index(name)
        if self._codes is None:
            return self._pieces.take(numbers(np.arange(place, self._count, len(self._known)) * 4 + 2))
        found = np.flatnonzero(self._codes == place)
        index = np.full(self._rows, -1)
        index[self._row_of[found]] = found * 4 + 2
        there = index >= 0
        if there.all():
            return self._pieces.take(numbers(index))
        values = self._pieces.take(numbers(index, there))
        return values if otherwise is None else pc.coalesce(values, otherwise())

    def _find_escapes(self) -> Mask | None:
        text = self._text
        escaped = (text == ord('"')) | (text == ord("\\")) | ((text < 0x20) & (text - 1 > 1))
        return self._rows_of(np.flatnonzero(escaped))

    def _rows_of(self, places: Ints) -> Mask | None:
        """The rows that hold these places of the text."""
        if not len(places):
            return None
        mask = np.zeros(self._rows, bool)
        mask[np.searchsorted(self._bounds, places, "right") - 1] = True
        return mask

    def _split(self) -> Mask | None:
        text, bounds = self._text, self._bounds
        places = np.flatnonzero(text - 1 < 2)  # 0 - 1 is 255
        kinds = text[places]
        nexts = places + 1
        # RocketMQ 4.9 leaves out the last separator of a string: one of no width is put there.
        ends = bounds[1:]
        unended = ends[(np.diff(bounds) > 0) & (text[ends - 1] != _AFTER_VALUE)] if len(text) else ends[:0]
        if len(unended):
            at = np.searchsorted(places, unended)
            places, nexts = np.insert(places, at, unended), np.insert(nexts, at, unended)
            kinds = np.insert(kinds, at, _AFTER_VALUE)
        # Every row ends behind a value, so when the kinds alternate in all, they do in each.
        if len(kinds) % 2 or not (np.all(kinds[0::2] == _AFTER_NAME) and np.all(kinds[1::2] == _AFTER_VALUE)):
            return self._out_of_order(nexts - 1, kinds)
        middles, stops = places[0::2], places[1::2]
        begins = np.empty_like(middles)
        if len(begins):
            begins[0], begins[1:] = 0, nexts[1:-1:2]
        self._count = len(middles)
        self._first = self._firsts(nexts[1::2])
        empty = (middles == begins) | (stops == middles + 1)
        if empty.any():
            return self._rows_of(middles[empty])
        self._make_pieces(begins, middles, stops, nexts[1::2])
        return self._find_twice()

    def _firsts(self, stops: Ints) -> npt.NDArray[np.int32]:
        """The number of the first property of each row, and of all; properties end at ``stops``."""
        each, rest = divmod(self._count, self._rows or 1)
        if each and not rest and np.array_equal(stops[each - 1 :: each], self._bounds[1:]):
            return np.arange(0, self._count + 1, each, dtype=np.int32)  # as many in each row, the common case
        return np.searchsorted(stops, self._bounds, "right").astype(np.int32)

    @cached_property
    def _row_of(self) -> Ints:
        """The row of each property."""
        return np.repeat(np.arange(self._rows), np.diff(self._first))

    def _out_of_order(self, last_bytes: Ints, kinds: npt.NDArray[np.uint8]) -> Mask:
        """Rows where the separators are not name, value, name, value. ``last_bytes`` are places within their rows."""
        rows = np.searchsorted(self._bounds, last_bytes, "right") - 1
        first = np.searchsorted(rows, rows)
        wrong = kinds != _AFTER_NAME + (np.arange(len(rows)) - first) % 2
        mask = np.zeros(self._rows, bool)
        mask[rows[wrong]] = True
        return mask

    def _make_pieces(self, begins: Ints, middles: Ints, stops: Ints, nexts: Ints) -> None:
        """Name, separator, value, separator of every property as pieces of the text."""
        if not self._count:
            return
        cuts = np.empty(4 * self._count + 1, np.int32)
        cuts[0:-1:4], cuts[1::4], cuts[2::4], cuts[3::4] = begins, middles, middles + 1, stops
        cuts[-1] = nexts[-1]
        text = self._strings.buffers()[2]
        self._pieces = pa.Array.from_buffers(pa.string(), 4 * self._count, [None, pa.py_buffer(cuts), text])
        self._names = self._pieces.take(numbers(np.arange(0, 4 * self._count, 4)))
        if self._all_alike(middles - begins):
            self._known = self._names[: self._count // self._rows].to_pylist()
        else:
            found = self._names.dictionary_encode()
            self._codes = found.indices.to_numpy()
            self._known = found.dictionary.to_pylist()

    def _all_alike(self, lengths: Ints) -> bool:
        """Whether all rows have the same names in the same order, as the messages of one sender mostly do."""
        each, rest = divmod(self._count, self._rows)
        if rest or not np.array_equal(self._first, np.arange(0, self._count + 1, each)):
            return False
        _, text = _content(self._names)
        return _repeats(lengths, each) and _repeats(text, len(text) // self._rows)

    def _find_twice(self) -> Mask | None:
        if self._codes is None:
            twice = len(set(self._known)) < len(self._known)
            return np.ones(self._rows, bool) if twice else None
        counts = np.diff(self._first)
        most = int(counts.max(initial=0))
        mask = counts > _MANY
        if not mask.any():
            # Numbers that are equal only for the same name in the same row, compared at every distance in a row.
            each = self._row_of * len(self._known) + self._codes
            for distance in range(1, most):
                same = each[distance:] == each[:-distance]
                if same.any():
                    mask[self._row_of[distance:][same]] = True
        return mask if mask.any() else None
