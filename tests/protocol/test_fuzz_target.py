"""The fuzz target runs without a fuzzing engine: every committed seed, and the seeds are those of the vectors."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from aiorocket_protocol import GetMaxOffsetRequestHeader, RemotingCommand
from aiorocket_protocol.fuzzing import one_input, seeds, targets

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus" / "protocol"


def test_seeds_are_made_from_the_vectors() -> None:
    committed = {path.name: path.read_bytes() for path in CORPUS.iterdir()}
    assert committed == seeds(), "run: python tests/fuzz/fuzz_protocol.py --seeds"


def test_every_seed_passes() -> None:
    for data in seeds().values():
        one_input(data)
        one_input(data[: len(data) // 2])


@given(st.binary(max_size=300))
def test_random_input_passes(data: bytes) -> None:
    one_input(data)


def test_commands_are_compared_to_the_types_of_their_fields() -> None:
    """To ``==`` True is 1, and a float of the same value too."""

    def gives(opaque: int, offset_of: int) -> object:
        command = RemotingCommand(1, opaque, header=GetMaxOffsetRequestHeader("T", offset_of))
        return targets._outcome(lambda: command, ())

    assert gives(1, 1) == gives(1, 1)
    assert gives(1, 1) != gives(True, 1) and gives(1, 1) != gives(1, True)
