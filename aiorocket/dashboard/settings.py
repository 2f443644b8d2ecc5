"""How the page is served, and to whom."""

from __future__ import annotations

from dataclasses import dataclass

from aiorocket.errors import ConfigError
from aiorocket.remoting.address import is_loopback

__all__ = ("PORT", "DashboardConfig")

PORT = 8088
#: Characters of a token: off loopback it is all that stands between a stranger and every message.
LEAST_TOKEN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardConfig:
    """``token`` is what a viewer has to know; off loopback there must be one. Without ``allow_writes`` nothing in the
    cluster is changed. ``sample`` is the seconds between two looks at the brokers' rates. ConfigError for settings that
    cannot be."""

    host: str = "127.0.0.1"
    port: int = PORT
    token: str | None = None
    allow_writes: bool = False
    sample: float = 5.0

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < LEAST_TOKEN:
            raise ConfigError(f"dashboard token: {len(self.token)} characters, at least {LEAST_TOKEN} are needed")
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"a dashboard on {self.host} is seen by other machines: it needs a token (a file with at least "
                f"{LEAST_TOKEN} characters, or AIOROCKET_DASHBOARD_TOKEN), or loopback"
            )
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"dashboard port {self.port}: 0 to 65535")
        if not self.sample > 0:
            raise ConfigError(f"sample={self.sample}: above 0 seconds")
