"""Every command of operators at all three brokers, one after the other, as somebody would who comes in the morning:
Apache's 5.5.0 and 4.9.7, and ours with access control. Somebody is online there, and a message was given up."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from aiorocket.cli.main import cli
from tests.cli.test_operate import FIELDS
from tests.interop.peers import Server, online, our_server
from tests.interop.test_access import access_file, credentials, signed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

LIMIT = 90.0
#: A sender with its trace, a member, and a dead letter; it says what it knows of them, and stays.
ONLINE = """
import asyncio, json, sys
import aiorocket
from aiorocket.telemetry.message_trace import MessageTrace

async def main(file):
    config = aiorocket.ClientConfig.from_toml(file)
    async with aiorocket.Client(config=config) as own:
        traces = own.producer("story-tracing")
        async with traces, MessageTrace(traces, group="story-shop", interval=0.1) as trace:
            client = aiorocket.Client(config=config, middleware=[trace])
            async with client, client.producer("story-shop") as producer:
                sent = [await producer.send("story", b"%d" % n, tag="t", keys=[f"k-{n}"], timeout=20) for n in range(6)]
                consumer, left = client.consumer("story-group"), {b"%d" % n for n in range(6)}

                @consumer.listener("story", start_from="first")
                async def listen(message):
                    left.discard(message.body)
                    if message.body == b"5":
                        raise aiorocket.DeadLetter("not for us")

                async with consumer:
                    while left:
                        await asyncio.sleep(0.1)
                    await consumer.commit()
                    print(json.dumps({"U": sent[1].msg_id, "I": sent[1].offset_msg_id, "D": sent[5].msg_id,
                                      "C": client.client_id}), flush=True)
                    while True:
                        await producer.send("story-tail", b"tick", tag="t", properties={"n": "7"}, timeout=20)
                        await asyncio.sleep(0.5)

