"""Checksums that are made and compared in compiled code are those of the pure way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.storage import checksums
from aiorocket.storage.checksums import PAGE, Checksums
from aiorocket_protocol import fast

if fast.SPEEDUPS is None:
    pytest.skip("aiorocketmq-speedups is not installed (pip install ./protocol/speedups)", allow_module_level=True)

SIZES = st.integers(0, 300) | st.sampled_from([PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE + 7])


def written(groups: list[list[Any]], monkeypatch: pytest.MonkeyPatch | None = None) -> tuple[Any, ...]:
    if monkeypatch is not None:
        monkeypatch.setattr(checksums, "_cover", None)
    sums = Checksums()
    rows = [sums.add(group) for group in groups]
    return rows, list(sums.pages), sums.last, sums


@given(st.lists(st.lists(SIZES, max_size=4), max_size=4), st.integers(0, 255), st.booleans())
def test_the_same_is_covered(sizes: list[list[int]], byte: int, views: bool) -> None:
    groups: list[list[Any]] = [[bytes([(byte + size) % 256]) * size for size in group] for group in sizes]
    if views and groups and groups[-1]:
        groups[-1][-1] = memoryview(groups[-1][-1])  # as a block of zeros may come: the pure way takes the group
    with pytest.MonkeyPatch.context() as patch:
        pure = written(groups, patch)[:3]
    assert written(groups)[:3] == pure


@given(
    st.lists(SIZES, min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 2**17),
    st.integers(0, 2**17),
    st.booleans(),
)
def test_the_same_is_wrong(sizes: list[int], page: int, cut: int, change: int, changed: bool) -> None:
    data = b"".join(bytes([index + 1]) * size for index, size in enumerate(sizes))
    sums = written([[data]])[3]
    position = page * PAGE
    part = bytearray(data[position:])
    del part[len(part) - cut % (len(part) + 1) if cut % 3 == 0 else len(part) :]
    if changed and part:
        part[change % len(part)] ^= 1
    got = sums.wrong(bytes(part), position, sums.last)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "_wrong_pages", None)
        assert got == sums.wrong(bytes(part), position, sums.last)
    assert not got or changed or cut % 3 == 0
