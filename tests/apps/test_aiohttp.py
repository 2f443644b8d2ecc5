"""The click counter (aiohttp with its runner), driven over HTTP against a broker in this process."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from aiorocket import Embedded, NotConnectedError
from tests.apps import clicks
from tests.apps.conftest import Apps, Eventually, committed, stored


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    """The application under aiohttp's runner, on this loop."""
    runner = web.AppRunner(app)
    try:
        await runner.setup()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            await web.SockSite(runner, listening).start()
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        await runner.cleanup()


async def are_counted(http: aiohttp.ClientSession, url: str, page: str, clicks: int) -> bool:
    async with http.get(f"{url}/clicks/{page}") as answer:
        return bool(await answer.json() == {"clicks": clicks})


async def test_a_listener_and_the_requests_share_the_application(
    mq: Embedded, http: aiohttp.ClientSession, eventually: Eventually
) -> None:
    async with served(clicks.create(mq.nameserver_address)) as url:
        for _ in range(3):
            async with http.post(f"{url}/clicks/home") as answer:
                assert answer.status == 202
        await eventually(lambda: are_counted(http, url, "home", 3))
    assert await committed(mq, "counting", "clicks") == 3
    assert await stored(mq, "counted") == 3


async def test_readiness_follows_the_broker(mq: Embedded, http: aiohttp.ClientSession, eventually: Eventually) -> None:
    async with served(clicks.create(mq.nameserver_address)) as url:

        async def is_status(status: int) -> bool:
            async with http.get(f"{url}/readyz") as answer:
                return answer.status == status

        assert await is_status(200)
        await mq.broker.close()
        await eventually(lambda: is_status(503))
        await mq.restart()
        await eventually(lambda: is_status(200))


async def test_a_start_that_fails_fails_the_application(apps: Apps) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    with pytest.raises(NotConnectedError, match=address):
        async with served(clicks.create(address, 1)):
            pytest.fail("it started")
    app = await apps.start("clicks.py", address, 1)
    code, err = await apps.end_of(app.process)
    assert code == 1 and "NotConnectedError" in err and address in err


async def test_a_termination_waits_for_the_listener_that_runs(
    mq: Embedded, apps: Apps, http: aiohttp.ClientSession, eventually: Eventually
) -> None:
    app = await apps.start("clicks.py", mq.nameserver_address)
    async with http.post(f"{app.url}/clicks/slow", params={"seconds": "1"}) as answer:
        assert answer.status == 202
    await eventually(lambda: are_counted(http, app.url, "being counted", 1))
    app.process.send_signal(signal.SIGTERM)
    code, err = await apps.end_of(app.process)
    assert code == 0, err
    assert await stored(mq, "counted") == 1
    assert await committed(mq, "counting", "clicks") == 1


async def test_a_listener_that_does_not_end_is_not_waited_for_longer_than_promised(
    mq: Embedded, apps: Apps, http: aiohttp.ClientSession, eventually: Eventually
) -> None:
    app = await apps.start("clicks.py", mq.nameserver_address, clicks.START, 1)
    async with http.post(f"{app.url}/clicks/endless", params={"seconds": "600"}) as answer:
        assert answer.status == 202
    await eventually(lambda: are_counted(http, app.url, "being counted", 1))
    began = asyncio.get_running_loop().time()
    app.process.send_signal(signal.SIGTERM)
    code, err = await apps.end_of(app.process)
    assert asyncio.get_running_loop().time() - began >= 0.9
    assert code == 0, err
    assert (await stored(mq, "counted"), await committed(mq, "counting", "clicks")) == (0, 0)  # the next member gets it
