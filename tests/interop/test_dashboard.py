"""What the pages of RocketMQ's dashboard ask of our servers, through Apache's own admin client and over the VIP
channel, as the dashboard does: every question has its true answer.

The dashboard itself is in no package registry. 2.1.0, built from its source, was run by hand on 2026-11-22 over the
VIP channel, without and with access control: 63 of its 68 endpoints were asked, and each had its answer (login, logout
and two for proxies ask no server, ``/test/runTask.do`` sends for ever). What its controllers ask is here: Ops, Cluster,
Dashboard, Topic, Producer, Consumer and Message; MessageTrace and DlqMessage ask as "message by key", "messages of a
topic" and "message consumed once more" do, of other topics; Acl's is in ``test_access.py``.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.peers import HERE, ROOT, JavaClient, ask, our_server
from tests.interop.test_mqadmin import ONLINE, fields

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CREATE_TOPIC = 17
#: 20 messages in two queues, all of them consumed; ``ONLINE`` says who is there.
ANSWERS = {
    "cluster": "{DefaultCluster=[broker-a]}",
    "cluster runtime": "20",
    "cluster config": "broker-a",
    "charts": "20",
    "topics": "true",
    "topics configured": "true",
    "topic status": "20",
    "topic router": "1",
    "topic consumers": "[online-group]",
    "topic config": "2",
    "topic create": "3",
    "topic send": "SEND_OK",
    "topic send in a transaction": "COMMIT_MESSAGE",
    "topic delete": "done",
    "groups": "true",
    "group progress": "0",
    "group progress in a topic": "true",
    "group clients": "1",
    "group client": "2",
    "group client's stacks": "true",
    "group create": "7",
    "group reset with nobody there": "2",
    "group delete": "done",
    "producers": "1",
    "message by key": "1",
    "message by id": "7",
    "message tracks": "CONSUMED",
    "message consumed once more": "CR_SUCCESS",
    "messages by time": "0 true",
    "messages of a topic": "20",
    "group reset": "0",
}


async def test_every_page_has_its_answer(jars: Path, tmp_path: Path) -> None:
    classes = tmp_path / "classes"
    classes.mkdir()
    JavaClient.compile(jars, classes, [HERE / "java" / "Dashboard.java"])
    java = JavaClient(jars, classes, tmp_path)
    with our_server(tmp_path / "server") as server:
        assert (
            ask(server.broker, CREATE_TOPIC, {**fields("orders"), "readQueueNums": "2", "writeQueueNums": "2"})[0] == 0
        )
        command = [sys.executable, "-c", ONLINE, server.nameserver]
        online = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            assert online.stdout is not None
            assert await asyncio.to_thread(online.stdout.readline) == "online\n"
            arguments = (server.nameserver, "orders", "online-group", "online-producer", "key-7")
            run = await java.start(*arguments, program="Dashboard")
            facts = await run.finish(limit=120)
        finally:
            await java.close()
            online.kill()
            online.communicate()
    answers = {fact["page"]: fact["answer"] for fact in facts if fact["event"] == "page"}
    assert answers.pop("ops") == f"[{server.nameserver}]"
    assert answers == ANSWERS
