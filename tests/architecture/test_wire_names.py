"""A word of the wire is written once: in names.py, properties.py, or what is generated from the spec."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from aiorocket_protocol import RESERVED, names
from tests.architecture.sources import SOURCES, name_of, nodes_of, tree_of

PACKAGE = "protocol/aiorocket_protocol/"
HOMES = {PACKAGE + name for name in ("names.py", "properties.py", "headers.py", "codes.py")}
#: What is drawn for servers is spelled as peers spell it, wrong words beside right ones.
DRAWN = PACKAGE + "fuzzing/"
PREFIXES = (names.RETRY_PREFIX, names.DLQ_PREFIX)
NUMBERS = {names.VERSION, names.NAMESERVER_PORT, names.BROKER_PORT}
#: Of names.py: "*" is everybody's.
WORDS = (
    {word for name, word in vars(names).items() if name.isupper() and isinstance(word, str)}
    | {word for name, words in vars(names).items() if name.isupper() and isinstance(words, frozenset) for word in words}
    | RESERVED
) - {names.ALL_TAGS}


def literals(tree: ast.Module) -> Iterator[tuple[int, object]]:
    """Line and value of every constant that a program means: neither documentation nor ``__all__``."""
    silent = {id(node.value) for node in nodes_of(tree) if isinstance(node, ast.Expr)}
    for node in nodes_of(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            silent.update(map(id, ast.walk(node)))
    for node in nodes_of(tree):
        if isinstance(node, ast.Constant) and id(node) not in silent:
            yield node.lineno, node.value


def wire_words(value: object) -> set[object]:
    """What of the wire ``value`` is: as it stands, as a part of a property string, or in front of a group's name."""
    if type(value) is int:
        return {value} & NUMBERS
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if not isinstance(value, str):
        return set()
    return set(re.split("[\x01\x02]", value)) & WORDS | {prefix for prefix in PREFIXES if value.startswith(prefix)}


def test_words_of_the_wire_are_written_once() -> None:
    bad = [
        f"{name_of(path)}:{line}: {word!r} has a name in aiorocket_protocol: import that"
        for path in SOURCES
        if name_of(path) not in HOMES and not name_of(path).startswith(DRAWN)
        for line, value in literals(tree_of(path))
        for word in wire_words(value)
    ]
    assert not bad, "\n".join(bad)


def test_the_rule_sees_every_form() -> None:
    source = 'a = "TAGS"; b = b"TAGS\\x01"; c = f"%RETRY%{a}"; d = 479; e = f"KEYS\\x01{a}\\x02WAIT\\x01true\\x02"\n'
    source += '"""TAGS"""; __all__ = ("TAGS",); f = "some TAGS of 479"; g = True\n'
    found = [word for _, value in literals(ast.parse(source)) for word in sorted(map(str, wire_words(value)))]
    assert sorted(found) == ["%RETRY%", "479", "KEYS", "TAGS", "TAGS", "WAIT"]
