"""Settings of brokers and name servers."""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass, field, fields
from typing import Literal

from aiorocket.config.addresses import check_nameservers
from aiorocket.config.credentials import check_given
from aiorocket.config.limits import Limits
from aiorocket.config.remoting import MIB, RemotingConfig, check_numbers, check_positive
from aiorocket.config.tls import ServerTlsConfig, TlsConfig
from aiorocket.errors import ConfigError
from aiorocket_protocol import (
    BROKER_PORT,
    DEFAULT_CLUSTER,
    MASTER_ID,
    MAX_BODY,
    NAMESERVER_PORT,
    PERM_READ,
    PERM_READ_WRITE,
)

__all__ = ("DELAY_LEVELS", "BrokerConfig", "Flush", "NameServerConfig", "RateLimits", "StoreConfig")

Flush = Literal["sync", "async"]

#: RocketMQ's messageDelayLevel, level 1 first, in seconds.
DELAY_LEVELS: tuple[float, ...] = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Commit log and consume queues.

    ``flush="sync"`` acknowledges after fdatasync; ``"async"`` acknowledges when the kernel has the bytes and may lose
    up to ``flush_interval`` seconds of acknowledged messages in a power cut (none in a kill -9).
    """

    flush: Flush = "sync"
    flush_interval: float = 0.5
    segment_size: int = 64 * MIB
    #: Recent records kept in memory so that consumers at the tail read no file. As much again holds pieces of the log
    #: for those behind it. More is not faster: new records then go to memory that no cache of the processor knows.
    tail_cache: int = 16 * MIB
    #: Bytes that may wait for the running flush, with what is kept of their requests, before senders are told
    #: SYSTEM_BUSY.
    max_pending: int = 64 * MIB
    #: Free bytes below which messages are refused while reads and commits go on; -1 for 5 % of the disk, but at most
    #: 512 MiB.
    min_free: int = -1
    #: Bytes a second that are read again and compared with their checksums, and seconds from the end of one pass to the
    #: next; a rate of 0 leaves it.
    scrub_rate: int = 4 * MIB
    scrub_interval: float = 7 * 86_400.0
    checkpoint_interval: float = 5.0
    #: Hours that messages are kept at least (RocketMQ's fileReservedTime); 0 keeps them all. A topic may say otherwise
    #: by its attribute reserve.time.
    file_reserved_time: float = 72
    #: Hours of the day (UTC) in which old messages go (deleteWhen); without any they go when they are old.
    delete_when: tuple[int, ...] = ()
    #: Percent of the disk; while more is used old messages go at any hour (diskMaxUsedSpaceRatio).
    disk_max_used_space_ratio: int = 75
    #: When 85 % of the disk are used, the oldest messages go although they are not old (cleanFileForciblyEnable).
    clean_file_forcibly: bool = False
    #: Size of the log above which the oldest messages go although they are not old; 0 for no limit.
    max_log_bytes: int = 0
    #: Seconds between two looks at what is old, while there is a segment that could go.
    retention_interval: float = 60.0

    def __post_init__(self) -> None:
        check_positive(
            self, "flush_interval", "segment_size", "max_pending", "checkpoint_interval", "retention_interval"
        )
        if self.file_reserved_time < 0 or self.max_log_bytes < 0:
            raise ConfigError("file_reserved_time and max_log_bytes: 0 (no limit) or more")
        if any(not 0 <= hour < 24 for hour in self.delete_when):
            raise ConfigError(f"delete_when={self.delete_when}: hours from 0 to 23")
        if not 10 <= self.disk_max_used_space_ratio <= 95:
            raise ConfigError(f"disk_max_used_space_ratio={self.disk_max_used_space_ratio}: 10 to 95 percent")
        if self.flush not in ("sync", "async"):
            raise ConfigError(f"flush={self.flush!r}: 'sync' or 'async'")
        if self.segment_size < 64 * 1024:
            raise ConfigError(f"segment_size={self.segment_size}: at least 65536")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """What each topic and each group of a broker may have a second, a second's worth at once; 0 for no limit, which
    costs nothing. They may change while the broker runs."""

    #: Messages sent to one topic; bytes of their bodies and properties. Above it senders are told SYSTEM_BUSY.
    topic_messages: float = 0.0
    topic_bytes: float = 0.0
    #: Messages in answers to pulls and pops of one group, which wait above it. Groups of tools have no limit.
    group_messages: float = 0.0
    #: Bytes of their records.
    group_bytes: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self)
        for each in fields(self):
            if not 0 <= getattr(self, each.name) < math.inf:
                raise ConfigError(f"RateLimits.{each.name}={getattr(self, each.name)!r}: 0 (no limit) or more a second")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """A name server; ``port`` 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = NAMESERVER_PORT
    #: A broker that has not registered for this long is dropped from the routes.
    broker_expiry: float = 120.0
    #: Where KV configuration is kept; None keeps it in memory.
    data: str | None = None
    #: Access control: who may do what stands in this file (``access/README.md``). None serves everybody everything, but
    #: administration and registration to this machine only.
    acl: str | None = None
    #: How it speaks TLS; None speaks plain text.
    tls: ServerTlsConfig | ssl.SSLContext | None = None
    #: Where administration is served besides, ``HOST:PORT`` or ``unix:PATH``, and the token that gives it on every
    #: address: for a server that other machines reach and that has no ``acl`` (``access/README.md``).
    admin_bind: str | None = None
    admin_token: str | None = field(default=None, repr=False)
    #: Let brokers of other machines register, whoever they are. Without it only those on this machine may: who may
    #: register can take any topic's messages to itself.
    open_registration: bool = False
    limits: Limits = field(default_factory=Limits)
    remoting: RemotingConfig = field(default_factory=RemotingConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker. ``advertise`` is the host that clients are told (route, offset ids); the bound port is added to it."""

    name: str = "broker-a"
    cluster: str = DEFAULT_CLUSTER
    broker_id: int = MASTER_ID
    host: str = "127.0.0.1"
    port: int = BROKER_PORT
    advertise: str | None = None
    nameservers: tuple[str, ...] = ()
    #: As of ``ClientConfig``, for name servers with access control.
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    #: TLS to name servers, as of ``ClientConfig``.
    nameserver_tls: ssl.SSLContext | TlsConfig | bool = False
    #: Access control and TLS, as of ``NameServerConfig``.
    acl: str | None = None
    tls: ServerTlsConfig | ssl.SSLContext | None = None
    #: Administration where other machines reach it, as of ``NameServerConfig``.
    admin_bind: str | None = None
    admin_token: str | None = field(default=None, repr=False)
    #: Data directory; None keeps messages in memory.
    data: str | None = None
    #: What the broker lets clients do with any of its topics (brokerPermission): 6 read and write, 4 only read, so that
    #: producers leave it as they learn of it from name servers.
    permission: int = PERM_READ_WRITE
    auto_create_topics: bool = True
    default_topic_queues: int = 8
    max_message_size: int = MAX_BODY
    delay_levels: tuple[float, ...] = DELAY_LEVELS
    #: Seconds that a timer message may wait at most (RocketMQ's timerMaxDelaySec, which is three days there).
    timer_max_delay: float = 40 * 86_400
    #: Deliveries after which a message goes to the dead letters, when client and group say nothing (retryMaxTimes).
    retry_max_times: int = 16
    register_interval: float = 30.0
    register_timeout: float = 6.0
    #: A client that has not sent a heartbeat for this long is forgotten (RocketMQ: 120 s).
    channel_expiry: float = 120.0
    max_hold: float = 30.0
    #: Messages of one answer to our own clients; those of others get 32 at most, as from Apache's broker.
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
    #: Listen on ``port`` - 2 too, if that is free: RocketMQ's VIP channel, for its dashboard and some 4.x clients. Not
    #: with port 0, which nobody knows beforehand. Two brokers of one machine need ports further apart, or this off.
    vip_listener: bool = True
    #: Keep the replies of request-reply in their topic too (RocketMQ's storeReplyMessageEnable).
    store_replies: bool = True
    store: StoreConfig = field(default_factory=StoreConfig)
    limits: Limits = field(default_factory=Limits)
    rates: RateLimits = field(default_factory=RateLimits)
    remoting: RemotingConfig = field(default_factory=RemotingConfig)

    def __post_init__(self) -> None:
        check_positive(
            self, "default_topic_queues", "max_message_size", "register_interval", "channel_expiry",
            "max_pull_messages", "lock_lease", "lock_grace", "client_call_timeout", "transaction_timeout",
            "transaction_check_interval", "transaction_check_max", "timer_max_delay",
        )  # fmt: skip
        check_nameservers(self.nameservers)
        check_given(self.access_key, self.secret_key, self.security_token, self.credentials_file)
        if self.permission not in (PERM_READ, PERM_READ_WRITE):
            raise ConfigError(f"permission={self.permission}: {PERM_READ_WRITE} (read and write) or {PERM_READ} (read)")
        if self.lock_lease < self.lock_grace:
            raise ConfigError(
                f"lock_lease={self.lock_lease} is below lock_grace={self.lock_grace}: the broker's lease must be at "
                "least as long as the time clients trust theirs, else a queue gets a second owner"
            )
        if not 1 <= len(self.delay_levels) <= len(DELAY_LEVELS) or list(self.delay_levels) != sorted(self.delay_levels):
            raise ConfigError(
                f"delay_levels={self.delay_levels!r}: 1 to {len(DELAY_LEVELS)} ascending durations in seconds"
            )
        if self.register_interval * 2 > self.channel_expiry:
            raise ConfigError(
                f"register_interval={self.register_interval} must fit twice into channel_expiry={self.channel_expiry}"
            )
