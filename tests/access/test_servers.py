"""A broker and a name server with access control, over real sockets: who is let in, who is not, and what is written
down of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from aiorocket.access.audit import Audit
from aiorocket.access.core.requests import RULES, is_administration
from aiorocket.broker import Broker
from aiorocket.client.app import Client
from aiorocket.client.message import Message
from aiorocket.config import BrokerConfig, ClientConfig, NameServerConfig, RemotingConfig
from aiorocket.errors import RemoteError, RocketError, SendError, UsageError
from aiorocket.nameserver import NameServer
from aiorocket.remoting import Connection, ProcessorTable, RemotingClient
from aiorocket.runtime.env import Env, memory_env, real_env
from aiorocket_protocol import (
    ConsumerData,
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    HeartbeatData,
    RemotingCommand,
    RequestCode,
    decode_plain,
    encode_body,
    encode_configuration,
    encode_properties,
    offset_msg_id,
)
from aiorocket_protocol.signing import Signer
from tests.broker.peer import send_header

NO_PERMISSION = 16
SECRETS = {name: f"{name}-s3cret" for name in ("ops", "shop", "spy", "guest", "node", "made")}
FILE = f"""
[users.ops]
secret = "{SECRETS["ops"]}"
admin = true
[users.shop]
secret = "{SECRETS["shop"]}"
topics = {{ orders = "PUB|SUB" }}
groups = {{ billing = "SUB" }}
[users.spy]
secret = "{SECRETS["spy"]}"
topics = {{ mine = "PUB|SUB" }}
groups = {{ spies = "ANY" }}
[users.guest]
secret = "{SECRETS["guest"]}"
[users.node]
secret = "{SECRETS["node"]}"
policies = [{{ resource = "Cluster:DefaultCluster", actions = ["Update"] }}]
"""


class Guarded(NamedTuple):
    env: Env
    nameserver: NameServer
    broker: Broker
    config: BrokerConfig

    def client(self, name: str = "shop", secret: str | None = None) -> Client:
        keys = {"access_key": name, "secret_key": secret or SECRETS[name]}
        return Client(config=ClientConfig(nameservers=(self.nameserver.address,), **keys))

    async def ask(self, name: str, code: int, ext: dict[str, str] | None = None, body: Any = None) -> RemotingCommand:
        """The broker's answer to a request that this user signs, or nobody ("")."""
        command = RemotingCommand.request(code, ext=ext, body=json.dumps(body).encode() if body is not None else b"")
        return await asked(self.broker.address, command, name)


async def asked(address: str, command: RemotingCommand, name: str) -> RemotingCommand:
    client = RemotingClient(memory_env(), ClientConfig().remoting, signer=Signer(name, SECRETS[name]) if name else None)
    try:
        return await client.request(address, command, 60.0)
    finally:
        await client.close()


@pytest_asyncio.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    file = tmp_path / "access.toml"
    file.write_text(FILE)
    env = real_env()
    nameserver = NameServer(env, NameServerConfig(host="0.0.0.0", port=0, acl=str(file), data=str(tmp_path / "ns")))
    await nameserver.start()
    config = BrokerConfig(
        host="0.0.0.0", advertise="127.0.0.1", port=0, data=str(tmp_path / "store"), acl=str(file),
        nameservers=(f"127.0.0.1:{nameserver.port}",), access_key="node", secret_key=SECRETS["node"],
        transaction_timeout=0.05, transaction_check_interval=0.05,
    )  # fmt: skip
    broker = Broker(env, config)
    try:
        await broker.start()
        yield Guarded(env, nameserver, broker, config)
    finally:
        await broker.close()
        await nameserver.close()
        await env.disk.close()


