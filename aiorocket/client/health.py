"""Is this client fit for work? What readiness probes ask, answered from memory: no request is sent for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from aiorocket.client.session import Session
from aiorocket.client.state import ConsumerState

__all__ = ("BrokerHealth", "ConsumerHealth", "Health", "look")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHealth:
    """The master at ``address``; ``connected`` is whether a connection to it is open now."""

    address: str
    connected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHealth:
    """One consumer group here, or pull consumer. ``failing`` counts the queues whose last pull failed; ``last_error``
    is one of their errors. ``missing_topics`` are waited for, which leaves the consumer healthy: it may be the first
    message of this very service that creates one."""

    group: str
    running: bool
    queues: int
    failing: int
    cached: int
    in_work: int
    consumed: int
    retried: int
    dead_lettered: int
    last_error: str | None
    missing_topics: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Running, and at least one of its queues can be read (a member without queues is a reserve, and healthy)."""
        return self.running and (self.queues == 0 or self.failing < self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A snapshot. ``ready`` is False when work would fail: the client is not running, a consumer is not healthy, or no
    broker of the topics in use is connected; ``reasons`` says which."""

    ready: bool
    reasons: tuple[str, ...]
    client_id: str
    consumers: tuple[ConsumerHealth, ...]
    brokers: tuple[BrokerHealth, ...]

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def look(client: Session, states: Iterable[ConsumerState], waiting: Iterable[str] = ()) -> Health:
    """The health of ``client`` with consumers in these states, and the groups ``waiting`` to be started."""
    consumers = tuple(map(_consumer, states))
    if not client.started:
        return Health(
            ready=False, reasons=("the client is not running",), client_id="", consumers=consumers, brokers=()
        )
    live = client.remoting.live
    brokers = tuple(
        BrokerHealth(address=address, connected=live(address) is not None)
        for address in sorted(client.routes.masters())
    )
    reasons = [_why(each) for each in consumers if not each.healthy]
    reasons += [f"consumer {group!r} is not started" for group in waiting]
    if brokers and not any(each.connected for each in brokers):
        reasons.append("no broker is connected: " + ", ".join(each.address for each in brokers))
    return Health(
        ready=not reasons,
        reasons=tuple(reasons),
        client_id=client.client_id,
        consumers=consumers,
        brokers=brokers,
    )


def _consumer(state: ConsumerState) -> ConsumerHealth:
    counters = state.counters
    return ConsumerHealth(
        group=state.group,
        running=state.running,
        queues=len(state.queues),
        failing=sum(each.last_error is not None for each in state.queues),
        cached=state.cached,
        in_work=state.in_work,
        consumed=counters.consumed,
        retried=counters.retried,
        dead_lettered=counters.dead_lettered,
        last_error=state.last_error,
        missing_topics=state.missing,
    )


def _why(consumer: ConsumerHealth) -> str:
    if not consumer.running:
        return f"consumer {consumer.group!r} is not running"
    return f"consumer {consumer.group!r} reads none of its {consumer.queues} queues: {consumer.last_error}"
