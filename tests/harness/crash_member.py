"""A process with a consumer of the concurrent and one of the orderly group of ``crash.py``, which alone is stopped and
goes on; and what the listeners of every process tell of their calls."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from aiorocket import Client, ClientConfig, Consumer, ConsumerConfig, Message, run
from tests.harness.crash_history import GROUPS, VALIDITY, History

__all__ = ("Member", "client_config", "consume", "member_process")

#: Seconds for which a process stands still: a stopped member is missed after 3 s, its locks end after 4, and who wants
#: them asks again within 1 or 3.
STILL = (5.0, 9.0)
#: Seconds within which somebody has a lock again after another broker has started.
_PATIENCE = 10.0
#: What an orderly call takes: two owners of a queue that has messages waiting would be seen in calls at once.
_CALL = 0.002

_CONSUMER = ConsumerConfig(
    pull_error_delay=0.1, lock_renew_interval=VALIDITY / 4, lock_validity=VALIDITY, offset_flush_interval=0.5,
)  # fmt: skip


def client_config(nameserver: str) -> ClientConfig:
    return ClientConfig(nameservers=(nameserver,), heartbeat_interval=0.5)


async def consume(stack: AsyncExitStack, client: Client, topic: str, owner: str, tell: Callable[..., None]) -> None:
    """Until ``stack`` ends: a concurrent and an orderly member, whose calls become rows of a history."""
    for group in GROUPS[:2]:
        consumer = client.consumer(group, config=_CONSUMER)
        _listen(consumer, topic, group, owner, tell)
        await stack.enter_async_context(consumer)


def _listen(consumer: Consumer, topic: str, group: str, owner: str, tell: Callable[..., None]) -> None:
    def place(message: Message) -> tuple[Any, ...]:
        now = round(time.time() * 1000)
        return message.body.decode(), group, message.queue.queue_id, message.offset, now, owner

    async def got(message: Message) -> None:
        tell("got", *place(message))

    async def in_turn(message: Message) -> None:
        row, began, what = place(message), time.monotonic(), "cut"
        try:
            await asyncio.sleep(_CALL)
            what = "got"
        finally:
            # The lease was looked at when the call was begun for the client.
            tell(what, *row, message.consume_started, began, time.monotonic())

    register = consumer.orderly if group == "in-order" else consumer.listener
    register(topic, start_from="first")(in_turn if group == "in-order" else got)


class Member:
    """The process, seen from the one that reads its rows."""

    def __init__(self, process: asyncio.subprocess.Process, history: History, draw: random.Random) -> None:
        self._process = process
        self._history = history
        self._draw = draw
        self._one_by_one = asyncio.Lock()
        self._called = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())
        self._stopping = asyncio.ensure_future(self._now_and_then())

    async def stand_still(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after ``seconds``; where an orderly call is told within some seconds, behind that."""
        async with self._one_by_one:
            self._called.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._called.wait(), _PATIENCE)
            began = time.monotonic()
            self._process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                with suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGCONT)
            self._history.add("stopped", "", began, time.monotonic())
            await asyncio.sleep(1.0)  # what it does then is what this is about

    def go_on(self) -> None:
        """It stands still no more."""
        self._stopping.cancel()

    async def ended(self) -> None:
        """Kill it; an error when it ended before."""
        self.go_on()
        early = self._process.returncode is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await asyncio.gather(self._reading, self._stopping, self._process.wait(), return_exceptions=True)
        if early:
            raise AssertionError("the process of a member has ended by itself; what it said is above")

    async def _now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._draw.uniform(1.0, 6.0))
            await self.stand_still(self._draw.uniform(*STILL))

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):  # or it was killed in the midst
                row = json.loads(line)
                self._history.add(*row)
                if row[2] == "in-order":
                    self._called.set()


@asynccontextmanager
async def member_process(nameserver: str, topic: str, history: History, draw: random.Random) -> AsyncIterator[Member]:
    search = os.pathsep.join(path for path in sys.path if path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.harness.crash_member", nameserver, topic,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": search},
    )  # fmt: skip
    member = Member(process, history, draw)
    try:
        yield member
    finally:
        await member.ended()


async def _main() -> None:
    nameserver, topic = sys.argv[1:]

    def tell(*row: Any) -> None:
        print(json.dumps(row), flush=True)

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(config=client_config(nameserver)))
        await consume(stack, client, topic, "member", tell)
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(_main())
