"""The name server over its wire, on loopback and in virtual time."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from aiorocket.config import NameServerConfig, RemotingConfig
from aiorocket.errors import StoreLockedError, UsageError
from aiorocket.nameserver import NameServer
from aiorocket.remoting import RemotingClient
from aiorocket.runtime.env import memory_env, real_env
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import (
    MSGPACK,
    BrokerHeartbeatRequestHeader,
    ClusterInfo,
    DataVersion,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    KVTable,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerBody,
    RegisterBrokerRequestHeader,
    RemotingCommand,
    TopicConfig,
    TopicListBody,
    TopicRouteData,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
    decode_body,
    decode_configuration,
    encode_body,
)
from tests.broker.peer import Peer


def body_of(*topics: str, counter: int = 1) -> RegisterBrokerBody:
    return RegisterBrokerBody(DataVersion(7, counter), [TopicConfig(topic, 4, 4, 6) for topic in topics])


def header_of(address: str = "10.0.0.1:10911", name: str = "a", **changes: Any) -> RegisterBrokerRequestHeader:
    return RegisterBrokerRequestHeader(name, address, "C", "", 0, **changes)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[NameServer]:
    server = NameServer(memory_env(), NameServerConfig(port=0))
    await server.start()
    yield server
    await server.close()


@pytest_asyncio.fixture
async def peer(server: NameServer) -> AsyncIterator[Peer]:
    peer = await Peer.connect(server.port)
    yield peer
    await peer.close()


async def register(peer: Peer, *topics: str, **changes: Any) -> RemotingCommand:
    return await peer.call(103, header_of(**changes), encode_body(body_of(*(topics or ("T", "U"))), 0))


async def test_register_route_and_goodbye(peer: Peer) -> None:
    answer = await register(peer)
    assert answer.code == 0 and decode_body(KVTable, answer.body, 0).table == {}
    answer = await peer.call(105, GetRouteInfoRequestHeader("T"))
    route = decode_body(TopicRouteData, answer.body, 0)
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    assert route.queue_datas[0].write_queue_nums == 4
    assert (await peer.call(104, UnRegisterBrokerRequestHeader("a", "10.0.0.1:10911", "C", 0))).code == 0
    answer = await peer.call(105, GetRouteInfoRequestHeader("T"))
    assert answer.code == 17 and "T" in (answer.remark or "")


@pytest.mark.parametrize("code", [104, 205, 216])
async def test_what_comes_behind_a_registration_finds_all_of_it(
    server: NameServer, peer: Peer, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its topics are kept in turns; what is told meanwhile is about the last of them too."""
    monkeypatch.setattr("aiorocket.nameserver.core.routes.A_TURN", 10)
    names = [f"T{number}" for number in range(1000)]
    registering = asyncio.ensure_future(register(peer, *names))
    while not server.routes.topics():
        await asyncio.sleep(0)
    other = await Peer.connect(server.port)
    header = {
        104: UnRegisterBrokerRequestHeader("a", "10.0.0.1:10911", "C", 0),
        205: WipeWritePermOfBrokerRequestHeader("a"),
        216: DeleteTopicFromNamesrvRequestHeader("T999", None),
    }[code]
    assert (await other.call(code, header)).code == 0
    await other.close()
    assert (await registering).code == 0
    route = server.routes.topic_route("T999")
    assert route is None if code != 205 else route is not None and route.queue_datas[0].perm == 4


async def test_before_the_first_broker_no_topic_is_called_unknown(peer: Peer) -> None:
    """A client that is told 17 gives up; one that asks a name server in its first second should not."""
    early = await peer.call(105, GetRouteInfoRequestHeader("T"))
    assert early.code == 1 and "no broker has registered" in (early.remark or "")
    await register(peer, "U")
    assert (await peer.call(105, GetRouteInfoRequestHeader("T"))).code == 17


