"""Before the first heartbeat: what do the living members of the group subscribe to?"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from aiorocket.client.core.group_check import differences
from aiorocket.errors import RocketError, UsageError
from aiorocket_protocol import (
    ConsumerConnection,
    GetConsumerConnectionListRequestHeader,
    ProtocolError,
    RequestCode,
    ResponseCode,
    decode_body,
)

if TYPE_CHECKING:
    from aiorocket.client.session import Session
    from aiorocket.config import ConsumerConfig, PullConsumerConfig
    from aiorocket_protocol import ConsumerData

__all__ = ("check_group_agrees",)

log = logging.getLogger("aiorocket.client")

_NOBODY = int(ResponseCode.CONSUMER_NOT_ONLINE)
#: A start does not wait longer for this: it is advice.
_PATIENCE = 1.0


class _Newcomer(Protocol):
    """The member that is about to join."""

    @property
    def client(self) -> Session: ...
    @property
    def config(self) -> ConsumerConfig | PullConsumerConfig: ...
    @property
    def group(self) -> str: ...
    @property
    def wire_group(self) -> str: ...
    @property
    def retry_topic(self) -> str: ...

    def topics(self) -> list[str]: ...
    def consumer_data(self) -> ConsumerData: ...


async def check_group_agrees(consumer: _Newcomer) -> None:
    """Warn when this member wants something else than those that are there; UsageError instead with the option
    ``subscription_check="error"``. Brokers that do not answer are passed over."""
    check = consumer.config.subscription_check
    if check == "off":
        return
    found: dict[str, None] = {}
    try:
        async with asyncio.timeout(_PATIENCE):
            for topic in consumer.topics():
                if topic != consumer.retry_topic:
                    found.update(dict.fromkeys(await _ask(consumer, topic)))
    except TimeoutError:
        log.debug("group %s: nobody said in time what the others subscribe to", consumer.group)
    if found:
        text = f"the members of group {consumer.group!r} do not agree, so messages get lost: {'; '.join(found)}"
        if check == "error":
            raise UsageError(text)
        log.warning("%s", text)


async def _ask(consumer: _Newcomer, topic: str) -> list[str]:
    client = consumer.client
    found: list[str] = []
    header = GetConsumerConnectionListRequestHeader(consumer.wire_group)
    try:
        route = await client.route(topic)
        for address in sorted(route.masters()):
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            answer = await client.call(address, code, header, timeout=_PATIENCE, accept=(0, _NOBODY))
            if answer.code == 0:
                theirs = decode_body(ConsumerConnection, answer.body, answer.serialize_type)
                if any(each.client_id != client.client_id for each in theirs.connections):
                    found += differences(consumer.consumer_data(), theirs, consumer.retry_topic)
    except (RocketError, ProtocolError) as error:
        log.debug("group %s: %s", consumer.group, error)
    return found
