"""``aiorocket demo``: every line of a text goes through a real name server and a durable broker, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os.path
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from time import perf_counter

import click

from aiorocket import Consumer, Message, Producer, Retry
from aiorocket.broker.broker import Broker
from aiorocket.cli.counts import counted
from aiorocket.cli.ledger import GROUP, LINE, QUEUES, RETRY_TOPIC, TOPIC, Books, message_key, read_books, stock
from aiorocket.cli.lines import Line, LineSource
from aiorocket.cli.running import run
from aiorocket.cli.sending import send_lines
from aiorocket.cli.show import Row, Update, progress, table
from aiorocket.cli.stopping import until_stopped
from aiorocket.cli.tally import Tally, percentile
from aiorocket.cli.terminal import INTERRUPTED
from aiorocket.config import ConsumerConfig
from aiorocket.embedded import Embedded, embed
from aiorocket.errors import RocketError

__all__ = ("demo",)

CONSUMERS = 2
#: Deliveries with the first one. After failure n a message waits for delay level 2 + n: here levels 3 and 4 count.
MAX_ATTEMPTS = 3
DELAY_LEVELS = (0.1, 0.2, 0.3, 0.6, 1.0, 2.0)
IN_FLIGHT = 64
LOOK = 0.1
#: Nothing has moved for so long: say what is missing and fail, instead of waiting for ever.
STALLED = 30.0

#: What the listener reads to know how often it is to fail: the producer's word, so that a redelivery agrees with it.
FAILS = "demo_fails"
ALWAYS = "always"
_MARKS = {b"[fails once]": "1", b"[fails twice]": "2", b"[fails always]": ALWAYS}
_TURNS = ("1", "2", ALWAYS)

_TEXT = os.path.join(os.path.dirname(__file__), "demo.txt")


@click.command()
@click.argument("file", required=False, metavar="[FILE|-]")
@click.option(
    "--data", metavar="DIR", help="Keep the store here. The next run finishes what was left and adds to the totals."
)
@click.option(
    "--fail-every", type=click.IntRange(0), metavar="N", default=10, show_default=True,
    help="Each N-th line of FILE fails on purpose: once, twice, always, in turn. 0: none. Our own text has marks.",
)  # fmt: skip
def demo(file: str | None, data: str | None, fail_every: int) -> None:
    """Send every line of a text through a real broker and account for each one.

    A name server and a durable broker start in this process, on free ports of 127.0.0.1. Each line of FILE (- is
    standard input; without FILE a text that comes with aiorocket) becomes a message, two consumers of one group read
    them, and some lines fail on purpose: they are delivered again after a moment, three times in all, and then go to
    the dead letters. The table at the end must add up, else the exit code is 1.
    """
    source = LineSource(_TEXT if file is None else file)
    plan = _every(fail_every) if file is not None else _marked
    if file is None:
        source.name = "the demo's own text"
    total = source.check()
    sys.exit(run(_Demo(source, total, plan, data).run()))


def _marked(line: Line) -> str | None:
    for mark, fails in _MARKS.items():
        if line.body.endswith(mark):
            return fails
    return None


def _every(step: int) -> Callable[[Line], str | None]:
    def plan(line: Line) -> str | None:
        if not step or line.number % step:
            return None
        return _TURNS[(line.number // step - 1) % len(_TURNS)]

    return plan


async def _shared_out(consumers: list[Consumer]) -> None:
    """Until each has its share of the queues, and nobody another's: what two of them read comes twice, and one sets
    back the other's offset."""
    for _ in range(1000):
        held = [[queue.queue_id for queue in each.held() if queue.topic == TOPIC] for each in consumers]
        if all(held) and sorted(number for each in held for number in each) == list(range(QUEUES)):
            return
        await asyncio.sleep(STALLED / 1000)


@contextlib.contextmanager
def _directory(data: str | None) -> Iterator[str]:
    if data is not None:
        yield data
        return
    made = tempfile.mkdtemp(prefix="aiorocket-demo-")
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


