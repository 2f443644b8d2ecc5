"""Brokers that fail, in the log of one client: few lines, whatever the number of queues."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiorocket.client.core.outages import Outages

__all__ = ("OutageLog",)

log = logging.getLogger("aiorocket.client")


class OutageLog:
    """``time`` is the loop's."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._outages = Outages()
        #: Not empty while some broker fails.
        self.open = self._outages.open

    def failed(self, broker: str, what: str, error: Exception) -> None:
        """A request to ``broker`` failed."""
        line = self._outages.failed(broker, what, error, self._time())
        if line is not None:
            log.warning("%s", line)

    def answered(self, broker: str, *, everything: bool) -> None:
        """One succeeded; ``everything`` if it had failed before."""
        line = self._outages.answered(broker, self._time(), everything=everything)
        if line is not None:
            log.warning("%s", line)
