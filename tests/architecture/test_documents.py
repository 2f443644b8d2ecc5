"""What is written about the project is true: maps name every module, references lead to something that is here."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from aiorocket_protocol import RequestCode
from tests.architecture.sources import ROOT, name_of, prose, text_of, tracked

#: Where the modules of a folder are named: in its own README, else in the next one above.
FOLDERS = sorted({path.parent for path in tracked() if path.suffix == ".py"} - {ROOT, ROOT / "tests"})
TEXTS = [path for path in tracked() if path.suffix in (".py", ".md", ".toml", ".java", ".json") or path.name == "run"]
#: What a text that is not here was once referred to by: its name, its numbered traps and promises, its bare sections.
ABSENT = re.compile(
    r"rocketmq-protocol|\b(?:reliability|performance) [PR]?\d|\b[Tt]raps? \d|test_trap_|(?<![\w%])[PR]\d{1,2}\b(?!\.)|"
    r"\(\d{1,2}\.\d{1,2}(?=[,;:)])|§ ?\d|\b(?:[Ss]ections?|[Cc]hecks?) \d"
)
#: A file by its name, perhaps with folders in front: ``client/core/balance.py``.
FILE = re.compile(
    r"(?<![\w/.*<-])(?:\.\./)*((?:[\w-]+/)*(?:[a-z_][\w-]*|README|CONTRIBUTING|CHANGELOG)\.(?:py|md|toml))\b(?!\()"
)


def readme_of(folder: Path) -> Path:
    while not (folder / "README.md").exists():
        folder = folder.parent
    return folder / "README.md"


def modules_named(readme: Path) -> set[Path]:
    """What its text says in backquotes. In one line ``core/groups.py`` `offsets.py` means core/offsets.py too."""
    found: set[Path] = set()
    for line in text_of(readme).splitlines():
        folder = readme.parent
        for name in re.findall(r"`([\w./-]+\.py)`", line):
            path = readme.parent / name
            if "/" in name:
                folder = path.parent
            found |= {path.resolve(), (folder / path.name).resolve()}
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_the_map_of_a_folder_names_every_module(folder: Path) -> None:
    readme = readme_of(folder)
    modules = {path for path in folder.glob("*.py") if not re.match(r"__init__|conftest|test_", path.stem)}
    missing = sorted(path.name for path in modules - modules_named(readme))
    assert not missing, f"{name_of(readme)} does not name {missing} of {name_of(folder)}"


def test_the_map_of_the_handlers_says_which_codes_each_serves() -> None:
    handlers = ROOT / "aiorocket" / "broker" / "handlers"
    rows = [line for line in text_of(handlers / "README.md").splitlines() if line.startswith("| `")]
    missing = []
    for path in handlers.glob("*.py"):
        row = next((row for row in rows if f"`{path.name}`" in row), "")
        for served in re.findall(r"^    def codes\(.*?\n\n", text_of(path), re.MULTILINE | re.DOTALL):
            codes = [RequestCode[name] for name in re.findall(r"\bRequestCode\.(\w+):", served)]
            missing += [f"{path.name}: {code:d} {code.name}" for code in codes if not re.search(rf"\b{code:d}\b", row)]
    assert not missing, f"{name_of(handlers)}/README.md does not say {missing}"


def test_the_map_of_the_tests_names_every_folder_and_every_story() -> None:
    readme = text_of(ROOT / "tests" / "README.md")
    names = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}
    names |= {path.name for path in (ROOT / "tests" / "integration").glob("test_*.py")}
    missing = sorted(name for name in names if f"`{name}`" not in readme)
    assert not missing, f"tests/README.md does not mention {missing}"


def test_the_root_readme_names_every_package() -> None:
    readme = text_of(ROOT / "README.md")
    names = [path.parent.name for path in (ROOT / "aiorocket").glob("*/__init__.py")]
    missing = [name for name in names if f"`aiorocket/{name}`" not in readme]
    assert not missing, f"README.md does not name {missing}"
    readme = text_of(ROOT / "aiorocket" / "README.md")
    missing = [name for name in names if f"`{name}/`" not in readme]
    assert not missing, f"aiorocket/README.md does not name {missing}"


def test_the_ways_of_a_commit_and_of_a_message_lead_through_what_is_there() -> None:
    hops = re.findall(r"^\| `([\w./]+\.py)` \| (`[^|]+`) \|", text_of(ROOT / "aiorocket" / "README.md"), re.MULTILINE)
    assert len(hops) > 12
    for file, names in hops:
        text = text_of((ROOT / "aiorocket" / file).resolve())
        for name in re.findall(r"[\w.]+", names):
            owner, _, last = name.rpartition(".")
            assert re.search(rf"\b(?:def|class) {last}\b", text), f"{file} has no {name}"
            assert not owner or re.search(rf"^class {owner}\b", text, re.MULTILINE), f"{file} has no {owner}"


def test_nothing_refers_to_a_document_that_is_not_here() -> None:
    bad = [
        f"{name_of(path)}:{number} {found[0]!r}"
        for path in TEXTS
        if path != Path(__file__).resolve() and ABSENT.search(text_of(path))
        for number, line in prose(path)
        for found in ABSENT.finditer(line)
    ]
    assert not bad, "\n".join(bad)


def test_every_file_that_is_named_exists() -> None:
    names = {name_of(path) for path in tracked()} | made_by_readers()
    tails = {name[at:] for name in names for at in (0, *(m.end() for m in re.finditer("/", name)))}
    bad = [
        f"{name_of(path)}:{number} {name}"
        for path in TEXTS
        if path.suffix in (".py", ".md") and not tails.issuperset(FILE.findall(text_of(path)))
        for number, line in prose(path)
        if not line.startswith("```python title=")  # a file that the reader is about to make
        for name in FILE.findall(line)
        if name not in tails
    ]
    assert not bad, "\n".join(bad)


def made_by_readers() -> set[str]:
    """Files that pages have with a title, for whoever reads them to make."""
    texts = [text_of(path) for path in TEXTS if path.suffix == ".md"]
    return {name for text in texts for name in re.findall(r'^```\w+ title="([^"]+)"$', text, re.MULTILINE)}


def test_links_lead_somewhere() -> None:
    bad = []
    for path in TEXTS:
        if path.suffix != ".md":
            continue
        for link in re.findall(r"\]\(([^)\s]+)\)", text_of(path)):
            if "://" in link:
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            if not target.exists():
                bad.append(f"{name_of(path)}: {link}")
            elif anchor:
                titles = re.findall(r"^#+ (.+)$", text_of(target), re.MULTILINE)
                slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
                if anchor not in slugs:
                    bad.append(f"{name_of(path)}: {link}")
    assert not bad, bad


def test_examples_are_python_and_what_they_take_from_aiorocket_is_there() -> None:
    bad = []
    for path in (path for path in TEXTS if path.suffix == ".md"):
        for block in re.findall(r"^```python\n(.*?)^```$", text_of(path), re.MULTILINE | re.DOTALL):
            flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            for node in ast.walk(compile(block, name_of(path), "exec", flags)):
                names: list[tuple[str, str]] = []
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aiorocket"):
                    names = [(node.module or "", alias.name) for alias in node.names]
                elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "aiorocket":
                    names = [("aiorocket", node.attr)]
                bad += [
                    (name_of(path), *name) for name in names if not hasattr(importlib.import_module(name[0]), name[1])
                ]
    assert not bad, bad


def test_what_works_with_which_peer_is_as_interop_found_it() -> None:
    """The run of interop compares its own table with the kept one."""
    assert text_of(ROOT / "tests" / "interop" / "works.md") in text_of(ROOT / "README.md")
