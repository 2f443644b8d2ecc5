"""The same exchange with every mixture of peers: Apache's server and ours, the official Java client and ours.

Half of the messages are sent before the receiver exists, half while it waits in a long poll. One of the second half
fails on its first delivery and must come back through ``%RETRY%group`` after delay level 3. The exchange
Java -> Apache -> Java proves the test itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.interop.peers import JavaClient, Server, ask

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

HALF = 12
QUERY_CONSUMER_OFFSET = 14
#: After the delay: the schedule's rhythm, and the receiver's look for the new retry topic (clients poll routes).
RETRY_SLACK = 90.0

Facts = dict[str, Any]


async def java_send(java: JavaClient, server: Server, topic: str, prefix: str) -> list[Facts]:
    run = await java.start("send", server.nameserver, topic, prefix, str(HALF))
    events = await run.finish(limit=60)
    return [event for event in events if event["event"] == "sent"]


async def our_send(server: Server, topic: str, prefix: str) -> list[Facts]:
    from aiorocket import OutgoingMessage, Producer

    sent: list[Facts] = []
    async with Producer(f"our-sender-{prefix}", nameservers=(server.nameserver,)) as producer:
        for index in range(HALF):
            body = f"{prefix}-{index}"
            receipt = await producer.send(
                OutgoingMessage(
                    topic=topic,
                    body=body.encode(),
                    tag=f"tag-{prefix}",
                    keys=(f"key-{body}", "all"),
                    properties={"from": "python grün"},
                ),
                timeout=10,
            )
            sent.append(
                {
                    "body": body,
                    "status": receipt.status.name,
                    "msgId": receipt.msg_id,
                    "offsetMsgId": receipt.offset_msg_id,
                    "broker": receipt.queue.broker_name,
                    "queueId": receipt.queue.queue_id,
                    "queueOffset": receipt.offset,
                }
            )
    return sent


class Receiver:
    """What a receiver found out; ``java_receive`` and ``our_receive`` fill it in the words of Smoke's JSON lines."""

    def __init__(self) -> None:
        self.messages: list[Facts] = []
        self.first = asyncio.Event()
        self.complete = asyncio.Event()

    def add(self, message: Facts) -> None:
        self.messages.append(message)
        self.first.set()
        if len({one["body"] for one in self.messages if not one["failed"]}) == 2 * HALF:
            self.complete.set()


@asynccontextmanager
async def java_receive(
    java: JavaClient, server: Server, topic: str, group: str, failing: str
) -> AsyncIterator[Receiver]:
    found = Receiver()
    run = await java.start("consume", server.nameserver, topic, group, str(2 * HALF), failing, "240")

    async def read() -> None:
        while not found.complete.is_set():
            found.add(await run.until("message", limit=300))

    reading = asyncio.ensure_future(read())
    waiting = asyncio.ensure_future(found.complete.wait())
    try:
        yield found
        await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        await reading
        events = await run.finish(limit=60)
        found.messages[:] = [event for event in events if event["event"] == "message"]
    finally:
        for task in (reading, waiting):
            task.cancel()
        await asyncio.gather(reading, waiting, return_exceptions=True)


@asynccontextmanager
async def our_receive(server: Server, topic: str, group: str, failing: str) -> AsyncIterator[Receiver]:
    from aiorocket import Consumer, Message

    found = Receiver()
    failed = False
    consumer = Consumer(group, nameservers=(server.nameserver,))

    @consumer.listener(topic, start_from="first")
    async def on_message(message: Message) -> None:
        nonlocal failed
        body = message.body.decode()
        fail = body == failing and not failed
        found.add(
            {
                "body": body,
                "failed": fail,
                "at": time.time() * 1000,
                "topic": message.topic,
                "queueTopic": message.queue.topic,
                "queueId": message.queue_id,
                "queueOffset": message.queue_offset,
                "reconsumeTimes": message.reconsume_times,
                "msgId": message.msg_id,
                "tags": message.tag,
                "keys": " ".join(message.keys),
                "bornTimestamp": message.born_timestamp,
                "storeTimestamp": message.store_timestamp,
                "bornHost": message.born_host,
                "storeHost": message.store_host,
                "properties": dict(message.properties),
            }
        )
        if fail:
            failed = True
            raise RuntimeError("this delivery fails on purpose")

    async with consumer:
        yield found
        async with asyncio.timeout(300):
            await found.complete.wait()


