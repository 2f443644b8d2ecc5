"""Marks: which dead letters have been replayed.

A mark is a small message in the topic ``%REPLAYED%group``, in queue 0 of the dead letter's own broker, with the dead
letter's offset message id as key (unique for the life of that store). Marks are younger than what they mark, so
retention never removes them first.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiorocket.client.admin.asking import Asking
from aiorocket.client.core.namespace import wrap
from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.queue_scan import QueueScan
from aiorocket.client.sending.attempts import Attempts
from aiorocket.client.sending.outgoing import EncodedMessage
from aiorocket.client.sending.publish import Publish
from aiorocket.client.topic_admin import configure
from aiorocket.config import ProducerConfig
from aiorocket.errors import RemoteError, RocketError
from aiorocket.model import Queue, check_topic
from aiorocket_protocol import INNER_PRODUCER, PROPERTY_KEYS, ProtocolError, RecordView, dlq_topic, encode_properties

__all__ = ("Marks",)

_PREFIX = "%REPLAYED%"
#: Without its mark a message is sent again one day: worth waiting for a broker that restarts.
_TIMEOUT = 15.0
#: How often is looked whether a mark can be read.
_LOOK = 0.02


class Marks:
    """Those of one group, on the brokers that have its dead letters."""

    def __init__(self, asking: Asking, group: str) -> None:
        self._ask = asking
        client = asking.client
        name = wrap(client.config.namespace, group)
        #: As brokers know them, with the namespace.
        self.topic = check_topic(_PREFIX + name)
        self.dead_letters_topic = check_topic(dlq_topic(name))
        self._client = client
        self._attempts = Attempts(client, ProducerConfig(), self._look_up)
        self._publish: Publish | None = None
        self._opened: set[str] = set()
        #: By broker: the offset behind its newest mark.
        self._ends: dict[str, int] = {}

    async def on(self, broker_name: str) -> set[str]:
        """Replay ids of what was replayed of this broker's dead letters."""
        scan = await self._scan(broker_name)
        begin, end = await scan.bounds()
        marks: set[str] = set()
        async for mark in scan.messages(begin, end, RecordView):
            marks.update(mark.keys)
        return marks

    async def open(self, broker_name: str) -> None:
        """Make sure that marks can be stored there. RocketError says why they cannot."""
        if broker_name in self._opened:
            return
        if (await (await self._scan(broker_name)).bounds()).end == 0:
            try:
                address = await self._ask.master(await self._client.route(self.dead_letters_topic), broker_name)
                await configure(self._client, address, self.topic, 1)
            except RemoteError as refusal:
                # A broker that serves no administration may still create topics at the first send: this is it, and its
                # key is no message's.
                try:
                    await self.store(broker_name, "opened", {"opened": self._client.env.clock.wall_ms()})
                except (RocketError, ProtocolError) as error:
                    raise refusal from error
        self._opened.add(broker_name)

    async def store(self, broker_name: str, replay_id: str, said: dict[str, Any]) -> None:
        """Mark the dead letter with this id; ``said`` is for people. RocketError or ProtocolError after 15 s."""
        text = encode_properties({PROPERTY_KEYS: replay_id}).decode()
        mark = EncodedMessage(
            INNER_PRODUCER, self.topic, json.dumps(said).encode(), text, replay_id, 0, 0,
            self._client.env.clock.wall_ms(),
        )  # fmt: skip
        publish = self._publish or await self._open(refresh=False)
        target = publish.pinned(Queue(self.topic, broker_name, 0))
        receipt = await self._attempts.run(publish, target, mark, self._client.loop.time() + _TIMEOUT, moves=False)
        self._ends[broker_name] = max(self._ends.get(broker_name, 0), receipt.offset + 1)

    async def seen(self) -> None:
        """Wait until what was stored can be read: Apache's brokers show a message a moment after its receipt, and who
        replays once more until then sends it again. RocketError, and TimeoutError after 15 s."""
        async with asyncio.timeout(_TIMEOUT):
            for broker_name, end in self._ends.items():
                scan = await self._scan(broker_name)
                while (await scan.bounds()).end < end:  # noqa: ASYNC110 - a broker tells nobody
                    await asyncio.sleep(_LOOK)

    async def _scan(self, broker_name: str) -> QueueScan:
        address = await self._ask.master(await self._client.route(self.dead_letters_topic), broker_name)
        return QueueScan(self._client, Queue(self.topic, broker_name, 0), address)

    async def _open(self, *, refresh: bool) -> Publish:
        # Its brokers are those of the dead letters; name servers may not know it yet.
        known = await self._client.route(self.dead_letters_topic, refresh=refresh)
        names = sorted({queue.broker_name for queue in (*known.publish, *known.subscribe)})
        route = TopicRoute(self.topic, [Queue(self.topic, name, 0) for name in names], (), known.addresses)
        self._publish = Publish(route, start=0)
        return self._publish

    async def _look_up(self, topic: str) -> Publish:
        return await self._open(refresh=True)
