"""Limits on what each topic may have a second."""

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
from aiorocket_protocol import RequestCode, encode_batch
from tests.broker.peer import Peer, running, send_header
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


@pytest.mark.parametrize("change", [{"topic_messages": -1.0}, {"topic_bytes": float("nan")}, {"topic_bytes": "9"}])
def test_a_rate_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"RateLimits.{next(iter(change))}="):
        RateLimits(**change)


async def test_without_a_limit_the_handlers_are_what_they_were() -> None:
    async with running() as broker:
        handlers = broker.server.processors._handlers
        assert {handlers[code].__qualname__.split(".")[0] for code in SENDS} == {"SendHandlers"}


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
