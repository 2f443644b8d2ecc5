"""The demo as a process: what a newcomer sees, and what happens when it is interrupted."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import aiorocket.cli.demo as demo_module
from aiorocket.cli.lines import Line
from aiorocket.cli.positions import Positions
from aiorocket.client.app import Client
from aiorocket.model import Queue
from aiorocket.runtime import loop as event_loop

TEXT = Path(demo_module.__file__).with_name("demo.txt")


def row(out: str, label: str) -> list[str]:
    for line in out.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if cells[0] == label:
            return cells[1:]
    raise AssertionError(f"no row {label!r} in:\n{out}")


def temporary(out: str) -> Path:
    found = re.search(r"^store: (\S+) \(temporary", out, re.MULTILINE)
    assert found is not None, out
    return Path(found[1])


async def test_nothing_is_sent_before_the_queues_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has all of them while the second has none, and for a moment both have some."""
    monkeypatch.setattr(demo_module, "STALLED", 0.0)
    looks = iter([([0, 1, 2, 3], []), ([0, 1, 2, 3], [2, 3]), ([0, 1], [2, 3])])
    shares: dict[int, list[int]] = {}

    def held(number: int) -> list[Queue]:
        if not number:
            shares.update(enumerate(next(looks)))
        return [Queue(demo_module.TOPIC, "broker-a", each) for each in shares[number]]

    consumers: Any = [SimpleNamespace(held=partial(held, number)) for number in range(2)]
    await demo_module._shared_out(consumers)
    assert next(looks, None) is None


def test_its_own_text_goes_all_the_way_and_the_counts_are_known_before(aiorocket: Any) -> None:
    wanted = [line for line in TEXT.read_bytes().splitlines() if line]
    once, twice, always = (sum(line.endswith(mark) for line in wanted) for mark in demo_module._MARKS)
    assert min(once, twice, always) > 0
    result = aiorocket.run("demo")
    assert result.code == 0, result
    assert result.err == ""
    assert row(result.out, "sent")[0] == str(len(wanted))
    assert row(result.out, "consumed")[0] == str(len(wanted) - always)
    assert row(result.out, "retried")[0] == str(once + 2 * twice + 2 * always)
    assert row(result.out, "dead-lettered")[0] == str(always)
    assert (
        f"The counts add up: {len(wanted)} sent = {len(wanted) - always} consumed + {always} dead-lettered."
        in result.out
    )
    for label in ("messages a second", "p50 send to listener", "p99 send to listener"):
        assert re.match(r"[\d.]+( ms)?$", row(result.out, label)[0])
    queues = [[int(cell) for cell in row(result.out, str(n))] for n in range(4)]
    assert sum(sent for sent, _, _ in queues) == len(wanted)
    assert all(any(taken[n] for taken in queues) for n in (1, 2)), "each of the two consumers has read"
    assert not temporary(result.out).exists()


def test_standard_input_with_failures_in_turn(aiorocket: Any) -> None:
    result = aiorocket.run("demo", "-", "--fail-every", "3", stdin=b"x\n" * 11 + b"\n\xff\n")
    assert result.code == 0, result
    assert "The counts add up: 12 sent = 11 consumed + 1 dead-lettered." in result.out
    assert row(result.out, "empty lines skipped") == ["1"]


def test_lines_of_a_file_fail_in_turn() -> None:
    plan = demo_module._every(2)
    assert [plan(Line(n, b"x")) for n in range(1, 9)] == [None, "1", None, "2", None, "always", None, "1"]
    assert demo_module._every(0)(Line(10, b"x")) is None


def test_an_empty_input_adds_up_too(aiorocket: Any) -> None:
    result = aiorocket.run("demo", "-")
    assert result.code == 0, result
    assert "0 sent = 0 consumed + 0 dead-lettered" in result.out


def test_a_second_run_on_the_same_data_adds_to_the_totals(aiorocket: Any) -> None:
    (aiorocket.directory / "text").write_text("a\nb\nc\nd\ne\nf\n")
    first = aiorocket.run("demo", "text", "--data", "kept", "--fail-every", "2")
    assert first.code == 0, first
    assert "The messages are in kept." in first.out
    second = aiorocket.run("demo", "text", "--data", "kept", "--fail-every", "2")
    assert second.code == 0, second
    assert "from earlier runs: 6 sent, 1 dead-lettered, 0 pending" in second.out
    assert row(second.out, "sent") == ["6", "12"]
    assert row(second.out, "consumed") == ["5", "10"]
    assert row(second.out, "dead-lettered") == ["1", "2"]


async def _until_stored(address: str, count: int) -> None:
    async with asyncio.timeout(60), Client(nameservers=address) as client:
        positions = Positions(client)
        queues = await positions.queues("demo")
        while sum((await positions.ends(queues)).values()) < count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_an_interrupted_run_left_pending_is_finished_by_the_next(
    aiorocket: Any, read_line: Callable[..., str], number: signal.Signals
) -> None:
    process = aiorocket.start("demo", "-", "--data", "kept", "--fail-every", "3")
    process.stdin.write(b"".join(b"line %d\n" % n for n in range(1, 301)))
    process.stdin.flush()
    address = re.search(r"127\.0\.0\.1:\d+", read_line(process))[0]
    event_loop.run(_until_stored(address, 300))
    time.sleep(0.2)  # the last receipts are on their way; the retries take almost a second
    process.send_signal(number)
    out, err = process.communicate(timeout=140)
    assert process.returncode == (130 if number == signal.SIGINT else -9), (out, err)
    if number == signal.SIGINT:
        assert b"interrupted: 300 lines sent" in err and b"--data kept" in err

    second = aiorocket.run("demo", "-", "--data", "kept", "--fail-every", "3", stdin=b"one\ntwo\nthree\nfour\n")
    assert second.code == 0, second
    assert "from earlier runs: 300 sent" in second.out
    assert "The counts add up: " in second.out
    *pending, sent, consumed, dead = map(int, re.findall(r"\d+", second.out.splitlines()[-1]))  # none if it was slow
    assert sum(pending) + sent == consumed + dead
    assert row(second.out, "sent") == ["4", "304"]
    assert row(second.out, "dead-lettered")[1] == "33"  # each third of the failing ones, however often it was delivered
    assert row(second.out, "consumed")[1] == "271"


def test_bad_input_is_bad_usage(aiorocket: Any) -> None:
    missing = aiorocket.run("demo", "missing")
    assert (missing.code, missing.out, missing.err) == (2, "", "Error: missing: No such file or directory\n")
    (aiorocket.directory / "long").write_bytes(b"x" * ((4 << 20) + 1))
    long = aiorocket.run("demo", "long")
    assert (long.code, long.out) == (2, "")
    assert "line 1 is longer than 4194304 bytes" in long.err
    piped = aiorocket.run("demo", "-", stdin=b"fine\n" + b"x" * ((4 << 20) + 1))
    assert piped.code == 2
    assert "standard input: line 2 is longer" in piped.err


def test_a_directory_in_use_or_below_a_file_is_one_line(aiorocket: Any, standalone: str) -> None:
    used = aiorocket.run("demo", "--data", "store")
    assert used.code == 1
    assert len(used.err.splitlines()) == 1 and "store" in used.err
    (aiorocket.directory / "file").write_text("x")
    below = aiorocket.run("demo", "--data", "file/store")
    assert below.code == 1
    assert len(below.err.splitlines()) == 1 and "file" in below.err
