"""``aiorocket doctor``"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from aiorocket.cli.asked import asks, told

if TYPE_CHECKING:
    from aiorocket import Admin

__all__ = ("doctor",)


@click.command()
@click.option("--lag", type=click.IntRange(1), default=10_000, show_default=True, help="From here on a group lags.")
@asks
def doctor(lag: int) -> Callable[[Admin], Awaitable[int]]:
    """Say what is wrong with a cluster and what to do. It changes nothing.

    Name servers, advertised addresses, permissions, clocks, disks, damaged stores, subscriptions that differ, lag, dead
    letters, routes. It exits with 1 when something is an error.
    """

    async def work(admin: Admin) -> int:
        found = [each async for each in admin.doctor(lag=lag)]
        wrong = [each for each in found if each.level != "ok"]
        told("finding", f"{len(found)} things looked at, {len(wrong)} to look after", found)
        return 1 if any(each.level == "error" for each in wrong) else 0

    return work
