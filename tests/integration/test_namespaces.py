"""Namespaces, as RocketMQ's documentation tells them: tenants of one cluster use the same names and never meet. The
namespace is part of every topic and group on the wire; programs do not see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from aiorocket import Client, ClientConfig, ConfigError, Embedded, Message, Retry

Until = Callable[[Callable[[], bool]], Awaitable[None]]


def tenant(mq: Embedded, namespace: str) -> Client:
    return mq.client(config=ClientConfig(namespace=namespace))


async def test_two_tenants_with_the_same_names(mq: Embedded, until: Until) -> None:
    for namespace in ("acme", "umbrella"):
        await mq.create_topic(f"{namespace}%orders", queues=1)
    seen: dict[str, list[bytes]] = {"acme": [], "umbrella": []}
    async with tenant(mq, "acme") as acme, tenant(mq, "umbrella") as umbrella:
        consumers = []
        for client, bodies in ((acme, seen["acme"]), (umbrella, seen["umbrella"])):
            consumer = client.consumer("billing")

            @consumer.listener("orders", start_from="first")
            async def bill(message: Message, bodies: list[bytes] = bodies) -> None:
                assert message.topic == "orders"
                bodies.append(message.body)

            consumers.append(consumer)
        async with consumers[0], consumers[1], acme.producer("shop") as one, umbrella.producer("shop") as two:
            await one.send("orders", b"of acme")
            receipt = await two.send("orders", b"of umbrella")
            assert receipt.queue.topic == "orders"
            await until(lambda: all(seen.values()))
    assert seen == {"acme": [b"of acme"], "umbrella": [b"of umbrella"]}
    # What the broker and its administrators see.
    assert mq.broker.store.max_offset("acme%orders", 0) == 1
    assert mq.broker.offsets.query("acme%billing", "acme%orders", 0) == 1
    assert mq.broker.offsets.query("billing", "orders", 0) is None


async def test_retries_and_dead_letters_stay_in_the_namespace(mq: Embedded, until: Until) -> None:
    await mq.create_topic("acme%orders", queues=1)
    seen: list[tuple[str, int]] = []
    dead: list[str] = []
    async with tenant(mq, "acme") as acme:
        consumer, undertaker = acme.consumer("billing"), acme.consumer("undertaker")

        @consumer.listener("orders", max_attempts=2, start_from="first")
        async def fail(message: Message) -> None:
            seen.append((message.topic, message.attempt))
            raise Retry

        @undertaker.listener("%DLQ%billing", start_from="first")
        async def bury(message: Message) -> None:
            dead.append(message.topic)

        async with acme.producer("shop") as shop, consumer:
            await shop.send("orders", b"1")
            await until(lambda: consumer.state().counters.dead_lettered == 1)
            async with undertaker:
                await until(lambda: bool(dead))
    assert seen == [("orders", 1), ("orders", 2)]
    assert dead == ["%DLQ%billing"]
    assert mq.broker.store.max_offset("%RETRY%acme%billing", 0) == 1
    assert mq.broker.store.max_offset("%DLQ%acme%billing", 0) == 1


async def test_who_has_no_namespace_meets_nobody_of_one(mq: Embedded, until: Until) -> None:
    for topic in ("orders", "acme%orders"):
        await mq.create_topic(topic, queues=1)
    seen: list[bytes] = []
    plain = mq.consumer("billing")

    @plain.listener("orders", start_from="first")
    async def bill(message: Message) -> None:
        seen.append(message.body)

    async with tenant(mq, "acme") as acme, acme.producer("shop") as theirs, mq.producer("shop") as ours, plain:
        await theirs.send("orders", b"theirs")
        await ours.send("orders", b"ours")
        await until(lambda: bool(seen))
    assert seen == [b"ours"]


def test_a_namespace_has_no_percent_sign() -> None:
    """It ends the namespace in a name."""
    with pytest.raises(ConfigError, match="namespace='a%b'"):
        ClientConfig(namespace="a%b")
