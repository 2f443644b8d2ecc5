"""The services of ``examples``, driven over HTTP against a broker in this process. Killed they are in ``harness``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from aiorocket import Embedded
from tests.apps.conftest import Eventually
from tests.apps.examples import click_collector, order_service
from tests.apps.test_aiohttp import served as served_by_aiohttp
from tests.apps.test_fastapi import served


async def test_the_order_service(
    mq: Embedded, http: aiohttp.ClientSession, eventually: Eventually, tmp_path: Path
) -> None:
    app = order_service.create(mq.nameserver_address, f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    async with served(app) as url:

        async def place(number: str, customer: str, amount: int) -> int:
            order = {"id": number, "customer": customer, "amount": amount}
            async with http.post(f"{url}/orders", json=order) as answer:
                return answer.status

        async def page() -> str:
            async with http.get(f"{url}/dead-letters") as answer:
                return await answer.text()

        async def is_paid(number: str = "1") -> bool:
            async with http.get(f"{url}/orders/{number}") as answer:
                return (await answer.json())["status"] == "paid"

        async with http.put(f"{url}/banks/ann", params={"is_open": "false"}) as answer:
            assert answer.status == 204
        assert [await place("1", "bob", 5), await place("2", "ann", 7), await place("3", "bob", -1)] == [202] * 3
        assert await place("1", "bob", 5) == 409
        await eventually(is_paid)

        async def are_dead() -> bool:
            return (await page()).count("<tr>") == 2

        await eventually(are_dead)
        assert "<td>3</td><td>DeadLetter</td><td>order 3 of -1 cannot be paid</td>" in await page()
        assert not await is_paid("2")
        async with http.put(f"{url}/banks/ann", params={"is_open": "true"}) as answer:
            assert answer.status == 204
        async with http.post(f"{url}/dead-letters/replay") as answer:
            assert await answer.json() == {"sent": 2, "failed": 0, "skipped": 0}
        await eventually(lambda: is_paid("2"))
        assert (await page()).count("replayed") == 2

        async def are_announced() -> bool:
            store = mq.broker.store
            return sum(store.max_offset("payments-made", queue) for queue in range(4)) == 2

        await eventually(are_announced)


async def test_the_click_collector(
    mq: Embedded, http: aiohttp.ClientSession, eventually: Eventually, tmp_path: Path
) -> None:
    app = click_collector.create(mq.nameserver_address, str(tmp_path / "clicks.db"))
    async with served_by_aiohttp(app) as url:

        async def click(number: int) -> int:
            async with http.post(f"{url}/clicks", json={"page": f"p{number % 2}", "user": "ann"}) as answer:
                return answer.status

        assert set(await asyncio.gather(*map(click, range(50)))) == {202}

        async def are_counted() -> bool:
            async with http.get(f"{url}/pages") as answer:
                return bool(await answer.json() == {"p0": 25, "p1": 25})

        await eventually(are_counted)
