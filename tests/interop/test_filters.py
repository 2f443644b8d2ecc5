"""SQL92 filters say the same as Apache's own evaluator, over random expressions and messages."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import pytest

from aiorocket.broker.core.sql92 import Sql92Error, parse
from tests.interop.peers import class_path

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ROUNDS = 30_000
VALUES = (
    "1", "2", "-3", "05", "+7", "x", "y", "it's", "true", "FALSE", "5.5", " 2 ", "1e2", "NaN", "-0.0", "2147483648",
    "9223372036854775807", "99999999999999999999", "", "3d", "Infinity", "abc", "0",
)  # fmt: skip
LITERALS = (
    "1", "2", "0", "5", "-3", "2147483648", "3000000000L", "5L", "9223372036854775807", "9223372036854775808", "1.5",
    ".5", "5.", "1e2", "1e999", "'x'", "'y'", "'it''s'", "'1'", "''", "TRUE", "false", "NULL", "-2.5", "+4",
)  # fmt: skip


class Expressions:
    """Draws expressions, many of which do not compile."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def operand(self, depth: int) -> str:
        pick = self.random.choice
        kind = self.random.random()
        if kind < 0.45:
            return pick("abc")
        if kind < 0.85 or not depth:
            return pick(LITERALS)
        if kind < 0.9:
            return f"({self.expression(depth - 1)})"
        return pick(("-a", "-1", "-2.5", "-'x'", "NOT a", "NOT TRUE", "NOT (b = 1)", "+b"))

    def expression(self, depth: int) -> str:
        pick = self.random.choice
        kind = self.random.random()
        no = pick(("", " NOT"))
        if depth and kind < 0.3:
            return f"{self.expression(depth - 1)} {pick(('AND', 'or'))} {self.expression(depth - 1)}"
        if depth and kind < 0.36:
            return f"NOT ({self.expression(depth - 1)})"
        if kind < 0.6:
            return f"{self.operand(depth)} {pick(('=', '<>', '<', '<=', '>', '>='))} {self.operand(depth)}"
        if kind < 0.68:
            return f"{self.operand(depth)} IS{no} NULL"
        if kind < 0.78:
            return f"{self.operand(depth)}{no} BETWEEN {self.operand(0)} AND {self.operand(0)}"
        if kind < 0.86:
            texts = [pick(("'x'", "'y'", "'1'", "'2'", "'it''s'")) for _ in range(self.random.randint(1, 6))]
            return f"{self.operand(0)}{no} IN ({', '.join(texts)})"
        if kind < 0.94:
            word = pick(("CONTAINS", "startswith", "ENDSWITH"))
            text = pick(("'x'", "'b'", "''", "'1'"))
            return f"{self.operand(0)}{no} {word} {text}"
        return self.operand(depth)

    def properties(self) -> dict[str, str]:
        return {name: self.random.choice(VALUES) for name in "abc" if self.random.random() < 0.75}


def our_verdict(text: str, properties: dict[str, str]) -> str:
    try:
        return {True: "true", False: "false", None: "null"}[parse(text).evaluate(properties)]
    except Sql92Error:
        return "error"


@pytest.mark.parametrize("seed", range(2))
def test_filters_agree_with_apaches(tmp_path: Path, seed: int) -> None:
    draw = Expressions(seed)
    cases = [(draw.expression(draw.random.randint(0, 3)), draw.properties()) for _ in range(ROUNDS)]
    asked, told = tmp_path / "asked", tmp_path / "told"
    lines = ("\t".join([text, *(part for pair in values.items() for part in pair)]) for text, values in cases)
    asked.write_text("\n".join(lines) + "\n", encoding="utf-8")
    subprocess.run(["java", "-Xmx256m", "-cp", class_path(), "Filters", str(asked), str(told)], check=True, timeout=120)
    verdicts = told.read_text(encoding="utf-8").splitlines()
    assert len(verdicts) == ROUNDS and set(verdicts) == {"true", "false", "null", "error"}
    different = [
        (text, values, theirs, ours)
        for (text, values), theirs in zip(cases, verdicts, strict=True)
        if (ours := our_verdict(text, values)) != theirs
    ]
    assert not different, different[:5]
