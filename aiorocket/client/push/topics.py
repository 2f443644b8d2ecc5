"""What one consumer subscribes to, and who takes the messages: sinks of listeners, and the async iterator."""

from __future__ import annotations

import logging

from aiorocket.client.core.namespace import wrap
from aiorocket.client.core.subscriptions import Subscriptions, Wanted
from aiorocket.client.group.member import Member
from aiorocket.client.message import Message
from aiorocket.client.push.sinks import Sink
from aiorocket.client.push.stream import MessageStream
from aiorocket_protocol import ALL_TAGS, SubscriptionData

__all__ = ("Taker", "Topics")

log = logging.getLogger("aiorocket.client")

Taker = Sink | MessageStream


class Topics:
    """Topics by their names on the wire. What follows for brokers is in the member's ``subscriptions``, its retry topic
    last; where nothing comes back (broadcasting) it has none."""

    def __init__(self, member: Member, stream: MessageStream) -> None:
        self._member = member
        self.stream = stream
        self._subscribed = Subscriptions[Taker]()
        # Who takes all messages of a topic, where that is one. Looked up once per pull answer.
        self._only: dict[str, Taker] = {}
        # Topics some of whose messages go to the async iterator.
        self._streamed: set[str] = set()

    def add(self, topic: str, what: Wanted, taker: Taker) -> None:
        """UsageError when somebody takes these messages already. ``derive`` makes it known."""
        self._subscribed.add(topic, what.tags, taker, what.sql)
        self._member.want(topic, what)

    def __bool__(self) -> bool:
        return bool(self._subscribed.topics())

    @property
    def streams(self) -> bool:
        """Something is subscribed to for the async iterator."""
        return self.stream in self._subscribed.sinks()

    def derive(self, version: int) -> None:
        """Bring the derived tables up to date. A subscription that changed gets ``version`` as its subVersion, or one
        more than before when the clock was set back: brokers take no subscription that is not newer."""
        subscribed, data = self._subscribed, self._member.subscriptions
        names = subscribed.topics()
        for topic in names:
            wanted, known = subscribed.data(topic, version), data.get(topic)
            if known is None:
                data[topic] = wanted
            elif known._replace(sub_version=version) != wanted:
                data[topic] = wanted._replace(sub_version=max(version, known.sub_version + 1))
            self._set_only(topic, subscribed.only(topic))
        self._streamed = {topic for topic in names if subscribed.only(topic) in (self.stream, None)}
        if names and not self._member.broadcasting:
            retry = self._member.retry_topic
            # Last, so that it is looked up after the heartbeat that makes the broker create it.
            data[retry] = data.pop(retry) if retry in data else SubscriptionData.parse(retry, ALL_TAGS, version)
            takers = subscribed.sinks()
            self._set_only(retry, takers[0] if len(takers) == 1 else None)
            if self.stream in takers:
                self._streamed.add(retry)

    def _set_only(self, topic: str, taker: Taker | None) -> None:
        if taker is not None:
            self._only[topic] = taker
        else:
            self._only.pop(topic, None)

    def idle(self, topic: str) -> bool:
        """Nothing waits for those who take messages of ``topic``, or for some of those whose retries come in it: that
        is one queue for all, where the queues of a topic would fill up for who hangs beside another."""
        retry = topic == self._member.retry_topic
        takers = self._subscribed.sinks(None if retry else topic)
        return (any if retry else all)(isinstance(taker, MessageStream) or not taker.backlog for taker in takers)

    def stream_full(self, topic: str) -> bool:
        """Messages of ``topic`` may go to the async iterator, and that has enough."""
        return topic in self._streamed and self.stream.full

    def dispatch(self, topic: str, messages: list[Message]) -> None:
        """Hot: a run of messages to whoever takes them."""
        only = self._only.get(topic)
        if only is not None:
            only.put(messages)
            return
        parts: dict[Taker, list[Message]] = {}
        for message in messages:
            taker = self._subscribed.find(wrap(self._member.namespace, message._wire_topic), message.tag)
            if taker is None:
                log.warning("message %s: nobody here takes topic %s any more", message.msg_id, message.topic)
                self._member.scope.start(message._source.settler.send_back(message, 0), name="orphan")
            else:
                parts.setdefault(taker, []).append(message)
        for taker, part in parts.items():
            taker.put(part)

    def dispatch_again(self, message: Message) -> None:
        """Deliver once more a message that is not finished."""
        if not message.settled:
            self.dispatch(message._source.queue.topic, [message])
