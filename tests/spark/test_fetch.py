"""Exactly the range asked for, whatever the broker does: short answers, filters, refusals, broken connections, holes.
In virtual time against a scripted broker, and against ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import aiorocket
from aiorocket.client.app import Client
from aiorocket.embedded import Embedded
from aiorocket.errors import ProtocolError, RemoteError, RocketError, UsageError
from aiorocket.model import OutgoingMessage, Queue
from aiorocket.remoting.connection import Connection
from aiorocket.spark import fetch as module
from aiorocket.spark.fetch import Chunk, DataLossError, check_rows, fetch
from aiorocket.spark.fetch_state import GROW_AFTER, Pace, within
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.planner import QueueRange
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import PullMessageRequestHeader, RecordView, RemotingCommand, ResponseCode, split_records
from tests.spark.pull_broker import ADDRESS, PullBroker, queue, settings

T = TypeVar("T")
Scenario = Callable[[PullBroker, Client], Awaitable[T]]


def run(scenario: Scenario[T], seed: int = 0) -> T:
    async def main(sim: Simulation) -> T:
        async with PullBroker(sim, seed=seed) as broker, broker.client() as client:
            return await scenario(broker, client)

    return simulate(main, seed)


async def everything(client: Client, ranges: Sequence[QueueRange], options: SourceOptions) -> list[Chunk]:
    return [chunk async for chunk in fetch(client.session, ranges, options)]


def check(chunks: Sequence[Chunk], ranges: Sequence[QueueRange], matches: Callable[[int], bool] | None = None) -> None:
    """The chunks are the ranges: in order, without a gap, each record once."""
    left = list(chunks)
    for span in ranges:
        expected = [offset for offset in range(span.begin, span.end) if matches is None or matches(offset)]
        offsets: list[int] = []
        position = span.begin
        # The next range of the queue may begin where the last match of this one ended.
        while left and left[0].queue == span.queue and left[0].begin == position and left[0].end <= span.end:
            chunk = left.pop(0)
            records = split_records(chunk.data, RecordView)
            assert len(records) == chunk.rows > 0
            assert {record.queue_id for record in records} == {span.queue.queue_id}
            assert chunk.begin <= records[0].queue_offset <= records[-1].queue_offset < chunk.end
            offsets += [record.queue_offset for record in records]
            position = chunk.end
        assert offsets == expected
        assert position == span.end or matches is not None
    assert not left


class Faults:
    """By the number of the pull: what goes wrong with it."""

    def __init__(self, plan: dict[int, str]) -> None:
        self.plan = plan
        self.seen = 0

    def __call__(self, connection: Connection, command: RemotingCommand, header: PullMessageRequestHeader) -> bool:
        self.seen += 1
        match self.plan.get(self.seen):
            case "busy":
                connection.reply(command, RemotingCommand.response(ResponseCode.SYSTEM_BUSY, remark="scripted"))
            case "error":
                connection.reply(command, RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark="scripted"))
            case "cut":
                connection.abort("scripted")
            case "silent":
                pass
            case _:
                return False
        return True


spans = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(0, 300)), max_size=4).map(
    lambda found: [QueueRange(queue(number), min(a, b), max(a, b)) for number, a, b in found]
)


@hypothesis_settings(max_examples=3 * hypothesis_settings.default.max_examples // 5, deadline=None)
@given(
    ranges=spans,
    count=st.integers(1, 64),
    size=st.integers(300, 5000),
    delay=st.sampled_from([0.0, 0.01, 0.5]),
    batch=st.integers(1, 200),
    window=st.integers(1, 20),
    modulus=st.sampled_from([0, 1, 3, 50, 5000]),
    rows=st.integers(1, 300),
    faults=st.dictionaries(st.integers(1, 60), st.sampled_from(["busy", "error", "cut"]), max_size=4),
    silent=st.sets(st.integers(1, 60), max_size=2),
    seed=st.integers(0, 1000),
)
@example(
    ranges=[QueueRange(queue(0), 0, 152), QueueRange(queue(0), 151, 154)], count=1, size=300, delay=0.0, batch=1,
    window=1, modulus=3, rows=1, faults={}, silent=set(), seed=0,
)  # fmt: skip
def test_exactly_the_ranges_whatever_the_broker_gives(
    ranges: list[QueueRange], count: int, size: int, delay: float, batch: int, window: int, modulus: int, rows: int,
    faults: dict[int, str], silent: set[int], seed: int,
) -> None:  # fmt: skip
    async def scenario(broker: PullBroker, client: Client) -> list[Chunk]:
        broker.count, broker.size, broker.delay = count, size, delay
        broker.fault = Faults(faults | dict.fromkeys(silent, "silent"))
        broker.scan = 80
        broker.matches = lambda offset: offset % max(modulus, 1) == 0
        filters = {"tags": "A"} if modulus else {}
        options = settings(pullBatchSize=batch, pullsInFlight=window, pullTimeout="60s", **filters)
        chunks = await everything(client, ranges, options)
        assert broker.most_outstanding <= window
        assert all(header.max_msg_nums <= batch for header in broker.pulls)
        return chunks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_ROWS", rows)
        patch.setattr(module, "_MOST_ROWS", 2 * rows)
        patch.setattr(module, "AHEAD_BYTES", 20_000)
        chunks = run(scenario, seed)
    # The same queue may be in two ranges: they are read one after the other all the same.
    check(chunks, ranges, (lambda offset: offset % modulus == 0) if modulus else None)
    assert all(chunk.rows <= max(2 * rows, 64) for chunk in chunks)


def test_a_window_is_asked_for_at_once_and_the_size_follows_the_broker() -> None:
    async def scenario(broker: PullBroker, client: Client) -> None:
        broker.high, broker.delay, broker.count = 20_000, 0.0, 32
        ranges = [QueueRange(queue(0), 0, 20_000)]
        check(await everything(client, ranges, settings()), ranges)
        first = [(header.queue_offset, header.max_msg_nums) for header in broker.pulls[:16]]
        assert first == [(number * 1024, 1024) for number in range(16)]
        # 625 answers of 32 are the least; asking for more now and then costs nothing.
        assert len(broker.pulls) < 700
        assert broker.most_outstanding == 16

    run(scenario)


def test_small_ranges_of_many_queues_share_the_window() -> None:
    async def scenario(broker: PullBroker, client: Client) -> None:
        ranges = [QueueRange(queue(number), 10 * number, 10 * number + 5) for number in range(4)]
        chunks = await everything(client, ranges, settings())
        check(chunks, ranges)
        assert [header.max_msg_nums for header in broker.pulls] == [5] * 4
        assert broker.most_outstanding == 4

    run(scenario)


def test_memory_is_bounded_while_nobody_takes_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", 400_000)
    monkeypatch.setattr(module, "CHUNK_ROWS", 100)

    async def scenario(broker: PullBroker, client: Client) -> None:
        broker.high, broker.body, broker.count = 100_000, 1000, 32
        async with aclosing(fetch(client.session, [QueueRange(queue(0), 0, 100_000)], settings())) as chunks:
            taken = len((await anext(chunks)).data)
            await asyncio.sleep(60)
            assert broker.bytes_sent - taken <= 400_000 + 16 * 32 * 1100
            sent = broker.bytes_sent
            await anext(chunks)
            await asyncio.sleep(60)
            assert broker.bytes_sent > sent

    run(scenario)


def test_chunks_are_cut_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 50_000)

    async def scenario(broker: PullBroker, client: Client) -> None:
        broker.body = 1000
        ranges = [QueueRange(queue(0), 3, 800)]
        chunks = await everything(client, ranges, settings())
        check(chunks, ranges)
        assert max(len(chunk.data) for chunk in chunks) <= 50_000

    run(scenario)


def test_closing_early_ends_the_asking() -> None:
    async def scenario(broker: PullBroker, client: Client) -> None:
        broker.high, broker.delay = 1_000_000, 0.01
        chunks = fetch(client.session, [QueueRange(queue(0), 0, 1_000_000)], settings())
        await anext(chunks)
        await chunks.aclose()
        await asyncio.sleep(0.1)  # what was on its way
        asked = len(broker.pulls)
        await asyncio.sleep(10)
        assert len(broker.pulls) == asked
        assert broker.outstanding == 0

    run(scenario)


def test_cancelling_in_the_middle_of_a_repair_leaves_nothing() -> None:
    async def scenario(broker: PullBroker, client: Client) -> None:
        await broker.stop()
        reading = asyncio.create_task(everything(client, [QueueRange(queue(0), 0, 10)], settings()))
        await asyncio.sleep(1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await broker.start()

    run(scenario)


def test_a_broker_that_restarts_is_waited_for() -> None:
    async def scenario(broker: PullBroker, client: Client) -> None:
        broker.high, broker.delay = 30_000, 0.05
        ranges = [QueueRange(queue(number), 0, 15_000) for number in range(2)]
        reading = asyncio.create_task(everything(client, ranges, settings()))
        await asyncio.sleep(0.5)
        assert broker.bytes_sent > 0
        await broker.stop()
        await asyncio.sleep(5)
        await broker.start()
        check(await reading, ranges)

    run(scenario)


def test_what_does_not_come_back_is_named() -> None:
    async def scenario(broker: PullBroker, client: Client) -> None:
        await client.session.route("t")
        await broker.stop()
        began = client.session.loop.time()
        with pytest.raises(RocketError) as caught:
            await everything(client, [QueueRange(queue(3), 17, 20)], settings(pullTimeout="7s"))
        assert 7 <= client.session.loop.time() - began < 15
        for part in ("topic t", "broker-a", ADDRESS, "queue 3", "offset 17", "7 s"):
            assert part in str(caught.value)
        assert not isinstance(caught.value, DataLossError)
        await broker.start()

    run(scenario)


def test_a_silent_broker_is_given_up() -> None:
    async def scenario(broker: PullBroker, client: Client) -> None:
        broker.fault = lambda connection, command, header: True
        began = client.session.loop.time()
        with pytest.raises(RocketError, match=r"nothing could be read for 10 s: .* did not answer"):
            await everything(client, [QueueRange(queue(0), 0, 20)], settings())
        assert 10 <= client.session.loop.time() - began < 16

    run(scenario)


def test_a_refusal_that_is_final_is_not_repeated() -> None:
    def refuse(connection: Connection, command: RemotingCommand, header: PullMessageRequestHeader) -> bool:
        connection.reply(command, RemotingCommand.response(ResponseCode.NO_PERMISSION, remark="not you"))
        return True

    async def scenario(broker: PullBroker, client: Client) -> None:
        broker.fault = refuse
        with pytest.raises(RemoteError, match=r"queue 0, offset 5.*not you"):
            await everything(client, [QueueRange(queue(0), 5, 6)], settings())
        assert len(broker.pulls) == 1

    run(scenario)


Breaker = Callable[[PullBroker], None]


def _retention(broker: PullBroker) -> None:
    broker.low = 40


def _hole(broker: PullBroker) -> None:
    broker.holes = set(range(40))


def _file_gone(broker: PullBroker) -> None:
    whole = broker.answer

    def answer(header: PullMessageRequestHeader) -> RemotingCommand:
        if header.queue_offset < 40:
            return broker.nothing(ResponseCode.PULL_RETRY_IMMEDIATELY, 40, "MESSAGE_WAS_REMOVING")
        return whole(header)

    broker.answer = answer  # type: ignore[method-assign]


@pytest.mark.parametrize("breaks", [_retention, _hole, _file_gone])
def test_missing_messages_fail_the_read_or_are_passed_over(breaks: Breaker, caplog: pytest.LogCaptureFixture) -> None:
    ranges = [QueueRange(queue(0), 10, 100), QueueRange(queue(1), 20, 30), QueueRange(queue(2), 60, 70)]

    async def strict(broker: PullBroker, client: Client) -> None:
        breaks(broker)
        with pytest.raises(DataLossError, match=r"topic t, .*queue 0, offset 10: up to 40 .*failOnDataLoss=false"):
            await everything(client, ranges, settings())

    async def lenient(broker: PullBroker, client: Client) -> None:
        breaks(broker)
        chunks = await everything(client, ranges, settings(failOnDataLoss="false", pullBatchSize=7))
        check(chunks, [QueueRange(queue(0), 40, 100), ranges[2]])

    run(strict)
    with caplog.at_level(logging.WARNING, "aiorocket.spark"):
        run(lenient)
    assert len([each for each in caplog.records if "are gone" in each.message]) == 2


def test_a_filter_does_not_hide_that_messages_are_gone(caplog: pytest.LogCaptureFixture) -> None:
    # Both "nothing matches" and "the file is being removed" come as PULL_RETRY_IMMEDIATELY.
    span = QueueRange(queue(0), 10, 100)

    async def strict(broker: PullBroker, client: Client) -> None:
        _file_gone(broker)
        with pytest.raises(DataLossError, match=r"queue 0, offset 10: up to 40 .*MESSAGE_WAS_REMOVING"):
            await everything(client, [span], settings(tags="A"))

    async def lenient(broker: PullBroker, client: Client) -> None:
        _file_gone(broker)
        chunks = await everything(client, [span], settings(tags="A", failOnDataLoss="false"))
        check(chunks, [QueueRange(queue(0), 40, 100)], broker.matches)

    run(strict)
    run(lenient)
    assert "up to 40 messages are gone" in caplog.text


def _shorter(broker: PullBroker) -> None:
    broker.high = 50


def _emptied(broker: PullBroker) -> None:
    broker.low = broker.high = 0


def _deleted(broker: PullBroker) -> None:
    def gone(connection: Connection, command: RemotingCommand, header: PullMessageRequestHeader) -> bool:
        answer = RemotingCommand.response(ResponseCode.TOPIC_NOT_EXIST, remark="topic[t] not exist")
        connection.reply(command, answer)
        return True

    broker.fault = gone


def _unrouted(broker: PullBroker) -> None:
    broker.has_topic = False


@pytest.mark.parametrize(("breaks", "end"), [(_shorter, 50), (_emptied, 10), (_deleted, 10), (_unrouted, 10)])
def test_a_queue_that_ends_too_early(breaks: Breaker, end: int) -> None:
    ranges = [QueueRange(queue(0), 10, 2000), QueueRange(queue(1), 3, 5)]

    async def strict(broker: PullBroker, client: Client) -> None:
        breaks(broker)
        with pytest.raises(DataLossError, match=r"queue (0, offset \d+: up to 2000|1, offset 3: up to 5) messages"):
            await everything(client, ranges, settings(pullTimeout="4s"))

    async def lenient(broker: PullBroker, client: Client) -> None:
        breaks(broker)
        chunks = await everything(client, ranges, settings(pullTimeout="4s", failOnDataLoss="false"))
        kept = [QueueRange(queue(0), 10, end), ranges[1]]
        check(chunks, [each for each in kept if end != 10])
        assert client.session.loop.time() < 30

    run(strict)
    run(lenient)


def test_what_a_replica_does_not_have_yet_is_not_lost() -> None:
    async def scenario(broker: PullBroker, client: Client) -> None:
        broker.high, broker.broker_id = 50, 1
        lenient = settings(failOnDataLoss="false", pullTimeout="2s")
        with pytest.raises(RocketError, match=r"queue 0, offset \d+: nothing could be read for 2 s: .*replica"):
            await everything(client, [QueueRange(queue(0), 10, 100)], lenient)

    run(scenario)


def test_messages_that_come_late_are_waited_for() -> None:
    """A broker that restarts may know less for a moment."""

    async def scenario(broker: PullBroker, client: Client) -> None:
        broker.high = 50
        client.session.loop.call_later(3, setattr, broker, "high", 1000)
        ranges = [QueueRange(queue(0), 10, 900)]
        check(await everything(client, ranges, settings()), ranges)
        assert len(broker.pulls) < 300

    run(scenario)


def test_a_broker_that_leads_in_circles_is_an_error() -> None:
    def spin(
        broker: PullBroker, connection: Connection, command: RemotingCommand, header: PullMessageRequestHeader
    ) -> bool:
        answer = broker.answer(header)
        back = broker.nothing(0, header.queue_offset, "FOUND")
        back.body = answer.body
        connection.reply(command, back)
        return True

    async def scenario(broker: PullBroker, client: Client) -> None:
        broker.fault = partial(spin, broker)
        with pytest.raises(ProtocolError, match="leads back to 0"):
            await everything(client, [QueueRange(queue(0), 0, 10)], settings())
        broker.fault = lambda connection, command, header: (
            not connection.reply(
                command, broker.nothing(ResponseCode.PULL_RETRY_IMMEDIATELY, header.queue_offset, "NO_MATCHED_MESSAGE")
            )
        )
        broker.pulls.clear()
        with pytest.raises(RocketError, match="nothing could be read for 10 s"):
            await everything(client, [QueueRange(queue(0), 0, 10)], settings(tags="A"))
        assert len(broker.pulls) < 30

    run(scenario)


def test_a_reset_of_the_group_does_not_move_a_read() -> None:
    def reset(
        broker: PullBroker, connection: Connection, command: RemotingCommand, header: PullMessageRequestHeader
    ) -> bool:
        if len(broker.pulls) > 1:
            return False
        connection.reply(command, broker.nothing(ResponseCode.PULL_OFFSET_MOVED, 700, "OFFSET_RESET"))
        return True

    async def scenario(broker: PullBroker, client: Client) -> None:
        broker.fault = partial(reset, broker)
        ranges = [QueueRange(queue(0), 0, 100)]
        check(await everything(client, ranges, settings(groupId="g")), ranges)
        assert {header.consumer_group for header in broker.pulls} == {"g"}

    run(scenario)


@pytest.mark.parametrize("body", [b"", b"x" * 40, None])
def test_answers_that_are_no_records_are_refused(body: bytes | None) -> None:
    async def scenario(broker: PullBroker, client: Client) -> None:
        bad = broker.record(0, 0)[:-3] if body is None else body

        def answer(connection: Connection, command: RemotingCommand, header: PullMessageRequestHeader) -> bool:
            found = broker.nothing(0, header.queue_offset + 5, "FOUND")
            found.body = bad
            connection.reply(command, found)
            return True

        broker.fault = answer
        with pytest.raises(ProtocolError):
            await everything(client, [QueueRange(queue(0), 0, 3)], settings(tags="A"))

    run(scenario)


def test_a_range_begins_at_an_offset() -> None:
    async def scenario(broker: PullBroker, client: Client) -> None:
        with pytest.raises(UsageError, match="-2"):
            await everything(client, [QueueRange(queue(0), -2, 3)], settings())
        assert await everything(client, [QueueRange(queue(0), 3, 3)], settings()) == []
        assert await everything(client, [], settings()) == []

    run(scenario)


def test_the_pace_falls_at_once_and_rises_slowly() -> None:
    pace = Pace(1024)
    pace.note(1024, 32)
    assert pace.span == 32
    for _ in range(GROW_AFTER - 1):
        pace.note(32, 32)
    assert pace.span == 32
    pace.note(5, 5)  # the end of a range says nothing
    pace.note(32, 32)
    assert pace.span == 64
    pace.note(64, 1)
    assert pace.span == 1


def test_the_pace_keeps_off_a_limit_of_bytes() -> None:
    pace = Pace(1024)
    pace.note(1024, 700)
    assert pace.span == 700
    pace.note(700, 690)
    assert pace.span == 690 * 7 // 8
    pace.note(1024, 690)
    assert pace.span == 690


def test_rows_that_are_missing_inside_of_a_chunk_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    chunk = Chunk(queue(2), 10, 20, b"", 10)
    check_rows(chunk, 10, settings())
    assert not caplog.records
    with pytest.raises(DataLossError, match="queue 2: 9 messages from offset 10 up to 20, where there were 10"):
        check_rows(chunk, 9, settings())
    check_rows(chunk, 9, settings(failOnDataLoss="false"))
    assert "9 messages" in caplog.text


def test_within_cuts_at_both_ends() -> None:
    def record(offset: int) -> bytes:
        return (30).to_bytes(4, "big") + bytes(16) + offset.to_bytes(8, "big") + b"ab"

    data = b"".join(map(record, range(5, 10)))
    assert within(data, 5, 10) == (data, 5, 5)
    assert within(data, 6, 9) == (data[30:120], 3, 6)
    assert within(data, 10, 20) == (b"", 0, 20)
    with pytest.raises(ProtocolError, match="at byte 120 of 149"):
        within(data[:-1], 5, 10)


# -- our broker, real sockets --

BODIES = 5000


async def filled(mq: Embedded, topic: str = "t", queues: int = 2, *, tags: str = "ABC") -> list[Queue]:
    await mq.create_topic(topic, queues)
    async with mq.producer() as producer:
        found = sorted((await producer.client.route(topic)).publish)
        for each in found:
            for start in range(0, BODIES, 500):
                await producer.send_batch(
                    topic,
                    [
                        OutgoingMessage(topic=topic, body=b"%d" % number, tag=tags[number % len(tags)])
                        for number in range(start, start + 500)
                    ],
                    queue=each,
                )
    return found


def real(mq: Embedded, **options: object) -> SourceOptions:
    texts = {name: str(value) for name, value in options.items()}
    return SourceOptions.parse({"nameServer": mq.nameserver_address, "topic": "t", **texts})


async def test_all_of_our_broker_with_and_without_filters() -> None:
    async with aiorocket.embed(broker={"max_pull_messages": 100}) as mq:
        queues = await filled(mq)
        ranges = [QueueRange(queues[0], 7, 4990), QueueRange(queues[1], 0, BODIES)]
        async with mq.client() as client:
            chunks = await everything(client, ranges, real(mq))
            check(chunks, ranges)
            assert [(chunk.queue, chunk.begin, chunk.end) for chunk in chunks] == [(*ranges[0],), (*ranges[1],)]
            check(await everything(client, ranges, real(mq, tags="B")), ranges, lambda offset: offset % 3 == 1)
            sql = await everything(client, ranges, real(mq, sqlFilter="TAGS IN ('A', 'C')"))
            check(sql, ranges, lambda offset: offset % 3 != 1)
            with pytest.raises(RemoteError, match="parse"):
                await everything(client, ranges, real(mq, sqlFilter="a ="))


async def test_our_broker_restarts_in_the_middle(tmp_path: Path) -> None:
    async with aiorocket.embed(str(tmp_path / "data")) as mq:
        queues = await filled(mq)
        ranges = [QueueRange(each, 0, BODIES) for each in queues]
        async with mq.client() as client:
            async with aclosing(fetch(client.session, ranges, real(mq, pullBatchSize=20, pullsInFlight=3))) as reading:
                chunks: list[Chunk] = []
                restarting = asyncio.create_task(mq.restart(kill=True))
                async for chunk in reading:
                    chunks.append(chunk)
                await restarting
            check(chunks, ranges)


async def test_namespaces_are_on_the_wire_only() -> None:
    from aiorocket.config import ClientConfig

    async with aiorocket.embed() as mq:
        queues = await filled(mq, "ns%t", 1)
        config = ClientConfig(nameservers=mq.nameservers, namespace="ns")
        ranges = [QueueRange(queues[0]._replace(topic="t"), 0, BODIES)]
        async with Client(config=config) as client:
            check(await everything(client, ranges, real(mq)), ranges)
