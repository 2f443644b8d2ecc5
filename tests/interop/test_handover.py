"""One clustering group of the official Java client and ours, at every broker: together they divide the queues, and who
stays goes on at the offset that the other left."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from aiorocket import Consumer, ConsumerConfig, Message, Producer, Queue
from tests.interop.peers import JavaClient, JavaRun, Server, ask
from tests.interop.test_orderly import HANDOVER, QUEUES, create, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

QUERY_OFFSET = 14


@pytest.mark.parametrize("kind", ["apache", "apache_older", "ours"])
async def test_java_and_we_share_a_group_and_its_offsets(
    kind: str, java: JavaClient, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(kind)
    topic, group = f"handed-over-{kind}", "heirs"
    await create(server, topic)
    #: (who, queue, body) of every delivery.
    got: list[tuple[str, int, str]] = []
    sent: list[str] = []

    def ours() -> Consumer:
        consumer = Consumer(group, nameservers=(server.nameserver,), config=ConsumerConfig(rebalance_interval=5.0))

        @consumer.listener(topic, start_from="first")
        async def take(message: Message) -> None:
            got.append(("ours", message.queue_id, message.body.decode()))

        return consumer

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
        producer = await stack.enter_async_context(Producer("handing-over", nameservers=(server.nameserver,)))
        first = ours()
        await first.start()
        assert await send(producer) == {"ours"}
        # Nobody locks queues here: who joins goes on at what is committed by then.
        await until(lambda: committed() == len(sent), "committed")

        run = await java.start("concurrent", server.nameserver, topic, group, program="Members")
        await run.until("started", limit=HANDOVER)
        reading = asyncio.create_task(read(run))
        stack.callback(reading.cancel)
        await until(lambda: sum(queue.topic == topic for queue in first.held()) == QUEUES // 2, "divided")
        since = len(got)
        assert await send(producer) == {"ours", "java"}
        owners = [{who for who, queue_id, _ in got[since:] if queue_id == number} for number in range(QUEUES)]
        assert all(len(each) == 1 for each in owners), owners

        await first.stop()
        assert await send(producer) == {"java"}

        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await run.leave(limit=30)
        async with ours():
            assert await send(producer) == {"ours"}
    assert sorted(body for _, _, body in got) == sorted(sent), "each once"
