"""A plain send ends as every other send does, and leaves the same bytes and state, whatever comes.

Python's way of it is compared, and the compiled one where the distribution in protocol/speedups is installed (see
tests/protocol/test_speedups.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorocket import Client, ClientConfig, Producer, ProducerConfig, RocketError, SendReceipt
from aiorocket.client.sending import plain_send
from aiorocket.client.sending.send_hooks import SendContext
from aiorocket.remoting.connection import Connection, Plain
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import JSON, MSGPACK, RemotingCommand
from aiorocket_protocol.fast import compiled
from tests.client.fake_broker import NAMES, FakeCluster, Kept

needs_compiled = pytest.mark.skipif(
    compiled("ProducerSends") is None, reason="aiorocketmq-speedups is not installed (pip install ./protocol/speedups)"
)
#: Who takes plain sends, and who the answers from the first of them on, by name.
WAYS: dict[str, tuple[Any, Plain | None]] = {"python": (lambda _name: None, None)}
if compiled("ProducerSends") is not None:
    WAYS["compiled"] = compiled, compiled("take_answers")
each_way = pytest.mark.parametrize("way", WAYS)

_JULY = 1_782_900_000_000
_MONTH = 31 * 86_400_000


class Jumping:
    """A wall clock that says what a test wants, and then goes on by a millisecond a look."""

    def __init__(self, times: Sequence[int]) -> None:
        self.times = list(times)
        self.now = _JULY

    def wall_ms(self) -> int:
        self.now = self.times.pop(0) if self.times else self.now + 1
        return self.now


class Send(NamedTuple):
    size: int = 1
    timeout: float | None = None
    cancelled: bool = False
    options: Mapping[str, Any] = MappingProxyType({})


class Begun:
    """Counts the sends that a way took."""

    def __init__(self, begin: Any) -> None:
        self.begin = begin
        self.count = 0

    def __call__(self, *arguments: Any) -> Any:
        sent = self.begin(*arguments)
        self.count += sent is not None
        return sent


def answer(broker: Any, kept: Kept, kind: str) -> RemotingCommand | None:
    stored = broker.stored()
    if kind == "silence":
        return None
    if kind == "lost":
        kept.connection.abort("as the test wants")
        return None
    if kind in ("twice", "astray", "json"):
        more = stored
        more.flag |= 1
        more.opaque = kept.opaque + (kind == "astray")
        kept.connection.send(more, JSON if kind == "json" else MSGPACK)
        return None if kind == "json" else broker.stored()
    if kind.isdigit():
        return RemotingCommand.response(int(kind), stored.header, remark="scripted")
    fields = (*stored.header, *(None,) * (8 - len(stored.header)))
    odd = {
        "text": (fields[0], str(fields[1]), str(fields[2]), *fields[3:]),
        "more": (*fields, "of a newer peer"),
        "fewer": fields[:3],
        "none": (),
        "nil": (None, *fields[1:]),
        "large": (*fields[:2], 2**63, *fields[3:]),
        "queue": (fields[0], 2**31, *fields[2:]),
        "flag": (*fields[:3], True, *fields[4:]),
        "handle": (*fields[:5], "handle", *fields[6:]),
        "other": (fields[0], 7, *fields[2:]),
        "ext": fields,
    }
    if kind not in odd:
        return stored
    return RemotingCommand.response(0, odd[kind], ext={"more": "said"} if kind == "ext" else None)


def outcome(
    sends: list[Send],
    answers: list[str],
    times: list[int],
    *,
    way: str,
    left: int = 9,
    most: int = 16,
    opaque: int = 5,
) -> tuple[list[Any], int]:
    """How the sends end, and how many of them went the plain way called ``way``; none if that is empty."""
    found: list[Any] = []
    begun = Begun(None)

    async def main(sim: Simulation) -> None:
        env = replace(sim.env(), clock=Jumping(times))
        config = ProducerConfig(max_in_flight=most, send_timeout=20, retries=1)
        script = list(answers)

        async def scene() -> None:
            broker = cluster.brokers[0]
            client = Client(config=ClientConfig(nameservers=(NAMES,)), env=env)
            async with client, Producer("p", client=client, config=config) as producer:
                # The first send negotiates and opens the topic.
                found.append(await producer.send("t", b"first"))
                ids = producer.sender.ids
                ids._stop = ids._count + left
                begun.begin, producer.sender.plain = producer.sender.plain, begun if way else None
                connection = client.session.remoting.live(broker.address)
                assert connection is not None
                connection.plain = WAYS[way][1] if way else None
                connection._opaque = opaque
                tasks: list[asyncio.Task[Any]] = []

                def on_send(kept: Kept) -> RemotingCommand | None:
                    kind = script.pop(0) if script else "stored"
                    if kind == "cancel":  # while it is on its way, and so is its answer
                        next((task for task in tasks if not task.done()), tasks[0]).cancel()
                    return answer(broker, kept, kind)

                broker.on_send = on_send

                async def one(send: Send) -> Any:
                    try:
                        return await producer.send("t", b"b" * send.size, timeout=send.timeout, **send.options)
                    except RocketError as error:
                        return f"{type(error).__name__}: {error} {getattr(error, 'may_be_stored', '')}"

                tasks += [asyncio.create_task(one(send)) for send in sends]
                await asyncio.sleep(0)
                for send, task in zip(sends, tasks, strict=True):
                    if send.cancelled:
                        task.cancel()
                found.append((connection._opaque, sorted(connection._requests), len(connection._timeouts)))
                found.extend(await asyncio.gather(*tasks, return_exceptions=True))
                await producer.flush()
                found.append((producer.in_flight, connection.pending, connection.close_reason))
                found.append((connection._opaque, asyncio.get_running_loop().time()))
            found.extend((kept.header, kept.body) for kept in broker.kept)

        async with FakeCluster(sim, 1) as cluster:
            with patch.object(plain_send, "compiled", WAYS[way or "python"][0]):
                await sim.host("10.0.1.1").run(scene())

    simulate(main)
    return [repr(each) for each in found], begun.count


SENDS = st.lists(
    st.builds(
        Send,
        st.sampled_from([0, 1, 1000, 4095, 4096]),
        st.sampled_from([None, None, 0.5, 3]),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([{}, {}, {}, {"tag": "A"}, {"keys": ["k"]}, {"sharding_key": "k"}, {"delay_level": 1}]),
    ),
    min_size=1,
    max_size=8,
)
_KINDS = (
    "stored", "stored", "twice", "astray", "json", "cancel", "silence", "lost", "text", "more", "fewer", "none", "nil",
    "large", "queue", "flag", "handle", "other", "ext", "1", "2", "10", "11", "13", "17",
)  # fmt: skip
ANSWERS = st.lists(st.sampled_from(_KINDS), max_size=8)
TIMES = st.lists(
    st.sampled_from([_JULY, _JULY, _JULY + 1, _JULY - 5, _JULY + _MONTH, _JULY + 3 * _MONTH, 0]), max_size=8
)


@each_way
@given(
    SENDS, ANSWERS, TIMES, st.sampled_from([0, 1, 3, 0x10000]), st.sampled_from([1, 3, 16]),
    st.sampled_from([5, 126, 254, 0xFFFE, 0x7FFF_FFFD]),
)  # fmt: skip
@settings(max_examples=2 * settings.default.max_examples // 5, deadline=None)
def test_nothing_differs(
    way: str, sends: list[Send], answers: list[str], times: list[int], left: int, most: int, opaque: int
) -> None:
    plain, _ = outcome(sends, answers, times, way=way, left=left, most=most, opaque=opaque)
    single, _ = outcome(sends, answers, times, way="", left=left, most=most, opaque=opaque)
    assert plain == single


@each_way
@pytest.mark.parametrize("opaque", [126, 254, 0xFFFE, 0x7FFF_FFFD])
def test_opaques_grow_and_begin_anew(way: str, opaque: int) -> None:
    sends = [Send()] * 4
    plain, count = outcome(sends, [], [_JULY] * 9, way=way, opaque=opaque)
    assert count == len(sends) and plain == outcome(sends, [], [_JULY] * 9, way="", opaque=opaque)[0]


@each_way
def test_what_is_plain_is_taken_and_nothing_else(way: str) -> None:
    _, count = outcome([Send(), Send(4095), Send(4096), Send(options={"tag": "A"})], [], [], way=way)
    assert count == 2


@pytest.mark.parametrize("name", ["max_in_flight", "compress_over"])
def test_a_number_that_no_machine_has_goes_the_pure_way(name: str) -> None:
    async def main(sim: Simulation) -> None:
        async def scene() -> None:
            limits: dict[str, Any] = {name: 1 << 64}
            config = ProducerConfig(**limits)
            client = Client(config=ClientConfig(nameservers=(NAMES,)), env=sim.env())
            async with client, Producer("p", client=client, config=config) as producer:
                for body in (b"negotiates", b"plain"):
                    await producer.send("t", body)

        async with FakeCluster(sim, 1):
            await sim.host("10.0.1.1").run(scene())

    simulate(main)


@needs_compiled
def test_without_memory_for_its_receipt_a_send_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [True]

    def receipt(fields: tuple[Any, ...]) -> SendReceipt:
        if failing and failing.pop():
            raise MemoryError
        return SendReceipt(*fields)

    monkeypatch.setattr(plain_send, "partial", lambda *_: receipt)
    monkeypatch.setattr(Connection, "buffer_updated", _as_a_loop_does)
    (_, _, sent, (*_,), *_), count = outcome([Send()], [], [], way="compiled")
    assert count == 1 and not failing and sent.startswith(SendReceipt.__name__)


_updated = Connection.buffer_updated


def _as_a_loop_does(connection: Connection, nbytes: int) -> None:
    try:
        _updated(connection, nbytes)
    except MemoryError:
        connection.abort("a loop ends a connection whose protocol fails")


@each_way
def test_a_receipt_is_one(way: str) -> None:
    (first, _, second, *_), _ = outcome([Send()], ["handle"], [], way=way)
    assert first.startswith(SendReceipt.__name__)
    assert "queue_id=" in second and "recall_handle=None" in second


@pytest.mark.parametrize("namespace", ["", "ns"])
def test_a_namespace_goes_the_pure_way(namespace: str) -> None:
    # Every message says it in a property.
    async def main(sim: Simulation) -> None:
        async def scene() -> None:
            client = Client(config=ClientConfig(nameservers=(NAMES,), namespace=namespace), env=sim.env())
            async with client, Producer("p", client=client) as producer:
                await producer.send("t", b"x")
                assert (producer.sender.plain is None) == bool(namespace)

        async with FakeCluster(sim, 1) as cluster:
            cluster.topics["ns%t"] = cluster.topics["t"]
            await sim.host("10.0.1.1").run(scene())

    simulate(main)


@each_way
def test_what_looks_at_each_attempt_sees_all(way: str) -> None:
    async def main(sim: Simulation) -> None:
        seen: list[str] = []

        class Hook:
            def before(self, context: SendContext) -> None:
                seen.append("before")

            def after(self, context: SendContext) -> None:
                seen.append("after")

        async def scene() -> None:
            client = Client(config=ClientConfig(nameservers=(NAMES,)), env=sim.env())
            async with client, Producer("p", client=client, hooks=[Hook()]) as producer:
                for _ in range(3):
                    await producer.send("t", b"x")

        with patch.object(plain_send, "compiled", WAYS[way][0]):
            async with FakeCluster(sim, 1):
                await sim.host("10.0.1.1").run(scene())
        assert seen == ["before", "after"] * 3

    simulate(main)


@each_way
def test_another_connection_and_another_route_are_plain_too(way: str) -> None:
    async def main(sim: Simulation) -> None:
        begun = Begun(None)

        async def scene() -> None:
            client = Client(config=ClientConfig(nameservers=(NAMES,)), env=sim.env())
            async with client, Producer("p", client=client) as producer:
                remoting, sender = client.session.remoting, producer.sender
                for change in ("nothing", "connection", "route"):
                    if change == "connection":
                        remoting.by_address[cluster.brokers[0].address].abort("as the test wants")
                    elif change == "route":
                        sender.on_route(await client.session.routes.get("t"))
                    await producer.send("t", b"negotiates, dials or looks up")
                    begun.begin, sender.plain = begun.begin or sender.plain, begun
                    before = begun.count
                    for connection in remoting.connections:
                        connection.plain = WAYS[way][1]
                    receipts = [await producer.send("t", b"x") for _ in range(4)]
                    assert begun.count - before == 4, change
                    assert {receipt.queue for receipt in receipts} == set(sender.opened["t"].queues)

        with patch.object(plain_send, "compiled", WAYS[way][0]):
            async with FakeCluster(sim, 1) as cluster:
                await sim.host("10.0.1.1").run(scene())

    simulate(main)
