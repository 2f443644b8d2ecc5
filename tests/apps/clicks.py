"""A small aiohttp service: POST /clicks/{page} reports a click, a listener counts them, GET /clicks/{page} shows the
count.

``python clicks.py NAMESERVER [START [DRAIN]]`` serves it on a free port, which it prints.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter

from aiohttp import web

import aiorocket
from aiorocket.web.aiohttp import MQ, readiness, rocketmq_ctx

#: Patience with servers that are not there, at the start, and with listeners, at the end.
START = DRAIN = 30.0
COUNTS: web.AppKey[Counter[str]] = web.AppKey("counts", Counter)

router = aiorocket.Router("counting")


@router.listener("clicks", start_from="first")
async def count(message: aiorocket.Message, state: web.Application) -> None:
    seconds = float(message.properties.get("seconds", 0))
    if seconds:
        state[COUNTS]["being counted"] += 1
        await asyncio.sleep(seconds)
    state[COUNTS][message.body.decode()] += 1
    await state[MQ].send("counted", message.body)


async def click(request: web.Request) -> web.Response:
    page, seconds = request.match_info["page"], request.query.get("seconds", "0")
    await request.app[MQ].send_oneway("clicks", page.encode(), properties={"seconds": seconds})
    return web.Response(status=202)


async def show(request: web.Request) -> web.Response:
    return web.json_response({"clicks": request.app[COUNTS][request.match_info["page"]]})


def create(nameserver: str, start: float = START, drain: float = DRAIN) -> web.Application:
    app = web.Application()
    app[COUNTS] = Counter()
    soon = aiorocket.ConsumerConfig(pull_error_delay=0.2)  # a broker that was away is looked at a moment later
    config = aiorocket.ClientConfig(nameservers=(nameserver,), start_timeout=start, consumer=soon)
    app.cleanup_ctx.append(rocketmq_ctx(group="web", routers=[router], drain_timeout=drain, config=config))
    app.router.add_post("/clicks/{page}", click)
    app.router.add_get("/clicks/{page}", show)
    app.router.add_get("/readyz", readiness)
    return app


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        web.run_app(create(sys.argv[1], *map(float, sys.argv[2:])), sock=listening, print=None)
