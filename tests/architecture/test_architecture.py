"""The laws of the house that a linter cannot see, and those it can, as part of the suite."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import aiorocket
from tests.architecture.sources import ROOT, SOURCES, imported, module_of, name_of, nodes_of, text_of, tree_of, uses

GENERATED = {"headers.py", "codes.py"}
MOST_LINES = 500
#: Ratchets: what attracts everything has its present size, and a module that needs more says why in its header. They
#: only go down (but the broker's wiring, a line or two for each handler): who makes one smaller by more than SLACK
#: lines writes its new size here.
SLACK = 20
RATCHETS = {
    "aiorocket/broker/broker.py": 230,
    "aiorocket/broker/parts.py": 209,
    "aiorocket/client/app.py": 242,
    "aiorocket/client/pull/pull_consumer.py": 462,
    "aiorocket/client/push/consumer.py": 361,
    "aiorocket/client/session.py": 401,
    "aiorocket/embedded.py": 222,
    "aiorocket/nameserver/server.py": 296,
    "aiorocket/remoting/connection.py": 625,
}
#: The same of classes, counted with those of their bases that are ours: a half class is no way around the limit.
CLASSES = {
    "aiorocket.client.push.consumer.Consumer": 508,
    "aiorocket.client.sending.transaction.TransactionProducer": 526,
    "aiorocket.remoting.connection.Connection": 550,
    "aiorocket.remoting.signed.SignedConnection": 570,
    "aiorocket.spark.exactly_once._Producer": 530,
}

#: Clocks and chance by name; what converts a given time is neither.
OUTSIDE = re.compile(
    r"time\.(?:time|monotonic|perf_counter|process_time|thread_time|clock_gettime)(?:_ns)?"
    r"|time\.(?:sleep|localtime|gmtime|ctime|asctime|strftime)"
    r"|datetime\.(?:datetime|date)\.(?:now|utcnow|today)"
    r"|random\.\w+|secrets\.\w+|uuid\.uuid[14]|os\.(?:urandom|getrandom)"
)
#: Where something of these is right: (place, name) -> why.
ALLOWED = {
    ("aiorocket/runtime/", "time.time_ns"): "the wall clock itself",
    ("aiorocket/runtime/", "random.Random"): "the source of randomness itself",
    ("aiorocket/runtime/", "os.urandom"): "what nobody may guess, such as the key of a session",
    ("aiorocket/testing/", "random.Random"): "simulations draw from a seed",
    ("aiorocket/load/", "time.perf_counter_ns"): "the clock that all processes of a machine share, in nanoseconds",
    ("aiorocket/load/", "time.process_time"): "what a process of the load costs itself",
    ("aiorocket/fuzz/", "random.Random"): "a run draws from its seed",
    ("aiorocket/runtime/watchdog.py", "time.monotonic"): "its thread times a loop that does not turn",
    ("aiorocket/cli/demo.py", "time.perf_counter"): "latencies: uvloop's clock counts whole milliseconds",
    ("aiorocket/cli/lake/", "time.perf_counter"): "how long Spark took, how far signals are apart, where no loop runs",
    ("aiorocket/spark/steps/", "time.perf_counter"): "how long a step took: a Spark driver has no loop",
}
#: Where threads and processes may be made. Spark's tasks are synchronous: its bridge to a loop is the third place.
THREADS = ("aiorocket/runtime/", "aiorocket/testing/", "aiorocket/spark/bridge.py")


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


def test_threads_and_processes_stay_in_their_places() -> None:
    makes = re.compile(
        r".*\b(?:run_in_executor|ThreadPoolExecutor|ProcessPoolExecutor|to_thread)"
        r"|threading\.(?:Thread|Timer)|os\.fork|subprocess\.(?:Popen|run|call|check_\w+)"
    )
    bad = [
        f"{name_of(path)}:{line} {name}"
        for path in SOURCES
        if not name_of(path).startswith(THREADS)
        for line, name in uses(path)
        if makes.fullmatch(name)
    ]
    assert not bad, bad


def test_time_and_randomness_come_from_the_seams() -> None:
    bad, needed = [], set()
    for path in SOURCES:
        place = name_of(path)
        for line, name in uses(path):
            if OUTSIDE.fullmatch(name):
                reasons = {entry for entry in ALLOWED if place.startswith(entry[0]) and name == entry[1]}
                needed |= reasons
                if not reasons:
                    bad.append(f"{place}:{line} {name}")
    assert not bad, bad
    assert needed == ALLOWED.keys(), f"no longer needed in ALLOWED: {ALLOWED.keys() - needed}"


def test_a_core_decides_and_does_not_act() -> None:
    bad = []
    for path in SOURCES:
        if "core" not in path.parts:
            continue
        for node in nodes_of(tree_of(path)):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
                bad.append(f"{name_of(path)}:{node.lineno} {type(node).__name__}")
            if isinstance(node, ast.Attribute) and node.attr in ("wall_ms", "call_later", "call_at", "entropy"):
                bad.append(f"{name_of(path)}:{node.lineno} .{node.attr}")
        bad += [f"{name_of(path)}:{line} {name}" for line, name in uses(path) if name in ("print", "open", "input")]
    assert not bad, bad


def loose(limits: dict[str, int], sizes: dict[str, int]) -> dict[str, int]:
    """What became smaller than it may be, with its size now."""
    return {name: sizes.get(name, 0) for name, limit in limits.items() if sizes.get(name, 0) < limit - SLACK}


def test_modules_stay_readable() -> None:
    bad = []
    for path in SOURCES:
        name, lines = name_of(path), len(text_of(path).splitlines())
        limit = RATCHETS.get(name, MOST_LINES)
        if path.name not in GENERATED and lines > limit:
            bad.append(f"{name} has {lines} lines, {limit} are allowed: split it by responsibility")
        if path.stem in ("utils", "helpers", "common", "misc"):
            bad.append(f"{name}: the name says nothing")
    assert not bad, bad
    sizes = {name: len(text_of(ROOT / name).splitlines()) for name in RATCHETS}
    assert not loose(RATCHETS, sizes), "write the new sizes into RATCHETS"


#: A public name -> where it is defined.
PUBLIC = {f"aiorocket.{name}": f"{home}.{name}" for name, home in aiorocket._HOME_OF.items()}


def classes() -> Iterator[tuple[str, int, list[str]]]:
    """(dotted name, lines, dotted names of its bases) of every class."""
    for path in SOURCES:
        module = module_of(path)
        own = {node.name: node for node in tree_of(path).body if isinstance(node, ast.ClassDef)}
        known = imported(path) | {name: f"{module}.{name}" for name in own}
        for name, node in own.items():
            bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
            named = [known.get(base.id, base.id) for base in bases if isinstance(base, ast.Name)]
            named = [PUBLIC.get(base, base) for base in named]
            yield f"{module}.{name}", (node.end_lineno or 0) - node.lineno + 1, named


def test_classes_stay_readable_with_their_bases() -> None:
    found = {name: (lines, bases) for name, lines, bases in classes()}

    def ancestry(name: str) -> set[str]:
        above = (ancestry(base) for base in found[name][1] if base in found)
        return {name}.union(*above)

    sizes = {name: sum(found[each][0] for each in ancestry(name)) for name in found}
    bad = [
        f"{name} has {lines} lines with its bases {sorted(ancestry(name) - {name})}, {limit} are allowed"
        for name, lines in sizes.items()
        if lines > (limit := CLASSES.get(name, MOST_LINES))
    ]
    assert not bad, bad
    assert not loose(CLASSES, sizes), "write the new sizes into CLASSES, or leave out what has become small"


def test_nothing_is_left_to_do_and_modules_say_what_they_are() -> None:
    marks = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    bad = [f"{name_of(path)}: something is left to do" for path in SOURCES if marks.search(text_of(path))]
    bad += [
        f"{name_of(path)} has no docstring that says what it is"
        for path in SOURCES
        if text_of(path).strip() and not ast.get_docstring(tree_of(path))
    ]
    assert not bad, bad


def exported(path: Path) -> list[str]:
    """Its ``__all__``; nothing where that is put together from other modules' lists."""
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            try:
                return list(ast.literal_eval(node.value))
            except ValueError:
                return []
    return []


def test_exports_exist() -> None:
    bad = []
    for path in SOURCES:
        names = exported(path)
        if names:
            module = importlib.import_module(module_of(path))
            bad += [f"{name_of(path)}: __all__ names {name}" for name in names if not hasattr(module, name)]
            if len(names) != len(set(names)):
                bad.append(f"{name_of(path)}: __all__ names something twice")
    assert not bad, bad


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


def test_the_top_level_holds_nothing_else() -> None:
    allowed = {"pyproject.toml", "aiorocket", "protocol", "tests", "bench", "docs", "deploy"}
    allowed |= {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"}
    allowed |= {"dist", "build", "aiorocket-data"}  # what building, and a server without --data, leave here
    passing = (".", "__", "aiorocket-lake-demo")
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(passing)}
    assert found <= allowed, f"unexpected at the top level: {sorted(found - allowed)}"