async def test_who_signs_well_and_may_sends_and_consumes(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    got = asyncio.Event()
    async with guarded.client() as client, client.producer("p") as producer:
        await producer.send("orders", b"1", timeout=30)
        consumer = client.consumer("billing")

        @consumer.listener("orders", start_from="first")
        async def on_order(message: Message) -> None:
            got.set()

        async with consumer, asyncio.timeout(60):
            await got.wait()
        assert not [record for record in caplog.records if record.name == "aiorocket.audit"], "it may all it asks for"
        with pytest.raises((SendError, RocketError), match="no permission to access Topic:secrets"):
            await producer.send("secrets", b"1", timeout=1)
    for client in (guarded.client("guest"), guarded.client("shop", "wrong-s3cret")):
        async with client, client.producer("p") as producer:
            # At once, and not as if nobody had answered.
            with pytest.raises(RemoteError, match=r"no permission|check signature failed"):
                await producer.send("orders", b"2", timeout=30)


async def test_a_half_message_is_shown_to_nobody_who_may_not_send_it(guarded: Guarded) -> None:
    """Whoever signs in may be a producer of any group, as at Apache's. Its brokers then ask it about transactions, with
    the message, and send it the replies of the client whose id it gives."""
    asked_about: dict[str, list[bytes]] = {"guest": [], "shop": []}
    came = asyncio.Event()
    beat = encode_body(HeartbeatData("an id", ["p"], []), 0)
    async with AsyncExitStack() as stack:

        async def producer(name: str) -> Connection:
            def check(connection: Connection, request: RemotingCommand) -> None:
                asked_about[name].append(request.body)
                came.set()

            table = ProcessorTable()
            table.add(RequestCode.CHECK_TRANSACTION_STATE, check)
            client = RemotingClient(memory_env(), RemotingConfig(), table, signer=Signer(name, SECRETS[name]))
            stack.push_async_callback(client.close)
            return await client.connect(guarded.broker.address)

        guest, shop = await producer("guest"), await producer("shop")
        assert (await guest.request(RemotingCommand.request(34, body=beat), 5)).code == 0
        half = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "A1"}
        header = send_header("orders", sys_flag=4, properties=encode_properties(half).decode())
        assert (await shop.request(RemotingCommand.request(310, header, body=b"half"), 5)).code == 0
        taken = await shop.request(RemotingCommand.request(34, body=beat), 5)
        assert taken.code == NO_PERMISSION and "client id an id is another user's" in (taken.remark or "")
        other = encode_body(HeartbeatData("another id", ["p"], []), 0)
        assert (await shop.request(RemotingCommand.request(34, body=other), 5)).code == 0
        async with asyncio.timeout(30):
            while len(asked_about["shop"]) < 3:
                came.clear()
                await came.wait()
    assert not asked_about["guest"] and b"half" in asked_about["shop"][0]


@pytest.mark.parametrize("kind", ["message", "delayed", "half", "retry"])
async def test_a_place_in_the_log_is_no_way_to_the_messages_of_others(guarded: Guarded, kind: str) -> None:
    """Whoever reads one message knows where the next one begins."""
    store = guarded.broker.store

    async def sent(name: str, topic: str, properties: dict[str, str], sys_flag: int = 0) -> int:
        place = store.max_physical
        header = send_header(topic, sys_flag=sys_flag, properties=encode_properties(properties).decode())
        command = RemotingCommand.request(310, header, body=b"a message")
        assert (await asked(guarded.broker.address, command, name)).code == 0
        return place

    def back(place: int, group: str) -> RemotingCommand:
        header = ConsumerSendMsgBackRequestHeader(place, group, 0, max_reconsume_times=16)
        return RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)

    def rolled_back(place: int) -> RemotingCommand:
        header = EndTransactionRequestHeader("p", 0, place, 12, "A1")
        return RemotingCommand.request(RequestCode.END_TRANSACTION, header)

    half = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "A1"}
    if kind == "half":
        place = await sent("shop", "orders", half, 4)
    elif kind == "delayed":
        place = await sent("shop", "orders", {"DELAY": "10"})
    else:
        place = await sent("shop", "%RETRY%billing" if kind == "retry" else "orders", {})
    msg_id = offset_msg_id(store.store_host, place)
    for command in (
        back(place, "spies"),
        rolled_back(place),
        RemotingCommand.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext={"consumerGroup": "spies", "msgId": msg_id}),
    ):
        answer = await asked(guarded.broker.address, command, "spy")
        assert answer.code == NO_PERMISSION and "the message that it names by its place" in (answer.remark or "")
        assert "orders" not in (answer.remark or "") and "billing" not in (answer.remark or "")
    # Whose it is may, and so may the spy with its own.
    own = rolled_back(place) if kind == "half" else back(place, "billing")
    assert (await asked(guarded.broker.address, own, "shop")).code == 0
    place = await sent("spy", "mine", {})
    assert (await asked(guarded.broker.address, back(place, "spies"), "spy")).code == 0
    nothing = await asked(guarded.broker.address, back(place + 1, "spies"), "spy")
    assert nothing.code == 1 and "look message by offset failed" in (nothing.remark or "")


