"""The page of an embedded cluster, asked without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio

from aiorocket import Admin, ClientConfig, Embedded, RemotingConfig, embed
from aiorocket.dashboard.app import PAGES, application
from aiorocket.dashboard.settings import DashboardConfig
from aiorocket.dashboard.site import Site

Visit = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest_asyncio.fixture
async def mq() -> AsyncIterator[Embedded]:
    async with embed(broker={"register_interval": 0.3}) as embedded:
        await embedded.create_topic("orders", queues=2)
        yield embedded


@pytest_asyncio.fixture
async def admin(mq: Embedded) -> AsyncIterator[Admin]:
    soon = RemotingConfig(backoff_max=0.1)  # who is away is asked for by each page
    async with Admin(config=ClientConfig(nameservers=mq.nameservers, remoting=soon)) as admin:
        yield admin


@pytest.fixture
def visit(admin: Admin) -> Visit:
    """A browser without scripts, and the page as it was started."""

    @asynccontextmanager
    async def visiting(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        site = Site(admin, DashboardConfig(**settings), PAGES)
        transport = httpx.ASGITransport(application(site))
        host = settings.get("host", "127.0.0.1")
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}:8088") as client:
            try:
                yield client
            finally:
                await site.close()

    return visiting


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser") is not None and "browser" not in str(item.config.getoption("markexpr", "")):
        pytest.skip("the browser is run by .ci/run; by hand: -m browser, with a Chromium and playwright")
