"""Reads option values out of Spark's map of strings: names without regard to case, values with their errors.

Which names exist is known here: an unknown one is refused with the one that was probably meant.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from aiorocket.spark.offsets import OptionError

__all__ = ("NAMES", "OptionText")

_CONNECTION = (
    "nameServer endpoints namespace accessKey secretKey securityToken credentialsFile "
    "tls tlsCa tlsCert tlsKey tlsVerify idleTimeout addressMap groupId topic"
)
_SOURCE = (
    "topicPattern assign startingOffsets endingOffsets startingTimestamp endingTimestamp startingOffsetsByTimestamp "
    "endingOffsetsByTimestamp startingOffsetsByTimestampStrategy maxOffsetsPerTrigger minOffsetsPerTrigger "
    "maxTriggerDelay minPartitions maxPartitions rowsPerPartition parallelism failOnDataLoss tags sqlFilter "
    "commitOffsets includeProperties columns verifyCrc decompress pullBatchSize pullsInFlight pullTimeout legacySchema"
)
_SINK = "sinkMode batchSize sendsInFlight sendTimeout compressOver ledgerTopic queryId checkImmunity checkRound"

#: Every option there is, as it is written.
NAMES = tuple(f"{_CONNECTION} {_SOURCE} {_SINK}".split())
_BY_LOWER = {name.lower(): name for name in NAMES}

#: What Spark itself puts among the options of a source or a sink, or among the properties of a table.
_SPARKS_OWN = {
    "path", "paths", "checkpointlocation", "queryname", "outputmode", "owner", "provider", "comment", "external",
}  # fmt: skip

#: What the same thing is called elsewhere: in the Kafka source, in the old connector, in RocketMQ's clients.
_ELSEWHERE = {
    "kafka.bootstrap.servers": "nameServer",
    "namesrvaddr": "nameServer",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "includeheaders": "includeProperties",
    "kafka.group.id": "groupId",
    "groupidprefix": "groupId",
    "consumergroup": "groupId",
    "producergroup": "groupId",
    "maxrecordsperpartition": "rowsPerPartition",
    "subexpression": "tags",
    "mode": "sinkMode",
    "kafkaconsumer.polltimeoutms": "pullTimeout",
    "kafka.max.poll.records": "pullBatchSize",
    "kafka.batch.size": "batchSize",
    "kafka.delivery.timeout.ms": "sendTimeout",
    "kafka.ssl.truststore.location": "tlsCa",
    "kafka.ssl.keystore.location": "tlsCert",
    "kafka.ssl.key.location": "tlsKey",
    "kafka.security.protocol": "tls",
    "kafka.sasl.mechanism": "accessKey, with secretKey",
    "kafka.sasl.jaas.config": "accessKey, with secretKey, or credentialsFile",
    "kafka.compression.type": "compressOver (bytes; zlib)",
    "kafka.enable.idempotence": "sinkMode=idempotent",
    "kafka.transactional.id": "sinkMode=exactlyOnce",
    "fetchoffset.numretries": "pullTimeout",
    "fetchoffset.retryintervalms": "pullTimeout",
    "bootstrap.servers": "nameServer",
}
#: What a whole family of Kafka's options is called here.
_FAMILIES = {
    "kafka.ssl.": "tls=true, with tlsCa, tlsCert and tlsKey (PEM files, without passwords)",
    "kafka.sasl.": "accessKey, with secretKey, or credentialsFile",
}

_NO_PUSH_DOWN = (
    "pushDown is no option any more: Spark (4.3 and earlier) keeps the filters of one query with the DataFrame, and "
    "the next query on it would lack rows. Say what is to be read by topic, assign, tags, sqlFilter, and "
    "startingOffsets or startingTimestamp with endingOffsets or endingTimestamp"
)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?", re.ASCII)


class OptionText:
    """The options of one query. Values are stripped; an empty one counts as not given."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        for given, value in options.items():
            lower = given.lower()
            name = _BY_LOWER.get(lower)
            if lower == "pushdown":
                raise OptionError(_NO_PUSH_DOWN)
            if name is None:
                # A table keeps each option a second time, under this prefix.
                if lower in _SPARKS_OWN or lower.removeprefix("option.") in _BY_LOWER:
                    continue
                raise OptionError(_unknown(given))
            if str(value).strip():
                self._values[name] = str(value).strip()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def given(self) -> frozenset[str]:
        return frozenset(self._values)

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def one_of(self, name: str, alias: str) -> str | None:
        """The value of either; they may both be there when they say the same."""
        value, other = self.text(name), self.text(alias)
        if value is not None and other is not None and value != other:
            raise OptionError(f"{name}={value!r:.100} and {alias}={other!r:.100} mean the same thing: give one")
        return other if value is None else value

    def only(self, *names: str) -> str | None:
        """Which of ``names`` is given; more than one contradict each other."""
        given = [name for name in names if name in self._values]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} contradict each other: give one")
        return given[0] if given else None

    def needs(self, name: str, other: str) -> None:
        if name in self._values and other not in self._values:
            raise OptionError(f"{name} needs {other}, which is not given")

    def excludes(self, name: str, other: str) -> None:
        self.only(name, other)

    def ordered(self, low: str, high: str) -> None:
        """OptionError when both are given and the first is the greater."""
        least, most = self.optional_number(low), self.optional_number(high)
        if least is not None and most is not None and least > most:
            raise OptionError(f"{low}={least} is above {high}={most}")

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(f"{name}={value!r:.50}: true or false")
        return value.lower() == "true"

    def number(self, name: str, *, default: int | None = None) -> int:
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if value is None or not value.isascii() or not value.isdigit() or int(value) < 1:
            raise OptionError(f"{name}={value!r:.50}: a whole number, 1 or more")
        return int(value)

    def optional_number(self, name: str) -> int | None:
        return self.number(name) if name in self._values else None

    def seconds(self, name: str, *, default: float) -> float:
        value = self._values.get(name)
        if value is None:
            return default
        match = _TIME.fullmatch(value.lower())
        if match is None or not int(match[1]):
            raise OptionError(f"{name}={value!r:.50}: a time above 0 such as 500ms, 10s, 15m, or 1000 (milliseconds)")
        return int(match[1]) * _SECONDS[match[2] or "ms"]

    def choice(self, name: str, *choices: str) -> str:
        """One of ``choices``, without regard to case; the first is the default."""
        value = self._values.get(name, choices[0])
        for choice in choices:
            if choice.lower() == value.lower():
                return choice
        raise OptionError(f"{name}={value!r:.50}: one of {', '.join(choices)}{_nearest(value, choices)}")

    def parts(self, name: str, separator: str) -> tuple[str, ...]:
        """The parts of a list, without empty ones."""
        return tuple(part.strip() for part in self._values.get(name, "").split(separator) if part.strip())

    def names(self, name: str, known: tuple[str, ...]) -> tuple[str, ...]:
        """A comma list of names that are in ``known``, each once."""
        found = self.parts(name, ",")
        for part in found:
            if part not in known:
                raise OptionError(f"{name}: {part!r:.100} is not one of {', '.join(known)}{_nearest(part, known)}")
        if not found or len(set(found)) != len(found):
            raise OptionError(f"{name}={self._values.get(name)!r:.200}: one name or more, each once")
        return found

    def pattern(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise OptionError(f"{name}={value!r:.200} is no regular expression: {error}") from None
        return value


def _unknown(given: str) -> str:
    meant = _ELSEWHERE.get(given.lower())
    if meant is not None:
        return f"option {given} does not exist here: it is called {meant}"
    for family, meant in _FAMILIES.items():
        if given.lower().startswith(family):
            return f"option {given:.100} does not exist here: what it is for is {meant}"
    if given.lower().startswith("kafka."):
        return f"option {given:.100} is one of Kafka's clients, and nothing here is like it: leave it out"
    begun = [name for lower, name in _BY_LOWER.items() if len(given) > 2 and lower.startswith(given.lower())]
    meant = f"; did you mean {begun[0]}?" if len(begun) == 1 else _nearest(given, NAMES)
    return f"option {given!r:.100} is unknown{meant}"


def _nearest(given: str, known: tuple[str, ...]) -> str:
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), lower, n=1, cutoff=0.6)  # below that any word is near to something
    return f"; did you mean {lower[near[0]]}?" if near else ""
