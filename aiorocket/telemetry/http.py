"""Answers GET over HTTP/1.1 to probes and scrapers: a few pages, in the loop, one request for each connection.

A server of its own, of a screen: those that the libraries bring block the loop, need a thread whose collectors would
read what belongs to the loop, or are an ASGI server, which a broker does not otherwise have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import NamedTuple

from aiorocket.errors import UsageError
from aiorocket.runtime.tasks import TaskScope

__all__ = ("Page", "serve_pages")

_log = logging.getLogger("aiorocket.telemetry")

#: A request's head and how long it may take with its answer. Of more connections than these the one that has said, or
#: taken, nothing for longest is closed: a probe that finds no room is a broker that is killed.
_HEAD, _PATIENCE, _MOST = 8192, 30.0, 32


#: Connections whose other end is to do something, since when in this order.
Waiting = dict[asyncio.StreamWriter, None]


class Page(NamedTuple):
    """What is answered."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    kind: str = "text/plain; charset=utf-8"


@asynccontextmanager
async def serve_pages(host: str, port: int, pages: Mapping[str, Callable[[], Awaitable[Page]]]) -> AsyncIterator[int]:
    """Answer ``pages``, by path, while the block runs; gives the port bound, of which 0 takes a free one. UsageError
    when it cannot be bound."""
    tasks = TaskScope("pages")
    waiting: Waiting = {}

    def comes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if tasks.closed:
            writer.transport.abort()
            return
        waiting[writer] = None
        if len(tasks) >= _MOST:
            longest = next(iter(waiting))
            del waiting[longest]
            longest.transport.abort()
        if writer in waiting:
            tasks.start(_answer(reader, writer, pages, waiting), name="request")

    try:
        server = await asyncio.start_server(comes, host, port, limit=_HEAD)
    except OSError as error:
        raise UsageError(f"pages on {host}:{port}: {error.strerror or error}; give another --metrics-port") from error
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await tasks.close()
        await server.wait_closed()


async def _answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    pages: Mapping[str, Callable[[], Awaitable[Page]]],
    waiting: Waiting,
) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                head = b""
            waiting.pop(writer, None)
            line = head.partition(b"\r\n")[0]
            page = await _page(line, pages)
            waiting[writer] = None
            body = b"" if line.startswith(b"HEAD ") else page.body
            writer.write(
                f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\nContent-Type: {page.kind}\r\n"
                f"Content-Length: {len(page.body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            writer.close()
            await writer.wait_closed()
    except (OSError, EOFError):
        pass  # it went away, or took too long (TimeoutError is an OSError): nobody waits for an answer
    finally:
        waiting.pop(writer, None)
        writer.transport.abort()


async def _page(line: bytes, pages: Mapping[str, Callable[[], Awaitable[Page]]]) -> Page:
    method, _, rest = line.decode("latin-1").partition(" ")
    target, _, version = rest.partition(" ")
    if not version.startswith("HTTP/1."):
        return Page(b"this is HTTP/1.1, a GET of one of a few pages\n", HTTPStatus.BAD_REQUEST)
    if method not in ("GET", "HEAD"):
        return Page(b"only GET and HEAD\n", HTTPStatus.METHOD_NOT_ALLOWED)
    make = pages.get(target.partition("?")[0])
    if make is None:
        return Page(f"not here; there are {' '.join(pages)}\n".encode(), HTTPStatus.NOT_FOUND)
    try:
        return await make()
    except Exception:  # noqa: BLE001 - whoever asks gets an answer, and the server goes on
        _log.exception("no page %s", target.partition("?")[0])
        return Page(b"the page could not be made, the log says why\n", HTTPStatus.INTERNAL_SERVER_ERROR)
