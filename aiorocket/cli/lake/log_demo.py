"""The run behind ``aiorocket lake demo``: lines to messages, Spark's pipeline, and whether the counts add up. Imported
when the command runs, since it brings Spark."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from functools import lru_cache
from time import perf_counter
from typing import Any
from zlib import crc32

import click

from aiorocket import Producer
from aiorocket.cli.lake.made_up_log import made_up_log
from aiorocket.cli.lake.running import Interrupts, Page
from aiorocket.cli.lake.telling import Teller, cell, plural, proof, show_tables
from aiorocket.cli.lines import Line, LineSource
from aiorocket.cli.running import run
from aiorocket.cli.show import Row, table
from aiorocket.cli.stopping import until_stopped
from aiorocket.embedded import Embedded, embed
from aiorocket.model import OutgoingMessage, Queue
from aiorocket.runtime.clock import WallClock
from aiorocket.runtime.threads import loop_in_thread
from aiorocket.spark import bridge
from aiorocket.spark.quiet_session import session_for
from aiorocket.spark.steps.demo import LINE, RUN, Pipeline, pipeline
from aiorocket.spark.steps.demo.access_log import PATTERN
from aiorocket.spark.steps.report import Progress, StepReport

__all__ = ("LogDemo",)

TOPIC = "access-log"
QUEUES = 4
#: Messages in one request, and their bytes: as many as the broker stores together.
_BATCH, _BATCH_BYTES = 500, 1 << 20
_TELL_EVERY = 5_000
#: Property of a message: when the request was, by the log, in milliseconds since 1970 UTC.
_EVENT_TIME = "eventTime"
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_NO_PLOTS = "they need pip install 'aiorocketmq[report]'"
_LOG_LINE = re.compile(PATTERN)


class LogDemo:
    def __init__(
        self, folder: str, data: str | None, source: LineSource | None, total: int | None, lines: int, seed: int
    ) -> None:
        self._folder = folder
        self._store = data or os.path.join(folder, "store")
        self._source = source
        self._total = total
        self._lines = lines
        self._seed = seed
        self._sent = 0
        self._read = 0

    def run(self, master: str, conf: dict[str, str], interrupts: Interrupts) -> int:
        """Run it and give the exit code. KeyboardInterrupt when a signal ended it."""
        began = perf_counter()
        os.makedirs(self._folder, exist_ok=True)
        with loop_in_thread(embed(self._store)) as mq, Teller() as teller:
            before = _stored(mq)
            self._introduce(mq, before)
            try:
                run(self._send(mq, before, teller))
            finally:
                interrupts.take()
            stored, sent_by = _stored(mq), perf_counter()
            teller.note("starting Spark")
            try:
                with interrupts.session(session_for("aiorocket lake demo", master, conf, short=True)) as spark:
                    teller.note("")
                    started_by = perf_counter()
                    done = pipeline(spark, mq.nameserver_address, TOPIC, self._folder, on_progress=teller.progress)
            finally:
                bridge.close()  # its connections end before the broker does
        took = {"sending": sent_by - began, "starting Spark": started_by - sent_by, **done.seconds}
        took["all"] = perf_counter() - began
        return self._account(before, stored, done, took)

    # -- lines to messages --

    async def _send(self, mq: Embedded, before: int, teller: Teller) -> None:
        work = await until_stopped(self._send_all(mq, before, teller))
        if work.cancelled():
            raise KeyboardInterrupt
        work.result()

    async def _send_all(self, mq: Embedded, before: int, teller: Teller) -> None:
        await mq.create_topic(TOPIC, QUEUES)
        run_id = str(WallClock().wall_ms() // 1000)
        async with Producer("lake-demo", nameservers=mq.nameservers) as producer:
            route = await producer.client.route(TOPIC)
            senders = [_QueueSender(producer, queue) for queue in sorted(route.publish)]
            try:
                async for line in self._source if self._source is not None else self._made_up(before):
                    self._read += 1
                    place, message = _message(line, run_id)
                    await senders[place % len(senders)].add(message)
                    if self._read % _TELL_EVERY == 0:
                        sent = sum(sender.sent for sender in senders)
                        teller.progress(Progress("send", sent, self._total, f"{self._read:,} lines read"))
                for sender in senders:
                    await sender.flush()
            finally:
                for sender in senders:
                    await sender.end()
                self._sent = sum(sender.sent for sender in senders)
            teller.progress(Progress("send", self._sent, self._read, f"to {plural(len(senders), 'queue')}"))

    async def _made_up(self, before: int) -> AsyncIterator[Line]:
        day = -(-before // self._lines)  # the next run goes on with another day
        for number, body in enumerate(made_up_log(self._lines, seed=self._seed, day=day), 1):
            yield Line(number, body)

    # -- the words --

    def _introduce(self, mq: Embedded, before: int) -> None:
        what = self._source.name if self._source is not None else "a day of a shop's access log, made up"
        count = f"{plural(self._total, 'line')} of " if self._total is not None else ""
        click.echo(f"name server {mq.nameserver_address}, broker {mq.broker.address}, flush sync")
        if before:
            click.echo(f"from earlier runs: {plural(before, 'message')} in {self._store}")
        click.echo(f"sending {count}{what} to topic {TOPIC}; results go to {self._folder}")

    def _account(self, before: int, stored: int, done: Pipeline, took: dict[str, float]) -> int:
        pretty = sys.stdout.isatty()
        show_tables({"tables": done.tables})
        wrote: Any = done.decode.details["wrote"]
        decoded, quarantined = wrote.get("decoded", 0), wrote.get("quarantine", 0)
        rows: list[Row] = [
            ("lines read", cell(self._read), ""),
            ("messages sent", cell(self._sent), cell(stored)),
            ("rows archived", cell(done.new), cell(done.archived)),
            ("rows decoded", cell(decoded), cell(done.decoded)),
            ("rows quarantined", cell(quarantined), cell(done.quarantined)),
            ("requests in windows", "", cell(done.in_windows)),
            ("order findings", "", cell(done.findings)),
        ]
        if self._source is not None and self._source.empty:
            rows.append(("empty lines skipped", cell(self._source.empty), ""))
        table("Counts", ("", "this run", "in all"), rows, pretty=pretty)
        times = [(name, f"{seconds:.1f}") for name, seconds in took.items()]
        table("Time", ("", "seconds"), times, pretty=pretty)
        for reason, count in done.reasons.items():
            click.echo(f"quarantined: {plural(count, 'line')}: {reason}")
        if done.span is not None:
            click.echo(f"log: {done.span[0]:%Y-%m-%d %H:%M} to {done.span[1]:%Y-%m-%d %H:%M} UTC")
        for path in done.plots:
            click.echo(f"plot: {path}")
        if not done.plots:
            click.echo("no plots: " + ("there is nothing to draw" if not done.decoded else _NO_PLOTS))
        click.echo(f"archive: {self._folder}/archive; tables: {self._folder}/log, {self._folder}/windows")
        for line in proof(done.archive):
            click.echo(f"archive {line}")
        wrong = done.disagreements(stored)
        if not self._read == self._sent == stored - before:
            wrong.insert(0, f"{self._read} lines read, {self._sent} sent, the topic grew by {stored - before}")
        for text in wrong:
            click.echo(f"The counts do not add up: {text}", err=True)
        if not wrong:
            earlier = f" + {before:,} of earlier runs" if before else ""
            click.echo(
                f"The counts add up: {plural(self._read, 'line')} = {self._sent:,} sent{earlier} = {done.archived:,} "
                f"archived = {done.decoded:,} decoded + {done.quarantined:,} quarantined; "
                f"{done.decoded:,} decoded = {done.in_windows:,} in windows."
            )
        page = Page("Access log", click.get_current_context().params)
        page.add(done.archive)
        page.add(done.decode)
        said = [f"The counts do not add up: {text}" for text in wrong] or ["The counts add up."]
        log = StepReport("log", done.decoded, done.in_windows, details={"tables": done.tables, "plots": done.plots})
        page.add(log, said, good=not wrong)
        page.tell()
        return 1 if wrong else 0


class _QueueSender:
    """One queue's way: batches in order, one on the way while the next is gathered."""

    def __init__(self, producer: Producer, queue: Queue) -> None:
        self.sent = 0
        self._producer = producer
        self._queue = queue
        self._waiting: list[OutgoingMessage] = []
        self._bytes = 0
        self._under_way: asyncio.Task[None] | None = None

    async def add(self, message: OutgoingMessage) -> None:
        if self._bytes + len(message.body) > _BATCH_BYTES:
            await self.flush()
        self._waiting.append(message)
        self._bytes += len(message.body)
        if len(self._waiting) >= _BATCH:
            await self.flush()

    async def flush(self) -> None:
        """Send what was gathered, when what is under way has been acknowledged."""
        if self._under_way is not None:
            await self._under_way
        if self._waiting:
            self._under_way = asyncio.ensure_future(self._send(self._waiting))
            self._waiting, self._bytes = [], 0

    async def end(self) -> None:
        """Wait for what is under way; what fails is raised."""
        if self._under_way is not None:
            await self._under_way

    async def _send(self, messages: list[OutgoingMessage]) -> None:
        if len(messages) == 1:
            await self._producer.send(messages[0], queue=self._queue)
        else:
            await self._producer.send_batch(TOPIC, messages, queue=self._queue)
        self.sent += len(messages)


