"""What is easily written wrongly is an error that says so, or does what was meant."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from aiorocket import (
    BadNameError,
    Client,
    ClientConfig,
    Consumer,
    Embedded,
    Message,
    NotConnectedError,
    OutgoingMessage,
    Router,
    TxState,
    UsageError,
    embed,
)
from aiorocket.client.route_table import RouteTable
from aiorocket.config import DEFAULT_NAMESERVER


@pytest_asyncio.fixture
async def mq() -> AsyncIterator[Embedded]:
    async with embed() as embedded:
        yield embedded


async def nothing(message: Message) -> None: ...


def test_tags_with_a_comma() -> None:
    """Kafka's habit; as one tag it would match nothing."""
    with pytest.raises(UsageError, match=r"tags='a,b': several tags are written 'a \|\| b'"):
        Router().listener("orders", tags="a,b")
    with pytest.raises(UsageError, match=r"written 'a \|\| b \|\| c'"):
        Router().batch("orders", tags="a , b || c")


async def test_a_batch_that_is_none(mq: Embedded) -> None:
    batch: Any
    await mq.create_topic("orders")

    def failing() -> Iterator[bytes]:
        yield b"one"
        raise TypeError("in the caller's own")

    async with mq.producer("shop") as producer:
        for batch in (None, OutgoingMessage(topic="orders", body=b"alone")):
            with pytest.raises(UsageError, match=f"not {type(batch).__name__}: put it into"):
                await producer.send_batch("orders", batch)
        with pytest.raises(TypeError, match="in the caller's own"):
            await producer.send_batch("orders", failing())


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "3"])
async def test_a_timeout_that_is_over_before_it_begins(mq: Embedded, timeout: Any) -> None:
    """What was sent with one of -1 second was stored, and its sender told that it may be."""
    await mq.create_topic("orders", queues=1)

    async def unknown(message: Message) -> TxState:
        return TxState.UNKNOWN

    async with mq.producer("shop") as producer, mq.transaction_producer("till", checker=unknown) as till:
        receipt = await producer.send("orders", b"known")
        for call in (
            lambda: producer.send("orders", b"x", timeout=timeout),
            lambda: producer.send("orders", b"x", keys=["k"], timeout=timeout),
            lambda: producer.send_oneway("orders", b"x", timeout=timeout),
            lambda: producer.send_batch("orders", [b"x"], timeout=timeout),
            lambda: producer.request("orders", b"x", timeout=timeout),
            lambda: producer.recall("handle", timeout=timeout),
            lambda: till.transaction("orders", b"x", timeout=timeout).prepare(),
        ):
            with pytest.raises(UsageError, match="a number of seconds above 0"):
                await call()
        assert (await producer.send("orders", b"last")).offset == receipt.offset + 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tag": "a\ud800"}, "tag='a"),
        ({"tag": "ü", "keys": ["a", "\udfff"]}, r"keys=\['a', "),
        ({"sharding_key": "\ud83d"}, "sharding_key="),
        ({"properties": {"name": "\ud800"}}, "properties={'name'"),
        ({"properties": {"\ud800": "value"}}, "properties="),
    ],
)
async def test_half_a_surrogate_pair_is_named(mq: Embedded, options: dict[str, Any], named: str) -> None:
    await mq.create_topic("orders")
    async with mq.producer("shop") as producer:
        with pytest.raises(UsageError, match=f"{named}.*: half a surrogate pair is no text"):
            await producer.send("orders", b"x", **options)
        with pytest.raises(UsageError, match="half a surrogate pair is no text"):
            await producer.send_batch("orders", [OutgoingMessage(topic="orders", body=b"x", **options)])
        with pytest.raises(UsageError, match="topic 'orders"):
            await producer.send("orders\ud800", b"x")


async def test_a_consumer_that_would_take_nothing(mq: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    await mq.create_topic("orders")
    async with mq.client("g") as client:
        with pytest.raises(UsageError, match=r"the router for group 'g' has no listeners yet"):
            client.include(Router())
        async with client.consumer("silent") as consumer:
            with pytest.raises(UsageError, match=r"'silent' has no subscription for messages\(\) to give: subscribe"):
                await anext(consumer.messages())
            await consumer.subscribe("orders")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer.messages()), 0.01)
        listening = client.consumer("listening")
        listening.listener("orders")(nothing)
        async with listening:
            with pytest.raises(UsageError, match="subscribe"):  # its messages go to the listener
                await anext(listening.messages())
        async with client.pull_consumer("etl") as etl:
            with pytest.raises(UsageError, match=r"'etl' reads nothing: subscribe\(\) or assign\(\) first"):
                await etl.fetch(timeout=0)
            await etl.assign([])
            assert await etl.fetch(timeout=0) == []
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == ["consumer 'silent' has no listener and no subscription: it takes nothing before one"]


