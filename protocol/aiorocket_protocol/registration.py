"""What a broker tells name servers: its topics, in JSON, msgpack or the compressed form of REGISTER_BROKER."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Self

from aiorocket_protocol import fastjson
from aiorocket_protocol.bodies import decode_plain
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import MAX_FRAME
from aiorocket_protocol.names import PERM_READ_WRITE, SINGLE_TAG, TOPIC_FILTER_TYPES
from aiorocket_protocol.plain import Plain

if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from aiorocket_protocol.rows import NamedTuple

__all__ = ("DataVersion", "RegisterBrokerBody", "TopicConfig", "TopicConfigTable")


class DataVersion(NamedTuple):
    """Stamp of a table: newer when the counter grew or the time did."""

    timestamp: int
    counter: int
    state_version: int = 0

    def to_plain(self) -> dict[str, Any]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "DataVersion")
        return cls(plain.number("timestamp", 0), plain.number("counter", 0), plain.number("stateVersion", 0))


class TopicConfig(NamedTuple):
    """A topic on a broker."""

    topic_name: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = PERM_READ_WRITE
    topic_filter_type: str = SINGLE_TAG
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}  # noqa: RUF012 - a NamedTuple field; never changed in place

    def to_plain(self) -> dict[str, Any]:
        return {
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "TopicConfig")
        return cls(
            plain.text("topicName"),
            plain.number("readQueueNums", 8),
            plain.number("writeQueueNums", 8),
            plain.number("perm", PERM_READ_WRITE),
            plain.name("topicFilterType", TOPIC_FILTER_TYPES, SINGLE_TAG),
            plain.number("topicSysFlag", 0),
            plain.flag("order"),
            plain.text_table("attributes"),
        )

    def to_text(self) -> str:
        """The compact form of compressed registrations: ``T1 8 8 6 SINGLE_TAG {}``."""
        attributes = fastjson.dumps(self.attributes).decode()
        head = f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm} {self.topic_filter_type}"
        return f"{head} {attributes}"

    @classmethod
    def from_text(cls, text: str) -> Self:
        """4.9 leaves the attributes out."""
        parts = text.split(" ", 5)
        where = "TopicConfig text"
        numbers = parts[1:4]
        if len(parts) < 5 or not all(part.isascii() and part.isdigit() and len(part) <= 10 for part in numbers):
            raise ProtocolError(f"name, 3 numbers and a filter type are needed, found {text!r:.100}", where=where)
        attributes: dict[str, str] = {}
        if len(parts) == 6 and parts[5]:
            attributes = Plain({"attributes": fastjson.loads(parts[5].encode())}, where).text_table("attributes")
        read, write, perm = map(int, numbers)
        return cls(parts[0], read, write, perm, parts[4], attributes=attributes)


class TopicConfigTable(NamedTuple):
    """Answer of GET_ALL_TOPIC_CONFIG and the core of a registration."""

    data_version: DataVersion
    topics: list[TopicConfig]

    def to_plain(self) -> dict[str, Any]:
        return {
            "dataVersion": self.data_version.to_plain(),
            "topicConfigTable": {topic.topic_name: topic.to_plain() for topic in self.topics},
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "TopicConfigTable")
        return cls(
            DataVersion.from_plain(plain.table("dataVersion")),
            [TopicConfig.from_plain(item) for item in plain.table("topicConfigTable").values()],
        )


_INT = Struct(">i")


class RegisterBrokerBody(NamedTuple):
    """Body of REGISTER_BROKER."""

    data_version: DataVersion
    topics: list[TopicConfig]
    filter_servers: list[str] = []  # noqa: RUF012 - a NamedTuple field; never changed in place

    def to_plain(self) -> dict[str, Any]:
        return {
            "filterServerList": self.filter_servers,
            "topicConfigSerializeWrapper": {
                **TopicConfigTable(self.data_version, self.topics).to_plain(),
                "mappingDataVersion": DataVersion(0, 0).to_plain(),
                "topicQueueMappingDetailMap": {},
                "topicQueueMappingInfoMap": {},
            },
        }

    @classmethod
    def from_plain(cls, value: Any) -> Self:
        plain = Plain(value, "RegisterBrokerBody")
        table = TopicConfigTable.from_plain(plain.table("topicConfigSerializeWrapper"))
        return cls(table.data_version, table.topics, plain.texts("filterServerList"))

    def compressed(self) -> bytes:
        """The body of a registration whose header says ``compressed``."""
        texts = [topic.to_text() for topic in self.topics]
        parts = [_counted(fastjson.dumps(self.data_version.to_plain())), _INT.pack(len(texts))]
        parts += [_counted(text.encode()) for text in texts]
        parts.append(_counted(fastjson.dumps(self.filter_servers)))
        parts.append(_INT.pack(0))  # no static topic mappings
        return zlib.compress(b"".join(parts))

    @classmethod
    def from_compressed(cls, data: bytes) -> Self:
        """ProtocolError for damaged data, more than a frame's worth of it, or lengths that do not fit."""
        content = _decompressed(data)
        version, reading = _version(content), _topics(content)
        topics: list[TopicConfig] = []
        while True:
            try:
                topics.append(next(reading))
            except StopIteration as end:
                filter_servers = Plain({"filterServerList": fastjson.loads(end.value or b"[]")}, "RegisterBrokerBody")
                return cls(version, topics, filter_servers.texts("filterServerList"))

    @staticmethod
    def one_by_one(data: bytes, *, compressed: bool, serialize_type: int) -> tuple[DataVersion, Iterator[TopicConfig]]:
        """The version of a body, and its topics, each read when it is asked for: a broker may have tens of thousands.
        ProtocolError comes with what it is about."""
        if compressed:
            content = _decompressed(data)
            return _version(content), _topics(content)
        plain = Plain(decode_plain(data, serialize_type, "RegisterBrokerBody"), "RegisterBrokerBody")
        table = Plain(plain.table("topicConfigSerializeWrapper"), "TopicConfigTable")
        topics = table.table("topicConfigTable").values()
        return DataVersion.from_plain(table.table("dataVersion")), map(TopicConfig.from_plain, topics)


def _decompressed(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(data, MAX_FRAME + 1)
    except zlib.error as error:
        raise ProtocolError(f"not zlib: {error}", where="compressed registration") from None
    if not stream.eof or len(content) > MAX_FRAME:
        raise ProtocolError(f"cut off, or more than {MAX_FRAME} bytes", where="compressed registration")
    return content


def _version(content: bytes) -> DataVersion:
    return DataVersion.from_plain(fastjson.loads(_take(content, 0)[0]))


def _topics(content: bytes) -> Generator[TopicConfig, None, bytes]:
    """Returns what comes behind them: the filter servers."""
    try:
        _, at = _take(content, 0)
        (count,) = _INT.unpack_from(content, at)
        at += 4
        for _ in range(count):
            text, at = _take(content, at)
            yield TopicConfig.from_text(text.decode())
        return _take(content, at)[0]
    except (StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"cut off or not text: {error}", where="compressed registration") from None


def _counted(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _take(content: bytes, at: int) -> tuple[bytes, int]:
    if at + 4 > len(content):
        raise ProtocolError("cut off", where="compressed registration")
    (length,) = _INT.unpack_from(content, at)
    end = at + 4 + length
    if length < 0 or end > len(content):
        raise ProtocolError(f"{length} bytes claimed, {len(content) - at - 4} left", where="compressed registration")
    return content[at + 4 : end], end
