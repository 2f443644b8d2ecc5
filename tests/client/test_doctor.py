"""``admin.doctor()``: each thing it looks at, wrong and well; what it says is what clients say."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path

import pytest

from aiorocket import Admin, Client, ClientConfig, DeadLetter, Message, Producer, RemotingConfig, RocketError
from aiorocket.client.admin.asking import Answers
from aiorocket.client.admin.brokers import BrokerRuntime, Brokers
from aiorocket.client.admin.doctor import Finding, _of_runtime
from aiorocket.config import NameServerConfig, ServerTlsConfig, TlsConfig
from aiorocket.embedded import Embedded
from aiorocket.nameserver import NameServer
from aiorocket.runtime import memory_env
from aiorocket_protocol import (
    JSON,
    DataVersion,
    RegisterBrokerBody,
    RegisterBrokerRequestHeader,
    TopicConfig,
    encode_body,
)
from tests.broker.peer import Peer, running

DATA = Path(__file__).parents[1] / "remoting" / "data"
NOW = 1_700_000_000_000
WELL = {
    "commitLogDiskRatio": "0.2", "bootTimestamp": str(NOW - 93_784_000), "damagedRanges": "0",
    "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]",
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "check", "level", "said", "advised"),
    [
        ({"commitLogDiskRatio": "0.80"}, "disk", "warning", "80%", "fileReservedTime"),
        ({"commitLogDiskRatio": "0.9"}, "disk", "error", "90%", "make room"),
        ({"bootTimestamp": str(NOW - 93_684_000)}, "clock", "warning", "+100 s", "NTP"),
        ({"damagedRanges": "2", "damagedMessages": "7"}, "store", "error", "2 ranges of its log are damaged", "verify"),
        ({"writeProblem": "the disk is full"}, "store", "error", "the disk is full", "make room"),
        ({"subscriptionsDiffer_g": "a: T, b: U"}, "subscriptions", "error", "a: T, b: U", "the same topics and tags"),
        ({"alarm_flush_slow": "syncs take 2 s -> look at the disk"}, "alarm flush_slow", "warning", "2 s", "look at"),
    ],
)  # fmt: skip
def test_what_a_broker_says_of_itself(values: dict[str, str], check: str, level: str, said: str, advised: str) -> None:
    def wrong(of: dict[str, str]) -> list[Finding]:
        found = _of_runtime(BrokerRuntime("broker-a", "127.0.0.1:1", "V5_5_0", of), NOW)
        assert {"disk", "clock"} <= {each.check for each in found}
        return [each for each in found if each.level != "ok"]

    assert wrong(WELL) == []
    (found,) = wrong({**WELL, **values})
    assert (found.check, found.level) == (check, level)
    assert said in found.finding and advised in found.advice


async def wrong(mq: Embedded) -> dict[str, Finding]:
    async with Admin(nameservers=mq.nameservers) as admin:
        return {each.check: each async for each in admin.doctor() if each.level != "ok"}


async def test_lag_dead_letters_and_routes(mq: Embedded) -> None:
    assert await wrong(mq) == {}
    consumer, done = mq.consumer("billing"), asyncio.Event()

    @consumer.listener("orders", start_from="first")
    async def on_order(message: Message) -> None:
        done.set()
        raise DeadLetter("not for us")

    async with mq.producer("shop") as producer, Admin(nameservers=mq.nameservers) as admin:
        async with consumer, asyncio.timeout(60):
            await producer.send("orders", b"1")
            await done.wait()
        await producer.send("orders", b"2")
        await admin.topics.create("closed", 1, permission="R")
        found = await wrong(mq)
        assert found.keys() == {"lag", "dead letters", "route"}
        assert (found["lag"].about, found["dead letters"].about, found["route"].about) == (
            "billing",
            "billing",
            "closed",
        )
        assert "nobody is online" in found["lag"].finding and "dlq replay billing" in found["dead letters"].advice
        assert found["route"].finding == "no broker lets it be written"


async def test_members_of_a_group_differ_whoever_tells(mq: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our broker says it by itself; of one that does not, as Apache's, the members are asked."""
    async with Client(nameservers=mq.nameservers) as one, Client(nameservers=mq.nameservers) as other:
        consumers = []
        for client, tag in ((one, "paid"), (other, "refused")):
            consumers.append(consumer := client.consumer("billing"))

            @consumer.listener("orders", tags=tag)
            async def on_order(message: Message) -> None:
                pass

        async with consumers[0], consumers[1]:
            ours = (await wrong(mq))["subscriptions"]
            runtime = Brokers.runtime

            async def says_less(self: Brokers, broker: str | None = None) -> Answers[BrokerRuntime]:
                found = await runtime(self, broker)
                rows = (each._replace(values={"commitLogDiskRatio": "0.1"}) for each in found)
                return Answers(rows)

            monkeypatch.setattr(Brokers, "runtime", says_less)
            asked = (await wrong(mq))["subscriptions"]
    assert (ours.level, ours.about, ours.advice) == (asked.level, asked.about, asked.advice)
    assert (ours.level, ours.about) == ("error", "billing") and "the same topics and tags" in ours.advice
    for said in (ours.finding, asked.finding):
        assert "orders (TAG paid)" in said and "orders (TAG refused)" in said and one.client_id in said, said


