"""Settings, one frozen dataclass per concern: durations in seconds, sizes in bytes, rules across fields checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from aiorocket.errors import ConfigError

__all__ = (
    "Serializer",
    "Flush",
    "RemotingConfig",
    "StoreConfig",
    "NameServerConfig",
    "BrokerConfig",
    "ClientConfig",
    "ProducerConfig",
    "ConsumerConfig",
    "DELAY_LEVELS",
)

Serializer = Literal["auto", "json", "rocketmq", "msgpack"]
Flush = Literal["sync", "async"]

MIB = 1 << 20

#: RocketMQ's messageDelayLevel, level 1 first, in seconds (rocketmq-protocol 7.4).
DELAY_LEVELS: tuple[float, ...] = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip


def _positive(owner: object, *names: str) -> None:
    for name in names:
        if not getattr(owner, name) > 0:
            raise ConfigError(f"{type(owner).__name__}.{name}={getattr(owner, name)!r}: must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotingConfig:
    """Connections, both ends. ``serializer="auto"`` negotiates msgpack and stays JSON with Apache's peers."""

    serializer: Serializer = "auto"
    connect_timeout: float = 3.0
    request_timeout: float = 3.0
    #: A connection with no traffic either way for this long is closed (RocketMQ: 120 s).
    idle_timeout: float = 120.0
    #: A frame that has begun must be complete within this time, else the peer is stuck or hostile.
    partial_frame_timeout: float = 30.0
    #: Requests one connection may have unanswered at a server; reading pauses above it.
    max_in_flight: int = 8192
    #: Bytes waiting to be written before senders wait / before a peer that never reads is cut off.
    write_high_water: int = 4 * MIB
    write_limit: int = 64 * MIB
    max_connections: int = 20_000
    backoff_initial: float = 0.1
    backoff_max: float = 5.0

    def __post_init__(self) -> None:
        _positive(
            self, "connect_timeout", "request_timeout", "idle_timeout", "partial_frame_timeout", "max_in_flight",
            "write_high_water", "write_limit", "max_connections", "backoff_initial", "backoff_max",
        )  # fmt: skip
        if self.write_limit < self.write_high_water:
            raise ConfigError(f"write_limit={self.write_limit} is below write_high_water={self.write_high_water}")
        if self.backoff_max < self.backoff_initial:
            raise ConfigError(f"backoff_max={self.backoff_max} is below backoff_initial={self.backoff_initial}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Commit log and consume queues.

    ``flush="sync"`` acknowledges after fdatasync; ``"async"`` acknowledges when the kernel has the bytes and may lose
    up to ``flush_interval`` seconds of acknowledged messages in a power cut (none in a kill -9).
    """

    flush: Flush = "sync"
    flush_interval: float = 0.5
    segment_size: int = 64 * MIB
    #: Recent records kept in memory so that consumers at the tail read no file.
    tail_cache: int = 64 * MIB
    #: Bytes that may wait for the running flush before senders are told SYSTEM_BUSY.
    max_pending: int = 64 * MIB
    #: Free space below which messages are refused while reads and commits go on.
    min_free: int = 64 * MIB
    checkpoint_interval: float = 5.0

    def __post_init__(self) -> None:
        _positive(self, "flush_interval", "segment_size", "max_pending", "checkpoint_interval")
        if self.flush not in ("sync", "async"):
            raise ConfigError(f"flush={self.flush!r}: 'sync' or 'async'")
        if self.segment_size < 64 * 1024:
            raise ConfigError(f"segment_size={self.segment_size}: at least 65536")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    host: str = "127.0.0.1"
    port: int = 9876
    #: A broker that has not registered for this long is dropped from the routes.
    broker_expiry: float = 120.0
    #: Where KV configuration is kept; None keeps it in memory.
    data: str | None = None
    remoting: RemotingConfig = field(default_factory=RemotingConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker. ``advertise`` is the host that clients are told (route, offset ids); the bound port is added to it."""

    name: str = "broker-a"
    cluster: str = "DefaultCluster"
    broker_id: int = 0
    host: str = "127.0.0.1"
    port: int = 10911
    advertise: str | None = None
    nameservers: tuple[str, ...] = ()
    #: Data directory; None keeps messages in memory.
    data: str | None = None
    auto_create_topics: bool = True
    default_topic_queues: int = 8
    max_message_size: int = 4 * MIB
    delay_levels: tuple[float, ...] = DELAY_LEVELS
    #: Deliveries after which a message goes to the dead letters, when client and group say nothing (retryMaxTimes).
    retry_max_times: int = 16
    register_interval: float = 30.0
    register_timeout: float = 6.0
    #: A client that has not sent a heartbeat for this long is forgotten (RocketMQ: 120 s).
    channel_expiry: float = 120.0
    max_hold: float = 30.0
    max_pull_messages: int = 1024
    max_pull_bytes: int = 4 * MIB
    offset_flush_interval: float = 5.0
    store: StoreConfig = field(default_factory=StoreConfig)
    remoting: RemotingConfig = field(default_factory=RemotingConfig)

    def __post_init__(self) -> None:
        _positive(
            self, "default_topic_queues", "max_message_size", "register_interval", "channel_expiry",
            "max_pull_messages",
        )  # fmt: skip
        if not 1 <= len(self.delay_levels) <= 18 or list(self.delay_levels) != sorted(self.delay_levels):
            raise ConfigError(f"delay_levels={self.delay_levels!r}: 1 to 18 ascending durations in seconds")
        if self.register_interval * 2 > self.channel_expiry:
            raise ConfigError(
                f"register_interval={self.register_interval} must fit twice into channel_expiry={self.channel_expiry}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Shared by the producers and consumers of one ``Client``."""

    nameservers: tuple[str, ...] = ("127.0.0.1:9876",)
    #: Part of the client id ``ip@instance``; None makes a unique one.
    instance: str | None = None
    heartbeat_interval: float = 30.0
    route_interval: float = 30.0
    start_timeout: float = 10.0
    remoting: RemotingConfig = field(default_factory=RemotingConfig)

    def __post_init__(self) -> None:
        _positive(self, "heartbeat_interval", "route_interval", "start_timeout")
        if not self.nameservers:
            raise ConfigError("nameservers is empty: give at least one HOST:PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    #: The whole send, retries included, ends within this time.
    send_timeout: float = 3.0
    #: Further attempts on another queue or broker for sends without a key or a pinned queue.
    retries: int = 2
    max_in_flight: int = 65_535
    compress_over: int = 4096
    compress_level: int = 5
    max_message_size: int = 4 * MIB
    default_topic_queues: int = 4

    def __post_init__(self) -> None:
        _positive(self, "send_timeout", "max_in_flight", "max_message_size", "default_topic_queues")
        if self.retries < 0:
            raise ConfigError(f"retries={self.retries}: 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Defaults follow the design's timer list, which differs from Java's on purpose (flush 10 s, pull error 3 s)."""

    concurrency: int = 16
    batch_size: int = 1
    pull_batch_size: int = 512
    pull_interval: float = 0.0
    #: How long the broker holds a pull that finds nothing / how long we wait for its answer.
    hold: float = 15.0
    pull_timeout: float = 30.0
    pull_error_delay: float = 3.0
    paused_delay: float = 1.0
    max_cached_messages: int = 1000
    max_cached_bytes: int = 100 * MIB
    max_span: int = 2000
    rebalance_interval: float = 20.0
    offset_flush_interval: float = 10.0
    offset_illegal_delay: float = 10.0
    #: Deliveries with the first one; the last failure goes to the dead letters (maxReconsumeTimes = max_attempts - 1).
    max_attempts: int = 17
    consume_timeout: float = 900.0
    local_retry_delay: float = 5.0
    drain_timeout: float = 30.0

    def __post_init__(self) -> None:
        _positive(
            self, "concurrency", "batch_size", "pull_batch_size", "hold", "pull_timeout", "max_cached_messages",
            "max_cached_bytes", "max_span", "rebalance_interval", "offset_flush_interval", "max_attempts",
        )  # fmt: skip
        if self.pull_timeout <= self.hold:
            raise ConfigError(
                f"pull_timeout={self.pull_timeout} must be above hold={self.hold}, else every long poll times out"
            )
        if self.batch_size > 1024 or self.pull_batch_size > 1024:
            raise ConfigError(f"batch_size={self.batch_size} and pull_batch_size={self.pull_batch_size}: at most 1024")
