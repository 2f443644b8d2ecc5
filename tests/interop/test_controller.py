"""Our client on two of Apache's brokers under its controller: the master is killed, the slave becomes it, the old one
comes back as a slave, and once more the other way round. What was acknowledged is there."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.peers import Process, apache_broker, apache_nameserver, ask
from tests.interop.test_cluster import ROUTE, Stream, listener, until
from tests.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

CREATE_TOPIC, HA_STATUS = 17, 907
TOPIC = {
    "topic": "chosen", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip


def master(nameserver: str) -> str:
    """The address of the master that the route names; empty when there is none."""
    code, _, body = ask(nameserver, ROUTE, {"topic": "TBW102"})
    brokers = json.loads(body)["brokerDatas"] if code == 0 else []
    return next((each["brokerAddrs"]["0"] for each in brokers if "0" in each["brokerAddrs"]), "")


def in_sync(address: str) -> bool:
    """A slave has all that the master at ``address`` acknowledges."""
    code, _, body = ask(address, HA_STATUS, {})
    return code == 0 and json.loads(body)["inSyncSlaveNums"] == 1


async def test_a_new_master_is_chosen_and_nothing_is_lost(jars: Path, tmp_path: Path) -> None:
    controller = f"127.0.0.1:{free_port()}"
    names = {
        "enableControllerInNamesrv": "true",
        "controllerDLegerGroup": "group1",
        "controllerDLegerPeers": f"n0-{controller}",
        "controllerDLegerSelfId": "n0",
        "mappedFileSize": str(16 << 20),
        "scanNotActiveBrokerInterval": "1000",
    }
    settings = {
        "brokerId": "-1",
        "brokerRole": "SLAVE",
        "enableControllerMode": "true",
        "controllerAddr": controller,
        "controllerHeartBeatTimeoutMills": "3000",
        "syncControllerMetadataPeriod": "1000",
        "syncBrokerMetadataPeriod": "1000",
        "checkSyncStateSetPeriod": "1000",
        "allAckInSyncStateSet": "true",
    }
    seen: dict[bytes, int] = {}
    with ExitStack() as stack:
        nameserver, _ = stack.enter_context(apache_nameserver(jars, tmp_path / "names", more=names))
        ports = {name: free_port(-2, 0, 1) for name in ("n0", "n1")}
        brokers: dict[str, Process] = {}

        def start(name: str) -> None:
            broker = apache_broker(jars, tmp_path / name, nameserver, port=ports[name], more=settings)
            brokers[f"127.0.0.1:{ports[name]}"] = stack.enter_context(broker)

        for name in ports:
            start(name)
        await until(lambda: master(nameserver) != "", "a master")
        assert ask(master(nameserver), CREATE_TOPIC, TOPIC)[0] == 0
        await until(lambda: ask(nameserver, ROUTE, {"topic": "chosen"})[0] == 0, "routable")

        async def fail_over(stream: Stream) -> None:
            old = master(nameserver)
            await until(lambda: in_sync(old), "in sync")
            before = len(stream.sent)
            await until(lambda: len(stream.sent) > before + 100, "sent to the old master")
            brokers[old].kill()
            await until(lambda: master(nameserver) not in ("", old), "a new master")
            during = len(stream.sent)
            await until(lambda: len(stream.sent) > during + 100, "sent to the new master")
            acknowledged = set(stream.sent)
            await until(lambda: acknowledged <= seen.keys(), "all that was acknowledged consumed")
            start(next(name for name, port in ports.items() if old.endswith(f":{port}")))

        async with listener("choosers", "chosen", nameserver, seen), Stream(nameserver, "chosen") as stream:
            await fail_over(stream)
            await fail_over(stream)
