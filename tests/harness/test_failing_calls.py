"""Each call of the disk under a broker fails once: an error, a full disk, a write of which only a part arrives. The
script touches every kind of file: log, checksums, queues, key index, checkpoints, every table of ``config``, delays,
timers, transactions, pops and their records."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

import pytest

from aiorocket.config import BrokerConfig, StoreConfig
from aiorocket.errors import RocketError
from aiorocket.runtime.env import Env
from aiorocket.testing import SimDisk, Simulation, simulate
from aiorocket.testing.stored import stored_messages
from aiorocket_protocol import SendMessageResponseHeader, UpdateConsumerOffsetRequestHeader
from tests.broker.test_pop import Popped, Popper, pop_header, popped
from tests.broker.test_sim import config, started
from tests.broker.test_transactions import ending

pytestmark = [pytest.mark.harness, pytest.mark.timeout(600)]

_COMMIT = 8
_WANTED = {b"plain", b"level", b"timer", b"paid", b"popped"}


def _config(flush: Any) -> BrokerConfig:
    store = StoreConfig(
        segment_size=1 << 16, min_free=0, flush=flush, flush_interval=0.5, checkpoint_interval=0.7,
        max_log_bytes=1 << 16, retention_interval=1.0,
    )  # fmt: skip
    return config(store=store, offset_flush_interval=0.5)


async def _script(peer: Popper, told: set[bytes]) -> None:
    """Everything once; ``told`` are the bodies that were acknowledged."""

    async def send(body: bytes, **changes: Any) -> SendMessageResponseHeader | None:
        answer = await peer.send(body, **{"properties": f"KEYS\x01{body[:9].decode()}\x02", **changes})
        if answer.code != 0:
            return None
        if not changes.get("sys_flag"):
            told.add(body)
        return answer.read(SendMessageResponseHeader)

    for number in range(9):
        await send(b"%d" % number * 16_000)  # more than a segment: the first one is old
    await send(b"plain")
    await send(b"level", properties="DELAY\x011\x02")
    await send(b"timer", properties="TIMER_DELAY_SEC\x011\x02")
    half = await send(b"paid", properties="TRAN_MSG\x01true\x02PGROUP\x01shop\x02UNIQ_KEY\x01K1\x02", sys_flag=4)
    if half is not None and (await peer.call(37, ending(half, _COMMIT))).code == 0:
        told.add(b"paid")
    await send(b"popped", topic="P")
    if b"popped" not in told:
        return
    for one in await _popped(peer, 1000):
        await peer.call(200053, one.change(1500))
    await peer.call(15, UpdateConsumerOffsetRequestHeader("g", "T", 0, 1))
    await asyncio.sleep(2.5)  # due, revived, saved, swept
    for one in await _popped(peer, 60_000):
        await peer.ack(one)


async def _popped(peer: Popper, invisible: int) -> list[Popped]:
    """What a pop finds, nothing when it is refused."""
    answer = await peer.call(200050, pop_header("P", invisible_time=invisible))
    return popped(answer) if answer.code in (0, 210) else []


def _one(call: int, fault: int, flush: str) -> tuple[int, bool]:
    """Let one call fail; how many there were, and whether it came to that one."""
    counted = (0, False)

    async def main(sim: Simulation) -> None:
        nonlocal counted
        disk: SimDisk = sim.disk()
        env: Env = sim.env(disk=disk)
        told: set[bytes] = set()
        disk.fail(call, fault)
        host: Any = None
        peer: Popper | None = None
        try:
            host, broker = await started(sim, env, _config(flush))
            peer = Popper(sim, broker.address)
            try:
                await _script(peer, told)
            except RocketError:
                pass  # it hangs up, or answers with nothing
            await host.run(broker.close())
        except RocketError as error:
            assert str(error), "a start that fails says why"
        counted = disk.calls, not disk._failures
        disk._failures.clear()
        if peer is not None:
            await peer.close()
        disk.process_died()
        if host is not None:
            host.kill()
        await asyncio.sleep(1.0)
        _, again = await started(sim, env, _config(flush))
        other = Popper(sim, again.address, "10.0.0.8")
        await asyncio.sleep(3)
        found = {record.body for topic in ("T", "P") for record in stored_messages(again.store, topic)}
        missing = (told & _WANTED) - found
        assert not missing, f"call {call}: {missing} acknowledged and gone"
        assert (await other.send(b"new")).code == 0
        await other.close()
        await sim.host("10.0.0.1").run(again.close())

    simulate(main)
    return counted


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("fault", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_every_call_of_the_disk_fails_once(fault: int, flush: str) -> None:
    """Each of these does every fourth; AIOROCKET_EVERY_CALL=1 all of them."""
    step = 1 if os.environ.get("AIOROCKET_EVERY_CALL") else 4
    call = 1 + (fault == errno.EIO) + 2 * (flush == "sync") if step > 1 else 1
    while _one(call, fault, flush)[1]:
        call += step
    assert call > 300, "the script makes more calls than that"
