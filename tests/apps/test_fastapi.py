"""The bakery (FastAPI under uvicorn), driven over HTTP against a broker in this process."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI, Request

import aiorocket
from aiorocket import Embedded
from tests.apps import bakery
from tests.apps.conftest import Apps, Eventually, committed, stored


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The application under uvicorn, on this loop."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, ws="none", log_level="warning"))
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait_for(serving, 30)


async def test_a_listener_and_the_requests_share_the_state(
    mq: Embedded, http: aiohttp.ClientSession, eventually: Eventually
) -> None:
    async with served(bakery.create(mq.nameserver_address)) as url:
        async with http.post(f"{url}/orders", json={"id": "o-1"}) as answer:
            assert answer.status == 202
            assert len((await answer.json())["msg_id"]) == 32

        async def is_baked() -> bool:
            async with http.get(f"{url}/orders/o-1") as answer:
                return answer.status == 200 and (await answer.json())["status"] == "baked"

        await eventually(is_baked)
    assert await committed(mq, "bakery", "orders") == 1  # leaving committed it, ten seconds before the timer
    assert await stored(mq, "baked") == 1


async def test_readiness_follows_the_broker(mq: Embedded, http: aiohttp.ClientSession, eventually: Eventually) -> None:
    async with served(bakery.create(mq.nameserver_address)) as url:

        async def is_status(status: int) -> bool:
            async with http.get(f"{url}/readyz") as answer:
                return answer.status == status

        async with http.get(f"{url}/readyz") as answer:
            health = await answer.json()
            assert (answer.status, health["ready"], health["reasons"]) == (200, True, [])
        (consumer,) = health["consumers"]
        assert (consumer["group"], consumer["running"]) == ("bakery", True)
        assert consumer["queues"] == 3 and consumer["failing"] == 0  # two of the topic, one of the retries
        assert health["brokers"] == [{"address": mq.broker.address, "connected": True}]

        await mq.broker.close()
        await eventually(lambda: is_status(503))
        async with http.get(f"{url}/readyz") as answer:
            assert any("no broker is connected" in reason for reason in (await answer.json())["reasons"])
        await mq.restart()
        await eventually(lambda: is_status(200))


async def test_a_start_that_fails_fails_the_application(apps: Apps) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    app = await apps.start("bakery.py", address, 1)
    code, err = await apps.end_of(app.process)
    assert code == 3, err
    assert "NotConnectedError" in err and address in err and "Application startup failed" in err


async def test_a_termination_waits_for_the_listener_that_runs(
    mq: Embedded, apps: Apps, http: aiohttp.ClientSession, eventually: Eventually
) -> None:
    app = await apps.start("bakery.py", mq.nameserver_address)
    async with http.post(f"{app.url}/orders", json={"id": "slow", "seconds": 1}) as answer:
        assert answer.status == 202

    async def is_in_the_oven() -> bool:
        async with http.get(f"{app.url}/orders/slow") as answer:
            return answer.status == 200

    await eventually(is_in_the_oven)
    app.process.send_signal(signal.SIGTERM)
    code, err = await apps.end_of(app.process)
    assert code == -signal.SIGTERM, err  # uvicorn has shut down in order, then dies of the signal, as servers do
    assert "Application shutdown complete" in err
    assert await stored(mq, "baked") == 1  # the listener came to its end, and could send
    assert await committed(mq, "bakery", "orders") == 1


async def test_a_listener_that_does_not_end_is_not_waited_for_longer_than_promised(
    mq: Embedded, apps: Apps, http: aiohttp.ClientSession, eventually: Eventually
) -> None:
    app = await apps.start("bakery.py", mq.nameserver_address, bakery.START, 1)
    async with http.post(f"{app.url}/orders", json={"id": "endless", "seconds": 600}) as answer:
        assert answer.status == 202

    async def is_in_the_oven() -> bool:
        async with http.get(f"{app.url}/orders/endless") as answer:
            return answer.status == 200

    await eventually(is_in_the_oven)
    began = asyncio.get_running_loop().time()
    app.process.send_signal(signal.SIGTERM)
    code, err = await apps.end_of(app.process)
    assert asyncio.get_running_loop().time() - began >= 0.9
    assert code == -signal.SIGTERM, err
    assert (await stored(mq, "baked"), await committed(mq, "bakery", "orders")) == (0, 0)  # the next member gets it


async def test_a_lifespan_of_its_own(mq: Embedded, http: aiohttp.ClientSession, eventually: Eventually) -> None:
    """Without the helper: the application enters the Client and its consumers where it likes, and stops them there."""
    router, baked = aiorocket.Router(), []
    lived: list[aiorocket.Client] = []

    @router.listener("orders", start_from="first")
    async def bake(message: aiorocket.Message, state: Any) -> None:
        baked.append((state.oven, message.keys))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, aiorocket.Client]]:
        async with aiorocket.Client(nameservers=mq.nameserver_address, group="own") as client:
            app.state.oven = "wood"
            client.include(router, state=app.state)
            async with client.running(drain_timeout=bakery.DRAIN):
                lived.append(client)
                yield {"mq": client}

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{number}")
    async def create(number: str, request: Request) -> dict[str, str]:
        receipt = await request.state.mq.send("orders", b"bread", keys=[number])
        return {"msg_id": receipt.msg_id}

    @app.get("/readyz")
    async def ready(request: Request) -> Any:
        return request.state.mq.health().as_dict()

    async with served(app) as url:
        async with http.get(f"{url}/readyz") as answer:
            health = await answer.json()
            assert health["ready"] and [each["group"] for each in health["consumers"]] == ["own"]
        async with http.post(f"{url}/orders/o-1") as answer:
            assert len((await answer.json())["msg_id"]) == 32

        async def is_baked() -> bool:
            return bool(baked)

        await eventually(is_baked)
    assert baked == [("wood", ["o-1"])]
    assert await committed(mq, "own", "orders") == 1
    assert not lived[0].session.started
