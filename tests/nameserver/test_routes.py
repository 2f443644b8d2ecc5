"""RouteInfo and KeyValues: decisions without a loop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from aiorocket.broker.core.turns import whole
from aiorocket.config import Limits
from aiorocket.nameserver.core.kv import KeyValues
from aiorocket.nameserver.core.routes import A_TURN, BrokerReport, RouteInfo
from aiorocket_protocol import DataVersion, ProtocolError, QueueData


def registration(name: str = "a", address: str = "10.0.0.1:10911", *topics: str, **changes: object) -> BrokerReport:
    queues = {topic: QueueData(name, 4, 4, 6) for topic in (topics or ("T", "U"))}
    # Each test says which fields it wants otherwise: no one type fits them all.
    return BrokerReport("C", name, 0, address, queues, DataVersion(1, 1))._replace(**changes)  # type: ignore[arg-type]


def test_a_route_has_the_queues_and_addresses_of_every_live_broker() -> None:
    table = RouteInfo(120)
    assert table.register(registration("a"), connection=1, now=0) is None
    assert table.register(registration("b", "10.0.0.2:10911"), connection=2, now=0) is None
    route = table.topic_route("T")
    assert route is not None
    assert [data.broker_name for data in route.queue_datas] == ["a", "b"]
    assert [data.broker_addrs for data in route.broker_datas] == [{0: "10.0.0.1:10911"}, {0: "10.0.0.2:10911"}]
    assert table.topic_route("unknown") is None


def test_a_second_broker_of_the_name_is_refused_while_the_first_is_connected_and_named_to_it() -> None:
    table = RouteInfo(120)
    table.register(registration(), connection=1, now=0)
    why = table.register(registration(address="10.0.0.9:10911"), connection=2, now=1)
    assert why is not None and "10.0.0.1:10911" in why and "10.0.0.9:10911" in why
    assert table.holder("a", 0) == "10.0.0.1:10911"
    assert table.lost(1) == ["10.0.0.1:10911"]
    assert table.register(registration(address="10.0.0.9:10911"), connection=2, now=2) is None
    assert table.holder("a", 0) == "10.0.0.9:10911"


def test_the_same_address_on_a_new_connection_is_the_same_broker() -> None:
    table = RouteInfo(120)
    table.register(registration(), connection=1, now=0)
    assert table.register(registration(), connection=2, now=1) is None
    assert table.lost(1) == []  # the old connection is noticed late and takes nothing with it
    assert table.topic_route("T") is not None


def test_who_registers_in_one_cluster_has_no_say_about_brokers_of_another() -> None:
    table = RouteInfo(120)
    table.register(registration(), connection=1, now=0)
    for report in (registration(cluster="D"), registration(cluster="D", broker_id=1, address="10.0.0.9:1")):
        why = table.register(report, connection=2, now=1)
        assert why is not None and "cluster C" in why
    assert not table.unregister("a", 0, "10.0.0.1:10911", "D")
    assert table.lost(2) == [] and table.holder("a", 0) == "10.0.0.1:10911"
    assert table.register(registration(cluster="D"), connection=1, now=1) is None  # its own change of mind
    assert table.lost(1) == ["10.0.0.1:10911"]
    assert table.register(registration(cluster="E"), connection=2, now=2) is None


def test_a_broker_that_does_not_register_in_time_is_dropped_at_its_deadline() -> None:
    table = RouteInfo(120)
    table.register(registration(), connection=1, now=0)
    table.register(registration("b", "10.0.0.2:1", expiry=30.0), connection=2, now=10)
    assert table.next_deadline() == 40
    assert table.expire(39.9) == []
    assert table.expire(40) == ["10.0.0.2:1"]
    assert table.next_deadline() == 120
    table.touch("a", "10.0.0.1:10911", "C", 0, 100)
    assert table.next_deadline() == 220
    assert table.expire(220) == ["10.0.0.1:10911"]
    assert table.next_deadline() is None and table.topics() == []


def test_a_first_registration_of_exactly_one_topic_is_an_incremental_update_of_an_unknown_broker() -> None:
    table = RouteInfo(120)
    why = table.register(registration("a", "h:1", "only"), connection=1, now=0)
    assert why is not None and "whole topic table" in why
    table.register(registration(), connection=1, now=0)
    one = registration("a", "10.0.0.1:10911", "only", version=DataVersion(1, 2))
    assert table.register(one, connection=1, now=0) is None
    assert table.topics() == ["T", "U", "only"]


def test_an_unchanged_version_renews_the_lease_without_touching_permissions() -> None:
    table = RouteInfo(120)
    table.register(registration(), connection=1, now=0)
    assert whole(table.setting_writable("a", False)) == 2
    table.register(registration(), connection=1, now=50)
    route = table.topic_route("T")
    assert route is not None and route.queue_datas[0].perm == 4
    whole(table.setting_writable("a", True))
    route = table.topic_route("T")
    assert route is not None and route.queue_datas[0].perm == 6
    here = "10.0.0.1:10911", "C"
    assert table.renew("a", *here, 0, DataVersion(1, 1), 90) == DataVersion(1, 1)
    assert table.next_deadline() == 210
    assert table.renew("nobody", *here, 0, DataVersion(1, 1), 90) is None


@pytest.mark.parametrize("other", [("10.0.0.1:10911", "D"), ("10.0.0.9:10911", "C")])
def test_who_does_not_hold_a_name_renews_nothing_and_learns_nothing(other: tuple[str, str]) -> None:
    """Its right was judged by the cluster that it says."""
    table = RouteInfo(120)
    table.register(registration(), connection=1, now=0)
    assert table.renew("a", *other, 0, DataVersion(1, 1), 90) is None
    table.touch("a", *other, 0, 90)
    assert table.next_deadline() == 120


def test_a_topic_that_is_not_known_is_taken_of_an_unchanged_version_too() -> None:
    """New ones, and those that were deleted here and not at the broker; what is no longer named stays."""
    table = RouteInfo(120)
    table.register(registration(), connection=1, now=0)
    whole(table.setting_writable("a", False))
    table.delete_topic("U")
    table.register(registration("a", "10.0.0.1:10911", "U", "V"), connection=1, now=50)
    perms = {topic: route.queue_datas[0].perm for topic in table.topics() if (route := table.topic_route(topic))}
    assert perms == {"T": 4, "U": 6, "V": 6} and table._count == 3
    assert table.lost(1) == ["10.0.0.1:10911"] and table.topics() == [] and table._count == 0


@pytest.mark.parametrize(("acting", "perms"), [(None, {}), (False, {"T": 6, "U": 6}), (True, {"T": 4, "U": 4})])
def test_the_first_slave_speaks_for_a_master_that_is_away(acting: bool | None, perms: dict[str, int]) -> None:
    """Of the brokers that can say so, which those before 5.0 cannot."""

    def seen() -> dict[str, int]:
        return {topic: route.queue_datas[0].perm for topic in table.topics() if (route := table.topic_route(topic))}

    table = RouteInfo(120)
    slave = registration(address="10.0.0.2:10911", broker_id=1, acting=acting)
    assert table.register(slave, connection=2, now=0) is None and seen() == perms
    second = registration("a", "10.0.0.3:10911", "T", "W", broker_id=2, acting=acting)
    assert table.register(second, connection=3, now=0) is None and seen() == perms
    assert table.register(registration(), connection=1, now=1) is None and seen() == {"T": 6, "U": 6}
    changed = registration("a", "10.0.0.2:10911", "T", "V", broker_id=1, acting=acting, version=DataVersion(1, 2))
    assert table.register(changed, connection=2, now=2) is None and seen() == {"T": 6, "U": 6}


def test_only_the_holder_can_unregister() -> None:
    table = RouteInfo(120)
    table.register(registration(), connection=1, now=0)
    assert not table.unregister("a", 0, "10.0.0.9:1", "C")
    assert table.unregister("a", 0, "10.0.0.1:10911", "C")
    assert table.topic_route("T") is None


@pytest.mark.parametrize(("cluster", "left"), [(None, []), ("C", []), ("other", ["T"])])
def test_a_topic_is_deleted_everywhere_or_in_one_cluster(cluster: str | None, left: list[str]) -> None:
    table = RouteInfo(120)
    table.register(registration("a", "10.0.0.1:10911", "T", "U"), connection=1, now=0)
    table.delete_topic("U")
    table.delete_topic("T", cluster)
    assert table.topics() == left
    assert whole(table.topics_of_cluster("C")) == left
    table.delete_topic("unknown")


def test_key_values_tell_what_must_be_saved_and_come_back() -> None:
    kv = KeyValues()
    assert kv.put("ns", "k", "v") and not kv.put("ns", "k", "v")
    assert kv.get("ns", "k") == "v" and kv.get("ns", "x") is None and kv.get("x", "k") is None
    other = KeyValues()
    other.load(kv.to_dict())
    assert other.table("ns") == {"k": "v"}
    assert kv.delete("ns", "k") and not kv.delete("ns", "k")
    assert kv.table("ns") is None and kv.to_dict() == {}


@pytest.mark.parametrize("what", [("\ud800", "k", "v"), ("n", "\ud800", "v"), ("n", "k", "\ud800")])
def test_a_key_value_that_could_be_told_to_nobody_is_not_kept(what: tuple[str, str, str]) -> None:
    """JSON can have half a surrogate pair, and no list could be written that has it."""
    kv = KeyValues()
    with pytest.raises(ProtocolError, match="not Unicode"):
        kv.put(*what)
    assert kv.to_dict() == {}


def test_many_topics_are_kept_in_turns() -> None:
    """A broker that goes meanwhile leaves none of them, and one that stays has its version when all are there."""
    table = RouteInfo(120.0)
    many = registration("a", "h:1", *(f"T{number}" for number in range(3 * A_TURN)))
    work = table.registering(many, connection=1, now=0)
    turns = [next(work) for _ in range(4)]
    assert len(turns) == 4 and 0 < len(table.topics()) < 3 * A_TURN
    assert table.renew("a", "h:1", "C", 0, DataVersion(1, 1), 0) is None  # not before all are there
    assert table.lost(1) == ["h:1"] and list(work) == []
    while table.forget():
        pass
    assert table.topics() == [] and table._count == 0
    assert table.register(many, connection=2, now=0) is None
    assert len(table.topics()) == table._count == 3 * A_TURN
    assert table.renew("a", "h:1", "C", 0, DataVersion(1, 1), 0) == DataVersion(1, 1)
    assert len(list(table.flagged(1))) >= 3


def test_a_broker_that_goes_while_its_topics_are_counted_passes_no_limit() -> None:
    """Those that were counted as known are new then."""
    table = RouteInfo(120.0, Limits(routes=2 * A_TURN))
    names = [f"T{number}" for number in range(A_TURN + 1)]
    assert table.register(registration("a", "h:1", *names), connection=1, now=0) is None
    assert table.register(registration("b", "h:2", *names[:-2]), connection=2, now=0) is None
    more = registration("a", "h:1", *names, *(f"U{number}" for number in range(A_TURN)))
    assert "routes" in (table.register(more, connection=1, now=0) or "")
    work = table.registering(more, connection=3, now=0)
    next(work)
    assert table.lost(1) == ["h:1"]
    assert "routes" in (whole(work) or "") and table._count == A_TURN - 1 and not table.is_leaving


def steps(run: Callable[[], object]) -> int:
    """Instructions of the interpreter that it takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def crowd(brokers: int, topics: int = 1) -> RouteInfo:
    table = RouteInfo(120.0)
    for number in range(brokers):
        names = [f"T{number}-{topic}" for topic in range(topics)]
        report = registration(f"b{number}", f"h:{number}", "everywhere", *names)
        assert table.register(report, connection=number, now=0) is None
    return table


