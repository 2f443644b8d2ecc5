"""A Spark executor may have no msgspec: headers then read and write the same, only slower."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from aiorocket_protocol import fast

HERE = Path(__file__).parent
WITHOUT = """
import sys
sys.modules["msgspec"] = None
import pytest
from aiorocket_protocol import compiled
assert compiled.Packed is bytes
sys.exit(pytest.main(["-q", "-n", "0", "--assert=plain", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_every_vector_and_form_without_msgspec() -> None:
    files = [str(HERE / name) for name in ("test_vectors.py", "test_forms.py")]
    command = [sys.executable, "-c", WITHOUT, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_speedups_that_say_nothing_of_themselves_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory of that name is imported too."""
    monkeypatch.setitem(sys.modules, "aiorocketmq_speedups", ModuleType("aiorocketmq_speedups"))
    assert fast._found() is None
