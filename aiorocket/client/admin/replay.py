"""Replaying dead letters: each goes to where it came from, stays where it is, and is marked.

A replay reads the marks first and passes over what has one (``marks.py``).

Messages are replayed one at a time, each as: send, wait for the receipt, mark, wait for the receipt. Whatever ends this
in between (a crash, a power cut, Ctrl-C) can leave at most one message sent and not marked; the next replay sends that
one again, with the same ``REPLAY_ID``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from aiorocket.client.admin.dead_message import DeadMessage
from aiorocket.client.admin.marks import Marks
from aiorocket.client.core.namespace import wrap
from aiorocket.client.sending.attempts import Attempts
from aiorocket.client.sending.outgoing import EncodedMessage
from aiorocket.client.sending.publish import Publish
from aiorocket.client.session import Session
from aiorocket.client.topic_admin import create_topic
from aiorocket.config import ProducerConfig
from aiorocket.errors import RocketError, TopicNotFoundError, UsageError
from aiorocket.model import SendReceipt
from aiorocket_protocol import (
    COMPRESSION_MASK,
    INNER_PRODUCER,
    MAX_PROPERTIES,
    PROPERTY_BUYER_ID,
    PROPERTY_DLQ_ERROR,
    PROPERTY_DLQ_HOST,
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_DLQ_REASON,
    PROPERTY_EXTEND_UNIQ_INFO,
    PROPERTY_INSTANCE_ID,
    PROPERTY_KEYS,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_UNIQ_KEY,
    RESERVED,
    RETRY_PREFIX,
    SYS_FLAG_COMPRESSED,
    ProtocolError,
    decode_properties,
    encode_properties,
)

__all__ = ("REPLAY_ID", "Replay", "ReplayOutcome", "ReplayReport")

#: Property of a replayed message: which dead letter it is a copy of. Copies of one dead letter have the same.
REPLAY_ID = "REPLAY_ID"

_KEPT_FLAGS = SYS_FLAG_COMPRESSED | COMPRESSION_MASK
#: Of the names RocketMQ reserves, those that are about the message; all others tell of its way so far.
_KEPT = frozenset(
    (
        PROPERTY_KEYS,
        PROPERTY_TAGS,
        PROPERTY_UNIQ_KEY,
        PROPERTY_EXTEND_UNIQ_INFO,
        PROPERTY_BUYER_ID,
        PROPERTY_SHARDING_KEY,
        PROPERTY_INSTANCE_ID,
        PROPERTY_TRACE_CONTEXT,
        PROPERTY_ORIGIN_MESSAGE_ID,
    )
)
#: Why it was given up is the dead letter's, not that of its copy.
_WHY = (PROPERTY_DLQ_ERROR, PROPERTY_DLQ_REASON, PROPERTY_DLQ_HOST)
_SEND_TIMEOUT = 5.0
#: After so many failures in a row the rest would fail too.
_GIVE_UP = 10

Status = Literal["sent", "failed", "skipped", "selected"]


class ReplayOutcome(NamedTuple):
    """What became of one dead letter: "sent", "failed" (``error`` says why), "skipped" (replayed before), or
    "selected" in a dry run. ``topic`` is where it went, or would go."""

    message: DeadMessage
    topic: str
    status: Status
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """``selected`` matched and were not replayed before: ``sent`` and ``failed`` of them, so far as it got; ``skipped``
    matched too, and were replayed before. ``stopped`` says why it ended early."""

    selected: int
    sent: int
    failed: int
    skipped: int
    dry_run: bool
    failures: tuple[ReplayOutcome, ...] = ()
    stopped: str | None = None


class Replay:
    """One call of ``replay``: what it sends, and how it has gone so far."""

    def __init__(
        self,
        marks: Marks,
        client: Session,
        to: str | None,
        rate: float | None,
        dry_run: bool,
        on_outcome: Callable[[ReplayOutcome], object] | None,
    ) -> None:
        self._marks = marks
        self._client = client
        self._namespace = client.config.namespace
        self._to = to
        self._rate = rate
        self._dry_run = dry_run
        self._tell = on_outcome or (lambda outcome: None)
        self._attempts = Attempts(client, ProducerConfig(send_timeout=_SEND_TIMEOUT), self._look_up)
        self._targets: dict[str, Publish] = {}
        self._began = client.loop.time()
        self._in_a_row = 0
        self.selected = 0
        self._sent = 0
        self._skipped = 0
        self._failures: list[ReplayOutcome] = []
        self._stopped: str | None = None

    def report(self) -> ReplayReport:
        return ReplayReport(
            selected=self.selected,
            sent=self._sent,
            failed=len(self._failures),
            skipped=self._skipped,
            dry_run=self._dry_run,
            failures=tuple(self._failures),
            stopped=self._stopped,
        )

    def skip(self, message: DeadMessage) -> None:
        self._skipped += 1
        self._tell(ReplayOutcome(message, self._topic(message), "skipped"))

    async def take(self, message: DeadMessage) -> bool:
        """Replay one; False to end here."""
        topic = self._topic(message)
        self.selected += 1
        if self._dry_run:
            self._tell(ReplayOutcome(message, topic, "selected"))
            return True
        if self._rate is not None:
            due = self._began + (self.selected - 1) / self._rate
            await asyncio.sleep(max(0.0, due - self._client.loop.time()))
        # First of all: without marks the next replay would send everything again.
        await self._marks.open(message.queue.broker_name)
        try:
            receipt = await self._send(message, topic)
        except (RocketError, ProtocolError) as error:
            outcome = ReplayOutcome(message, topic, "failed", str(error))
            self._failures.append(outcome)
            self._tell(outcome)
            self._in_a_row += 1
            if self._in_a_row >= _GIVE_UP:
                self._stopped = f"{_GIVE_UP} messages in a row could not be sent, the last one because of: {error}"
            return self._stopped is None
        self._in_a_row = 0
        self._sent += 1
        try:
            await self._mark(message, topic, receipt)
        except (RocketError, ProtocolError) as error:
            self._stopped = (
                f"message {message.msg_id} was sent but could not be marked as replayed, so the next replay will send "
                f"it again: {error}"
            )
        self._tell(ReplayOutcome(message, topic, "sent", self._stopped))
        return self._stopped is None

    async def end(self) -> None:
        """Come back when the next replay knows what this one sent."""
        try:
            await self._marks.seen()
        except (RocketError, ProtocolError, TimeoutError) as error:
            self._stopped = self._stopped or (
                f"{self._sent} messages were sent and marked, but their marks cannot be read yet; a replay that begins "
                f"before they can sends them again: {str(error) or 'time is up'}"
            )

    def _topic(self, message: DeadMessage) -> str:
        return self._to or message.origin_topic

    async def _send(self, message: DeadMessage, topic: str) -> SendReceipt:
        if not topic:
            raise UsageError(f"it has no property {PROPERTY_RETRY_TOPIC} that says where it came from: name a topic")
        topic, origin = wrap(self._namespace, topic), wrap(self._namespace, message.origin_topic)
        sent = decode_properties(message.raw_properties)  # what was only made legible is not sent
        properties = {
            name: value for name, value in sent.items() if name in _KEPT or (name not in RESERVED and name not in _WHY)
        }
        if topic.startswith(RETRY_PREFIX) and origin:
            # What a consumer of retries takes for the topic. Elsewhere the broker sets it with the next failure; the
            # old one would then lead back here from any other topic.
            properties[PROPERTY_RETRY_TOPIC] = origin
        if origin:
            properties[PROPERTY_DLQ_ORIGIN_TOPIC] = origin
        properties[REPLAY_ID] = message.replay_id
        text = _text(properties)
        copy = EncodedMessage(
            INNER_PRODUCER, topic, message.raw_body, text, message.msg_id, message.sys_flag & _KEPT_FLAGS, message.flag,
            message.born_timestamp,
        )  # fmt: skip
        deadline = self._client.loop.time() + _SEND_TIMEOUT
        publish = self._targets.get(topic) or await self._open(topic, refresh=False)
        key = properties.get(PROPERTY_SHARDING_KEY)
        target = publish.choice.by_key(key) if key else publish.next()
        return await self._attempts.run(publish, target, copy, deadline, moves=not key)

    async def _mark(self, message: DeadMessage, topic: str, receipt: SendReceipt) -> None:
        said = {
            "replay_id": message.replay_id,
            "msg_id": message.msg_id,
            "queue": message.queue.queue_id,
            "offset": message.queue_offset,
            "topic": topic,
            "stored_as": receipt.offset_msg_id,
            "at": self._client.env.clock.wall_ms(),
        }
        await self._marks.store(message.queue.broker_name, message.replay_id, said)

    async def _open(self, topic: str, *, refresh: bool) -> Publish:
        try:
            route = await self._client.route(topic, refresh=refresh)
        except TopicNotFoundError:
            if self._to is None or topic.startswith(RETRY_PREFIX):
                raise  # where messages came from is gone: that is for people to decide
            await create_topic(self._client, topic)
            route = await self._client.route(topic)
        start = self._client.env.entropy.randrange(1 << 16)
        publish = self._targets[topic] = Publish(route, start=start)
        return publish

    async def _look_up(self, topic: str) -> Publish:
        return await self._open(topic, refresh=True)


def _text(properties: dict[str, str]) -> str:
    try:
        return encode_properties(properties).decode()
    except ProtocolError as error:
        raise UsageError(f"with the properties of a replay (at most {MAX_PROPERTIES} bytes): {error}") from None
