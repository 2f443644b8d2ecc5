from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.cli import lines
from aiorocket.cli.lines import LineSource
from aiorocket.cli.options import BadInputError


async def read(source: LineSource) -> list[tuple[int, bytes]]:
    return [(line.number, line.body) async for line in source]


async def test_lines_are_bytes_with_their_numbers_and_empty_ones_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"one\r\n\n\xff\xfe\n\r\nlast")
    source = LineSource(str(path))
    assert source.check() == 3
    assert await read(source) == [(1, b"one"), (3, b"\xff\xfe"), (5, b"last")]
    assert source.empty == 2


async def test_a_line_may_be_as_long_as_a_body_and_not_longer(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x" * lines.MAX_LINE + b"\r\nshort\n")
    assert LineSource(str(path)).check() == 2
    path.write_bytes(b"short\n" + b"x" * (lines.MAX_LINE + 1) + b"\n")
    with pytest.raises(BadInputError, match=r"line 2 is longer than 4194304 bytes"):
        LineSource(str(path)).check()
    with pytest.raises(BadInputError, match=r"line 2 is longer"):
        await read(LineSource(str(path)))


@pytest.mark.parametrize("end", [b"", b"\n"])
async def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\n" + b"x" * 300 + end)
    with pytest.raises(BadInputError, match="line 2 is longer than 100 bytes"):
        await read(LineSource(str(path), limit=100))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"missing: No such file"):
        LineSource(str(tmp_path / "missing")).check()
    with pytest.raises(BadInputError, match=r"is a directory"):
        LineSource(str(tmp_path)).check()


async def test_a_pipe_is_read_as_it_comes_and_does_not_block_the_loop(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    keep = os.open(fifo, os.O_RDWR)  # so that neither end waits for the other to open
    try:
        source = LineSource(str(fifo))
        assert source.check() is None
        found: list[bytes] = []

        async def collect() -> None:
            async for line in source:
                found.append(line.body)

        task = asyncio.ensure_future(collect())
        for part in (b"ha", b"lf\nwho", b"le\n"):
            os.write(keep, part)
            await asyncio.sleep(0.02)
        assert found == [b"half", b"whole"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        os.close(keep)


@given(data=st.binary(max_size=200).map(lambda raw: raw.replace(b"a", b"\n")), size=st.integers(1, 50))
def test_any_chunks_give_the_same_lines(data: bytes, size: int) -> None:
    def split(step: int) -> tuple[list[lines.Line], int]:
        source = LineSource("-")
        found = [line for at in range(0, len(data), step) for line in source._split(data[at : at + step])]
        return found + source._last(), source.empty

    assert split(size) == split(len(data) + 1)
