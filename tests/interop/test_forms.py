"""protocol/spec/forms.toml says of values in other forms what both of Apache's JSON libraries make of them."""

from __future__ import annotations

import subprocess
import tomllib
from typing import Any

import pytest

from tests.interop.peers import ROOT, class_path

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SPEC = ROOT / "protocol" / "spec" / "forms.toml"


def shown(meant: Any) -> str:
    if isinstance(meant, list):
        return ",".join(map(shown, meant))
    if isinstance(meant, dict):
        return ",".join(f"{name}={value}" for name, value in meant.items())
    return str(meant).lower() if isinstance(meant, bool) else str(meant)


def test_values_mean_what_apaches_libraries_make_of_them() -> None:
    asked: list[tuple[str, str, str]] = []
    for kind, forms in tomllib.loads(SPEC.read_text(encoding="utf-8")).items():
        asked += ((kind, form, shown(meant)) for form, meant in forms["read"])
        for outcome in ("absent", "refused", "ours", "false"):
            asked += ((kind, form, f"<{outcome}>") for form in forms.get(outcome, ()))
    lines = "".join(f"{kind}\t{form}\n" for kind, form, _ in asked)
    told = subprocess.run(
        ["java", "-Dfile.encoding=UTF-8", "-cp", class_path(), "Forms"],
        input=lines, capture_output=True, encoding="utf-8", check=True, timeout=120,
    )  # fmt: skip
    answers = [set(line.split("\t")) for line in told.stdout.splitlines()]
    assert len(answers) == len(asked)

    def agrees(meant: str, said: set[str]) -> bool:
        others = {"<refused>": said == {"error"}, "<ours>": said != {"error"}, "<false>": "true" not in said}
        return others.get(meant, meant.strip("<>") in said)

    different = [(row, said) for row, said in zip(asked, answers, strict=True) if not agrees(row[2], said)]
    assert not different
