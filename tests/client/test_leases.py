"""Queue locks of a client against a broker of a few lines, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiorocket.client.app import Client
from aiorocket.client.group.leases import Leases
from aiorocket.config import ClientConfig, ConsumerConfig, RemotingConfig
from aiorocket.errors import ConfigError
from aiorocket.model import Queue
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.remoting.server import RemotingServer
from aiorocket.runtime.tasks import TaskScope
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import (
    MAX_CONTROL_BODY,
    MSGPACK,
    LockBatchBody,
    LockBatchResult,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_body,
    encode_body,
)

A, B = Queue("t", "broker-a", 0), Queue("t", "broker-a", 1)
FAR = Queue("t", "broker-b", 0)


class LockBroker:
    """Grants what ``refused`` does not name; ``silent`` answers nothing, ``code`` other than 0 refuses all."""

    def __init__(self, sim: Simulation, address: str) -> None:
        processors = ProcessorTable()
        processors.add(RequestCode.LOCK_BATCH_MQ, self._lock)
        processors.add(RequestCode.UNLOCK_BATCH_MQ, self._unlock)
        processors.add(RequestCode.HEART_BEAT, lambda connection, command: RemotingCommand.response())
        self.address = address
        self.host = sim.host(address)
        self.server = RemotingServer(sim.env(), processors, RemotingConfig())
        self.loop = sim.loop
        self.refused: set[Queue] = set()
        self.silent = False
        self.code = 0
        self.epoch: int | None = 7
        self.locks: list[tuple[float, list[int]]] = []
        self.unlocks: list[tuple[float, list[int]]] = []

    def _lock(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        body = decode_body(LockBatchBody, command.body, command.serialize_type)
        assert (body.client_id, body.consumer_group) == (self.client_id, "g")
        self.locks.append((round(self.loop.time(), 1), sorted(queue.queue_id for queue in body.queues)))
        if self.silent:
            return None
        if self.code:
            return RemotingCommand.response(self.code, remark="not now")
        held = [each for each in body.queues if Queue(each.topic, each.broker_name, each.queue_id) not in self.refused]
        result = LockBatchResult(held, () if self.epoch is None else (self.epoch,) * len(held))
        return RemotingCommand.response(body=encode_body(result, connection.reply_type(command)))

    def _unlock(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        body = decode_body(LockBatchBody, command.body, command.serialize_type)
        self.unlocks.append((round(self.loop.time(), 1), sorted(queue.queue_id for queue in body.queues)))
        return RemotingCommand.response()

    client_id = ""


class LockCluster:
    """Two such brokers, and the leases of one consumer with their renewal running."""

    def __init__(self, sim: Simulation, config: ClientConfig | None = None) -> None:
        self.sim = sim
        self.config = config
        self.near, self.far = LockBroker(sim, "10.0.0.2"), LockBroker(sim, "10.0.0.3")
        self.lost: list[tuple[float, Queue]] = []
        self.started: list[Any] = []

    async def start(self) -> None:
        for broker in (self.near, self.far):
            await broker.host.run(broker.server.start(broker.address, 10911))
        self.client = Client(nameservers="10.0.0.1:9876", config=self.config, env=self.sim.env())
        self.host = self.sim.host("10.0.2.1")
        await self.host.run(self.client.start())
        self.near.client_id = self.far.client_id = self.client.client_id
        self.masters: dict[str, str | None] = {"broker-a": "10.0.0.2:10911", "broker-b": "10.0.0.3:10911"}
        self.leases = Leases(self.client.session, "g", ConsumerConfig(), lambda queue: self.masters[queue.broker_name])
        self.leases.watch_lost(lambda queue: self.lost.append((round(self.sim.loop.time(), 1), queue)))
        self.scope = TaskScope("leases")
        self.scope.start(self.leases.renew_forever(), name="renew")

    async def close(self) -> None:
        await self.leases.close()
        await self.scope.close()
        await self.host.run(self.client.stop())
        for broker in (self.near, self.far):
            await broker.host.run(broker.server.close(0.0))


def run(scenario: Callable[[LockCluster], Any], seed: int = 0, config: ClientConfig | None = None) -> None:
    async def main(sim: Simulation) -> None:
        world = LockCluster(sim, config)
        await world.start()
        await scenario(world)
        await world.close()

    simulate(main, seed)


@pytest.mark.parametrize("seed", range(3))
def test_locks_are_renewed_every_20_s_in_one_request_per_broker(seed: int) -> None:
    async def scenario(world: LockCluster) -> None:
        leases = world.leases
        assert await leases.acquire([A, B, FAR]) == {A, B, FAR}
        assert leases.epoch(A) == 7
        began = round(world.sim.loop.time(), 1)
        await asyncio.sleep(65)
        assert [ids for _, ids in world.near.locks] == [[0, 1]] * 4
        assert [round(when - began) for when, _ in world.near.locks] == [0, 20, 40, 60]
        assert len(world.far.locks) == 4
        assert not world.lost
        await leases.release(A)
        assert world.near.unlocks[0][1] == [0]
        assert not leases.valid(A, world.sim.loop.time()) and leases.epoch(A) is None
        await asyncio.sleep(20)
        assert world.near.locks[-1][1] == [1]

    run(scenario, seed)


def test_thousands_of_queues_are_asked_for_in_bodies_that_a_broker_reads() -> None:
    many = [Queue("t", "broker-a", number) for number in range(1201)]

    async def scenario(world: LockCluster) -> None:
        assert await world.leases.acquire(many) == set(many)
        assert [len(ids) for _, ids in world.near.locks] == [500, 500, 201]

    run(scenario)
    longest = [MessageQueue("t" * 255, "b" * 127, number) for number in range(500)]
    assert len(encode_body(LockBatchBody("c" * 255, "g" * 255, longest), MSGPACK)) <= MAX_CONTROL_BODY // 4


def test_a_broker_that_fails_disturbs_no_other() -> None:
    async def scenario(world: LockCluster) -> None:
        world.near.refused = {B}
        world.masters["broker-b"] = None
        assert await world.leases.acquire([A, B, FAR]) == {A}
        world.masters["broker-b"] = "10.0.0.3:10911"
        world.far.code = int(ResponseCode.SYSTEM_ERROR)
        assert await world.leases.acquire([A, FAR]) == {A}
        # What was never held is the rebalance's to ask for.
        await asyncio.sleep(30)
        assert len(world.far.locks) == 1

    run(scenario)


def test_a_broker_that_keeps_silent_holds_up_no_renewal_at_another_however_long_a_request_may_take() -> None:
    async def scenario(world: LockCluster) -> None:
        await world.leases.acquire([A, FAR])
        world.far.silent = True
        await asyncio.sleep(130)
        assert [queue for _, queue in world.lost] == [FAR]
        assert world.leases.valid(A, world.sim.loop.time())

    run(scenario, config=ClientConfig(remoting=RemotingConfig(request_timeout=60.0)))


def test_a_half_open_link_ends_the_lease_30_s_after_the_last_renewal_was_sent() -> None:
    async def scenario(world: LockCluster) -> None:
        loop = world.sim.loop
        await world.leases.acquire([A, FAR])
        began = loop.time()
        await asyncio.sleep(25)
        world.near.silent = True
        (renewed, _) = world.near.locks[-1]
        while not world.lost:
            assert world.leases.valid(A, loop.time())
            await asyncio.sleep(0.25)
        assert not world.leases.valid(A, loop.time())
        assert [queue for _, queue in world.lost] == [A]
        assert world.lost[0][0] == pytest.approx(renewed + 30, abs=0.11)
        assert world.lost[0][0] - began == pytest.approx(50, abs=0.2)
        # It is asked for again from time to time; the other broker's queue was never in doubt.
        held: list[float] = []
        world.leases.when_valid(A, lambda: held.append(loop.time()))
        await asyncio.sleep(10)
        world.near.silent = False
        back = loop.time()
        await asyncio.sleep(7)
        assert world.leases.valid(A, loop.time()) and len(held) == 1 and held[0] - back < 6.5
        assert len(world.lost) == 1

    run(scenario)


def test_a_queue_that_is_not_returned_is_lost_at_once_and_tried_again_soon() -> None:
    async def scenario(world: LockCluster) -> None:
        loop = world.sim.loop
        await world.leases.acquire([A, B])
        world.near.refused = {B}
        await asyncio.sleep(20.5)
        assert [queue for _, queue in world.lost] == [B]
        assert world.leases.valid(A, loop.time())
        # 10 ms later, then every 3 s.
        assert [ids for _, ids in world.near.locks] == [[0, 1], [0, 1], [1]]
        world.near.refused, world.near.epoch = set(), 9
        await asyncio.sleep(3)
        assert world.leases.valid(B, loop.time())
        assert (world.leases.epoch(A), world.leases.epoch(B)) == (7, 9)

    run(scenario)


def test_a_broker_without_epochs_is_fine() -> None:
    async def scenario(world: LockCluster) -> None:
        world.near.epoch = None
        assert await world.leases.acquire([A]) == {A}
        assert world.leases.epoch(A) is None
        called: list[int] = []
        world.leases.when_valid(A, lambda: called.append(1))
        assert called == [1]

    run(scenario)


def test_a_release_waits_for_the_handler_that_runs() -> None:
    async def scenario(world: LockCluster) -> None:
        await world.leases.acquire([A, B])
        world.leases.hold_back(A)
        await world.leases.release(A)
        await asyncio.sleep(5)
        assert world.near.unlocks == []
        await world.leases.let_go(A)
        assert [ids for _, ids in world.near.unlocks] == [[0]]
        await world.leases.acquire([A])
        world.leases.hold_back(A)  # by two listeners of the topic
        world.leases.hold_back(A)
        await world.leases.release(A)
        await world.leases.let_go(A)
        assert len(world.near.unlocks) == 1
        await world.leases.let_go(A)
        assert len(world.near.unlocks) == 2
        # One that comes back meanwhile is held in its own right, and stays.
        world.leases.hold_back(B)
        await world.leases.release(B)
        assert await world.leases.acquire([B]) == {B}
        await world.leases.let_go(B)
        await asyncio.sleep(45)
        assert len(world.near.unlocks) == 2
        assert world.leases.valid(B, world.sim.loop.time())

    run(scenario)


def test_a_queue_that_is_being_given_back_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unlock waits for its connection: a lock that overtook it would be freed by it, and trusted here."""

    async def scenario(world: LockCluster) -> None:
        await world.leases.acquire([A, B])
        connect, waits = world.client.session.connection, [1.0]

        async def connection(address: str) -> Connection:
            if waits:
                await asyncio.sleep(waits.pop())
            return await connect(address)

        monkeypatch.setattr(world.client.session, "connection", connection)
        giving_back = world.scope.start(world.leases.release(A), name="giving-back")
        await asyncio.sleep(0.5)
        assert await world.leases.acquire([A, B]) == {B}
        assert [ids for _, ids in world.near.locks] == [[0, 1], [1]] and world.near.unlocks == []
        await giving_back
        assert [ids for _, ids in world.near.unlocks] == [[0]]
        assert await world.leases.acquire([A]) == {A}

    run(scenario)


