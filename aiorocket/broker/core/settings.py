"""The broker's settings under RocketMQ's names (GET_BROKER_CONFIG, UPDATE_BROKER_CONFIG), and which of them may change
while it runs.

A change has a type and a range and names a line of a table; nothing that comes over the wire is a path, an address or a
command. (RocketMQ took any key, and a changed path became a shell's command line: CVE-2023-33246.) A change outlives a
restart and is then stronger than what the broker is started with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from aiorocket.broker.core.names import Refusal
from aiorocket.config import BrokerConfig
from aiorocket.errors import ConfigError
from aiorocket_protocol import TRACE_TOPIC, ResponseCode

__all__ = ("Settings",)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false is needed")
    return text == "true"


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("a whole number is needed")
    return int(text[:18])


def _seconds(text: str) -> float:
    return _number(text) / 1000


def _rate(text: str) -> float:
    try:
        return float(text[:40])
    except ValueError:
        raise ValueError("a number is needed, 0 for no limit") from None


def _hours(text: str) -> tuple[int, ...]:
    return tuple(_number(hour) for hour in text.split(";")) if text else ()


#: RocketMQ's name -> the field of BrokerConfig and how its text is read, for what may change while the broker runs.
_CHANGEABLE: dict[str, tuple[str, Callable[[str], bool | int | float | tuple[int, ...]]]] = {
    "autoCreateTopicEnable": ("auto_create_topics", _flag),
    "autoCreateSubscriptionGroup": ("auto_create_groups", _flag),
    "brokerPermission": ("permission", _number),
    "transactionTimeOut": ("transaction_timeout", _seconds),
    "transactionCheckInterval": ("transaction_check_interval", _seconds),
    "transactionCheckMax": ("transaction_check_max", _number),
    "fileReservedTime": ("store.file_reserved_time", _number),
    "deleteWhen": ("store.delete_when", _hours),
    "diskMaxUsedSpaceRatio": ("store.disk_max_used_space_ratio", _number),
    "cleanFileForciblyEnable": ("store.clean_file_forcibly", _flag),
    # Ours; Apache's broker has no such limits.
    "topicMessageRate": ("rates.topic_messages", _rate),
    "topicByteRate": ("rates.topic_bytes", _rate),
    "groupMessageRate": ("rates.group_messages", _rate),
    "groupByteRate": ("rates.group_bytes", _rate),
}


class Settings:
    """``config`` is what is in force: the broker's own with the changes."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        #: RocketMQ's name -> value, as text.
        self.changed: dict[str, str] = {}
        #: Grows with every change.
        self.version = 0

    def properties(self) -> dict[str, str]:
        """All that is shown, under RocketMQ's names."""
        config, store = self.config, self.config.store
        values: dict[str, Any] = {
            "brokerClusterName": config.cluster,
            "brokerName": config.name,
            "brokerId": config.broker_id,
            "brokerRole": "ASYNC_MASTER",
            "brokerIP1": config.advertise or config.host,
            "listenPort": config.port,
            "namesrvAddr": ";".join(config.nameservers),
            "brokerPermission": config.permission,
            "autoCreateTopicEnable": config.auto_create_topics,
            "autoCreateSubscriptionGroup": config.auto_create_groups,
            "defaultTopicQueueNums": config.default_topic_queues,
            "maxMessageSize": config.max_message_size,
            "messageDelayLevel": " ".join(map(_span, config.delay_levels)),
            "enablePropertyFilter": config.property_filter,
            "storeReplyMessageEnable": config.store_replies,
            "useServerSideResetOffset": config.server_side_reset_offset,
            "rejectTransactionMessage": config.reject_transactions,
            "transactionTimeOut": _milliseconds(config.transaction_timeout),
            "transactionCheckInterval": _milliseconds(config.transaction_check_interval),
            "transactionCheckMax": config.transaction_check_max,
            "registerNameServerPeriod": _milliseconds(config.register_interval),
            "traceOn": True,
            "traceTopicEnable": False,
            "msgTraceTopicName": TRACE_TOPIC,
            "slaveReadEnable": False,
            "filterServerNums": 0,
            "fileReservedTime": f"{store.file_reserved_time:g}",
            "deleteWhen": ";".join(f"{hour:02}" for hour in store.delete_when),
            "diskMaxUsedSpaceRatio": store.disk_max_used_space_ratio,
            "cleanFileForciblyEnable": store.clean_file_forcibly,
            "useTLS": False,
            "flushDiskType": f"{store.flush.upper()}_FLUSH",
            "flushIntervalCommitLog": _milliseconds(store.flush_interval),
            "mappedFileSizeCommitLog": store.segment_size,
            "storePathRootDir": config.data or "",
            "topicMessageRate": f"{config.rates.topic_messages:.15g}",
            "topicByteRate": f"{config.rates.topic_bytes:.15g}",
            "groupMessageRate": f"{config.rates.group_messages:.15g}",
            "groupByteRate": f"{config.rates.group_bytes:.15g}",
        }
        return {
            name: str(value).lower() if value is True or value is False else str(value)
            for name, value in values.items()
        }

    def change(self, properties: Mapping[str, str]) -> Refusal | bool:
        """All of them or none; the bool says whether anything changed."""
        shown = self.properties()
        #: By the part of the configuration they are in.
        fields: dict[str, dict[str, Any]] = {"": {}, "rates": {}, "store": {}}
        changed: dict[str, str] = {}
        for name, text in properties.items():
            if shown.get(name) == text:
                continue
            if name not in _CHANGEABLE:
                these = f"these change while it runs: {', '.join(_CHANGEABLE)}"
                if name in shown:
                    return Refusal(ResponseCode.NO_PERMISSION, f"{name} is fixed when the broker starts; {these}")
                return Refusal(ResponseCode.INVALID_PARAMETER, f"{name:.100} is no setting of this broker; {these}")
            field, read = _CHANGEABLE[name]
            part, _, field = field.rpartition(".")
            try:
                fields[part][field] = read(text)
            except ValueError as error:
                return Refusal(ResponseCode.INVALID_PARAMETER, f"{name}={text:.100}: {error}")
            changed[name] = text
        try:
            parts = {name: replace(getattr(self.config, name), **fields[name]) for name in ("rates", "store")}
            self.config = replace(self.config, **fields[""], **parts)
        except ConfigError as error:
            return Refusal(ResponseCode.INVALID_PARAMETER, f"{changed}: {error}")
        self.changed.update(changed)
        self.version += bool(changed)
        return bool(changed)

    def to_dict(self) -> dict[str, Any]:
        return {"version": self.version, "changed": dict(self.changed)}

    def load(self, data: Mapping[str, Any]) -> None:
        """What was changed before; what does not fit any more is left out."""
        for name, text in data.get("changed", {}).items():
            self.change({str(name): str(text)})
        self.version = max(self.version, int(data.get("version", 0)))


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _span(seconds: float) -> str:
    """As messageDelayLevel has it: 1s, 5m, 2h."""
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds >= length and not seconds % length:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"
