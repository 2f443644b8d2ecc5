"""``at=``, ``after=`` and ``recall`` at Apache's broker as at ours."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from aiorocket import Consumer, Message, Producer
from aiorocket.errors import RemoteError
from tests.interop.peers import Server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


async def test_messages_come_when_they_are_due_and_recalled_ones_do_not(server: Server) -> None:
    came: dict[bytes, float] = {}
    consumer = Consumer("timed", nameservers=server.nameserver)

    @consumer.listener("timed", start_from="first")
    async def take(message: Message) -> None:
        came[message.body] = time.time()

    async with Producer("timed-sender", nameservers=server.nameserver) as producer:
        await producer.send("timed", b"now", timeout=20)
        async with consumer:
            due = datetime.now(UTC) + timedelta(seconds=6)
            await producer.send("timed", b"at", at=due, timeout=20)
            await producer.send("timed", b"after", after=timedelta(seconds=4))
            taken = await producer.send("timed", b"recalled", after=timedelta(seconds=7))
            assert taken.recall_handle is not None
            assert await producer.recall(taken.recall_handle) == taken.msg_id
            async with asyncio.timeout(120):
                while len(came) < 3:
                    await asyncio.sleep(0.1)
            await asyncio.sleep(6)
            assert came.keys() == {b"now", b"at", b"after"}
            # Apache's broker rounds to the second, and down.
            assert came[b"at"] >= due.timestamp() - (1.1 if server.kind == "apache" else 0)
            with pytest.raises(RemoteError):
                await producer.recall(taken.recall_handle)
