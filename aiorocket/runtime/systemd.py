"""What systemd wants to know of a service (sd_notify(3)): datagrams to the socket that NOTIFY_SOCKET names."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

__all__ = ("Notifier",)


class Notifier:
    """Says nothing unless systemd started this process. The variables are taken out of ``environ``: what this process
    starts is not the service."""

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        micros, whose = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        mine = micros.isascii() and micros.isdigit() and whose in ("", str(os.getpid()))
        #: Seconds between two signs of life; None when nobody waits for them. Half of what systemd waits.
        self.watchdog: float | None = int(micros) / 2e6 if mine and int(micros) else None

    def tell(self, *states: str) -> None:
        """Each such as ``READY=1`` or ``STATUS=text``. A service manager that has gone is no error."""
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.setblocking(False)
                channel.sendto("\n".join(states).encode(), self._address)

    async def keep_alive(self) -> None:
        """Signs of life while the loop turns, until cancelled."""
        while self.watchdog is not None:
            self.tell("WATCHDOG=1")
            await asyncio.sleep(self.watchdog)
