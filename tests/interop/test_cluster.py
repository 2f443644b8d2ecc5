"""Our client in a cluster of Apache's brokers whose members go away and come back: two masters, one with a slave, and
two name servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from aiorocket import Consumer, Message, Producer, Queue
from aiorocket.errors import SendError
from tests.interop.peers import (
    NEWEST,
    OLDER,
    Process,
    apache_broker,
    apache_nameserver,
    ask,
    fetch_jars,
)
from tests.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

CREATE_TOPIC, RUNTIME, MAX_OFFSET, CLUSTERS, ROUTE = 17, 28, 30, 106, 105
QUEUES = 2
#: A client looks for changed routes every 30 s; and a JVM's start.
BACK = 200.0

#: Whoever is behind by one byte is sent to the slave.
MASTER = {"slaveReadEnable": "true", "accessMessageInMemoryMaxRatio": "0"}


class Cluster:
    """Brokers by name: "a" and "b" are masters, "a-slave" is a slave of "a"."""

    def __init__(self, lib: Path, place: Path, stack: ExitStack) -> None:
        self._lib = lib
        self._place = place
        self._stack = stack
        self._ports = {name: free_port(-2, 0, 1) for name in ("a", "b", "a-slave")}
        self._brokers: dict[str, Process] = {}
        names = [stack.enter_context(apache_nameserver(lib, place / name)) for name in ("ns-1", "ns-2")]
        self.nameservers = [address for address, _ in names]
        self._nameservers = [process for _, process in names]
        # A slave learns where its master copies from when it registers: the master is there before it.
        for together in (("a",), ("b", "a-slave")):
            for name in together:
                self.start(name)
            for name in together:
                self.wait_for(name)

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self._ports[name]}"

    def start(self, name: str) -> None:
        more = {**MASTER, "brokerName": f"broker-{name[0]}"}
        if name == "a-slave":
            more |= {"brokerRole": "SLAVE", "brokerId": "1"}
        broker = apache_broker(
            self._lib, self._place / name, ";".join(self.nameservers), port=self._ports[name], more=more
        )
        self._brokers[name] = self._stack.enter_context(broker)

    def wait_for(self, name: str) -> None:
        """Until every name server that lives knows it."""
        address = self.address(name).encode()

        def known() -> bool:
            return all(address in ask(nameserver, CLUSTERS, {})[2] for nameserver in self.nameservers)

        self._brokers[name].wait_until(known, "registered")

    def kill(self, name: str) -> None:
        self._brokers[name].kill()

    def kill_nameserver(self) -> None:
        """The first."""
        self._nameservers.pop(0).kill()
        self.nameservers.pop(0)

    async def create(self, topic: str, *brokers: str) -> None:
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        for name in brokers:
            assert ask(self.address(name), CREATE_TOPIC, fields)[0] == 0

        def routable() -> bool:
            for nameserver in self.nameservers:
                code, _, body = ask(nameserver, ROUTE, {"topic": topic})
                if code or not all(f'"broker-{name}"'.encode() in body for name in brokers):
                    return False
            return True

        await until(routable, f"{topic} routable")


@contextmanager
def cluster(version: str, place: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(fetch_jars(version), place, stack)


async def until(condition: Callable[[], bool], what: str, *, limit: float = BACK) -> None:
    try:
        async with asyncio.timeout(limit):
            while not condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not {what} in {limit:g} s") from None


class Stream:
    """A producer that sends for as long as it is open, and what became of each message: ``sent`` is body to broker."""

    def __init__(self, nameservers: str, topic: str) -> None:
        self.sent: dict[bytes, str] = {}
        self.failures: list[str] = []
        self._producer = Producer(f"{topic}-sender", nameservers=nameservers)
        self._topic = topic
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Stream:
        await self._producer.start()
        self._tasks = [asyncio.create_task(self._send(number)) for number in range(4)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._producer.stop()

    async def _send(self, sender: int) -> None:
        number = 0
        while True:
            number += 1
            body = b"%d-%d" % (sender, number)
            try:
                receipt = await self._producer.send(self._topic, body, timeout=5)
                self.sent[body] = receipt.queue.broker_name
            except SendError as error:
                self.failures.append(str(error))
            await asyncio.sleep(0.01)

    def of(self, broker: str) -> int:
        return sum(name == broker for name in self.sent.values())


def listener(group: str, topic: str, nameservers: str, seen: dict[bytes, int]) -> Consumer:
    consumer = Consumer(group, nameservers=nameservers)

    @consumer.listener(topic, start_from="first")
    async def take(message: Message) -> None:
        seen[message.body] = seen.get(message.body, 0) + 1

    return consumer


async def one_of_two_masters_dies_and_comes_back(cluster: Cluster, nameservers: str) -> None:
    await cluster.create("both", "a", "b")
    seen: dict[bytes, int] = {}
    async with listener("both-group", "both", nameservers, seen):
        async with Stream(nameservers, "both") as stream:
            await until(lambda: min(stream.of("broker-a"), stream.of("broker-b")) > 20, "sent to both")
            cluster.kill("a")
            before, failed = stream.of("broker-b"), len(stream.failures)
            await until(lambda: stream.of("broker-b") > before + 200, "sent to the other")
            # Nobody waits for the dead: a send goes on to the other broker by itself.
            assert len(stream.failures) - failed <= 4, stream.failures
            alive = {body for body, broker in stream.sent.items() if broker == "broker-b"}
            await until(lambda: alive <= seen.keys(), "consumed from the other")
            cluster.start("a")
            cluster.wait_for("a")
            before = stream.of("broker-a")
            await until(lambda: stream.of("broker-a") > before + 20, "sent to the one that is back")
        await until(lambda: stream.sent.keys() <= seen.keys(), "all that was acknowledged consumed")


def read_by(address: str) -> int:
    """Messages that the broker gave out since its start."""
    table = json.loads(ask(address, RUNTIME, {})[2])["table"]
    return int(table["msgGetTotalTodayNow"])


async def a_slave_is_read_when_told_and_when_the_master_is_gone(cluster: Cluster, nameservers: str) -> None:
    await cluster.create("kept", "a")
    sent = [b"%d" % number for number in range(100)]
    async with Producer("kept-sender", nameservers=nameservers) as producer:
        for number, body in enumerate(sent):
            await producer.send("kept", body, queue=Queue("kept", "broker-a", number % QUEUES), timeout=20)

    def copied() -> bool:
        fields: list[dict[str, Any]] = [{"topic": "kept", "queueId": str(number)} for number in range(QUEUES)]
        answers = [ask(cluster.address("a-slave"), MAX_OFFSET, each)[1] for each in fields]
        return sum(int(answer["offset"]) for answer in answers) == len(sent)

    await until(copied, "copied to the slave")
    read = read_by(cluster.address("a-slave"))
    seen: dict[bytes, int] = {}
    async with listener("told-group", "kept", nameservers, seen):
        await until(lambda: len(seen) == len(sent), "all consumed")
    assert read_by(cluster.address("a-slave")) > read, "nothing was read from the slave"

    cluster.kill("a")
    seen = {}
    async with listener("late-group", "kept", nameservers, seen):
        await until(lambda: len(seen) == len(sent), "all read from the slave")
    cluster.start("a")
    cluster.wait_for("a")


async def one_of_two_name_servers_is_gone(cluster: Cluster, nameservers: str) -> None:
    seen: dict[bytes, int] = {}
    async with Producer("names-sender", nameservers=nameservers) as producer:
        await producer.send("names-before", b"before", timeout=20)
        cluster.kill_nameserver()
        await producer.send("names-after", b"1", timeout=20)
        async with listener("names-group", "names-after", nameservers, seen):
            await producer.send("names-after", b"2", timeout=20)
            await until(lambda: len(seen) == 2, "consumed")


@pytest.mark.parametrize("version", [NEWEST, OLDER])
async def test_members_of_a_cluster_go_away_and_come_back(version: str, tmp_path: Path) -> None:
    with cluster(version, tmp_path) as all_of_them:
        nameservers = ";".join(all_of_them.nameservers)
        await one_of_two_masters_dies_and_comes_back(all_of_them, nameservers)
        await a_slave_is_read_when_told_and_when_the_master_is_gone(all_of_them, nameservers)
        await one_of_two_name_servers_is_gone(all_of_them, nameservers)
