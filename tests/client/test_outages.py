"""A broker that is away, in the log: few lines, whatever the number of queues."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aiorocket.client.core.outages import Outages
from aiorocket.errors import ConnectionLostError, NotConnectedError, RemoteError
from aiorocket.testing import SimCluster, Simulation, simulate


def test_what_is_said_and_when() -> None:
    outages = Outages()
    gone, refused = ConnectionLostError("it ended"), NotConnectedError("refused")
    assert outages.answered("a", 0.0, everything=True) is None and not outages.open
    first = outages.failed("a", "pulling q", gone, 10.0)
    assert first == "pulling q: it ended (more of this from broker a is counted, and told once a minute)"
    assert [outages.failed("a", "pulling q", refused, 10.0 + each) for each in range(1, 60)] == [None] * 59
    assert outages.failed("a", "committing q", refused, 70.0) == (
        "broker a fails for 60 s now, 60 times since the last line; committing q: refused"
    )
    busy = outages.failed("a", "pulling q", RemoteError(2, "busy"), 71.0)  # another cause
    assert busy is not None and "busy" in busy
    assert outages.failed("b", "pulling q", gone, 72.0) is not None  # another broker
    # Another queue's success says nothing of what is refused for this one.
    assert outages.answered("a", 80.0, everything=False) == "broker a answers again, after 70 s"
    assert outages.failed("a", "pulling q", RemoteError(2, "busy"), 80.0) is None
    assert outages.answered("a", 81.0, everything=True) == "broker a answers again, after 10 s"
    assert outages.answered("a", 82.0, everything=True) is None and list(outages.open) == ["b"]
    silent = outages.failed("c", "locking 2 queues", TimeoutError(), 90.0)  # as asyncio's are: without words
    assert silent is not None and silent.startswith("locking 2 queues: no answer in time (")
    late = outages.failed("b", "pulling q", gone, 400.0)  # what nobody has heard of for minutes begins anew
    assert late is not None and late.startswith("pulling q")


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("power_cut", [False, True], ids=["refused", "silent"])
def test_a_hundred_queues_of_a_broker_that_is_away_make_two_warnings_a_minute(
    caplog: pytest.LogCaptureFixture, power_cut: bool, orderly: bool
) -> None:
    times: list[float] = []

    async def scenario(sim: Simulation) -> None:
        class Stamp(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if record.levelno >= logging.WARNING:
                    times.append(sim.loop.time())

        stamp = Stamp()
        logging.getLogger("aiorocket.client").addHandler(stamp)
        try:
            async with SimCluster(sim, brokers=2) as cluster:
                await cluster.create_topic("orders", 100)
                await cluster.consumer("billing", "orders", orderly=orderly)
                sender = await cluster.producer()
                for number in range(20):
                    await sender.send("orders", str(number))
                await asyncio.sleep(30)
                assert not times
                down = sim.loop.time()
                cluster.brokers[0].kill(power_cut=power_cut)
                await asyncio.sleep(300)
                up = sim.loop.time()
                assert times
                while_away = [time for time in times if time >= down]
                for begin in range(0, 300, 60):
                    assert len([each for each in while_away if begin <= each - down < begin + 60]) <= 2, while_away
                await cluster.brokers[0].start()
                await asyncio.sleep(120)
                assert len([time for time in times if time >= up]) <= 3
        finally:
            logging.getLogger("aiorocket.client").removeHandler(stamp)

    simulate(scenario)
    said = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len([each for each in said if "broker-1 answers again" in each]) == 1
