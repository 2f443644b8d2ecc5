"""Task scopes: named, owned, ended, crashes reported. Entropy and loop beside them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiorocket.runtime import Entropy, TaskScope, WallClock, memory_env, real_env, run


async def test_close_cancels_and_waits() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    scope = TaskScope("scope")
    task = scope.start(work("a"), name="a")
    scope.start(work("b"), name="b")
    assert task.get_name() == "scope/a"
    await asyncio.sleep(0)
    await scope.close()
    assert ended == ["a", "b"] and len(scope) == 0
    with pytest.raises(RuntimeError, match="closed"):
        scope.start(work("c"), name="c")


async def test_a_crash_is_reported_and_siblings_live_on() -> None:
    crashed: list[tuple[str, BaseException]] = []

    async def crash() -> None:
        raise ValueError("broken")

    async with TaskScope("scope", lambda task, error: crashed.append((task.get_name(), error))) as scope:
        other = scope.start(asyncio.sleep(100), name="other")
        scope.start(crash(), name="crash")
        await asyncio.sleep(0.01)
        assert not other.done()
    assert [name for name, _ in crashed] == ["scope/crash"]


async def test_without_a_policy_the_loop_hears_of_it() -> None:
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))

    async def crash() -> None:
        raise ValueError("broken")

    async with TaskScope("scope") as scope:
        scope.start(crash(), name="crash")
        await asyncio.sleep(0.01)
    assert "scope/crash" in heard[0]["message"]


async def test_a_task_may_close_its_own_scope() -> None:
    scope = TaskScope("scope")
    await asyncio.wait_for(scope.start(scope.close(), name="closer"), 30)


def test_seeded_entropy_repeats() -> None:
    def draw(entropy: Entropy) -> list[Any]:
        items = list(range(10))
        entropy.shuffle(items)
        return [entropy.random(), entropy.randrange(9), items, entropy.token(5), entropy.jitter(2.0)]

    assert draw(Entropy(1)) == draw(Entropy(1)) != draw(Entropy(2))
    assert draw(Entropy()) != draw(Entropy())
    assert all(0.5 <= Entropy(n).jitter(1.0) <= 1.0 for n in range(50))


def test_environments() -> None:
    assert isinstance(real_env().clock, WallClock)
    assert memory_env().clock.wall_ms() > 1_600_000_000_000


def test_run_returns_and_ends_what_is_left() -> None:
    async def main() -> int:
        asyncio.get_running_loop().create_task(asyncio.sleep(100))
        return 7

    assert run(main()) == 7
