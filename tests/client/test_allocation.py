"""Who gets which queue, against what Apache's classes answer, and what must hold for any group."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.client.core.balance import (
    STRATEGIES,
    Strategy,
    find_strategy,
    fixed,
    in_namespace,
    machine_room,
    machine_room_nearby,
)
from aiorocket.config import ConsumerConfig
from aiorocket.errors import ConfigError
from aiorocket.model import Queue
from aiorocket_protocol.fuzzing import vectors

VECTORS = vectors("allocation")


def room_of_broker(queue: Queue) -> str:
    return queue.broker_name.partition("@")[0]


def room_of_client(client_id: str) -> str:
    return client_id.partition("-")[0]


def strategy_of(vector: dict[str, Any]) -> Strategy:
    name = vector["strategy"]
    if name.startswith("MACHINE_ROOM_NEARBY-"):
        inner = STRATEGIES[name.removeprefix("MACHINE_ROOM_NEARBY-")]
        return machine_room_nearby(inner, room_of_broker, room_of_client)
    if name == "MACHINE_ROOM":
        return machine_room(vector["rooms"])
    if name == "CONFIG":
        return fixed([Queue(*each) for each in vector["config"]])
    return STRATEGIES[name]


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_every_strategy_answers_as_javas(vector: dict[str, Any]) -> None:
    allocate = strategy_of(vector)
    queues = [Queue(*each) for each in vector["queues"]]
    found = {
        client: [list(queue) for queue in allocate(queues, vector["clients"], client)] for client in vector["clients"]
    }
    assert found == vector["result"]


def test_all_six_are_covered() -> None:
    kinds = {vector["strategy"].partition("-")[0] for vector in VECTORS}
    assert kinds == {"AVG", "AVG_BY_CIRCLE", "CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "CONSISTENT_HASH"}


QUEUES = st.lists(
    st.builds(Queue, st.just("t"), st.sampled_from(["r1@a", "r1@b", "r2@c"]), st.integers(0, 30)), unique=True
)
CLIENTS = st.lists(st.text("abr123-", min_size=1, max_size=6), min_size=1, unique=True)


@pytest.mark.parametrize("name", [*STRATEGIES, "MACHINE_ROOM", "NEARBY"])
@given(queues=QUEUES, clients=CLIENTS, data=st.data())
def test_every_queue_has_exactly_one_owner(name: str, queues: list[Queue], clients: list[str], data: Any) -> None:
    allocate = {
        **STRATEGIES,
        "MACHINE_ROOM": machine_room(["r1", "r2"]),
        "NEARBY": machine_room_nearby(STRATEGIES["AVG"], room_of_broker, lambda client: client[0]),
    }[name]
    # The order in which a broker lists queues and members must not matter.
    shares = [allocate(data.draw(st.permutations(queues)), data.draw(st.permutations(clients)), me) for me in clients]
    assert sorted(queue for share in shares for queue in share) == sorted(queues)
    assert allocate(queues, clients, "a stranger") == []


@given(queues=QUEUES, clients=CLIENTS)
def test_a_member_that_leaves_moves_only_its_own_queues(queues: list[Queue], clients: list[str]) -> None:
    allocate = STRATEGIES["CONSISTENT_HASH"]
    rest = clients[1:]
    for member in rest:
        assert set(allocate(queues, clients, member)) <= set(allocate(queues, rest, member))


def test_rooms_are_told_from_names_as_by_javas_split() -> None:
    # Which drops empty parts at the end, and no others.
    names = ["r@a", "r@a@", "r@", "r", "@", "@a", "r@a@b", "r@@a", "s@a"]
    queues = [Queue("t", name, 0) for name in names]
    found = machine_room(["r", ""])(queues, ["me"], "me")
    assert {queue.broker_name for queue in found} == {"r@a", "r@a@", "@a"}


def test_in_a_namespace_a_strategy_sees_wire_names_and_may_answer_with_either() -> None:
    queues = [Queue("ns%t", "b", number) for number in range(4)]
    assert in_namespace("ns", fixed([Queue("t", "b", 1)]))(queues, ["me"], "me") == [queues[1]]
    for name, strategy in STRATEGIES.items():
        assert in_namespace("ns", strategy)(queues, ["a", "b"], "a") == strategy(queues, ["a", "b"], "a"), name
        assert in_namespace("", strategy) is strategy


def test_names_and_functions() -> None:
    assert find_strategy("AVG_BY_CIRCLE") is STRATEGIES["AVG_BY_CIRCLE"]
    mine = fixed([Queue("t", "b", 1)])
    assert find_strategy(mine) is mine
    with pytest.raises(ConfigError, match=r"allocate='MACHINE_ROOM': AVG, .*machine_room\(rooms\)"):
        find_strategy("MACHINE_ROOM")
    with pytest.raises(ConfigError, match="in no machine room"):
        machine_room_nearby(mine, lambda queue: "", room_of_client)([Queue("t", "b", 1)], ["a"], "a")
    assert ConsumerConfig().allocate == "AVG"
