"""What a broker answers to Prometheus and to probes, over real sockets on loopback."""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aiorocket.broker import Broker
from aiorocket.cli.metrics import watched as watched_by_option
from aiorocket.config import BrokerConfig, NameServerConfig
from aiorocket.errors import ConfigError, UsageError
from aiorocket.nameserver.server import NameServer
from aiorocket.runtime.env import memory_env
from aiorocket.telemetry import http
from aiorocket.telemetry.broker import metrics, not_ready, watched
from aiorocket.telemetry.http import Page, serve_pages
from aiorocket_protocol import UpdateConsumerOffsetRequestHeader
from tests.broker.peer import Peer, heartbeat, running

Series = dict[tuple[str, ...], float]


async def ask(port: int, path: str = "/metrics", method: str = "GET", *, raw: bytes = b"") -> tuple[int, str, bytes]:
    """Status, head and body of what is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw or f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), body


async def scraped(port: int) -> Series:
    """(name, values of the labels...) -> value, names without their prefix."""
    status, head, body = await ask(port)
    assert status == 200 and "text/plain; version=" in head
    return {
        (sample.name.removeprefix("aiorocket_broker_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


async def test_what_topics_and_groups_do_is_counted() -> None:
    async with running() as broker, watched(broker, "127.0.0.1", 0) as port:
        peer = await Peer.connect(broker.port)
        await peer.create_topic("T", 2)
        await peer.create_topic("Gone", 1)
        for topic, bodies in (("T", (b"1", b"2", b"3")), ("Gone", (b"4",))):
            for body in bodies:
                await peer.send(body, topic=topic)
        assert (await peer.call(34, None, heartbeat("c", "T"))).code == 0
        await peer.pull("T", 0)
        assert (await peer.call(15, UpdateConsumerOffsetRequestHeader("g", "T", 0, 1))).code == 0
        assert (await peer.call(15, UpdateConsumerOffsetRequestHeader("g", "Gone", 0, 0))).code == 0
        await peer.call(215, None, topic="Gone")
        found = await scraped(port)
        assert found["stored_messages_total", "T"] == found["delivered_messages_total", "g", "T"] == 3
        assert found["lag_messages", "g", "T"] == 2 and found["members", "g"] == 1
        assert not [key for key in found if "Gone" in key]
        assert found["writable",] == found["ready",] == found["pulls_found_total",] == 1
        assert found["stored_bytes_total",] == found["log_bytes",] > 0
        assert 0 < found["disk_free_bytes",] <= found["disk_bytes",]
        assert next(key for key in found if key[0] == "info")[:3] == ("info", "DefaultCluster", "broker-a")
        page = (Path(__file__).parents[2] / "docs/operating.md").read_text(encoding="utf-8")
        assert not [name for name, *_ in found if f"`{name}`" not in page and not name.startswith("process_")]
        if sys.platform == "linux":
            assert 0 < found["process_open_fds",] <= found["process_max_fds",]
        await peer.close()


async def test_names_are_bounded_and_the_rest_is_counted() -> None:
    async with running() as broker:
        peer = await Peer.connect(broker.port)
        for number in range(5):
            await peer.create_topic(f"T{number}", 1)
            await peer.send(b"x", topic=f"T{number}")
            assert (await peer.call(15, UpdateConsumerOffsetRequestHeader("g", f"T{number}", 0, 0))).code == 0
        await peer.call(34, None, heartbeat("c", *(f"T{number}" for number in range(5))))
        families = {family.name: family.samples for family in await metrics(broker, most=2)}
        for name in ("stored_messages", "lag_messages"):
            assert [sample.labels["topic"] for sample in families[f"aiorocket_broker_{name}"]] == ["T0", "T1"]
        left_out = {
            sample.labels["metric"]: sample.value
            for sample in families["aiorocket_broker_series_left_out"]
            if sample.value
        }
        retries = 1  # a topic that its members subscribe to as well
        assert left_out == {"aiorocket_broker_stored_messages": 3, "aiorocket_broker_lag_messages": 3 + retries}
        await peer.close()


async def test_a_broker_says_why_it_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    names = NameServer(memory_env(), NameServerConfig(port=0))
    await names.start()
    env = memory_env()
    broker = Broker(env, BrokerConfig(port=0, nameservers=(names.address,)))
    async with watched(broker, "127.0.0.1", 0) as port:
        status, _, body = await ask(port, "/readyz")
        assert (status, body) == (503, b"the broker is starting or ending\n")
        assert (await ask(port, "/healthz"))[::2] == (200, b"alive\n")
        assert (await scraped(port))["ready",] == 0
        await broker.start()
        assert (await ask(port, "/readyz?verbose"))[::2] == (200, b"ready\n")
        await names.close()
        assert broker.parts is not None
        await broker.parts.registration.register()
        monkeypatch.setattr(type(broker.store), "problem", "no space for messages")
        status, _, body = await ask(port, "/readyz")
        assert status == 503 and b"the store takes no messages: no space" in body
        assert f"not registered with name server {names.address}: ".encode() in body
        found = await scraped(port)
        assert found["registered", names.address] == found["writable",] == found["ready",] == 0
        assert (await ask(port, "/healthz"))[0] == 200
        # Of two name servers one is enough.
        monkeypatch.undo()
        object.__setattr__(broker.config, "nameservers", (names.address, "127.0.0.1:2"))
        assert not_ready(broker) == []
        await broker.close()
        assert (await ask(port, "/readyz"))[0] == 503
    await env.disk.close()


async def test_what_is_no_question_gets_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> Page:
        raise ValueError("planted")

    async def fine() -> Page:
        return Page(b"fine\n", HTTPStatus.OK)

    async with serve_pages("127.0.0.1", 0, {"/fine": fine, "/broken": broken}) as port:
        status, head, body = await ask(port, "/fine", "HEAD")
        assert (status, body) == (200, b"") and "Content-Length: 5" in head
        assert (await ask(port, "/fine", "POST"))[0] == 405
        assert (await ask(port, "/other"))[::2] == (404, b"not here; there are /fine /broken\n")
        assert (await ask(port, "/broken"))[0] == 500 and "planted" in caplog.text
        for raw in (b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"GET / SIP/2.0\r\n\r\n"):
            assert (await ask(port, raw=raw))[0] == 400
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /fine HTTP/1.1\r\nX: " + b"x" * 8200)
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
        _, silent = await asyncio.open_connection("127.0.0.1", port)
        assert (await ask(port, "/fine"))[0] == 200
        with pytest.raises(UsageError, match=f"{port}.*--metrics-port"):
            async with serve_pages("127.0.0.1", port, {}):
                pass
    # Whoever never asked does not keep it from ending.
    silent.close()
    await silent.wait_closed()


async def test_who_says_nothing_keeps_no_probe_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_MOST", 4)

    async def large() -> Page:
        return Page(bytes(32 << 20))

    async def alive() -> Page:
        return Page(b"alive\n")

    async with serve_pages("127.0.0.1", 0, {"/healthz": alive, "/large": large}) as port, asyncio.timeout(30):
        for request in (b"", b"GET /large HTTP/1.1\r\n\r\n"):  # who says nothing, and who takes nothing of the answer
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
            for _, writer in held:
                writer.write(request)
            assert [(await ask(port, "/healthz"))[0] for _ in range(3)] == [200] * 3
            for _, writer in held:
                writer.transport.abort()


async def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "aiorocket.telemetry.broker")
    monkeypatch.delattr("aiorocket.telemetry.broker")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    broker = Broker(memory_env(), BrokerConfig(port=0))
    with pytest.raises(ConfigError, match=r"extra metrics .*pip install 'aiorocketmq\[metrics\]'"):
        async with watched_by_option(broker, ("127.0.0.1", 0)):
            pass
    async with watched_by_option(broker, None) as said:
        assert said == ""
