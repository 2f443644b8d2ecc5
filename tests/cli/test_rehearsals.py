"""As an operator: each symptom of docs/operating.md is made, and its commands, as they stand there, find the cause."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiorocket as rocket
from aiorocket.runtime.threads import in_thread

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")


def steps(symptom: str) -> list[tuple[str, str]]:
    """The commands of a symptom, and what each shows."""
    part = PAGE.partition(f"\n### {symptom}\n")[2].partition("```sh\n")[2].partition("```")[0]
    found = [re.split(r"\s+# ", line.removeprefix("aiorocket "), maxsplit=1) for line in part.splitlines()]
    assert found and all(len(each) == 2 for each in found)
    return [(command, shown) for command, shown in found]


async def walk(aiorocket: Any, nameserver: str, symptom: str, client: str = "") -> list[Any]:
    """Run its commands; what they printed."""
    results = []
    for command, shown in steps(symptom):
        words = command.replace("CLIENT", client).split()
        result = await in_thread(lambda words=words: aiorocket.run(*words, AIOROCKET_NAMESERVER=nameserver))
        assert shown.startswith("two rows") or shown.replace("CLIENT", client) in result.out, (command, result)
        results.append(result)
    return results


async def send(nameserver: str, *keys: str) -> None:
    async with rocket.Producer("shop", nameservers=nameserver) as producer:
        for key in keys:
            await producer.send("orders", b"42 EUR", tag="paid", keys=[key])


async def test_a_consumer_is_stuck(aiorocket: Any, standalone: str) -> None:
    await send(standalone, "o-1", "o-2")
    begun, never = asyncio.Event(), asyncio.Event()
    async with rocket.Client(nameservers=standalone) as client:
        consumer = client.consumer("billing")

        @consumer.listener("orders", start_from="first")
        async def on_order(message: rocket.Message) -> None:
            begun.set()
            await never.wait()

        async with consumer, asyncio.timeout(120):
            await begun.wait()
            await walk(aiorocket, standalone, "A consumer is stuck", client.client_id)
            never.set()


async def test_lag_grows_and_duplicate_deliveries(aiorocket: Any, standalone: str) -> None:
    await send(standalone, "o-0")
    done = asyncio.Event()
    async with rocket.Client(nameservers=standalone) as client:
        consumer = client.consumer("billing")

        @consumer.listener("orders", start_from="first")
        async def on_order(message: rocket.Message) -> None:
            done.set()

        async with consumer, asyncio.timeout(120):
            await done.wait()
    await send(standalone, "o-1", "o-1")  # and nobody is there any more
    await walk(aiorocket, standalone, "Lag grows")
    twice, _ = await walk(aiorocket, standalone, "Duplicate deliveries")
    assert len({row["msg_id"] for row in json.loads(twice.out)["rows"]}) == 2


async def test_messages_vanish(aiorocket: Any, standalone: str) -> None:
    await send(standalone, "o-1")
    async with (
        rocket.Client(nameservers=standalone) as one,
        rocket.Client(nameservers=standalone) as other,
        asyncio.timeout(120),
    ):
        consumers = []
        for client, tag in ((one, "paid"), (other, "refused")):
            consumers.append(consumer := client.consumer("billing"))

            @consumer.listener("orders", tags=tag)
            async def on_order(message: rocket.Message) -> None:
                pass

        async with consumers[0], consumers[1]:
            await walk(aiorocket, standalone, "Messages vanish")


async def test_the_disk_is_full(aiorocket: Any, ports: Callable[[str], list[int]]) -> None:
    # As much has to be free as no disk has.
    start = ("standalone", "--port", "0", "--broker-port", "0", "--data", "s", "--min-free", str(1 << 60))
    _, line = await in_thread(lambda: aiorocket.server(*start))
    nameserver = f"127.0.0.1:{ports(line)[0]}"
    refused = await in_thread(lambda: aiorocket.run("produce", "orders", "--nameserver", nameserver, stdin=b"x\n"))
    assert refused.code == 1
    await walk(aiorocket, nameserver, "The disk is full")