def check_sent(sent: list[Facts], server: Server) -> None:
    assert len(sent) == HALF
    per_queue: dict[int, list[int]] = {}
    for one in sent:
        assert one["status"] == "SEND_OK", one
        assert one["broker"] == "broker-a", one
        # 16 bytes, or 28 where Java finds only an IPv6 address for itself
        assert len(one["msgId"]) in (32, 56) and int(one["msgId"], 16), one
        # IPv4, port and physical offset: 4 + 4 + 8 bytes in upper hex, naming the broker that stored it
        port = int(server.broker.rsplit(":", 1)[1])
        assert one["offsetMsgId"].startswith(f"7F000001{port:08X}"), one
        per_queue.setdefault(one["queueId"], []).append(one["queueOffset"])
    for offsets in per_queue.values():
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), per_queue


def check_consumed(
    messages: list[Facts], sent: list[Facts], server: Server, topic: str, group: str, failing: str
) -> None:
    by_body = {one["body"]: one for one in sent}
    bodies = sorted(one["body"] for one in messages if not one["failed"])
    assert bodies == sorted(by_body), "each body exactly once, the failed delivery apart"
    failures = [one for one in messages if one["failed"]]
    assert [one["body"] for one in failures] == [failing]
    for message in messages:
        original = by_body[message["body"]]
        properties = message["properties"]
        prefix = message["body"].rsplit("-", 1)[0]
        assert message["msgId"] == original["msgId"], message
        assert message["tags"] == f"tag-{prefix}", message
        assert message["keys"] == f"key-{message['body']} all", message
        assert properties["from"] in ("java grün", "python grün"), message
        assert message["topic"] == topic, message
        assert message["storeHost"].endswith(server.broker), message
        assert message["bornHost"].split("/")[-1].startswith("127.0.0.1:"), message
        assert abs(message["storeTimestamp"] - message["bornTimestamp"]) < 60_000, message
        if message["body"] == failing and not message["failed"]:
            continue
        assert message["queueTopic"] == topic, message
        assert message["reconsumeTimes"] == 0, message
        assert (message["queueId"], message["queueOffset"]) == (original["queueId"], original["queueOffset"]), message

    again = next(one for one in messages if one["body"] == failing and not one["failed"])
    assert again["queueTopic"] == f"%RETRY%{group}", again
    assert again["reconsumeTimes"] == 1, again
    assert again["properties"]["RETRY_TOPIC"] == topic, again
    assert again["properties"]["ORIGIN_MESSAGE_ID"] == by_body[failing]["offsetMsgId"], again
    assert again["bornTimestamp"] == failures[0]["bornTimestamp"], "the born fields of the first record are kept"
    waited = (again["at"] - failures[0]["at"]) / 1000
    assert server.first_retry - 0.5 <= waited <= server.first_retry + RETRY_SLACK, f"came back after {waited:.1f} s"


async def check_committed(server: Server, topic: str, group: str, sent: list[Facts]) -> None:
    """After its shutdown the broker knows the offset behind the last message of each queue (15 is one-way: poll)."""
    wanted = {str(one["queueId"]): 0 for one in sent}
    for one in sent:
        wanted[str(one["queueId"])] = max(wanted[str(one["queueId"])], one["queueOffset"] + 1)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 60
    while True:
        found = {}
        for queue in wanted:
            fields = {"consumerGroup": group, "topic": topic, "queueId": queue}
            code, ext, _ = ask(server.broker, QUERY_CONSUMER_OFFSET, fields)
            found[queue] = int(ext["offset"]) if code == 0 else -code
        if found == wanted:
            return
        assert loop.time() < deadline, f"committed {found}, expected {wanted}"
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("receiver", ["java", "ours"])
@pytest.mark.parametrize("sender", ["java", "ours"])
@pytest.mark.parametrize("kind", ["apache", "ours"])
async def test_send_consume_retry(
    kind: str, sender: str, receiver: str, java: JavaClient, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(kind)
    topic, group = f"smoke-{sender}-to-{receiver}", f"group-{sender}-to-{receiver}"
    failing = f"later-{HALF // 2}"

    async def send(prefix: str) -> list[Facts]:
        if sender == "java":
            sent = await java_send(java, server, topic, prefix)
        else:
            sent = await our_send(server, topic, prefix)
        check_sent(sent, server)
        return sent

    if receiver == "java":
        receiving = java_receive(java, server, topic, group, failing)
    else:
        receiving = our_receive(server, topic, group, failing)

    sent = await send("early")
    async with receiving as found:
        async with asyncio.timeout(200):
            await found.first.wait()
        sent += await send("later")
    check_consumed(found.messages, sent, server, topic, group, failing)
    await check_committed(server, topic, group, sent)