async def test_a_name_that_means_nothing_and_a_broker_that_serves_no_stranger() -> None:
    nameless = f"{'x' * 64}.example:9876"  # no resolver asks anybody for a label that long
    async with Admin(nameservers=nameless) as admin:
        findings = [each async for each in admin.doctor()]
    assert [each.check for each in findings] == ["name server", "brokers"]
    assert findings[0].about == nameless and "does the name resolve" in findings[0].advice
    async with (
        running(host="0.0.0.0", advertise="127.0.0.1", port=0) as broker,
        Admin(nameservers="127.0.0.1:1", brokers=[broker.address]) as admin,
    ):
        (*_, found) = [each async for each in admin.doctor()]
    assert (found.level, found.check) == ("error", "permission")
    assert "--credentials" in found.advice and "--admin-bind" in found.finding


async def test_a_name_server_that_knows_no_broker() -> None:
    server = NameServer(memory_env(), NameServerConfig(port=0))
    await server.start()
    try:
        async with Admin(nameservers=f"127.0.0.1:{server.port}") as admin:
            well, found = [each async for each in admin.doctor()]
    finally:
        await server.close()
    assert (well.level, found.level) == ("ok", "error")
    assert found.finding == "none is registered" and "--nameserver" in found.advice


async def test_a_broker_that_takes_connections_and_says_nothing(mq: Embedded) -> None:
    """The only one, and one of two: who asks is told of it, and of the others."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(hang, "127.0.0.1")
    port = silent.sockets[0].getsockname()[1]
    peer = await Peer.connect(mq.nameserver.port)
    body = encode_body(
        RegisterBrokerBody(DataVersion(1, 1), [TopicConfig("there", 1, 1), TopicConfig("here", 1, 1)]), JSON
    )
    header = RegisterBrokerRequestHeader("hung", f"127.0.0.1:{port}", mq.config.cluster, "", 0)
    assert (await peer.call(103, header, body)).code == 0
    try:
        for patience in (0.3, 5.0):  # the other one answers by then, unless the machine is busy
            hurried = ClientConfig(nameservers=mq.nameservers, remoting=RemotingConfig(request_timeout=patience))
            async with Admin(config=hurried) as admin:
                findings = {(each.check, each.about): each async for each in admin.doctor()}
                members = await admin.groups.members("billing")
            if ("disk", "broker-a") in findings and len(members.missing) == 1:
                break
        found = findings["broker", "hung"]
        assert found.level == "error" and "did not answer request code 28" in found.finding
        assert "does it hang" in found.advice and ("disk", "broker-a") in findings
        assert not members.members and [each.server for each in members.missing] == ["hung"]
        async with Admin(config=hurried, brokers=[f"127.0.0.1:{port}"]) as admin:
            (*_, last) = [each async for each in admin.doctor()]
        assert (last.level, last.check) == ("error", "broker")
    finally:
        await peer.close()
        silent.close()


async def refusal(producer: Producer, topic: str, wanted: str) -> str:
    """What a send says that is refused; on a busy machine ``wanted`` may not be known in a moment."""
    for timeout in (0.2, 5.0):
        with pytest.raises(RocketError) as raised:
            await producer.send(topic, b"x", timeout=timeout)
        if wanted in str(raised.value):
            break
    return str(raised.value)


async def test_what_cannot_be_reached_is_said_in_the_words_of_the_errors_that_clients_raise(mq: Embedded) -> None:
    """A broker is registered under an address where nobody listens, and there are no name servers elsewhere."""
    peer = await Peer.connect(mq.nameserver.port)
    body = encode_body(
        RegisterBrokerBody(DataVersion(1, 1), [TopicConfig("far", 1, 1), TopicConfig("farther", 1, 1)]), JSON
    )
    header = RegisterBrokerRequestHeader("far-away", "127.0.0.1:1", mq.config.cluster, "", 0)
    assert (await peer.call(103, header, body)).code == 0
    try:
        found = (await wrong(mq))["advertised address"]
        assert found.level == "error" and found.about == "far-away 127.0.0.1:1" and "--advertise" in found.advice
        async with mq.producer("shop") as producer:
            assert found.finding in await refusal(producer, "far", found.finding)
    finally:
        await peer.close()
    async with Admin(nameservers="127.0.0.1:1") as admin:
        findings = [each async for each in admin.doctor()]
    assert [each.check for each in findings] == ["name server", "brokers"] and "resolve" in findings[0].advice
    nobody = ClientConfig(nameservers=("127.0.0.1:1",), start_timeout=1)
    async with Client(config=nobody) as client, client.producer("shop") as producer:
        assert findings[0].finding in await refusal(producer, "orders", findings[0].finding)


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        (False, "does it want TLS: --tls-ca"),
        (TlsConfig(ca=str(DATA / "ca.pem")), r"certificate: --tls-cert|CERTIFICATE"),
        (TlsConfig(ca=str(DATA / "other-ca.pem")), "its certificate is refused"),
    ],
    ids=["plain text", "no certificate", "another authority"],
)
async def test_a_name_server_that_wants_another_tls_is_not_reachable(tls: TlsConfig | bool, said: str) -> None:
    """It was, as long as a connection was made, and of the rest was said that a broker is to be started."""
    pem = ServerTlsConfig(
        cert=str(DATA / "server.pem"), key=str(DATA / "server.key"), client_ca=str(DATA / "ca.pem"),
        client_cert="required",
    )  # fmt: skip
    server = NameServer(memory_env(), NameServerConfig(port=0, tls=pem))
    await server.start()
    try:
        async with Admin(config=ClientConfig(nameservers=(f"127.0.0.1:{server.port}",), tls=tls)) as admin:
            found = [each async for each in admin.doctor()]
        assert [each.level for each in found] == ["error", "error"]
        assert re.search(said, found[0].finding) and all("--tls-ca" in each.advice for each in found)
    finally:
        await server.close()


async def test_a_certificate_that_expires_soon_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorocket.remoting.tls._SOON", timedelta(days=200 * 366))
    pem = ServerTlsConfig(cert=str(DATA / "server.pem"), key=str(DATA / "server.key"))
    server = NameServer(memory_env(), NameServerConfig(port=0, tls=pem))
    await server.start()
    address = f"127.0.0.1:{server.port}"
    try:
        config = ClientConfig(nameservers=(address,), tls=TlsConfig(ca=str(DATA / "ca.pem")))
        async with Admin(config=config) as admin:
            found = [each async for each in admin.doctor()]
        assert (found[1].level, found[1].check, found[1].about) == ("warning", "certificate", address)
        assert found[1].finding.startswith("expires at 2120-01-01 00:00 UTC, in ")
        assert "a new one in its place" in found[1].advice
    finally:
        await server.close()