def test_a_lock_whose_request_was_not_answered_is_given_back_when_it_is_not_wanted_any_more() -> None:
    """The broker may have granted it; nobody else would get it for a minute."""

    async def scenario(world: LockCluster) -> None:
        world.near.silent = True
        assert await world.leases.acquire([A, B]) == set()
        world.near.silent = False
        assert world.leases.strays({A}) == [B]
        await world.leases.release(B)
        assert [ids for _, ids in world.near.unlocks] == [[1]]
        assert world.leases.strays({A}) == []
        assert await world.leases.acquire([A]) == {A}
        assert world.leases.strays(set()) == [A]

    run(scenario)


def test_close_gives_back_everything_at_once_and_takes_no_more() -> None:
    async def scenario(world: LockCluster) -> None:
        await world.leases.acquire([A, FAR])
        world.near.silent = True
        asking = world.scope.start(world.leases.acquire([B]), name="asking")
        await asyncio.sleep(0.5)
        await world.leases.close()
        assert [ids for _, ids in world.near.unlocks] == [[0, 1]]
        assert [ids for _, ids in world.far.unlocks] == [[0]]
        assert await world.leases.acquire([A]) == set()
        assert await asking == set()

    run(scenario)


def test_the_three_times_must_be_in_order() -> None:
    for renew, validity in ((30, 30), (20, 60), (0, 30)):
        with pytest.raises(ConfigError, match="two members could own"):
            ConsumerConfig(lock_renew_interval=renew, lock_validity=validity)


def test_a_queue_that_comes_back_without_an_answer_is_not_taken_with_the_old_lock() -> None:
    """Given up while its handler runs, wanted again, the broker silent: that lock would go when the handler ends."""

    async def scenario(world: LockCluster) -> None:
        leases = world.leases
        assert await leases.acquire([A]) == {A}
        leases.hold_back(A)
        await leases.release(A)
        world.near.silent = True
        assert await leases.acquire([A]) == set()
        world.near.silent = False
        assert await leases.acquire([A]) == {A}
        await leases.let_go(A)
        assert leases.valid(A, world.sim.loop.time())
        assert world.near.unlocks == []

    run(scenario)
