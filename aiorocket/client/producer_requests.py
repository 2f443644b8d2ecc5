"""What brokers ask of the producers of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket.remoting.router import Handler

if TYPE_CHECKING:
    from aiorocket.client.session import Client

__all__ = ("handlers",)


def handlers(client: Client) -> dict[int, Handler]:
    """By request code, for the router of ``client``."""
    return {}
