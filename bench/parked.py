"""Ten thousand connections, each with one parked pull: plain sockets and frames, so that the client costs little.

Every connection pulls a queue of its own and pulls again when the hold ends, as a consumer does.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import cast

from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    MSGPACK,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    FrameSplitter,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageRequestHeaderV2,
    decode,
    encode,
    pull_header,
)

HOLD_MS = 15_000
#: Connections opened at once; opening them all takes a hold, so that their holds end evenly spread, as they do in life.
OPENING = 5


class Puller(asyncio.Protocol):
    """One connection with one pull on it."""

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic, self.queue_id, self.offset = topic, queue_id, 0
        self.splitter = FrameSplitter()
        self.found: asyncio.Future[float] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.pull()

    def pull(self) -> None:
        flags = PULL_SUSPEND | PULL_SUBSCRIPTION
        header = pull_header("parked", self.topic, self.queue_id, self.offset, 32, flags=flags, hold_ms=HOLD_MS)
        self.transport.write(encode(RemotingCommand.request(RequestCode.PULL_MESSAGE, header), MSGPACK))

    def data_received(self, data: bytes) -> None:
        for kind, header, body in self.splitter.feed(data):
            answer = decode(kind, header, body)
            if answer.code == 0 and self.found is not None:
                self.found.set_result(time.monotonic())
                self.offset += 1
            elif answer.code != ResponseCode.PULL_NOT_FOUND:
                raise RuntimeError(f"a parked pull was answered with {answer.code}: {answer.remark}")
            self.pull()


class Sender(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, topic: str, queue_id: int) -> None:
        header = SendMessageRequestHeaderV2(
            "bench", topic, AUTO_CREATE_TOPIC, 4, queue_id, 0, int(time.time() * 1000), 0, ""
        )
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body=b"wake")
        self.transport.write(encode(command, MSGPACK))


async def park(port: int, count: int, topic: str) -> list[Puller]:
    """``count`` connections whose pulls are parked when this returns."""
    loop = asyncio.get_running_loop()
    pullers = [Puller(f"{topic}-{number // 1000}", number % 1000) for number in range(count)]
    pause = HOLD_MS / 1e3 * OPENING / count
    for begin in range(0, count, OPENING):
        part = pullers[begin : begin + OPENING]
        await asyncio.gather(*(loop.create_connection(lambda p=each: p, "127.0.0.1", port) for each in part))  # type: ignore[misc]
        await asyncio.sleep(pause)
    return pullers


async def wake(port: int, pullers: list[Puller], count: int) -> list[float]:
    """One message at a time to a queue chosen by chance: milliseconds from each send to the answer of its pull."""
    loop, chance, times = asyncio.get_running_loop(), random.Random(7), list[float]()
    transport, sender = await loop.create_connection(Sender, "127.0.0.1", port)
    for _ in range(count):
        puller = chance.choice(pullers)
        puller.found = loop.create_future()
        began = time.monotonic()
        sender.send(puller.topic, puller.queue_id)
        times.append((await asyncio.wait_for(puller.found, 5) - began) * 1e3)
        puller.found = None
        await asyncio.sleep(0.001)
    transport.close()
    return times
