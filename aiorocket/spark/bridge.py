"""From Spark's plain functions to coroutines: one event loop for each process, in a daemon thread that the first use
starts.

Spark forks its Python workers and uses them for task after task, so what is opened here (connections, routes) serves
the next task too. A child of a fork begins anew: neither the thread nor the sockets of its parent are its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aiorocket.config import ClientConfig, TlsConfig
from aiorocket.config.addresses import read_address_map
from aiorocket.errors import RequestTimeoutError, UsageError
from aiorocket.runtime.loop import new_event_loop

if TYPE_CHECKING:
    from aiorocket.client.pipeline.reading import Session
    from aiorocket.spark.options import ConnectionOptions

__all__ = ("begin", "call", "client", "client_config", "close", "holding", "iterate")

T = TypeVar("T")

#: Where a process keeps its loops, by process id. Not a global of this module: with Spark Connect a worker may get the
#: module inside every pickled task, and each of those copies would start a thread of its own.
_HOLDER = "_aiorocket_spark_bridge"
#: How long the end of an iteration waits for its pulls to be gone.
_CLOSE_TIMEOUT = 5.0


class _Bridge:
    """The loop of process ``pid`` and the clients that live in it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = new_event_loop()
        self.clients: dict[object, _Cached] = {}
        self.making: asyncio.Lock | None = None
        self.thread = threading.Thread(target=self._run, name="aiorocket-spark", daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def usable(self) -> bool:
        return self.pid == os.getpid() and self.thread.is_alive()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if threading.current_thread() is self.thread:
            coroutine.close()
            raise UsageError("this would wait for the event loop inside of it: await the coroutine instead")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def end_all(self) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        cached, self.clients = list(self.clients.values()), {}
        for each in cached:
            await each.stop()


def _bridge() -> _Bridge:
    """This process's bridge, started if need be."""
    kept = vars(sys.modules.setdefault(_HOLDER, ModuleType(_HOLDER)))
    # Those of other processes stay: what a fork copied must not be finalised here, its sockets are the parent's.
    bridges: dict[int, _Bridge] = kept.setdefault("bridges", {})
    pid = os.getpid()
    # A lock for each process too: the parent's may be held, for good, in a child of its fork.
    lock: threading.Lock = kept.setdefault(f"lock of {pid}", threading.Lock())
    with lock:
        bridge = bridges.get(pid)
        if bridge is None or not bridge.usable:
            bridge = _Bridge()
            bridge.thread.start()
            bridge.submit(_nothing()).result()
            bridges[pid] = bridge
            # Spark's workers leave without this; a driver that ends in the middle of a read would end with a complaint.
            atexit.register(_close_in_time)
    return bridge


async def _nothing() -> None:
    """Returns when the loop runs."""


def call(function: Callable[..., Coroutine[Any, Any, T]], *args: Any, timeout: float | None = None) -> T:
    """``await function(*args)`` in this process's loop: its result, or what it raises.

    RequestTimeoutError when it takes longer than ``timeout`` seconds; it is cancelled then, as it is when the wait is
    interrupted. UsageError inside of the loop itself.
    """
    future = _bridge().submit(_limited(function, args, timeout))
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def begin(function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
    """Starts ``function(*args)`` in this process's loop; ``cancel`` of what is returned ends it, as does ``close``."""
    return _bridge().submit(function(*args))


async def _limited(function: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...], timeout: float | None) -> T:
    try:
        async with asyncio.timeout(timeout) as limit:
            return await function(*args)
    except TimeoutError:
        if not limit.expired():
            raise
        name = getattr(function, "__qualname__", repr(function))
        raise RequestTimeoutError(f"{name} did not end within {timeout:g} s") from None


class _Failure(NamedTuple):
    error: BaseException


_END = _Failure(StopAsyncIteration())


def iterate(
    function: Callable[..., AsyncGenerator[T, None]], *args: Any, prefetch: int = 2
) -> Generator[T, None, None]:
    """The items of the asynchronous generator ``function(*args)``, which runs in this process's loop.

    It runs ahead by ``prefetch`` items and begins with the first ``next``. What it raises is raised here. When this
    iterator is closed or dropped before its end, the generator is cancelled and closed; the close returns when that is
    done, after 5 s at the latest.
    """
    if prefetch < 1:
        raise UsageError(f"prefetch={prefetch}: 1 or more")
    bridge = _bridge()
    loop = bridge.loop
    ready: SimpleQueue[T | _Failure] = SimpleQueue()
    room = asyncio.Semaphore(prefetch)
    ended = threading.Event()

    async def pump() -> None:
        items = function(*args)
        try:
            while True:
                await room.acquire()
                ready.put(await anext(items))
        except StopAsyncIteration:
            ready.put(_END)
        except asyncio.CancelledError:
            ready.put(_Failure(UsageError("the bridge was closed in the middle of an iteration")))
            raise
        except Exception as error:  # noqa: BLE001 - it is raised on the other side
            ready.put(_Failure(error))
        finally:
            await items.aclose()

    tasks: list[asyncio.Task[None]] = []

    def start() -> None:
        tasks.append(loop.create_task(pump()))
        tasks[0].add_done_callback(lambda _: ended.set())

    loop.call_soon_threadsafe(start)
    try:
        while True:
            item = ready.get()
            if isinstance(item, _Failure):
                break
            if bridge.usable:
                loop.call_soon_threadsafe(room.release)
            yield item
            del item  # not kept in memory while the next one is waited for
    finally:
        # A child of a fork that drops its copy has nothing to close; at the interpreter's end, and in the loop's own
        # thread (the collector runs anywhere), nobody may wait for the loop.
        if bridge.usable and not ended.is_set():
            loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            if threading.current_thread() is not bridge.thread and not sys.is_finalizing():
                ended.wait(_CLOSE_TIMEOUT)
    if item is not _END:
        raise item.error


class _Cached:
    """A started client and who uses it. ``idle_timeout`` seconds after the last use it is stopped."""

    def __init__(self, bridge: _Bridge, key: object, client: Session, idle_timeout: float) -> None:
        self.client = client
        self.holds = 0
        self._bridge = bridge
        self._key = key
        self._idle_timeout = idle_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._stopping: asyncio.Task[None] | None = None
        self.used()

    def used(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._bridge.loop.call_later(self._idle_timeout, self._look)

    def _look(self) -> None:
        if self.holds or self.client.producers or self.client.consumers:
            self.used()
        elif self._bridge.clients.get(self._key) is self:
            del self._bridge.clients[self._key]
            self._stopping = self._bridge.loop.create_task(self.stop())

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self.client.stop()


async def client(connection: ConnectionOptions) -> Session:
    """A started Session for ``connection``: the same one for the same connection, for as long as it is used.

    It is stopped when it was neither asked for nor ``holding`` nor given to a producer for ``idle_timeout`` seconds.
    Nothing is connected before the first request. For coroutines that ``call`` and ``iterate`` run; UsageError
    elsewhere, ConfigError as of ``client_config``.
    """
    bridge = _bridge()
    if asyncio.get_running_loop() is not bridge.loop:
        raise UsageError("client() belongs to the loop of aiorocket.spark.bridge: use it through call() or iterate()")
    if bridge.making is None:
        bridge.making = asyncio.Lock()
    async with bridge.making:
        cached = bridge.clients.get(connection)
        if cached is None or not cached.client.started:
            from aiorocket.client.pipeline.reading import Session

            made = Session(config=client_config(connection))
            await made.start()
            cached = bridge.clients[connection] = _Cached(bridge, connection, made, connection.idle_timeout)
    cached.used()
    return cached.client


@contextmanager
def holding(client: Session) -> Iterator[None]:
    """Keep a client of ``client()`` from being stopped meanwhile; any other client is left as it is."""
    bridges: dict[int, _Bridge] = getattr(sys.modules.get(_HOLDER), "bridges", {})
    bridge = bridges.get(os.getpid())
    found = [each for each in bridge.clients.values() if each.client is client] if bridge is not None else []
    for each in found:
        each.holds += 1
    try:
        yield
    finally:
        for each in found:
            each.holds -= 1
            each.used()


def client_config(connection: ConnectionOptions) -> ClientConfig:
    """The settings of a client for ``connection``. ConfigError when they contradict each other. Where it has no
    addresses the environment of this process may: executors may reach brokers under other ones than the driver."""
    tls: TlsConfig | bool = connection.tls
    if connection.tls:
        tls = TlsConfig(
            ca=connection.tls_ca, cert=connection.tls_cert, key=connection.tls_key, verify=connection.tls_verify
        )
    return ClientConfig(
        nameservers=connection.name_servers,
        namespace=connection.namespace,
        access_key=connection.access_key,
        secret_key=connection.secret_key,
        security_token=connection.security_token,
        credentials_file=connection.credentials_file,
        tls=tls,
        address_map=dict(connection.address_map) or read_address_map(os.environ.get("AIOROCKET_ADDRESS_MAP", "")),
    )


def _close_in_time() -> None:
    try:
        close(_CLOSE_TIMEOUT)
    except TimeoutError:
        pass  # the process ends, and the thread with it


def close(timeout: float | None = None) -> None:
    """End what runs in the loop, stop the clients, the loop and its thread; the next use starts anew. TimeoutError when
    that takes longer than ``timeout`` seconds. A worker's end needs no close."""
    bridges: dict[int, _Bridge] = getattr(sys.modules.get(_HOLDER), "bridges", {})
    bridge = bridges.pop(os.getpid(), None)
    if bridge is None or not bridge.usable:
        return
    bridge.submit(bridge.end_all()).result(timeout)
    bridge.loop.call_soon_threadsafe(bridge.loop.stop)
    bridge.thread.join()
    bridge.loop.close()
