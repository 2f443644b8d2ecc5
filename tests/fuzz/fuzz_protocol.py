"""Coverage-guided fuzzing of everything that turns foreign bytes into values.

    python tests/fuzz/fuzz_protocol.py --runs 200000    bounded, from the committed seeds; exits non-zero on a finding
    python tests/fuzz/fuzz_protocol.py --seeds          rewrite the seeds from the golden vectors
    python tests/fuzz/fuzz_protocol.py [OPTIONS]        libFuzzer's own, e.g. -max_total_time=3600 DIRECTORY

Targets and seeds are those of ``aiorocket_protocol.fuzzing``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).resolve().parent / "corpus" / "protocol"

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "protocol"))


def write_seeds() -> None:
    from aiorocket_protocol.fuzzing import seeds

    CORPUS.mkdir(parents=True, exist_ok=True)
    wanted = seeds()
    for path in CORPUS.iterdir():
        if path.name not in wanted:
            path.unlink()
    for name, data in wanted.items():
        (CORPUS / name).write_bytes(data)
    print(f"{len(wanted)} seeds in {CORPUS.relative_to(ROOT)}")


def main(arguments: list[str]) -> None:
    if arguments == ["--seeds"]:
        write_seeds()
        return
    import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

    with atheris.instrument_imports(include=["aiorocket_protocol"]):
        from aiorocket_protocol.fuzzing import one_input
    if arguments[:1] == ["--runs"]:
        if len(arguments) != 2 or not arguments[1].isdigit():
            sys.exit("usage: fuzz_protocol.py --runs N")
        # New inputs go to the first directory; the committed seeds are only read.
        found = tempfile.mkdtemp(prefix="fuzz-protocol-")
        arguments = [f"-runs={arguments[1]}", "-timeout=10", "-rss_limit_mb=2048", "-verbosity=1",
                     f"-artifact_prefix={found}/", found, str(CORPUS)]  # fmt: skip
    atheris.Setup([sys.argv[0], *arguments], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
