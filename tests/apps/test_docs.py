"""The programs on the pages of docs/ run: each page's files in a directory of their own, its tests by pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import aiorocket
from aiorocket import errors
from aiorocket.client import exits

ROOT = Path(aiorocket.__file__).parents[1]
TITLED = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("page", "count", "passed"), [("testing", 4, 8), ("services", 2, 1)])
def test_a_page_runs(page: str, count: int, passed: int, tmp_path: Path) -> None:
    files = dict(TITLED.findall((ROOT / "docs" / f"{page}.md").read_text()))
    assert len(files) == count
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin",
            "-p", "anyio.pytest_plugin", "-p", "aiorocket.testing.pytest_plugin",
            "-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function",
        ],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'protocol'}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout


def test_every_error_has_its_entry() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    entries = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(entries) == sorted([*errors.__all__, *exits.__all__[:-1]])
    assert exits.__all__[-1] == "failure_of"


def test_the_first_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [program] = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE | re.DOTALL
    )
    exec(compile(program, "index.md", "exec"), {})
    assert capsys.readouterr().out == "{'id': 'o-1', 'amount': 42}\n"
