"""Settings, one frozen dataclass per concern: durations in seconds, sizes in bytes, rules across fields checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

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
    "PullConsumerConfig",
    "DELAY_LEVELS",
)

Serializer = Literal["auto", "json", "rocketmq", "msgpack"]
Flush = Literal["sync", "async"]

MIB = 1 << 20

#: RocketMQ's messageDelayLevel, level 1 first, in seconds (rocketmq-protocol 7.4).
DELAY_LEVELS: tuple[float, ...] = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip


#: How long a broker keeps a queue lock that is not renewed (rocketmq-protocol 7.9).
BROKER_LOCK = 60.0


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
    """A name server; ``port`` 0 takes a free one."""

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
    #: A queue lock lasts this long after its last renewal (RocketMQ: 60 s); clients trust theirs for 30 s.
    lock_lease: float = 60.0
    #: How long nobody is granted a queue lock after their record was lost: as long as clients trust theirs, or longer.
    lock_grace: float = 30.0
    #: Offset resets wait at the broker for the next pull (RocketMQ 5's default); False pushes them to clients, as 4.9.
    server_side_reset_offset: bool = True
    #: Consumer groups come into being by being used (RocketMQ's autoCreateSubscriptionGroup).
    auto_create_groups: bool = True
    #: How long a client may take to answer what an administrator asks it through the broker (RocketMQ: 10 s).
    client_call_timeout: float = 10.0
    #: A half message is asked about after the timeout, then every interval, at most so often (RocketMQ 5's defaults).
    transaction_timeout: float = 6.0
    transaction_check_interval: float = 30.0
    transaction_check_max: int = 15
    #: Refuse transactional messages (RocketMQ's rejectTransactionMessage).
    reject_transactions: bool = False
    #: Serve SQL92 filters (RocketMQ's enablePropertyFilter, which is off there).
    property_filter: bool = True
    #: Keep the replies of request-reply in their topic too (RocketMQ's storeReplyMessageEnable).
    store_replies: bool = True
    store: StoreConfig = field(default_factory=StoreConfig)
    remoting: RemotingConfig = field(default_factory=RemotingConfig)

    def __post_init__(self) -> None:
        _positive(
            self, "default_topic_queues", "max_message_size", "register_interval", "channel_expiry",
            "max_pull_messages", "lock_lease", "lock_grace", "client_call_timeout", "transaction_timeout",
            "transaction_check_interval", "transaction_check_max",
        )  # fmt: skip
        if self.lock_lease < self.lock_grace:
            raise ConfigError(
                f"lock_lease={self.lock_lease} is below lock_grace={self.lock_grace}: the broker's lease must be at "
                "least as long as the time clients trust theirs, else a queue gets a second owner"
            )
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
    #: Put in front of every topic and group on the wire, and taken off for listeners (rocketmq-protocol 9.3).
    namespace: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.namespace, str) or not re.fullmatch(r"[a-zA-Z0-9_-]*", self.namespace, re.ASCII):
            raise ConfigError(f"namespace={self.namespace!r}: characters a-z A-Z 0-9 _ - are allowed")
        _positive(self, "heartbeat_interval", "route_interval", "start_timeout")
        if not self.nameservers:
            raise ConfigError("nameservers is empty: give at least one HOST:PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Of a ``Producer``; sizes in bytes, ``compress_over`` is where compression begins."""

    #: The whole send, retries included, ends within this time.
    send_timeout: float = 3.0
    #: Further attempts on another queue or broker for sends without a key or a pinned queue.
    retries: int = 2
    max_in_flight: int = 65_535
    compress_over: int = 4096
    compress_level: int = 5
    max_message_size: int = 4 * MIB
    default_topic_queues: int = 4
    #: How bodies from ``compress_over`` bytes on are compressed. lz4 and zstd need the extras of these names here and
    #: at every consumer; Go's and Node's know zlib only.
    compress_type: Literal["zlib", "lz4", "zstd"] = "zlib"
    #: Leave brokers that failed or were slow alone for a while when there are others (Java's sendLatencyFaultEnable).
    send_latency_fault: bool = False
    #: Transactions: check-backs that run at a time, and that may wait; more are left to the broker's next round.
    check_concurrency: int = 16
    max_waiting_checks: int = 2000

    def __post_init__(self) -> None:
        _positive(
            self, "send_timeout", "max_in_flight", "max_message_size", "default_topic_queues", "check_concurrency",
            "max_waiting_checks",
        )  # fmt: skip
        if self.retries < 0:
            raise ConfigError(f"retries={self.retries}: 0 or more")
        if self.compress_type not in ("zlib", "lz4", "zstd"):
            raise ConfigError(f"compress_type={self.compress_type!r}: 'zlib', 'lz4' or 'zstd'")


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
    #: "clustering": the members share the queues; "broadcasting": each has all of them, and its own offsets in a file.
    message_model: Literal["clustering", "broadcasting"] = "clustering"
    #: Orderly: renewal of the queue locks, how long one is relied on (from before the request), both below the broker's
    #: 60 s; and how long a queue rests after a failure (0.01 to 30 s).
    lock_renew_interval: float = 20.0
    lock_validity: float = 30.0
    suspend: float = 1.0
    #: Ask for messages every so many seconds instead of having the broker hold the pull (None: long polls).
    short_poll: float | None = None
    #: Send the filter expression with every pull (postSubscriptionWhenPull).
    post_subscription: bool = False
    #: Cached at most for a whole topic, shared out to its queues here; -1 for no such limit.
    max_cached_messages_per_topic: int = -1
    max_cached_bytes_per_topic: int = -1
    #: "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", or a function of (queues, client ids, own client id) that gives the
    #: queues to take; client/core/balance.py makes those for CONFIG, MACHINE_ROOM and MACHINE_ROOM_NEARBY.
    allocate: str | Callable[[Sequence[Any], Sequence[str], str], list[Any]] = "AVG"
    #: Messages of all queues that may wait for a worker before pulls that would bring more wait too.
    max_backlog: int = 16_384
    #: The next look after a rebalance that left something open.
    rebalance_retry: float = 1.0
    #: A queue whose last pull began longer ago than this is dropped and taken anew (RocketMQ's pullMaxIdleTime).
    max_pull_idle: float = 120.0
    #: How long a queue that is given up waits for what must end before somebody else may begin (orderly handlers).
    revoke_timeout: float = 1.0
    #: How long ``on_assigned`` and ``on_revoked`` may take each.
    rebalance_hook_timeout: float = 5.0
    #: Broadcasting: the directory of the offset files; None is ~/.rocketmq_offsets, as Java's.
    offset_store_dir: str | None = None
    #: What follows when the living members of the group subscribe to something else: a warning, a start that fails.
    subscription_check: Literal["warn", "error", "off"] = "warn"

    def __post_init__(self) -> None:
        self._check_ranges()
        if not 0 < self.lock_renew_interval < self.lock_validity < BROKER_LOCK:
            raise ConfigError(
                f"lock_renew_interval={self.lock_renew_interval} must be below lock_validity={self.lock_validity}, and "
                f"that below the broker's {BROKER_LOCK:g} s: else two members could own a queue at once"
            )
        _positive(self, "suspend")
        if self.message_model not in ("clustering", "broadcasting"):
            raise ConfigError(f"message_model={self.message_model!r}: 'clustering' or 'broadcasting'")
        if self.subscription_check not in ("warn", "error", "off"):
            raise ConfigError(f"subscription_check={self.subscription_check!r}: 'warn', 'error' or 'off'")
        if not (callable(self.allocate) or isinstance(self.allocate, str)):
            raise ConfigError(f"allocate={self.allocate!r}: the name of a strategy or a function")
        _positive(
            self, "hold", "pull_timeout", "pull_error_delay", "rebalance_interval", "rebalance_retry",
            "offset_flush_interval", "consume_timeout", "local_retry_delay", "max_pull_idle", "rebalance_hook_timeout",
        )  # fmt: skip
        if self.pull_timeout <= self.hold:
            raise ConfigError(
                f"pull_timeout={self.pull_timeout} must be above hold={self.hold}, else every long poll times out"
            )
        slowest = max(self.pull_timeout, self.pull_error_delay, self.offset_illegal_delay, self.short_poll or 0.0)
        if self.max_pull_idle <= slowest:
            raise ConfigError(
                f"max_pull_idle={self.max_pull_idle} must be above {slowest:g} (pull_timeout, pull_error_delay, "
                "offset_illegal_delay, short_poll), else queues are dropped that only wait"
            )

    def _check_ranges(self) -> None:
        for name, (least, most) in _CONSUMER_RANGES.items():
            value = getattr(self, name)
            if value is None and name == "short_poll":
                continue
            if value == -1 and name.endswith("_per_topic"):
                continue
            if not least <= value <= most:
                raise ConfigError(f"ConsumerConfig.{name}={value!r}: {least:g} to {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerConfig:
    """Of a ``PullConsumer``; the defaults are rocketmq-protocol 6.15 where ``ConsumerConfig`` has no other reason."""

    pull_batch_size: int = 512
    #: How long the broker holds a pull that finds nothing / how long we wait for its answer.
    hold: float = 20.0
    pull_timeout: float = 30.0
    pull_error_delay: float = 3.0
    #: Nothing more is pulled of a queue that has more than this in the cache, and of none when all of them have more
    #: than ``max_cached_messages_total``. Looked at before each pull, so one answer per queue may come on top.
    max_cached_messages: int = 1000
    max_cached_bytes: int = 100 * MIB
    max_cached_messages_total: int = 10_000
    #: Commit by itself, every so many seconds, what was fetched before the latest ``fetch``. For one task that fetches.
    auto_commit: bool = False
    auto_commit_interval: float = 5.0
    #: As of ``ConsumerConfig``.
    rebalance_interval: float = 20.0
    allocate: str | Callable[[Sequence[Any], Sequence[str], str], list[Any]] = "AVG"
    rebalance_retry: float = 1.0
    max_pull_idle: float = 120.0
    rebalance_hook_timeout: float = 5.0

    def __post_init__(self) -> None:
        for name in ("pull_batch_size", "max_cached_messages", "max_cached_bytes"):
            least, most = _CONSUMER_RANGES[name]
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"PullConsumerConfig.{name}={getattr(self, name)!r}: {least:g} to {most:g}")
        _positive(
            self, "hold", "pull_timeout", "pull_error_delay", "max_cached_messages_total", "rebalance_interval",
            "rebalance_retry", "rebalance_hook_timeout",
        )  # fmt: skip
        if self.auto_commit_interval < 1.0:
            raise ConfigError(f"auto_commit_interval={self.auto_commit_interval}: 1 second or more")
        if self.pull_timeout <= self.hold:
            raise ConfigError(
                f"pull_timeout={self.pull_timeout} must be above hold={self.hold}, else every long poll times out"
            )
        if self.max_pull_idle <= max(self.pull_timeout, self.pull_error_delay):
            raise ConfigError(
                f"max_pull_idle={self.max_pull_idle} must be above pull_timeout={self.pull_timeout} and "
                f"pull_error_delay={self.pull_error_delay}, else queues are dropped that only wait"
            )
        if not (callable(self.allocate) or isinstance(self.allocate, str)):
            raise ConfigError(f"allocate={self.allocate!r}: the name of a strategy or a function")


#: RocketMQ's limits (rocketmq-protocol 6.3), in seconds and bytes; bytes begin at 1 for tests of flow control.
_CONSUMER_RANGES: dict[str, tuple[float, float]] = {
    "concurrency": (1, 1024),
    "batch_size": (1, 1024),
    "pull_batch_size": (1, 1024),
    "max_backlog": (1, 10_000_000),
    "pull_interval": (0, 65.535),
    "max_cached_messages": (1, 65_535),
    "max_cached_bytes": (1, 1024 * MIB),
    "max_span": (1, 65_535),
    "max_cached_messages_per_topic": (1, 6_553_500),
    "max_cached_bytes_per_topic": (1, 102_400 * MIB),
    "max_attempts": (1, 2**31 - 1),
    "offset_illegal_delay": (0, 3600),
    "short_poll": (0.001, 3600),
    "drain_timeout": (0, 86_400),
    "revoke_timeout": (0, 3600),
}
