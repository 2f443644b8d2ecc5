"""What somebody who builds a service waits for: its tests, the first message after a clone, a body with a type.

    python -m bench.services                    all of these
    python -m bench.services tests typed        only some; clone downloads packages first, which is not counted
    python -m bench.services --check            exit with 1 when one is above its limit

tests: 200 tests by the fixture `rocketmq`, a name server and a broker each, in one process of pytest. clone: `git
clone`, a virtual environment, `pip install` of what was downloaded before, and the end of the program in the README,
which is the second delivery of a message. typed: what a listener of a msgspec Struct costs more than one of a Message
that reads the body, best of 40 rounds of 4,000 messages.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from aiorocket import Message
from aiorocket.client.push.typed import typed
from aiorocket_protocol import encode_properties, encode_record
from bench.processes import ROOT

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(200))
@pytest.mark.asyncio
async def test_a_message_is_stored(rocketmq, number):
    await rocketmq.create_topic("orders", queues=1)
    await rocketmq.send("orders", b"x")
    assert len(rocketmq.messages("orders")) == 1
"""


def tests(place: Path) -> float:
    """Seconds of pytest, its start included."""
    (place / "test_service.py").write_text(TESTS)
    began = time.perf_counter()
    path = f"{ROOT}{os.pathsep}{ROOT / 'protocol'}"
    _run(
        sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
        "-o", "asyncio_default_fixture_loop_scope=function", "test_service.py",
        cwd=place, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    return time.perf_counter() - began


def clone(place: Path) -> float:
    """Seconds from the clone to the end of the README's program, without the download."""
    wheels = place / "wheels"
    _run(sys.executable, "-m", "pip", "download", "-q", "-d", str(wheels), str(ROOT), "hatchling")
    readme = (ROOT / "README.md").read_text()
    [program] = re.findall(r"^```python\n(import asyncio\n.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    began = time.perf_counter()
    _run("git", "clone", "-q", str(ROOT), str(place / "clone"))
    _run(sys.executable, "-m", "venv", str(place / "venv"))
    python = str(place / "venv" / "bin" / "python")
    _run(python, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(wheels), str(place / "clone"))
    said = _run(python, "-c", program, cwd=place)
    assert "delivery 2 of ['o-1'] b'42 EUR'" in said, said
    return time.perf_counter() - began


def _run(*words: str, **options: Any) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        words, check=True, stdout=subprocess.PIPE, text=True, **options
    )
    return done.stdout


class Order(msgspec.Struct):
    id: str
    amount: int
    paid: bool


def typed_body(_place: Path) -> float:
    """Microseconds a message."""

    async def on_order(order: Order) -> None: ...

    async def on_message(message: Message) -> None:
        _ = message.body

    reading = typed(on_order, False, "dead_letter")
    assert reading is not None
    handlers: dict[str, Callable[[Any], Awaitable[object]]] = {"typed": reading, "plain": on_message}
    record = encode_record(
        topic=b"orders", body=b'{"id": "o-1", "amount": 3, "paid": true}',
        properties=encode_properties({"contentType": "application/json", "UNIQ_KEY": "0" * 32}),
        queue_id=0, queue_offset=0, physical_offset=0, flag=0, sys_flag=0, born_timestamp=0, born_host=bytes(8),
        store_timestamp=0, store_host=bytes(8),
    )  # fmt: skip

    async def measure() -> float:
        best = dict.fromkeys(handlers, float("inf"))
        for _ in range(40):
            for name, handler in handlers.items():
                messages = [Message(record, 0, len(record)) for _ in range(4000)]
                began = time.perf_counter()
                for message in messages:
                    await handler(message)
                best[name] = min(best[name], (time.perf_counter() - began) / len(messages))
        return 1e6 * (best["typed"] - best["plain"])

    return asyncio.run(measure())


#: What is measured, its unit, and what it may be.
FIGURES: dict[str, tuple[Callable[[Path], float], str, float]] = {
    "tests": (tests, "s", 15.0),
    "clone": (clone, "s", 60.0),
    "typed": (typed_body, "us", 1.5),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []], default=[])
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    above = 0
    for name in given.figures or FIGURES:
        measure, unit, limit = FIGURES[name]
        with tempfile.TemporaryDirectory() as place:
            figure = measure(Path(place))
        print(f"{name}: {figure:.2f} {unit} (limit {limit:g})", flush=True)
        above += figure > limit
    return 1 if given.check and above else 0


if __name__ == "__main__":
    sys.exit(main())
