"""The project's own text, read once: files, syntax trees, what a name stands for, and which of a file is prose."""

from __future__ import annotations

import ast
import io
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "aiorocket", ROOT / "protocol" / "aiorocket_protocol")
#: Every module of the two packages.
SOURCES = tuple(sorted(path for package in PACKAGES for path in package.rglob("*.py")))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("protocol.").removesuffix(".__init__")


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


@cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


@cache
def imported(path: Path) -> dict[str, str]:
    """What imports bind anywhere in a module -> its dotted name, as in ``{"perf_counter": "time.perf_counter"}``."""
    bound: dict[str, str] = {}
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                bound[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            bound.update((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    return bound


@cache
def uses(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, dotted name) of everything that is read, an imported name in full: of ``from time import perf_counter``
    each ``perf_counter`` is "time.perf_counter". What hangs on no name, as in ``loop().time``, is "().time"."""
    known, found = imported(path), set()
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            parts: list[str] = []
            part: ast.expr = node
            while isinstance(part, ast.Attribute):
                parts.append(part.attr)
                part = part.value
            first = known.get(part.id, part.id) if isinstance(part, ast.Name) else "()"
            found.add((node.lineno, ".".join([first, *reversed(parts)])))
    return tuple(sorted(found))


@cache
def tracked() -> tuple[Path, ...]:
    """Every file of the project that is text of its own; seeds of the fuzzer, recorded bytes and results are not."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    ).stdout.decode()
    if listed:
        files = [ROOT / name for name in listed.split("\0") if name]
    else:  # an exported tree
        files = [path for path in ROOT.rglob("*") if not {".venv", "__pycache__"}.intersection(path.parts)]
    left_out = ("tests/fuzz/corpus/", "tests/remoting/data/", "bench/results/", "LICENSE")
    return tuple(path for path in files if path.is_file() and not name_of(path).startswith(left_out))


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line) of what people read: of a program its comments and docstrings, of other files all lines."""
    lines = text_of(path).splitlines()
    if path.suffix != ".py":
        yield from enumerate(lines, 1)
        return
    found: dict[int, str] = {}
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text_of(path)).readline):
        if token.type == tokenize.COMMENT:
            found[token.start[0]] = token.string
        elif token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            found.update((number, lines[number - 1]) for number in range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type
    yield from sorted(found.items())
