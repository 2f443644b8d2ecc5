"""Requests that cost much: one of them in a turn of the loop, whoever asks for how many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiorocket.remoting import Connection
from aiorocket.remoting.one_at_a_time import OneAtATime
from aiorocket.remoting.processors import RequestHandler
from aiorocket_protocol import RemotingCommand


class Link:
    """A connection, whose peer reads unless told otherwise."""

    peer = "here"

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.reads = asyncio.Event()
        self.reads.set()

    async def drain(self) -> None:
        await self.reads.wait()


class Work:
    """Notes in which turn of the loop whose request began, and ends after ``turns`` of them."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.turn = 0
        self.begun: list[tuple[int, Link]] = []
        self.at_work = self.most = 0

    async def serve(self, link: Link, command: RemotingCommand) -> RemotingCommand:
        self.begun.append((self.turn, link))
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self.at_work -= 1
        return command

    def at_once(self, link: Link, command: RemotingCommand) -> RemotingCommand:
        self.begun.append((self.turn, link))
        return command

    async def count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


async def asked(work: Work, handler: RequestHandler, links: list[Any]) -> list[Any]:
    counting = asyncio.ensure_future(work.count())
    try:
        command = RemotingCommand.request(1)
        results: list[Any] = [handler(link, command) for link in links]
        return await asyncio.wait_for(asyncio.gather(*results), 30)
    finally:
        counting.cancel()


@pytest.mark.parametrize("how", [OneAtATime.begun, OneAtATime.whole])
async def test_one_begins_in_a_turn_and_nobodys_many_are_in_front(
    how: Callable[[OneAtATime, RequestHandler], RequestHandler],
) -> None:
    many, few = Link(), Link()
    for work in (Work(3), Work(0)):
        serve: Any = work.serve if work.turns else work.at_once
        answers = await asked(work, how(OneAtATime(), serve), [many] * 20 + [few] * 2)
        assert len(answers) == 22 and all(answer.code == 1 for answer in answers)
        turns = [turn for turn, _ in work.begun]
        assert len(set(turns)) == len(turns) == 22
        assert [link for _, link in work.begun[:4]].count(few) == 2


async def test_one_that_works_in_turns_has_them_for_itself() -> None:
    work = Work(5)
    serve: Any = work.serve
    await asked(work, OneAtATime().whole(serve), [Link() for _ in range(10)])
    assert work.most == 1
    await asked(work, OneAtATime().begun(serve), [Link() for _ in range(10)])
    assert work.most > 1


async def test_who_does_not_read_gets_no_more_and_keeps_nobody_waiting() -> None:
    work = Work(0)
    deaf, other = Link(), Link()
    deaf.reads.clear()
    at_once: Any = work.at_once
    handler: Any = OneAtATime().whole(at_once)
    waiting = [asyncio.ensure_future(handler(deaf, RemotingCommand.request(1))) for _ in range(3)]
    await asked(work, handler, [other] * 3)
    assert [link for _, link in work.begun] == [other] * 3
    deaf.reads.set()
    await asyncio.gather(*waiting)
    assert len(work.begun) == 6


async def test_what_fails_is_the_asker_s_alone() -> None:
    def fails(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise MemoryError

    one, link, work = OneAtATime(), Link(), Work(0)
    handler: Any = one.whole(fails)
    for _ in range(2):
        with pytest.raises(MemoryError):
            await handler(link, RemotingCommand.request(1))
    at_once: Any = work.at_once
    await asked(work, one.whole(at_once), [link, Link()])
    assert len(work.begun) == 2
