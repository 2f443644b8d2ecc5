"""The services of ``tests/apps/examples`` as processes under uvicorn and aiohttp's runner, which are killed and started
again while HTTP clients use them, and whose broker is killed and away: what was acknowledged has its effect, once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import aiohttp
import pytest

from aiorocket import Embedded, embed
from aiorocket.testing.stored import stored_messages
from tests.apps.conftest import Apps

pytestmark = pytest.mark.harness

Post = Callable[[aiohttp.ClientSession, str, int], Awaitable[bool]]


class Users:
    """Clients who post one thing after the other, to wherever the service is, and note what was acknowledged."""

    def __init__(self, post: Post) -> None:
        self.url = ""
        self.acknowledged: list[int] = []
        self._post = post
        self._next = 0

    @asynccontextmanager
    async def at_work(self, count: int) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as http:
            tasks = [asyncio.create_task(self._forever(http)) for _ in range(count)]
            yield
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _forever(self, http: aiohttp.ClientSession) -> None:
        while True:
            self._next += 1
            number = self._next
            try:
                if await self._post(http, self.url, number):
                    self.acknowledged.append(number)
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(0.05)

    async def more(self, count: int) -> None:
        """Return when so many more were acknowledged."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(120):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.01)


async def through_the_storm(
    mq: Embedded, users: Users, service: Callable[[], Awaitable[None]], process: Callable[[], None]
) -> None:
    await service()
    async with users.at_work(4):
        await users.more(20)
        process()  # kill -9
        await service()
        await users.more(20)
        await mq.restart(kill=True)
        await users.more(20)
        await mq.broker.close()  # away for a while
        await asyncio.sleep(2)
        await mq.restart()
        await users.more(20)
        process()
        await service()
        await users.more(20)


@asynccontextmanager
async def around(tmp_path: Path) -> AsyncIterator[tuple[Embedded, Apps]]:
    apps = Apps(tmp_path / "log")
    # Whose end it did not hear it asks for soon.
    soon = {"register_interval": 0.3, "transaction_timeout": 2.0, "transaction_check_interval": 3.0}
    async with embed(str(tmp_path / "store"), broker=soon) as mq:
        try:
            yield mq, apps
        finally:
            await apps.close()


def asked(database: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        return connection.execute(statement).fetchall()


@contextmanager
def printed(log: Path) -> Iterator[None]:
    """What the service logged at the end, where this fails."""
    try:
        yield
    except BaseException:
        print(log.read_text()[-20_000:])
        raise


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not true():
            await asyncio.sleep(0.1)


async def test_orders_through_kills(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"

    async def post(http: aiohttp.ClientSession, url: str, number: int) -> bool:
        order = {"id": str(number), "customer": f"c{number % 3}", "amount": number}
        async with http.post(f"{url}/orders", json=order) as answer:
            return answer.status == 202

    async with around(tmp_path) as (mq, apps):
        users, running = Users(post), []

        async def service() -> None:
            url = f"sqlite+aiosqlite:///{database}?timeout=30"
            running.append(await apps.start("examples/order_service.py", mq.nameserver_address, url))
            users.url = running[-1].url

        await through_the_storm(mq, users, service, lambda: running[-1].process.kill())

        def placed(status: str) -> set[int]:
            found = asked(database, f"SELECT id FROM orders WHERE status = '{status}'")
            return {int(str(each)) for (each,) in found}

        # Of those whose process died between the database and the broker, the broker asks the checker.
        with printed(tmp_path / "log"):
            await until(lambda: not placed("placed") and not asked(database, "SELECT id FROM aiorocket_outbox"))
        paid = placed("paid")
        assert paid >= set(users.acknowledged)
        made = [each.msg_id for each in stored_messages(mq.broker.store, "payments-made")]
        assert len(made) == len(set(made)) == len(paid)


async def test_clicks_through_kills(tmp_path: Path) -> None:
    database = tmp_path / "clicks.db"

    async def post(http: aiohttp.ClientSession, url: str, number: int) -> bool:
        async with http.post(f"{url}/clicks", json={"page": str(number), "user": "ann"}) as answer:
            return answer.status == 202

    async with around(tmp_path) as (mq, apps):
        users, running = Users(post), []

        async def service() -> None:
            running.append(await apps.start("examples/click_collector.py", mq.nameserver_address, database))
            users.url = running[-1].url

        await through_the_storm(mq, users, service, lambda: running[-1].process.kill())

        def stored() -> int:
            return len(stored_messages(mq.broker.store, "clicks"))

        with printed(tmp_path / "log"):
            await until(lambda: len(asked(database, "SELECT page FROM clicks")) == stored())
        pages = {int(str(each)) for (each,) in asked(database, "SELECT page FROM clicks")}
        assert pages >= set(users.acknowledged)
