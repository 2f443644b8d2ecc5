"""What the sides of a comparison share: how much each does, and whether its processes use the fast lane."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from aiorocket_protocol.fast import SPEEDUPS

Runner = Callable[[], dict[str, Any]]
R = TypeVar("R")
#: The product's sides by the switch of the fast lane; one where it is not installed.
SWITCHES = {"pure": "0", **({"fast": "1"} if SPEEDUPS else {})}


class Sizes(NamedTuple):
    single: int = 200_000
    batch: int = 640_000
    drain: int = 512_000
    seconds: float = 10.0
    backlog: float = 30.0
    starts: int = 7
    firsts: int = 20
    queues: tuple[int, ...] = (1, 10, 100, 1000)
    queued: int = 2_048_000
    groups: int = 10
    parked: int = 10_000
    wakes: int = 1_000
    idle: float = 15.0
    warm: int = 4_096
    #: A Java process runs at a third of its speed in its first half minute.
    warm_java: int = 400_000


FULL = Sizes()
SMOKE = Sizes(
    single=2_000, batch=6_400, drain=6_400, seconds=0.5, backlog=0.5, starts=1, warm=320, firsts=2, queues=(1, 10),
    queued=6_400, groups=3, parked=200, wakes=20, idle=1.0, warm_java=3_200,
)  # fmt: skip


def products(product: Callable[[], R]) -> dict[str, Callable[[], R]]:
    """The product with the pure code and with the fast lane, if there is one."""
    return {side: partial(lane, switch, product) for side, switch in SWITCHES.items()}


def lane(switch: str, product: Callable[[], R]) -> R:
    """``product()``, whose processes use the fast lane ("1") or not ("0")."""
    before = os.environ.get("AIOROCKET_SPEEDUPS")
    os.environ["AIOROCKET_SPEEDUPS"] = switch
    try:
        return product()
    finally:
        if before is None:
            del os.environ["AIOROCKET_SPEEDUPS"]
        else:
            os.environ["AIOROCKET_SPEEDUPS"] = before
