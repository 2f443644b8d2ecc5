"""The exactly-once sink when tasks fail or run twice, batches are replayed, and the broker is killed, over real
sockets. What happens at each single point is in test_exactly_once_sim.py."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from aiorocket.embedded import Embedded, embed
from aiorocket.errors import NotConnectedError, SendError
from aiorocket.runtime.threads import loop_in_thread
from aiorocket.spark import bridge, exactly_once
from aiorocket.spark.exactly_once import HalfSink, OpenBatchError
from aiorocket.spark.ledger import Ledger
from aiorocket.spark.outgoing_rows import RowError
from aiorocket.spark.sink import batch_writer
from aiorocket.testing import broker_thread
from tests.spark.producing import create_topic
from tests.spark.servers import standalone
from tests.spark.writing import BODY, Stream, bodies, schema, task, values, write_batch


@pytest.fixture(scope="module")
def mq() -> Iterator[Embedded]:
    """A broker that asks every second."""
    with loop_in_thread(embed(broker={"transaction_check_interval": 1.0})) as mq:
        try:
            yield mq
        finally:
            bridge.close()


@pytest.fixture
def asking(mq: Embedded) -> str:
    return mq.nameserver_address


def _open(mq: Embedded) -> int:
    """Half messages that nobody has ended."""
    return len(mq.broker.transactions)


def stream(nameserver: str, topic: str, **options: str) -> Stream:
    create_topic(nameserver, topic)
    defaults = {"ledgerTopic": "ledger", "checkImmunity": "1s", "checkRound": "30s"}
    return Stream(nameserver, topic, f"query-of-{topic}", **defaults | options)


def test_nothing_is_seen_before_the_commit_and_all_after_it(asking: str, topic: str) -> None:
    query = stream(asking, topic)
    messages = [query.write(0, 0, "a", "b"), query.write(0, 1, "c"), query.write(0, 2)]
    assert values(asking, topic) == []
    query.writer().commit(messages, 0)
    assert values(asking, topic) == ["a", "b", "c"]


def test_a_replayed_batch_writes_nothing_and_the_next_goes_on(asking: str, topic: str) -> None:
    query = stream(asking, topic)
    query.run(0, ["a"], ["b"])
    query.run(1, ["c"])
    for batch in (0, 1):
        assert query.write(batch, 0, "again").skipped
        query.run(batch, ["again"], ["again"])
    query.run(2, ["d"])
    assert values(asking, topic) == ["a", "b", "c", "d"]


def test_a_batch_that_is_decided_and_has_other_rows_now_is_told(
    asking: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that lost its last file is planned anew, to a later end: what lies in between is in no batch."""
    query = stream(asking, topic)
    query.run(0, ["a"], ["b"])
    query.run(0, ["a", "b"], [])  # the same rows, otherwise cut
    assert "was decided with" not in caplog.text
    query.run(0, ["a", "b"], ["c"])
    assert "batch 0 was decided with 2 rows and has 3 now, which are not written" in caplog.text
    assert values(asking, topic) == ["a", "b"]


def test_two_queries_share_a_ledger(asking: str, topic: str) -> None:
    one, two = stream(asking, topic), stream(asking, topic)
    two.query = "another"
    one.run(0, ["1"])
    two.run(0, ["2"])
    two.run(1, ["3"])
    one.run(1, ["4"])
    assert values(asking, topic) == ["1", "2", "3", "4"]


def test_a_task_that_fails_is_rolled_back_by_itself(mq: Embedded, asking: str, topic: str) -> None:
    create_topic(asking, topic)
    options = {"nameServer": asking, "topic": topic, "sinkMode": "exactlyOnce", "ledgerTopic": "ledger"}
    writer = batch_writer(BODY, options, False)

    def input_that_breaks() -> Iterator[pa.RecordBatch]:
        yield bodies("a", "b")
        raise OSError("no more input")

    with task(), pytest.raises(OSError, match="no more input"):
        writer.write(input_that_breaks())
    with task(1):
        other = writer.write(iter([bodies("c")]))
    writer.abort([None, other])
    assert _open(mq) == 0 and values(asking, topic) == []
    with task():
        first = writer.write(iter([bodies("a", "b")]))
    with task(1):
        second = writer.write(iter([bodies("c")]))
    writer.commit([first, second])
    assert values(asking, topic) == ["a", "b", "c"]


def test_the_attempt_that_loses_is_rolled_back_when_the_broker_asks(mq: Embedded, asking: str, topic: str) -> None:
    query = stream(asking, topic)
    query.write(0, 0, "a")  # a speculative attempt, killed when the other was faster: nobody has its commit message
    query.run(0, ["a"])
    assert values(asking, topic) == ["a"]
    query.write(1, 0, "b")
    late = query.write(1, 0, "b")
    query.run(1, ["b"])
    query.writer().commit([late], 1)  # and a commit of what is decided already
    _wait(lambda: not _open(mq))
    assert values(asking, topic) == ["a", "b"]


