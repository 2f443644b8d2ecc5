"""What a broker knows: tables made from its settings, none of which knows the others."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from aiorocket.broker.core.alarms import AlarmBoard
from aiorocket.broker.core.counters import GroupCounters
from aiorocket.broker.core.delay import DelaySchedule
from aiorocket.broker.core.group_configs import GroupConfigs
from aiorocket.broker.core.groups import GroupTable
from aiorocket.broker.core.locks import LockTable
from aiorocket.broker.core.modes import ModeTable
from aiorocket.broker.core.offsets import ConsumerOffsets
from aiorocket.broker.core.sent_once import SentTable
from aiorocket.broker.core.settings import Settings
from aiorocket.broker.core.timers import TimerSchedule
from aiorocket.broker.core.topics import TopicTable
from aiorocket.broker.core.transactions import TransactionTable
from aiorocket.config import BrokerConfig

__all__ = ("Tables",)


class Tables(NamedTuple):
    """``consumers`` and ``producers`` are who is connected, over connections of whatever kind; ``configs`` is what
    administrators set for groups."""

    topics: TopicTable
    configs: GroupConfigs
    consumers: GroupTable[Any]
    producers: GroupTable[Any]
    offsets: ConsumerOffsets
    locks: LockTable
    delays: DelaySchedule
    timers: TimerSchedule
    transactions: TransactionTable
    modes: ModeTable
    sent: SentTable
    counters: GroupCounters
    settings: Settings
    alarms: AlarmBoard

    @classmethod
    def of(cls, config: BrokerConfig) -> Tables:
        """Empty ones, but for the topics that every broker has."""
        limits = config.limits
        return cls(
            topics=TopicTable(
                broker=config.name,
                cluster=config.cluster,
                auto_create=config.auto_create_topics,
                default_queues=config.default_topic_queues,
                delay_levels=len(config.delay_levels),
                most=limits.topics,
                most_queues=limits.queues,
                most_attributes=limits.attributes,
            ),
            configs=GroupConfigs(
                config.retry_max_times,
                config.auto_create_groups,
                limits.groups,
                limits.attributes,
                limits.forbidden,
            ),
            consumers=GroupTable(config.channel_expiry, limits),
            producers=GroupTable(config.channel_expiry, limits),
            offsets=ConsumerOffsets(limits.offsets),
            locks=LockTable(config.lock_lease, config.lock_grace, limits.locks),
            delays=DelaySchedule(config.delay_levels),
            timers=TimerSchedule(),
            transactions=TransactionTable(
                timeout=config.transaction_timeout,
                interval=config.transaction_check_interval,
                max_checks=config.transaction_check_max,
                longest=_kept(config),
            ),
            modes=ModeTable(limits.modes),
            sent=SentTable(most=limits.sent_once),
            counters=GroupCounters(limits.deliveries),
            settings=Settings(config),
            alarms=AlarmBoard(),
        )

    def saved(self) -> dict[str, Any]:
        """Those that outlive the broker, by the names of their state files."""
        return {
            "topics": self.topics,
            "groups": self.configs,
            "offsets": self.offsets,
            "delays": self.delays,
            "timers": self.timers,
            "transactions": self.transactions,
            "locks": self.locks,
            "settings": self.settings,
            "modes": self.modes,
            "sent": self.sent,
        }

    def follow_settings(self) -> None:
        """Do what the settings say now."""
        config = self.settings.config
        self.topics.set_auto_create(config.auto_create_topics)
        self.configs.auto_create = config.auto_create_groups
        self.transactions.timeout = config.transaction_timeout
        self.transactions.interval = config.transaction_check_interval
        self.transactions.max_checks = config.transaction_check_max
        self.transactions.longest = _kept(config)


def _kept(config: BrokerConfig) -> float:
    """For how long messages are kept, in seconds."""
    return config.store.file_reserved_time * 3600 or inf
