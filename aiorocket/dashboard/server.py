"""Serves the page with uvicorn in the loop that runs."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from aiorocket import Admin
from aiorocket.dashboard.app import PAGES, application
from aiorocket.dashboard.settings import DashboardConfig
from aiorocket.dashboard.site import Site
from aiorocket.errors import UsageError
from aiorocket.runtime.tasks import TaskScope

__all__ = ("serving",)

#: Connections at a time, and seconds that one may be idle or, at the end, go on.
_MOST, _IDLE, _END = 128, 30, 3


class _Server(uvicorn.Server):
    """Signals belong to the process that this is part of."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(admin: Admin, config: DashboardConfig) -> AsyncIterator[int]:
    """Serve the page of the cluster of ``admin``, which is started, while the block runs; gives the port, of which 0
    takes a free one. UsageError when it cannot be bound."""
    try:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        bound = socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        raise UsageError(f"dashboard on {config.host}:{config.port}: {error.strerror or error}") from error
    site = Site(admin, config, PAGES)
    server = _Server(
        uvicorn.Config(
            application(site), http="h11", ws="none", lifespan="off", loop="none", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, limit_concurrency=_MOST, timeout_keep_alive=_IDLE,
            timeout_graceful_shutdown=_END,
        )
    )  # fmt: skip
    async with TaskScope("dashboard-server") as tasks:
        site.start()
        running = tasks.start(server.serve(sockets=[bound]), name="serve")
        try:
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            await running  # pages that are being made are finished first
            await site.close()
            bound.close()
