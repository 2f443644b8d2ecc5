"""Who did what, and who was kept out: one line each, and no more than a disk and its reader bear."""

from __future__ import annotations

import logging

__all__ = ("Audit",)

_log = logging.getLogger("aiorocket.audit")

#: Seconds in which a peer's refusals of one kind make one line; what comes meanwhile is counted in the next.
_REFUSED_EVERY = 10.0
#: Lines of served administration a second, and of refusals, from all peers together.
_MOST_A_SECOND = 50
#: Kinds of refusals remembered; a peer cannot make the table grow beyond it.
_MOST_KINDS = 1000


class Audit:
    """``server`` is named in every line. ``now`` is ``loop.time()``."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._refused: dict[tuple[str, int], tuple[float, int]] = {}
        self._second = 0.0
        self._lines = 0
        self._unsaid = 0

    def refused(self, now: float, *, user: str, peer: str, request: str, code: int, why: str) -> None:
        """A request that was not served."""
        kind = (peer.rpartition(":")[0], code)
        until, unsaid = self._refused.get(kind, (now, 0))
        if now < until:
            self._refused[kind] = until, unsaid + 1
            return
        if len(self._refused) >= _MOST_KINDS:
            self._refused = {kind: entry for kind, entry in self._refused.items() if entry[0] > now}
            if len(self._refused) >= _MOST_KINDS:
                self._refused.clear()
        self._refused[kind] = now + _REFUSED_EVERY, 0
        more = f" ({unsaid} more since the last such line)" if unsaid else ""
        self._say(now, logging.WARNING, f"refused to {user or 'nobody'} at {peer}: {request}: {why}{more}")

    def served(self, now: float, *, user: str, peer: str, request: str, wants: str) -> None:
        """An administrator's request that is served."""
        self._say(now, logging.INFO, f"served to {user or 'nobody'} at {peer}: {request}{wants}")

    def _say(self, now: float, level: int, line: str) -> None:
        if now - self._second >= 1.0:
            self._second, self._lines = now, 0
        if self._lines >= _MOST_A_SECOND:
            self._unsaid += 1
            return
        self._lines += 1
        unsaid, self._unsaid = self._unsaid, 0
        more = f" ({unsaid} lines before this one were too many)" if unsaid else ""
        # A peer's text stays in its line.
        _log.log(level, "%s %s%s", self._server, "".join(c if c.isprintable() else "?" for c in line[:1000]), more)