@pytest.mark.parametrize("ask", [lambda table: table.topic_route("everywhere"), lambda table: table.brokers()])
def test_ten_times_as_many_brokers_make_an_answer_ten_times_as_long(ask: Callable[[RouteInfo], object]) -> None:
    """It was the square: a route of a topic that 900 brokers carry held the loop for 120 ms."""
    few, many = (crowd(count) for count in (40, 400))
    assert steps(lambda: ask(many)) < 13 * steps(lambda: ask(few))


def test_a_broker_goes_whatever_others_carry() -> None:
    """The end of a connection that 900 brokers had registered on held the loop for more than a minute."""
    few, many = crowd(2, topics=10), crowd(20, topics=100)
    assert steps(lambda: many.unregister("b0", 0, "h:0", "C")) < 12 * steps(lambda: few.unregister("b0", 0, "h:0", "C"))
    many.delete_topic("T1-0")
    assert many.lost(1) == ["h:1"] and many.lost(1) == []
    assert many._count == len(many.topics()) - 1 + 18 == 18 * 101


@pytest.mark.parametrize("end", [lambda table: table.lost(7), lambda table: table.expire(500)], ids=["lost", "expire"])
def test_the_topics_of_those_that_go_are_forgotten_in_turns(end: Callable[[RouteInfo], list[str]]) -> None:
    table = RouteInfo(120.0)
    for name, many in (("a", 3), ("b", 1)):
        names = [f"{name}{number}" for number in range(many * A_TURN)]
        assert table.register(registration(name, f"h:{name}", *names), connection=7, now=0) is None
    assert end(table) == ["h:a", "h:b"] and end(table) == [] and table.next_deadline() is None
    assert table._count == 4 * A_TURN - 2 * A_TURN  # some with each of the two
    table.delete_topic("a1")
    assert table.topic_route("a0") is None and whole(table.topics_of_cluster("C")) == []
    assert table.forget() and table._count in (A_TURN, A_TURN - 1)
    assert not table.forget() and table.topics() == [] and table._count == 0


def test_who_comes_back_has_none_of_the_topics_that_it_had() -> None:
    table = RouteInfo(120.0)
    many = registration("a", "h:1", *(f"T{number}" for number in range(3 * A_TURN)))
    assert table.register(many, connection=1, now=0) is None
    assert table.lost(1) == ["h:1"] and table.is_leaving
    assert table.register(registration("a", "h:1", "T1", "U"), connection=2, now=1) is None
    assert table.topics() == ["T1", "U"] and table._count == 2 and not table.is_leaving


def test_lists_of_many_topics_are_made_in_turns() -> None:
    table = RouteInfo(120.0)
    names = [f"T{number}" for number in range(3 * A_TURN)]
    assert table.register(registration("a", "h:1", *names), connection=1, now=0) is None
    for listing in (table.all_topics, lambda: table.topics_of_cluster("C")):
        assert len(list(listing())) >= 5 and whole(listing()) == sorted(names)
    assert len(list(table.setting_writable("a", False))) == 3