def test_a_commit_whose_outcome_is_unknown_is_not_rolled_back(
    asking: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = stream(asking, topic)
    messages = [query.write(0, 0, "a"), query.write(0, 1, "b")]
    real = Ledger.decide

    async def lost(self: Ledger, *args: Any) -> Any:
        await real(self, *args)
        raise SendError("the answer was lost", may_be_stored=True)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "decide", lost)
        with pytest.raises(SendError):
            query.writer().commit(messages, 0)
        query.writer().abort(messages, 0)  # as Spark does
    query.run(0, ["a"], ["b"])  # the replay: it waits until the broker has asked
    assert values(asking, topic) == ["a", "b"]


def test_what_the_broker_gave_up_is_reported_and_not_passed_over(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    once = {"transaction_check_interval": 0.2, "transaction_check_max": 1}
    with broker_thread(broker=once) as server:
        address = server.nameserver_address
        query = stream(address, topic, checkRound="1s")
        messages = [query.write(0, 0, "a", "b")]

        async def dies(*args: Any) -> int:
            raise OpenBatchError("the driver died here")

        with monkeypatch.context() as patch:
            patch.setattr(HalfSink, "end", dies)
            with pytest.raises(OpenBatchError):
                query.writer().commit(messages, 0)
            bridge.close()  # nobody is there to be asked, and the broker gives up
        _wait(lambda: len(values(address, exactly_once.MAX_CHECKS_TOPIC)) == 2)
        with pytest.raises(OpenBatchError, match=r"given up on 2 of 2 rows.*failOnDataLoss=false"):
            query.run(0, ["a", "b"])
        query.options["failOnDataLoss"] = "false"
        query.run(0, ["a", "b"])
        query.run(1, ["c"])
        assert values(address, topic) == ["c"]
        bridge.close()


def test_a_batch_write_with_a_name_is_written_once(asking: str, topic: str) -> None:
    create_topic(asking, topic)
    options = {"topic": topic, "sinkMode": "exactlyOnce", "ledgerTopic": "ledger"}
    for name in ("monday", "monday", "tuesday"):
        write_batch(asking, bodies(name), BODY, queryId=name, **options)
    for _ in range(2):
        write_batch(asking, bodies("unnamed"), BODY, **options)
    assert values(asking, topic) == ["monday", "tuesday", "unnamed", "unnamed"]


def test_an_empty_batch_leaves_no_trace(asking: str, topic: str) -> None:
    query = stream(asking, topic)
    query.run(0, [], [])
    query.run(1, ["a"])
    query.run(2)
    assert values(asking, topic) == ["a"]


def test_a_half_message_cannot_be_delayed(mq: Embedded, asking: str, topic: str) -> None:
    create_topic(asking, topic)
    frame = pa.RecordBatch.from_pydict({"body": ["1", "2"], "delayLevel": pa.array([0, 3], pa.int32())})
    with pytest.raises(RowError, match=r"row 1, column delayLevel: 3: sinkMode exactlyOnce cannot delay"):
        write_batch(asking, frame, schema(body="string", delayLevel="int"), topic=topic, sinkMode="exactlyOnce")
    assert _open(mq) == 0


def test_a_batch_that_took_too_long_is_not_committed(asking: str, topic: str) -> None:
    query = stream(asking, topic)
    message = query.write(0, 0, "a")
    assert message.halves is not None
    message.halves.oldest -= 600_000
    with pytest.raises(OpenBatchError, match="checkImmunity"):
        query.writer().commit([message], 0)
    query.run(0, ["a"])
    assert values(asking, topic) == ["a"]


@pytest.mark.spark_long
def test_the_broker_is_killed_in_the_middle(
    tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with standalone(tmp_path) as server:
        try:
            create_topic(server.nameserver, topic)
            query = Stream(server.nameserver, topic, "q", sendTimeout="1s", checkImmunity="4s")
            # While tasks write: the batch fails, is aborted, and comes again.
            first = query.write(0, 0, "a", "b")
            server.end(signal.SIGKILL)
            with monkeypatch.context() as patch, pytest.raises(NotConnectedError):
                patch.setattr("aiorocket.spark.ledger._PATIENCE", 0.2)
                query.write(0, 1, "c")
            query.writer().abort([first, None], 0)
            server.start()
            query.run(0, ["a", "b"], ["c"])
            assert values(server.nameserver, topic) == ["a", "b", "c"]
            # Between the decision and the ends.
            real = HalfSink.end

            async def end(self: HalfSink, *args: Any) -> int:
                server.end(signal.SIGKILL)
                server.start()
                return await real(self, *args)

            with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
                patch.setattr(HalfSink, "end", end)
                query.run(1, ["d"], ["e"])
            query.run(1, ["d"], ["e"])
            assert values(server.nameserver, topic) == ["a", "b", "c", "d", "e"]
        finally:
            bridge.close()


def _wait(until: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until something has happened in the broker's thread that it tells nobody."""
    again = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if until():
            return
        again.wait(0.02)
    raise TimeoutError(f"not after {seconds:g} s")