def _message(line: Line, run_id: str) -> tuple[int, OutgoingMessage]:
    """The message of a line, and a number that is the same for all lines of one client."""
    properties = {RUN: run_id, LINE: str(line.number)}
    found = _LOG_LINE.match(line.body.decode("utf-8", "replace"))
    if found is None or not (found[1].isprintable() and len(found[1]) <= 100):
        return line.number, OutgoingMessage(topic=TOPIC, body=line.body, tag="other", properties=properties)
    at = _event_time(found[3])
    if at is not None:
        properties[_EVENT_TIME] = at
    return crc32(found[1].encode()), OutgoingMessage(
        topic=TOPIC, body=line.body, tag=f"{found[5][0]}xx", keys=(found[1],), properties=properties
    )


@lru_cache(maxsize=64)
def _event_time(text: str) -> str | None:
    """``03/Mar/2025:13:02:55 +0000`` in milliseconds since 1970, None when there is no such time."""
    month = _MONTHS.find(text[3:6]) // 3 + 1
    iso = f"{text[7:11]}-{month:02d}-{text[:2]}T{text[12:20]}{text[21:24]}:{text[24:26]}"
    try:
        return str(round(datetime.fromisoformat(iso).timestamp() * 1000))
    except ValueError:
        return None


def _stored(mq: Embedded) -> int:
    """How many messages the topic has ever been given."""
    store = mq.broker.store
    return sum(store.max_offset(TOPIC, queue_id) for queue_id in store.queues(TOPIC))
