"""The programs on the pages of docs/ run: each page's files in a directory of their own, its tests by pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import aiorocket

ROOT = Path(aiorocket.__file__).parents[1]
TITLED = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def test_testing_your_service(tmp_path: Path) -> None:
    files = dict(TITLED.findall((ROOT / "docs" / "testing.md").read_text()))
    assert len(files) == 4
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
    assert "8 passed" in done.stdout
