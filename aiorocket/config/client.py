"""Settings of clients, producers and consumers."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from aiorocket.config.addresses import check_address_map, check_nameservers
from aiorocket.config.credentials import check_given
from aiorocket.config.limits import Limits
from aiorocket.config.remoting import MIB, RemotingConfig, check_numbers, check_positive
from aiorocket.config.tls import TlsConfig
from aiorocket.errors import ConfigError
from aiorocket.model import Queue
from aiorocket_protocol import MAX_BODY, NAMESERVER_PORT

__all__ = (
    "BROKER_LOCK",
    "DEFAULT_NAMESERVER",
    "ClientConfig",
    "ConsumerConfig",
    "MissingTopics",
    "ProducerConfig",
    "PullConsumerConfig",
)

#: How long RocketMQ's brokers, and ours, keep a queue lock that is not renewed.
BROKER_LOCK = 60.0
#: Of a server on this machine, as `aiorocket standalone` starts it.
DEFAULT_NAMESERVER = f"127.0.0.1:{NAMESERVER_PORT}"

#: What a consumer does about a topic that nobody has.
MissingTopics = Literal["wait", "create", "error"]


def _nameservers() -> tuple[str, ...]:
    parts = os.environ.get("AIOROCKET_NAMESERVER", "").replace(",", ";").split(";")
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip())) or (DEFAULT_NAMESERVER,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Shared by the producers and consumers of one ``Client``."""

    #: Default: what AIOROCKET_NAMESERVER says ("host:port", several separated by commas or semicolons), as of the
    #: command line, else ``DEFAULT_NAMESERVER``.
    nameservers: tuple[str, ...] = field(default_factory=lambda: _nameservers())
    #: Part of the client id ``ip@instance``; None makes a unique one.
    instance: str | None = None
    heartbeat_interval: float = 30.0
    route_interval: float = 30.0
    start_timeout: float = 10.0
    limits: Limits = field(default_factory=Limits)
    remoting: RemotingConfig = field(default_factory=RemotingConfig)
    #: Put in front of every topic and group on the wire, and taken off for listeners.
    namespace: str = ""
    #: Every request is signed with these, for brokers with access control (Apache's ACL: there a user's name and
    #: password). ``security_token`` belongs to temporary keys. Signed requests travel as JSON, also to our own broker.
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    #: In place of the three: a JSON file with ``accessKey``, ``secretKey`` and perhaps ``securityToken``, read when the
    #: client starts.
    credentials_file: str | None = None
    #: TLS to name servers and brokers: True trusts what the system trusts; see ``TlsConfig``. One ``ssl.SSLContext``
    #: made once serves any number of clients.
    tls: ssl.SSLContext | TlsConfig | bool = False
    #: Where brokers are reached that register addresses which nobody reaches from here, as in containers and behind
    #: port forwarding: {"172.17.0.2:10911": "127.0.0.1:10911"}; a host alone ("172.17.0.2": "docker.example") stands
    #: for all its ports. Or an async function from the one address to the other, asked whenever one is dialled.
    address_map: Mapping[str, str] | Callable[[str], Awaitable[str]] = field(default_factory=dict, hash=False)
    #: What a consumer does about a topic that nobody has: "wait" begins with the others and takes it when it is there,
    #: from its first message on; "create" creates it; with "error" a start fails after ``start_timeout``.
    missing_topics: MissingTopics = "wait"
    #: Of the producers and consumers on this client that are given no config of their own, ``Client.send`` among them.
    producer: ProducerConfig = field(default_factory=lambda: ProducerConfig())
    consumer: ConsumerConfig = field(default_factory=lambda: ConsumerConfig())
    pull_consumer: PullConsumerConfig = field(default_factory=lambda: PullConsumerConfig())

    @classmethod
    def from_env(cls, prefix: str = "AIOROCKET_", environ: Mapping[str, str] | None = None) -> ClientConfig:
        """Of the variables that begin with ``prefix``: ``AIOROCKET_NAMESERVER``, ``AIOROCKET_START_TIMEOUT``,
        ``AIOROCKET_REMOTING_REQUEST_TIMEOUT``, ``AIOROCKET_CONSUMER_CONCURRENCY`` and so on, in the units of the
        options. ConfigError for a value that cannot be, and for a name that looks like a misspelt option."""
        from aiorocket.config.settings import from_env

        return from_env(cls, prefix, environ)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], section: str = "aiorocket") -> ClientConfig:
        """Of a section of a TOML file (``[aiorocket]``, with ``[aiorocket.remoting]`` and so on), by the names of the
        options. ConfigError for what is no option, and for a value that cannot be."""
        from aiorocket.config.settings import from_toml

        return from_toml(cls, path, section)

    def __post_init__(self) -> None:
        if not isinstance(self.namespace, str) or not re.fullmatch(r"[a-zA-Z0-9_-]*", self.namespace, re.ASCII):
            raise ConfigError(f"namespace={self.namespace!r}: characters a-z A-Z 0-9 _ - are allowed")
        check_numbers(self)
        check_positive(self, "heartbeat_interval", "route_interval", "start_timeout")
        if self.missing_topics not in ("wait", "create", "error"):
            raise ConfigError(f"missing_topics={self.missing_topics!r}: 'wait', 'create' or 'error'")
        if not self.nameservers:
            raise ConfigError(f"nameservers={self.nameservers!r}: a tuple with at least one HOST:PORT")
        check_nameservers(self.nameservers)
        if isinstance(self.address_map, Mapping):
            check_address_map(self.address_map)
        elif not callable(self.address_map):
            raise ConfigError(
                f"address_map={self.address_map!r:.200}: a dict of addresses, or an async function of one"
            )
        if self.instance is not None and not re.fullmatch(r"[^\s/\\]+", str(self.instance)):
            raise ConfigError(f"instance={self.instance!r}: a name without blanks and slashes; None makes one up")
        if not isinstance(self.tls, bool | TlsConfig | ssl.SSLContext):
            raise ConfigError(f"tls={self.tls!r}: True, False, a TlsConfig or an ssl.SSLContext")
        if not check_given(self.access_key, self.secret_key, self.security_token, self.credentials_file):
            return
        if self.remoting.serializer not in ("auto", "json"):
            raise ConfigError(
                f"remoting.serializer={self.remoting.serializer!r}, but signed requests travel as JSON: use 'auto' or "
                "'json' with an access_key or a credentials_file"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Of a ``Producer``; sizes in bytes, ``compress_over`` is where compression begins."""

    #: The whole send, retries included, ends within this time.
    send_timeout: float = 3.0
    #: Further attempts on another queue or broker for sends without a key or a pinned queue.
    retries: int = 2
    max_in_flight: int = 65_535
    #: Our brokers store each message once, however often its send is repeated, also over their restarts; so a send
    #: stays on the queue it began with, and is known there until 1,024 others of this producer have come, or 65,536 of
    #: all such producers. Not for batches, transactions and one-way sends, nor at Apache's brokers, which ignore it.
    idempotent: bool = False
    compress_over: int = 4096
    compress_level: int = 5
    max_message_size: int = MAX_BODY
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
        check_numbers(self)
        check_positive(
            self, "send_timeout", "max_in_flight", "max_message_size", "default_topic_queues", "check_concurrency",
            "max_waiting_checks",
        )  # fmt: skip
        for name in ("retries", "compress_over"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)}: 0 or more")
        if self.compress_type not in ("zlib", "lz4", "zstd"):
            raise ConfigError(f"compress_type={self.compress_type!r}: 'zlib', 'lz4' or 'zstd'")
        most = 9 if self.compress_type == "zlib" else 22
        least = -1 if self.compress_type == "zlib" else -most
        if not least <= self.compress_level <= most:
            raise ConfigError(f"compress_level={self.compress_level}: {least} to {most} with {self.compress_type}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Times are Java's, but for ``offset_flush_interval`` (there 5 s) and ``pull_error_delay`` (there 1 s)."""

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
    #: Store with a dead letter why it was given up (DLQ_ERROR, DLQ_REASON, DLQ_HOST): the class and the first 500
    #: characters of the listener's error, and the client id. Off where errors may tell what nobody should read.
    dead_letter_reason: bool = True
    consume_timeout: float = 900.0
    #: Warn (logger aiorocket.watchdog), with function and line, when a listener keeps the event loop from turning for
    #: so many seconds: everything else of the process waits for it, also heartbeats. 0 is never.
    loop_block_warning: float = 1.0
    local_retry_delay: float = 5.0
    drain_timeout: float = 30.0
    #: "clustering": the members share the queues; "broadcasting": each has all of them, and its own offsets in a file.
    message_model: Literal["clustering", "broadcasting"] = "clustering"
    #: Who says which queues a member reads: the members, each by ``allocate``; or the "broker" (Java's clientRebalance
    #: = false), by "AVG" or "AVG_BY_CIRCLE". A topic that an administrator has set to POP for the group is popped then:
    #: any member gets any message, and the broker keeps what is with whom. A start at a time counts as "last" there.
    rebalance: Literal["client", "broker"] = "client"
    #: Popped messages come again so many seconds after the member that has them has died (5 to 300).
    pop_invisible: float = 60.0
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
    #: queues to take; client/core/balance.py makes those for CONFIG, MACHINE_ROOM and MACHINE_ROOM_NEARBY. In a
    #: namespace a function is given topics as they are called on the wire, and may answer with either name.
    allocate: str | Callable[[Sequence[Queue], Sequence[str], str], list[Queue]] = "AVG"
    #: Messages of all queues that may wait for a worker before pulls that would bring more wait too; but for one pull
    #: at a time, of each broker, for a topic whose listeners have nothing waiting.
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
        check_numbers(self)
        self._check_ranges()
        if not 0 < self.lock_renew_interval < self.lock_validity < BROKER_LOCK:
            raise ConfigError(
                f"lock_renew_interval={self.lock_renew_interval} must be below lock_validity={self.lock_validity}, and "
                f"that below the broker's {BROKER_LOCK:g} s: else two members could own a queue at once"
            )
        check_positive(self, "suspend")
        if self.rebalance not in ("client", "broker"):
            raise ConfigError(f"rebalance={self.rebalance!r}: 'client' or 'broker'")
        if self.rebalance == "broker" and self.allocate not in ("AVG", "AVG_BY_CIRCLE"):
            raise ConfigError(
                f"allocate={self.allocate!r}: brokers know 'AVG' and 'AVG_BY_CIRCLE' (rebalance='broker')"
            )
        if self.message_model not in ("clustering", "broadcasting"):
            raise ConfigError(f"message_model={self.message_model!r}: 'clustering' or 'broadcasting'")
        _check_choice(self.subscription_check)
        if not (callable(self.allocate) or isinstance(self.allocate, str)):
            raise ConfigError(f"allocate={self.allocate!r}: the name of a strategy or a function")
        check_positive(
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
    """Of a ``PullConsumer``: ``hold``, the limits and ``auto_commit_interval`` are those of Java's lite pull consumer,
    the rest is as of ``ConsumerConfig``."""

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
    allocate: str | Callable[[Sequence[Queue], Sequence[str], str], list[Queue]] = "AVG"
    rebalance_retry: float = 1.0
    max_pull_idle: float = 120.0
    rebalance_hook_timeout: float = 5.0
    #: As of ``ConsumerConfig``, for what was subscribed to before the start.
    subscription_check: Literal["warn", "error", "off"] = "warn"

    def __post_init__(self) -> None:
        check_numbers(self)
        for name in ("pull_batch_size", "max_cached_messages", "max_cached_bytes"):
            least, most = _CONSUMER_RANGES[name]
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"PullConsumerConfig.{name}={getattr(self, name)!r}: {least:g} to {most:g}")
        check_positive(
            self, "hold", "pull_timeout", "pull_error_delay", "max_cached_messages_total", "rebalance_interval",
            "rebalance_retry", "max_pull_idle", "rebalance_hook_timeout",
        )  # fmt: skip
        _check_choice(self.subscription_check)
        if not self.auto_commit_interval >= 1.0:
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


def _check_choice(subscription_check: str) -> None:
    if subscription_check not in ("warn", "error", "off"):
        raise ConfigError(f"subscription_check={subscription_check!r}: 'warn', 'error' or 'off'")


#: What Java's consumer allows, in seconds and bytes; bytes begin at 1 for tests of flow control.
_CONSUMER_RANGES: dict[str, tuple[float, float]] = {
    "concurrency": (1, 1024),
    "pop_invisible": (5, 300),
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
    "loop_block_warning": (0, 3600),
}
