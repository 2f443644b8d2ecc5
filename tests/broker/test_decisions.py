"""Send checks, pull checks, retry policy, delay schedule, long polls: values in, values out."""

from __future__ import annotations

import sys
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.broker.core.delay import DelaySchedule
from aiorocket.broker.core.group_configs import GroupConfig, GroupConfigs
from aiorocket.broker.core.groups import ConsumerGroup, Subscription
from aiorocket.broker.core.long_poll import A_TURN, LongPolls, ParkedPull
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.pull_checks import check_access, parse_subscription, registered_subscription
from aiorocket.broker.core.queue_codes import queue_codes
from aiorocket.broker.core.retry_policy import after_failure, for_retry_send
from aiorocket.broker.core.send_checks import Admitted, SendFacts, admit, check_sizes, property_value
from aiorocket.broker.core.topics import Topic, TopicTable
from aiorocket.config import Limits
from aiorocket_protocol import SCHEDULE_TOPIC, RecordView, SubscriptionData, encode_properties, encode_record


def topics(auto_create: bool = True) -> TopicTable:
    return TopicTable(broker="b", cluster="C", auto_create=auto_create, default_queues=8)


# ---- send checks


FACTS = SendFacts("T", "TBW102", 4, 0, 0, None, 479, 6)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16),
        ({"topic": "SELF_TEST_TOPIC"}, 16),
        ({"topic": "bad name"}, 29),
        ({"topic": "T", "default_topic": "nothing"}, 17),
        ({"topic": "Closed"}, 16),
        ({"topic": "Open", "queue_id": 8}, 29),
    ],
)
def test_send_checks(change: dict[str, Any], code: int) -> None:
    table = topics()
    table.put(Topic("Closed", 1, 1, 4))
    table.put(Topic("Open", 4, 8))
    refused = admit(table, GroupConfigs(16), FACTS._replace(**change))
    assert isinstance(refused, Refusal) and refused.code == code


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_topics_of_groups_that_nobody_has_count_for_their_limit(prefix: str) -> None:
    table = TopicTable(broker="b", cluster="C", auto_create=False, default_queues=8, most=30)
    configs = GroupConfigs(16, most=2)
    configs.ensure("g")
    codes = [
        answer.code if isinstance(answer := admit(table, configs, FACTS._replace(topic=f"{prefix}{n}")), Refusal) else 0
        for n in range(50)
    ]
    assert set(codes) == {0, 2} and len(table) <= 30
    for n in range(30):
        table.put(Topic(f"more-{n}", 1, 1))
    assert isinstance(admit(table, configs, FACTS._replace(topic=f"{prefix}g")), Admitted)  # two for each group


def test_an_open_queue_is_drawn_from_the_write_queues() -> None:
    table = topics()
    table.put(Topic("T", 8, 4))
    admitted = admit(table, GroupConfigs(16), FACTS._replace(queue_id=-1))
    assert isinstance(admitted, Admitted) and admitted.queue_id == 2
    # Reading needs more queues than writing while a topic shrinks, so the larger count is the range.
    assert isinstance(admit(table, GroupConfigs(16), FACTS._replace(queue_id=7)), Admitted)


@pytest.mark.parametrize(("times", "limit", "version", "dead"), [(16, None, 479, False), (17, None, 479, True),
                                                                 (4, 3, 479, True), (4, 3, 100, False)])  # fmt: skip
def test_a_send_to_a_retry_topic_over_its_limit_goes_to_the_dead_letters(
    times: int, limit: int | None, version: int, dead: bool
) -> None:
    table = topics()
    facts = FACTS._replace(
        topic="%RETRY%g", reconsume_times=times, max_reconsume_times=limit, client_version=version, queue_id=0
    )
    admitted = admit(table, GroupConfigs(16), facts)
    assert isinstance(admitted, Admitted) and admitted.dead is dead
    assert admitted.topic.name == ("%DLQ%g" if dead else "%RETRY%g")


def test_a_group_with_live_queue_locks_has_used_up_its_attempts() -> None:
    config = GroupConfig("g")
    where = for_retry_send(config, reconsume_times=1, limit=None, client_version=479, locked=True)
    assert where is not None and where.topic == "%DLQ%g"  # at once, while the group holds queue locks


def test_sizes() -> None:
    assert check_sizes(10, 32767, 10) is None
    too_large = check_sizes(11, 0, 10)
    assert too_large is not None and too_large.code == 13 and "11" in too_large.remark
    too_long = check_sizes(0, 32768, 10)
    assert too_long is not None and too_long.code == 13


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TAGS\x01A\x02", "A"),
        ("TAGS\x01A", "A"),  # 4.9 leaves the last separator out
        ("X\x011\x02TAGS\x01A\x02", "A"),
        ("MYTAGS\x01B\x02", None),
        ("MYTAGS\x01B\x02TAGS\x01A", "A"),
        ("TAGS\x01A\x02TAGS\x01B\x02", "B"),  # the last one wins
        ("TAGS\x01\x02", None),
        ("TAGS\x01A\x02TAGS\x01\x02", "A"),
        ("TAGS\x01A\x02TAGS\x01", "A"),
        ("TAGS\x01A\x02MYTAGS\x01B\x02", "A"),
    ],
)
def test_a_property_is_found_without_reading_the_others(text: str, value: str | None) -> None:
    assert property_value(text, "TAGS") == value


