"""Dead letters on Apache's broker: ours reads, hides, replays and marks them there as on ours."""

from __future__ import annotations

import asyncio

import pytest

from aiorocket import Consumer, DeadLetter, Message, Producer
from aiorocket.client.admin.admin import Admin
from aiorocket.client.admin.replay import REPLAY_ID
from aiorocket_protocol import CreateTopicRequestHeader, RequestCode
from tests.interop.peers import Server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


async def test_dead_letters_are_read_and_replayed_once(server: Server) -> None:
    nameservers = server.nameserver
    async with Producer("dead-letters-sender", nameservers=nameservers) as producer:
        for number in range(5):
            await producer.send("buried", b"%d" % number, keys=[f"k{number}"], tag="t", timeout=20)
    seen: list[tuple[bytes, str, int]] = []
    came = asyncio.Event()

    async def wait_for(count: int) -> None:
        async with asyncio.timeout(150):
            while len(seen) < count:
                came.clear()
                await came.wait()

    consumer = Consumer("undertaker", nameservers=nameservers)

    @consumer.listener("buried", start_from="first")
    async def take(message: Message) -> None:
        seen.append((message.body, message.properties.get(REPLAY_ID, ""), message.attempt))
        came.set()
        if REPLAY_ID not in message.properties:
            raise DeadLetter("once")

    async with consumer, Admin(nameservers=nameservers) as admin:
        await wait_for(5)
        letters = admin.dlq("undertaker")
        async with asyncio.timeout(120):  # a new topic is known to name servers a moment later
            while len(found := [each async for each in letters.messages()]) < 5:
                await asyncio.sleep(0.2)
        assert sorted((each.body, each.origin_topic, each.tag) for each in found) == [
            (b"%d" % number, "buried", "t") for number in range(5)
        ]
        shown = await letters.show(found[0].replay_id)
        assert shown is not None and shown.body == found[0].body
        (queue,) = {each.queue for each in found}
        address = (await admin.client.route(letters.topic)).master(queue.broker_name)
        assert address is not None
        hide = CreateTopicRequestHeader(letters.topic, "TBW102", 1, 1, 2, "SINGLE_TAG", False)
        await admin.client.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, hide)
        async with asyncio.timeout(120):
            while (await admin.client.route(letters.topic, refresh=True)).subscribe:
                await asyncio.sleep(0.2)
        assert len([each async for each in letters.messages()]) == 5

        assert (await letters.replay(limit=2, confirm=True)).sent == 2
        rest = await letters.replay(confirm=True)
        assert (rest.sent, rest.failed, rest.skipped, rest.stopped) == (3, 0, 2, None), rest
        await wait_for(10)
        assert sorted(seen[5:]) == sorted((each.body, each.replay_id, 1) for each in found)
        again = await letters.replay(confirm=True)
        assert (again.sent, again.skipped) == (0, 5)
