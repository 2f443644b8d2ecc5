"""``at=``, ``after=`` and ``recall`` as a program uses them, against our own broker in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from aiorocket import OutgoingMessage, Producer, UsageError
from aiorocket.client.sending.transaction import TransactionProducer
from aiorocket.errors import NotConnectedError, RemoteError
from aiorocket.model import TxState
from aiorocket.testing import SimCluster, Simulation, simulate
from aiorocket_protocol import RecallHandle, RecordView


def run(scenario: Callable[[SimCluster, Producer], Awaitable[None]]) -> None:
    async def main(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            sender = await cluster.producer()
            await sim.host(sender.address).run(scenario(cluster, sender.producer))

    simulate(main)


def stored(cluster: SimCluster) -> list[RecordView]:
    return cluster.brokers[0].messages("t")


def test_at_and_after_deliver_to_the_millisecond_and_a_recalled_one_never() -> None:
    async def scenario(cluster: SimCluster, producer: Producer) -> None:
        now = datetime.fromtimestamp(cluster.sim.env().clock.wall_ms() / 1000, UTC)
        east = timezone(timedelta(hours=9))
        first = await producer.send("t", b"at", at=(now + timedelta(milliseconds=20_345)).astimezone(east))
        await producer.send("t", b"after", after=timedelta(milliseconds=10_500, microseconds=1))
        await producer.send(OutgoingMessage(topic="t", body=b"value", after=timedelta(minutes=1), tag="x"))
        taken = await producer.send("t", b"recalled", after=timedelta(seconds=30), sharding_key="k")
        assert (await producer.send("t", b"now")).recall_handle is None
        assert taken.recall_handle is not None and first.recall_handle is not None
        assert await producer.recall(taken.recall_handle) == taken.msg_id
        await asyncio.sleep(90)
        found = stored(cluster)
        assert [record.body for record in found] == [b"now", b"after", b"at", b"value"]
        due = round(now.timestamp() * 1000) + 20_345
        assert due <= found[2].store_timestamp <= due + 20
        with pytest.raises(RemoteError, match="was due"):
            await producer.recall(first.recall_handle)

    run(scenario)


def test_arguments_that_can_never_be_kept() -> None:
    async def scenario(cluster: SimCluster, producer: Producer) -> None:
        later = timedelta(seconds=1)
        timed = OutgoingMessage(topic="t", body=b"x", after=later)
        seconds: Any = 1.5
        calls: list[tuple[Callable[[], Awaitable[Any]], str]] = [
            (lambda: producer.send("t", b"x", at=datetime(2030, 1, 1)), "zone"),
            (lambda: producer.send("t", b"x", at=seconds), "zone"),
            (lambda: producer.send("t", b"x", after=-later), "0 or more"),
            (lambda: producer.send("t", b"x", after=seconds), r"after=1.5: .*timedelta\(seconds=5\)"),
            (lambda: producer.send("t", b"x", after=later, delay_level=1), "one of them"),
            (lambda: producer.send("t", b"x", after=later, at=datetime.now(UTC)), "one of them"),
            (lambda: producer.send(timed, after=later), "has them itself|itself"),
            (lambda: producer.send_batch("t", [timed]), "delivered at once"),
            (lambda: producer.send_oneway(timed), "delivered at once"),
            (lambda: producer.request(timed), "delivered at once"),
            (lambda: producer.recall("nonsense"), "recall_handle"),
        ]
        for call, words in calls:
            with pytest.raises(UsageError, match=words):
                await call()
        with pytest.raises(NotConnectedError, match="no master"):
            await producer.recall(str(RecallHandle("t", "elsewhere", 5, "u")))
        assert stored(cluster) == []

    run(scenario)


async def _unknown(message: Any) -> TxState:
    return TxState.UNKNOWN


def test_a_transaction_takes_no_time() -> None:
    producer = TransactionProducer("g", nameservers="127.0.0.1:1", checker=_unknown)
    with pytest.raises(UsageError, match="delivered at once"):
        producer.transaction(OutgoingMessage(topic="t", body=b"x", after=timedelta(seconds=1)))
