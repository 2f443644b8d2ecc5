"""The stream reader without Spark and without brokers: what it says to Spark when queues grow, vanish and lose rows."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from aiorocket.client.queue_scan import Bounds
from aiorocket.errors import NotConnectedError, TopicNotFoundError
from aiorocket.model import Queue
from aiorocket.spark import DataLossError, bridge, cluster
from aiorocket.spark.offsets import from_nested, to_nested
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.planner import QueueRange
from aiorocket.spark.stream import StreamReader
from tests.spark.producing import delete_topic, send

Q0, Q1, Q2 = (Queue("t", "a", number) for number in range(3))
OTHER = Queue("t", "b", 0)


class Cluster:
    """Stands for the functions of ``cluster``: queues with their bounds, some of them out of reach."""

    def __init__(self) -> None:
        self.bounds_of: dict[Queue, Bounds] = {}
        self.unlisted: set[Queue] = set()
        self.listed_only: set[Queue] = set()
        self.unreachable: set[Queue] = set()
        self.no_route = False
        self.deleted: set[str] = set()
        self.nameserver_away = False
        self.registered: set[str] = set()
        self.without_master: set[Queue] = set()
        self.arriving: dict[Queue, Bounds] = {}
        self.waits = 0
        self.waited_for: set[Queue] = set()
        self.asked = 0
        self.group: dict[Queue, int] = {}
        self.refuses_commits = False
        self.commits: list[dict[Queue, int]] = []

    async def queues(
        self, client: object, options: SourceOptions, *, missing: dict[str, TopicNotFoundError] | None = None
    ) -> list[Queue]:
        if self.nameserver_away:
            raise NotConnectedError("no name server answers")
        gone = {"t"} if self.no_route else self.deleted
        if missing is None and gone:
            raise TopicNotFoundError(f"no route to {min(gone)}")
        if missing is not None:
            missing.update((topic, TopicNotFoundError(f"no route to {topic}")) for topic in gone)
        return sorted((set(self.bounds_of) | self.listed_only) - self.unlisted)

    async def bounds(
        self, client: object, queues: Iterable[Queue], *, failures: dict[Queue, Exception] | None = None
    ) -> dict[Queue, Bounds]:
        self.asked += 1
        found = {}
        for queue in queues:
            no_route = self.no_route or queue.topic in self.deleted
            if queue in self.unreachable or no_route:
                error = TopicNotFoundError("no route") if no_route else NotConnectedError("no connection")
                if failures is None:
                    raise error
                failures[queue] = error
            elif queue in self.bounds_of:
                found[queue] = self.bounds_of[queue]
        return found

    async def brokers(self, client: object) -> set[str]:
        return self.registered

    def has_master(self, client: object, queue: Queue) -> bool:
        return queue not in self.without_master

    async def wait_for_more(self, client: object, offsets: Mapping[Queue, int], timeout: float) -> None:
        assert timeout <= 0.5
        self.waits += 1
        self.waited_for = set(offsets)
        self.bounds_of.update(self.arriving)

    async def committed(self, client: object, group: str, queues: Iterable[Queue]) -> dict[Queue, int | None]:
        return {queue: self.group.get(queue) for queue in queues}

    async def offsets_at(self, client: object, queues: Iterable[Queue], millis: int) -> dict[Queue, int]:
        return {queue: min(millis, self.bounds_of[queue].end) for queue in queues}

    async def commit(self, client: object, group: str, offsets: Mapping[Queue, int]) -> None:
        if self.refuses_commits:
            raise NotConnectedError("no connection to a")
        self.commits.append(dict(offsets))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster()
    for name in ("queues", "bounds", "wait_for_more", "committed", "offsets_at", "commit", "brokers", "has_master"):
        monkeypatch.setattr(cluster, name, getattr(made, name))

    async def no_client(connection: object) -> object:
        return None

    monkeypatch.setattr(bridge, "client", no_client)
    yield made
    bridge.close()


def reader(**options: str) -> StreamReader:
    given = {"nameServer": "a:1", "topic": "t", "startingOffsets": "earliest", **options}
    return StreamReader(SourceOptions.parse(given).for_stream(), ("body",))


def after_restart(**options: str) -> StreamReader:
    return pickle.loads(pickle.dumps(reader(**options)))  # type: ignore[no-any-return]


def ranges(made: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[QueueRange]:
    return sorted(each for part in made.partitions(start, end) for each in part.value)


def step(made: StreamReader, start: dict[str, Any], limit: Any = None) -> dict[str, Any]:
    return made.latestOffset(start, limit or made.getDefaultReadLimit())


def test_from_the_first_message_to_the_last(fake: Cluster) -> None:
    fake.bounds_of = {Q1: Bounds(5, 30), Q0: Bounds(0, 10)}
    made = reader()
    start = made.initialOffset()
    assert json.dumps(start) == '{"t": {"a": {"0": 0, "1": 5}}}'
    end = step(made, start)
    assert json.dumps(end) == '{"t": {"a": {"0": 10, "1": 30}}}'
    assert ranges(made, start, end) == [QueueRange(Q0, 0, 10), QueueRange(Q1, 5, 30)]
    assert made.partitions(end, end) == []
    assert made.reportLatestOffset() == end
    assert fake.waits == 0


def test_when_nothing_moves_the_start_comes_back_after_a_wait(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 10)}
    made = reader()
    start = {"t": {"a": {"0": 10}}}
    assert step(made, start) is start
    assert fake.waits == 1
    fake.arriving = {Q0: Bounds(0, 11)}
    assert step(made, start) == {"t": {"a": {"0": 11}}}
    assert fake.waits == 2


def test_a_new_queue_enters_empty_and_is_read_from_its_first_message(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 10)}
    made = reader()
    start = {"t": {"a": {"0": 10}}}
    fake.bounds_of[OTHER] = Bounds(3, 8)
    end = step(made, start)
    assert end == {"t": {"a": {"0": 10}, "b": {"0": 3}}}
    assert made.partitions(start, end) == []
    later = step(made, end)
    assert ranges(made, end, later) == [QueueRange(OTHER, 3, 8)]
    # Replayed by another process the batches are the same, whatever has arrived since.
    fake.bounds_of[OTHER] = Bounds(3, 100)
    again = after_restart()
    assert again.partitions(start, end) == []
    assert ranges(again, end, later) == [QueueRange(OTHER, 3, 8)]


def test_the_cap_is_shared_and_kept(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 90), Q1: Bounds(0, 10), Q2: Bounds(0, 0)}
    made = reader(maxOffsetsPerTrigger="20")
    assert made.getDefaultReadLimit() == ReadMaxRows(20)
    at = made.initialOffset()
    sizes = []
    while (end := step(made, at)) is not at:
        sizes.append(sum(each.end - each.begin for each in ranges(made, at, end)))
        assert all(each.end > each.begin for each in ranges(made, at, end))
        at = end
    assert sizes == [20] * 5
    assert step(made, made.initialOffset(), ReadAllAvailable()) == at


def test_too_few_messages_wait_for_more_of_them(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 3)}
    made = reader(minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    assert made.getDefaultReadLimit() == ReadMinRows(10)
    at = made.initialOffset()
    first = step(made, at)
    assert from_nested(first) == {Q0: 3}, "the first batch begins at once"
    fake.bounds_of[Q0] = Bounds(0, 12)
    assert step(made, first) is first
    assert made.reportLatestOffset() == {"t": {"a": {"0": 12}}}
    fake.arriving = {Q0: Bounds(0, 13)}
    assert from_nested(step(made, first)) == {Q0: 13}
    assert from_nested(step(made, first, ReadAllAvailable())) == {Q0: 13}


def test_too_few_messages_are_read_after_the_delay(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 3)}
    made = reader(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="20", maxTriggerDelay="1m")
    assert made.getDefaultReadLimit() == ReadMaxRows(20)
    first = step(made, made.initialOffset())
    fake.bounds_of[Q0] = Bounds(0, 4)
    assert step(made, first) is first
    assert made._triggered is not None
    made._triggered -= 60
    assert from_nested(step(made, first)) == {Q0: 4}


def test_available_now_ends_where_it_was_when_it_began(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 10), Q1: Bounds(2, 9)}
    made = reader(minOffsetsPerTrigger="1000")
    made.prepareForTriggerAvailableNow()
    fake.bounds_of = {Q0: Bounds(0, 50), Q1: Bounds(2, 50), OTHER: Bounds(0, 50)}
    # From a checkpoint in which Q1 is not known yet.
    at = {"t": {"a": {"0": 4}}}
    ends = []
    while (end := step(made, at)) is not at:
        ends.append(from_nested(end))
        at = end
    assert ends == [{Q0: 10, Q1: 2}, {Q0: 10, Q1: 9}]
    assert fake.waits == 0


def test_available_now_does_not_begin_while_a_broker_is_out_of_reach(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 10), OTHER: Bounds(0, 10)}
    fake.unreachable = {OTHER}
    with pytest.raises(NotConnectedError):
        reader().prepareForTriggerAvailableNow()
    with pytest.raises(NotConnectedError):
        reader().initialOffset()


def test_available_now_does_not_end_without_a_broker_that_has_left_the_routes(fake: Cluster) -> None:
    """As one that restarts has: what it holds would be left for another run, and this one called done."""
    fake.bounds_of, fake.unreachable, fake.unlisted = {Q0: Bounds(0, 10), OTHER: Bounds(0, 10)}, {OTHER}, {OTHER}
    at = to_nested({Q0: 4, OTHER: 5})
    made = reader()
    made.prepareForTriggerAvailableNow()
    with pytest.raises(
        NotConnectedError, match=r"t/b/0, which the query has read up to 5: .*failOnDataLoss=false ends"
    ):
        step(made, at)
    made = reader(failOnDataLoss="false")
    made.prepareForTriggerAvailableNow()
    assert from_nested(step(made, at)) == {Q0: 10, OTHER: 5}


@pytest.mark.parametrize("fails", [True, False])
def test_available_now_reads_of_a_broker_that_is_back_what_it_has_then(fake: Cluster, fails: bool) -> None:
    """A batch that a crash cut short is done again between the look for the end and the first batch that is planned."""
    fake.bounds_of, fake.unreachable, fake.unlisted = {Q0: Bounds(0, 10), OTHER: Bounds(0, 10)}, {OTHER}, {OTHER}
    at = to_nested({Q0: 4, OTHER: 5})
    made = reader(failOnDataLoss=str(fails).lower())
    made.prepareForTriggerAvailableNow()
    if not fails:  # it ends a batch without it
        at = step(made, at)
    fake.unreachable, fake.unlisted = set(), set()
    end = step(made, at)
    assert from_nested(end) == {Q0: 10, OTHER: 10}
    assert QueueRange(OTHER, 5, 10) in ranges(made, at, end)
    fake.bounds_of = {Q0: Bounds(0, 50), OTHER: Bounds(0, 50)}
    assert step(made, end) is end


def test_available_now_does_not_end_before_a_broker_that_goes_away(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 10), OTHER: Bounds(0, 10)}
    made = reader(maxOffsetsPerTrigger="10")
    start = made.initialOffset()
    made.prepareForTriggerAvailableNow()
    fake.unreachable = {OTHER}
    first = step(made, start)
    second = step(made, first)
    assert from_nested(second) == {Q0: 10, OTHER: 10}, "the task waits for the broker, and fails when it stays away"
    assert sum(each.end - each.begin for each in ranges(made, first, second)) == 10
    assert step(made, second) is second
    # Gone is something else.
    fake.unreachable = set()
    del fake.bounds_of[OTHER]
    with pytest.raises(DataLossError, match="t/b/0 is gone"):
        step(made, first)


@pytest.mark.parametrize("how", ["unreachable", "unlisted", "no route"])
def test_a_broker_that_is_gone_for_a_while_loses_no_queue(
    fake: Cluster, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake.bounds_of = {Q0: Bounds(0, 10), OTHER: Bounds(0, 10)}
    made = reader()
    at = step(made, made.initialOffset())
    fake.unreachable = {OTHER} if how != "no route" else set()
    fake.unlisted = {OTHER} if how == "unlisted" else set()
    fake.no_route = how == "no route"
    fake.bounds_of[Q0] = Bounds(0, 20)
    for _ in range(5):
        at = step(made, at)
    assert from_nested(at) == {Q0: 10 if how == "no route" else 20, OTHER: 10}
    assert "t/b/0 stays at 10 for now" in caplog.text
    assert len(caplog.records) <= 3, "once while it lasts"
    fake.unreachable, fake.unlisted, fake.no_route = set(), set(), False
    fake.bounds_of[OTHER] = Bounds(0, 12)
    assert from_nested(step(made, at)) == {Q0: 20, OTHER: 12}


def test_retention_that_passes_the_start_is_data_loss(fake: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    fake.bounds_of = {Q0: Bounds(15, 30), Q1: Bounds(0, 10)}
    start = {"t": {"a": {"0": 5, "1": 10}}}
    with pytest.raises(DataLossError) as caught:
        step(reader(), start)
    for said in ("t/a/0", "5 to 14", "failOnDataLoss=false", "begins at 15"):
        assert said in str(caught.value)
    with pytest.raises(DataLossError):
        after_restart().partitions(start, {"t": {"a": {"0": 20, "1": 10}}})
    made = reader(failOnDataLoss="false", maxOffsetsPerTrigger="10")
    end = step(made, start)
    assert from_nested(end) == {Q0: 25, Q1: 10}
    assert ranges(made, start, end) == [QueueRange(Q0, 15, 25)]
    assert ranges(after_restart(failOnDataLoss="false"), start, end) == [QueueRange(Q0, 15, 25)]
    assert "data loss: queue t/a/0" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING
    # Everything of the batch, and the batch's end too.
    assert ranges(after_restart(failOnDataLoss="false"), start, {"t": {"a": {"0": 12}}}) == []


def test_a_queue_that_went_back_is_data_loss(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 7)}
    start = {"t": {"a": {"0": 50}}}
    with pytest.raises(DataLossError, match="ends at 7, and the query has read up to 50"):
        step(reader(), start)
    made = reader(failOnDataLoss="false", maxOffsetsPerTrigger="4")
    end = step(made, start)
    assert from_nested(end) == {Q0: 4}
    for each in (made, after_restart(failOnDataLoss="false")):
        assert ranges(each, start, end) == [QueueRange(Q0, 0, 4)]
    with pytest.raises(DataLossError, match="begins this batch at 50 and ends it at 4"):
        after_restart().partitions(start, end)
    assert ranges(made, end, step(made, end)) == [QueueRange(Q0, 4, 7)]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_replica_that_is_behind_its_master_has_lost_nothing(
    fake: Cluster, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake.bounds_of, fake.without_master = {Q0: Bounds(0, 47)}, {Q0}
    start, end = {"t": {"a": {"0": 50}}}, {"t": {"a": {"0": 60}}}
    made = reader(failOnDataLoss=fail)
    assert step(made, start) is start
    assert "t/a/0 stays at 50 for now: only a replica can be asked, which ends at 47" in caplog.text
    assert ranges(after_restart(failOnDataLoss=fail), start, end) == [QueueRange(Q0, 50, 60)]
    fake.bounds_of, fake.without_master = {Q0: Bounds(0, 60)}, set()
    assert step(made, start) == end


def test_a_batch_whose_end_the_broker_lost_is_data_loss(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 7)}
    start, end = {"t": {"a": {"0": 5}}}, {"t": {"a": {"0": 9}}}
    with pytest.raises(DataLossError, match="ends at 7, and this batch at 9"):
        after_restart().partitions(start, end)
    assert ranges(after_restart(failOnDataLoss="false"), start, end) == [QueueRange(Q0, 5, 7)]


def test_a_queue_that_its_broker_does_not_have_any_more_is_data_loss(
    fake: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.bounds_of = {Q0: Bounds(0, 7)}
    start = {"t": {"a": {"0": 5, "1": 3}}}
    with pytest.raises(DataLossError, match="t/a/1 is gone from its broker, the query stands at 3"):
        step(reader(), start)
    made = reader(failOnDataLoss="false")
    end = step(made, start)
    assert from_nested(end) == {Q0: 7, Q1: 3}
    assert step(made, end) is end
    assert len(caplog.records) == 1, "once, not with every look"
    with pytest.raises(DataLossError, match="t/a/1 is gone, with the messages 3 to 8"):
        after_restart().partitions(start, {"t": {"a": {"0": 5, "1": 9}}})
    again = after_restart(failOnDataLoss="false")
    assert ranges(again, start, {"t": {"a": {"0": 6, "1": 9}}}) == [QueueRange(Q0, 5, 6)]


def test_a_topic_that_was_deleted_is_data_loss(fake: Cluster) -> None:
    start = {"t": {"a": {"0": 5}}}
    fake.no_route = True
    for each in (reader(), reader(topic="", topicPattern="t")):
        fake.registered = {"b"}
        assert step(each, start) is start, "its broker may come back"
        fake.registered = {"a", "b"}
        with pytest.raises(DataLossError, match="t/a/0 is gone from its broker, the query stands at 5"):
            step(each, start)
        with pytest.raises(DataLossError, match="t/a/0 is gone, with the messages 5 to 6"):
            after_restart().partitions(start, {"t": {"a": {"0": 7}}})


def test_of_topics_without_the_deleted_ones_the_others_grow_all_the_same(
    fake: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    gone = Queue("u", "a", 0)
    fake.bounds_of, fake.registered = {Q0: Bounds(0, 5), gone: Bounds(0, 3)}, {"a"}
    made = reader(topic="t,u,v", failOnDataLoss="false")
    start = to_nested({Q0: 5, gone: 3})
    fake.bounds_of, fake.deleted = {Q0: Bounds(0, 5), Q1: Bounds(0, 7)}, {"u", "v"}
    end = step(made, start)
    assert from_nested(end) == {Q0: 5, Q1: 0, gone: 3}
    last = step(made, end)
    assert from_nested(last) == {Q0: 5, Q1: 7, gone: 3}
    assert step(made, last) is last
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "looking for queues: no route to v; going on with the other topics" in said, said


def test_a_name_server_that_is_away_is_said_once(fake: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    fake.bounds_of, fake.nameserver_away = {Q0: Bounds(0, 5)}, True
    made, start = reader(), to_nested({Q0: 5})
    for _ in range(2):
        assert step(made, start) is start
    assert [record.getMessage() for record in caplog.records] == [
        "looking for queues: no name server answers; going on with the 1 known ones"
    ]


def test_a_queue_that_is_not_asked_for_any_more_rests(fake: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    rests = Queue("u", "a", 0)
    fake.bounds_of = {Q0: Bounds(0, 7), rests: Bounds(0, 9)}
    start = to_nested({Q0: 5, rests: 3})
    for options in ({}, {"topic": "", "topicPattern": "t"}, {"topic": "", "assign": '{"t":{"a":[0]}}'}):
        made = reader(**options)
        fake.unlisted = {rests}
        end = step(made, start)
        assert from_nested(end) == {Q0: 7, rests: 3}
        waits = fake.waits
        assert step(made, end) is end
        assert fake.waits == waits + 1
        assert fake.waited_for == {Q0}
        assert "u/a/0 stays at 3: the options do not ask for it" in caplog.text
        caplog.clear()
        # What a batch before the change of options has recorded is read.
        assert ranges(made, start, to_nested({Q0: 5, rests: 9})) == [QueueRange(rests, 3, 9)]


def test_a_queue_that_is_asked_for_and_does_not_exist_is_said_at_the_start(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 7)}
    fake.listed_only = {Q2}
    with pytest.raises(DataLossError, match="1 of 2 queues are not at their brokers, the first is t/a/2"):
        reader().initialOffset()
    assert from_nested(reader(failOnDataLoss="false").initialOffset()) == {Q0: 0}


def test_a_broker_out_of_reach_is_for_the_task_to_report(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 7), OTHER: Bounds(0, 7)}
    fake.unreachable = {OTHER}
    start, end = to_nested({Q0: 0, OTHER: 2}), to_nested({Q0: 7, OTHER: 5})
    assert ranges(after_restart(), start, end) == [QueueRange(Q0, 0, 7), QueueRange(OTHER, 2, 5)]


def test_a_query_that_begins_at_the_end_records_that_before_it_reads(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 10)}
    made = reader(startingOffsets="latest")
    start = made.initialOffset()
    fake.bounds_of = {Q0: Bounds(0, 15)}
    assert made.initialOffset() == start, "Spark asks once more when it plans the first batch"
    assert step(made, start) is start
    assert fake.waits == 0
    # It crashed, and its first batch is planned again by a process for which the latest offset is another one.
    again = after_restart(startingOffsets="latest")
    assert from_nested(again.initialOffset()) == {Q0: 15}
    assert again.partitions(again.initialOffset(), start) == []
    later = step(made, start)
    assert ranges(made, start, later) == [QueueRange(Q0, 10, 15)]


def test_a_topic_made_anew_before_anything_was_read_is_read(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 100)}
    made = reader(startingOffsets="latest", failOnDataLoss="false")
    start = made.initialOffset()
    assert step(made, start) is start
    assert made.partitions(start, start) == []
    fake.bounds_of = {Q0: Bounds(0, 50)}
    end = step(made, start)
    assert from_nested(end) == {Q0: 50}
    assert ranges(made, start, end) == [QueueRange(Q0, 0, 50)]


def test_only_the_queues_that_begin_at_their_end_wait_for_the_second_batch(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 10), Q1: Bounds(0, 10)}
    made = reader(startingOffsets='{"t":{"a":{"0":4,"1":-1}}}', maxOffsetsPerTrigger="100")
    start = made.initialOffset()
    fake.bounds_of = {Q0: Bounds(0, 20), Q1: Bounds(0, 20)}
    first = step(made, start)
    assert from_nested(first) == {Q0: 20, Q1: 10}
    assert from_nested(step(made, first)) == {Q0: 20, Q1: 20}


def test_starting_from_a_group_or_a_time(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(2, 10), Q1: Bounds(3, 10)}
    fake.group = {Q0: 7}
    assert from_nested(reader(startingOffsets="group", groupId="g").initialOffset()) == {Q0: 7, Q1: 3}
    timed = reader(startingOffsets="", startingTimestamp="5")
    assert from_nested(timed.initialOffset()) == {Q0: 5, Q1: 5}


def test_the_group_is_told_the_next_offsets(fake: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    made = reader(groupId="g", commitOffsets="true")
    fake.refuses_commits = True
    made.commit(to_nested({Q0: 5, Q1: 6}))
    assert "no connection to a" in caplog.text
    fake.refuses_commits = False
    made.commit(to_nested({Q0: 5, Q1: 6}))
    made.commit(to_nested({Q0: 8, Q1: 6}))
    made.commit(to_nested({Q0: 8, Q1: 6}))
    assert fake.commits == [{Q0: 5, Q1: 6}, {Q0: 8}]
    reader(groupId="g").commit(to_nested({Q0: 5}))
    assert len(fake.commits) == 2


def test_the_group_is_told_of_the_last_batch_when_there_is_no_next_one(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 10)}
    made = reader(groupId="g", commitOffsets="true")
    start = made.initialOffset()
    end = step(made, start)
    assert fake.commits == []
    assert step(made, end) is end
    assert fake.commits == [{Q0: 10}]


def test_a_batch_just_planned_asks_no_broker_again(fake: Cluster) -> None:
    fake.bounds_of = {Q0: Bounds(0, 10)}
    made = reader()
    start = made.initialOffset()
    end = step(made, start)
    asked = fake.asked
    assert ranges(made, start, end) == [QueueRange(Q0, 0, 10)]
    assert fake.asked == asked


def test_a_topic_that_does_not_exist_is_said_at_the_start(fake: Cluster) -> None:
    fake.no_route = True
    made = reader()
    for call in (made.initialOffset, made.prepareForTriggerAvailableNow):
        with pytest.raises(TopicNotFoundError) as caught:
            call()
        assert len(caught.traceback) == 2  # Spark shows all of it
    pattern = reader(topic="", topicPattern="t.*")
    fake.no_route = False
    start = pattern.initialOffset()
    assert start == {}
    assert step(pattern, start) is start
    fake.bounds_of = {Q0: Bounds(0, 3)}
    assert from_nested(step(pattern, start)) == {Q0: 0}


def real(nameserver: str, topic: str, **options: str) -> StreamReader:
    return reader(nameServer=nameserver, topic=topic, **options)


def test_a_message_ends_the_wait(nameserver: str, topic: str) -> None:
    send(nameserver, topic, ["a", "b"], queues=2)
    made = real(nameserver, topic)
    at = step(made, made.initialOffset())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(step, made, at)
        send(nameserver, topic, ["c"], queue_id=1)
        end = waiting.result(10)
    if end is at:  # the message was slower than half a second
        end = step(made, at)
    assert sum(from_nested(end).values()) - sum(from_nested(at).values()) == 1
    (part,) = made.partitions(at, end)
    assert [body for batch in made.read(part) for body in batch["body"].to_pylist()] == [b"c"]
    assert step(made, end) is end


def test_a_deleted_topic_at_a_real_broker(nameserver: str, topic: str) -> None:
    send(nameserver, topic, ["a", "b"], queues=1)
    running = real(nameserver, topic)
    at = step(running, running.initialOffset())
    delete_topic(nameserver, topic)
    for each in (running, real(nameserver, topic)):
        with pytest.raises(DataLossError, match=f"{topic}/.*/0 is gone from its broker, the query stands at 2"):
            step(each, at)
    tolerant = real(nameserver, topic, failOnDataLoss="false")
    assert step(tolerant, at) is at
    send(nameserver, topic, ["new"], queues=1)
    end = step(tolerant, at)
    assert [each[1:] for each in ranges(tolerant, at, end)] == [(0, 1)]
