"""For the site: every text of every error, read from the sources, at the end of the page Troubleshooting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
PLACE = "<!-- every text -->"


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """mkdocs calls it for each page."""
    return markdown.replace(PLACE, section()) if PLACE in markdown else markdown


def section() -> str:
    texts: dict[str, dict[str, list[str]]] = {}
    for name, text, where in found():
        texts.setdefault(name, {}).setdefault(text, []).append(where)
    lines = []
    for name in sorted(texts):
        lines += [f"### `{name}`", "", "| text | raised in |", "| --- | --- |"]
        for text, places in sorted(texts[name].items()):
            shown = text.replace("|", "\\|").replace("\n", " ")
            lines.append(f"| ``{shown}`` | {', '.join(dict.fromkeys(f'`{each}`' for each in places))} |")
        lines.append("")
    return "\n".join(lines)


@cache
def found() -> list[tuple[str, str, str]]:
    """Class, text (what is put in is …) and module of each error that is made with one."""
    names = classes()
    return [
        (name, text, str(path.relative_to(ROOT)))
        for package in ("aiorocket", "protocol/aiorocket_protocol")
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, text in in_module(ast.parse(path.read_text(encoding="utf-8")), names)
    ]


def classes() -> set[str]:
    tree = ast.parse((ROOT / "aiorocket" / "errors.py").read_text(encoding="utf-8"))
    return {each.name for each in tree.body if isinstance(each, ast.ClassDef)} | {"ProtocolError"}


def in_module(tree: ast.Module, names: set[str]) -> Iterator[tuple[str, str]]:
    nodes = list(ast.walk(tree))
    named = {
        target.id: each.value
        for each in nodes
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    for call in nodes:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in names and call.args:
            first = call.args[0]
            text = text_of(named.get(first.id, first) if isinstance(first, ast.Name) else first)
            if text.strip("… ()"):
                yield call.func.id, text


def text_of(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(text_of, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
    return "…"
