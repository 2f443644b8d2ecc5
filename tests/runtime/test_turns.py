"""Calls that are made some in a turn of the loop: in their order, each once, whatever one of them does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

from aiorocket.runtime.turns import Rounds, Turns


async def test_so_many_calls_are_made_in_a_turn_in_their_order_and_made_up_when_it_is_theirs() -> None:
    turns, made_up, called = Turns(4), list[int](), list[int]()

    def calls() -> Iterator[Callable[[], None]]:
        for number in range(1, 10):
            made_up.append(number)
            yield partial(called.append, number)

    turns.soon(partial(called.append, 0))
    turns.all(calls())
    turns.all(())
    turns.soon(partial(called.append, 10))
    assert not made_up
    for upto in (4, 8, 11):
        await asyncio.sleep(0)
        assert called == list(range(upto)) and len(made_up) == min(upto - 1, 9)
    await asyncio.sleep(0)
    assert not turns._calls


async def test_one_that_fails_or_asks_for_more_keeps_no_other_from_its_turn() -> None:
    turns, called, failed = Turns(2), list[int](), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))

    def fail() -> None:
        turns.soon(partial(called.append, 2))
        raise MemoryError

    turns.all([fail, partial(called.append, 1)])
    for _ in range(4):
        await asyncio.sleep(0)
    assert called == [1, 2] and len(failed) == 1 and not turns._calls


async def test_long_works_go_on_side_by_side_each_for_its_slice() -> None:
    rounds, done = Rounds(most=10, a_slice=4), list[str]()
    failed = list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))

    def work(name: str, steps: int) -> Generator[None, None, None]:
        for _ in range(steps):
            if rounds.over():
                yield
            if name == "fails":
                raise MemoryError
            rounds.spend(2)
            done.append(name)

    assert not rounds.begin(work("a", 7)) and done == ["a", "a"]
    assert rounds.begin(work("b", 2)) and not rounds.begin(work("c", 3))  # the last of this turn
    assert done == [*"aabbc"] and not rounds.begin(work("fails", 1)) and len(rounds) == 3
    await asyncio.sleep(0)
    assert done == [*"aabbc", *"aacc"] and len(failed) == 1 and len(rounds) == 1
    await asyncio.sleep(0)
    assert done == [*"aabbcaacc", *"aa"] and rounds.turn == 2
    await asyncio.sleep(0)
    assert done == [*"aabbcaaccaa", "a"] and not len(rounds)
