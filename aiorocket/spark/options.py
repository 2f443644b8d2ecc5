"""The options of ``spark.read.format("rocketmq")`` and ``df.write.format("rocketmq")``, checked and typed.

Names and meanings follow Spark's Kafka source where it has the same thing. Option names are case-insensitive, as all of
Spark's; a time is a number with a unit (``500ms``, ``10s``, ``15m``, ``1h``), or milliseconds without one. Everything
here is plain data: it travels with the reader into every task.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from aiorocket.config.addresses import read_address_map
from aiorocket.errors import ConfigError, UsageError
from aiorocket.model import Queue, check_group
from aiorocket.spark.columns import ROW_COLUMNS
from aiorocket.spark.offsets import (
    EARLIEST,
    LATEST,
    OptionError,
    parse_offsets,
    parse_queues,
    parse_time,
    parse_timestamps,
    queue_path,
    time_text,
    topic_name,
)
from aiorocket.spark.option_text import OptionText
from aiorocket_protocol import ALL_TAGS, SQL92, TAG

__all__ = ("ConnectionOptions", "OffsetSpec", "OptionError", "SinkOptions", "SourceOptions")

_log = logging.getLogger(__name__)

#: What a batch query leaves aside with a warning, as the Kafka source does: there is no trigger in it.
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitOffsets")
_NO_OPTIONS = (
    ". Spark gives a Python source nothing of the OPTIONS of CREATE TABLE: use CREATE TEMPORARY VIEW … USING rocketmq "
    "OPTIONS (…), or SELECT … FROM table WITH (…)"
)
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to reach a cluster; equal connections share one client in a process. Times in seconds.

    ``credentials_file`` is read where the connection is opened (driver and executors), so that the secret is not in
    the plan. Secrets are not in the repr.
    """

    name_servers: tuple[str, ...]
    namespace: str = ""
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_verify: bool = True
    idle_timeout: float = 60.0
    #: FROM and TO; without any, what the environment of the process says.
    address_map: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, text: OptionText) -> ConnectionOptions:
        servers = text.one_of("nameServer", "endpoints")
        if servers is None:
            hint = "" if text.given else _NO_OPTIONS
            raise OptionError(f"nameServer is missing: the name servers, HOST:PORT, several separated by ';'{hint}")
        text.needs("secretKey", "accessKey")
        text.needs("accessKey", "secretKey")
        text.needs("securityToken", "accessKey")
        text.excludes("credentialsFile", "accessKey")
        tls = text.flag("tls", default=False)
        for name in ("tlsCa", "tlsCert", "tlsKey", "tlsVerify"):
            if name in text and not tls:
                raise OptionError(f"{name} is given without tls: set tls=true, or leave {name} out")
        text.needs("tlsKey", "tlsCert")
        return cls(
            name_servers=_addresses(servers),
            namespace=text.text("namespace") or "",
            access_key=text.text("accessKey"),
            secret_key=text.text("secretKey"),
            security_token=text.text("securityToken"),
            credentials_file=text.text("credentialsFile"),
            tls=tls,
            tls_ca=text.text("tlsCa"),
            tls_cert=text.text("tlsCert"),
            tls_key=text.text("tlsKey"),
            tls_verify=text.flag("tlsVerify", default=True),
            idle_timeout=text.seconds("idleTimeout", default=60.0),
            address_map=_address_map(text.text("addressMap") or ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpec:
    """Where reading starts or ends, before anybody was asked about it.

    ``offsets`` belongs to the kind "offsets" (with EARLIEST and LATEST in it), ``millis`` to "timestamp", ``by_queue``
    and ``by_topic`` to "timestamps" (milliseconds since 1970 UTC).
    """

    kind: Literal["earliest", "latest", "group", "offsets", "timestamp", "timestamps"]
    offsets: Mapping[Queue, int] = field(default_factory=dict)
    millis: int = 0
    by_queue: Mapping[Queue, int] = field(default_factory=dict)
    by_topic: Mapping[str, int] = field(default_factory=dict)

    def millis_for(self, queue: Queue) -> int | None:
        """The timestamp for ``queue``, None where none was given."""
        if self.kind == "timestamp":
            return self.millis
        return self.by_queue.get(queue, self.by_topic.get(queue.topic))

    @classmethod
    def read(cls, text: OptionText, side: str) -> OffsetSpec | None:
        """From ``startingOffsets``, ``startingTimestamp`` or ``startingOffsetsByTimestamp`` (``side`` "starting")."""
        name = text.only(f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp")
        value = text.text(name) if name else None
        if name is None or value is None:
            return None
        if name.endswith("ByTimestamp"):
            by_queue, by_topic = parse_timestamps(value, option=name)
            return cls(kind="timestamps", by_queue=by_queue, by_topic=by_topic)
        if name.endswith("Timestamp"):
            return cls(kind="timestamp", millis=parse_time(value, option=name))
        match value.lower():
            case "earliest":
                return cls(kind="earliest")
            case "latest":
                return cls(kind="latest")
            case "group":
                return cls(kind="group")
        if not value.startswith("{"):
            raise OptionError(f"{name}={value!r:.100}: earliest, latest, group, or JSON")
        return cls(kind="offsets", offsets=parse_offsets(value, option=name))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Of a read or a stream. Times in seconds; None where nothing was asked for.

    ``for_batch`` and ``for_stream`` check what only the use shows, and fill in where reading starts and ends.
    """

    connection: ConnectionOptions
    #: One of these three is given.
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    assign: tuple[Queue, ...] = ()
    starting: OffsetSpec | None = None
    ending: OffsetSpec | None = None
    #: What to do where nothing was stored at a starting timestamp or later: fail, or begin at the end.
    starting_offsets_by_timestamp_strategy: Literal["error", "latest"] = "error"
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    min_partitions: int | None = None
    max_partitions: int | None = None
    rows_per_partition: int | None = None
    #: How many tasks the executors run at a time, where whoever made the query knew.
    parallelism: int | None = None
    fail_on_data_loss: bool = True
    #: Only messages with one of these tags; () for all.
    tags: tuple[str, ...] = ()
    sql_filter: str | None = None
    group_id: str | None = None
    commit_offsets: bool = False
    include_properties: bool = True
    #: The columns asked for by ``columns``; () for all of them.
    columns: tuple[str, ...] = ()
    verify_crc: bool = False
    decompress: bool = True
    pull_batch_size: int = 1024
    pulls_in_flight: int = 16
    pull_timeout: float = 10.0
    legacy_schema: bool = False
    #: The options that were given, in their proper spelling: for checks that depend on the use.
    given: frozenset[str] = frozenset()

    @property
    def expression(self) -> tuple[str, str]:
        """What a pull carries: the filter expression and its type, ``("A || B", "TAG")`` or ``(…, "SQL92")``."""
        if self.sql_filter is not None:
            return self.sql_filter, SQL92
        return " || ".join(self.tags) or ALL_TAGS, TAG

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """OptionError for an unknown name (with the nearest right one), a malformed value, or a contradiction.

        Options of the sink are known here too, and the other way round, so that one set can serve both.
        """
        text = OptionText(options)
        found = cls(
            connection=ConnectionOptions.read(text),
            topics=_topics(text),
            topic_pattern=text.pattern("topicPattern"),
            assign=parse_queues(text.text("assign") or "", option="assign") if "assign" in text else (),
            starting=OffsetSpec.read(text, "starting"),
            ending=OffsetSpec.read(text, "ending"),
            starting_offsets_by_timestamp_strategy=_strategy(text),
            max_offsets_per_trigger=text.optional_number("maxOffsetsPerTrigger"),
            min_offsets_per_trigger=text.optional_number("minOffsetsPerTrigger"),
            max_trigger_delay=text.seconds("maxTriggerDelay", default=900.0),
            min_partitions=text.optional_number("minPartitions"),
            max_partitions=text.optional_number("maxPartitions"),
            rows_per_partition=text.optional_number("rowsPerPartition"),
            parallelism=text.optional_number("parallelism"),
            fail_on_data_loss=text.flag("failOnDataLoss", default=True),
            tags=_tags(text),
            sql_filter=text.text("sqlFilter"),
            group_id=_group(text),
            commit_offsets=text.flag("commitOffsets", default=False),
            include_properties=text.flag("includeProperties", default=True),
            columns=_columns(text),
            verify_crc=text.flag("verifyCrc", default=False),
            decompress=text.flag("decompress", default=True),
            pull_batch_size=text.number("pullBatchSize", default=1024),
            pulls_in_flight=text.number("pullsInFlight", default=16),
            pull_timeout=text.seconds("pullTimeout", default=10.0),
            legacy_schema=text.flag("legacySchema", default=False),
            given=text.given,
        )
        found._check(text)
        return found

    def for_batch(self) -> SourceOptions:
        """Self, with earliest to latest where nothing was said. Stream-only options get a warning and are ignored."""
        starting = self.starting or OffsetSpec(kind="earliest")
        ending = self.ending or OffsetSpec(kind="latest")
        if starting.kind == "latest" or LATEST in starting.offsets.values():
            raise OptionError("startingOffsets=latest makes no batch query: give earliest, an offset or a time")
        if ending.kind == "earliest" or EARLIEST in ending.offsets.values():
            raise OptionError("endingOffsets=earliest makes no batch query: give latest, an offset or a time")
        _check_order(starting, ending)
        if ignored := [name for name in _STREAM_ONLY if name in self.given]:
            _log.warning("%s: ignored in a batch query", ", ".join(ignored))
        return replace(self, starting=starting, ending=ending)

    def for_stream(self) -> SourceOptions:
        """Self, beginning at the latest offsets where nothing was said. OptionError for an end: a stream has none."""
        if refused := [name for name in _BATCH_ONLY if name in self.given]:
            raise OptionError(f"{', '.join(refused)}: a stream has no end; use a batch query (spark.read) for that")
        return replace(self, starting=self.starting or OffsetSpec(kind="latest"))

    def _check(self, text: OptionText) -> None:
        if not (self.topics or self.topic_pattern or self.assign):
            raise OptionError("what to read is missing: give one of topic, topicPattern and assign")
        text.only("topic", "topicPattern", "assign")
        text.excludes("tags", "sqlFilter")
        for side, spec in (("startingOffsets", self.starting), ("endingOffsets", self.ending)):
            if spec is not None and spec.kind == "group" and self.group_id is None:
                raise OptionError(f"{side}=group needs groupId: the group whose offsets are meant")
        if self.commit_offsets and self.group_id is None:
            raise OptionError("commitOffsets=true needs groupId: the group to commit for")
        text.ordered("minOffsetsPerTrigger", "maxOffsetsPerTrigger")
        text.ordered("minPartitions", "maxPartitions")
        if not self.include_properties and (self.legacy_schema or "properties" in self.columns):
            other = "legacySchema=true" if self.legacy_schema else "columns with properties"
            raise OptionError(f"includeProperties=false contradicts {other}, which has them")
        if self.legacy_schema and self.columns:
            raise OptionError("legacySchema=true contradicts columns: it has the nine columns of the old connector")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Of a write. Times in seconds, sizes in bytes.

    ``topic`` is for rows without one of their own. ``query_id`` (option ``queryId``) names a batch write whose
    repetition must be recognised; a stream has an id of its own. ``check_immunity`` is how long brokers leave half
    messages alone (a batch should take less), ``check_round`` how long they take to ask about all that are open.
    """

    connection: ConnectionOptions
    topic: str | None = None
    mode: Literal["atLeastOnce", "idempotent", "exactlyOnce"] = "atLeastOnce"
    group_id: str | None = None
    batch_size: int = 256
    sends_in_flight: int = 64
    send_timeout: float = 10.0
    compress_over: int = 4096
    ledger_topic: str = "SPARK_LEDGER"
    query_id: str | None = None
    check_immunity: float = 60.0
    check_round: float = 65.0
    fail_on_data_loss: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """OptionError as ``SourceOptions.parse`` raises it."""
        text = OptionText(options)
        topic = text.text("topic")
        if topic is not None and "," in topic:
            raise OptionError(f"topic={topic!r:.200}: the sink takes one; give each row its own in the column topic")
        mode: Literal["atLeastOnce", "idempotent", "exactlyOnce"] = "atLeastOnce"
        match text.choice("sinkMode", "atLeastOnce", "idempotent", "exactlyOnce"):
            case "idempotent":
                mode = "idempotent"
            case "exactlyOnce":
                mode = "exactlyOnce"
        return cls(
            connection=ConnectionOptions.read(text),
            topic=topic_name(topic, "topic") if topic else None,
            mode=mode,
            group_id=_group(text),
            batch_size=text.number("batchSize", default=256),
            sends_in_flight=text.number("sendsInFlight", default=64),
            send_timeout=text.seconds("sendTimeout", default=10.0),
            compress_over=text.number("compressOver", default=4096),
            ledger_topic=topic_name(text.text("ledgerTopic") or "SPARK_LEDGER", "ledgerTopic"),
            query_id=text.text("queryId"),
            check_immunity=text.seconds("checkImmunity", default=60.0),
            check_round=text.seconds("checkRound", default=65.0),
            fail_on_data_loss=text.flag("failOnDataLoss", default=True),
        )


def _address_map(text: str) -> tuple[tuple[str, str], ...]:
    try:
        return tuple(read_address_map(text).items())
    except ConfigError as error:
        raise OptionError(f"addressMap={text!r:.200}: {error}") from None


def _addresses(servers: str) -> tuple[str, ...]:
    addresses = tuple(part.strip() for part in servers.replace(",", ";").split(";") if part.strip())
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise OptionError(f"nameServer: {address!r:.100} is no HOST:PORT")
    if not addresses:
        raise OptionError(f"nameServer={servers!r:.100} names no server; the form is HOST:PORT;HOST:PORT")
    return addresses


def _topics(text: OptionText) -> tuple[str, ...]:
    if "topic" not in text:
        return ()
    topics = text.parts("topic", ",")
    if not topics:
        raise OptionError("topic names no topic; several are separated by ','")
    return tuple(dict.fromkeys(topic_name(topic, "topic") for topic in topics))


def _tags(text: OptionText) -> tuple[str, ...]:
    if "tags" not in text:
        return ()
    tags = text.parts("tags", "||")
    if not tags:
        raise OptionError("tags names no tag; the form is 'A || B', and '*' for all")
    return () if "*" in tags else tuple(dict.fromkeys(tags))


def _group(text: OptionText) -> str | None:
    group = text.text("groupId")
    try:
        return check_group(group) if group else None
    except UsageError as error:
        raise OptionError(f"groupId: {error}") from None


def _strategy(text: OptionText) -> Literal["error", "latest"]:
    return "latest" if text.choice("startingOffsetsByTimestampStrategy", "error", "latest") == "latest" else "error"


def _columns(text: OptionText) -> tuple[str, ...]:
    if "columns" not in text:
        return ()
    return text.names("columns", tuple(ROW_COLUMNS))


def _check_order(starting: OffsetSpec, ending: OffsetSpec) -> None:
    """The rules of the Kafka source: the same queues on both sides, and no end before its start."""
    pairs: list[tuple[str, Mapping[Queue, int], Mapping[Queue, int]]] = []
    if starting.kind == ending.kind == "offsets":
        pairs.append(("Offsets", starting.offsets, ending.offsets))
    if starting.kind == ending.kind == "timestamps" and not (starting.by_topic or ending.by_topic):
        pairs.append(("OffsetsByTimestamp", starting.by_queue, ending.by_queue))
    for name, begins, ends in pairs:
        if different := sorted(begins.keys() ^ ends.keys()):
            raise OptionError(
                f"starting{name} and ending{name} must name the same queues; one has not {queue_path(different[0])}"
            )
        for queue, begin in begins.items():
            if begin >= 0 and 0 <= ends[queue] < begin:
                raise OptionError(
                    f"starting{name} of {queue_path(queue)} is {begin}, and ending{name} only {ends[queue]}"
                )
    if {starting.kind, ending.kind} <= {"timestamp", "timestamps"}:
        queues = [*starting.by_queue, *ending.by_queue]
        queues += [Queue(topic, "", 0) for topic in (*starting.by_topic, *ending.by_topic)]
        for queue in queues or [Queue("", "", 0)]:
            since, until = starting.millis_for(queue), ending.millis_for(queue)
            if since is not None and until is not None and until < since:
                where = f" for {queue_path(queue) if queue.broker_name else queue.topic}" if queue.topic else ""
                raise OptionError(f"starting{where} at {time_text(since)} is after ending at {time_text(until)}")
