"""Request and reply, as RocketMQ's documentation tells it: a message that waits for the answer of its consumer.

The requester sends to an ordinary topic; the replier consumes it and answers with a producer of its own. Nothing is
promised for the answer: without one the request times out, and the consumer's work is done all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aiorocket import ClientConfig, Consumer, Embedded, Message, Producer, RequestTimeoutError, SendError, embed

Until = Callable[[Callable[[], bool]], Awaitable[None]]


def calculator(mq: Embedded, answers: Producer, seen: list[Message]) -> Consumer:
    """A service that doubles numbers."""
    consumer = mq.consumer("calculator")

    @consumer.listener("sums", start_from="first")
    async def double(message: Message) -> None:
        seen.append(message)
        if message.tag != "silent":
            await answers.reply(message, b"%d" % (2 * int(message.body)), properties={"unit": "EUR"})

    return consumer


async def test_a_question_and_its_answer(mq: Embedded) -> None:
    await mq.create_topic("sums")
    async with mq.producer("calculator-answers") as answers, calculator(mq, answers, []), mq.producer("shop") as shop:
        reply = await shop.request("sums", b"21", timeout=30)
        assert reply.body == b"42"
        assert reply.properties["unit"] == "EUR"
        assert reply.properties["MSG_TYPE"] == "reply"


async def test_many_questions_at_once(mq: Embedded) -> None:
    await mq.create_topic("sums")
    async with mq.producer("calculator-answers") as answers, calculator(mq, answers, []), mq.producer("shop") as shop:
        replies = await asyncio.gather(*(shop.request("sums", b"%d" % number, timeout=30) for number in range(200)))
    assert [int(reply.body) for reply in replies] == [2 * number for number in range(200)]


async def test_large_answers_travel_compressed(mq: Embedded) -> None:
    await mq.create_topic("echo")
    async with mq.producer("answers") as answers, mq.producer("shop") as shop:
        consumer = mq.consumer("echo")

        @consumer.listener("echo", start_from="first")
        async def echo(message: Message) -> None:
            await answers.reply(message, message.body)

        async with consumer:
            assert (await shop.request("echo", b"again " * 20_000, timeout=30)).body == b"again " * 20_000


async def test_who_does_not_answer_has_done_the_work_all_the_same(mq: Embedded, until: Until) -> None:
    await mq.create_topic("sums")
    seen: list[Message] = []
    async with mq.producer("calculator-answers") as answers, calculator(mq, answers, seen), mq.producer("shop") as shop:
        with pytest.raises(RequestTimeoutError, match=r"no reply within 0.3 s"):
            await shop.request("sums", b"1", tag="silent", timeout=0.3)
        await until(lambda: len(seen) == 1)
        # Late answers are counted and otherwise forgotten.
        await answers.reply(seen[0], b"2")
        await until(lambda: shop.late_replies == 1)
        assert (await shop.request("sums", b"2", timeout=30)).body == b"4"


async def test_the_replier_learns_that_the_requester_has_gone(mq: Embedded, until: Until) -> None:
    await mq.create_topic("sums")
    seen: list[Message] = []
    async with mq.producer("calculator-answers") as answers, calculator(mq, answers, seen):
        async with mq.producer("shop") as shop:
            with pytest.raises((RequestTimeoutError, SendError)):
                await shop.request("sums", b"1", tag="silent", timeout=1.0)
        await until(lambda: len(seen) == 1)
        with pytest.raises(SendError, match="the reply to request"):
            await answers.reply(seen[0], b"2")


@pytest.mark.parametrize("namespace", ["", "tenant-1"])
async def test_requester_and_replier_may_share_a_client(mq: Embedded, namespace: str) -> None:
    config = ClientConfig(namespace=namespace)
    async with mq.client(config=config) as app, app.producer("shop") as shop, app.producer("answers") as answers:
        consumer = app.consumer("calculator")

        @consumer.listener("sums", start_from="first")
        async def double(message: Message) -> None:
            assert message.topic == "sums"
            if message.body == b"0":
                return
            await answers.reply(message, b"%d" % (2 * int(message.body)))

        await shop.send("sums", b"0")  # so that the topic is there
        async with consumer:
            assert (await shop.request("sums", b"4", timeout=30)).body == b"8"


async def test_a_topic_that_the_request_creates() -> None:
    async with embed() as mq, mq.producer("answers") as answers, mq.producer("shop") as shop:
        consumer = mq.consumer("late")

        @consumer.listener("new", start_from="first")
        async def answer(message: Message) -> None:
            await answers.reply(message, b"pong")

        asking = asyncio.ensure_future(shop.request("new", b"ping", timeout=30))
        async with consumer:
            assert (await asking).body == b"pong"
