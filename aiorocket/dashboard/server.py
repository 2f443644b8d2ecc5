"""Serves the page with uvicorn in the loop that runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from aiorocket import Admin
from aiorocket.dashboard.app import PAGES, application
from aiorocket.dashboard.settings import DashboardConfig
from aiorocket.dashboard.site import Site
from aiorocket.errors import UsageError
from aiorocket.runtime.tasks import TaskScope

__all__ = ("serving",)

#: Connections at a time, and seconds that one may be idle or, at the end, go on.
_MOST, _IDLE, _END = 128, 30, 3
#: Bytes that the kernel keeps of an answer. It asks for more when a third of them is gone: of the 4 MB that it takes by
#: itself, an answer that goes at 20 KB/s stood still for a minute.
_KERNEL = 128 * 1024
#: Counts what is heard of connections: many come at one time of a loop.
_turns = count()


class _Connection(H11Protocol):
    """uvicorn lets who connects ask when they like and take the answer when they like, and counts them: whoever opened
    128 connections and said nothing, or began a form on each, kept all others out. Here the one that has been silent
    longest makes room, or else the one whose form has been coming for the longest."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._heard = next(_turns)
        self._seen: tuple[object, int] = None, 0
        self._looks = self.loop.call_later(_IDLE, self._look)
        if len(self.connections) >= _MOST:
            others = {each for each in self.connections - {self} if isinstance(each, _Connection) and each._gives_way()}
            min(others, key=_Connection._rank, default=self)._drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._looks.cancel()
        super().connection_lost(exc)

    def _is_silent(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _gives_way(self) -> bool:
        return self._is_silent() or (self.cycle is not None and self.cycle.more_body)

    def _rank(self) -> tuple[bool, bool, int]:
        """Least of who goes first. Who has an answer to take, as of a long body that is saved, goes after all others:
        who takes nothing of it is let go by ``_look``."""
        return self.transport.get_write_buffer_size() > 0, not self._is_silent(), self._heard

    def _look(self) -> None:
        """Every ``_IDLE`` seconds: nothing was asked, and of the answer nothing taken, since the last look?"""
        now = self.cycle, self.transport.get_write_buffer_size()
        if now == self._seen and (now[1] or self._is_silent()):
            self._drop()
            return
        self._heard = self._heard if now == self._seen else next(_turns)
        self._seen, self._looks = now, self.loop.call_later(_IDLE, self._look)

    def _drop(self) -> None:
        self.connections.discard(self)
        self.transport.abort()


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
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL)  # of who connects too
    site = Site(admin, config, PAGES)
    server = _Server(
        uvicorn.Config(
            application(site), http=_Connection, ws="none", lifespan="off", loop="none", log_config=None,
            access_log=False, server_header=False, proxy_headers=False, limit_concurrency=_MOST,
            timeout_keep_alive=_IDLE, timeout_graceful_shutdown=_END,
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
