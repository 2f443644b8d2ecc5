"""One clustering group of the official Java client and ours, of listeners and of those that pull, at every broker:
together they divide the queues, and who stays goes on at the offset that the other left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Literal

import pytest

from aiorocket import Consumer, ConsumerConfig, Message, Producer, PullConsumer, PullConsumerConfig, Queue
from tests.interop.peers import JavaClient, JavaRun, Server, ask
from tests.interop.test_orderly import HANDOVER, QUEUES, create, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

QUERY_OFFSET = 14
Style = Literal["concurrent", "lite"]


@asynccontextmanager
async def ours(
    style: Style, server: Server, topic: str, group: str, take: Callable[[Message], None]
) -> AsyncIterator[Callable[[], list[Queue]]]:
    """A member of ours; what it yields says which queues it has."""
    names = (server.nameserver,)
    if style == "concurrent":
        listening = Consumer(group, nameservers=names, config=ConsumerConfig(rebalance_interval=5.0))

        @listening.listener(topic, start_from="first")
        async def listen(message: Message) -> None:
            take(message)

        async with listening:
            yield lambda: [queue for queue in listening.held() if queue.topic == topic]
        return

    async def pull() -> None:
        while True:
            for message in await pulling.fetch():
                take(message)
            await pulling.commit()

    config = PullConsumerConfig(rebalance_interval=5.0, auto_commit=False)
    async with PullConsumer(group, nameservers=names, config=config) as pulling:
        await pulling.subscribe(topic, start_from="first")
        task = asyncio.create_task(pull())
        yield pulling.assignment
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def divide_and_go_on(server: Server, style: Style, java: JavaClient) -> None:
    topic, group = f"handed-over-{style}", f"heirs-{style}"
    await create(server, topic)
    #: (who, queue, body) of every delivery.
    got: list[tuple[str, int, str]] = []
    sent: list[str] = []

    def member() -> AbstractAsyncContextManager[Callable[[], list[Queue]]]:
        def take(message: Message) -> None:
            got.append(("ours", message.queue_id, message.body.decode()))

        return ours(style, server, topic, group, take)

    async def send(producer: Producer) -> set[str]:
        """Five to each queue; who got them, when all have come."""
        before = len(got)
        for number in range(5 * QUEUES):
            queue = Queue(topic, "broker-a", number % QUEUES)
            sent.append(f"{len(sent)}")
            await producer.send(topic, sent[-1].encode(), queue=queue, timeout=10)
        await until(lambda: len(got) >= len(sent), f"all {len(sent)} delivered")
        return {who for who, _, _ in got[before:]}

    def committed() -> int:
        """Messages that the group has behind it."""
        asked = [{"consumerGroup": group, "topic": topic, "queueId": str(number)} for number in range(QUEUES)]
        answers = [ask(server.broker, QUERY_OFFSET, each)[1] for each in asked]
        return sum(int(answer.get("offset", 0)) for answer in answers)

    async def read(run: JavaRun) -> None:
        while True:
            fact = await run.read()
            if fact["event"] == "message":
                got.append(("java", fact["queueId"], fact["body"]))

    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer(f"{style}-hands", nameservers=(server.nameserver,)))
        first = await stack.enter_async_context(AsyncExitStack())
        held = await first.enter_async_context(member())
        assert await send(producer) == {"ours"}
        # Nobody locks queues here: who joins goes on at what is committed by then.
        await until(lambda: committed() == len(sent), "committed")

        run = await java.start(style, server.nameserver, topic, group, program="Members")
        await run.until("started", limit=HANDOVER)
        reading = asyncio.create_task(read(run))
        stack.callback(reading.cancel)
        await until(lambda: len(held()) == QUEUES // 2, "divided")
        since = len(got)
        assert await send(producer) == {"ours", "java"}
        owners = [{who for who, queue_id, _ in got[since:] if queue_id == number} for number in range(QUEUES)]
        assert all(len(each) == 1 for each in owners), owners
        await until(lambda: committed() == len(sent), "committed")

        await first.aclose()
        assert await send(producer) == {"java"}
        await until(lambda: committed() == len(sent), "committed")

        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await run.leave(limit=HANDOVER)
        async with member():
            assert await send(producer) == {"ours"}
    assert sorted(body for _, _, body in got) == sorted(sent), "each once"


@pytest.mark.parametrize("kind", ["apache", "apache_older", "ours"])
async def test_java_and_we_share_a_group_and_its_offsets(
    kind: str, java: JavaClient, java_older: JavaClient, request: pytest.FixtureRequest
) -> None:
    """Both styles at once: most of the time is spent waiting. 4.9's broker has its own client: it does not know the
    request with which 5.x reads a lite pull."""
    server: Server = request.getfixturevalue(kind)
    if kind == "apache_older":
        java = java_older
    async with asyncio.TaskGroup() as styles:
        styles.create_task(divide_and_go_on(server, "concurrent", java))
        styles.create_task(divide_and_go_on(server, "lite", java))
