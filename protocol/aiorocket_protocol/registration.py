"""What a broker tells name servers: its topics, in JSON, msgpack or the compressed form of REGISTER_BROKER."""

from __future__ import annotations

import zlib
from collections.abc import Generator
from struct import Struct
from typing import TYPE_CHECKING, Any, Self

from aiorocket_protocol import fastjson
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import MAX_DECOMPRESSED, MAX_FRAME, MAX_LENIENT
from aiorocket_protocol.members import members
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
            attributes = Plain({"attributes": fastjson.loads(parts[5].encode(), most=MAX_LENIENT)}, where).text_table(
                "attributes"
            )
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
_WHERE = "compressed registration"
#: Topics compressed before others have their turn: some three milliseconds.
_A_TURN = 250
#: Bytes of compressed data that are looked at at once.
_PIECE = 16 << 10
#: Bytes of one topic in it, or of whatever else has a length.
_LONGEST = 64 << 10


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
        """The body of a registration whose header says ``compressed``. It leaves topicSysFlag and order out."""
        work = self.compressing()
        while True:
            try:
                next(work)
            except StopIteration as end:
                return bytes(end.value)

    def compressing(self) -> Generator[None, None, bytes]:
        """``compressed``, little by little."""
        stream = zlib.compressobj()
        parts = [stream.compress(_counted(fastjson.dumps(self.data_version.to_plain())) + _INT.pack(len(self.topics)))]
        for at in range(0, len(self.topics), _A_TURN):
            some = self.topics[at : at + _A_TURN]
            parts.append(stream.compress(b"".join([_counted(topic.to_text().encode()) for topic in some])))
            yield
        # No static topic mappings.
        parts.append(stream.compress(_counted(fastjson.dumps(self.filter_servers)) + _INT.pack(0)))
        return b"".join((*parts, stream.flush()))

    @classmethod
    def from_compressed(cls, data: bytes) -> Self:
        """ProtocolError for damaged data, more than MAX_DECOMPRESSED of it, or lengths that do not fit."""
        content = _Inflated(data)
        version, reading = _version(content), _topics(content)
        topics: list[TopicConfig] = []
        while True:
            try:
                topics.append(next(reading))
            except StopIteration as end:
                filter_servers = Plain(
                    {"filterServerList": fastjson.loads(end.value or b"[]", most=MAX_LENIENT)}, "RegisterBrokerBody"
                )
                return cls(version, topics, filter_servers.texts("filterServerList"))

    @staticmethod
    def one_by_one(
        data: bytes, *, compressed: bool, serialize_type: int
    ) -> Generator[TopicConfig | None, None, DataVersion]:
        """The topics of a body, each read when it is asked for: a broker may have tens of thousands. None in between
        wherever others may have their turn. Returns the version; ProtocolError comes with what it is about."""
        if compressed:
            content = _Inflated(data)
            version = _version(content)
            yield from _topics(content)
            return version
        wrapper = ("topicConfigSerializeWrapper",)
        table = (*wrapper, "topicConfigTable")
        outside: dict[Any, Any] = {}
        for member in members(data, serialize_type, ((), wrapper, table), "RegisterBrokerBody"):
            if member is None:
                yield None
            elif member[0] == table:
                yield TopicConfig.from_plain(member[2])
            elif member[1] in (*table, "dataVersion"):  # of the table's own name: no object, or it would be gone into
                outside[member[1]] = member[2]
        Plain(outside, "RegisterBrokerBody").table(*wrapper)
        plain = Plain(outside, "TopicConfigTable")
        plain.table("topicConfigTable")
        return DataVersion.from_plain(plain.table("dataVersion"))


class _Inflated:
    """What zlib data holds, taken piece by piece: no more of it is unfolded than was asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._fed = 0
        self._stream = zlib.decompressobj()
        self._have = b""
        self._at = 0
        self._left = MAX_DECOMPRESSED

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes; ProtocolError when there are not so many."""
        while len(self._have) - self._at < count:
            self._have = self._have[self._at :] + self._more()
            self._at = 0
        self._at += count
        return self._have[self._at - count : self._at]

    def number(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def counted(self) -> bytes:
        """What a length stands before."""
        length = self.number()
        if not 0 <= length <= _LONGEST:
            raise ProtocolError(f"{length} bytes claimed, at most {_LONGEST} are read", where=_WHERE)
        return self.take(length)

    def end(self) -> None:
        """Nobody reads what is left; ProtocolError when it is damaged, or more than a frame."""
        left = self._left
        while not self._stream.eof:
            self._more()
            if left - self._left > MAX_FRAME:
                raise ProtocolError(f"more than {MAX_FRAME} bytes behind the topics", where=_WHERE)

    def _more(self) -> bytes:
        stream = self._stream
        try:
            while not stream.eof:
                some = stream.unconsumed_tail
                if not some:
                    some = self._data[self._fed : self._fed + _PIECE]
                    self._fed += len(some)
                found = stream.decompress(some, 4 * _PIECE)
                self._left -= len(found)
                if self._left < 0:
                    raise ProtocolError(f"more than {MAX_DECOMPRESSED} bytes", where=_WHERE)
                if found or stream.eof:
                    return found
                if not some:
                    break
        except zlib.error as error:
            raise ProtocolError(f"not zlib: {error}", where=_WHERE) from None
        raise ProtocolError("cut off", where=_WHERE)


def _version(content: _Inflated) -> DataVersion:
    return DataVersion.from_plain(fastjson.loads(content.counted(), most=MAX_LENIENT))


def _topics(content: _Inflated) -> Generator[TopicConfig, None, bytes]:
    """Returns what comes behind them: the filter servers."""
    try:
        for _ in range(content.number()):
            yield TopicConfig.from_text(content.counted().decode())
        filter_servers = content.counted()
        content.end()
        return filter_servers
    except UnicodeDecodeError as error:
        raise ProtocolError(f"not text: {error}", where=_WHERE) from None


def _counted(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data
