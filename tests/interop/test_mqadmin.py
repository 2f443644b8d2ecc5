"""The daily commands of Apache's mqadmin, in both of its lines, against our name server and broker: what each prints is
what is true, and nothing that it asks for is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.peers import NEWEST, OLDER, Admin, Server, ask, online, our_server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

#: A producer and a consumer that stay; the first 20 messages have keys and are on queue 0.
ONLINE = """
import asyncio, sys
from aiorocket import Consumer, Producer

async def main(nameserver):
    async with Producer("online-producer", nameservers=(nameserver,)) as producer:
        for number in range(20):
            await producer.send("orders", b"%d" % number, keys=(f"key-{number}",), tag="t", timeout=10)
        consumer = Consumer("online-group", nameservers=(nameserver,))

        @consumer.listener("orders", start_from="first")
        async def listen(message): ...

        async with consumer:
            await asyncio.sleep(2)
            await consumer.commit()
            print("online", flush=True)
            await asyncio.sleep(3600)

asyncio.run(main(sys.argv[1]))
"""


class Setting(NamedTuple):
    """A server of ours with somebody online, and mqadmin of one version."""

    version: str
    server: Server
    admin: Admin
    place: Path
    log: Path


@pytest.fixture(scope="module", params=[NEWEST, OLDER])
def setting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    place = tmp_path_factory.mktemp("mqadmin")
    (place / "topics.json").write_text(json.dumps([topic("listed-a"), topic("listed-b")]))
    (place / "groups.json").write_text(json.dumps([{"groupName": "listed-group", "retryMaxTimes": 3}]))
    with our_server(place / "server") as server:
        assert ask(server.broker, 17, {**fields("orders"), "readQueueNums": "2", "writeQueueNums": "2"})[0] == 0
        with online(ONLINE, server.nameserver) as said, Admin(place, server.nameserver, request.param) as admin:
            assert said == "online\n"
            yield Setting(request.param, server, admin, place, place / "server" / "broker.log")


def topic(name: str) -> dict[str, object]:
    return {"topicName": name, "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}


def fields(name: str) -> dict[str, str]:
    return {"topic": name, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
            "order": "false"}  # fmt: skip


class Command(NamedTuple):
    """Its words, in which {broker} and the like are filled in, and patterns each of which is in what it prints."""

    words: str
    patterns: tuple[str, ...]
    only: str = ""


COMMANDS = (
    Command("updateTopic -b {broker} -t made -r 4 -w 3",
            (r"create topic to {broker} success", r"readQueueNums=4, writeQueueNums=3")),
    Command("updateTopic -c DefaultCluster -t ordered -r 4 -w 4 -o true", (r"orderConf=\[broker-a:4\]",)),
    Command("updateTopicPerm -c DefaultCluster -t made -p 4", (r"from 6 to 4 in {broker} success",)),
    Command("updateTopicList -b {broker} -f {place}/topics.json",
            (r"submit batch of topic config to {broker} success",), NEWEST),
    Command("updateSubGroup -c DefaultCluster -g made-group -r 3", (r"success", r"retryMaxTimes=3")),
    Command("updateSubGroupList -b {broker} -f {place}/groups.json", (r"{broker} success",), NEWEST),
    Command("topicRoute -t made", (r'"perm":4', r'"readQueueNums":4', r"{broker}")),
    Command("topicList",
            (r"(?m)^orders$", r"(?m)^made$", r"(?m)^%RETRY%online-group$", r"(?m)^SCHEDULE_TOPIC_XXXX$")),
    Command("topicList -c", (r"DefaultCluster +orders +online-group",)),
    Command("topicClusterList -t orders", (r"DefaultCluster",)),
    Command("topicStatus -t orders", (r"broker-a +0 +0 +10 ", r"broker-a +1 +0 +10 ")),
    Command("clusterList", (r"DefaultCluster +broker-a +0 +{broker} +V5_3_3",)),
    Command("clusterList -m", (r"broker-a +0 +0 +20 +20",)),
    Command("brokerStatus -b {broker}",
            (r"msgPutTotalTodayNow +: 20\b", r"msgGetTotalTodayNow +: 20\b", r"brokerActive +: true")),
    Command("brokerStatus -c DefaultCluster", (r"{broker} +putMessageTimesTotal +: \d+",)),
    Command("statsAll", (r"orders +online-group +0 +\d+\.\d\d +\d+\.\d\d +20 +20\b",)),
    Command("consumerProgress -g online-group", (r"orders +broker-a +0 +10 +10 +0 ", r"Diff Total: 0")),
    Command("consumerProgress", (r"online-group +1 +V5_3_3 +PUSH +CLUSTERING",)),
    Command("consumerConnection -g online-group", (r"PYTHON +V5_3_3", r"orders +\*", r"CONSUME_PASSIVELY")),
    Command("consumerStatus -g online-group", (r"Same subscription in the same group", r"Rebalance OK")),
    Command("producerConnection -g online-producer -t orders", (r"PYTHON +V5_3_3",)),
    Command("producer -b {broker}", (r"producer group \(online-producer\) instance : clientId=127.0.0.1@", )),
    Command("brokerConsumeStats -b {broker}", (r"orders +online-group +broker-a +0 +10 +10 +0 ", r"Diff Total: 0")),
    Command("getConsumerConfig -g made-group", (r"retryMaxTimes += +3",)),
    Command("queryMsgByKey -t orders -k key-7", (r"(?m)^[0-9A-F]{{32}} +[01] +\d+",)),
    Command("queryMsgByOffset -t orders -b broker-a -i 0 -o 3", (r"Queue Offset: +3", r"Keys: +\[?key-\d+")),
    Command("printMsg -t orders -d true", (r"BODY: \d+",)),
    Command("printMsgByQueue -t orders -a broker-a -i 0 -p true -d true", (r"BODY: \d+",)),
    Command("consumeMessage -t orders -b broker-a -i 0 -o 0 -c 2", (r"Consume ok",)),
    Command("queryCq -t orders -q 0 -i 0 -c 2 -g online-group",
            (r"max: 10, min: 0", r"physicOffset=\d+, physicSize=\d+")),
    Command("cloneGroupOffset -s online-group -d cloned -t orders -o false", (r"clone group offset success",)),
    Command("resetOffsetByTime -g cloned -t orders -s 0", (r"broker-a +0 +0\b", r"broker-a +1 +0\b")),
    Command("skipAccumulatedMessage -g cloned -t orders", (r"broker-a +0 +10\b", r"broker-a +1 +10\b")),
    Command("sendMessage -t second -p hello", (r"broker-a +\d +SEND_OK",)),
    Command("checkMsgSendRT -t second -a 3 -s 10", (r"broker-a +\d +true",)),
    Command("sendMsgStatus -b broker-a -s 10 -c 3", (r"sendStatus=SEND_OK",)),
    Command("allocateMQ -t orders -i 1,2", (r'"queueId":0', r'"queueId":1')),
    Command("updateOrderConf -t made -m put -v broker-a:4", (r"success",)),
    Command("updateOrderConf -t made -m get", (r"orderConf=\[broker-a:4\]",)),
    Command("updateOrderConf -t made -m delete", (r"success",)),
    Command("updateKvConfig -s space -k key -v value", (r"success",)),
    Command("deleteKvConfig -s space -k key", (r"success",)),
    Command("wipeWritePerm -b broker-a -n {nameserver}", (r"OK, \d\d",)),
    Command("addWritePerm -b broker-a -n {nameserver}", (r"OK, \d\d",)),
    Command("getBrokerConfig -b {broker}", (r"brokerName += +broker-a", r"autoCreateTopicEnable += +true")),
    Command("updateBrokerConfig -b {broker} -k transactionCheckMax -v 9", (r"success",)),
    Command("getBrokerConfig -c DefaultCluster", (r"transactionCheckMax += +9",)),
    Command("getNamesrvConfig", (r"orderMessageEnable += +true",)),
    Command("updateNamesrvConfig -k orderMessageEnable -v false", (r"success",)),
    Command("haStatus -b {broker}", (r"#MasterCommitLogMaxOffset\s+\d+", r"#SlaveNum\s+0"), NEWEST),
    Command("resetMasterFlushOffset -b {broker} -o 0", (r"success",), NEWEST),
    Command("exportMetadata -c DefaultCluster -f {place}/export", (r"success",)),
    Command("exportConfigs -c DefaultCluster -f {place}/export", (r"success",)),
    Command("exportMetrics -c DefaultCluster -f {place}/export", (r"success",)),
    Command("cleanExpiredCQ -b {broker}", (r"success",)),
    Command("cleanUnusedTopic -b {broker}", (r"success",)),
    Command("deleteExpiredCommitLog -b {broker}", (r"success",)),
    Command("setConsumeMode -c DefaultCluster -t orders -g made-group -m POP -q 0", (r"success",), NEWEST),
    Command("deleteSubGroup -c DefaultCluster -g made-group", (r"delete subscription group \[made-group\]",)),
    Command("deleteTopic -c DefaultCluster -t made", (r"delete topic \[made\] from cluster .* success",)),
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=[command.words for command in COMMANDS])
def test_command(command: Command, setting: Setting) -> None:
    if command.only and setting.version != command.only:
        return
    names = {"broker": setting.server.broker, "nameserver": setting.server.nameserver, "place": str(setting.place)}
    said = setting.admin(*(word.format(**names) for word in command.words.split()))
    assert "DOES NOT END" not in said and "CODE: " not in said, said
    for pattern in command.patterns:
        assert re.search(pattern.format(**names), said), f"no {pattern.format(**names)} in:\n{said}"


def test_nothing_was_refused(setting: Setting) -> None:
    assert [line for line in setting.log.read_text().splitlines() if "refused request" in line] == []
