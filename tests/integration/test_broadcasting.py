"""Broadcasting, as RocketMQ's documentation tells it: every member gets every message, keeps its position in a file of
its own, and goes on from there. What a listener fails on does not come again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiorocket import Client, ConsumerConfig, Embedded, Message
from aiorocket.client.core.offsets import read_offset_file
from aiorocket.config import ClientConfig

Until = Callable[[Callable[[], bool]], Awaitable[None]]


async def test_members_read_everything_and_go_on_from_their_own_files(
    mq: Embedded, tmp_path: Path, until: Until
) -> None:
    await mq.create_topic("news", 2)
    config = ConsumerConfig(message_model="broadcasting", offset_store_dir=str(tmp_path))
    seen: dict[str, list[bytes]] = {"one": [], "two": []}

    async def read(name: str, stop: asyncio.Event) -> None:
        client = Client(nameservers=mq.nameservers, config=ClientConfig(nameservers=mq.nameservers, instance=name))
        async with client:
            consumer = client.consumer("readers", config=config)

            @consumer.listener("news", start_from="first")
            async def on_news(message: Message) -> None:
                seen[name].append(message.body)

            async with consumer:
                await stop.wait()

    async with mq.producer("editor") as producer:
        stop = asyncio.Event()
        readers = [asyncio.ensure_future(read(name, stop)) for name in seen]
        for number in range(10):
            await producer.send("news", b"%d" % number)
        await until(lambda: all(len(bodies) == 10 for bodies in seen.values()))
        stop.set()
        await asyncio.gather(*readers)
        files = sorted(tmp_path.rglob("offsets.json"))
        assert [path.parent.name for path in files] == ["readers", "readers"]
        assert [sum(read_offset_file(path.read_bytes()).values()) for path in files] == [10, 10]

        await producer.send("news", b"later")
        stop = asyncio.Event()
        readers = [asyncio.ensure_future(read(name, stop)) for name in seen]
        await until(lambda: all(len(bodies) >= 11 for bodies in seen.values()))
        stop.set()
        await asyncio.gather(*readers)
        assert {name: sorted(bodies) for name, bodies in seen.items()} == dict.fromkeys(
            seen, sorted([*(b"%d" % number for number in range(10)), b"later"])
        )
