"""What one consumer subscribes to, and what follows from it for heartbeats, pulls and the hand-over to sinks."""

from __future__ import annotations

from collections.abc import Iterable

from aiorocket.client.core.start_from import StartFrom
from aiorocket.client.core.subscriptions import Subscriptions
from aiorocket.client.push.sinks import Sink
from aiorocket.client.push.stream import MessageStream
from aiorocket_protocol import SubscriptionData

__all__ = ("Taker", "Topics")

Taker = Sink | MessageStream


class Topics:
    """Topics by their wire names. ``retry_topic`` is None where nothing comes back (broadcasting)."""

    def __init__(self, retry_topic: str | None, stream: MessageStream) -> None:
        self._retry_topic = retry_topic
        self._stream = stream
        self._subscribed = Subscriptions[Taker]()
        self._starts: dict[str, StartFrom] = {}
        #: The subscription of each topic as the brokers are to know it, the retry topic last.
        self.data: dict[str, SubscriptionData] = {}
        #: Who takes all messages of a topic, where that is one. Looked up once per pull answer.
        self.only: dict[str, Taker] = {}
        #: Topics some of whose messages go to the async iterator.
        self.streamed: set[str] = set()

    def add(self, topic: str, tags: Iterable[str], taker: Taker, start: StartFrom, sql: str | None = None) -> None:
        """UsageError when somebody takes these messages already."""
        self._subscribed.add(topic, tags, taker, sql)
        self._starts.setdefault(topic, start)

    def start_from(self, topic: str) -> StartFrom:
        return self._starts.get(topic, StartFrom("last"))

    @property
    def wire_start(self) -> str:
        """RocketMQ knows one consumeFromWhere for a group: that of its first topic."""
        return next(iter(self._starts.values()), StartFrom("last")).wire

    def find(self, topic: str, tag: str) -> Taker | None:
        """Who takes one message of ``topic``; None when nobody does any more."""
        return self._subscribed.find(topic, tag)

    def derive(self, version: int) -> None:
        """Bring the derived tables up to date; a subscription that changed gets ``version`` as its subVersion, or one
        more than before when the clock was set back: brokers take no subscription that is not newer."""
        subscribed, names = self._subscribed, self._subscribed.topics()
        for topic in names:
            data = subscribed.data(topic, version)
            known = self.data.get(topic)
            if known is None:
                self.data[topic] = data
            elif known._replace(sub_version=version) != data:
                self.data[topic] = data._replace(sub_version=max(version, known.sub_version + 1))
            sole = subscribed.only(topic)
            if sole is not None:
                self.only[topic] = sole
            else:
                self.only.pop(topic, None)
        self.streamed = {topic for topic in names if subscribed.only(topic) in (self._stream, None)}
        retry = self._retry_topic
        if names and retry is not None:
            # Last, so that it is looked up after the heartbeat that makes the broker create it.
            known = self.data.pop(retry, None)
            self.data[retry] = known or SubscriptionData.parse(retry, "*", version)
            sinks = subscribed.sinks()
            if len(sinks) == 1:
                self.only[retry] = sinks[0]
            else:
                self.only.pop(retry, None)
            if self._stream in sinks:
                self.streamed.add(retry)

    def touch(self, topics: Iterable[str], version: int) -> None:
        """The queues of ``topics`` changed here: their subVersion becomes ``version``, as in Java."""
        for topic in topics:
            data = self.data.get(topic)
            if data is not None:
                self.data[topic] = data._replace(sub_version=max(version, data.sub_version))