_CHARACTER = st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_categories=["Cs"])
_WORD = st.text(_CHARACTER, min_size=1, max_size=6)


@given(st.dictionaries(_WORD, _WORD, max_size=8), st.booleans())
def test_property_value_agrees_with_the_parser(properties: dict[str, str], cut: bool) -> None:
    text = encode_properties(properties).decode()
    if cut:
        text = text.removesuffix("\x02")
    for name, value in properties.items():
        assert property_value(text, name) == value


# ---- pull checks


def test_pull_access_checks_in_order() -> None:
    config, topic = GroupConfig("g"), Topic("T", 4, 8)
    none, this = frozenset[tuple[str, str]](), {("g", "T")}
    assert check_access(config, topic, "T", 3, none) is None
    codes = [
        check_access(config._replace(consume_enable=False), None, "T", 9, this),
        check_access(config, None, "T", 9, this),
        check_access(config, Topic("T", 4, 4, 2), "T", 9, this),
        check_access(config, topic, "T", 4, this),
        check_access(config, topic, "T", -1, this),
        check_access(config, topic, "T", 3, this),
    ]
    assert [refusal.code for refusal in codes if refusal is not None] == [16, 17, 16, 29, 29, 16]


def live(**changes: Any) -> ConsumerGroup:
    group = ConsumerGroup("g")
    data = SubscriptionData.parse("T", "A || B", 5)._replace(**changes)
    group.subscriptions["T"] = Subscription(data)
    return group


def test_a_registered_subscription_is_used_and_its_absence_named() -> None:
    config = GroupConfig("g")
    known = registered_subscription("g", config, live(), "T", 5)
    assert isinstance(known, Subscription) and known.accept is not None
    assert known.accept(65) and not known.accept(67)  # "A" and "C" hash to their character
    refusals = [
        registered_subscription("g", config, None, "T", 5),  # a pull before its heartbeat
        registered_subscription("g", config, live(), "U", 5),
        registered_subscription("g", config, live(), "T", 6),  # newer than the heartbeat said
        registered_subscription("g", config, live(expression_type="SQL92"), "T", 6, False),
        registered_subscription("g", config, live(expression_type="SQL92"), "T", 5, False),  # "A || B" is no SQL
        registered_subscription("g", config, live(expression_type="SQL92", sub_string="a > 1"), "T", 5, False),
        registered_subscription("g", config, live(expression_type="GROOVY", sub_string="a > 1"), "T", 5),
    ]
    assert [refusal.code for refusal in refusals if isinstance(refusal, Refusal)] == [24, 24, 25, 25, 27, 1, 1]
    group = live()
    group.message_model = "BROADCASTING"
    refused = registered_subscription("g", config._replace(consume_broadcast_enable=False), group, "T", 5)
    assert isinstance(refused, Refusal) and refused.code == 16


def test_an_expression_that_comes_with_the_pull() -> None:
    everything = parse_subscription("T", "*", None, 0)
    assert isinstance(everything, Subscription) and everything.accept is None
    refused = parse_subscription("T", "a > 1", "SQL92", 0, False)
    assert isinstance(refused, Refusal) and refused.code == 1
    refused = parse_subscription("T", "||", "TAG", 0)
    assert isinstance(refused, Refusal) and refused.code == 23
    refused = parse_subscription("T", "a >", "SQL92", 0, False)  # what it means is looked at first
    assert isinstance(refused, Refusal) and refused.code == 23
    refused = parse_subscription("T", "a > 1", "GROOVY", 0)
    assert isinstance(refused, Refusal) and refused.code == 1


# ---- retry policy


@pytest.mark.parametrize(
    ("times", "wish", "limit", "version", "topic", "level"),
    [
        (0, 0, None, 479, "%RETRY%g", 3),  # the first retry is level 3
        (4, 0, None, 479, "%RETRY%g", 7),
        (4, 2, None, 479, "%RETRY%g", 2),
        (15, 0, None, 479, "%RETRY%g", 18),
        (16, 0, None, 479, "%DLQ%g", 0),
        (0, -1, None, 479, "%DLQ%g", 0),
        (2, 0, 2, 479, "%DLQ%g", 0),
        (2, 0, 2, 120, "%RETRY%g", 5),  # too old to be asked
        (20, 0, 50, 479, "%RETRY%g", 23),  # clamped to the highest level when stored
    ],
)
def test_where_a_failed_message_goes(
    times: int, wish: int, limit: int | None, version: int, topic: str, level: int
) -> None:
    where = after_failure(
        GroupConfig("g"), reconsume_times=times, delay_level=wish, limit=limit, client_version=version
    )
    assert (where.topic, where.delay_level) == (topic, level)


