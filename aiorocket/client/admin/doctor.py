"""What is wrong with a cluster, and what to do: ``admin.doctor()``. It asks and changes nothing."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Literal, NamedTuple

from aiorocket.client.admin.asking import side_by_side
from aiorocket.client.admin.brokers import BrokerRuntime, Brokers
from aiorocket.client.admin.groups import Groups
from aiorocket.client.admin.topics import Topics
from aiorocket.client.session import Session
from aiorocket.errors import RemoteError, RocketError, TopicNotFoundError
from aiorocket.remoting.address import host_of, is_loopback
from aiorocket.remoting.tls import untimely
from aiorocket_protocol import DLQ_PREFIX, RETRY_PREFIX, ProtocolError, RequestCode, ResponseCode

__all__ = ("Finding", "examine")

#: Part of the disk above which old messages go at any hour, and above which a broker soon refuses new ones.
DISK_WARNS, DISK_FAILS = 0.75, 0.85
#: Seconds that a broker's clock may differ from ours: it says its own to the second, and the answer took its time.
SKEW = 5.0

#: Alarms of our brokers whose matter is looked at here anyway, on every broker.
_LOOKED_AT = ("disk_low", "subscriptions_differ", "write_dead")
_SILENT = (
    "does it hang? see its log and its disk, start it again; where it refuses, sign in (--credentials) or ask where it "
    "is served (--broker)"
)
_SAME = "give every member of the group the same topics and tags: else messages pass some of them by"
_AWAY = "is it up? does the name resolve, and is the port open from this machine?"
_TLS = "--tls, --tls-ca and --tls-cert as the server wants them, none of them for plain text"
_SIGN_IN = "sign in (--credentials) or ask where it is served (--broker)"
_UNITS = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}


class Finding(NamedTuple):
    """One check of one thing. ``advice`` is empty when it is well."""

    level: Literal["ok", "warning", "error"]
    check: str
    about: str
    finding: str
    advice: str = ""


async def examine(
    client: Session, topics: Topics, groups: Groups, known: Brokers, *, lag: int
) -> AsyncGenerator[Finding, None]:
    """Name servers, advertised addresses, permissions, clocks, disks, damage, subscriptions, lag, dead letters, routes;
    each as it is known. Ends early when there is nobody left to ask."""
    for address in client.config.nameservers:
        try:
            # Not a connection alone: who wants TLS, or another certificate, hangs up behind it.
            await client.call(address, RequestCode.GET_BROKER_CLUSTER_INFO, accept=range(1 << 16))
            yield Finding("ok", "name server", address, "reachable")
            for finding in await _certificate(client, address):
                yield finding
        except (RocketError, ProtocolError) as error:
            yield Finding("error", "name server", address, str(error), _advice(error, _AWAY))
    try:
        brokers = await known.all()
    except (RocketError, ProtocolError) as error:
        advice = "start a broker with --nameserver, or name other name servers"
        yield Finding("error", "brokers", "", str(error), _advice(error, advice))
        return
    reachable = 0
    here = all(is_loopback(host_of(address)) for address in client.config.nameservers)
    for each in brokers:
        about = f"{each.name} {each.address}"
        try:
            await client.connection(each.address)
            reachable += 1
            if not here and is_loopback(host_of(each.address)):
                advice = "start it with --advertise HOST: clients of other machines connect to themselves now"
                yield Finding("warning", "advertised address", about, "is this machine only", advice)
            else:
                yield Finding("ok", "advertised address", about, "reachable")
            for finding in await _certificate(client, each.address):
                yield finding
        except (RocketError, ProtocolError) as error:
            advice = (
                "clients are told this address: start the broker with an --advertise that they reach, or give them an "
                "--address-map"
            )
            yield Finding("error", "advertised address", about, str(error), advice)
    if not reachable:
        if brokers:
            yield Finding("error", "brokers", "", "none can be reached", "start one, or mend the addresses above")
        else:
            yield Finding("error", "brokers", "", "none is registered", "start one with --nameserver")
        return
    try:
        runtimes = await known.runtime()
    except RemoteError as error:
        level: Literal["warning", "error"] = "error" if error.code == ResponseCode.NO_PERMISSION else "warning"
        yield Finding(level, "permission", "", str(error), _SIGN_IN)
        return
    except (RocketError, ProtocolError) as error:
        yield Finding("error", "broker", "", str(error), _SILENT)
        return
    for missing in runtimes.missing:
        yield Finding("error", "broker", missing.server, missing.why, f"{_SILENT}; its part is missing below")
    for runtime in runtimes:
        for finding in _of_runtime(runtime, client.env.clock.wall_ms()):
            yield finding
    ours = all("damagedRanges" in each.values for each in runtimes)
    for part in (_groups(groups, lag), *(() if ours else (_subscriptions(groups),)), _topics(topics)):
        try:
            async for finding in part:
                yield finding
        except (RocketError, ProtocolError) as error:  # who may look at brokers may not look at every topic and group
            yield Finding("error", "permission", "", str(error), "what comes behind it is missing below")


async def _certificate(client: Session, address: str) -> list[Finding]:
    """What is wrong with the time of what it shows, or soon will be; an expired one is refused by who checks it."""
    certificate = (await client.connection(address)).data.get("certificate")
    said = untimely(certificate, client.env.clock.wall_ms()) if certificate else None
    what, _, advice = (said or "").partition("; ")
    return [Finding("warning", "certificate", address, what, advice)] if said else []


def _advice(error: Exception, otherwise: str) -> str:
    if "(--credentials" in str(error):
        return _SIGN_IN
    return _TLS if "TLS" in str(error) or "certificate" in str(error) else otherwise


def _of_runtime(runtime: BrokerRuntime, now: int) -> list[Finding]:
    found = []
    values, name = runtime.values, runtime.name
    ratio = _float(values.get("commitLogDiskRatio"))
    if ratio >= DISK_WARNS:
        level: Literal["warning", "error"] = "error" if ratio >= DISK_FAILS else "warning"
        advice = "make room, keep messages for less long (fileReservedTime), or `aiorocket cluster clean messages`"
        found.append(Finding(level, "disk", name, f"{ratio:.0%} are used", advice))
    else:
        found.append(Finding("ok", "disk", name, f"{ratio:.0%} are used"))
    begun, running = _float(values.get("bootTimestamp")), _seconds(values.get("runtime", ""))
    skew = (begun / 1000 + running) - now / 1000
    if begun and abs(skew) > SKEW:
        advice = "set both clocks by NTP: delays, retention and times of messages go by them"
        found.append(Finding("warning", "clock", name, f"differs from ours by {skew:+.0f} s", advice))
    elif begun:
        found.append(Finding("ok", "clock", name, "as ours"))
    if _float(values.get("damagedRanges")):
        text = (
            f"{values['damagedRanges']} ranges of its log are damaged, {values.get('damagedMessages')} messages in them"
        )
        found.append(Finding("error", "store", name, text, "stop it and run `aiorocket store verify DIR`"))
    if problem := values.get("writeProblem"):
        advice = (
            "make room (`aiorocket cluster clean messages`), or mend the disk; then it takes messages again by itself"
        )
        found.append(Finding("error", "store", name, f"takes no messages: {problem}", advice))
    for key, value in values.items():
        alarm = key.removeprefix("alarm_")
        if alarm != key and alarm not in _LOOKED_AT:
            about, _, advice = value.partition(" -> ")
            found.append(Finding("warning", f"alarm {alarm}", name, about, advice))
        if key.startswith("subscriptionsDiffer_"):
            found.append(Finding("error", "subscriptions", key.removeprefix("subscriptionsDiffer_"), value, _SAME))
    return found


async def _groups(groups: Groups, most: int) -> AsyncGenerator[Finding, None]:
    waiting = {
        group: sum(each.lag for each in rows if not each.topic.startswith(DLQ_PREFIX))
        for group, rows in (await groups.lags()).items()
    }
    late = [group for group, behind in waiting.items() if behind]
    for group, known in zip(late, await side_by_side(groups.members, late), strict=True):
        behind = waiting[group]
        if not known.members and not known.missing:
            advice = "start its consumers, or delete the group when nobody needs it"
            yield Finding("warning", "lag", group, f"{behind} messages wait and nobody is online", advice)
        elif behind >= most:
            advice = (
                f"`aiorocket group lag {group}`: which queues, and `aiorocket group info` what their members hang on"
            )
            yield Finding("warning", "lag", group, f"{behind} messages wait", advice)


async def _subscriptions(groups: Groups) -> AsyncGenerator[Finding, None]:
    """Apache's brokers do not say where members of a group differ: the members do."""

    async def wish(of: tuple[str, str]) -> str:
        try:
            info = await groups.running_info(*of)
        except (RocketError, ProtocolError):  # it has just gone, or is one that does not answer
            return ""
        wanted = (each for each in info.subscriptions if not each.topic.startswith(RETRY_PREFIX))
        return ", ".join(f"{each.topic} ({each.kind} {each.expression})" for each in wanted)

    names = sorted({each.group for each in await groups.all()})
    for group, known in zip(names, await side_by_side(groups.members, names), strict=True):
        ids = [each.client_id for each in known.members]
        if len(ids) < 2:
            continue
        wishes: dict[str, str] = {}
        for client_id, wanted in zip(ids, await side_by_side(wish, [(group, each) for each in ids]), strict=True):
            if wanted:
                wishes.setdefault(wanted, client_id)
        if len(wishes) > 1:
            differ = "; ".join(f"{client_id} subscribes to {wanted}" for wanted, client_id in wishes.items())
            yield Finding("error", "subscriptions", group, differ, _SAME)


