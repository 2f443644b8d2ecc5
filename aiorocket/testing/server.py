"""The same broker for tests without a loop: it runs in a thread, and every call of ``RocketMQServer`` goes there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from aiorocket import Body, SendOptions
from aiorocket.config import BrokerConfig, Flush
from aiorocket.embedded import Embedded
from aiorocket.model import SendReceipt
from aiorocket.runtime.threads import portal
from aiorocket.testing.faults import WireFaults
from aiorocket.testing.local import LocalRocketMQ, local_rocketmq
from aiorocket_protocol import RecordView

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

__all__ = ("RocketMQServer", "broker_thread")

_PATIENCE = 5.0


class RocketMQServer:
    """A name server and a broker in a thread, for synchronous code: a TestClient, other languages, sync fixtures.
    What a method does and raises is as of ``LocalRocketMQ``; consumers in any loop, thread or process count."""

    def __init__(self, mq: LocalRocketMQ, thread: BlockingPortal) -> None:
        self._mq = mq
        self._thread = thread
        #: ``host:port`` of the name server.
        self.nameserver_address = thread.call(lambda: mq.nameserver_address)

    @property
    def faults(self) -> WireFaults:
        """Plans may be made from here: they are looked at with each request."""
        return self._mq.faults

    @property
    def embedded(self) -> Embedded:
        """The servers themselves; they belong to the other thread."""
        return self._mq.embedded

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create ``topic``; it has a route when this returns."""
        self._thread.call(self._mq.create_topic, topic, queues)

    def send(self, topic: str, body: Body, **options: Unpack[SendOptions]) -> SendReceipt:
        """Send a message and wait for its receipt. Options and errors as of ``Producer.send``."""
        return self._thread.call(partial(self._mq.send, topic, body, **options))

    def messages(self, topic: str) -> list[RecordView]:
        """All messages of ``topic``, queue by queue."""
        return self._thread.call(lambda: self._mq.messages(topic))

    def dead_letters(self, group: str) -> list[RecordView]:
        """The messages that ``group`` gave up."""
        return self._thread.call(lambda: self._mq.dead_letters(group))

    def wait_dead_letter(self, group: str, timeout: float = _PATIENCE) -> RecordView:
        """The next dead letter of ``group`` that was not returned before. TimeoutError after ``timeout`` seconds."""
        return self._thread.call(self._mq.wait_dead_letter, group, timeout)

    def settled(self, timeout: float = 10.0) -> None:
        """Return when every consumer has finished everything that is not delayed. TimeoutError."""
        self._thread.call(self._mq.settled, timeout)

    def advance(
        self, *, hours: float = 0.0, minutes: float = 0.0, seconds: float = 0.0, patience: float = 10.0
    ) -> None:
        """Let this much time pass for delays and retries, as ``TestClock.advance``."""
        advance = self._mq.clock.advance
        self._thread.call(partial(advance, hours=hours, minutes=minutes, seconds=seconds, patience=patience))

    def committed(self, group: str, topic: str) -> int:
        """How many messages of ``topic`` the group is done with, once everything is settled."""
        self.settled()
        return self._thread.call(lambda: self._mq.committed(group, topic))

    def assert_committed(self, group: str, topic: str, lag: int = 0) -> None:
        """AssertionError when ``group``, once everything is settled, is done with more or less than all messages of
        ``topic`` but ``lag``."""
        self.settled()
        self._thread.call(lambda: self._mq.assert_committed(group, topic, lag))

    def restart(self, *, kill: bool = False) -> None:
        """End the broker and start it on the same directory and port. UsageError without a directory."""
        self._thread.call(partial(self._mq.restart, kill=kill))


@contextmanager
def broker_thread(
    data: str | None = None,
    *,
    flush: Flush | None = None,
    broker: BrokerConfig | Mapping[str, Any] | None = None,
    host: str = "127.0.0.1",
) -> Iterator[RocketMQServer]:
    """``with broker_thread() as mq``: a name server and a broker in a thread of their own. ``mq.nameserver_address`` is
    for clients of any kind and language; the arguments and errors are those of ``embed``. They have ended when the
    block is left."""
    made = local_rocketmq(data, flush=flush, broker=broker, host=host)
    with portal() as thread, thread.wrap_async_context_manager(made) as mq:
        yield RocketMQServer(mq, thread)
