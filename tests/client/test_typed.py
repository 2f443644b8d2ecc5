"""Bodies with a type: what is sent, what listeners get, and what becomes of a body that is something else."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import aiorocket
from aiorocket import Batch, BodyError, Embedded, Message, OutgoingMessage, Router, Skip, UsageError
from aiorocket.client.core.typed_body import decoder, encode_value


class Struct(msgspec.Struct):
    id: str
    amount: int


@dataclass
class Data:
    id: str
    amount: int


class Model(BaseModel):
    id: str
    amount: int


KINDS = (Struct, Data, Model)


class Carried:
    def __init__(self, body: bytes, content_type: str | None = None) -> None:
        self.body = body
        self.content_type = content_type


@given(st.text(), st.integers(-(2**53), 2**53))
def test_what_is_written_is_read(name: str, amount: int) -> None:
    for kind in KINDS:
        value = kind(id=name, amount=amount)
        assert decoder(kind)(Carried(encode_value(value))) == value
    whole = {"id": name, "amount": amount}
    assert decoder(dict)(Carried(encode_value(whole))) == decoder(dict[str, Any])(Carried(encode_value(whole))) == whole
    packed = Carried(msgspec.msgpack.encode(whole), "application/msgpack; charset=binary")
    assert [decoder(kind)(packed) for kind in KINDS] == [kind(id=name, amount=amount) for kind in KINDS]


@given(st.binary(), st.sampled_from([None, "application/json", "application/msgpack", "text/xml"]))
def test_any_bytes_are_a_value_or_a_body_error(body: bytes, content_type: str | None) -> None:
    for kind in (*KINDS, dict):
        try:
            decoder(kind)(Carried(body, content_type))
        except BodyError as error:
            assert f"{len(body)} bytes" in str(error)
    assert decoder(bytes)(Carried(body, content_type)) == body


def test_a_body_nested_too_deep_is_a_body_error() -> None:
    """No listener of an orderly queue may fail by it for ever."""
    deep = Carried(b'{"id":' * 5000), Carried(b"\x81\xa2id" * 5000, "application/msgpack")
    for body in deep:
        for kind in (*KINDS, dict):
            with pytest.raises(BodyError):
                decoder(kind)(body)


class Numbers(BaseModel):
    all: list[int]


def test_a_body_with_thousands_of_errors_is_told_shortly() -> None:
    """Whoever sent it chose how much text that is."""
    two = "all.0: Input should be a valid integer.*; all.1: Input should be a valid integer"
    for count, told in ((2, two), (10_000, "10000 errors")):
        with pytest.raises(BodyError, match=told) as caught:
            decoder(Numbers)(Carried(json.dumps({"all": ["x"] * count}).encode()))
        assert len(str(caught.value)) < 2200
        assert caught.value.__cause__ is None  # pydantic's, which quotes the body


@pytest.mark.parametrize("value", ["text", 3, None, [1], {1: object()}, OutgoingMessage(topic="t", body=b"x")])
def test_what_cannot_be_written(value: object) -> None:
    with pytest.raises(UsageError, match="body"):
        encode_value(value)


async def test_every_verb_writes_and_says_so(rocketmq: Embedded) -> None:
    await rocketmq.create_topic("t", queues=1)
    async with aiorocket.Producer("p", nameservers=rocketmq.nameserver_address) as producer:
        for kind in KINDS:
            await producer.send("t", kind(id="o", amount=1), properties={"tenant": "a"})
        await producer.send_oneway("t", {"id": "o", "amount": 1})
        await producer.send_batch("t", [Data("o", 1), {"id": "o", "amount": 1}])
        assert [each.error async for each in producer.send_many("t", [Struct("o", 1)])] == [None]
        await producer.send("t", {"id": "o", "amount": 1}, properties={"contentType": "application/vnd.order+json"})
        await producer.send("t", b"raw")
        await producer.send("t", bytearray(b"raw"))
        with pytest.raises(UsageError, match=r"message 1 of the batch: the body must be bytes, not str"):
            await producer.send_batch("t", [b"x", "text"])  # type: ignore[list-item]  # it is wrong
        await rocketmq.settled()
    *typed, other, raw, also = rocketmq.messages("t")
    assert [json.loads(each.body) for each in typed] == [{"id": "o", "amount": 1}] * 7
    kinds = [each.properties.get("contentType") for each in (*typed, other, raw, also)]
    assert kinds == ["application/json"] * 7 + ["application/vnd.order+json", None, None]
    assert typed[0].properties["tenant"] == "a"
    assert raw.body == also.body == b"raw"


async def test_every_kind_of_listener_gets_values(rocketmq: Embedded) -> None:
    router, orderly, seen, state = Router("g"), Router("o"), [], object()
    topics = ("a", "b", "c", "d", "e", "f", "h")
    for topic in topics:
        await rocketmq.create_topic(topic, queues=1)

    @router.listener("a", start_from="first")
    async def struct(order: Struct) -> None:
        seen.append(("a", order))

    @router.listener("b", start_from="first")
    def plain(order: Data, state: Any, *, message: Message) -> None:
        seen.append(("b", order, state, message.topic))

    @router.listener("c", start_from="first", order_by=lambda message: message.tag)
    async def keyed(order: Model, message: Message) -> None:
        seen.append(("c", order, message.group))

    @router.listener("d", start_from="first", batch_size=8)
    async def several(orders: list[dict[str, Any]]) -> None:
        seen.extend(("d", order) for order in orders)

    @router.batch("e", start_from="first")
    async def batch(orders: Sequence[Data], batch: Batch, state: Any) -> None:
        seen.extend(("e", order, state, message.topic) for order, message in zip(orders, batch, strict=True))

    @router.listener("f", start_from="first")
    async def raw(body: bytes) -> None:
        seen.append(("f", json.loads(body)))

    @orderly.orderly("h", start_from="first")
    async def in_order(order: Struct) -> None:
        seen.append(("h", order))

    async with (
        rocketmq.consumer(router, state=state),
        rocketmq.consumer(orderly),
        aiorocket.Producer("p", nameservers=rocketmq.nameserver_address) as producer,
    ):
        for topic in topics:
            await producer.send(topic, Data("o", 1))
        await rocketmq.settled()
    whole = asdict(Data("o", 1))
    assert sorted(seen, key=lambda each: each[0]) == [
        ("a", Struct("o", 1)), ("b", Data("o", 1), state, "b"), ("c", Model(id="o", amount=1), "g"), ("d", whole),
        ("e", Data("o", 1), state, "e"), ("f", whole), ("h", Struct("o", 1)),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", ["dead_letter", "skip", "raise"])
@pytest.mark.parametrize("many", [False, True])
async def test_a_body_that_is_something_else(rocketmq: Embedded, policy: Any, many: bool) -> None:
    """With several only what cannot be read fails, and marks of the listener are of its own list."""
    await rocketmq.create_topic("t", queues=1)
    router, seen = Router("g"), []

    if many:

        @router.batch("t", start_from="first", max_wait=0.05, max_attempts=2, on_bad_body=policy)
        async def batch(orders: list[Struct], batch: Batch) -> None:
            assert len(orders) == len(batch)
            seen.extend(order.id for order in orders)
            batch.fail([index for index, order in enumerate(orders) if order.id == "bad"], dead_letter=True)
    else:

        @router.listener("t", start_from="first", max_attempts=2, on_bad_body=policy)
        async def one(order: Struct) -> None:
            seen.append(order.id)
            if order.id == "bad":
                raise aiorocket.DeadLetter("no")

    for body in (b"{}", b'{"id": "a", "amount": 1}', b"\xff", b'{"id": "bad", "amount": 2}', b"", b"7"):
        await rocketmq.send("t", body or b" ")
    consumer = rocketmq.consumer(router)
    async with consumer:
        await rocketmq.settled()
        await rocketmq.clock.advance(minutes=1)
        dead = {each.body: each for each in rocketmq.dead_letters("g")}
        assert consumer.state().counters.skipped == (4 if policy == "skip" else 0)
    assert sorted(seen) == ["a", "bad"]
    bad = b'{"id": "bad", "amount": 2}'
    assert sorted(dead) == [bad] if policy == "skip" else sorted([bad, b"{}", b"\xff", b" ", b"7"])
    if policy != "skip":
        assert any("is no Struct" in value for value in dead[b"{}"].properties.values())
        assert dead[b"{}"].reconsume_times == (2 if policy == "raise" else dead[bad].reconsume_times)


async def test_no_body_is_in_the_log(rocketmq: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    """At no level, whatever becomes of the message: given up, sent back, read, refused, of another type."""
    caplog.set_level(logging.DEBUG)
    await rocketmq.create_topic("t", queues=1)
    secret, router = "4111-1111-1111-1111", Router("g")

    for tag, kind in (("Struct", Struct), ("Data", Data), ("Model", Model), ("dict", dict)):

        async def take(value: Any) -> None: ...

        take.__annotations__["value"] = kind
        router.listener("t", tags=tag, start_from="first")(take)

    @router.listener("t", tags="fails", start_from="first", max_attempts=2)
    async def fail(message: Message) -> None:
        raise KeyError("amount")

    async with rocketmq.consumer(router), aiorocket.Producer("p", nameservers=rocketmq.nameserver_address) as producer:
        for tag in ("Struct", "Data", "Model", "dict"):
            for wrong in ({"id": "1", "amount": secret}, [secret], secret, {secret[:4]: secret}):
                await producer.send("t", json.dumps(wrong).encode(), tag=tag)
            await producer.send("t", secret.encode() + b"\xff", tag=tag)
        rocketmq.faults.next("SEND_MESSAGE_V2", reply="SYSTEM_BUSY")
        await producer.send("t", secret.encode(), tag="fails")
        with pytest.raises(aiorocket.SendError):
            rocketmq.faults.next("SEND_MESSAGE_V2", drop=True)
            await producer.send("t", secret.encode(), tag="fails", timeout=0.05)
        await rocketmq.settled()
        await rocketmq.clock.advance(minutes=1)
    assert len(rocketmq.dead_letters("g")) >= 17
    text = caplog.text
    assert "KeyError: 'amount'" in text and "amount: Input should be a valid integer" in text
    assert secret not in text, [line for line in text.splitlines() if secret in line]


async def test_an_id_of_ones_own(rocketmq: Embedded) -> None:
    """By every verb; with an idempotent producer the second send of it is no second message."""
    await rocketmq.create_topic("t", queues=1)
    one = OutgoingMessage(topic="t", body=b"1", msg_id="order-1_a")
    config = aiorocket.ProducerConfig(idempotent=True)
    async with aiorocket.Producer("p", nameservers=rocketmq.nameserver_address, config=config) as producer:
        first, again = await producer.send(one), await producer.send(one)
        assert first == again and first.msg_id == "order-1_a"
        assert await producer.send_oneway(replace(one, msg_id="2")) == "2"
        for wrong in ("", "a b", "\x01", "é", "x" * 65):
            with pytest.raises(UsageError, match="msg_id"):
                await producer.send(replace(one, msg_id=wrong))
        with pytest.raises(UsageError, match="no msg_id"):
            await producer.send_batch("t", [one])
        await producer.send("t", b"3", sharding_key="k")
        await rocketmq.settled()
    assert {"order-1_a", "2"} < {each.msg_id for each in rocketmq.messages("t")}


def test_which_listeners_are_typed() -> None:
    router = Router("g")
    listen = router.listener("t")

    def handlers() -> list[Any]:
        async def a(message) -> None: ...  # type: ignore[no-untyped-def]  # nothing is said
        async def b(message: Message) -> None: ...
        async def c(message: Any) -> None: ...
        async def d(message: object) -> None: ...
        async def e(message: "NotThere.Message") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037 - as imported for types only

        return [a, b, c, d, e]

    for handler in handlers():
        listen(handler)
    assert not any(hasattr(each.handler, "decode") for each in router.listeners)

    async def unknown(order: NotThere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - that is the point
    async def of_a_module(module: type(sys)) -> None: ...  # type: ignore[valid-type]  # nor is this a type of a body
    async def of_one(orders: Struct) -> None: ...
    async def no_message(order: Struct, other: int) -> None: ...

    with pytest.raises(UsageError, match=r"'NotThere'.*import it at the top"):
        listen(unknown)
    with pytest.raises(UsageError, match=r"list\[\.\.\.\] is needed"):
        router.listener("t", batch_size=2)(of_one)  # type: ignore[arg-type]  # it is wrong
    with pytest.raises(UsageError, match="cannot be called"):
        listen(no_message)
    with pytest.raises(UsageError, match="one at a time"):
        router.orderly("t", batch_size=2)(of_one)  # type: ignore[arg-type]  # it is wrong
    with pytest.raises(UsageError, match="on_bad_body"):
        router.listener("t", on_bad_body="retry")(of_one)  # type: ignore[arg-type]  # it is wrong


async def test_a_typed_listener_is_a_function() -> None:
    """What is decorated stays what it was."""
    router = Router("g")

    @router.listener("t")
    async def listener(order: Struct) -> int:
        if order.amount < 0:
            raise Skip("nothing to do")
        return order.amount

    assert await listener(Struct("o", 3)) == 3


async def _status(messages: list, context: aiorocket.ConsumeConcurrentlyContext) -> None: ...  # type: ignore[type-arg]  # says nothing
async def _several(messages: list) -> None: ...  # type: ignore[type-arg]  # likewise
async def _sequence(messages: Sequence) -> None: ...  # type: ignore[type-arg]  # likewise
async def _named(messages: "list['Message']") -> None: ...  # noqa: UP037 - as where Message is imported for types only


def test_a_list_of_nothing_said_is_one_of_messages() -> None:
    """As it was before bodies had types."""
    router = Router("g")
    router.listener("t")(_status)
    for handler in (_several, _sequence, _named):
        router.listener("t", batch_size=4)(handler)
        router.orderly("t", batch_size=4)(handler)
        router.batch("t")(handler)
    first, *others = (each.handler for each in router.listeners)
    assert first is _status and router.listeners[0].status
    assert others == [each for each in (_several, _sequence, _named) for _ in range(3)]
