"""Ordered consumption in a group of two, the official Java client and ours, at every broker.

They share the queues by their queue locks (41, 42): each queue has one owner, which gets its messages in order, a
failed one again before anything later. When one leaves, the other goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aiorocket import Consumer, ConsumerConfig, Message, Producer, Queue, Router
from tests.interop.peers import JavaClient, JavaRun, Server, ask

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

CREATE_TOPIC, GET_ROUTE = 17, 105
QUEUES = 4
#: A round of rebalancing is 20 s, when nobody is told or a lock was not free yet; some of them, and the JVM's start.
#: Apache's broker misses a member after 130 s whose last heartbeat it worked behind its leave, as may happen to Java's.
HANDOVER = 180.0


async def until(condition: Callable[[], bool], what: str, told: Callable[[], object] = str) -> None:
    """``told`` is what there is instead, when that is over."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < HANDOVER, f"not {what} in {HANDOVER:g} s: {told()}"
        await asyncio.sleep(0.05)


async def create(server: Server, topic: str) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert ask(server.broker, CREATE_TOPIC, fields)[0] == 0
    await until(lambda: ask(server.nameserver, GET_ROUTE, {"topic": topic})[0] == 0, "routable")


@pytest.mark.parametrize("kind", ["apache", "apache_older", "ours"])
async def test_java_and_we_share_a_group_in_order(
    kind: str, java: JavaClient, java_older: JavaClient, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(kind)
    if kind == "apache_older":
        java = java_older
    topic, group = "steps", "clerks"
    await create(server, topic)
    #: Of each queue, who got what in which order.
    got: list[tuple[str, int, int, str]] = []
    failures: list[tuple[str, str]] = []
    reading: list[asyncio.Task[None]] = []

    def add(who: str, fact: dict[str, Any]) -> None:
        if fact["event"] == "message":
            got.append((who, fact["queueId"], fact["queueOffset"], fact["body"]))
        elif fact["event"] == "failed":
            failures.append((who, fact["body"]))

    async def java_member(who: str) -> JavaRun:
        run = await java.start("orderly", server.nameserver, topic, group, "bad", program="Members")
        await run.until("started", limit=HANDOVER)
        seen = 0

        async def read() -> None:
            nonlocal seen
            while True:
                await run.read()
                for fact in run.events[seen:]:
                    add(who, fact)
                seen = len(run.events)

        reading.append(asyncio.ensure_future(read()))
        return run

    async def leave(run: JavaRun) -> None:
        task = reading.pop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await run.leave(limit=HANDOVER)

    def our_member(who: str) -> Consumer:
        router = Router(group)

        @router.orderly(topic, start_from="first", suspend=0.1)
        async def step(message: Message) -> None:
            body = message.body.decode()
            fact = {"queueId": message.queue_id, "queueOffset": message.queue_offset, "body": body}
            if body.startswith("bad") and message.attempt == 1:
                add(who, {"event": "failed", **fact})
                raise RuntimeError("this delivery fails on purpose")
            add(who, {"event": "message", **fact})

        config = ConsumerConfig(rebalance_interval=5.0)
        return Consumer(group, nameservers=(server.nameserver,), router=router, config=config)

    sent = 0

    async def send(producer: Producer) -> None:
        """Five more to each queue; the third fails once, wherever it comes."""
        nonlocal sent
        for number in range(5):
            for queue_id in range(QUEUES):
                body = f"{'bad' if number == 2 else 'good'}-{queue_id}-{sent // QUEUES}"
                await producer.send(topic, body.encode(), queue=Queue(topic, "broker-a", queue_id), timeout=10)
                sent += 1

    def owners(since: int) -> list[set[str]]:
        return [{who for who, queue_id, _, _ in got[since:] if queue_id == wanted} for wanted in range(QUEUES)]

    def found() -> object:
        """By queue, who got which offset; and whether anybody reads what Java's says."""
        by_queue = {
            wanted: [(who, offset) for who, queue, offset, _ in got if queue == wanted] for wanted in range(QUEUES)
        }
        return by_queue, failures, reading

    try:
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(Producer("steps-sender", nameservers=(server.nameserver,)))
            # Both: two queues each.
            first = await java_member("java")
            ours = our_member("ours")
            await stack.enter_async_context(ours)
            await until(lambda: sum(queue.topic == topic for queue in ours.held()) == 2, "shared")
            await send(producer)
            await until(lambda: len(got) == sent, f"all {sent} delivered", found)
            assert sorted(next(iter(each)) for each in owners(0)) == ["java", "java", "ours", "ours"]
            assert all(len(each) == 1 for each in owners(0))

            # Java's leaves; we go on in its queues.
            before = len(got)
            await leave(first)
            await send(producer)
            await until(lambda: len(got) == sent, f"all {sent} delivered", found)
            assert owners(before) == [{"ours"}] * QUEUES

            # Another one of Java's comes, we leave; it goes on in ours.
            second = await java_member("java again")
            await until(lambda: sum(queue.topic == topic for queue in ours.held()) == 2, "shared again")
            before = len(got)
            await ours.stop()
            await send(producer)
            await until(lambda: len(got) == sent, f"all {sent} delivered", found)
            assert owners(before) == [{"java again"}] * QUEUES
            await leave(second)
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    for queue_id in range(QUEUES):
        mine = [(offset, body) for _, queue, offset, body in got if queue == queue_id]
        assert [offset for offset, _ in mine] == list(range(15)), f"queue {queue_id}: in order, no gap, no repeat"
        assert [body.rsplit("-", 1)[1] for _, body in mine] == [str(number) for number in range(15)]
    assert len(failures) == QUEUES * 3
