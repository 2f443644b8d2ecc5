"""A click collector (aiohttp). Clicks come by HTTP and go to a topic; a pull consumer inserts them in batches.

POST /clicks     {"page": ..., "user": ...}, 202 once a broker has it
``collect``      fetches up to 512 at a time, inserts them in one transaction, then commits the offsets
GET /pages       how often each page was clicked at

A click's place in the topic is its key in the table: what is fetched again after a crash is there already.
``python click_collector.py NAMESERVER DATABASE`` serves it on a free port, which it prints.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence

import aiosqlite
from aiohttp import web

from aiorocket import Message, PullConsumer, RocketError
from aiorocket.web.aiohttp import MQ, readiness, rocketmq_ctx

DATABASE: web.AppKey[aiosqlite.Connection] = web.AppKey("database", aiosqlite.Connection)
TABLE = (
    "CREATE TABLE IF NOT EXISTS clicks (broker TEXT, queue INTEGER, offset INTEGER, page TEXT, user TEXT, "
    "PRIMARY KEY (broker, queue, offset))"
)

log = logging.getLogger("clicks")


def row_of(message: Message) -> tuple[str, int, int, str, str]:
    click = json.loads(message.body)
    return (message.queue.broker_name, message.queue.queue_id, message.offset, click["page"], click["user"])


async def insert(database: aiosqlite.Connection, batch: Sequence[Message]) -> None:
    await database.executemany("INSERT OR IGNORE INTO clicks VALUES (?, ?, ?, ?, ?)", map(row_of, batch))
    await database.commit()


async def collect(database: aiosqlite.Connection, consumer: PullConsumer) -> None:
    while True:
        batch = await consumer.fetch(512, timeout=1)
        if batch:
            await insert(database, batch)
            try:
                await consumer.commit(batch)
            except RocketError as error:  # they are inserted; what is fetched again is ignored
                log.warning("not committed: %s", error)


async def collecting(app: web.Application) -> AsyncIterator[None]:
    async with app[MQ].pull_consumer("collector") as consumer:
        await consumer.subscribe("clicks", start_from="first")
        task = asyncio.create_task(collect(app[DATABASE], consumer))
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def opening(path: str) -> Callable[[web.Application], AsyncIterator[None]]:
    async def context(app: web.Application) -> AsyncIterator[None]:
        async with aiosqlite.connect(path) as database:
            await database.execute(TABLE)
            app[DATABASE] = database
            yield

    return context


async def click(request: web.Request) -> web.Response:
    said = await request.json()
    body = {"page": str(said["page"]), "user": str(said["user"])}
    try:
        await request.app[MQ].send("clicks", body)
    except RocketError as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from error
    return web.Response(status=202)


async def pages(request: web.Request) -> web.Response:
    async with request.app[DATABASE].execute("SELECT page, count(*) FROM clicks GROUP BY page") as found:
        return web.json_response({row[0]: row[1] for row in await found.fetchall()})


def create(nameserver: str, path: str) -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(opening(path))
    app.cleanup_ctx.append(rocketmq_ctx(nameservers=nameserver, group="clicks", ensure_topics=["clicks"]))
    app.cleanup_ctx.append(collecting)
    app.router.add_post("/clicks", click)
    app.router.add_get("/pages", pages)
    app.router.add_get("/readyz", readiness)
    return app


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        web.run_app(create(*sys.argv[1:]), sock=listening, print=None)