async def test_route_json_is_compact_and_has_quoted_broker_ids(peer: Peer) -> None:
    await register(peer)
    answer = await peer.call(105, GetRouteInfoRequestHeader("T"))
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in answer.body
    assert b" " not in answer.body  # Go's parser breaks on a blank inside brokerAddrs


async def test_msgpack_peers_get_msgpack_bodies_and_an_accepting_json_peer_too(server: NameServer, peer: Peer) -> None:
    await register(peer)
    other = await Peer.connect(server.port, "msgpack")
    try:
        answer = await other.call(105, GetRouteInfoRequestHeader("T"))
        assert answer.serialize_type == MSGPACK
        assert decode_body(TopicRouteData, answer.body, MSGPACK).queue_datas[0].broker_name == "a"
        answer = await peer.call(105, None, topic="T", _accept="msgpack")
        assert answer.serialize_type == MSGPACK and decode_body(TopicRouteData, answer.body, MSGPACK)
    finally:
        await other.close()


async def test_a_second_broker_of_the_name_is_refused_until_the_first_connection_ends(
    server: NameServer, peer: Peer
) -> None:
    await register(peer)
    second = await Peer.connect(server.port)
    try:
        answer = await register(second, address="10.0.0.9:10911")
        assert answer.code == 1 and "held by 10.0.0.1:10911" in (answer.remark or "")
        await peer.close()
        for _ in range(100):
            answer = await register(second, address="10.0.0.9:10911")
            if answer.code == 0:
                break
        assert answer.code == 0
    finally:
        await second.close()


@pytest.mark.parametrize("topic", ["T", "X"])
async def test_a_compressed_registration_and_a_wrong_checksum(topic: str, peer: Peer) -> None:
    """Brokers of Java send a checksum without its highest bit, which one of these topics has."""
    data = body_of(topic, "U").compressed()
    whole = zlib.crc32(data)
    for crc in (whole & 0x7FFFFFFF, whole - (whole >> 31 << 32)):
        answer = await peer.call(103, header_of(compressed=True, body_crc32=crc), data)
        assert answer.code == 0
        answer = await peer.call(103, header_of(compressed=True, body_crc32=crc ^ 1), data)
        assert answer.code == 1 and "crc32 not match" in (answer.remark or "")
    answer = await peer.call(103, header_of(compressed=True), b"not zlib")
    assert answer.code == 1 and "not zlib" in (answer.remark or "")


