"""What is due is sent as it was when it was looked at."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from aiorocket.client.group.commits import RemoteOffsets
from aiorocket.config import ClientConfig
from aiorocket.errors import NotConnectedError
from aiorocket.model import Queue
from aiorocket_protocol import RemotingCommand

QUEUE = Queue("t", "broker-a", 0)


def offsets(live: Any, connect: Any = None) -> RemoteOffsets:
    session = SimpleNamespace(live=lambda _address: live, config=ClientConfig(), connection=connect)
    member: Any = SimpleNamespace(
        session=session, wire_group="g", leases=None, master_address=lambda queue: queue.broker_name or None
    )
    return RemoteOffsets(member)


class Link:
    def __init__(self) -> None:
        self.sent: list[int] = []

    def request(self, command: RemotingCommand, timeout: float) -> asyncio.Future[RemotingCommand]:
        header: Any = command.header
        self.sent.append(header.commit_offset)
        answered: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        answered.set_result(RemotingCommand.response())
        return answered


async def test_what_is_due_is_sent_before_anything_else_is_done() -> None:
    """A turn later a pull had committed more on the same connection, and this set it back."""
    link = Link()

    async def connect(address: str) -> Link:
        return link

    writing = asyncio.ensure_future(
        offsets(link, connect).write([(QUEUE, 5), (QUEUE._replace(broker_name="broker-b"), 6)])
    )
    await asyncio.sleep(0)
    assert link.sent == [5, 6]
    assert await writing == {}


async def test_who_is_not_connected_is_connected_first() -> None:
    link = Link()

    async def connect(address: str) -> Link:
        if address == "broker-b":
            raise NotConnectedError("away")
        return link

    nowhere, away = QUEUE._replace(broker_name=""), QUEUE._replace(broker_name="broker-b")
    failures = await offsets(None, connect).write([(QUEUE, 5), (away, 6), (nowhere, 7)])
    assert link.sent == [5]
    assert {queue: str(error) for queue, error in failures.items()} == {away: "away", nowhere: "no route to broker ''"}
