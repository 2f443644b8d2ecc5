"""Topics, offsets, groups: the broker's tables, without a loop."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.broker.core import group_configs
from aiorocket.broker.core.group_configs import GroupConfig, GroupConfigs
from aiorocket.broker.core.groups import GroupTable
from aiorocket.broker.core.modes import Mode, ModeTable
from aiorocket.broker.core.names import FORBIDDEN_TOPICS, Refusal, is_topic_name
from aiorocket.broker.core.offsets import ConsumerOffsets
from aiorocket.broker.core.topics import Topic, TopicTable
from aiorocket_protocol import POP_MODE, SubscriptionData


def table(auto_create: bool = True) -> TopicTable:
    return TopicTable(broker="broker-a", cluster="DefaultCluster", auto_create=auto_create, default_queues=8)


# ---- topics


def test_topics_present_at_start() -> None:
    topics = {topic.name: topic for topic in table()}
    assert (topics["TBW102"].read_queues, topics["TBW102"].perm) == (8, 7)
    assert topics["BenchmarkTest"].write_queues == 1024
    assert topics["SCHEDULE_TOPIC_XXXX"].write_queues == 18
    assert topics["DefaultCluster"].write_queues == 16 and topics["broker-a"].write_queues == 1
    assert "TBW102" not in table(auto_create=False)
    # Two or more: a 5.x name server refuses a first registration with exactly one.
    assert len(table(auto_create=False)) >= 2


@pytest.mark.parametrize(("asked", "made"), [(4, 4), (16, 8), (0, 1), (-3, 1)])
def test_auto_creation_takes_the_smaller_of_both_queue_counts_and_no_inherit(asked: int, made: int) -> None:
    topics = table()
    topic = topics.create_on_send("New", "TBW102", asked)
    assert isinstance(topic, Topic) and topic.write_queues == topic.read_queues == made and topic.perm == 6
    assert topics.get("New") is topic and topics.version == 1


def test_without_auto_creation_an_unknown_topic_is_17_but_a_retry_topic_is_made() -> None:
    topics = table(auto_create=False)
    refused = topics.create_on_send("New", "TBW102", 4)
    assert isinstance(refused, Refusal) and refused.code == 17 and "auto-creation is off" in refused.remark
    made = topics.create_on_send("%RETRY%g", "TBW102", 4)
    assert isinstance(made, Topic) and made.write_queues == 1


@pytest.mark.parametrize("name", ["", "a b", "../up", "a/b", "ü", "x" * 128, "a\x00", "a\n"])
def test_names_outside_the_whitelist_become_nothing(name: str) -> None:
    topics = table()
    refused = topics.create_on_send(name, "TBW102", 4)
    assert isinstance(refused, Refusal) and refused.code == 29
    unset = topics.configure(Topic(name, 1, 1))
    assert isinstance(unset, Refusal) and unset.code == 29
    assert name not in topics and topics.version == 0


@given(st.text(max_size=140))
def test_no_accepted_topic_name_can_leave_a_directory(name: str) -> None:
    if is_topic_name(name):
        assert 1 <= len(name) <= 127 and not set(name) & set("./\\\x00 \n") and name.isascii()


def test_an_unchanged_configuration_changes_nothing() -> None:
    topics = table()
    assert topics.configure(Topic("T", 4, 4)) is True
    version = topics.version
    assert topics.configure(Topic("T", 4, 4)) is False and topics.version == version
    assert topics.configure(Topic("T", 8, 8)) is True and topics.version == version + 1


@pytest.mark.parametrize(
    "topic",
    [Topic("TBW102", 1, 1), Topic("rmq_sys_x", 1, 1), Topic("T", -1, 4), Topic("T", 4, 1 << 20), Topic("T", 4, 4, 8)],
)
def test_system_topics_and_impossible_settings_are_refused(topic: Topic) -> None:
    refused = table().configure(topic)
    assert isinstance(refused, Refusal) and refused.code == 29


def test_topics_come_back_from_their_snapshot_and_built_in_ones_follow_the_settings() -> None:
    first = table()
    first.configure(Topic("T", 3, 5, 4, order=True, attributes={"message.type": "FIFO"}))
    second = TopicTable(broker="b2", cluster="C2", auto_create=False, default_queues=4)
    second.load(first.to_dict())
    assert second.get("T") == first.get("T") and second.version == first.version
    assert second.get("SCHEDULE_TOPIC_XXXX") == first.get("SCHEDULE_TOPIC_XXXX")


def test_what_the_send_path_asks_is_computed_once() -> None:
    assert Topic("T", 2, 4).plain and Topic("T", 2, 4).max_queues == 4
    assert not Topic("T", 2, 4, 4).plain and not Topic("%RETRY%g", 1, 1).plain
    assert not any(Topic(name, 1, 1).plain for name in FORBIDDEN_TOPICS)
    assert Topic("T", 2, 4, 2).readable is False


# ---- offsets


def test_a_commit_is_kept_even_when_it_goes_back_and_a_negative_one_never() -> None:
    offsets = ConsumerOffsets()
    assert offsets.query("g", "T", 0) is None
    assert offsets.commit("g", "T", 0, 5) is False
    assert offsets.commit("g", "T", 0, 3) is True  # lower: accepted, and told to the log
    assert offsets.query("g", "T", 0) == 3
    version = offsets.version
    offsets.commit("g", "T", 0, -1)  # ali-ons does this for queues it never consumed
    offsets.commit("g", "T", 0, 3)
    assert offsets.query("g", "T", 0) == 3 and offsets.version == version
    assert offsets.query("g", "T", 1) is None


def test_what_is_asked_of_one_group_or_topic_looks_at_no_other_offset() -> None:
    """Each was a look at all pairs: of 500,000 30 ms, and several of them in what deletes a topic."""
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    offsets = ConsumerOffsets()
    for number in range(10_000):
        offsets.commit(f"g{number // 100}", f"t{number % 100}", 0, number)
    assert len(offsets.topics(Name("g5"))) == 100 and compared <= 1
    assert len(offsets.groups(Name("t5"))) == 100 and compared <= 101
    offsets.delete_group(Name("g5"))
    assert len(offsets) == 9_900 and compared <= 500
    offsets.delete_topics({"t1", "t2", "unknown"})
    assert len(offsets) == 9_702 and len(offsets.topics("g5")) == 0 and len(offsets.groups("t1")) == 0


def test_offsets_come_back_and_go_with_their_topic_or_group() -> None:
    offsets = ConsumerOffsets()
    for group, topic in (("g", "T"), ("g", "U"), ("h", "T")):
        offsets.commit(group, topic, 2, 9)
    other = ConsumerOffsets()
    other.load(offsets.to_dict())
    assert sorted(other) == [("g", "T", 2, 9), ("g", "U", 2, 9), ("h", "T", 2, 9)]
    assert other.topics("g") == ["T", "U"] and other.groups("T") == ["g", "h"]
    other.delete_topics({"T"})
    assert list(other) == [("g", "U", 2, 9)]
    other.delete_group("g")
    assert list(other) == []


# ---- groups


def beat(
    groups: GroupTable, client: str, *topics: str, now: float = 0.0, version: int = 1, connection: int = 0
) -> bool:
    return groups.register(
        "g",
        connection=connection or int(client),
        client_id=client,
        now=now,
        subscriptions=[SubscriptionData.parse(topic, "*", version) for topic in topics],
    )


def test_a_new_member_or_another_set_of_topics_is_news_a_new_version_is_not() -> None:
    groups = GroupTable(120)
    assert beat(groups, "1", "T")
    assert not beat(groups, "1", "T")  # the same heartbeat again
    assert not beat(groups, "1", "T", version=2)  # else each change of a queue would make everybody rebalance again
    assert beat(groups, "1", "T", "U")
    assert beat(groups, "1", "T")
    assert beat(groups, "2", "T")
    assert groups.get("g").client_ids() == ["1", "2"]  # type: ignore[union-attr]


def test_the_newer_subscription_version_wins() -> None:
    groups = GroupTable(120)
    beat(groups, "1", "T", version=5)
    beat(groups, "2", "T", version=3)
    live = groups.get("g")
    assert live is not None and live.subscriptions["T"].version == 5


def test_members_expire_in_the_order_of_their_last_heartbeat() -> None:
    groups = GroupTable(120)
    beat(groups, "1", "T", now=0)
    beat(groups, "2", "T", now=10)
    assert groups.next_deadline() == 120
    beat(groups, "1", "T", now=100)
    assert groups.next_deadline() == 130
    assert groups.expire(129.9) == []
    assert groups.expire(130) == ["g"]
    assert groups.get("g").client_ids() == ["1"]  # type: ignore[union-attr]
    assert groups.expire(220) == ["g"] and groups.get("g") is None and groups.next_deadline() is None


def test_a_closed_connection_takes_its_member_out_of_every_group_at_once() -> None:
    groups = GroupTable(120)
    for group in ("g", "h"):
        groups.register(group, connection=7, client_id="c", now=0)
    groups.register("h", connection=8, client_id="d", now=0)
    assert groups.lost(7) == ["g", "h"]
    assert groups.lost(7) == []
    assert groups.get("g") is None and groups.get("h").client_ids() == ["d"]  # type: ignore[union-attr]
    assert not groups.unregister("h", 7) and groups.unregister("h", 8)


def test_modes_and_what_is_forbidden_are_made_up_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 modes it took 25 ms of the loop, of 20,000 forbidden pairs 30."""
    made: list[int] = []

    def counted(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        made.append(1)
        return sorted(pairs)

    monkeypatch.setattr(group_configs, "sorted", counted, raising=False)
    configs, modes = GroupConfigs(16), ModeTable()
    configs.forbid("g", "t")
    modes.put("t", "g", Mode(POP_MODE, 1))
    saves = configs.later(), modes.later()
    configs.forbid("g", "u")
    modes.put("u", "g", Mode(POP_MODE, 1))
    assert not made
    assert saves[0]()["forbiddenTable"] == {"g": {"t": 4}} and made
    assert saves[1]() == {"modes": [["t", "g", POP_MODE, 1]]}


def test_group_settings_have_defaults_survive_and_have_names_within_limits() -> None:
    configs = GroupConfigs(retry_max_times=5)
    made = configs.ensure("g")
    assert isinstance(made, GroupConfig) and made.retry_max_times == 5 and configs.version == 1
    assert configs.ensure("g") is made and configs.version == 1
    refused = configs.ensure("no blanks")
    assert isinstance(refused, Refusal) and refused.code == 26
    configs.put(made._replace(consume_enable=False, attributes={"a": "b"}, consume_orderly=True))
    other = GroupConfigs(16)
    other.load(configs.to_dict())
    loaded = other.get("g")
    assert loaded is not None and not loaded.consume_enable and loaded.attributes == {"a": "b"}
    assert loaded.to_dict()["consumeMessageOrderly"] is True and made.to_dict()["consumeMessageOrderly"] is False
    assert other.delete("g") and not other.delete("g") and not other.delete("TOOLS_CONSUMER")
    assert configs.put(made._replace(name="/")) is not None
