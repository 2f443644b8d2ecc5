"""Several brokers beside one name server, each a process of its own: one interpreter works on one core."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from aiorocket.errors import RocketError
from aiorocket.runtime.tasks import TaskScope

__all__ = ("stop_at_end_of_input", "supervised")

_log = logging.getLogger("aiorocket.supervisor")

#: Seconds until a broker that died is started again; doubled each time, up to the second, until one has lived for the
#: third.
_PAUSE, _LONGEST_PAUSE, _WELL = 1.0, 30.0, 60.0

_READY = re.compile(rb"broker \S+ ready on (\S+) ")


class _Supervised:
    """One broker's process, started again whenever it ends."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.address = ""
        self._arguments = arguments
        self._process: Process | None = None

    async def start(self) -> None:
        """RocketError when it ends before it is ready; why, it has said on standard error itself."""
        # A session of its own: Ctrl-C is for us, who stop it. Its input ends with us, however we end, and so does it.
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aiorocket", "broker", *self._arguments, "--stop-at-end-of-input",
            stdin=PIPE, stdout=PIPE, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        said = _READY.match(await process.stdout.readline())
        if said is None:
            raise RocketError(f"broker {self.name} did not start: exit code {await process.wait()}")
        self.address = said[1].decode()

    async def keep(self) -> None:
        """Start it again, for ever."""
        now = asyncio.get_running_loop().time
        pause, began = _PAUSE, now()
        while True:
            assert self._process is not None
            code = await self._process.wait()
            if now() - began >= _WELL:
                pause = _PAUSE
            _log.error("broker %s ended with %d and is started again in %g s", self.name, code, pause)
            await asyncio.sleep(pause)
            pause, began = min(2 * pause, _LONGEST_PAUSE), now()
            with suppress(RocketError):
                await self.start()
                _log.warning("broker %s is ready again on %s", self.name, self.address)

    async def stop(self) -> None:
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


@asynccontextmanager
async def supervised(brokers: Mapping[str, Sequence[str]]) -> AsyncIterator[list[tuple[str, str]]]:
    """Run a broker for each name with these arguments of ``aiorocket broker``; gives name and address of each when all
    are ready. RocketError when one does not start the first time; one that dies later is started again."""
    running = [_Supervised(name, arguments) for name, arguments in brokers.items()]
    keepers = TaskScope("supervisor")
    try:
        for each in running:
            await each.start()
        for each in running:
            keepers.start(each.keep(), name=f"keep-{each.name}")
        yield [(each.name, each.address) for each in running]
    finally:
        await keepers.close()
        await asyncio.gather(*(each.stop() for each in running))


class _EndOfInput(asyncio.Protocol):
    def connection_lost(self, exc: Exception | None) -> None:
        signal.raise_signal(signal.SIGTERM)


async def stop_at_end_of_input() -> None:
    """From now on this process gets SIGTERM when its standard input ends."""
    await asyncio.get_running_loop().connect_read_pipe(_EndOfInput, sys.stdin)
