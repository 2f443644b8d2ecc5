"""What Apache's Java client is used for, in both of its lines, on our broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers import NEWEST, OLDER, Admin, JavaClient, Server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

FEATURES = (
    "push", "retry", "orderly", "broadcasting", "batch", "delay", "transaction", "request-reply", "sql92", "lite pull",
    "namespace", "trace",
)  # fmt: skip


class Java:
    """One version of the client: where our programs for it are, and what they said."""

    def __init__(self, version: str, place: Path) -> None:
        self.version = version
        self.place = place
        #: What ran once: by server, feature -> what the program said of it.
        self.said: dict[str, dict[str, Any]] = {}

    async def features(self, server: Server) -> dict[str, Any]:
        if server.kind not in self.said:
            client = JavaClient(self.place, self.version)
            try:
                prefix = f"f{self.version.replace('.', '')}"
                run = await client.start(server.nameserver, prefix, program="Features")
                events = await run.finish(limit=300)
            finally:
                await client.close()
            self.said[server.kind] = {event["name"]: event for event in events if event["event"] == "feature"}
        return self.said[server.kind]


@pytest.fixture(scope="session", params=[NEWEST, OLDER])
def version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Java:
    return Java(request.param, tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="session")
def mqadmin(version: Java, ours: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    with Admin(tmp_path_factory.mktemp("mqadmin"), ours.nameserver, version.version) as admin:
        yield admin


@pytest.mark.parametrize("feature", FEATURES)
async def test_feature(feature: str, version: Java, ours: Server, request: pytest.FixtureRequest) -> None:
    said = (await version.features(ours))[feature]
    assert said["works"], said["why"]


async def test_traces_are_kept_and_read_back(version: Java, ours: Server, mqadmin: Admin) -> None:
    message_id = (await version.features(ours))["trace"]["why"]
    said = ""
    while not said or "RemotingTimeoutException" in said:  # it waits 3 s for an answer
        said = mqadmin("queryMsgTraceById", "-i", message_id, "-t", "RMQ_SYS_TRACE_TOPIC")
    producer, consumer = (
        [line.split() for line in said.splitlines() if line.startswith(kind)] for kind in ("Pub ", "Sub ")
    )
    assert [line[1] for line in producer] == ["producer-trace"] and producer[0][-1] == "success", said
    assert [line[1] for line in consumer] == ["group-trace"] and consumer[0][-1] == "success", said
