"""Before the first heartbeat: what do the living members of the group subscribe to?"""

from __future__ import annotations

import asyncio
import logging

from aiorocket.client.core.group_check import differences
from aiorocket.client.group.member import Member
from aiorocket.errors import RocketError, UsageError
from aiorocket_protocol import (
    ConsumerConnection,
    GetConsumerConnectionListRequestHeader,
    ProtocolError,
    RequestCode,
    ResponseCode,
    decode_body,
)

__all__ = ("check_group_agrees",)

log = logging.getLogger("aiorocket.client")

_NOBODY = int(ResponseCode.CONSUMER_NOT_ONLINE)
#: A start does not wait longer for this: it is advice.
_PATIENCE = 1.0


async def check_group_agrees(member: Member) -> None:
    """Warn when this member wants something else than those that are there; UsageError instead with the option
    ``subscription_check="error"``. Brokers that do not answer are passed over."""
    check = member.config.subscription_check
    if check == "off":
        return
    found: dict[str, None] = {}
    try:
        async with asyncio.timeout(_PATIENCE):
            for topic in list(member.subscriptions):
                if topic != member.retry_topic:
                    found.update(dict.fromkeys(await _ask(member, topic)))
    except TimeoutError:
        log.debug("group %s: nobody said in time what the others subscribe to", member.group)
    if found:
        text = f"the members of group {member.group!r} do not agree, so messages get lost: {'; '.join(found)}"
        if check == "error":
            raise UsageError(text)
        log.warning("%s", text)


async def _ask(member: Member, topic: str) -> list[str]:
    session = member.session
    found: list[str] = []
    header = GetConsumerConnectionListRequestHeader(member.wire_group)
    try:
        route = await session.route(topic)
        for address in sorted(route.masters()):
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            answer = await session.call(address, code, header, timeout=_PATIENCE, accept=(0, _NOBODY))
            if answer.code == 0:
                theirs = decode_body(ConsumerConnection, answer.body, answer.serialize_type)
                if any(each.client_id != session.client_id for each in theirs.connections):
                    found += differences(member.consumer_data(), theirs, member.retry_topic)
    except (RocketError, ProtocolError) as error:
        log.debug("group %s: %s", member.group, error)
    return found
