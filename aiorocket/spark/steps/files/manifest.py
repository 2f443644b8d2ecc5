"""The manifest of an archive: which files are in it, and which offsets of which queue they hold.

``_manifest/NNNNNNNNNN.json`` is one commit of the archive step, ``_manifest/compact-NNNNNNNNNN.json`` one generation of
the compact step, which stands for all commits up to its ``last``. The newest generation and the commits after it make
the archive; a data file that they don't name is not part of it. Both kinds appear at once or not at all, and never
under a name that is taken, so of two writers with the same plan one fails and has changed nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from aiorocket.errors import BadNameError, RocketError, UsageError
from aiorocket.model import Queue
from aiorocket.runtime.clock import WallClock
from aiorocket.runtime.entropy import Entropy
from aiorocket.spark.steps.files.folder import Folder

__all__ = (
    "Archive",
    "ArchiveConflictError",
    "Commit",
    "DataFile",
    "FileOrigin",
    "Span",
    "Snapshot",
    "Superseded",
    "partition_folder",
    "partition_of",
    "spans",
)

DATA, MANIFEST, STAGING, CHECKPOINT = "data", "_manifest", "_staging", "_checkpoint"
#: Columns of a table that are in the names of folders.
PARTITIONS = ("topic", "dt", "hour")
ABOUT = "_archive.json"
_FORMAT_VERSION = 1
_COMPACT = "compact-"
#: A reader that meets a compaction's clean-up lists again.
_TRIES = 5


class ArchiveConflictError(RocketError):
    """Another run has written what this one was about to write, or offsets that are archived already came again."""


class Span(NamedTuple):
    """Offsets ``[begin, end)`` of a queue, of which ``rows`` are there."""

    begin: int
    end: int
    rows: int

    @property
    def missing(self) -> int:
        return self.end - self.begin - self.rows


class Superseded(NamedTuple):
    """A file that compaction replaced with ``generation``, at ``at_ms`` (wall clock)."""

    path: str
    generation: int
    at_ms: int


@dataclass(frozen=True)
class DataFile:
    """One Parquet file: ``path`` from the archive's folder, what it holds of each queue, and its ``tail_of``, zeros
    where nobody took it."""

    path: str
    rows: int
    bytes: int
    queues: Mapping[Queue, Span]
    tail: int = 0
    crc: int = 0

    def as_json(self) -> dict[str, Any]:
        queues = [[*queue, *self.queues[queue]] for queue in sorted(self.queues)]
        value = {"path": self.path, "rows": self.rows, "bytes": self.bytes, "queues": queues}
        return {**value, "tail": self.tail, "crc": self.crc}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DataFile:
        queues = {Queue(*entry[:3]): Span(*entry[3:]) for entry in value["queues"]}
        tail = value.get("tail", 0), value.get("crc", 0)
        return cls(value["path"], value["rows"], value["bytes"], queues, *tail)


@dataclass(frozen=True)
class Commit:
    """What one batch adds. ``query`` and ``batch`` name the streaming query's batch, so that its replay is known; both
    stay empty in direct mode, where the manifest itself is the checkpoint."""

    files: Sequence[DataFile]
    ranges: Mapping[Queue, Span]
    query: str = ""
    batch: int = -1


@dataclass(frozen=True)
class Snapshot:
    """An archive at one moment. ``queues`` says which offsets are accounted for and how many rows of them are there;
    ``gaps`` are offsets that were gone at the broker before they could be archived, as (queue, begin, end);
    ``queries`` the newest batch of each streaming query that wrote here."""

    last: int = -1
    generation: int = 0
    files: tuple[DataFile, ...] = ()
    queues: Mapping[Queue, Span] = field(default_factory=dict)
    gaps: tuple[tuple[Queue, int, int], ...] = ()
    queries: Mapping[str, int] = field(default_factory=dict)
    superseded: tuple[Superseded, ...] = ()

    @property
    def rows(self) -> int:
        return sum(span.rows for span in self.queues.values())

    @property
    def version(self) -> int:
        """How many commits and generations there were; each makes it larger by one."""
        return self.last + 1 + self.generation

    def check_topics(self, topics: Iterable[str] | None) -> None:
        """BadNameError for one of ``topics`` that nothing is archived of."""
        known = sorted({queue.topic for queue in self.queues})
        if lacking := sorted(set(topics or ()).difference(known)):
            raise BadNameError(f"topic {lacking[0]!r} is not in the archive, which has {', '.join(known) or 'none'}")

    def done(self, query: str, batch: int) -> bool:
        """Whether this batch is in the archive."""
        return batch <= self.queries.get(query, -1)

    def missing(self) -> dict[Queue, int]:
        """How many rows each queue lacks between its first and its last archived offset; complete ones left out."""
        return {queue: span.missing for queue, span in self.queues.items() if span.missing}

    def ranges(self, topics: Sequence[str] | None = None) -> dict[Queue, tuple[int, int]]:
        """The offsets ``[begin, end)`` that are accounted for, of ``topics`` or all."""
        return {
            queue: (span.begin, span.end)
            for queue, span in self.queues.items()
            if topics is None or queue.topic in topics
        }

    def since(self, known: Snapshot) -> tuple[list[str], list[DataFile]]:
        """The files that a table which has come to ``known`` has and is to lose, and those it has not heard of. What
        came and went in between is in neither."""

        def heard_of(path: str) -> bool:
            origin = FileOrigin.of(path)
            return origin is not None and origin.decided(known)

        stale = [old.path for old in self.superseded if old.generation > known.generation and heard_of(old.path)]
        return stale, [file for file in self.files if not heard_of(file.path)]

    def plus(self, commit: Commit) -> Snapshot:
        """The snapshot after ``commit``; ArchiveConflictError when it brings offsets that are there already, UsageError
        when its rows cannot be what its ranges say."""
        queues, gaps = dict(self.queues), list(self.gaps)
        counted: dict[Queue, int] = {}
        for file in commit.files:
            for queue, span in file.queues.items():
                counted[queue] = counted.get(queue, 0) + span.rows
                allowed = commit.ranges.get(queue)
                if allowed is None or span.begin < allowed.begin or span.end > allowed.end:
                    raise UsageError(f"{file.path} holds {queue} [{span.begin}, {span.end}), the batch says {allowed}")
        for queue, (begin, end, rows) in commit.ranges.items():
            if counted.get(queue, 0) != rows or not 0 <= rows <= end - begin:
                raise UsageError(f"{queue}: {counted.get(queue, 0)} rows in files, {rows} said, range [{begin}, {end})")
            before = queues.get(queue)
            if before is None:
                queues[queue] = Span(begin, end, rows)
                continue
            if begin < before.end:
                raise ArchiveConflictError(
                    f"{queue}: offsets {begin} to {min(end, before.end) - 1} are archived already (up to "
                    f"{before.end - 1}). Either a stale checkpoint was used beside this archive: remove its "
                    f"{CHECKPOINT} folder, and the archive goes on where its manifest ends. Or the topic was deleted "
                    "and made anew: archive it to another folder"
                )
            if begin > before.end:
                gaps.append((queue, before.end, begin))
            queues[queue] = Span(before.begin, end, before.rows + rows)
        queries = dict(self.queries)
        if commit.query:
            queries[commit.query] = max(commit.batch, queries.get(commit.query, -1))
        files = (*self.files, *commit.files)
        return replace(self, last=self.last + 1, files=files, queues=queues, gaps=tuple(gaps), queries=queries)

    def select(
        self, topics: Sequence[str] | None = None, since: datetime | None = None, until: datetime | None = None
    ) -> list[DataFile]:
        """The files that can hold rows of ``topics`` stored in ``[since, until)``, judged by their folders."""
        first, end = _hour(since, "since"), _hour(until, "until")
        chosen = []
        for file in self.files:
            topic, dt, hour = partition_of(file.path)
            at = f"{dt}T{hour}"
            if (topics is None or topic in topics) and (first is None or at >= first) and (end is None or at <= end):
                chosen.append(file)
        return chosen


def _hour(at: datetime | None, name: str) -> str | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise UsageError(f"{name}={at.isoformat()} has no time zone: give it one, for instance tzinfo=UTC")
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H")


#: 9999-12-31T23, in hours after 1970-01-01T00 UTC: the last that a folder can be named after.
LAST_HOUR = 2_932_896 * 24 + 23


def partition_folder(topic: str, hours: int) -> str:
    """The folder of ``topic`` and of the hour ``hours`` after 1970-01-01T00 UTC, with Spark's escapes."""
    at = datetime.fromtimestamp(hours * 3600, UTC)
    return f"topic={quote(topic, safe='|')}/dt={at:%Y-%m-%d}/hour={at:%H}"