async def _topics(topics: Topics) -> AsyncGenerator[Finding, None]:
    async def dead(name: str) -> Finding | None:
        try:
            count = sum(each.end - each.begin for each in await topics.status(name))
        except TopicNotFoundError:
            return None
        group = name.removeprefix(DLQ_PREFIX)
        advice = f"`aiorocket dlq list {group}` says why, `aiorocket dlq replay {group}` sends them again"
        return Finding("warning", "dead letters", group, f"{count} messages were given up", advice) if count else None

    async def routed(name: str) -> Finding | None:
        try:
            route = await topics.route(name)
        except (RocketError, ProtocolError) as error:
            advice = "brokers tell name servers every 30 s: is theirs the same?"
            return Finding("error", "route", name, str(error), advice)
        if any("W" in each.permission for each in route):
            return None
        advice = "`aiorocket cluster write BROKER on`, or `aiorocket topic update`, gives it back"
        return Finding("warning", "route", name, "no broker lets it be written", advice)

    everything = sorted({each.topic for each in await topics.all(system=True)})
    for finding in await side_by_side(dead, [name for name in everything if name.startswith(DLQ_PREFIX)]):
        if finding is not None:
            yield finding
    for finding in await side_by_side(routed, sorted({each.topic for each in await topics.all()})):
        if finding is not None:
            yield finding


def _float(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _seconds(text: str) -> float:
    """Of ``[ 1 days, 2 hours, 3 minutes, 4 seconds ]``."""
    return float(
        sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+) (day|hour|minute|second)", text))
    )
