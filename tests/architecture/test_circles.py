"""No module needs, by any chain of imports, what needs it: read one after the other, each stands on the ones before.
And what a module imports is there, also where that is only looked for late."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.architecture.sources import ROOT, SOURCES, module_of, nodes_of, tree_of

BENCH = sorted((ROOT / "bench").glob("*.py"))


def imports_of(tree: ast.Module, modules: Iterable[str]) -> set[str]:
    """The ``modules`` that one imports anywhere, also late and for the type checker only."""
    found: set[str] = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & set(modules) or {str(node.module)}
    return found & set(modules)


def first_circle(graph: Mapping[str, set[str]]) -> str:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return ""


def graph_of(paths: Iterable[Path]) -> dict[str, set[str]]:
    trees = {module_of(path): tree_of(path) for path in paths}
    return {module: imports_of(tree, trees) - {module} for module, tree in trees.items()}


def test_nothing_imports_in_a_circle() -> None:
    assert first_circle(graph_of([*SOURCES, *BENCH])) == ""


def test_a_circle_is_seen_in_every_form() -> None:
    late = ast.parse("def f():\n    from p.b import x")
    typed = ast.parse("if TYPE_CHECKING:\n    import p.c")
    other = ast.parse("from p import a")
    modules = ("p", "p.a", "p.b", "p.c")
    graph = {"p.a": imports_of(late, modules), "p.b": imports_of(typed, modules), "p.c": imports_of(other, modules)}
    assert first_circle(graph) in "p.a -> p.b -> p.c -> p.a -> p.b -> p.c" and first_circle(graph)
    assert first_circle({**graph, "p.c": set()}) == ""


def bound_by(tree: ast.Module) -> set[str]:
    """The names that a module has once it is imported."""
    names = {node.id for node in nodes_of(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
    return names


def test_what_is_imported_is_there() -> None:
    trees = {module_of(path): tree_of(path) for path in (*SOURCES, *BENCH)}
    bound = {module: bound_by(tree) for module, tree in trees.items()}
    missing = [
        f"{module}: from {node.module} import {alias.name}"
        for module, tree in trees.items()
        for node in nodes_of(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module in bound
        and not bound[node.module] & {"__getattr__", "*"}  # these give names that do not stand in them
        for alias in node.names
        if alias.name not in {*bound[node.module], "*"} and f"{node.module}.{alias.name}" not in trees
    ]
    assert not missing, missing
