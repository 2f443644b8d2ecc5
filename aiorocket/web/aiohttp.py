"""aiohttp: a cleanup context that starts and drains messaging with the application, and a readiness handler.

A start that fails fails the application's start. Handlers find the Client as ``request.app[MQ]``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from aiohttp import web

from aiorocket import Client, Middleware, Router
from aiorocket.config import ClientConfig, MissingTopics

__all__ = ("MQ", "readiness", "rocketmq_ctx")

#: Where the application keeps its Client.
MQ: web.AppKey[Client] = web.AppKey("aiorocket", Client)


def rocketmq_ctx(
    *,
    nameservers: str | Sequence[str] | None = None,
    group: str | None = None,
    routers: Iterable[Router] = (),
    drain_timeout: float | None = None,
    config: ClientConfig | None = None,
    missing_topics: MissingTopics | None = None,
    ensure_topics: Iterable[str] = (),
    middleware: Iterable[Middleware] = (),
) -> Callable[[web.Application], AsyncIterator[None]]:
    """A context for ``app.cleanup_ctx.append(...)``: a Client with the listeners of ``routers``, which get the
    application as their ``state``.

    On shutdown the listeners that run have ``drain_timeout`` seconds to finish (``Client.running``). Put it behind the
    contexts that make what listeners use: contexts end in the opposite order.
    """
    listeners, ensured, steps = tuple(routers), tuple(ensure_topics), tuple(middleware)

    async def context(app: web.Application) -> AsyncIterator[None]:
        async with Client(
            nameservers=nameservers, group=group, config=config, missing_topics=missing_topics, ensure_topics=ensured,
            middleware=steps,
        ) as mq:  # fmt: skip
            for router in listeners:
                mq.include(router, state=app)
            app[MQ] = mq  # before the start, because listeners may begin in it
            async with mq.running(drain_timeout=drain_timeout):
                yield

    return context


async def readiness(request: web.Request) -> web.Response:
    """For ``app.router.add_get("/readyz", readiness)``: ``Client.health()`` as JSON, 200 when it is ready and 503 when
    it is not."""
    health = request.app[MQ].health()
    return web.json_response(health.as_dict(), status=200 if health.ready else 503)
