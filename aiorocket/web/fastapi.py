"""FastAPI (and Starlette): a lifespan that starts and drains messaging with the application, and a readiness route.

A start that fails fails the application: uvicorn says why and exits. Path operations declare the Client as a parameter,
``mq: MQ``, or take ``request.state.mq``; listeners find it as ``state.mq``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, TypedDict

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from aiorocket import Client, Middleware, Router
from aiorocket.config import ClientConfig, MissingTopics
from aiorocket.errors import UsageError

__all__ = ("MQ", "LifespanState", "readiness", "rocketmq_lifespan")


class LifespanState(TypedDict):
    """What the lifespan gives to requests."""

    mq: Client


def rocketmq_lifespan(
    *,
    nameservers: str | Sequence[str] | None = None,
    group: str | None = None,
    routers: Iterable[Router] = (),
    drain_timeout: float | None = None,
    config: ClientConfig | None = None,
    missing_topics: MissingTopics | None = None,
    ensure_topics: Iterable[str] = (),
    middleware: Iterable[Middleware] = (),
) -> Callable[[FastAPI], AbstractAsyncContextManager[LifespanState]]:
    """A lifespan for ``FastAPI(lifespan=...)``: a Client with the listeners of ``routers``, which get ``app.state`` as
    their ``state``.

    On shutdown the listeners that run have ``drain_timeout`` seconds to finish (``Client.running``). An application
    with a lifespan of its own enters ``Client`` and ``running()`` there instead, as this function does.
    """
    listeners, ensured, steps = tuple(routers), tuple(ensure_topics), tuple(middleware)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[LifespanState]:
        async with Client(
            nameservers=nameservers, group=group, config=config, missing_topics=missing_topics, ensure_topics=ensured,
            middleware=steps,
        ) as mq:  # fmt: skip
            for router in listeners:
                mq.include(router, state=app.state)
            app.state.mq = mq  # for listeners, which may begin before the next line returns
            async with mq.running(drain_timeout=drain_timeout):
                yield {"mq": mq}

    return lifespan


def _client(request: Request) -> Client:
    client: Any = getattr(request.state, "mq", None)
    if not isinstance(client, Client):
        raise UsageError("request.state.mq is no Client: the application's lifespan must yield {'mq': client}")
    return client


#: For a path operation's parameter: the application's Client.
MQ = Annotated[Client, Depends(_client)]


def readiness(path: str = "/readyz") -> APIRouter:
    """A router for ``app.include_router``: GET ``path`` answers with ``Client.health()`` as JSON, 200 when it is ready
    and 503 when it is not."""
    router = APIRouter()

    @router.get(path, include_in_schema=False)
    async def ready(request: Request) -> JSONResponse:
        health = _client(request).health()
        return JSONResponse(health.as_dict(), status_code=200 if health.ready else 503)

    return router
