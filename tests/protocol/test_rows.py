"""The cheap NamedTuple behaves as typing's does."""

from __future__ import annotations

import copy
import pickle
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket_protocol import rows


class Real(typing.NamedTuple):
    """Doc."""

    a: int
    b: str
    c: int | None = None
    d: tuple[int, ...] = ()

    def both(self) -> str:
        return f"{self.a}{self.b}"


class Row(rows.NamedTuple):
    """Doc."""

    a: int
    b: str
    c: int | None = None
    d: tuple[int, ...] = ()

    def both(self) -> str:
        return f"{self.a}{self.b}"


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])


def outcome(kind: Any, values: list[int], named: dict[str, int]) -> Any:
    try:
        return tuple(kind(*values, **named))
    except TypeError:
        return TypeError


@given(st.lists(st.integers(), max_size=5), st.dictionaries(NAMES, st.integers(), max_size=4))
def test_construction(values: list[int], named: dict[str, int]) -> None:
    assert outcome(Row, values, named) == outcome(Real, values, named)


def test_the_rest_of_its_face() -> None:
    row: Any = Row(1, "x")
    real = Real(1, "x")
    assert (row.a, row.b, row.c, row.d, row.both()) == (1, "x", None, (), "1x")
    assert row == real == (1, "x", None, ()) and hash(row) == hash(real)
    assert repr(row) == repr(real).replace("Real", "Row")
    assert row._fields == real._fields and row._asdict() == real._asdict()
    assert row._replace(c=3) == real._replace(c=3) and type(row._replace(c=3)) is Row
    assert Row._make([1, "x", 2, ()]) == Real._make([1, "x", 2, ()])
    assert pickle.loads(pickle.dumps(row)) == copy.copy(row) == copy.deepcopy(row) == row
    assert type(pickle.loads(pickle.dumps(row))) is Row and Row.__doc__ == Real.__doc__
    match row:
        case Row(a, b):  # type: ignore[misc]
            assert (a, b) == (1, "x")
    with pytest.raises(ValueError, match="no field 'z'"):
        row._replace(z=1)
    with pytest.raises(TypeError):
        Row._make([1])
    with pytest.raises(AttributeError):
        row.a = 2
    with pytest.raises(AttributeError):
        row.new = 2
