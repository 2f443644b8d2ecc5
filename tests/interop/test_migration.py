"""What mqadmin and our command line say of one cluster of Apache's: the same topics, offsets, lag, members, messages
and settings; and mqadmin sees what our commands change."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from aiorocket import Producer
from aiorocket.cli.main import cli
from aiorocket_protocol import TRACE_TOPIC
from aiorocket_protocol.message_trace import TraceRecord, write_trace
from tests.interop.conftest import USERS
from tests.interop.migration import ROWS, Row
from tests.interop.peers import Admin, apache_server, ask, online, wait_for_statistics
from tests.interop.test_mqadmin import ONLINE, fields

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

CREATE_TOPIC, LIMIT = 17, 150.0


class Cluster(NamedTuple):
    """Somebody is online in it; ``names`` are put into commands, ``theirs`` besides into mqadmin's."""

    mqadmin: Admin
    nameserver: str
    names: dict[str, str]
    theirs: dict[str, str]

    def say(self, words: str) -> str:
        return self.mqadmin(*(word.format_map({**self.names, **self.theirs}) for word in words.split()))

    def ours(self, words: str) -> list[dict[str, Any]]:
        arguments = [word.format_map(self.names) for word in words.split()]
        result = CliRunner().invoke(cli, [*arguments, "--nameserver", self.nameserver, "--json"])
        assert result.exit_code == 0, f"{arguments}: {result.output}"
        found: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
        return found


@pytest.fixture(scope="module")
def cluster(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("migration")
    with pytest.MonkeyPatch.context() as patch, apache_server(jars, place / "apache", more=USERS) as server:
        patch.setenv("AIOROCKET_PASSWORD", "a-password-of-clerks")
        wait_for_statistics(server)
        for topic in ("orders", "%RETRY%auditors"):  # without the latter mqadmin knows no progress of the group
            made = {**fields(topic), "readQueueNums": "2", "writeQueueNums": "2"}
            assert ask(server.broker, CREATE_TOPIC, made)[0] == 0
        until(lambda: ask(server.nameserver, 105, {"topic": "%RETRY%auditors"})[0] == 0)
        with online(ONLINE, server.nameserver) as said, Admin(place, server.nameserver) as mqadmin:
            assert said == "online\n"
            names = {
                "T": "orders", "N": "made-here", "G": "online-group", "O": "made-group", "A": "auditors",
                "P": "online-producer", "B": "broker-a", "W": "broker-a", "K": "key-7", "S": server.nameserver,
                "E": "made-user", "M": "1", "Q": "sent-here",
            }  # fmt: skip
            found = Cluster(mqadmin, server.nameserver, names, {"B": server.broker})
            (one,) = until(lambda: found.ours("message key {T} {K}"))  # indexed
            names |= {"I": one["offset_msg_id"], "U": one["msg_id"]}
            names["C"] = found.ours("group members {G}")[0]["client_id"]
            found.ours("group create {A}")
            asyncio.run(traced(server.nameserver, one["msg_id"]))
            until(lambda: found.ours("trace {U}"))
            yield found._replace(theirs={"B": server.broker})


async def traced(nameserver: str, msg_id: str) -> None:
    record = TraceRecord("Pub", msg_id, 1_700_000_000_000, group="online-producer", topic="orders", success=True)
    async with Producer("tracer", nameservers=nameserver) as producer:
        await producer.send(TRACE_TOPIC, write_trace(record).encode(), keys=[msg_id], timeout=20)


def until(look: Any) -> Any:
    """What ``look`` gives when it is true: Apache's brokers tell, index and count a moment later."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            if found := look():
                return found
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.say or row.shows or row.seen], ids=lambda row: row.mqadmin[0]
)
def test_both_say_the_same(cluster: Cluster, row: Row) -> None:
    if row.seen is not None:
        cluster.say(row.mqadmin[0])
        ours, pattern = row.seen
        until(lambda: re.search(pattern, str(cluster.ours(ours))))
        return
    if row.shows is not None:
        for words in row.ours:
            cluster.ours(words)
        command, pattern = row.shows
        shown = pattern.replace("{T}", cluster.names["T"]).replace("{E}", cluster.names["E"])
        until(lambda: re.search(shown, cluster.say(command)))
        return
    assert row.say is not None and row.rows is not None

    def same() -> bool:
        theirs, ours = row.say(cluster.say(row.mqadmin[0])), row.rows(cluster.ours(row.ours[0]))
        assert theirs == ours and ours, f"only mqadmin: {theirs - ours}; only ours: {ours - theirs}"
        return True

    until(same)
