"""The fuzz target runs without a fuzzing engine: every committed seed, and the seeds are those of the vectors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

FILE = Path(__file__).resolve().parents[1] / "fuzz" / "fuzz_protocol.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_protocol", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzz = load()


def test_seeds_are_made_from_the_vectors() -> None:
    committed = {path.name: path.read_bytes() for path in fuzz.CORPUS.iterdir()}
    assert committed == fuzz.seeds(), "run: python tests/fuzz/fuzz_protocol.py --seeds"


def test_every_seed_passes() -> None:
    for data in fuzz.seeds().values():
        fuzz.one_input(data)
        fuzz.one_input(data[: len(data) // 2])


@given(st.binary(max_size=300))
def test_random_input_passes(data: bytes) -> None:
    fuzz.one_input(data)
