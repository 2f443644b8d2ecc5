"""A Java consumer sees the same of every kind of message from our broker as from Apache's: properties, ids, flags.

Plain messages with and without properties, a delayed one, one with a timer, a recalled one, one that is retried, a dead
one, a committed transactional one, and those of a batch, with what the producer was told of each.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.interop.peers import JavaClient, Server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

#: What differs from run to run and says nothing of the message.
PASSING = {"CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET", "TRANSACTION_CHECK_TIMES"}
#: Times: Apache's broker rounds to the second.
TIMES = {"TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_DELIVER_MS"}

SINGLE = ("plain", "bare", "delayed", "retried", "dead", "transactional")
ITEMS = ("received batch-0", "received batch-1")
#: Why, in what and of which kinds 4.9 differs from ours, which is as 5.5.
OLDER = (
    ("told of every send since 5", {"transactionId"}, [f"sent {kind}" for kind in (*SINGLE, "batch")]),
    ("stored since 5", {"property MSG_REGION", "property TRACE_ON"}, [f"received {kind}" for kind in SINGLE]),
    ("kept since 5 where there is no delay", {"property WAIT"}, ["received plain", "received bare"]),
    ("of the half message: kept before 5", {"property REAL_TOPIC", "property REAL_QID"}, ["received transactional"]),
    ("given since 5", {"property __transactionId__"}, ["received transactional"]),
    ("before 5 the items of a batch share them", {"msgId", "property UNIQ_KEY", "property CLUSTER"}, ITEMS),
)


async def facts(java: JavaClient, server: Server, *more: str) -> dict[str, dict[str, Any]]:
    """What ``Kinds`` prints, ids replaced by whose they are and a queue by whether it is the one sent to."""
    run = await java.start(server.nameserver, "kinds", "90", *more, program="Kinds")
    events = await run.finish(limit=120)
    names: dict[str, str] = {}
    for event in events:
        if event["event"] == "sent":
            for field in ("msgId", "offsetMsgId", "transactionId"):
                for number, known in enumerate((event[field] or "").split(",")):
                    names.setdefault(known, f"{field} {number} of {event['kind']}")
    found: dict[str, dict[str, Any]] = {}
    for event in events[:-1]:
        properties = event.pop("properties", {})
        queue = str(event.pop("queueId", ""))
        if "REAL_QID" in properties:
            properties["REAL_QID"] = "its own" if properties["REAL_QID"] == queue else properties["REAL_QID"]
        properties.update({name: "a time" for name in TIMES if properties.get(name, "").isdigit()})
        if (origin := properties.get("ORIGIN_MESSAGE_ID")) is not None:  # of a timer's delivery nobody was told
            properties["ORIGIN_MESSAGE_ID"] = names.get(origin, "another id")
        values = {**event, **{f"property {name}": value for name, value in properties.items() if name not in PASSING}}
        found[f"{event['event']} {event['kind']}"] = {
            name: ",".join(names.get(part, part) for part in value.split(",")) if isinstance(value, str) else value
            for name, value in values.items()
        }
    return found


def differences(wanted: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]) -> list[tuple[str, str, Any, Any]]:
    return [
        (kind, name, apaches.get(name), found.get(kind, {}).get(name))
        for kind, apaches in wanted.items()
        for name in sorted({*apaches, *found.get(kind, {})})
        if apaches.get(name) != found.get(kind, {}).get(name)
    ]


async def test_every_kind_of_message_is_as_apaches(
    java: JavaClient, apache: Server, apache_older: Server, ours: Server
) -> None:
    """All at once: most of the time is spent waiting. 4.9 has no timers."""
    wanted, older, found = await asyncio.gather(
        facts(java, apache), facts(java, apache_older, "untimed"), facts(java, ours)
    )
    assert len(wanted) == 10 + 1 + 10 and "received recalled" not in wanted
    assert wanted["received timer"]["property TIMER_OUT_MS"] == "a time"
    assert wanted["received transactional"]["property TRAN_MSG"] == "true"
    assert found.keys() == wanted.keys() and differences(wanted, found) == []
    assert len(older) == 7 + 8
    assert {(kind, name) for kind, name, *_ in differences(older, found)} == {
        (kind, name) for _, names, kinds in OLDER for kind in kinds for name in names
    }
