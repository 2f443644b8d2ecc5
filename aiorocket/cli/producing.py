"""Sends each line of a file or pipe as a message, and says which were not acknowledged."""

from __future__ import annotations

import asyncio
import json

import click

from aiorocket import Client
from aiorocket.cli.counts import counted
from aiorocket.cli.lines import Line, LineSource
from aiorocket.cli.running import run
from aiorocket.cli.sending import send_lines
from aiorocket.cli.show import visible
from aiorocket.cli.stopping import until_stopped
from aiorocket.cli.terminal import INTERRUPTED
from aiorocket.config import ClientConfig
from aiorocket.errors import RocketError
from aiorocket.model import check_group, check_topic

__all__ = ("send_file",)

#: After so many failures in a row nobody is there, and each further line would wait for its timeout to say so again.
_GIVE_UP = 256
_IN_FLIGHT = 256
_SHOWN = 5


class _Report:
    """Which lines were acknowledged, and which were not and why."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.failed: list[tuple[int, str]] = []
        self.in_a_row = 0
        self.taken = 0
        self.open: set[int] = set()

    def accepted(self) -> None:
        self.acknowledged += 1
        self.in_a_row = 0

    def refused(self, number: int, why: str) -> None:
        self.failed.append((number, why))
        self.in_a_row += 1

    def hopeless(self) -> bool:
        return self.in_a_row >= _GIVE_UP


def send_file(
    topic: str, file: str, config: ClientConfig, group: str, tag: str, key_field: str | None, rate: float | None
) -> int:
    """The exit code of ``aiorocket produce``."""
    source = LineSource(file)
    source.check()
    return run(_produce(topic, source, config, group, tag, key_field, rate))


async def _produce(
    topic: str,
    source: LineSource,
    config: ClientConfig,
    group: str,
    tag: str,
    key_field: str | None,
    rate: float | None,
) -> int:
    check_topic(topic)
    check_group(group)
    report = _Report()
    loop = asyncio.get_running_loop()
    started = loop.time()

    async with Client(config=config) as client, client.producer(group) as producer:

        async def send(line: Line) -> None:
            report.taken = max(report.taken, line.number)
            report.open.add(line.number)
            try:
                keys = () if key_field is None else (_key(line.body, key_field),)
                await producer.send(topic, line.body, tag=tag, keys=keys)
            except (RocketError, ValueError) as error:
                report.refused(line.number, str(error))
            else:
                report.accepted()
            report.open.discard(line.number)

        work = await until_stopped(send_lines(source, send, in_flight=_IN_FLIGHT, rate=rate, stop=report.hopeless))
        finished = not work.cancelled() and work.exception() is None and not report.hopeless()
        _summary(report, source, topic, loop.time() - started, finished=finished)
        if work.cancelled():
            return INTERRUPTED
        work.result()
    return 0 if finished and not report.failed else 1


def _key(body: bytes, field: str) -> str:
    """The key of a JSON line. ValueError says what is wrong with it."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}), so it has no field {field!r}") from None
    if not isinstance(value, dict) or value.get(field) is None:
        raise ValueError(f"no field {field!r} in it")
    key = value[field]
    if isinstance(key, (dict, list, bool)):
        raise ValueError(f"field {field!r} is {json.dumps(key):.40}, not a text or a number")
    text = str(key)
    if not text or any(c.isspace() or c in "\x01\x02" for c in text):
        raise ValueError(
            f"field {field!r} is {text!r:.60}: a key is not empty and holds no blanks (RocketMQ joins keys by blanks)"
        )
    return text


def _summary(report: _Report, source: LineSource, topic: str, seconds: float, *, finished: bool) -> None:
    skipped = f", {source.empty} empty skipped" if source.empty else ""
    lines = counted(report.acknowledged, "line")
    click.echo(f"{lines} acknowledged by topic {topic} in {seconds:.1f} s{skipped}", err=True)
    numbers = sorted({number for number, _ in report.failed} | report.open)
    if numbers:
        click.echo(f"{len(numbers)} not acknowledged: {_ranges(numbers)}", err=True)
        for number, why in sorted(report.failed)[:_SHOWN]:
            click.echo(visible(f"  line {number}: {why}"), err=True)
        if len(report.failed) > _SHOWN:
            click.echo(f"  and {len(report.failed) - _SHOWN} more like these", err=True)
    if not finished:
        click.echo(f"lines after {report.taken} of {source.name} were not sent", err=True)


def _ranges(numbers: list[int]) -> str:
    """``lines 3, 5-9``"""
    parts: list[str] = []
    start = last = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == last + 1:
            last = number
            continue
        parts.append(str(start) if start == last else f"{start}-{last}")
        start = last = number
    return ("lines " if len(numbers) > 1 else "line ") + ", ".join(parts)
