"""Bodies that are a Java properties file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket_protocol import ProtocolError, decode_configuration, encode_configuration

NAMES = st.from_regex(r"[a-zA-Z][a-zA-Z0-9.]{0,20}", fullmatch=True)
VALUES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp", "Zs")), max_size=30)


@given(st.dictionaries(NAMES, VALUES))
def test_what_is_written_comes_back(values: dict[str, str]) -> None:
    assert decode_configuration(encode_configuration(values)) == values


def test_as_java_writes_it() -> None:
    assert decode_configuration(b"#Sun\n!x\n\n a = b \nc:d=e\nf\n") == {"a": "b", "c": "d=e", "f": ""}


@pytest.mark.parametrize("value", ["a\nfileReservedTime=1", "a\n", "a\r", "a\u2028b"])
def test_a_value_of_several_lines_is_refused(value: str) -> None:
    """They were other properties at the reader's."""
    for values in ({"path": value}, {f"p{value}": "a"}):
        with pytest.raises(ProtocolError, match="has a line end in it"):
            encode_configuration(values)


def test_what_is_no_text() -> None:
    with pytest.raises(ProtocolError, match="no UTF-8"):
        decode_configuration(b"a=\xff")


def test_few_lines_are_read() -> None:
    """1 MiB of short ones took 0.3 s."""
    lines = b"a=b\n" * 4_095
    assert decode_configuration(lines + b"c=d") == {"a": "b", "c": "d"}
    with pytest.raises(ProtocolError, match="4097 lines: at most 4096"):
        decode_configuration(lines + b"\r" + b"c=d")
