"""``aiorocket top``"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from aiorocket.cli.asked import asks, told

if TYPE_CHECKING:
    from aiorocket import Admin

__all__ = ("top",)


@click.command()
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Groups.")
@asks
def top(limit: int) -> Callable[[Admin], Awaitable[int]]:
    """The groups that are furthest behind; with --watch again and again."""

    async def work(admin: Admin) -> int:
        lags = await admin.groups.lags()
        rows: list[dict[str, Any]] = [
            {
                "group": group,
                "lag": sum(each.lag for each in found),
                "topics": len({each.topic for each in found}),
                "consumed_ms": max((each.consumed_ms for each in found), default=0),
            }
            for group, found in lags.items()
        ]
        rows.sort(key=lambda row: row["lag"], reverse=True)
        return told("group lag", "Groups", rows[:limit], lags.missing)

    return work
