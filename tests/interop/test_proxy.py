"""Apache's proxy in cluster mode in front of our broker, and its gRPC client before that."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers import BRIEF, HERE, JVM_OPTIONS, Process, Server, ask, fetch_jars, inside, our_server
from tests.interop.raw import Raw
from tests.interop.test_clients import made, run, topic_of
from tests.interop.test_consumers import until
from tests.interop.works import OFFERED
from tests.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

COUNT = 8
QUERY_CONSUMER_OFFSET, UPDATE_AND_CREATE_TOPIC, UPDATE_AND_CREATE_GROUP = 14, 17, 200
#: The kind of message that a feature's topic takes, where it is not a normal one.
KINDS = {"orderly": "FIFO", "timed": "DELAY", "transaction": "TRANSACTION"}


@pytest.fixture(scope="module")
def grpc() -> list[str]:
    pip = ["pip3", "install", "--quiet", "--target=.", "rocketmq-python-client==5.1.2"]
    return [sys.executable, str(made("grpc", ["pip3"], pip) / "smoke.py")]


@asynccontextmanager
async def proxied(home: Path, server: Server) -> AsyncIterator[str]:
    """The endpoints of Apache's proxy in front of ``server``."""
    lib = fetch_jars(pom=HERE / "java" / "proxy" / "pom.xml")
    (home / "conf").mkdir(parents=True)
    port = free_port()
    settings = {
        "rocketMQClusterName": "DefaultCluster", "proxyMode": "CLUSTER", "namesrvAddr": server.nameserver,
        "grpcServerPort": port, "remotingListenPort": free_port(), "localServeAddr": "127.0.0.1",
    }  # fmt: skip
    config = home / "conf" / "rmq-proxy.json"
    config.write_text(json.dumps(settings))
    command = [
        "java", *JVM_OPTIONS, "-Xmx512m", *BRIEF, *inside(home), "-cp", f"{lib}/*",
        "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(config), "-n", server.nameserver,
    ]  # fmt: skip
    env = {**os.environ, "ROCKETMQ_HOME": str(home), "NAMESRV_ADDR": server.nameserver}
    with Process("Apache's proxy", command, home / "proxy.log", env, patience=2) as started:

        def ready() -> bool:
            return "startup successfully" in (home / "proxy.log").read_text()

        await asyncio.to_thread(started.wait_until, ready, "ready")
        yield f"127.0.0.1:{port}"


def create(server: Server, topic: str, group: str, kind: str = "NORMAL") -> None:
    broker = Raw(server.broker, timeout=30.0)
    fields = topic_of(topic) | {"attributes": f"+message.type={kind}"}
    members = json.dumps({"groupName": group, "consumeEnable": True, "consumeMessageOrderly": kind == "FIFO"})
    answers = broker.ask(UPDATE_AND_CREATE_TOPIC, fields), broker.ask(UPDATE_AND_CREATE_GROUP, {}, members.encode())
    broker.close()
    assert all(answer is not None and answer.code == 0 for answer in answers), answers


async def run_all(grpc: list[str], place: Path, server: Server, told: dict[str, list[dict[str, Any]]]) -> None:
    """Each program once, at one proxy, for its start takes long; ``told`` has what they printed."""
    async with proxied(place / "proxy", server) as endpoints:
        topic, group = "through-the-proxy", "grpc-receivers"
        create(server, topic, group)
        for name in OFFERED["grpc"]:
            create(server, f"grpc-{name}", f"grpc-{name}", KINDS.get(name, "NORMAL"))
        told["settle"], told["features"] = await asyncio.gather(
            run(grpc, place, "settle", endpoints, topic, group, str(COUNT), limit=300),
            run(grpc, place, "features", endpoints, "grpc", limit=300),
        )

        def committed() -> int:
            fields = [{"topic": topic, "consumerGroup": group, "queueId": str(number)} for number in range(4)]
            answers = [ask(server.broker, QUERY_CONSUMER_OFFSET, each) for each in fields]
            return sum(int(ext["offset"]) for code, ext, _ in answers if code == 0)

        await until(lambda: committed() == COUNT, "acknowledged")


@pytest.fixture(scope="module")
def told() -> dict[str, list[dict[str, Any]]]:
    return {}


@pytest.fixture
async def of(told: dict[str, list[dict[str, Any]]], grpc: list[str], tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    """What the programs printed; they run for the first test that asks."""
    if not told:
        told["begun"] = []
        with our_server(tmp_path / "server") as server:
            await run_all(grpc, tmp_path, server, told)
    return told


async def test_the_grpc_client_sends_receives_and_settles(of: dict[str, list[dict[str, Any]]]) -> None:
    facts = of["settle"]
    assert sum(fact["event"] == "sent" for fact in facts) == COUNT
    seen: dict[str, list[int]] = {}
    for fact in facts:
        if fact["event"] == "message":
            seen.setdefault(fact["body"], []).append(fact["attempt"])
            assert fact["tag"] == "wanted" and fact["keys"] == [f"key-{fact['body']}"]
    assert seen == {str(number): [1, 2] if number == 1 else [1] for number in range(1, COUNT)}


@pytest.mark.parametrize("feature", OFFERED["grpc"])
async def test_feature(feature: str, of: dict[str, list[dict[str, Any]]]) -> None:
    (one,) = [fact for fact in of["features"] if fact["name"] == feature]
    assert one["works"], one["why"]
