"""The laws of the house that a linter cannot see, and those it can, as part of the suite."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [ROOT / "aiorocket", ROOT / "protocol" / "aiorocket_protocol"]
SOURCES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
GENERATED = {"headers.py", "codes.py"}
MOST_LINES = 500
#: Ratchets: modules that attract everything get less; one that needs more says why in its header. They only go down.
RATCHETS = {
    "aiorocket/broker/broker.py": 400,
    "aiorocket/client/session.py": 400,
    "aiorocket/client/push/consumer.py": 470,
    "aiorocket/remoting/connection.py": 570,
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def calls(tree: ast.Module) -> list[tuple[int, str]]:
    """(line, dotted name) of every call that can be written as one."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            parts: list[str] = []
            part: ast.expr = node.func
            while isinstance(part, ast.Attribute):
                parts.append(part.attr)
                part = part.value
            if isinstance(part, ast.Name):
                parts.append(part.id)
            found.append((node.lineno, ".".join(reversed(parts))))
    return found


def test_there_are_sources() -> None:
    assert len(SOURCES) > 40


def test_imports_point_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.fail("import-linter is not installed beside this interpreter: install the extra 'test'")
    done = subprocess.run(
        [str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'protocol'}", "PATH": "/usr/bin:/bin", "NO_COLOR": "1", "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_threads_and_processes_stay_in_their_places(path: Path) -> None:
    name = name_of(path)
    # Spark's tasks are synchronous: its bridge to a loop is the third place.
    if name.startswith(("aiorocket/runtime/", "aiorocket/testing/", "aiorocket/spark/bridge.py")):
        return
    bad = [
        f"{name}:{line} {call}"
        for line, call in calls(tree_of(path))
        if call.rpartition(".")[2] in ("run_in_executor", "ThreadPoolExecutor", "ProcessPoolExecutor", "to_thread")
        or call in ("threading.Thread", "Thread", "os.fork", "subprocess.Popen", "subprocess.run")
    ]
    assert not bad, bad


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_time_and_randomness_come_from_the_seams(path: Path) -> None:
    name = name_of(path)
    if name.startswith("aiorocket/runtime/"):
        return
    allowed = {"random.Random"} if name.startswith("aiorocket/testing/") else set()
    bad = []
    for line, call in calls(tree_of(path)):
        module, _, function = call.partition(".")
        if module in ("time", "random", "secrets", "uuid", "datetime") and function and call not in allowed:
            if call in ("datetime.fromtimestamp", "datetime.fromisoformat", "datetime.datetime", "datetime.timedelta"):
                continue  # conversions, not clocks
            bad.append(f"{name}:{line} {call}")
    assert not bad, bad


@pytest.mark.parametrize("path", [path for path in SOURCES if "core" in path.parts], ids=name_of)
def test_a_core_decides_and_does_not_act(path: Path) -> None:
    bad = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)):
            bad.append(f"{name_of(path)}:{node.lineno} {type(node).__name__}")
        if isinstance(node, ast.Attribute) and node.attr in ("wall_ms", "call_later", "call_at", "entropy"):
            bad.append(f"{name_of(path)}:{node.lineno} .{node.attr}")
    acts = ("print", "open", "input")
    bad += [f"{name_of(path)}:{line} {call}" for line, call in calls(tree_of(path)) if call in acts]
    assert not bad, bad


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_modules_stay_readable(path: Path) -> None:
    if path.name in GENERATED:
        return
    name = name_of(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    limit = RATCHETS.get(name, MOST_LINES)
    assert len(lines) <= limit, f"{name} has {len(lines)} lines, {limit} are allowed: split it by responsibility"
    assert path.stem not in ("utils", "helpers", "common", "misc"), f"{name}: the name says nothing"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_is_left_to_do_and_modules_say_what_they_are(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    marks = re.findall(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b", text)
    assert not marks, name_of(path)
    if text.strip():
        assert ast.get_docstring(tree_of(path)), f"{name_of(path)} has no docstring that says what it is"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_exports_exist(path: Path) -> None:
    exported: list[str] = []
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            try:
                exported = list(ast.literal_eval(node.value))
            except ValueError:
                return  # put together from other modules' lists
    if not exported:
        return
    module_name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("protocol.")
    module = importlib.import_module(module_name.removesuffix(".__init__"))
    missing = [name for name in exported if not hasattr(module, name)]
    assert not missing, f"{name_of(path)}: __all__ names {missing}"
    assert len(exported) == len(set(exported)), f"{name_of(path)}: __all__ names something twice"


def test_both_packages_come_from_one_place() -> None:
    import aiorocket
    import aiorocket_protocol

    one = Path(aiorocket.__file__).resolve().parent.parent
    other = Path(aiorocket_protocol.__file__).resolve().parent.parent
    assert other in (one, one / "protocol"), f"aiorocket from {one}, aiorocket_protocol from {other}"


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"] == {"path": "aiorocket/__init__.py"}


def test_the_top_level_holds_what_the_design_says() -> None:
    allowed = {"pyproject.toml", "aiorocket", "protocol", "tests", "bench", "docs", "deploy"}
    allowed |= {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"}
    allowed |= {"dist", "build", "aiorocket-data"}  # what building, and a server without --data, leave here
    passing = (".", "__", "aiorocket-lake-demo")
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(passing)}
    assert found <= allowed, f"unexpected at the top level: {sorted(found - allowed)}"


@pytest.mark.parametrize("folder", ["aiorocket/runtime", "aiorocket/remoting", "aiorocket/spark", "aiorocket/testing"])
def test_the_map_of_a_folder_names_every_module(folder: str) -> None:
    readme = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    names = [path.name for path in (ROOT / folder).glob("*.py") if path.stem != "__init__"]
    missing = [name for name in names if f"`{name}`" not in readme]
    assert not missing, f"{folder}/README.md does not mention {missing}"


def test_the_map_of_the_tests_names_every_folder_and_every_story() -> None:
    readme = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    names = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}
    names |= {path.name for path in (ROOT / "tests" / "integration").glob("test_*.py")}
    missing = sorted(name for name in names if f"`{name}`" not in readme)
    assert not missing, f"tests/README.md does not mention {missing}"
