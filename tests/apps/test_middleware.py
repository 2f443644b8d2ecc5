"""Middleware of applications: the lifespan and the context give theirs to the Client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from fastapi import FastAPI

from aiorocket import Client, Embedded, Message, Middleware, OutgoingMessage, Router
from aiorocket.web.aiohttp import MQ, rocketmq_ctx
from aiorocket.web.fastapi import rocketmq_lifespan


class Seen(Middleware):
    def __init__(self) -> None:
        self.what: list[object] = []

    def attached(self, client: Any) -> None:
        self.what.append(type(client))

    async def publish(self, messages: list[OutgoingMessage], call_next: Any) -> Any:
        self.what.append(messages[0].body)
        return await call_next(messages)

    async def consume(self, messages: list[Message], call_next: Any) -> Any:
        self.what.append(messages[0].topic)
        return await call_next(messages)


@pytest.mark.parametrize("framework", ["fastapi", "aiohttp"])
async def test_middleware_of_an_application(mq: Embedded, framework: str) -> None:
    seen, router, got = Seen(), Router("kitchen"), []

    @router.listener("orders", start_from="first")
    async def listener(order: dict[str, str]) -> None:
        got.append(order)

    options: Any = {
        "nameservers": mq.nameserver_address, "group": "shop", "routers": [router], "middleware": iter([seen]),
    }  # fmt: skip
    if framework == "fastapi":
        async with rocketmq_lifespan(**options)(FastAPI()) as state:
            await state["mq"].send("orders", {"id": "o-1"})
            await until(got)
    else:
        app = web.Application()
        app.cleanup_ctx.append(rocketmq_ctx(**options))
        runner = web.AppRunner(app)
        await runner.setup()
        await app[MQ].send("orders", {"id": "o-1"})
        await until(got)
        await runner.cleanup()
    assert got == [{"id": "o-1"}] and seen.what == [Client, b'{"id":"o-1"}', "orders"]


async def until(got: list[Any]) -> None:
    async with asyncio.timeout(30):
        while not got:
            await asyncio.sleep(0.01)
