"""Directories of brokers as each version of the store left them: what waited still comes, what was known is known.

python -m tests.broker.test_golden FILE      writes one as this version makes it, once for each version
"""

from __future__ import annotations

import asyncio
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from aiorocket.storage.checksums import FORMAT
from aiorocket.testing import SimDisk, Simulation, simulate
from aiorocket.testing.sim import SimClock
from aiorocket_protocol import (
    EndTransactionRequestHeader,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    encode_configuration,
    encode_properties,
    parse_offset_msg_id,
)
from tests.broker.peer import heartbeat
from tests.broker.test_locks import granted, lock_body
from tests.broker.test_pop import Popper, bodies
from tests.broker.test_sent_once import send as send_once
from tests.broker.test_sim import config, started
from tests.broker.test_timers import recall, recall_handle

GOLDEN = sorted((Path(__file__).parent / "golden").glob("format*.zip"))
#: How long after the start of its simulation the clock stood when a directory was left.
LEFT = 30.0
DAY = 86_400
#: It serves administration.
SERVED = config(host="127.0.0.1", advertise="10.0.0.1")


def text(**properties: str) -> str:
    return encode_properties(properties).decode()


async def locked(peer: Popper, client: str) -> dict[int, int]:
    return granted(await peer.call(41, None, lock_body(client, 0, group="orderly")))


async def leave(sim: Simulation, disk: SimDisk) -> dict[str, Any]:
    """Have a broker know something of everything, and stop it. What its clients know."""
    host, broker = await started(sim, sim.env(disk=disk), SERVED)
    peer = Popper(sim, broker.address)
    for number in range(3):
        assert (await peer.send(b"%d" % number)).code == 0
    assert (await peer.call(15, UpdateConsumerOffsetRequestHeader("g", "T", 0, 2))).code == 0
    assert (await peer.call(200, None, b'{"groupName":"three","retryMaxTimes":3}')).code == 0
    assert (await peer.call(25, None, encode_configuration({"fileReservedTime": "100"}))).code == 0
    assert (await peer.send(b"soon", topic="D", properties=text(DELAY="1"))).code == 0
    assert (await peer.send(b"delayed", topic="D", properties=text(DELAY="5"))).code == 0
    assert (await peer.send(b"hour", topic="D", properties=text(TIMER_DELAY_SEC="3600"))).code == 0
    assert (await peer.send(b"days", topic="D", properties=text(TIMER_DELAY_SEC=str(5 * DAY)))).code == 0
    never = text(TIMER_DELAY_SEC="60", UNIQ_KEY="N")
    assert (await recall(peer, recall_handle(await peer.send(b"never", topic="D", properties=never)), "D")).code == 0
    half = text(TRAN_MSG="true", PGROUP="p", UNIQ_KEY="U")
    begun = (await peer.send(b"half", topic="X", sys_flag=4, properties=half)).read(SendMessageResponseHeader)
    for body in (b"kept", b"done"):
        await peer.send(body, topic="P")
    found = await peer.pop("P", invisible_time=60_000)
    assert await peer.ack(next(one for one in found if one.body == b"done")) == 0
    once = (await send_once(peer, "once")).read(SendMessageResponseHeader)
    assert await locked(peer, "a@1")
    mode = b'{"consumerGroup":"g","mode":"POP","popShareQueueNum":0,"topic":"P"}'
    assert (await peer.call(401, None, mode)).code == 0
    await asyncio.sleep(LEFT - sim.loop.time())
    await peer.close()
    await host.run(broker.close())
    return {"half": [begun.queue_offset, parse_offset_msg_id(begun.msg_id)[2]], "once": once.queue_offset}


def test_there_is_one_of_this_version() -> None:
    assert GOLDEN[-1].stem == f"format{FORMAT}"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_directory_of_each_version_goes_on(path: Path) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        with zipfile.ZipFile(path) as archive:
            known = json.loads(archive.comment)
            for name in archive.namelist():
                disk.makedirs(name.rpartition("/")[0])
                disk.replace(name, archive.read(name))
        env = sim.env(disk=disk)
        assert isinstance(env.clock, SimClock)
        env.clock.skew_ms = int(1000 * LEFT)
        host, broker = await started(sim, env, SERVED)
        assert not broker.recovery.damaged and not broker.recovery.rebuilt
        peer = Popper(sim, broker.address)
        assert await locked(peer, "b@1") == {}
        assert broker.offsets.query("g", "T", 0) == 2
        assert broker.configs.get("three").retry_max_times == 3
        assert b"fileReservedTime=100\n" in (await peer.call(26)).body + b"\n"
        assert (await peer.call(34, None, heartbeat("c@1", "P"))).code == 0
        ask = b'{"clientId":"c@1","consumerGroup":"g","messageModel":"CLUSTERING","strategyName":"AVG","topic":"P"}'
        assert b'"mode":"POP"' in (await peer.call(400, None, ask)).body
        assert await peer.pop("P") == []
        again = (await send_once(peer, "once")).read(SendMessageResponseHeader)
        assert again.queue_offset == known["once"] and await peer.drain() == [b"0", b"1", b"2", b"once"]
        ending = EndTransactionRequestHeader("p", *known["half"], 8, False, "U", "U")
        assert (await peer.call(37, ending)).code == 0 and await peer.drain("X") == [b"half"]
        await asyncio.sleep(61)
        assert bodies(await peer.pop("P")) == [b"kept"]
        assert await peer.drain("D") == [b"soon", b"delayed"]
        await asyncio.sleep(3600)
        assert await peer.drain("D") == [b"soon", b"delayed", b"hour"]
        await peer.close()
        await host.run(broker.close())

        # The days pass while it is away: what it does in five of them is three seconds of CPU.
        env.clock.skew_ms += int(1000 * 5 * DAY)
        host, broker = await started(sim, env, SERVED)
        peer = Popper(sim, broker.address)
        await asyncio.sleep(61)
        assert await peer.drain("D") == [b"soon", b"delayed", b"hour", b"days"]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def write(path: str) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        known = await leave(sim, disk)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.comment = json.dumps(known).encode()
            for name, data in sorted(disk.files.items()):
                archive.writestr(zipfile.ZipInfo(name.lstrip("/")), bytes(data), zipfile.ZIP_DEFLATED)

    simulate(main)


if __name__ == "__main__":
    write(sys.argv[1])
