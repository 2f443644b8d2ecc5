"""An asyncio event loop in virtual time: the same code as on uvloop, hours in milliseconds, the same run for the same
seed.

Time stands still while anything can run and then jumps to the next timer. ``call_soon`` stays first in first out,
because asyncio promises that; which of several equal timers fires first, how long executor jobs and the network take is
drawn from the seed. When nothing can ever run again, SimDeadlock names the tasks that wait: lost wake-ups show
themselves.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import socket
import weakref
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

from aiorocket.testing.sim_network import SimNetwork, SimProcess

__all__ = ("SimDeadlock", "SimLoop")

_FOREVER = float("inf")


class SimDeadlock(AssertionError):
    """Nothing can run and no timer is armed, while tasks still wait."""


class SimLoop(asyncio.BaseEventLoop):
    """See the module. ``network`` is the in-memory network, ``random`` the generator everything here draws from."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.random = random.Random(seed)
        self.network = SimNetwork(self, self.random, self.note)
        #: Callbacks run so far, and a checksum over timers and network deliveries: equal for two runs of one seed.
        self.steps = 0
        self.digest = 0
        self._now = 0.0
        #: By time; ties are broken by a draw, then by age: asyncio promises no order among equal timers.
        self._timers: list[tuple[float, float, int, Any]] = []
        self._sequence = 0
        self._callbacks = cast("Any", self)._ready
        self._hosts: weakref.WeakKeyDictionary[asyncio.Task[Any], SimProcess | None] = weakref.WeakKeyDictionary()
        self.set_task_factory(cast("Any", self._make_task))

    def time(self) -> float:
        return self._now

    def block(self, seconds: float) -> None:
        """Keep the loop, as a call that does not wait: nothing runs meanwhile, on any host."""
        self._now += seconds

    def _make_task(
        self, _loop: object, coro: Any, context: contextvars.Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, context=context, **options)
        self._hosts[task] = SimProcess.current.get() if context is None else context.get(SimProcess.current)
        return task

    def host_of(self, task: asyncio.Task[Any]) -> SimProcess | None:
        """The simulated host a task was started on; None for the scenario's own."""
        return self._hosts.get(task)

    def living_tasks(self) -> list[asyncio.Task[Any]]:
        """Unfinished tasks of hosts that were not killed, by name."""
        tasks = [task for task, host in self._hosts.items() if not task.done() and (host is None or host.alive)]
        return sorted(tasks, key=lambda task: task.get_name())

    def drop_dead_tasks(self) -> None:
        """Close the coroutines of killed hosts while there is a loop. What they clean up (a lock that wakes its waiter)
        matters to nobody any more, and would fail when the collector makes them do it after the end."""
        for task, host in list(self._hosts.items()):
            if host is not None and not host.alive and not task.done():
                with suppress(Exception):
                    task.get_coro().close()

    def note(self, what: str) -> None:
        """Add an event to ``digest``."""
        self.digest = zlib.crc32(f"{self._now:.9f} {what}".encode(), self.digest)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        self._sequence += 1
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self.random.random(), self._sequence, timer))
        return timer

    def call_soon(  # type: ignore[override]  # as of call_at: without its type variables
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        self._callbacks.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return None

    def _run_once(self) -> None:
        # A simulated hour is millions of callbacks: attributes of handles are read, not asked for.
        timers, ready, host_of = self._timers, self._callbacks, SimProcess.current
        if not ready and not cast("Any", self)._stopping:
            while timers:
                first = timers[0][3]
                host = first._context.get(host_of)
                if not first._cancelled and (host is None or host.alive):
                    break
                heapq.heappop(timers)
            if not timers or timers[0][0] == _FOREVER:
                raise SimDeadlock(self._who_waits())
            self._now = max(self._now, timers[0][0])
            self.note("timer")
        now = self._now
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[3]
            if not timer._cancelled:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            host = handle._context.get(host_of)
            if host is None or host.awake:
                self.steps += 1
                handle._run()
            elif host.alive:
                host.missed.append(handle)

    def run_soon(self, handles: Iterable[asyncio.Handle]) -> None:
        """Run in the next turn, in this order, what a host has missed."""
        self._callbacks.extend(handles)

    def _who_waits(self) -> str:
        lines = [f"deadlock at virtual time {self._now:.6f} (seed {self.seed}): nothing can run, no timer is armed"]
        for task in self.living_tasks():
            stack = task.get_stack(limit=1)
            where = f"{stack[-1].f_code.co_filename}:{stack[-1].f_lineno}" if stack else "?"
            lines.append(f"  {task.get_name()} waits at {where}")
        return "\n".join(lines)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """No thread: the job runs inline, at a drawn later instant."""
        future = self.create_future()

        def job() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - the job's error belongs to whoever awaits the job
                if not future.done():
                    future.set_exception(error)
                return
            if not future.done():
                future.set_result(result)

        self.call_later(self.random.uniform(0.00001, 0.001), job)
        return future

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        name = host.decode("ascii") if isinstance(host, bytes) else host
        address = "127.0.0.1" if name in (None, "localhost") else name
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port or 0)))]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if options.get("ssl") or options.get("sock"):
            raise NotImplementedError("the simulated network has neither TLS nor real sockets")
        [(_, _, _, _, (address, number))] = await self.getaddrinfo(host, port)
        return await self.network.connect(protocol_factory, address, number)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if options.get("ssl") or options.get("sock"):
            raise NotImplementedError("the simulated network has neither TLS nor real sockets")
        return self.network.listen(protocol_factory, host, int(port or 0))

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        return None

    def _write_to_self(self) -> None:
        return None

    def _process_events(self, event_list: object) -> None:
        return None
