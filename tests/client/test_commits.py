"""What is due is sent as it was when it was looked at."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from aiorocket.client.core.start_from import Start
from aiorocket.client.group.commits import Commits, RemoteOffsets
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


async def test_where_a_queue_begins_is_stored_while_it_is_locked() -> None:
    """Its next owner had consumed from there on, and was set back."""
    other = QUEUE._replace(queue_id=1)
    locked = {QUEUE, other}
    written: list[tuple[Queue, int]] = []

    class Store:
        async def read(self, queue: Queue) -> int:
            return -1

        async def write(self, due: list[tuple[Queue, int]]) -> dict[Queue, Exception]:
            written.extend(due)
            locked.discard(other)  # while the first of the topic goes ahead
            return {}

    session = SimpleNamespace(loop=asyncio.get_running_loop())
    leases = SimpleNamespace(valid=lambda queue, now: queue in locked)
    member: Any = SimpleNamespace(session=session, leases=leases, broadcasting=False)
    commits = Commits(member, Store())
    lost = QUEUE._replace(queue_id=2)
    starts = {queue: Start(7, False, at_end=True) for queue in (QUEUE, other, lost)}
    starts[lost._replace(queue_id=3)] = Start(5, True)
    begun = await commits.store_ends(starts)
    assert set(written) == {(QUEUE, 7)}
    assert {queue.queue_id: start.stored for queue, start in begun.items()} == {0: True, 1: False, 2: False, 3: True}
