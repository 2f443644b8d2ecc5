"""What a consumer tells an administrator about itself: GET_CONSUMER_RUNNING_INFO (307)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from types import CodeType, FrameType
from typing import Any

from aiorocket.client.core.namespace import wrap
from aiorocket.client.core.stats import ConsumeStats
from aiorocket.client.registered import GroupMember
from aiorocket.client.state import QueueState
from aiorocket.config import ClientConfig
from aiorocket.model import Queue
from aiorocket.runtime.clock import Clock
from aiorocket_protocol import MSGPACK, VERSION_NAME, MessageQueue, encode_body

__all__ = ("queue_key", "queues_of", "running_info", "task_dump")

_MIB = 1 << 20
#: Frames of one task in a dump; a coroutine that awaits deeper than that is cut.
_DEPTH = 40


def queue_key(queue: Queue, serialize_type: int) -> Any:
    """A queue as the key of a map in a body: an object in JSON, as fastjson writes it, the same as text in msgpack,
    whose keys are text."""
    key = MessageQueue(*queue)
    return encode_body(key, 0).decode() if serialize_type == MSGPACK else key


def queues_of(member: GroupMember, namespace: str) -> list[tuple[Queue, QueueState]]:
    """What each queue is doing, by its name on the wire."""
    return [(each.queue._replace(topic=wrap(namespace, each.queue.topic)), each) for each in member.state().queues]


def running_info(
    consumer: GroupMember, client: ClientConfig, clock: Clock, serialize_type: int, *, dump: bool
) -> dict[str, Any]:
    """The body of the answer. ``dump`` adds what every task of this loop waits for, in the place of Java's stacks of
    threads."""
    subscriptions = list(consumer.subscriptions().values())
    stats = consumer.stats
    loop, wall_ms = asyncio.get_running_loop().time(), clock.wall_ms()
    return {
        "jstack": task_dump() if dump else None,
        "mqPopTable": {},
        "mqTable": {
            queue_key(queue, serialize_type): _queue_info(state, loop, wall_ms)
            for queue, state in queues_of(consumer, client.namespace)
        },
        "properties": properties(consumer, client),
        "statusTable": {} if stats is None else {each.topic: _status(stats, each.topic) for each in subscriptions},
        "subscriptionSet": [each.to_plain() for each in subscriptions],
        "userConsumerInfo": {},
    }


#: Options by the names of their Java properties, in Java's units; any other goes by its own name in camel case.
_JAVA: dict[str, tuple[tuple[str, ...], Callable[[Any], object]]] = {
    "allocate": (("allocateMessageQueueStrategy",), lambda name: name if type(name) is str else repr(name)),
    "auto_commit_interval": (("autoCommitIntervalMillis",), lambda seconds: _millis(seconds)),
    "batch_size": (("consumeMessageBatchMaxSize",), int),
    "concurrency": (("consumeThreadMin", "consumeThreadMax", "PROP_THREADPOOL_CORE_SIZE"), int),
    "consume_timeout": (("consumeTimeout",), lambda seconds: f"{seconds / 60:g}"),
    "drain_timeout": (("awaitTerminationMillisWhenShutdown",), lambda seconds: _millis(seconds)),
    "hold": (("brokerSuspendMaxTimeMillis",), lambda seconds: _millis(seconds)),
    "max_attempts": (("maxReconsumeTimes",), lambda attempts: attempts - 1),
    "max_cached_bytes": (("pullThresholdSizeForQueue",), lambda size: _mib(size)),
    "max_cached_bytes_per_topic": (("pullThresholdSizeForTopic",), lambda size: _mib(size)),
    "max_cached_messages": (("pullThresholdForQueue",), int),
    "max_cached_messages_per_topic": (("pullThresholdForTopic",), int),
    "max_cached_messages_total": (("pullThresholdForAll",), int),
    "max_span": (("consumeConcurrentlyMaxSpan",), int),
    "message_model": (("messageModel",), str.upper),
    "offset_flush_interval": (("persistConsumerOffsetInterval",), lambda seconds: _millis(seconds)),
    "post_subscription": (("postSubscriptionWhenPull",), bool),
    "pull_batch_size": (("pullBatchSize",), int),
    "pull_error_delay": (("pullTimeDelayMillsWhenException",), lambda seconds: _millis(seconds)),
    "pull_interval": (("pullInterval",), lambda seconds: _millis(seconds)),
    "pull_timeout": (("consumerTimeoutMillisWhenSuspend",), lambda seconds: _millis(seconds)),
    "suspend": (("suspendCurrentQueueTimeMillis",), lambda seconds: _millis(seconds)),
}


def properties(consumer: GroupMember, client: ClientConfig) -> dict[str, str]:
    """Every option of the consumer, and who and what it is, as text."""
    data = consumer.consumer_data()
    found: dict[str, object] = {
        "PROP_CLIENT_VERSION": VERSION_NAME,
        "PROP_CONSUMEORDERLY": consumer.is_orderly(),
        "PROP_CONSUMER_START_TIMESTAMP": consumer.started_ms(),
        "PROP_CONSUME_TYPE": data.consume_type,
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in client.nameservers),
        "consumeFromWhere": data.consume_from_where,
        "consumerGroup": data.group,
        "messageModel": data.message_model,
        "namespace": client.namespace,
        "unitMode": data.unit_mode,
    }
    for option in fields(consumer.config):
        value = getattr(consumer.config, option.name)
        names, convert = _JAVA.get(option.name) or ((_camel(option.name),), lambda value: value)
        found.update(dict.fromkeys(names, convert(value)))
    return {name: _text(found[name]) for name in sorted(found)}


def _millis(seconds: float) -> int:
    return round(1000 * seconds)


def _mib(size: int) -> int:
    return size if size < 0 else size // _MIB


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _queue_info(state: QueueState, now: float, wall_ms: int) -> dict[str, Any]:
    """ProcessQueueInfo. Java's names, with its typo."""
    return {
        "cachedMsgCount": state.cached,
        "cachedMsgMaxOffset": state.last_cached,
        "cachedMsgMinOffset": state.first_cached,
        "cachedMsgSizeInMiB": state.cached_bytes // _MIB,
        "commitOffset": state.done,
        "droped": state.dropped,
        "lastConsumeTimestamp": _wall(state.last_consume, now, wall_ms),
        "lastLockTimestamp": _wall(state.last_lock, now, wall_ms),
        "lastPullTimestamp": _wall(state.last_pull, now, wall_ms),
        "locked": state.locked,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def _wall(then: float | None, now: float, wall_ms: int) -> int:
    return 0 if then is None else wall_ms - int(1000 * (now - then))


def _status(stats: ConsumeStats, topic: str) -> dict[str, Any]:
    status = stats.status(topic)
    return {
        "consumeFailedMsgs": status.consume_failed_msgs,
        "consumeFailedTPS": status.consume_failed_tps,
        "consumeOKTPS": status.consume_ok_tps,
        "consumeRT": status.consume_rt,
        "pullRT": status.pull_rt,
        "pullTPS": status.pull_tps,
    }


def task_dump() -> str:
    """Every task of the running loop and what it waits for, innermost call last."""
    lines: list[str] = []
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        lines.append(task.get_name())
        for code, line in _chain(task.get_coro()):
            lines.append(f"    {code.co_qualname}({code.co_filename.rpartition('/')[2]}:{line})")
    return "\n".join(lines) + "\n"


def _chain(awaited: Any) -> list[tuple[CodeType, int]]:
    """The frames of a suspended coroutine and of what it awaits, as far as those are coroutines or generators."""
    found: list[tuple[CodeType, int]] = []
    while awaited is not None and len(found) < _DEPTH:
        frame: FrameType | None = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        found.append((frame.f_code, frame.f_lineno))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return found