asyncio.run(main(sys.argv[1]))
"""


class Step(NamedTuple):
    """``says`` is a pattern in what ``words`` prints; looks are repeated until it is there, for Apache's brokers count,
    index and tell a moment later. ``refused`` is said in its place, with exit code 1, by the brokers named in
    ``by``."""

    words: str
    says: str = ""
    refused: str = ""
    by: str = ""
    changes: bool = False

    def does(self, words: list[str]) -> bool:
        return self.words.split()[: len(words)] == words


def change(words: str, says: str = "", refused: str = "", by: str = "") -> Step:
    return Step(words, says, refused, by, changes=True)


BEFORE = (
    change("topic create story --queues 2 --json"),
    change("topic create story-tail --json"),
    change("group create story-group --retries 3 --json", '"retries": 3'),
)
STORY = (
    Step("doctor --json", '"check": '),
    Step("top --json", '"group": "story-group"'),
    Step("cluster list --json", '"address": "{B}"'),
    Step("cluster status broker-a --json", '"commitLogDiskRatio'),
    Step("cluster config broker-a --json", '"brokerName", "value": "broker-a"'),
    change("cluster set broker-a transactionCheckMax=13 --json"),
    Step("cluster config broker-a --json", '"transactionCheckMax", "value": "13"'),
    change("cluster clean topics --json"),
    change("cluster write broker-a off --json"),
    Step("topic route story --json", '"permission": "R"'),
    change("cluster write broker-a on --json"),
    Step("topic route story --json", '"permission": "RW"'),
    Step("cluster producers story-shop --json", "{C}"),
    Step("cluster names config {NS} --json", '"name": "'),
    change("cluster names set orderMessageEnable=false --json"),
    change("cluster names put story key value --json"),
    Step("cluster names values story --json", '"value"'),
    change("cluster names delete story key --yes --json"),
    Step("topic list --json", '"topic": "story"'),
    change("topic update story --read-queues 3 --json", '"read_queues": 3'),
    Step("topic status story --json", '"end": [1-6]'),
    Step("topic groups story --json", "story-group"),
    Step("group list --json", '"group": "story-group"'),
    change("group update story-group --retries 4 --json", '"retries": 4'),
    Step("group members story-group --json", "{C}"),
    Step("group info story-group {C} --json", '"story"'),
    Step("group lag story-group story --json", '"lag": 0'),
    change("send story hello --tag s --key k-s --json", '"msg_id"'),
    Step("message key story k-1 --json", "{U}"),
    Step("message get {I} --json", "{U}"),
    Step("message get {U} --topic story --json", "{I}"),
    Step("message at story broker-a 0 0 --json", '"offset": 0'),
    Step("message list story --json", "{U}"),
    change("message consume story-group {C} {I} --json", "CR_SUCCESS"),
    Step("message dump story", "{U}"),
    change("message load {F} --topic story"),
    Step("message tail story-tail --count 1 --json", '"topic": "story-tail"'),
    Step("message tail story-tail --count 1 --tag t --json", '"n": "7"'),
    Step("message tail story-tail --count 1 --sql n=7 --json", '"n": "7"'),
    Step("message timers --json", '"kind": "timer"'),
    Step("trace {U} --json", '"group": "story-group"'),
    Step("dlq list story-group --json", "{D}"),
    Step("dlq show story-group {D} --json", "{D}"),
    change("dlq replay story-group --dry-run --json"),
    change("dlq replay story-group --limit 1 --json"),
    change("produce story {L}", "2"),
    Step("consume story --group story-reader --from first --count 8 --json", '"tag": "s"|"body": "hello"'),
    change("group create story-other --json"),
    change("offsets clone story-group story-other story --json"),
    Step("group lag story-other story --json", '"topic": "story"'),
    change("offsets reset story-other story --to first --dry-run --json", '"then": 0'),
    change("offsets reset story-other story --to first --json", '"then": 0'),
    change("group mode story-other story POP --json", "broker-a", "code 3", "apache_older"),
    Step("group popped --json", '"rows": '),
    change("acl create-user story-user --password secret-of-story --json", "", "code 3", "apache_older"),
    Step("acl users --json", "story-user", "code 3", "apache_older"),
    change("acl update-user story-user --disabled --json", "", "code 3", "apache_older"),
    change("acl grant story-user Topic:story Pub --json", "", "code 3", "apache_older"),
    Step("acl rights story-user --json", '"resource": "Topic:story"', "code 3", "apache_older"),
    change("acl revoke story-user --json", "", "code 3", "apache_older"),
    change("acl delete-user story-user --yes --json", "", "code 3", "apache_older"),
    change("bench run --seconds 2 --warmup 1 --rate 100 --consumers 1 --json", '"acknowledged"'),
    Step("fuzz run {B} --frames 200 --codes 30,31,9999 --json-only --out {OUT} --json", '"frames": 2'),
    change("group delete story-other --yes --json"),
    change("topic delete story --yes --json"),
)
#: What works without a broker, serves, or has tests of its own: pages in test_dashboard.py, Spark in test_spark.py.
ELSEWHERE = {"demo", "standalone", "nameserver", "broker", "dashboard", "config", "store", "lake"}
#: What has documents of its own, or a message a line.
OTHER_DOCUMENTS = {"bench", "fuzz", "dlq", "consume"}
ELSEWHERE_TOO = {"bench compare", "bench report", "fuzz replay"}


def commands(of: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(of, click.Group):
        yield " ".join(path)
        return
    context = click.Context(of)
    for name in of.list_commands(context):
        found = of.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


def test_the_story_has_every_command() -> None:
    wanted = {each for each in commands() if each.split()[0] not in ELSEWHERE} - ELSEWHERE_TOO
    missing = {each for each in wanted if not any(step.does(each.split()) for step in (*BEFORE, *STORY))}
    assert missing == set()


@pytest.fixture(params=["apache", "apache_older", "ours"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Server]]:
    """The kind of broker, and the broker; how to reach it stands in ``mq.toml``."""
    config = tmp_path / "mq.toml"
    if request.param != "ours":
        server: Server = request.getfixturevalue(request.param)
        config.write_text(f'[aiorocket]\nnameservers = ["{server.nameserver}"]\n')
        yield request.param, server
        return
    with our_server(tmp_path, both=access_file(tmp_path), only_broker=credentials(tmp_path), signed=signed) as server:
        _, keys = credentials(tmp_path)
        config.write_text(f'[aiorocket]\nnameservers = ["{server.nameserver}"]\ncredentials_file = "{keys}"\n')
        yield request.param, server


def test_every_command(place: tuple[str, Server], tmp_path: Path) -> None:
    kind, server = place
    config = str(tmp_path / "mq.toml")
    names = {
        "OUT": str(tmp_path),
        "B": server.broker,
        "NS": server.nameserver,
        "F": str(tmp_path / "dump"),
        "L": str(tmp_path / "lines"),
    }
    (tmp_path / "lines").write_text("one\ntwo\n")
    failed = []

    def tell(step: Step) -> None:
        began = time.monotonic()
        words = step.words.format_map(names).split()
        own = ["--config", config] if words[0] != "fuzz" else []
        pattern = step.says
        for name, value in names.items():
            pattern = pattern.replace(f"{{{name}}}", re.escape(value))
        refused = kind in step.by.split()
        while True:
            result = CliRunner().invoke(cli, [*words, *own])
            good = result.exit_code == refused or words[0] in ("doctor", "fuzz")
            if good and re.search(step.refused if refused else pattern, result.output):
                if words[-1] == "--json" and not refused and words[0] not in OTHER_DOCUMENTS:
                    document = json.loads(result.stdout.splitlines()[-1])
                    for row in document["rows"]:
                        assert [name.removesuffix("_base64") for name in row] == FIELDS[document["kind"]], words
                if "dump" in words:
                    (tmp_path / "dump").write_text(result.stdout)
                return
            if step.changes or time.monotonic() - began > LIMIT / 3:
                failed.append(f"{step.words}: {result.exit_code} {result.output[-500:]!r} {result.exception!r}")
                return
            time.sleep(0.2)

    for step in BEFORE:
        tell(step)
    with online(ONLINE, config) as said:
        names |= json.loads(said)
        for step in STORY:
            tell(step)
    assert failed == [], "\n".join(failed)
