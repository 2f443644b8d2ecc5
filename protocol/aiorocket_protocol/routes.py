"""Where topics are: what name servers answer to clients and administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.plain import Plain

if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from aiorocket_protocol.rows import NamedTuple

__all__ = ("BrokerData", "ClusterInfo", "QueueData", "TopicListBody", "TopicRouteData")


class QueueData(NamedTuple):
    """How many queues of a topic one broker has, and what may be done with them (perm: 4 read, 2 write)."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0

    def to_plain(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "QueueData")
        return cls(
            plain.text("brokerName"),
            plain.number("readQueueNums", 0),
            plain.number("writeQueueNums", 0),
            plain.number("perm", 0),
            plain.number("topicSysFlag", 0),
        )


class BrokerData(NamedTuple):
    """The addresses of one broker name: id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]

    def to_plain(self) -> dict[str, Any]:
        return {
            # Quoted keys: the only form that Java, Go and Node clients all read.
            "brokerAddrs": {str(broker_id): self.broker_addrs[broker_id] for broker_id in sorted(self.broker_addrs)},
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": False,
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "BrokerData")
        addrs = plain.text_table("brokerAddrs")
        try:
            numbered = {_broker_id(broker_id): address for broker_id, address in addrs.items()}
        except ValueError:
            what = f"keys must be broker ids, found {list(addrs)!r:.100}"
            raise ProtocolError(what, where="BrokerData.brokerAddrs") from None
        return cls(plain.text("cluster", ""), plain.text("brokerName"), numbered)


def _broker_id(text: str) -> int:
    if not text.isascii() or len(text) > 20:
        raise ValueError(text)
    return int(text)


class TopicRouteData(NamedTuple):
    """Answer of GET_ROUTEINFO_BY_TOPIC."""

    queue_datas: list[QueueData]
    broker_datas: list[BrokerData]
    order_topic_conf: str | None = None

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "brokerDatas": [data.to_plain() for data in self.broker_datas],
            "filterServerTable": {},
            "queueDatas": [data.to_plain() for data in self.queue_datas],
        }
        if self.order_topic_conf is not None:
            plain["orderTopicConf"] = self.order_topic_conf
        return plain

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "TopicRouteData")
        return cls(
            [QueueData.from_plain(item) for item in plain.items("queueDatas")],
            [BrokerData.from_plain(item) for item in plain.items("brokerDatas")],
            plain.text_or_none("orderTopicConf"),
        )


class ClusterInfo(NamedTuple):
    """Answer of GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]

    def to_plain(self) -> dict[str, Any]:
        return {
            "brokerAddrTable": {name: data.to_plain() for name, data in self.broker_addr_table.items()},
            "clusterAddrTable": {name: list(brokers) for name, brokers in self.cluster_addr_table.items()},
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "ClusterInfo")
        clusters = Plain(plain.table("clusterAddrTable"), plain.inner("clusterAddrTable"))
        return cls(
            {str(name): BrokerData.from_plain(item) for name, item in plain.table("brokerAddrTable").items()},
            {str(name): clusters.texts(name) for name in clusters.members},
        )


class TopicListBody(NamedTuple):
    """Answer of GET_ALL_TOPIC_LIST_FROM_NAMESERVER and other lists of topics. ``broker_addr`` is that of some broker
    where the list is of system topics."""

    topics: list[str]
    broker_addr: str | None = None

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"topicList": self.topics}
        if self.broker_addr is not None:
            plain["brokerAddr"] = self.broker_addr
        return plain

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "TopicListBody")
        return cls(plain.texts("topicList"), plain.text_or_none("brokerAddr"))
