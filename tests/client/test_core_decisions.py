"""Routes, balance, offsets, retry verdicts, queue choice, subscriptions, start offsets, lifecycles."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.client.core.assignment import TopicView, diff, wanted_queues
from aiorocket.client.core.balance import average, average_by_circle
from aiorocket.client.core.delays import level_for
from aiorocket.client.core.lifecycle import Lifecycle, State
from aiorocket.client.core.offsets import OffsetTable
from aiorocket.client.core.queue_choice import QueueChoice
from aiorocket.client.core.retry import judge, remote_error
from aiorocket.client.core.routes import TopicRoute, check_route, parse_nameservers
from aiorocket.client.core.start_from import Ask, StartFrom, parse_start, question
from aiorocket.client.core.subscriptions import Subscriptions, check_tags
from aiorocket.errors import (
    BackPressureError,
    BrokerBusyError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    UsageError,
)
from aiorocket.model import Queue
from aiorocket_protocol import BrokerData, ProtocolError, QueueData, TopicRouteData


def queues(count: int, broker: str = "a", topic: str = "t") -> list[Queue]:
    return [Queue(topic, broker, number) for number in range(count)]


# -- balance


@pytest.mark.parametrize(
    ("count", "members", "shares"),
    [(8, 3, [3, 3, 2]), (4, 4, [1, 1, 1, 1]), (2, 3, [1, 1, 0]), (0, 2, [0, 0]), (7, 1, [7])],
)
def test_average_gives_contiguous_blocks(count: int, members: int, shares: list[int]) -> None:
    ids = [f"c{number}" for number in range(members)]
    given_out = [average(queues(count), ids, me) for me in ids]
    assert [len(part) for part in given_out] == shares
    assert [queue for part in given_out for queue in part] == queues(count)


@given(st.integers(0, 40), st.sets(st.text(min_size=1, max_size=3), min_size=1, max_size=9), st.randoms())
def test_every_strategy_gives_each_queue_to_one_member(count: int, ids: set[str], random: object) -> None:
    members, shuffled = sorted(ids), queues(count)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for strategy in (average, average_by_circle):
        parts = [strategy(shuffled, members, me) for me in members]
        assert sorted(queue for part in parts for queue in part) == queues(count)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_who_is_no_member_gets_nothing() -> None:
    assert average(queues(4), ["x"], "me") == []
    assert average_by_circle(queues(4), ["x"], "me") == []


# -- assignment


def test_a_topic_of_which_nothing_is_known_keeps_its_queues() -> None:
    held = queues(2) + queues(2, topic="gone")
    views = {"t": None, "u": TopicView(queues(2, topic="u"), ["me"])}
    wanted = wanted_queues(views, "me", held)
    assert wanted == {*queues(2), *queues(2, topic="u")}
    change = diff(held, wanted)
    assert change.added == queues(2, topic="u")
    assert change.removed == queues(2, topic="gone")


def test_members_unknown_keeps_too() -> None:
    assert wanted_queues({"t": TopicView(queues(4), None)}, "me", queues(1)) == set(queues(1))


# -- routes


def route_data(perm: int = 6, order: str | None = None, brokers: Sequence[str] = ("a",)) -> TopicRouteData:
    return TopicRouteData(
        [QueueData(name, 3, 2, perm) for name in brokers],
        [BrokerData("c", name, {0: f"{name}:1", 1: f"{name}:2"}) for name in brokers],
        order,
    )


def test_route_gives_queues_by_permission() -> None:
    route = TopicRoute.from_data("t", route_data())
    assert (len(route.publish), len(route.subscribe)) == (2, 3)
    assert TopicRoute.from_data("t", route_data(perm=4)).publish == ()
    assert TopicRoute.from_data("t", route_data(perm=2)).subscribe == ()
    assert len(TopicRoute.from_data("t", route_data(), at_most=1).publish) == 1


@pytest.mark.parametrize(("read", "write"), [(101, 4), (4, 101)])
def test_a_number_of_queues_below_0_makes_no_room_for_others(read: int, write: int) -> None:
    """Two thousand million of them were made of such a route."""
    data = TopicRouteData([QueueData("a", read, write, 6), QueueData("b", -read, -write, 6)], [], None)
    with pytest.raises(ProtocolError, match="101 queues"):
        check_route("t", data, 100)


def test_a_broker_without_master_is_read_but_not_written() -> None:
    data = TopicRouteData([QueueData("a", 1, 1, 6)], [BrokerData("c", "a", {1: "a:2"})])
    route = TopicRoute.from_data("t", data)
    assert route.publish == ()
    assert route.reader("a") == "a:2"
    assert route.master("a") is None
    assert route.reader("b") is None


def test_reader_prefers_the_suggested_broker() -> None:
    route = TopicRoute.from_data("t", route_data())
    assert route.reader("a", 1) == "a:2"
    assert route.reader("a", 7) == "a:1"
    assert route.all_addresses() == {"a:1", "a:2"}
    assert route.masters() == {"a:1"}


def test_order_configuration_names_exactly_the_queues() -> None:
    route = TopicRoute.from_data("t", route_data(order="b:1;a:2;nonsense"))
    assert route.publish == (Queue("t", "b", 0), Queue("t", "a", 0), Queue("t", "a", 1))


def test_equal_routes_are_equal() -> None:
    assert TopicRoute.from_data("t", route_data()) == TopicRoute.from_data("t", route_data())
    assert TopicRoute.from_data("t", route_data()) != TopicRoute.from_data("t", route_data(brokers=("a", "b")))


def test_nameservers_in_every_notation() -> None:
    assert parse_nameservers("a:1;b:2, c:3;;a:1") == ("a:1", "b:2", "c:3")
    assert parse_nameservers(["a:1", "b:2;c:3"]) == ("a:1", "b:2", "c:3")


# -- offsets


def test_offsets_only_grow_unless_repaired() -> None:
    table, queue = OffsetTable(), Queue("t", "a", 0)
    assert not table.advance(queue, 5)
    table.begin(queue, 10, committed=True)
    assert table.dirty() == []
    assert table.advance(queue, 12)
    assert not table.advance(queue, 11)
    assert table.dirty() == [(queue, 12)]
    table.note_committed(queue, 12)
    assert table.dirty() == []
    table.repair(queue, 3)
    assert table.dirty() == [(queue, 3)]
    table.forget(queue)
    table.note_committed(queue, 3)
    assert (table.position(queue), table.committed(queue), table.dirty()) == (-1, -1, [])


def test_a_start_the_broker_does_not_store_is_due_at_once() -> None:
    table, queue = OffsetTable(), Queue("t", "a", 0)
    table.begin(queue, 0, committed=False)
    assert table.dirty() == [(queue, 0)]


def test_one_goes_ahead_where_nothing_of_a_topic_is_known_to_be_stored() -> None:
    table = OffsetTable()
    queues = [Queue(topic, broker, number) for topic in "tu" for broker in "ab" for number in range(3)]
    for queue in queues:
        table.begin(queue, 0, committed=True)
        table.repair(queue, 7)
    table.note_committed(Queue("t", "b", 2), 7)
    table.begin(Queue("u", "a", 2), 0, committed=True)
    ahead = table.ahead(table.dirty())
    assert ahead == [(Queue("t", "a", 0), 7), (Queue("u", "a", 0), 7), (Queue("u", "b", 0), 7)]
    assert table.ahead(ahead) == [], "alone as it is"
    for queue, offset in ahead:
        table.note_committed(queue, offset)
    assert table.ahead(table.dirty()) == []


# -- retry


def answer(code: int) -> Exception:
    return remote_error(code, "why", request="SEND_MESSAGE", address="b:1")


@pytest.mark.parametrize("code", [2, 14, 215])
def test_busy_brokers_stored_nothing_and_are_tried_later(code: int) -> None:
    error = answer(code)
    assert isinstance(error, BrokerBusyError)
    verdict = judge(error)
    assert (verdict.retry, verdict.wait, verdict.may_be_stored) == (True, True, False)


@pytest.mark.parametrize(
    ("code", "retry", "stored"),
    [(1, True, True), (13, False, False), (17, True, False), (29, True, False), (4711, False, True)],
)
def test_verdict_by_code(code: int, retry: bool, stored: bool) -> None:
    verdict = judge(answer(code))
    assert (verdict.retry, verdict.may_be_stored) == (retry, stored)


def test_what_the_access_control_of_4_9_refuses_is_not_stored_and_not_tried_again() -> None:
    remark = "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=x, ..."
    verdict = judge(remote_error(1, remark, request="SEND_MESSAGE_V2", address="127.0.0.1:10911"))
    assert (verdict.retry, verdict.may_be_stored) == (False, False)


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        (NotConnectedError("x"), False),
        (BackPressureError("x"), False),
        (ConnectionLostError("x"), True),
        (RequestTimeoutError("x"), True),
        (ValueError("x"), True),
    ],
)
def test_only_what_was_never_written_is_surely_not_stored(error: Exception, stored: bool) -> None:
    assert judge(error).may_be_stored is stored


def test_not_connected_does_not_use_up_retries() -> None:
    assert not judge(NotConnectedError("x")).counts
    assert judge(ConnectionLostError("x")).counts


# -- queue choice


def test_round_robin_from_any_start() -> None:
    choice = QueueChoice(queues(3), start=5)
    assert [choice.next().queue_id for _ in range(5)] == [2, 0, 1, 2, 0]


def test_a_failed_broker_is_avoided_when_there_is_another() -> None:
    choice = QueueChoice([*queues(3, "a"), *queues(1, "b")])
    assert all(choice.next_avoiding("a").broker_name == "b" for _ in range(5))
    only = QueueChoice(queues(2, "a"))
    assert {only.next_avoiding("a").queue_id for _ in range(4)} <= {0, 1}
    with pytest.raises(UsageError):
        QueueChoice([])


def test_a_key_has_one_queue_and_it_is_javas() -> None:
    choice = QueueChoice(queues(8))
    # "TagA".hashCode() is 2598919 and "polygenelubricants".hashCode() is Integer.MIN_VALUE.
    assert choice.by_key("TagA").queue_id == 2598919 % 8
    assert choice.by_key("polygenelubricants").queue_id == (1 << 31) % 8


# -- subscriptions


def test_the_subscription_of_a_topic_is_the_union() -> None:
    subscriptions = Subscriptions[str]()
    subscriptions.add("t", check_tags("a || b"), "one")
    subscriptions.add("t", check_tags("c"), "two")
    assert subscriptions.data("t", 7).tags_set == {"a", "b", "c"}
    assert subscriptions.data("t", 7).sub_version == 7
    assert subscriptions.only("t") is None
    assert (subscriptions.find("t", "c"), subscriptions.find("t", "a")) == ("two", "one")
    assert subscriptions.find("t", "gone") == "one"
    assert subscriptions.find("other", "a") is None
    subscriptions.add("u", check_tags("*"), "one")
    assert subscriptions.only("u") == "one"
    assert subscriptions.data("u", 0).sub_string == "*"
    assert subscriptions.sinks() == ["one", "two"]
    assert "t" in subscriptions
    assert "x" not in subscriptions


@pytest.mark.parametrize("second", ["*", "b || c"])
def test_two_listeners_for_one_message_are_refused(second: str) -> None:
    subscriptions = Subscriptions[str]()
    subscriptions.add("t", check_tags("a || b"), "one")
    with pytest.raises(UsageError, match="listener for these messages already"):
        subscriptions.add("t", check_tags(second), "two")


def test_tags_that_name_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="names no tag"):
        check_tags("||")


# -- start offset, delay levels, lifecycle


def test_start_from() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert parse_start("first") == StartFrom("first")
    assert parse_start(moment) == StartFrom("time", 1893456000000)
    assert parse_start(5).millis == 5
    for wrong in ("begin", -1, datetime(2030, 1, 1), True):
        with pytest.raises(UsageError):
            parse_start(wrong)
    assert question(StartFrom("last"), retry_topic=False) is Ask.MAX
    assert question(StartFrom("first"), retry_topic=False) is Ask.MIN
    assert question(StartFrom("time", 1), retry_topic=False) is Ask.TIME
    assert question(StartFrom("last"), retry_topic=True) is Ask.MIN
    assert StartFrom("time").wire == "CONSUME_FROM_TIMESTAMP"


@pytest.mark.parametrize(("seconds", "level"), [(0, 1), (1, 1), (1.5, 2), (10, 3), (11, 4), (7200, 18), (1e9, 18)])
def test_delays_are_rounded_up(seconds: float, level: int) -> None:
    assert level_for(seconds) == level


def test_lifecycle_is_one_shot() -> None:
    life = Lifecycle("producer 'p'")
    with pytest.raises(UsageError, match="is not started"):
        life.need_running()
    life.move("start")
    assert life.move("started") is State.RUNNING
    with pytest.raises(UsageError, match="already running"):
        life.move("start")
    life.move("stop")
    life.move("stopped")
    assert life.move("stop") is State.STOPPED
    with pytest.raises(UsageError, match="make a new one"):
        life.move("start")
