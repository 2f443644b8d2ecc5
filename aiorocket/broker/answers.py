"""Answers that several handlers give."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from aiorocket.broker.core.long_poll import LongPolls, ParkedPull
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.turns import A_TURN
from aiorocket.errors import StoreError, StoreFullError
from aiorocket.storage.results import PutResult, PutStatus, StoreBrokenError
from aiorocket_protocol import (
    MAX_LENIENT,
    MSGPACK,
    MessageQueue,
    ProtocolError,
    RemotingCommand,
    ResponseCode,
    decode_plain,
    encode_body,
)

__all__ = ("keyed", "keyed_pair", "plain_body", "put_refusal", "refuse", "store_refusal", "tell_gone", "unknown_topic")


def refuse(refusal: Refusal) -> RemotingCommand:
    return RemotingCommand.response(int(refusal.code), remark=refusal.remark)


def unknown_topic(name: str) -> Refusal:
    return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name:.200}] not exist")


def brokers_own(group: str) -> Refusal:
    """By its offset a start knows where the records of pops begin."""
    return Refusal(ResponseCode.NO_PERMISSION, f"the offsets of group {group} are the broker's own")


def tell_gone(polls: LongPolls, pull: ParkedPull) -> None:
    """The topic that a pull or a pop waits for was deleted."""
    if polls.is_parked(pull):
        polls.answered(pull)
        gone = Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{pull.queue[0]}] was deleted")
        pull.request.connection.reply(pull.request.command, refuse(gone))


def store_refusal(error: StoreError) -> Refusal:
    """Nothing was stored. A full or failed disk needs a person (14), a store that is behind needs a moment (2)."""
    if isinstance(error, StoreFullError):
        return Refusal(
            ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now, the broker's disk is full: {error}"
        )
    if isinstance(error, StoreBrokenError):
        return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, f"the broker cannot store messages now: {error}")
    return Refusal(ResponseCode.SYSTEM_BUSY, f"[PCBUSY_CLEAN_QUEUE]{error}")


def put_refusal(result: PutResult) -> Refusal:
    """The store accepted the message and then could not keep the promise."""
    if result.status is PutStatus.FULL:
        return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker's disk is full; the message is not stored")
    return Refusal(
        ResponseCode.SYSTEM_ERROR,
        f"the broker's disk failed ({result.status.name}); the message may or may not be stored",
    )


def plain_body(command: RemotingCommand, *, lenient: int = MAX_LENIENT) -> dict[str, Any]:
    """The body's members, nothing when it is no object. ProtocolError when it is malformed."""
    kind = command.serialize_type
    plain = decode_plain(command.body, kind, lenient=lenient) if command.body else None
    return plain if isinstance(plain, dict) else {}


def keyed(value: Any, serialize_type: int) -> Generator[None, None, Any]:
    """A copy whose maps have queues as keys in the form that ``serialize_type`` has for them: objects in JSON, the same
    as text in msgpack, whose keys are text. Made little by little: a peer may have said hundreds of thousands."""
    looked = 0

    def copied(value: Any) -> Generator[None, None, Any]:
        nonlocal looked
        made: dict[Any, Any] | list[Any] = [] if isinstance(value, list) else {}
        for each in value:
            looked += 1
            if looked % A_TURN == 0:
                yield
            item = each if isinstance(made, list) else value[each]
            if isinstance(item, list | Mapping):
                item = yield from copied(item)
            if isinstance(made, list):
                made.append(item)
            else:
                made[_key(each, serialize_type)] = item
        return made

    return (yield from copied(value)) if isinstance(value, list | Mapping) else value


def keyed_pair(pair: tuple[Any, Any], serialize_type: int) -> tuple[Any, Any]:
    """The same of one entry of a map, whose value has no maps with such keys."""
    key, value = pair
    return _key(key, serialize_type), value


def _key(key: Any, serialize_type: int) -> Any:
    if isinstance(key, tuple) or (isinstance(key, str) and key.startswith("{")):
        try:
            key = key if isinstance(key, MessageQueue) else MessageQueue.from_plain(key)
        except ProtocolError:
            return str(key)
        return encode_body(key, 0).decode() if serialize_type == MSGPACK else key
    return key
