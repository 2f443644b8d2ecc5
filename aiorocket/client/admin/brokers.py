"""Brokers and their clusters: ``admin.brokers``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from aiorocket.client.admin.asking import ABSENT, Answers, Asking, Broker
from aiorocket.errors import UsageError
from aiorocket_protocol import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    GetProducerConnectionListRequestHeader,
    KVTable,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    ViewBrokerStatsDataRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
    decode_body,
    decode_configuration,
    encode_configuration,
)
from aiorocket_protocol.plain import Plain

__all__ = ("BrokerInfo", "BrokerRuntime", "Brokers", "Cleaning", "ProducerConnection", "Rate", "Statistics")

Cleaning = Literal["queues", "topics", "messages"]
_CLEANINGS: Mapping[str, int] = {
    "queues": RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    "topics": RequestCode.CLEAN_UNUSED_TOPIC,
    "messages": RequestCode.DELETE_EXPIRED_COMMITLOG,
}
#: What a broker says of a statistic or a producer group that it does not have.
_NO_SUCH = (int(ResponseCode.SYSTEM_ERROR), *ABSENT)


class BrokerInfo(NamedTuple):
    """A broker that is registered; id 0 is the master of its name."""

    cluster: str
    name: str
    id: int
    address: str


class BrokerRuntime(NamedTuple):
    """What a broker says of itself, under RocketMQ's names (putTps, commitLogDiskRatio ...), as text."""

    name: str
    address: str
    version: str
    values: dict[str, str]


class Rate(NamedTuple):
    """What went through in a time, and per second."""

    total: int
    per_second: float


class Statistics(NamedTuple):
    """One of a broker's statistics over the last minute, hour and day."""

    broker: str
    minute: Rate
    hour: Rate
    day: Rate


class ProducerConnection(NamedTuple):
    """A client with a producer of ``group``; ``version`` as of ``Member``."""

    group: str
    broker: str
    client_id: str
    address: str
    language: str
    version: int


class Brokers:
    """See ``Admin``. ``broker`` is a name or an address; without it every master is meant."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking

    async def all(self) -> list[BrokerInfo]:
        """Every broker that is registered, slaves too."""
        about = await self._ask.cluster_info()
        return sorted(
            BrokerInfo(data.cluster, name, number, address)
            for name, data in about.broker_addr_table.items()
            for number, address in data.broker_addrs.items()
        )

    async def clusters(self) -> dict[str, list[str]]:
        """The names of the brokers of each cluster."""
        found: dict[str, set[str]] = {}
        for each in await self.all():
            found.setdefault(each.cluster, set()).add(each.name)
        return {cluster: sorted(names) for cluster, names in sorted(found.items())}

    async def runtime(self, broker: str | None = None) -> Answers[BrokerRuntime]:
        async def ask(at: Broker) -> list[BrokerRuntime]:
            answer = await self._ask.call(at.address, RequestCode.GET_BROKER_RUNTIME_INFO)
            values = decode_body(KVTable, answer.body, answer.serialize_type).table
            return [BrokerRuntime(at.name, at.address, values.get("brokerVersionDesc", ""), values)]

        return await self._ask.each(ask, broker=broker)

    async def config(self, broker: str) -> dict[str, str]:
        """Its settings under RocketMQ's names."""
        at = (await self._ask.brokers(broker=broker))[0]
        return decode_configuration((await self._ask.call(at.address, RequestCode.GET_BROKER_CONFIG)).body)

    async def set_config(self, values: Mapping[str, str], broker: str | None = None) -> Answers[str]:
        """Change settings while it runs; the brokers that did. RemoteError when all refuse."""
        if not values:
            raise UsageError("no setting to change")
        body = encode_configuration(values)

        async def ask(at: Broker) -> list[str]:
            await self._ask.client.call(at.address, RequestCode.UPDATE_BROKER_CONFIG, None, body=body)
            return [at.name]

        return await self._ask.each(ask, broker=broker)

    async def statistics(self, name: str, key: str, broker: str | None = None) -> Answers[Statistics]:
        """A statistic such as TOPIC_PUT_NUMS with key "orders", or GROUP_GET_NUMS with key "orders@billing". Brokers
        that have none are left out."""

        async def ask(at: Broker) -> list[Statistics]:
            header = ViewBrokerStatsDataRequestHeader(name, key)
            plain = await self._ask.plain(at.address, RequestCode.VIEW_BROKER_STATS_DATA, header, accept=_NO_SUCH)
            if plain is None:
                return []
            spans = [_rate(Plain(plain.table(each), each)) for each in ("statsMinute", "statsHour", "statsDay")]
            return [Statistics(at.name, *spans)]

        return await self._ask.each(ask, broker=broker)

    async def clean(self, what: Cleaning, broker: str | None = None) -> Answers[str]:
        """Remove now what retention would remove some time: "queues" that point at nothing, what is left of deleted
        "topics", "messages" that are old. The brokers that did."""
        code = _CLEANINGS.get(what)
        if code is None:
            raise UsageError(f"{what!r}: one of {', '.join(_CLEANINGS)}")

        async def ask(at: Broker) -> list[str]:
            await self._ask.call(at.address, code)
            return [at.name]

        return await self._ask.each(ask, broker=broker)

    async def write_permission(self, broker: str, allowed: bool) -> Answers[int]:
        """Let producers use ``broker``, or have them leave it: name servers then give its topics out as readable only.
        How many topics changed, per name server; UsageError for a broker that none of them knows."""

        async def ask(nameserver: str) -> list[int]:
            answer: RemotingCommand
            if allowed:
                answer = await self._ask.call(
                    nameserver, RequestCode.ADD_WRITE_PERM_OF_BROKER, AddWritePermOfBrokerRequestHeader(broker)
                )
                return [answer.read(AddWritePermOfBrokerResponseHeader).add_topic_count]
            answer = await self._ask.call(
                nameserver, RequestCode.WIPE_WRITE_PERM_OF_BROKER, WipeWritePermOfBrokerRequestHeader(broker)
            )
            return [answer.read(WipeWritePermOfBrokerResponseHeader).wipe_topic_count]

        changed = await self._ask.each_nameserver(ask)
        if not any(changed) and broker not in (known := {each.name for each in await self.all()}):
            raise UsageError(f"no broker {broker!r}: there are {', '.join(sorted(known))}")
        return changed

    async def producers(self, group: str) -> Answers[ProducerConnection]:
        """Who is connected with a producer of ``group``."""
        header = GetProducerConnectionListRequestHeader(self._ask.wire(group))

        async def ask(at: Broker) -> list[ProducerConnection]:
            code = RequestCode.GET_PRODUCER_CONNECTION_LIST
            plain = await self._ask.plain(at.address, code, header, accept=_NO_SUCH)
            rows = () if plain is None else [Plain(row, "connectionSet") for row in plain.items("connectionSet")]
            return [
                ProducerConnection(
                    group, at.name, row.text("clientId"), row.text("clientAddr", ""), row.text("language", "JAVA"),
                    row.number("version", 0),
                )
                for row in rows
            ]  # fmt: skip

        answers = await self._ask.each(ask)
        answers.sort()
        return answers


def _rate(plain: Plain) -> Rate:
    value = plain.members.get("tps", 0.0)
    return Rate(plain.number("sum", 0), float(value) if isinstance(value, int | float) else 0.0)
