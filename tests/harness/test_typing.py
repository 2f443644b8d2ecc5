"""Type checkers over applications as users write them: nothing in what is right, every error in what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "apps" / "typed"
#: Applications of which type checkers must have nothing to say.
RIGHT = [
    FOLDER / "right.py", FOLDER.parent / "bakery.py", FOLDER.parent / "clicks.py",
    *sorted((FOLDER.parent / "examples").glob("*.py")),
]  # fmt: skip
WRONG = FOLDER / "wrong.py"

pytestmark = pytest.mark.harness


def mypy() -> set[tuple[str, int]]:
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--no-error-summary",
            *map(str, RIGHT), str(WRONG),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    found = re.findall(r"^(\S+\.py):(\d+): error:", done.stdout, re.MULTILINE)
    return {(str(ROOT / path), int(line)) for path, line in found}


def pyright(tmp_path: Path) -> set[tuple[str, int]]:
    done = subprocess.run(
        [
            sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable,
            *map(str, RIGHT), str(WRONG),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {(each["file"], each["range"]["start"]["line"] + 1) for each in found if each["severity"] == "error"}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_right_applications_pass_and_wrong_ones_do_not(checker: str, tmp_path: Path) -> None:
    found = mypy() if checker == "mypy" else pyright(tmp_path)
    lines = WRONG.read_text().splitlines()
    expected = {(str(WRONG), number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(expected) > 20
    assert found == expected
