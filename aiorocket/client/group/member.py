"""What the parts of a consumer ask of it, of whichever kind it is: a role for each, with what that part uses.

A part that is alone in what it asks says so beside itself (``Lessee`` in ``leases.py``, for one).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from aiorocket.client.message import Settler

if TYPE_CHECKING:
    from aiorocket.client.core.process_queue import ProcessQueue
    from aiorocket.client.core.start_from import Start, StartFrom
    from aiorocket.client.core.stats import ConsumeStats
    from aiorocket.client.group.leases import Leases
    from aiorocket.client.message import Message
    from aiorocket.client.push.backlog import Backlog
    from aiorocket.client.push.stream import MessageStream
    from aiorocket.client.session import Session
    from aiorocket.client.state import Counters
    from aiorocket.config import ConsumerConfig
    from aiorocket.model import Queue
    from aiorocket_protocol import SubscriptionData

__all__ = ("BalanceConfig", "Held", "Holdings", "Member", "OffsetStore", "Position", "Puller", "Reader")


class OffsetStore(Protocol):
    """Where a group's offsets lie: at the brokers, or in a file beside a broadcasting member."""

    async def read(self, queue: Queue) -> int:
        """The stored offset, -1 when there is none. RocketError or ProtocolError when that cannot be found out."""

    async def write(self, due: list[tuple[Queue, int]]) -> dict[Queue, Exception]:
        """Store these, also backwards. The failures by queue; whatever is not in it is stored."""


class BalanceConfig(Protocol):
    """The options of a rebalance, as of ``ConsumerConfig``."""

    @property
    def allocate(self) -> str | Callable[[Sequence[Any], Sequence[str], str], list[Any]]: ...
    @property
    def rebalance_interval(self) -> float: ...
    @property
    def rebalance_retry(self) -> float: ...
    @property
    def max_pull_idle(self) -> float: ...


class Reader(Protocol):
    """One that asks brokers about queues in the name of a group. Queues and topics are by their names on the wire."""

    @property
    def client(self) -> Session: ...
    @property
    def group(self) -> str: ...
    @property
    def wire_group(self) -> str: ...
    @property
    def leases(self) -> Leases | None: ...
    @property
    def counters(self) -> Counters: ...

    def subscription(self, topic: str) -> SubscriptionData: ...
    def master_address(self, queue: Queue) -> str | None: ...
    def reader_address(self, queue: Queue, suggested: int) -> str | None: ...


class Member(Reader, Protocol):
    """One member of a group, as rebalancing and offsets see it."""

    @property
    def config(self) -> BalanceConfig: ...
    @property
    def retry_topic(self) -> str: ...
    @property
    def broadcasting(self) -> bool: ...
    @property
    def offset_store(self) -> OffsetStore: ...

    def topics(self) -> list[str]: ...
    def held(self) -> list[Queue]: ...
    def shown(self, queues: Iterable[Queue]) -> list[Queue]: ...
    def touch(self, topics: Iterable[str]) -> None: ...
    def start_from(self, topic: str) -> StartFrom: ...


class Puller(Reader, Settler, Protocol):
    """For whom a fetcher pulls, and who takes what it brings."""

    @property
    def config(self) -> ConsumerConfig: ...
    @property
    def backlog(self) -> Backlog: ...
    @property
    def stream(self) -> MessageStream: ...
    @property
    def stats(self) -> ConsumeStats: ...
    @property
    def pulling(self) -> bool: ...
    @property
    def broadcasting(self) -> bool: ...

    def subscribed(self, topic: str) -> bool: ...
    def stream_full(self, topic: str) -> bool: ...
    def dispatch(self, topic: str, messages: list[Message]) -> None: ...
    def begin_anew(self, positions: Mapping[Queue, int]) -> None: ...


class Position(Protocol):
    """A fetcher as commits see it: how far its queue is finished."""

    @property
    def queue(self) -> Queue: ...
    @property
    def process_queue(self) -> ProcessQueue: ...


class Held(Protocol):
    """The fetcher of a queue, as a rebalance sees it."""

    @property
    def queue(self) -> Queue: ...

    def idle_since(self, now: float) -> float: ...


class Holdings(Protocol):
    """The queues a member holds, as a rebalance changes them."""

    @property
    def fetchers(self) -> Mapping[Queue, Held]: ...

    async def prepare(self, starts: Mapping[Queue, Start]) -> None: ...
    def take(self, queue: Queue, start: Start) -> None: ...
    async def give_up(self, queues: Collection[Queue]) -> None: ...
    def spread_limits(self) -> None: ...
