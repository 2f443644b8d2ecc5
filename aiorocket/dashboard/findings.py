"""What is wrong now: what the first page asks, all on ``Admin`` and within bounds."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from aiorocket import Admin
from aiorocket.errors import ProtocolError, RocketError, TopicNotFoundError
from aiorocket_protocol import DLQ_PREFIX, forms

if TYPE_CHECKING:
    from aiorocket.dashboard.shared import Shared

__all__ = ("HANGS", "Cause", "Dead", "Hanging", "MemberNow", "alarms", "dead", "hanging", "member_now", "members_now")

#: Seconds without progress, with messages at hand, from which a listener is said to hang.
HANGS = 30
#: Groups and members of one that are asked, and how many at a time: each question goes on to a client.
_GROUPS, _MEMBERS, _AT_ONCE = 40, 50, 8
#: Queues of a member that are shown, and of those for how many brokers are asked since when a message is there: it may
#: say that it holds any number.
_QUEUES, _ASKED = 500, 32
#: Dead letters looked at of each group, the newest.
_DEAD = 500
#: Groups with dead letters that are looked into.
_DEAD_GROUPS = 100


class HeldQueue(NamedTuple):
    """A queue that a member holds: ``cached`` messages are there, the last was consumed at ``consumed_ms``."""

    topic: str
    broker: str
    queue: int
    cached: int
    done: int
    consumed_ms: int
    locked: bool
    hangs: bool


class MemberNow(NamedTuple):
    """A member as it says it is; ``why`` says why it did not."""

    client_id: str
    address: str
    language: str
    queues: tuple[HeldQueue, ...] = ()
    stacks: str = ""
    why: str = ""

    @property
    def hangs(self) -> bool:
        return any(each.hangs for each in self.queues)


class Hanging(NamedTuple):
    group: str
    member: MemberNow


class Cause(NamedTuple):
    """Dead letters of a group that were given up for one reason, of those that were looked at."""

    error: str
    reason: str
    times: int
    newest_ms: int


class Dead(NamedTuple):
    """What a group gave up: ``total`` messages, ``looked`` of them (the newest) are counted in ``causes``."""

    group: str
    total: int
    looked: int
    replayed: int
    causes: tuple[Cause, ...]
    why: str = ""


async def alarms(admin: Admin) -> list[Any]:
    """What the doctor finds, errors first; what has a list of its own on the page is left to that."""
    found = [each async for each in admin.doctor() if each.level != "ok" and each.check not in ("lag", "dead letters")]
    return sorted(found, key=lambda each: each.level != "error")


async def member_now(admin: Admin, group: str, member: Any, *, stacks: bool) -> MemberNow:
    """What one member says of its queues."""
    name = member.client_id, member.address, member.language
    try:
        info = await admin.groups.running_info(group, member.client_id, stacks=stacks)
    except (RocketError, ProtocolError) as error:
        return MemberNow(*name, why=str(error))
    now = admin.client.env.clock.wall_ms()
    started = info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
    queues = []
    left = _ASKED
    for (topic, broker, queue), row in sorted(info.queues.items())[:_QUEUES]:
        cached, done = _int(row, "cachedMsgCount"), _int(row, "commitOffset")
        since = consumed = _int(row, "lastConsumeTimestamp")
        if cached and not consumed and left:  # its first message: since that is there, and the member
            left -= 1
            stored = await _stored(admin, topic, broker, queue, done)
            since = now if stored is None else max(stored, int(started) if started.isdigit() else 0)
        hangs = cached > 0 and since > 0 and now - since > HANGS * 1000
        queues.append(HeldQueue(topic, broker, queue, cached, done, consumed, row.get("locked") is True, hangs))
    return MemberNow(*name, tuple(queues), info.stacks)


async def _stored(admin: Admin, topic: str, broker: str, queue: int, offset: int) -> int | None:
    try:
        message = await admin.messages.by_offset(topic, broker, queue, offset)
    except (RocketError, ProtocolError):
        return None
    return None if message is None else message.store_timestamp


async def members_now(admin: Admin, group: str, *, stacks: bool) -> tuple[list[MemberNow], int]:
    """Its members, side by side, and how many more there are than are asked."""
    members = (await admin.groups.members(group)).members
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(member: Any) -> MemberNow:
        async with room:
            return await member_now(admin, group, member, stacks=stacks)

    found = await asyncio.gather(*map(ask, members[:_MEMBERS]))
    return found, max(0, len(members) - _MEMBERS)


async def hanging(admin: Admin, lags: Shared[Any]) -> list[Hanging]:
    """Members with messages at hand that they do not get on with, in the groups that are furthest behind."""
    behind = {group: sum(each.lag for each in rows) for group, rows in (await lags.get()).items()}
    found = []
    for group in sorted((group for group in behind if behind[group]), key=lambda group: -behind[group])[:_GROUPS]:
        members, _ = await members_now(admin, group, stacks=False)
        found += [Hanging(group, each) for each in members if each.hangs]
    return found


async def dead(admin: Admin, *, readable_only: bool) -> tuple[list[Dead], list[Any]]:
    """Groups with dead letters and why they were given up, and brokers that did not say whether they have some.
    ``readable_only`` leaves those alone that a broker keeps unreadable: reading them would change that."""
    readable: dict[str, bool] = {}
    topics = await admin.topics.all(system=True)
    missing = {each.server: each for each in topics.missing}
    for each in topics:
        if each.topic.startswith(DLQ_PREFIX):
            readable[each.topic] = readable.get(each.topic, True) and "R" in each.permission
    found = []
    for topic in sorted(readable):
        try:
            queues = await admin.topics.status(topic)
        except TopicNotFoundError:
            continue
        missing.update((each.server, each) for each in queues.missing)
        total = sum(each.end - each.begin for each in queues)
        if total:
            group = topic.removeprefix(DLQ_PREFIX)
            if readable_only and not readable[topic]:
                found.append(Dead(group, total, 0, 0, (), "not readable: a look with --allow-writes makes it so"))
            elif len(found) < _DEAD_GROUPS:
                found.append(await _causes(admin, group, total))
            else:
                found.append(Dead(group, total, 0, 0, ()))
    return sorted(found, key=lambda each: -each.total), list(missing.values())


async def _causes(admin: Admin, group: str, total: int) -> Dead:
    counts: Counter[tuple[str, str]] = Counter()
    newest: dict[tuple[str, str], int] = {}
    replayed = 0
    try:
        async for message in admin.dlq(group).messages(newest=_DEAD):
            if message.replayed:
                replayed += 1
                continue
            cause = (message.error, message.reason[:200])
            counts[cause] += 1
            newest[cause] = max(newest.get(cause, 0), message.store_timestamp)
    except (RocketError, ProtocolError) as error:
        return Dead(group, total, 0, 0, (), str(error))
    causes = tuple(Cause(*cause, many, newest[cause]) for cause, many in counts.most_common(5))
    return Dead(group, total, replayed + counts.total(), replayed, causes)


def _int(row: dict[str, Any], name: str) -> int:
    """C++'s client writes some of its numbers as text."""
    try:
        return forms.number(row.get(name)) or 0
    except ValueError:
        return 0
