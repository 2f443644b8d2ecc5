"""Limits on what each topic and each group may have a second."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.broker.core.rates import BURST, Rate
from aiorocket.config import BrokerConfig, RateLimits
from aiorocket.errors import ConfigError
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import RequestCode, decode_configuration, encode_batch, encode_configuration
from tests.broker.peer import Peer, records, running, send_header, span
from tests.broker.test_pop import pop_header
from tests.broker.test_sim import SimPeer, config, started

SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


@given(
    st.floats(0.1, 1e6),
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3), st.floats(0.01, 5)), max_size=60),
)
def test_no_more_than_the_rate_passes_in_any_time(per_second: float, asked: list[tuple[str, float, float]]) -> None:
    """Amounts are in seconds of the rate. Whoever waits as long as it is told passes."""
    rate, now = Rate(per_second), 1000.0
    passed: dict[str, list[tuple[float, float]]] = {"a": [], "b": []}
    for name, pause, seconds in asked:
        now += pause
        if rate.wait(name, now):
            waited = now + rate.wait(name, now)
            assert rate.wait(name, waited) < 1e-6 and rate.wait("other", now) == 0
            continue
        rate.spend(name, seconds * per_second, now)
        passed[name].append((now, seconds))
    for done in passed.values():
        for first in range(len(done)):
            for last in range(first, len(done)):
                had = sum(seconds for _, seconds in done[first:last])  # and the last, whatever it took
                assert had <= done[last][0] - done[first][0] + BURST + 1e-6


def test_names_that_are_quiet_are_not_kept() -> None:
    rate = Rate(10)
    for number in range(100_000):
        rate.spend(f"t{number}", 1, number / 1000)
    assert len(rate) < 2100


def test_what_was_taken_too_much_at_another_rate_is_not_waited_for() -> None:
    """One byte a second was a slip of the pen: the 4 MiB that passed at it are not 48 days of silence."""
    rate = Rate(1)
    rate.spend("t", 4 << 20, 0.0)
    rate.change(1)
    assert rate.wait("t", 0.0) > 4e6
    rate.change(1e6)
    assert rate.wait("t", 0.0) == 0
    rate.spend("t", 3e6, 0.0)
    rate.change(0)
    rate.change(1e6)
    assert rate.wait("t", 0.0) == 0


@pytest.mark.parametrize("change", [{"topic_messages": -1.0}, {"topic_bytes": float("nan")}, {"topic_bytes": "9"}])
def test_a_rate_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"RateLimits.{next(iter(change))}="):
        RateLimits(**change)


async def test_without_a_limit_the_handlers_are_what_they_were() -> None:
    async with running() as broker:
        handlers = broker.server.processors._handlers
        assert {handlers[code].__qualname__.split(".")[0] for code in SENDS} == {"SendHandlers"}
        assert {handlers[code].__qualname__ for code in (11, 361, 200050)} == {"PullHandlers.pull", "PopHandlers.pop"}


def test_a_topic_gets_its_rate_and_another_its_own() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config(rates=RateLimits(topic_messages=10)))
        peer = SimPeer(sim, broker.address)
        begin, stored = sim.loop.time(), 0
        remarks = set()
        while sim.loop.time() - begin < 20:
            answer = await peer.send()
            stored += answer.code == 0
            if answer.code:
                assert answer.code == 2
                remarks.add((answer.remark or "").split(", and has")[0])
            await asyncio.sleep(0.01)
        assert 10 * 19 <= stored <= 10 * (sim.loop.time() - begin + BURST) + 1
        assert remarks == {
            "[OVERLOAD]system busy, start flow control for a while: topic T may have 10 messages a second at this "
            "broker (rates.topic_messages)"
        }
        assert broker.store.max_offset("T", 0) == stored  # nothing of what was refused
        assert (await peer.send(topic="Other")).code == 0
        await peer.close()
        await host.run(broker.close())

    simulate(main)


async def test_what_counts() -> None:
    """Each message of a batch; bytes of bodies and properties. Retries pass, and what was refused does not count."""
    batch = encode_batch([(b"x", 0, b"")] * 3)
    async with running(BrokerConfig(port=0, rates=RateLimits(topic_messages=0.002, topic_bytes=1000))) as broker:
        peer = await Peer.connect(broker.port)
        for code in (310, 320):
            topic = f"T{code}"
            assert (await peer.call(code, send_header(topic=topic, batch=True), batch)).code == 0
            again = await peer.call(code, send_header(topic=topic, batch=True), batch)
            assert again.code == 2 and "(rates.topic_messages)" in (again.remark or "")
            assert 3 / 0.002 - 60 < float((again.remark or "").split()[-2]) <= 3 / 0.002
        refused = [(await peer.send(topic="Small", queue_id=99)).code for _ in range(3)]
        assert refused == [29] * 3 and (await peer.send(topic="Small")).code == 0
        assert (await peer.create_topic("%RETRY%g")).code == 0
        for _ in range(3):
            assert (await peer.send(topic="%RETRY%g")).code == 0
        await peer.close()
    async with running(BrokerConfig(port=0, rates=RateLimits(topic_bytes=0.5))) as broker:
        peer = await Peer.connect(broker.port)
        assert (await peer.send(b"x" * 100, {"a": "b" * 97})).code == 0
        more = await peer.send()
        assert more.code == 2 and "may have 0.5 bytes a second" in (more.remark or "")
        assert 330 < float((more.remark or "").split()[-2]) <= 400
        await peer.close()


def test_a_group_gets_its_rate_and_everything() -> None:
    """Four queues of a group, one pull after the other of each: none spins, none is left behind, nothing is left
    out."""

    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config(rates=RateLimits(group_messages=10)))
        peer = SimPeer(sim, broker.address)
        for number in range(200):
            await peer.send(b"%d" % number, queue_id=number % 4)
        begin, asked = sim.loop.time(), 0
        got: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(4)}
        ended: list[float] = []

        async def consume(queue_id: int) -> None:
            nonlocal asked
            while len(got[queue_id]) < 50:
                asked += 1
                answer = await peer.pull("T", queue_id, len(got[queue_id]))
                assert answer.code in (0, 20)
                got[queue_id] += [record.body for record in records(answer)] if not answer.code else []
                passed = sum(map(len, got.values()))
                assert passed <= 10 * (sim.loop.time() - begin + 2 * BURST)
            ended.append(sim.loop.time())

        await asyncio.gather(*map(consume, range(4)))
        assert got == {queue_id: [b"%d" % n for n in range(queue_id, 200, 4)] for queue_id in range(4)}
        assert ended[0] - begin > 15 and 17 < ended[-1] - begin < 25 and asked < 150
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_pull_above_the_rate_waits_as_long_as_its_client_does() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config(rates=RateLimits(group_messages=0.01)))
        peer = SimPeer(sim, broker.address)
        for _ in range(3):
            await peer.send()
        assert len(records(await peer.pull())) == 1  # its share, but one at least
        begin = sim.loop.time()
        answer = await peer.pull(offset=1, suspend_timeout_millis=5_000)
        assert answer.code == 20 and span(answer)[1:4] == (1, 0, 3)
        assert 5 <= sim.loop.time() - begin < 5.3
        asked = sim.loop.time()
        busy = await peer.pull(offset=1, sys_flag=4)
        assert 1 <= sim.loop.time() - asked < 1.3
        assert busy.code == 2 and "group g may have 0.01 messages a second" in (busy.remark or "")
        assert (await peer.pull(offset=1, consumer_group="other")).code == 0
        popped = await peer.call(200050, pop_header(poll_time=2_000))
        assert popped.code == 210 and sim.loop.time() - begin > 7
        later = await peer.pull(offset=1, suspend_timeout_millis=30_000)
        later = later if later.code == 0 else await peer.pull(offset=1, suspend_timeout_millis=30_000)
        held = asyncio.ensure_future(peer.pull("nothing", 7))
        lost = SimPeer(sim, broker.address, "10.0.0.8")
        gone = asyncio.ensure_future(lost.pull())
        await asyncio.sleep(1)
        rates = broker._parts.rates if broker._parts else None
        assert rates is not None and rates.held.count == 2
        await lost.close()
        await asyncio.gather(gone, return_exceptions=True)
        await asyncio.sleep(1)
        assert rates.held.count == 1
        await host.run(broker.close())  # which answers it
        assert (await held).code == 20
        await peer.close()

    simulate(main)


async def test_a_pop_above_the_rate_is_served_when_there_is_room() -> None:
    async with running(rates=RateLimits(group_messages=20)) as broker:
        peer = await Peer.connect(broker.port)
        for _ in range(60):
            await peer.send()
        begin, got = asyncio.get_running_loop().time(), 0
        while got < 50:
            answer = await peer.call(200050, pop_header(poll_time=15_000))
            assert answer.code == 0
            got += len(records(answer))
        assert asyncio.get_running_loop().time() - begin > 0.4
        await peer.close()


def test_a_group_gets_its_bytes_and_everything() -> None:
    """By pulls that find messages at once, and by pulls that wait for them."""

    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config(rates=RateLimits(group_bytes=10_000)))
        peer = SimPeer(sim, broker.address)
        for number in range(40):
            await peer.send(b"%04d" % number * 250, queue_id=number % 2)
        begin, taken, size = sim.loop.time(), 0, 0
        for queue_id in (0, 1):
            offset = 0
            while offset < 20:
                answer = await peer.pull("T", queue_id, offset, max_msg_nums=3)
                found = records(answer) if answer.code == 0 else []
                offset, taken = offset + len(found), taken + len(found)
                size += len(answer.body)
                allowed = 10_000 * (sim.loop.time() - begin + BURST) + len(answer.body)
                assert size <= allowed, (size, allowed)
        assert taken == 40 and 2 < sim.loop.time() - begin < 6
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_rates_change_at_run_time_and_outlive_the_broker() -> None:
    """What waits under the old limit goes on under the new one; what was delivered without one is not paid for."""

    async def main(sim: Simulation) -> None:
        env = sim.env()
        local = config(host="127.0.0.1", advertise="10.0.0.1")  # it serves administration
        host, broker = await started(sim, env, local)
        peer = SimPeer(sim, "10.0.0.1:10911")

        async def change(**values: object) -> int:
            body = encode_configuration({name: str(value) for name, value in values.items()})
            return (await peer.call(25, None, body)).code

        for number in range(100):
            await peer.send(b"%d" % number)
        assert len(records(await peer.pull("T", 0, 0))) == 32
        assert await change(groupMessageRate=1, topicMessageRate="0.1", groupByteRate=10**6) == 0
        begin = sim.loop.time()
        assert (await peer.send()).code == 0 and (await peer.send()).code == 2
        assert len(records(await peer.pull("T", 0, 32))) == 1 and sim.loop.time() - begin < 1
        for _ in range(3):
            await peer.pull("T", 0, 33, max_msg_nums=1)
        waiting = asyncio.ensure_future(peer.pull("T", 0, 33, max_msg_nums=1))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert await change(groupMessageRate=0, groupByteRate=0, topicMessageRate=0) == 0
        assert records(await waiting) and sim.loop.time() - begin < 12
        assert await change(groupMessageRate="0.01") == 0
        await peer.pull("T", 0, 33, max_msg_nums=1)
        impatient = asyncio.ensure_future(peer.pull("T", 0, 33, max_msg_nums=1, sys_flag=4))
        await asyncio.sleep(0.5)
        assert not impatient.done()
        assert await change(groupMessageRate=0) == 0
        assert records(await impatient), "it is not told of a limit that is none"
        assert len(records(await peer.pull("T", 0, 33))) == 32 and (await peer.send()).code == 0
        for bad in ("-1", "nan", "much", "inf"):  # refused
            assert await change(groupByteRate=bad) != 0
        assert await change(topicByteRate="12.5", groupByteRate=7) == 0
        shown = decode_configuration((await peer.call(26)).body)
        assert (shown["topicByteRate"], shown["groupByteRate"], shown["groupMessageRate"]) == ("12.5", "7", "0")
        await peer.close()
        await host.run(broker.close())
        host, broker = await started(sim, env, local)
        peer = SimPeer(sim, "10.0.0.1:10911")
        assert (await peer.send(b"x" * 20)).code == 0 and (await peer.send()).code == 2
        await peer.close()
        await host.run(broker.close())

    simulate(main)