class _Demo:
    def __init__(
        self, source: LineSource, total: int | None, plan: Callable[[Line], str | None], data: str | None
    ) -> None:
        self._source = source
        self._total = total
        self._plan = plan
        self._data = data
        self._pretty = sys.stdout.isatty()
        self._tally = Tally(CONSUMERS)
        self._sent_at: dict[str, float] = {}

    async def run(self) -> int:
        work = await until_stopped(self._run())
        if not work.cancelled():
            return work.result()
        kept = (
            f"run it again with --data {self._data}: what is left comes first"
            if self._data
            else "they went with the temporary store"
        )
        sent, consumed = len(self._tally.sent), len(self._tally.consumed)
        click.echo(f"interrupted: {counted(sent, 'line')} sent, {consumed} consumed; {kept}", err=True)
        return INTERRUPTED

    async def _run(self) -> int:
        with _directory(self._data) as directory:
            async with embed(directory, broker={"delay_levels": DELAY_LEVELS, "offset_flush_interval": 0.5}) as mq:
                await mq.create_topic(TOPIC, queues=QUEUES)
                before = read_books(mq.broker)
                self._introduce(mq, directory, before)
                with progress(pretty=self._pretty) as update:
                    async with self._consumers(mq), mq.producer("demo-writer") as producer:
                        await self._move(mq.broker, producer, before, update)
                after = read_books(mq.broker)
            wrong = self._tally.disagreements(before, after)
            self._summary(before, after, directory)
            for text in wrong:
                click.echo(f"The counts do not add up: {text}", err=True)
            if not wrong:
                pending = f"{len(before.pending)} pending + " if before.pending else ""
                dead = len(after.dead - before.dead)
                click.echo(
                    f"The counts add up: {pending}{len(self._tally.sent)} sent = {len(self._tally.consumed)} consumed"
                    f" + {dead} dead-lettered."
                )
            return 1 if wrong else 0

    # -- the work --

    @contextlib.asynccontextmanager
    async def _consumers(self, mq: Embedded) -> AsyncIterator[None]:
        # Lines are given up on purpose here, and each is accounted for.
        logging.getLogger("aiorocket.client").setLevel(logging.ERROR)
        config = ConsumerConfig(max_attempts=MAX_ATTEMPTS, offset_flush_interval=LOOK)
        consumers = [mq.consumer(GROUP, config=config) for _ in range(CONSUMERS)]
        async with contextlib.AsyncExitStack() as stack:
            for number, consumer in enumerate(consumers):
                consumer.listener(TOPIC, start_from="first")(self._listener(number))
                await stack.enter_async_context(consumer)
            await _shared_out(consumers)
            yield

    def _listener(self, number: int) -> Callable[[Message], Awaitable[None]]:
        tally = self._tally

        async def listen(message: Message) -> None:
            properties = message.properties
            times = message.reconsume_times
            queue = message.queue
            is_retry = queue.topic == RETRY_TOPIC
            fails = properties.get(FAILS)
            succeeded = fails is None or (fails != ALWAYS and times >= int(fails))
            sent_at = self._sent_at.pop(properties.get(LINE, ""), None)
            if sent_at is not None:
                tally.arrived = perf_counter()
                tally.latencies.append(tally.arrived - sent_at)
            tally.delivered(message_key(message), times, succeeded=succeeded)
            if not is_retry:
                tally.delivered_by_queue[number][queue.queue_id] += 1
            if not succeeded:
                raise Retry()  # any exception would do; this one says that it is on purpose and is not logged

        return listen

    async def _move(self, broker: Broker, producer: Producer, before: Books, update: Update) -> None:
        """Send all lines, and watch until everything that is stored has come to its end, or nothing moves any more."""
        loop = asyncio.get_running_loop()
        tally = self._tally

        async def send(line: Line) -> None:
            fails = self._plan(line)
            key = f"{before.stock.sent}-{line.number}"  # lines of an earlier run may come by, with numbers of their own
            self._sent_at[key] = perf_counter()  # uvloop's own clock counts whole milliseconds
            if tally.began is None:
                tally.began = self._sent_at[key]
            properties = {LINE: key} if fails is None else {LINE: key, FAILS: fails}
            try:
                receipt = await producer.send(TOPIC, line.body, properties=properties, timeout=10.0)
            except RocketError as error:
                self._sent_at.pop(key, None)
                tally.failed_sends.append(f"line {line.number}: {error}")
                return
            tally.sent.add(key)
            if fails == ALWAYS:
                tally.doomed.add(key)
            tally.sent_by_queue[receipt.queue.queue_id] += 1

        sending = asyncio.ensure_future(send_lines(self._source, send, in_flight=IN_FLIGHT))
        try:
            last, moved = None, loop.time()
            while True:
                await asyncio.wait([sending], timeout=LOOK) if not sending.done() else await asyncio.sleep(LOOK)
                now = stock(broker)
                end = len(tally.sent) if sending.done() else self._total
                update("sent", len(tally.sent), end)
                update(
                    "consumed or dead-lettered",
                    tally.finished(before.stock, now),
                    None if end is None else end + len(before.pending),
                )
                if sending.done():
                    sending.result()
                    if not now.unsettled:
                        return
                if (now, len(tally.consumed), tally.failures) != last:
                    last, moved = (now, len(tally.consumed), tally.failures), loop.time()
                elif sending.done() and loop.time() - moved > STALLED:
                    return  # the accounts say what is missing
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    # -- the words --

    def _introduce(self, mq: Embedded, directory: str, before: Books) -> None:
        lines = counted(self._total, "line") if self._total is not None else "the lines"
        click.echo(f"name server {mq.nameserver_address}, broker {mq.broker.address}, flush sync")
        click.echo(f"store: {directory}{'' if self._data else ' (temporary; give --data DIR to keep it)'}")
        if before.stock.sent:
            click.echo(
                f"from earlier runs: {before.stock.sent} sent, {len(before.dead)} dead-lettered, "
                f"{len(before.pending)} pending, which come first"
            )
        click.echo(
            f"sending {lines} of {self._source.name} to topic {TOPIC}; {CONSUMERS} consumers of group {GROUP} read them"
        )

    def _summary(self, before: Books, after: Books, directory: str) -> None:
        tally = self._tally
        retried = after.stock.retried
        rows: list[Row] = [
            ("sent", str(len(tally.sent)), str(after.stock.sent)),
            ("consumed", str(len(tally.consumed)), str(after.consumed)),
            ("retried", str(retried - before.stock.retried), str(retried)),
            ("dead-lettered", str(len(after.dead - before.dead)), str(len(after.dead))),
        ]
        if tally.duplicates:
            rows.append(("delivered once more", str(tally.duplicates)))
        if self._source.empty:
            rows.append(("empty lines skipped", str(self._source.empty)))
        rate = tally.rate()
        rows.append(("messages a second", "-" if rate is None else f"{rate:.0f}"))
        for percent in (50, 99):
            value = percentile(tally.latencies, percent)
            rows.append((f"p{percent} send to listener", "-" if value is None else f"{value * 1000:.1f} ms"))
        table("Messages", ("", "this run", "in the store"), rows, pretty=self._pretty)
        spread: list[Row] = [
            (f"{n}", str(tally.sent_by_queue[n]), *(str(taken[n]) for taken in tally.delivered_by_queue))
            for n in range(QUEUES)
        ]
        columns = ("queue", "sent", *(f"delivered to consumer {n + 1}" for n in range(CONSUMERS)))
        table("Spread over the queues", columns, spread, pretty=self._pretty)
        where = (
            f"The messages are in {directory}."
            if self._data
            else f"The store {directory} is removed now; give --data DIR to keep one."
        )
        click.echo(where)