# ---- delay schedule


def test_the_next_due_time_is_the_earliest_head_of_all_levels() -> None:
    schedule = DelaySchedule([1, 5, 10])
    assert schedule.next_due() is None and schedule.clamp(99) == 3
    assert schedule.take(1, [(0, 1500)], 1000) == []
    assert schedule.take(2, [(0, 1200)], 1000) == []
    assert schedule.next_due() == 1200 and not schedule.is_idle(1) and schedule.is_idle(3)
    assert schedule.levels_due(1200) == [2]
    assert schedule.take(2, [(0, 1200), (1, 1300)], 1200) == [0]
    assert schedule.next_due() == 1300 and schedule.position(2) == 1


def test_progress_never_passes_a_message_that_is_not_stored_yet() -> None:
    schedule = DelaySchedule([1])
    assert schedule.take(1, [(0, 1), (1, 1), (2, 1)], 5) == [0, 1, 2]
    schedule.stored(1, 2)
    schedule.stored(1, 0)
    assert schedule.progress(1) == 1 and schedule.in_flight == 1
    schedule.failed(1, 1)
    assert schedule.retry() == [(1, 1)] and schedule.retry() == []
    assert schedule.progress(1) == 1
    schedule.stored(1, 1)
    assert schedule.progress(1) == 3 and schedule.to_dict() == {"offsetTable": {"1": 3}}
    again = DelaySchedule([1])
    again.load(schedule.to_dict())
    assert again.position(1) == 3


def test_a_due_time_further_away_than_the_delay_comes_from_a_clock_set_back() -> None:
    schedule = DelaySchedule([10])
    assert schedule.take(1, [(0, 50_000)], 40_000) == []
    assert schedule.take(1, [(0, 50_001)], 40_000) == [0]


def test_a_due_time_of_a_moment_before_the_message_was_stored_is_no_damage() -> None:
    """A process may be kept from running, for longer than a level, between the two looks at the clock."""
    code = queue_codes(DelaySchedule([0.3, 10]))[SCHEDULE_TOPIC]
    data = encode_record(
        topic=SCHEDULE_TOPIC.encode(), body=b"late", properties=b"DELAY\x011\x02", queue_id=0, queue_offset=0,
        physical_offset=0, flag=0, sys_flag=0, born_timestamp=0, born_host=bytes(8), store_timestamp=100_000,
        store_host=bytes(8),
    )  # fmt: skip
    record = RecordView(data, 0, len(data))
    assert [code(record, said) for said in (100_300, 98_000, 110_000)] == [100_300, 98_000, 110_000]
    assert [code(record, said) for said in (None, 110_001, 5)] == [100_300] * 3


def test_a_level_is_idle_only_when_its_queue_was_seen_empty() -> None:
    schedule = DelaySchedule([1])
    schedule.take(1, [(0, 1)], 5)
    assert not schedule.is_idle(1)  # there may be more behind what the caller's limit cut off
    assert schedule.take(1, [], 5) == [] and schedule.is_idle(1)
    schedule.skip_to(1, 7)
    assert schedule.position(1) == 7


# ---- long polls


def pull(queue: tuple[str, int] = ("T", 0), scanned: int = 0, accept: Any = None, connection: int = 1) -> ParkedPull:
    return ParkedPull(queue, scanned, accept, connection, None)


def test_who_may_not_park_is_told_without_a_look_at_all_that_he_parked() -> None:
    """Each pull at the limit cost a look at up to 8,192 others of its connection."""
    polls = LongPolls(30, Limits(parked_per_queue=256))
    for number in range(256):
        polls.park(pull(), 15, 0)
        polls.park(pull(connection=2), 15, 0)
        polls.park(pull(("T", number + 1)), 15, 0)
    steps = 0

    def step(*_: Any) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(step)
    refusal, other = polls.refusal(pull()), polls.refusal(pull(("T", 1)))
    sys.setprofile(before)
    assert refusal is not None and "parked_per_queue=256" in refusal.remark and other is None
    assert steps < 60
    assert polls.lost(1) == 512 and polls.count == 256 and polls.refusal(pull()) is None