async def test_every_code_served_has_its_line_and_none_is_served_without_a_right(guarded: Guarded) -> None:
    free = {RequestCode.CHECK_CLIENT_CONFIG}
    # They ask for something only when they name something.
    free |= {RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.END_TRANSACTION}
    free |= {RequestCode.BATCH_ACK_MESSAGE}
    body = b'{"clientId":"c","consumerGroup":"g","mqSet":[]}'
    for server in (guarded.broker.server, guarded.nameserver._server):
        codes = server.processors.codes()
        assert set(codes) <= set(RULES), "a code without a line in aiorocket/access/core/requests.py"
        assert any(map(is_administration, codes))
        for code in codes:
            address = f"127.0.0.1:{server.port}"
            assert (await asked(address, RemotingCommand.request(code), "")).code == NO_PERMISSION
            if code not in free:
                answer = await asked(address, RemotingCommand.request(code, body=body), "guest")
                assert answer.code == NO_PERMISSION, code


async def test_a_body_that_is_too_large_is_not_looked_at(guarded: Guarded) -> None:
    for name in ("", "guest", "ops"):
        answer = await guarded.ask(name, RequestCode.HEART_BEAT, None, {"consumerDataSet": [], "more": "x" * (1 << 20)})
        assert "the limit MAX_CONTROL_BODY" in (answer.remark or "")


