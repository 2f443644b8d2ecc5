"""``aiorocket trace``"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from aiorocket.cli.asked import asks, told

if TYPE_CHECKING:
    from aiorocket import Admin

__all__ = ("trace",)


@click.command()
@click.argument("message_id")
@asks
def trace(message_id: str) -> Callable[[Admin], Awaitable[int]]:
    """Who sent the message with this sender's id and who consumed it, as clients that trace wrote.

    It exits with 1 when nobody did.
    """

    async def work(admin: Admin) -> int:
        found = await admin.messages.trace(message_id)
        rows = [
            {
                "kind": each.kind, "at_ms": each.timestamp, "group": each.group, "topic": each.topic,
                "success": each.success, "took": each.cost, "client": each.client_host, "retries": each.retry_times,
                "request_id": each.request_id,
            }
            for each in found
        ]  # fmt: skip
        code = told("trace", f"Trace of {message_id}", rows, found.missing)
        return code if rows else 1

    return work