def test_an_arrival_wakes_those_it_concerns() -> None:
    polls = LongPolls(30)
    waiting = [pull(), pull(scanned=5), pull(("T", 1)), pull(accept={7}.__contains__), pull(accept={8}.__contains__)]
    for each in waiting:
        polls.park(each, 15, 0)
    assert list(polls.arrived("T", 0, 5, 7)) == [waiting[0], waiting[3]]
    polls.answered(waiting[0])
    polls.answered(waiting[3])
    assert list(polls.arrived("T", 0, 6, None)) == [waiting[1], waiting[4]]  # several tags: everybody looks
    assert list(polls.arrived("U", 0, 6, None)) == [] and polls.count == 3


def test_a_crowd_is_looked_at_in_rounds() -> None:
    """One for what arrived, however many, and one more for all that arrives meanwhile."""
    polls, looked = LongPolls(30), [0]

    def wants(code: int) -> bool:
        looked[0] += 1
        return code == 7

    crowd, others = ([pull((topic, 0), accept=wants) for _ in range(2 * A_TURN + 500)] for topic in "TU")
    for each in (*crowd, *others):
        polls.park(each, 15, 0)
    assert polls.arrived("T", 0, 1, 8) == () and not looked[0] and polls.is_behind(("T", 0))
    assert polls.of_crowds(A_TURN) == [] and looked[0] == A_TURN
    for offset in range(2, 5):
        assert polls.arrived("T", 0, offset, 8) == polls.arrived("U", 0, 1, 7) == ()
    polls.answered(crowd[-1])
    rounds, turns = list[ParkedPull](), list[int]()
    while polls.crowded:
        looked[0], some = 0, polls.of_crowds(A_TURN)
        rounds += some
        turns.append(max(len(some), looked[0]))
    assert max(turns) <= A_TURN and len(turns) == 7
    assert rounds == [*crowd[:-1], *others] and not polls.is_behind(("T", 0))


def test_holds_end_at_their_deadline_and_the_longest_is_bounded() -> None:
    polls = LongPolls(30)
    first, second, third = pull(), pull(), pull()
    assert polls.next_deadline() is None
    assert polls.park(first, 15, 0) is True
    assert polls.park(second, 1000, 0) is False
    assert polls.park(third, 1, 0) is True
    assert polls.next_deadline() == pytest.approx(1)
    assert polls.expire(0.99) == [] and polls.expire(1.01) == [third]
    assert polls.next_deadline() == pytest.approx(15)
    assert polls.expire(15.01) == [first]
    assert polls.expire(29.9) == [] and polls.expire(30.1) == [second]
    assert polls.next_deadline() is None and polls.count == 0


def test_holds_that_end_together_do_so_in_turns() -> None:
    """Whoever asks for one hold after the other can have all of theirs end in one tick, also 200,000."""
    polls = LongPolls(30)
    for number in range(2 * A_TURN + 500):
        polls.park(pull(("T", number)), 30 - number % 250 / 10, number % 250 / 10)
    ended = 0
    for count in (A_TURN, A_TURN, 500):
        assert (polls.next_deadline() or 99) <= 30.1
        ended += len(over := polls.expire(30.2))
        assert len(over) == count and polls.count == 2 * A_TURN + 500 - ended
    assert polls.next_deadline() is None and polls.expire(30.2) == []


def test_all_holds_can_be_ended_in_turns() -> None:
    polls = LongPolls(30)
    before = [pull(("T", number)) for number in range(A_TURN + 2)]
    for number, each in enumerate(before):
        polls.park(each, 1 + number % 7, 0)
    polls.end()
    after = pull()
    polls.park(after, 1, 0)
    over: list[ParkedPull] = []
    while polls.next_deadline() == 0:
        over += (turn := polls.expire(0.1))
        assert 0 < len(turn) <= A_TURN
    assert set(over) == set(before) and polls.count == 1
    assert polls.next_deadline() == pytest.approx(1) and polls.expire(1.01) == [after]


def test_a_closed_connection_takes_its_pulls_along() -> None:
    polls = LongPolls(30)
    for connection in (1, 1, 2):
        polls.park(pull(connection=connection), 15, 0)
    polls.park(pull(("U", 0), connection=2), 15, 0)
    assert polls.lost(1) == 2 and polls.lost(1) == 0
    assert polls.count == 2 and len(polls.expire(inf)) == 2 and polls.count == 0
    assert polls.expire(100) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 40), st.integers(0, 3)), max_size=40), st.integers(0, 3))
def test_every_parked_pull_leaves_exactly_once(parks: list[tuple[int, float, int]], lost: int) -> None:
    polls = LongPolls(30)
    for queue, hold, connection in parks:
        polls.park(pull(("T", queue), connection=connection), hold, 0)
    left = len(polls.expire(10.0)) + polls.lost(lost)
    for woken in list(polls.arrived("T", 1, 1, None)):
        polls.answered(woken)
        left += 1
    deadline = polls.next_deadline()
    left += len(polls.expire(31.0))
    assert left == len(parks) and polls.count == 0
    assert deadline is None or deadline >= 10.0