async def test_a_reply_is_no_way_to_send(guarded: Guarded) -> None:
    await guarded.ask("ops", RequestCode.UPDATE_AND_CREATE_TOPIC, {
        "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    })  # fmt: skip
    fields = {"a": "p", "b": "orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0"}
    answer = await guarded.ask("guest", RequestCode.SEND_REPLY_MESSAGE_V2, fields, "forged")
    assert answer.code == NO_PERMISSION
    assert guarded.broker.store.max_offset("orders", 0) == 0


async def test_who_may_register(guarded: Guarded) -> None:
    for change, said in (
        ({"access_key": None, "secret_key": None}, "not signed"),
        ({"secret_key": "wrong-s3cret"}, "check signature failed"),
        ({"access_key": "shop", "secret_key": SECRETS["shop"]}, r"Cluster:DefaultCluster \(Update\)"),
    ):
        broker = Broker(guarded.env, replace(guarded.config, data=None, port=0, **change))
        with pytest.raises(UsageError, match=said):
            await broker.start()
    fields = {
        "brokerName": "broker-a",
        "brokerAddr": guarded.broker.address,
        "clusterName": "DefaultCluster",
        "brokerId": "0",
    }
    goodbye = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, ext=fields)
    assert (await asked(f"127.0.0.1:{guarded.nameserver.port}", goodbye, "shop")).code == NO_PERMISSION
    assert guarded.nameserver.routes.holder("broker-a", 0) == guarded.broker.address


async def test_users_by_command_are_kept_and_never_shown_with_their_secret(guarded: Guarded) -> None:
    name, secret = {"username": "made"}, SECRETS["made"]
    assert (await guarded.ask("guest", 3001, name, {"password": secret})).code == NO_PERMISSION
    assert (await guarded.ask("ops", 3001, name, {"password": secret, "userType": "Normal"})).code == 0
    again = await guarded.ask("ops", 3001, name, {"password": secret})
    assert again.code == NO_PERMISSION and again.remark == "The user is existed: made"
    short = await guarded.ask("ops", 3001, {"username": "x"}, {"password": "short"})
    assert short.code == 29 and "short" not in (short.remark or "")
    entries = [{"resource": "Topic:made*", "actions": ["Pub"], "sourceIps": ["127.0.0.0/8"], "decision": "Allow"}]
    acl = {"subject": "User:made", "policies": [{"policyType": "Custom", "entries": entries}]}
    assert (await guarded.ask("ops", 3006, {"subject": "User:made"}, acl)).code == 0

    send = {"a": "p", "b": "made-topic", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    for restarted in (False, True):
        if restarted:
            await guarded.broker.close()
            broker = Broker(guarded.env, replace(guarded.config, port=guarded.broker.port))
            await broker.start()
        try:
            assert (await guarded.ask("made", 310, send, 1)).code == 0
            assert (await guarded.ask("made", 310, {**send, "b": "other"}, 1)).code == NO_PERMISSION
            shown = await guarded.ask("ops", 3004, name)
            assert decode_plain(shown.body, 0) == {"username": "made", "userType": "Normal", "userStatus": "enable"}
            assert decode_plain((await guarded.ask("ops", 3009, {"subject": "User:made"})).body, 0) == acl
            users = decode_plain((await guarded.ask("ops", 3005, {"filter": ""})).body, 0)
            assert [user["username"] for user in users] == ["guest", "made", "node", "ops", "shop", "spy"]
            acls = decode_plain((await guarded.ask("ops", 3010, {"subjectFilter": "made"})).body, 0)
            assert acls == [acl]
            if not restarted:
                continue
            assert (await guarded.ask("ops", 3002, name, {"userStatus": "disable"})).code == 0
            assert (await guarded.ask("made", 310, send, 1)).code == NO_PERMISSION
            assert (await guarded.ask("ops", 3002, name, {"userStatus": "enable", "password": "another"})).code == 0
            assert (await guarded.ask("made", 310, send, 1)).code == NO_PERMISSION
            assert (await guarded.ask("ops", 3002, name, {"password": secret})).code == 0
            assert (await guarded.ask("ops", 3008, {"subject": "User:made", "resource": "Topic:made*"})).code == 0
            assert (await guarded.ask("made", 310, send, 1)).code == NO_PERMISSION
            assert (await guarded.ask("ops", 3003, name)).code == 0
            assert (await guarded.ask("ops", 3004, name)).body == b""
            fixed = await guarded.ask("ops", 3003, {"username": "shop"})
            assert fixed.code == NO_PERMISSION and "stands in the access file" in (fixed.remark or "")
        finally:
            if restarted:
                await broker.close()


@pytest.mark.parametrize("rated", [False, True])
@pytest.mark.parametrize("code", [11, 200050])
async def test_who_is_deleted_while_waiting_gets_nothing_any_more(guarded: Guarded, code: int, rated: bool) -> None:
    """The request was judged when it came, up to half a minute ago; who may still ask does so again. It waits for
    messages, or for its turn in its group's rate."""
    ask = {
        11: {"consumerGroup": "made", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
             "sysFlag": "6", "subscription": "*", "commitOffset": "0", "suspendTimeoutMillis": "30000",
             "subVersion": "0"},
        200050: {"consumerGroup": "made", "topic": "orders", "queueId": "0", "maxMsgNums": "32", "initMode": "0",
                 "invisibleTime": "60000", "pollTime": "30000", "bornTime": str(guarded.env.clock.wall_ms())},
    }[code]  # fmt: skip
    policies = [{"resource": "Topic:orders", "actions": ["Sub"]}, {"resource": "Group:made", "actions": ["Sub"]}]
    acl = {"subject": "User:made", "policies": [{"entries": [{**each, "decision": "Allow"} for each in policies]}]}
    create = {"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
              "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    assert (await guarded.ask("ops", 17, create)).code == 0
    assert (await guarded.ask("ops", 3001, {"username": "made"}, {"password": SECRETS["made"]})).code == 0
    assert (await guarded.ask("ops", 3006, {"subject": "User:made"}, acl)).code == 0

    client = RemotingClient(memory_env(), ClientConfig().remoting, signer=Signer("made", SECRETS["made"]))
    broker, parts = guarded.broker.address, guarded.broker.parts
    assert parts is not None
    member = ConsumerData("made", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", [])
    beat = RemotingCommand.request(34, body=encode_body(HeartbeatData("an id", [], [member]), 0))
    try:
        assert (await client.request(broker, beat, 30)).code == 0
        if rated:
            limit = encode_configuration({"groupMessageRate": "1"})
            assert (await asked(broker, RemotingCommand.request(25, body=limit), "ops")).code == 0
            parts.rates._messages.spend("made", 1000, asyncio.get_running_loop().time())
        waiting = asyncio.ensure_future(client.request(broker, RemotingCommand.request(code, ext=ask), 30))
        async with asyncio.timeout(30):
            while not parts.pulls.polls.count + parts.pops.polls.count + parts.rates.held.count:
                assert not waiting.done(), waiting.result()
                await asyncio.sleep(0)
        assert (await guarded.ask("ops", 3001, {"username": "x"}, {"password": "x-s3cret"})).code == 0
        assert not waiting.done(), "others who come are nothing to it"
        assert (await guarded.ask("ops", 3003, {"username": "made"})).code == 0
        async with asyncio.timeout(10):
            answer = await waiting
        assert answer.code in (20 if rated else 19, 210) and not answer.body  # nothing new
        assert (await client.request(broker, RemotingCommand.request(code, ext=ask), 30)).code == NO_PERMISSION
    finally:
        await client.close()


async def test_a_name_server_keeps_users_too(guarded: Guarded) -> None:
    address = f"127.0.0.1:{guarded.nameserver.port}"
    body = json.dumps({"password": SECRETS["made"], "userType": "Super"}).encode()
    create = RemotingCommand.request(3001, ext={"username": "made"}, body=body)
    assert (await asked(address, create, "node")).code == NO_PERMISSION
    assert (await asked(address, create, "ops")).code == 0
    await guarded.nameserver.close()
    again = NameServer(guarded.env, replace(guarded.nameserver.config, host="127.0.0.1"))
    await again.start()
    try:
        assert (
            await asked(again.address, RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO), "made")
        ).code == 0
    finally:
        await again.close()


async def test_accounts_as_rocketmq_4_writes_them(guarded: Guarded) -> None:
    account = {"accessKey": "made", "secretKey": SECRETS["made"], "admin": "false", "defaultTopicPerm": "DENY",
               "topicPerms": "made-topic=PUB|SUB,other=DENY", "groupPerms": "g=SUB"}  # fmt: skip
    assert (await guarded.ask("ops", 50, account)).code == 0
    offset = {"topic": "made-topic", "queueId": "0"}
    assert (await guarded.ask("made", 30, offset)).code != NO_PERMISSION
    assert (await guarded.ask("made", 30, {**offset, "topic": "other"})).code == NO_PERMISSION
    version = await guarded.ask("ops", 52)
    assert version.code == 0 and (version.ext or {}).get("brokerName") == "broker-a"
    assert (await guarded.ask("ops", 53, {"globalWhiteAddrs": "*"})).code == NO_PERMISSION
    assert (await guarded.ask("ops", 51, {"accessKey": "made"})).code == 0
    assert (await guarded.ask("made", 30, offset)).code == NO_PERMISSION


async def test_the_audit_log_and_no_secret_in_any(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    name = {"username": "made"}
    await guarded.ask("ops", 3001, name, {"password": SECRETS["made"]})
    for _ in range(20):
        await guarded.ask("guest", 215, {"topic": "orders"})
    await guarded.ask("ops", 3001, {"username": "bad"}, [SECRETS["made"]])
    broken = RemotingCommand.request(3001, ext=name, body=b'{"password": "' + SECRETS["made"].encode())
    answer = await asked(guarded.broker.address, broken, "ops")
    lines = [record.getMessage() for record in caplog.records if record.name == "aiorocket.audit"]
    served = [line for line in lines if "AUTH_CREATE_USER" in line]
    assert served and "broker-a served to ops at 127.0.0.1:" in served[0]
    refused = [line for line in lines if "DELETE_TOPIC_IN_BROKER" in line]
    assert (
        len(refused) == 1 and "refused to guest at 127.0.0.1:" in refused[0] and "Topic:orders (Delete)" in refused[0]
    )
    shown = caplog.text + repr(guarded) + repr(guarded.config) + (answer.remark or "") + repr(guarded.client())
    assert not [secret for secret in SECRETS.values() if secret in shown]


def test_the_audit_log_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit("b")
    for number in range(5000):
        audit.refused(1.0, user="u", peer=f"10.0.{number % 256}.{number // 256}:1", request="r", code=1, why="no\nno")
    assert len(caplog.records) == 50 and "\n" not in caplog.records[0].getMessage()
    audit.refused(2.5, user="u", peer="10.9.9.9:1", request="r", code=1, why="no")
    assert "(4950 lines before this one were too many)" in caplog.records[-1].getMessage()
    audit.refused(60.0, user="u", peer="10.0.0.0:1", request="r", code=1, why="no")
    audit.refused(61.0, user="u", peer="10.0.0.0:1", request="r", code=1, why="no")
    audit.refused(71.0, user="u", peer="10.0.0.0:1", request="r", code=1, why="no")
    assert "(1 more since the last such line)" in caplog.records[-1].getMessage()
    assert len(audit._refused) <= 1000