class FileOrigin(NamedTuple):
    """What brought a file: a commit, or (``compacted``) a generation."""

    compacted: bool
    number: int

    def __str__(self) -> str:
        return f"{_COMPACT if self.compacted else ''}{self.number:010d}"

    @classmethod
    def of(cls, path: str) -> FileOrigin | None:
        """The origin of a data file, or of a folder in ``_staging``; None for a name that is not the archive's."""
        name = path.rpartition("/")[2]
        number, dash, _ = name.removeprefix(_COMPACT).partition("-")
        return cls(name.startswith(_COMPACT), int(number)) if dash and len(number) == 10 and number.isdigit() else None

    def decided(self, snapshot: Snapshot) -> bool:
        """Whether this commit or generation is over: then a file of it that ``snapshot`` does not name never counts."""
        return self.number <= (snapshot.generation if self.compacted else snapshot.last)


def partition_of(path: str) -> tuple[str, str, str]:
    """(topic, dt, hour) of a data file, from its path."""
    topic, dt, hour = path.split("/")[-4:-1]
    return unquote(topic.removeprefix("topic=")), dt.removeprefix("dt="), hour.removeprefix("hour=")


class Archive:
    """An archive on disk. Nothing is kept in memory: ``snapshot()`` reads what is there."""

    def __init__(self, folder: Folder, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self.id: str = about["id"]
        self.format: str = about["format"]
        self.columns: tuple[str, ...] = tuple(about["columns"])
        #: Whether the archive holds a selection of messages: then counts cannot prove that none is missing.
        self.filtered: bool = about["filtered"]

    @staticmethod
    def there(path: str) -> bool:
        return Folder(path).exists(ABOUT)

    @classmethod
    def open(cls, path: str) -> Archive:
        """UsageError where no archive is, or one that a later release has written."""
        folder = Folder(path)

        def known(about: dict[str, Any]) -> Archive:
            if about["version"] != _FORMAT_VERSION:
                raise UsageError(
                    f"{path} is an archive of format {about['version']}, this release knows {_FORMAT_VERSION}"
                )
            return cls(folder, about)

        try:
            found: Archive = folder.json(ABOUT, known)
        except FileNotFoundError:
            below = f"; there is one at {path}/archive" if folder.exists(f"archive/{ABOUT}") else ""  # a pipeline's
            raise UsageError(f"no archive at {path}: {folder.uri(ABOUT)} does not exist{below}") from None
        return found

    @classmethod
    def create(cls, path: str, *, format: str, columns: Sequence[str], filtered: bool = False) -> Archive:
        """Opens the archive at ``path`` or begins one; UsageError when the one there is of another shape."""
        folder = Folder(path)
        about = {
            "version": _FORMAT_VERSION, "id": Entropy().token(8).hex(), "format": format, "columns": list(columns),
            "filtered": filtered, "created_ms": WallClock().wall_ms(),
        }  # fmt: skip
        try:
            folder.create(ABOUT, _encode(about))
        except FileExistsError:
            there = cls.open(path)
            for name, asked in (("format", format), ("columns", tuple(columns)), ("filtered", filtered)):
                found = getattr(there, name)
                if found != asked:
                    raise UsageError(
                        f"the archive at {path} was begun with {name}={found!r}, now {name}={asked!r} is asked for: "
                        "use another folder"
                    ) from None
            return there
        return cls(folder, about)

    def snapshot(self) -> Snapshot:
        """The archive now."""
        return self._tried(self._read)

    def publish(self, snapshot: Snapshot, commit: Commit) -> Snapshot:
        """Makes ``commit`` the next one after ``snapshot``; ArchiveConflictError when another run was quicker."""
        after = snapshot.plus(commit)
        entry = {
            "commit": after.last,
            "at_ms": WallClock().wall_ms(),
            "query": commit.query,
            "batch": commit.batch,
            "ranges": [[*queue, *commit.ranges[queue]] for queue in sorted(commit.ranges)],
            "gaps": [[*queue, begin, end] for queue, begin, end in after.gaps[len(snapshot.gaps) :]],
            "files": [file.as_json() for file in after.files[len(snapshot.files) :]],
        }
        self._create(f"{after.last:010d}.json", entry, commit.files, snapshot.generation)
        return after

    def publish_generation(self, snapshot: Snapshot, removed: Iterable[str], added: Sequence[DataFile]) -> Snapshot:
        """Replaces files of ``snapshot`` by others with the same rows, in one step for every reader.

        Superseded files that ``snapshot`` lists and that do not exist any more are forgotten.
        """
        gone = set(removed)
        unknown = gone - {file.path for file in snapshot.files}
        if unknown:
            raise UsageError(f"{sorted(unknown)[0]} is no file of this archive")
        before, after = _by_folder(f for f in snapshot.files if f.path in gone), _by_folder(added)
        if before != after:
            different = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
            where, queue = different[0]
            raise RocketError(
                f"{where}, {queue}: {before.get((where, queue))} before, {after.get((where, queue))} after "
                f"({len(different)} differences in all): nothing was replaced"
            )
        number, now = snapshot.generation + 1, WallClock().wall_ms()
        kept = [file for file in snapshot.files if file.path not in gone]
        new = replace(
            snapshot,
            generation=number,
            files=(*kept, *added),
            superseded=(
                *(old for old in snapshot.superseded if self.folder.exists(old.path)),
                *(Superseded(file.path, number, now) for file in snapshot.files if file.path in gone),
            ),
        )
        self._create(f"{_COMPACT}{number:010d}.json", {"at_ms": now, **_as_json(new)}, added, number)
        return new

    def forget_replaced(self, snapshot: Snapshot) -> None:
        """Removes the manifest files that ``snapshot``'s generation stands for."""
        if not snapshot.generation:
            return
        newest = self.folder.json(f"{MANIFEST}/{_COMPACT}{snapshot.generation:010d}.json")
        least = {"commit": newest["last"] + 1, "generation": snapshot.generation}
        for name in self.folder.names(MANIFEST):
            kind, number = _parse(name)
            if kind and number < least[kind]:
                self.folder.remove(f"{MANIFEST}/{name}")

    def _create(self, name: str, entry: Mapping[str, Any], files: Iterable[DataFile], generation: int) -> None:
        """Writes a manifest file that brings ``files`` and whose writer knows the generations up to ``generation``."""
        try:
            self.folder.create(f"{MANIFEST}/{name}", _encode(entry))
            taken = self._is_folded(name, {file.path for file in files}, generation)
        except FileExistsError:
            taken = True
        if taken:
            raise ArchiveConflictError(
                f"{self.folder.uri(MANIFEST)}/{name} was written by another run meanwhile: nothing of this one is "
                "in the archive. Run one at a time"
            )

    def _is_folded(self, name: str, paths: set[str], generation: int) -> bool:
        """Whether ``name`` was free only because another run's file of that name has been removed: a newer generation
        stands for it, and for none of ``paths``. The file is then removed again."""
        newest = self._tried(lambda: self._generation(self._numbers()["generation"], above=generation))
        kind, number = _parse(name)
        if newest.generation <= generation or (kind == "commit" and number > newest.last):
            return False
        known = {file.path for file in newest.files} | {old.path for old in newest.superseded}
        if not known.isdisjoint(paths):
            return False  # it was folded after it was written
        self.folder.remove(f"{MANIFEST}/{name}")
        return True

    def _tried(self, look: Callable[[], Snapshot]) -> Snapshot:
        for _ in range(_TRIES - 1):
            try:
                return look()
            except FileNotFoundError:
                continue  # a newer generation has replaced what was listed
        return look()

    def _numbers(self) -> dict[str, list[int]]:
        numbers: dict[str, list[int]] = {"commit": [], "generation": [], "": []}
        for name in self.folder.names(MANIFEST):
            kind, number = _parse(name)
            numbers[kind].append(number)
        return numbers

    def _generation(self, numbers: Iterable[int], above: int = 0) -> Snapshot:
        """The newest of these generations, if there is one above ``above``."""
        newest = max(numbers, default=0)
        if newest <= above:
            return Snapshot()
        found: Snapshot = self.folder.json(f"{MANIFEST}/{_COMPACT}{newest:010d}.json", _from_json)
        return found

    def _read(self) -> Snapshot:
        numbers = self._numbers()
        snapshot = self._generation(numbers["generation"])
        for number in sorted(numbers["commit"]):
            if number <= snapshot.last:
                continue
            if number != snapshot.last + 1:
                raise FileNotFoundError(
                    f"{self.folder.uri(MANIFEST)}/{snapshot.last + 1:010d}.json is not there, {number:010d}.json is"
                )
            snapshot = snapshot.plus(self.folder.json(f"{MANIFEST}/{number:010d}.json", _commit))
        return snapshot


def _parse(name: str) -> tuple[str, int]:
    stem, _, suffix = name.partition(".")
    number = stem.removeprefix(_COMPACT)
    if suffix != "json" or not number.isdigit():
        return "", 0
    return ("commit" if number == stem else "generation"), int(number)


def _commit(entry: Mapping[str, Any]) -> Commit:
    ranges = {Queue(*item[:3]): Span(*item[3:]) for item in entry["ranges"]}
    return Commit([DataFile.from_json(item) for item in entry["files"]], ranges, entry["query"], entry["batch"])


def _as_json(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "last": snapshot.last,
        "generation": snapshot.generation,
        "queues": [[*queue, *snapshot.queues[queue]] for queue in sorted(snapshot.queues)],
        "gaps": [[*queue, begin, end] for queue, begin, end in snapshot.gaps],
        "queries": dict(snapshot.queries),
        "superseded": [list(old) for old in snapshot.superseded],
        "files": [file.as_json() for file in snapshot.files],
    }


def _from_json(value: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        last=value["last"],
        generation=value["generation"],
        queues={Queue(*item[:3]): Span(*item[3:]) for item in value["queues"]},
        gaps=tuple((Queue(*item[:3]), item[3], item[4]) for item in value["gaps"]),
        queries=value["queries"],
        superseded=tuple(Superseded(*item) for item in value["superseded"]),
        files=tuple(DataFile.from_json(item) for item in value["files"]),
    )


def spans(files: Iterable[DataFile]) -> dict[Queue, Span]:
    """What the files hold of each queue together."""
    found: dict[Queue, Span] = {}
    for file in files:
        for queue, span in file.queues.items():
            old = found.get(queue, Span(span.begin, span.end, 0))
            found[queue] = Span(min(old.begin, span.begin), max(old.end, span.end), old.rows + span.rows)
    return found


def _by_folder(files: Iterable[DataFile]) -> dict[tuple[str, Queue], Span]:
    folders: dict[str, list[DataFile]] = {}
    for file in files:
        folders.setdefault(file.path.rpartition("/")[0], []).append(file)
    return {(where, queue): span for where, some in folders.items() for queue, span in spans(some).items()}


def _encode(value: object) -> bytes:
    return (json.dumps(value, separators=(",", ":")) + "\n").encode()
