"""Room among the sends under way (``max_in_flight``): first come, first served, and no place is lost."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from random import Random
from typing import Any

import pytest

from aiorocket.client.middleware import Middleware
from aiorocket.client.sending.producer import Producer
from aiorocket.config import ProducerConfig
from aiorocket.errors import NotConnectedError, SendError, UsageError
from aiorocket.model import OutgoingMessage
from tests.client.fake_broker import FakeCluster, kept_by
from tests.client.test_selectors import run


def test_who_sends_without_a_pause_keeps_nobody_out() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        most = 0

        async def busy() -> None:
            nonlocal most
            while not other.done():
                await producer.send("t", b"busy")
                most = max(most, producer.in_flight)

        await producer.send("t", b"first")
        other: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        senders = [asyncio.ensure_future(busy()) for _ in range(2)]
        await asyncio.sleep(0.01)
        for _ in range(10):
            before = len(kept_by(cluster))
            await producer.send("t", b"other")
            # Its own, and those that were under way or in the line before it.
            assert len(kept_by(cluster)) - before <= 5
        other.set_result(None)
        await asyncio.gather(*senders)
        assert most <= 2

    run(scenario, brokers=1, config=ProducerConfig(max_in_flight=2))


def test_a_timeout_that_would_never_end_is_refused() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        for send in (producer.send, partial(producer.send, tag="x"), producer.send_oneway):
            with pytest.raises(UsageError, match="timeout=nan: a number of seconds"):
                await send("t", b"0", timeout=math.nan)
        assert producer.in_flight == 0

    run(scenario, brokers=1)


def test_who_is_let_in_and_sends_nothing_gives_the_place_on() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        await producer.send("t", b"0")
        calls = [
            asyncio.ensure_future(call)
            for call in (
                producer.send("t", b"1"),
                producer.send("t", b"refused", tag=" "),
                producer.send("t", b"refused", sharding_key="k", tag=" "),
                producer.send_oneway("new", b"o"),
                producer.send("t", b"2"),
            )
        ]
        cluster.topics["new"] = cluster.brokers
        one, two, three, four, five = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(two, UsageError)
        assert isinstance(three, UsageError)
        assert not [ended for ended in (one, four, five) if isinstance(ended, BaseException)]
        await producer.flush()
        assert producer.in_flight == 0

    run(scenario, brokers=1, config=ProducerConfig(max_in_flight=1))


@pytest.mark.seeds(10)
def test_places_are_never_lost_nor_more_than_allowed(seed: int) -> None:
    """Whoever waits is cancelled, times out, or is refused at any moment: the others are sent, each key in order."""
    dice = Random(seed)

    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        (broker,) = cluster.brokers
        sent, most = 0, 0

        async def send(number: int) -> bool:
            nonlocal sent
            key = dice.choice((None, "a", "b"))
            try:
                receipt = await producer.send(
                    "t", b"%d" % number, sharding_key=key, tag=dice.choice(("", "", "", " ")),
                    timeout=dice.choice((0.004, 30.0)), properties={"key": key or ""},
                )  # fmt: skip
            except (UsageError, SendError):
                return False
            sent += bool(receipt.msg_id)
            return True

        calls = []
        for number in range(200):
            calls.append(asyncio.ensure_future(send(number)))
            if dice.random() < 0.3:
                dice.choice(calls).cancel()
            await asyncio.sleep(dice.choice((0, 0, 0.0005, 0.003)))
            most = max(most, producer.in_flight)
        await asyncio.gather(*calls, return_exceptions=True)
        await producer.flush()
        assert producer.in_flight == 0
        assert (most, sent > 50) == (2, True)
        for key in ("a", "b"):
            numbers = [int(kept.body) for kept in broker.kept if kept.properties.get("key") == key]
            assert numbers == sorted(numbers)
        # And there is room for as many as before.
        await asyncio.gather(*(producer.send("t", b"%d" % number) for number in range(10)))

    run(scenario, brokers=1, config=ProducerConfig(max_in_flight=2))


def test_a_flush_ends_when_the_last_in_a_keys_line_goes_away() -> None:
    """It was given its turn, and was cancelled before it could take it."""

    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        await producer.send("t", b"0")
        async with producer.sender.turn("t", "k", asyncio.get_running_loop().time() + 5):
            second = asyncio.ensure_future(producer.send("t", b"2", sharding_key="k"))
            await asyncio.sleep(0)
            flushed = asyncio.ensure_future(producer.flush())
            await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait_for(flushed, 1)
        assert second.cancelled()

    run(scenario, brokers=1)


def test_a_stop_waits_for_sends_that_still_look_for_their_topic() -> None:
    """They have begun: each ends in a receipt."""

    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        sends = [asyncio.ensure_future(producer.send("t", b"%d" % n)) for n in range(3)]
        sends.append(asyncio.ensure_future(producer.send_oneway("t", b"3")))  # type: ignore[arg-type]  # of text
        await asyncio.sleep(0)
        assert producer.in_flight == 0
        await producer.stop()
        assert all(each.done() for each in sends)
        await asyncio.gather(*sends)
        assert len(kept_by(cluster)) == 4

    run(scenario, brokers=1)


def test_a_send_that_ends_without_an_outcome_ends_an_ordered_stream() -> None:
    """The others had no room while its outcome, which was next, was not taken."""

    class Breaking(Middleware):
        async def publish(self, messages: list[OutgoingMessage], call_next: Any) -> Any:
            if messages[0].body == b"3":
                raise asyncio.CancelledError  # as what it awaited, and somebody had cancelled
            return await call_next(messages)

    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        bodies, came = [b"%d" % number for number in range(40)], []
        async with asyncio.timeout(60):
            with pytest.raises(RuntimeError, match="CancelledError"):
                async for outcome in producer.send_many("t", bodies, ordered=True, in_flight=2):
                    came.append(outcome.number)
        assert came == [0, 1, 2]

    run(scenario, brokers=1, middleware=[Breaking()])


def test_a_client_that_is_stopped_first_fails_sends_and_cancels_none() -> None:
    """Nobody cancelled who waits for the route: a TaskGroup would take that as an end without an error."""

    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        send = asyncio.ensure_future(producer.send("t", b"0", timeout=1))
        await asyncio.sleep(0)
        await producer.client.stop()
        with pytest.raises(SendError, match="was stopped") as failed:
            await send
        assert not failed.value.may_be_stored
        assert not kept_by(cluster)

    run(scenario, brokers=1)


def test_a_request_of_a_client_that_is_stopped_fails_as_a_send_does() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        await producer.send("t", b"0")
        await producer.client.stop()
        with pytest.raises(SendError, match="closed") as failed:
            await producer.request("t", b"1", timeout=1)
        assert not failed.value.may_be_stored

    run(scenario, brokers=1)


def test_a_client_that_is_stopped_fails_who_waits_for_its_registration() -> None:
    async def scenario(cluster: FakeCluster, producer: Producer) -> None:
        (broker,) = cluster.brokers
        broker.silent = True
        session = producer.sender.client
        waiting = [asyncio.ensure_future(session.member_connection(broker.address)) for _ in range(2)]
        while not broker.told:
            await asyncio.sleep(0.001)
        await producer.client.stop()
        for each in waiting:
            with pytest.raises(NotConnectedError, match="was stopped"):
                await each

    run(scenario, brokers=1)


def test_a_flush_before_the_start_has_nothing_to_wait_for() -> None:
    flush = Producer("p", nameservers="127.0.0.1:1").flush()
    with pytest.raises(StopIteration) as ended:  # at the first step, which needs no loop
        flush.send(None)
    assert ended.value.value is None
