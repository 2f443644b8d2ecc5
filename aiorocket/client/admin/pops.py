"""Messages that were popped: ``admin.pops``. Looking moves nothing."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from aiorocket.client.admin.asking import Answers, Asking, Broker
from aiorocket.client.queue_scan import QueueScan
from aiorocket.errors import UsageError
from aiorocket.model import Queue, check_group
from aiorocket_protocol import (
    LANGUAGE_PYTHON,
    POP_MODE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_OUT_MS,
    PULL_MODE,
    REVIVE_GROUP,
    REVIVE_TOPIC_PREFIX,
    TIMER_TOPIC,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    RecordView,
    RequestCode,
    ResponseCode,
    TopicConfig,
    decode_plain,
)
from aiorocket_protocol.plain import Plain

__all__ = ("Checkpoint", "Pops")

#: Topic, group and queue -> offset -> when it was popped and for how long.
_Out = dict[tuple[str, str, int], dict[int, tuple[int, int]]]


class Checkpoint(NamedTuple):
    """What one pop of a queue took and nobody has acknowledged; from ``due_ms`` on it comes again."""

    topic: str
    group: str
    broker: str
    queue: int
    popped_ms: int
    due_ms: int
    offsets: tuple[int, ...]


class Pops:
    """See ``Admin``."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking

    async def set_mode(self, group: str, topic: str, mode: Literal["PULL", "POP"], *, share: int = 0) -> Answers[str]:
        """Have the members of ``group`` that let brokers divide the queues pull or pop ``topic``; with ``share`` each
        queue is popped by so many more members, 0 is all. The brokers that keep it. RemoteError from 4.9, which has no
        POP."""
        if mode not in (PULL_MODE, POP_MODE):
            raise UsageError(f"mode={mode!r}: PULL or POP")
        if share < 0:
            raise UsageError(f"share={share}: 0 or more")
        body = {
            "topic": self._ask.wire(topic), "consumerGroup": self._ask.wire(check_group(group)), "mode": mode,
            "popShareQueueNum": share,
        }  # fmt: skip

        async def ask(broker: Broker) -> list[str]:
            await self._ask.put(broker.address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, body)
            return [broker.name]

        return await self._ask.each(ask)

    async def checkpoints(self, group: str | None = None, *, newest: int = 10_000) -> Answers[Checkpoint]:
        """What is with consumers of ``group``, or of every group, that popped it, the next to come again first; of the
        ``newest`` records that each queue of a broker's revive topic has. Apache's brokers keep such a record among
        their timers until a second before it is due: of these the ``newest`` are read, too. What they have given to
        the next they go past minutes later: of theirs, look at ``due_ms``."""
        wanted = None if group is None else self._ask.wire(check_group(group))
        now = self._ask.client.env.clock.wall_ms()

        async def ask(broker: Broker) -> list[Checkpoint]:
            answer = await self._ask.call(broker.address, RequestCode.GET_ALL_TOPIC_CONFIG)
            plain = Plain(decode_plain(answer.body, answer.serialize_type) if answer.body else {}, "topics")
            rows = plain.table("topicConfigTable").values()
            out: _Out = {}
            for topic in map(TopicConfig.from_plain, rows):
                if topic.topic_name.startswith(REVIVE_TOPIC_PREFIX):
                    for number in range(topic.read_queue_nums):
                        await self._read(Queue(topic.topic_name, broker.name, number), broker, newest, out)
            if answer.language != LANGUAGE_PYTHON:  # ours has no pops among its timers
                await self._read_timers(broker, newest, now, out)
            pops: dict[Checkpoint, list[int]] = {}
            for (name, member, number), taken in out.items():
                if wanted in (None, member) and self._ask.holds(member):
                    names = self._ask.shown(name), self._ask.shown(member), broker.name, number
                    for offset, (popped, invisible) in taken.items():
                        pops.setdefault(Checkpoint(*names, popped, popped + invisible, ()), []).append(offset)
            return [pop._replace(offsets=tuple(sorted(offsets))) for pop, offsets in pops.items()]

        answers = await self._ask.each(ask)
        answers.sort(key=lambda each: (each.due_ms, each))
        return answers

    async def _read(self, queue: Queue, broker: Broker, newest: int, out: _Out) -> None:
        """What the records of one queue say, from where its broker has come; later ones count."""
        scan = QueueScan(self._ask.client, queue, broker.address)
        begin, end = await scan.bounds()
        header = QueryConsumerOffsetRequestHeader(REVIVE_GROUP, queue.topic, queue.queue_id)
        answer = await self._ask.call(
            broker.address, RequestCode.QUERY_CONSUMER_OFFSET, header, accept=(ResponseCode.QUERY_NOT_FOUND,)
        )
        come = answer.read(QueryConsumerOffsetResponseHeader).offset if not answer.code else 0
        async for message in scan.messages(max(begin, come or 0, end - newest), end, RecordView):
            try:
                _replay(json.loads(message.body), out)
            except (ValueError, TypeError, LookupError, AttributeError):
                continue  # none of ours and none of Apache's

    async def _read_timers(self, broker: Broker, newest: int, now: int, out: _Out) -> None:
        """Of Apache's: pops that have not yet come to the revive topic, and what was acknowledged."""
        scan = QueueScan(self._ask.client, Queue(TIMER_TOPIC, broker.name, 0), broker.address)
        begin, end = await scan.bounds()
        async for message in scan.messages(max(begin, end - newest), end, RecordView):
            values = message.properties
            if values.get(PROPERTY_REAL_TOPIC, "").startswith(REVIVE_TOPIC_PREFIX):
                try:
                    said = json.loads(message.body)
                    if "it" not in said or now < int(values[PROPERTY_TIMER_OUT_MS]):
                        _replay(said, out)
                except (ValueError, TypeError, LookupError, AttributeError):
                    continue


def _replay(said: dict[str, Any], out: _Out) -> None:
    """One record: ``ol``, ``al``, ``rs`` and ``fg`` are ours; ``so`` with ``n`` a pop, ``ao`` and ``aol`` Apache's
    acknowledgements."""
    topic, group = said.get("t"), said.get("c", said.get("cid"))
    if "fg" in said:
        for key in [key for key in out if topic in (None, key[0]) and group in (None, key[1])]:
            del out[key]
        return
    queue = str(topic), str(group), int(said["q"])
    if "rs" in said:
        out.pop(queue, None)
        return
    popped = int(said["pt"])
    if "it" in said:
        if "ol" in said:
            offsets = [int(offset) for offset in said["ol"]]
        else:
            steps = said.get("d") or range(int(said["n"]))
            offsets = [int(said["so"]) + int(step) for bit, step in enumerate(steps) if not int(said["bm"]) >> bit & 1]
        out.setdefault(queue, {}).update(dict.fromkeys(offsets, (popped, int(said["it"]))))
    elif queue in out:
        taken = out[queue]
        for offset in said.get("al") or said.get("aol") or [said["ao"]]:
            if offset in taken and taken[offset][0] == popped:
                del taken[offset]