@pytest.mark.parametrize("copied", [lambda each: pickle.loads(pickle.dumps(each)), copy.deepcopy, copy.copy])
async def test_a_copy_of_a_message(mq: Embedded, copied: Any) -> None:
    """For a pool of processes, where what a message came with has no meaning."""
    await mq.create_topic("orders", queues=1)
    async with mq.producer("shop") as producer, mq.consumer("g") as consumer:
        await consumer.subscribe("orders")
        await producer.send("orders", b"x" * 5000, tag="a", keys=["k"], properties={"tenant": "t"})
        message = await anext(consumer.messages())
        message.body = b"unpacked"
        twin = copied(message)
        names = ("body", "topic", "queue", "offset", "tag", "keys", "properties", "msg_id", "attempt", "group")
        assert [getattr(twin, name) for name in names] == [getattr(message, name) for name in names]
        assert twin.settled and not await twin.ack() and not message.settled
        with pytest.raises(UsageError, match="Of a copy, settle the message that was received"):
            await twin.retry()
        assert await message.retry(delay_level=1)
        again = await anext(consumer.messages())
        assert (copied(again).topic, copied(again).attempt) == ("orders", 2)
        assert copied(again).queue.topic == again.queue.topic == "%RETRY%g"
        await again.ack()
    async with mq.simple_consumer("popping") as popping:
        await popping.subscribe("orders")
        (popped,) = await popping.receive(1)
        assert (copied(popped).topic, copied(popped).queue) == (popped.topic, popped.queue)
        await popped.ack()


async def test_a_group_whose_retry_topic_is_too_long() -> None:
    client = Client(config=ClientConfig(namespace="ns"))
    for make in (client.consumer, client.pull_consumer):
        with pytest.raises(BadNameError, match=r"^group 'ns%g{118}': 121 characters, .* has 120 at most: %RETRY%group"):
            make("g" * 118)
        make("g" * 117)


def test_the_variable_of_the_command_line_counts_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIOROCKET_NAMESERVER", raising=False)
    assert ClientConfig().nameservers == Client().config.nameservers == ("127.0.0.1:9876",) == (DEFAULT_NAMESERVER,)
    monkeypatch.setenv("AIOROCKET_NAMESERVER", "a:1, b:2;c:3,")
    assert ClientConfig().nameservers == Consumer("g").client.config.nameservers == ("a:1", "b:2", "c:3")
    assert Client(nameservers="d:4").config.nameservers == ("d:4",)  # what is said counts more


@pytest.mark.parametrize("address", [DEFAULT_NAMESERVER, "127.0.0.1:1"])
async def test_nobody_at_an_address_of_name_servers(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.delenv("AIOROCKET_NAMESERVER", raising=False)

    class Refusing:
        async def connect(self, address: str) -> Any:
            raise NotConnectedError(f"{address}: Connection refused (errno 111)")

    config = ClientConfig() if address == DEFAULT_NAMESERVER else ClientConfig(nameservers=(address,))
    table = RouteTable(config, Refusing())  # type: ignore[arg-type]  # a machine may have a server at 9876
    with pytest.raises(NotConnectedError, match="Connection refused") as caught:
        await table.get("orders")
    said = str(caught.value)
    assert said.count(address) == 1 and "`aiorocket standalone`" in said and "AIOROCKET_NAMESERVER" in said
    await table.close()


@pytest.mark.parametrize("verb", ["send", "send_oneway"])
@pytest.mark.parametrize(
    "wrong",
    [{"tag": 3}, {"keys": 3}, {"keys": [3]}, {"sharding_key": 3}, {"properties": [("a", "b")]}, {"timeout": "1"}],
)
async def test_options_of_another_type(mq: Embedded, verb: str, wrong: dict[str, Any]) -> None:
    await mq.create_topic("orders")
    async with mq.producer() as producer:
        for topic in ("orders", "orders"):  # the first look-up, and the way everything goes after it
            with pytest.raises(UsageError, match=rf"{next(iter(wrong))}="):
                await getattr(producer, verb)(topic, b"x", **wrong)
        assert (await producer.send("orders", b"x")).offset == 0


async def of_two(message: Message, other: int) -> None: ...
async def of_three(messages: list[Message], context: Any, other: int) -> None: ...
async def of_nothing() -> None: ...
async def of_a_keyword(message: Message, *, other: int) -> None: ...
def plain() -> None: ...


@pytest.mark.parametrize("listener", [of_three, of_nothing, of_a_keyword, plain, partial(of_two, None, 3)])
@pytest.mark.parametrize("register", [Router.listener, Router.batch, Router.orderly])
def test_parameters_that_do_not_fit(register: Any, listener: Any) -> None:
    """Noticed where it is written, not with the first message."""
    with pytest.raises(UsageError, match=r"cannot be called: .*It takes the message"):
        register(Router(), "orders")(listener)


@pytest.mark.parametrize("register", [Router.listener, Router.orderly])
def test_parameters_that_fit(register: Any) -> None:
    async def with_default(message: Message, other: int = 3) -> None: ...
    async def with_all(*args: Any, **options: Any) -> None: ...
    async def with_state(message: Message, *, state: Any) -> None: ...
    async def status(messages: list[Message], context: Any, state: Any) -> None: ...

    for number, listener in enumerate(
        (nothing, with_default, with_all, with_state, status, print, partial(of_two, other=3))
    ):
        register(Router(), f"orders{number}")(listener)
