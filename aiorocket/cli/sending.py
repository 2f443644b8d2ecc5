"""Many sends at a time, bounded, with the outcome of each line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable

from aiorocket.cli.lines import Line

__all__ = ("send_lines",)


async def send_lines(
    lines: AsyncIterable[Line],
    send: Callable[[Line], Awaitable[None]],
    *,
    in_flight: int,
    rate: float | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Call ``send`` for each line, at most ``in_flight`` at a time and ``rate`` a second, until ``stop()``.

    ``send`` handles what may fail; an exception of it ends everything. Sends under way are waited for, also when
    ``lines`` raises; when this is cancelled they are cancelled too.
    """
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(in_flight)
    started = loop.time()
    count = 0

    async def one(line: Line) -> None:
        try:
            await send(line)
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        try:
            async for line in lines:
                if rate is not None:
                    await asyncio.sleep(started + count / rate - loop.time())
                await room.acquire()
                if stop():
                    room.release()
                    return
                count += 1
                group.create_task(one(line))
        except Exception as error:  # noqa: BLE001 - the group would cancel the sends under way; they are to end first
            failure = error
        else:
            return
    raise failure