@pytest.mark.parametrize("field", ["brokerName", "brokerAddr", "clusterName"])
async def test_a_broker_that_could_be_told_to_nobody_is_refused(peer: Peer, field: str) -> None:
    """JSON can have half a surrogate pair: neither its topics' routes nor any list of brokers could be answered."""
    fields = {"brokerName": "b", "brokerAddr": "10.0.0.2:1", "clusterName": "C", "haServerAddr": "", "brokerId": "0",
              field: "\ud800"}  # fmt: skip
    header, body = (
        json.dumps({"code": 103, "opaque": 1, "extFields": fields}).encode(),
        encode_body(body_of("T", "U"), 0),
    )
    words = (len(header) + len(body) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big")
    peer.writer._stream.write(words + header + body)
    answer = await asyncio.wait_for(peer.reader.read(), 30)
    assert answer.code == 1 and "not Unicode" in (answer.remark or "")
    assert (await register(peer)).code == 0
    assert (await peer.call(106)).code == (await peer.call(105, GetRouteInfoRequestHeader("T"))).code == 0


async def test_a_body_that_is_no_registration_is_one_clear_answer(peer: Peer) -> None:
    answer = await peer.call(103, header_of(), b"[1]")
    assert answer.code == 1 and "RegisterBrokerBody" in (answer.remark or "")
    answer = await peer.call(105)
    assert answer.code == 1 and "topic" in (answer.remark or "")


async def test_lists_of_topics_and_brokers(peer: Peer) -> None:
    await register(peer)
    assert decode_body(TopicListBody, (await peer.call(206)).body, 0).topics == ["T", "U"]
    answer = await peer.call(224, GetTopicsByClusterRequestHeader("C"))
    assert decode_body(TopicListBody, answer.body, 0).topics == ["T", "U"]
    clusters = decode_body(ClusterInfo, (await peer.call(106)).body, 0)
    assert clusters.cluster_addr_table == {"C": ["a"]}
    assert clusters.broker_addr_table["a"].broker_addrs == {0: "10.0.0.1:10911"}
    answer = await peer.call(901, None, clusterName="C", brokerName="a")
    assert answer.body == b'{"brokerMemberGroup":{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"a","cluster":"C"}}'
    answer = await peer.call(901, None, clusterName="C", brokerName="x")
    assert b'"brokerAddrs":{},' in answer.body


async def test_permissions_topic_deletion_and_data_versions(peer: Peer) -> None:
    await register(peer)
    answer = await peer.call(205, WipeWritePermOfBrokerRequestHeader("a"))
    assert answer.read(WipeWritePermOfBrokerResponseHeader).wipe_topic_count == 2
    answer = await peer.call(105, GetRouteInfoRequestHeader("T"))
    assert decode_body(TopicRouteData, answer.body, 0).queue_datas[0].perm == 4
    assert (await peer.call(327, WipeWritePermOfBrokerRequestHeader("a"))).code == 0
    assert (await peer.call(216, DeleteTopicFromNamesrvRequestHeader("T"))).code == 0
    assert (await peer.call(105, GetRouteInfoRequestHeader("T"))).code == 17
    asked = QueryDataVersionRequestHeader("a", "10.0.0.1:10911", "C", 0)
    answer = await peer.call(322, asked, encode_body(DataVersion(7, 1), 0))
    assert answer.read(QueryDataVersionResponseHeader).changed is False
    answer = await peer.call(322, asked, encode_body(DataVersion(7, 2), 0))
    assert answer.read(QueryDataVersionResponseHeader).changed is True
    assert decode_body(DataVersion, answer.body, 0) == DataVersion(7, 1)


async def test_system_topics_and_topics_of_units(peer: Peer) -> None:
    topics = [TopicConfig("T"), TopicConfig("U", topic_sys_flag=1), TopicConfig("V", topic_sys_flag=2),
              TopicConfig("W", topic_sys_flag=3)]  # fmt: skip
    body = encode_body(RegisterBrokerBody(DataVersion(1, 1), topics), 0)
    assert (await peer.call(103, header_of(), body)).code == 0

    async def names(code: int) -> TopicListBody:
        answer = await peer.call(code)
        return decode_body(TopicListBody, answer.body, answer.serialize_type)

    assert await names(304) == TopicListBody(sorted({header_of().cluster_name, "a"}), "10.0.0.1:10911")
    assert [(await names(code)).topics for code in (311, 312, 313)] == [["U", "W"], ["V", "W"], ["V"]]


async def test_the_configuration_is_shown_and_what_may_change_survives_a_restart(tmp_path: Any) -> None:
    env = real_env()
    config = NameServerConfig(port=0, data=str(tmp_path))

    async def shown(peer: Peer) -> dict[str, str]:
        return decode_configuration((await peer.call(319)).body)

    for start in (1, 2):
        server = NameServer(env, config)
        await server.start()
        peer = await Peer.connect(server.port)
        assert (await shown(peer))["listenPort"] == str(server.port)
        await register(peer, "T", "U")
        await peer.call(100, PutKVConfigRequestHeader("ORDER_TOPIC_CONFIG", "T", "a:4"))
        route = (await peer.call(105, GetRouteInfoRequestHeader("T"))).body
        if start == 1:
            assert b'"orderTopicConf":"a:4"' in route
            assert (await peer.call(318, None, b"orderMessageEnable=false\nclusterTest=false\n")).code == 0
            for body, code in ((b"listenPort=1", 16), (b"kvConfigPath=/x", 16), (b"rocketmqHome=/x", 29),
                               (b"orderMessageEnable=perhaps", 29)):  # fmt: skip
                assert (await peer.call(318, None, body)).code == code, body
            route = (await peer.call(105, GetRouteInfoRequestHeader("T"))).body
        assert b"orderTopicConf" not in route and (await shown(peer))["orderMessageEnable"] == "false"
        await peer.writer.close()
        await server.close()
    await env.disk.close()


async def test_key_values_survive_a_restart(tmp_path: Any) -> None:
    env = real_env()
    config = NameServerConfig(port=0, data=str(tmp_path / "ns"))
    for restarted in (False, True):
        server = NameServer(env, config)
        await server.start()
        peer = await Peer.connect(server.port)
        if not restarted:
            assert (await peer.call(100, PutKVConfigRequestHeader("ORDER_TOPIC_CONFIG", "T", "a:4"))).code == 0
            assert (await peer.call(100, PutKVConfigRequestHeader("n", "k", "v"))).code == 0
            assert (await peer.call(102, GetKVConfigRequestHeader("n", "k"))).code == 0
        else:
            answer = await peer.call(101, GetKVConfigRequestHeader("ORDER_TOPIC_CONFIG", "T"))
            assert answer.read(GetKVConfigResponseHeader).value == "a:4"
            answer = await peer.call(219, GetKVListByNamespaceRequestHeader("ORDER_TOPIC_CONFIG"))
            assert decode_body(KVTable, answer.body, 0).table == {"T": "a:4"}
            answer = await register(peer)
            assert decode_body(KVTable, answer.body, 0).table == {"T": "a:4"}
            answer = await peer.call(105, GetRouteInfoRequestHeader("T"))
            assert decode_body(TopicRouteData, answer.body, 0).order_topic_conf == "a:4"
        assert (await peer.call(101, GetKVConfigRequestHeader("n", "k"))).code == 22
        assert (await peer.call(219, GetKVListByNamespaceRequestHeader("n"))).code == 22
        await peer.close()
        await server.close()
    await env.disk.close()


class FullDisk(MemoryDisk):
    """Takes nothing while it is ``full``."""

    full = False

    def replace(self, path: str, data: bytes) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().replace(path, data)


async def test_what_could_not_be_saved_is_not_acknowledged_when_it_is_repeated() -> None:
    """The second put, or deletion, changed nothing in memory, so it was answered with success and lost by a restart."""
    disk = FullDisk()
    config = NameServerConfig(port=0, data="ns")
    for key, there in (("put", True), ("gone", False)):
        server = NameServer(replace(memory_env(), disk=disk), config)
        await server.start()
        peer = await Peer.connect(server.port)
        assert (await peer.call(100, PutKVConfigRequestHeader("n", "gone", "v"))).code == 0
        disk.full = True
        change = (100, PutKVConfigRequestHeader("n", key, "v")) if there else (102, GetKVConfigRequestHeader("n", key))
        assert [(await peer.call(*change)).code for _ in range(2)] == [1, 1]
        disk.full = False
        assert (await peer.call(*change)).code == 0
        await peer.close()
        await server.close()
        server = NameServer(replace(memory_env(), disk=disk), config)
        await server.start()
        assert (server.kv.get("n", key) is not None) == there
        await server.close()


async def test_a_damaged_file_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Its last change is lost, and nobody heard of it."""
    disk = MemoryDisk()
    server = NameServer(replace(memory_env(), disk=disk), NameServerConfig(port=0, data="ns"))
    await server.start()
    peer = await Peer.connect(server.port)
    for value in ("1", "2"):
        assert (await peer.call(100, PutKVConfigRequestHeader("n", "k", value))).code == 0
    await peer.close()
    await server.close()
    disk.replace("ns/kvConfig.b", b"?")
    assert "damaged" not in caplog.text
    server = NameServer(replace(memory_env(), disk=disk), NameServerConfig(port=0, data="ns"))
    await server.start()
    await server.close()
    assert server.kv.get("n", "k") == "1"
    assert "ns/kvConfig is damaged, what was changed last may be lost: ns/kvConfig.b: not a state file" in caplog.text


async def test_a_start_that_failed_can_be_tried_again(tmp_path: Any) -> None:
    """It was told, tried again, that another name server has it."""
    server = NameServer(real_env(), NameServerConfig(port=0))
    await server.start()
    late = NameServer(real_env(), NameServerConfig(port=server.port, data=str(tmp_path / "ns")))
    for _ in range(2):
        with pytest.raises(UsageError, match="is in use"):
            await late.start()
    await server.close()
    await late.start()
    await late.close()
    for each in (server, late):
        await each._env.disk.close()


async def test_a_directory_is_one_servers(tmp_path: Any) -> None:
    """Each of two saved what it knew alone, over what the other had acknowledged."""
    config = NameServerConfig(port=0, data=str(tmp_path / "ns"))
    server, other = NameServer(real_env(), config), NameServer(real_env(), config)
    await server.start()
    with pytest.raises(StoreLockedError, match="kvConfig is another name server's, which is running"):
        await other.start()
    await other.close()
    await server.close()
    await other.start()
    await other.close()
    for each in (server, other):
        await each._env.disk.close()


async def test_beyond_loopback_nothing_is_administered_but_routes_are_served() -> None:
    server = NameServer(memory_env(), NameServerConfig(host="0.0.0.0", port=0))
    await server.start()
    peer = await Peer.connect(server.port)
    try:
        await register(peer)
        for code, header in (
            (100, PutKVConfigRequestHeader("n", "k", "v")),
            (102, GetKVConfigRequestHeader("n", "k")),
            (205, WipeWritePermOfBrokerRequestHeader("a")),
            (327, WipeWritePermOfBrokerRequestHeader("a")),
            (216, DeleteTopicFromNamesrvRequestHeader("T")),
        ):
            answer = await peer.call(code, header)
            assert answer.code == 16 and "127.0.0.1" in (answer.remark or "")
        assert (await peer.call(105, GetRouteInfoRequestHeader("T"))).code == 0
    finally:
        await peer.close()
        await server.close()


def from_elsewhere(opened: bool) -> list[int]:
    """The answers that a machine in the network gets to 103, 322, 904, 104 and then 105."""
    codes: list[int] = []

    async def main(sim: Simulation) -> None:
        config = NameServerConfig(host="0.0.0.0", port=9876, open_registration=opened)
        here = sim.host("10.0.0.1")
        server = NameServer(sim.env(), config)
        await here.run(server.start())

        async def ask() -> None:
            client = RemotingClient(sim.env(), RemotingConfig(serializer="json"))
            body = encode_body(body_of("T", "U"), 0)
            version = encode_body(DataVersion(7, 1), 0)
            for code, header, content in (
                (103, header_of(), body),
                (322, QueryDataVersionRequestHeader("a", "10.0.0.1:10911", "C", 0), version),
                (904, BrokerHeartbeatRequestHeader("C", "10.0.0.1:10911", "a"), b""),
                (105, GetRouteInfoRequestHeader("T"), b""),
                (104, UnRegisterBrokerRequestHeader("a", "10.0.0.1:10911", "C", 0), b""),
            ):
                command = RemotingCommand.request(code, header, body=content)
                codes.append((await client.request("10.0.0.1:9876", command)).code)
            await client.close()

        await sim.host("10.0.0.2").run(ask())
        await server.close()

    simulate(main)
    return codes


def test_brokers_of_other_machines_register_only_where_that_is_opened() -> None:
    assert from_elsewhere(opened=False) == [16, 16, 16, 1, 16]
    assert from_elsewhere(opened=True) == [0, 0, 0, 0, 0]


async def test_an_unknown_code_is_3(peer: Peer) -> None:
    answer = await peer.call(9999)
    assert answer.code == 3 and answer.remark == " request type 9999 not supported"
