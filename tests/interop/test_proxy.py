"""Apache's proxy in cluster mode in front of our broker, and its gRPC client before that."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.peers import HERE, JVM_OPTIONS, Admin, Process, Server, ask, fetch_jars
from tests.interop.test_clients import made, run
from tests.interop.test_consumers import create, until
from tests.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

COUNT = 8
QUERY_CONSUMER_OFFSET = 14


@pytest.fixture(scope="module")
def grpc() -> list[str]:
    pip = ["pip3", "install", "--quiet", "--target=.", "rocketmq-python-client==5.1.2"]
    return [sys.executable, str(made("grpc", ["pip3"], pip) / "smoke.py")]


@pytest.fixture
def proxy(ours: Server, tmp_path: Path) -> Iterator[str]:
    """The endpoints of a proxy in front of ``ours``."""
    home, lib = tmp_path / "proxy", fetch_jars(pom=HERE / "java" / "proxy" / "pom.xml")
    (home / "conf").mkdir(parents=True)
    port = free_port()
    settings = {
        "rocketMQClusterName": "DefaultCluster", "proxyMode": "CLUSTER", "namesrvAddr": ours.nameserver,
        "grpcServerPort": port, "remotingListenPort": free_port(), "localServeAddr": "127.0.0.1",
    }  # fmt: skip
    config = home / "conf" / "rmq-proxy.json"
    config.write_text(json.dumps(settings))
    command = [
        "java", *JVM_OPTIONS, "-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}", "-cp", f"{lib}/*",
        "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(config), "-n", ours.nameserver,
    ]  # fmt: skip
    env = {**os.environ, "ROCKETMQ_HOME": str(home), "NAMESRV_ADDR": ours.nameserver}
    with Process("Apache's proxy", command, home / "proxy.log", env, patience=2) as started:
        started.wait_until(lambda: "startup successfully" in (home / "proxy.log").read_text(), "ready")
        yield f"127.0.0.1:{port}"


async def test_the_grpc_client_sends_receives_and_settles(
    proxy: str, ours: Server, grpc: list[str], jars: Path, smoke_classes: Path, tmp_path: Path
) -> None:
    topic, group = "through-the-proxy", "grpc-receivers"
    await create(ours, topic)
    with Admin(jars, smoke_classes, tmp_path / "mqadmin", ours.nameserver) as mqadmin:
        made_group = mqadmin("updateSubGroup", "-b", ours.broker, "-g", group)
    assert "success" in made_group, made_group
    facts = await run(grpc, tmp_path, proxy, topic, group, str(COUNT), limit=150)
    assert sum(fact["event"] == "sent" for fact in facts) == COUNT
    seen: dict[str, list[int]] = {}
    for fact in facts:
        if fact["event"] == "message":
            seen.setdefault(fact["body"], []).append(fact["attempt"])
            assert fact["tag"] == "wanted" and fact["keys"] == [f"key-{fact['body']}"]
    assert seen == {str(number): [1, 2] if number == 1 else [1] for number in range(1, COUNT)}

    def committed() -> int:
        fields = [{"topic": topic, "consumerGroup": group, "queueId": str(number)} for number in range(2)]
        answers = [ask(ours.broker, QUERY_CONSUMER_OFFSET, each) for each in fields]
        return sum(int(ext["offset"]) for code, ext, _ in answers if code == 0)

    await until(lambda: committed() == COUNT, "acknowledged")
