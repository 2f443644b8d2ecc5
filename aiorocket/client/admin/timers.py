"""What waits for its time: ``admin.timers``. Looking moves nothing."""

from __future__ import annotations

import re
from typing import NamedTuple

from aiorocket.client.admin.asking import Answers, Asking, Broker
from aiorocket.client.queue_scan import QueueScan
from aiorocket.model import Queue
from aiorocket_protocol import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_OUT_MS,
    TIMER_TOPIC,
    KVTable,
    RecordView,
    RequestCode,
    decode_body,
)

__all__ = ("DelayLevel", "PendingTimer", "Timers")

_LEVEL = re.compile(r"scheduleMessageOffset_(\d{1,3})", re.ASCII)
_PLACE = re.compile(r"(\d{1,19}),(\d{1,19})", re.ASCII)


class PendingTimer(NamedTuple):
    """A message that its broker delivers to ``topic`` at ``due_ms``; it lies at ``offset`` of the timer topic."""

    due_ms: int
    topic: str
    broker: str
    offset: int
    stored_ms: int
    msg_id: str
    tag: str
    keys: tuple[str, ...]
    size: int


class DelayLevel(NamedTuple):
    """How many messages of a delay level (1 is the shortest) a broker has not delivered yet."""

    level: int
    broker: str
    waiting: int


class Timers:
    """See ``Admin``."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking

    async def pending(self, *, newest: int = 10_000) -> Answers[PendingTimer]:
        """Timer messages that are not due yet, the next first, of the ``newest`` that each broker's timer topic has.
        Brokers without timers have none."""
        now = self._ask.client.env.clock.wall_ms()

        async def ask(broker: Broker) -> list[PendingTimer]:
            scan = QueueScan(self._ask.client, Queue(TIMER_TOPIC, broker.name, 0), broker.address)
            begin, end = await scan.bounds()
            found: dict[str, PendingTimer] = {}
            async for message in scan.messages(max(begin, end - newest), end, RecordView):
                values = message.properties
                recalled = values.get(PROPERTY_TIMER_DEL_UNIQKEY)
                if recalled is not None:
                    found.pop(recalled.rpartition("+")[2], None)
                    continue
                due = values.get(PROPERTY_TIMER_OUT_MS, "")
                topic = values.get(PROPERTY_REAL_TOPIC, "")
                if due.isascii() and due.isdigit() and now < int(due) < 1 << 63 and self._ask.holds(topic):
                    # One that waits long is stored again on its way: the last copy counts.
                    found[message.msg_id] = PendingTimer(
                        int(due), self._ask.shown(topic), broker.name,
                        message.queue_offset, message.store_timestamp, message.msg_id, message.tag,
                        tuple(message.keys), len(message.raw_body),
                    )  # fmt: skip
            return list(found.values())

        answers = await self._ask.each(ask)
        answers.sort()
        return answers

    async def levels(self) -> Answers[DelayLevel]:
        """The delay levels in which messages wait; 4.9 tells of those only from which it has delivered."""

        async def ask(broker: Broker) -> list[DelayLevel]:
            answer = await self._ask.call(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
            found = []
            for name, text in decode_body(KVTable, answer.body, answer.serialize_type).table.items():
                level, place = _LEVEL.fullmatch(name), _PLACE.fullmatch(text)
                if level and place and int(place[2]) > int(place[1]):
                    found.append(DelayLevel(int(level[1]), broker.name, int(place[2]) - int(place[1])))
            return found

        answers = await self._ask.each(ask)
        answers.sort()
        return answers
