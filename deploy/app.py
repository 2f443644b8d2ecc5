"""The app of compose.yaml: sends a message each second and consumes it; one of ten fails once. APP_MESSAGES ends it."""

from __future__ import annotations

import asyncio
import os

import aiorocket


async def main() -> None:
    left, seen = int(os.environ.get("APP_MESSAGES", "-1")), asyncio.Semaphore(0)
    async with aiorocket.Client(config=aiorocket.ClientConfig.from_env(), group="app") as client:
        await client.send("ticks", b"tick 0")  # a broker makes the topic
        consumer = client.consumer("app")

        @consumer.listener("ticks", start_from="first")
        async def on_tick(message: aiorocket.Message) -> None:
            if message.attempt == 1 and message.body.endswith(b"9"):
                raise aiorocket.Retry(after=1)
            print("consumed", message.body.decode(), flush=True)
            seen.release()

        async with consumer:
            number = 1
            while number != left:
                await asyncio.sleep(1)
                await client.send("ticks", f"tick {number}".encode())
                number += 1
            for _ in range(left):
                await seen.acquire()


aiorocket.run(main())
