"""Dead letters back to the topics they came from: those that a DataFrame selects.

Spark selects, the client's own ``replay`` sends: with the same ``REPLAY_ID``, the same marks beside the dead letters,
and the same rule that what is marked is passed over. So this replay, ``aiorocket dlq replay`` and ``Admin.dlq`` do not
repeat one another, and one that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from aiorocket import Admin, DeadMessage, ReplayOutcome
from aiorocket.errors import UsageError
from aiorocket.spark import bridge
from aiorocket.spark.options import ConnectionOptions
from aiorocket.spark.steps.fields import QUEUE, need
from aiorocket.spark.steps.functions.dead_letters import connection
from aiorocket.spark.steps.report import Progress, ProgressCall, StepReport
from aiorocket_protocol import DLQ_PREFIX

__all__ = ("MOST", "replay")

STEP = "replay"
#: More selected letters than these do not belong into one driver's memory, nor into one replay.
MOST = 1_000_000
_SHOWN = 20
#: Seconds between two letters that progress tells of.
_PAUSE = 1.0
_SAID = {
    "sent": "sent to {}", "selected": "would be sent to {}", "failed": "not sent to {}", "skipped": "was sent before",
}  # fmt: skip


@dataclass
class _Selected:
    """The dead letters of one group that are wanted: their replay ids, and when they were given up (ms)."""

    group: str
    since: int
    until: int
    ids: set[str] = field(default_factory=set)


@dataclass
class _Tally:
    wanted: int
    on_progress: ProgressCall | None
    found: int = 0
    sent: int = 0
    skipped: int = 0
    selected: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)
    failed: int = 0
    stopped: str | None = None
    told: float = -math.inf

    def tell(self, outcome: ReplayOutcome) -> None:
        """Each failure is told, of the others one a second: where progress is lines, letters are too many."""
        self.found += 1
        now = asyncio.get_running_loop().time()
        due = now - self.told >= _PAUSE or outcome.status == "failed" or self.found == self.wanted
        if self.on_progress is not None and due:
            self.told = now
            text = _SAID[outcome.status].format(outcome.topic)
            self.on_progress(Progress(STEP, self.found, self.wanted, f"{outcome.message.msg_id} {text}"))


def replay(
    rows: DataFrame,
    name_server: str,
    *,
    dry_run: bool = False,
    confirm: bool = False,
    rate: float | None = None,
    limit: int | None = None,
    to: str | None = None,
    on_progress: ProgressCall | None = None,
    timeout: float | None = None,
    **options: object,
) -> StepReport:
    """Send the dead letters in ``rows`` (a batch of rows of ``%DLQ%`` topics, with ``topic``, ``offsetMsgId`` and
    ``storeTimestamp``; filter it as you like) to where they came from, or to the topic ``to``, one after the other.

    One of ``dry_run`` (send nothing, count) and ``confirm`` must be True. ``rate`` is messages a second, ``limit`` how
    many are sent at most; ``timeout`` (seconds) ends it early with RequestTimeoutError, ``options`` are those of the
    source for the connection. What was replayed before is skipped, by whichever tool.

    In the report ``rows_in`` are the selected rows, ``rows_out`` the messages sent (in a dry run: that would be sent).
    ``details``: ``sent``, ``failed``, ``skipped``, ``not_found`` (selected, but not in the cluster any more: an archive
    may know more than the brokers), ``left`` (not tried, because of ``limit`` or since it stopped), ``stopped`` (why it
    ended early, or None), ``failures`` (the first 20, with ``replay_id``, ``msg_id`` and ``error``).
    """
    if dry_run == confirm:
        raise UsageError("replay sends messages: confirm=True does it, dry_run=True only counts (one of them)")
    if limit is not None and limit < 0:
        raise UsageError(f"limit={limit}: 0 or more")
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise UsageError(f"rate={rate}: above 0 messages a second")
    began = perf_counter()
    if on_progress is not None:
        on_progress(Progress(STEP, 0, None, "reading the dead letters"))
    groups = _selected(rows)
    tally = _Tally(sum(len(group.ids) for group in groups), on_progress)
    settings = _Settings(connection(name_server, options), dry_run, rate, limit, to)
    bridge.call(_replay, settings, groups, tally, timeout=timeout)
    # Without a limit and an early end all were looked for, and what did not turn up is not there.
    looked_everywhere = tally.stopped is None and (limit is None or tally.selected < limit)
    absent = tally.wanted - tally.found
    details: Mapping[str, object] = {
        "dry_run": dry_run, "sent": tally.sent, "failed": tally.failed, "skipped": tally.skipped,
        "not_found": absent if looked_everywhere else 0, "left": 0 if looked_everywhere else absent,
        "stopped": tally.stopped, "failures": tally.failures,
    }  # fmt: skip
    done = tally.selected if dry_run else tally.sent
    return StepReport(STEP, rows_in=tally.wanted, rows_out=done, seconds=perf_counter() - began, details=details)


@dataclass(frozen=True)
class _Settings:
    connection: ConnectionOptions
    dry_run: bool
    rate: float | None
    limit: int | None
    to: str | None


def _selected(rows: DataFrame) -> list[_Selected]:
    if rows.isStreaming:
        raise UsageError("replay takes a batch; in foreachBatch it can be called for each batch of a stream")
    need(rows, "replay", *QUEUE, "offsetMsgId", "storeTimestamp")
    wanted = rows.select("topic", "offsetMsgId", F.unix_millis("storeTimestamp").alias("at"))
    found = wanted.limit(MOST + 1).collect()
    if len(found) > MOST:
        raise UsageError(f"replay: more than {MOST} rows are selected; select fewer, for instance by storeTimestamp")
    groups: dict[str, _Selected] = {}
    for topic, offset_msg_id, at in found:
        if not topic.startswith(DLQ_PREFIX):
            raise UsageError(
                f"replay: a row of topic {topic!r} is selected, and only dead letters ({DLQ_PREFIX}GROUP) can be "
                f"replayed; to send other rows write them with the sink"
            )
        group = groups.setdefault(topic, _Selected(topic.removeprefix(DLQ_PREFIX), at, at))
        group.ids.add(offset_msg_id)
        group.since, group.until = min(group.since, at), max(group.until, at)
    return [groups[topic] for topic in sorted(groups)]


async def _replay(settings: _Settings, groups: Sequence[_Selected], tally: _Tally) -> None:
    client = await bridge.client(settings.connection)
    with bridge.holding(client):
        async with Admin(client=client) as admin:
            for selected in groups:
                left = None if settings.limit is None else settings.limit - tally.selected
                if tally.stopped is not None or left == 0:
                    break
                report = await admin.dlq(selected.group).replay(
                    since=selected.since,
                    until=selected.until + 1,
                    where=partial(_is_one_of, selected.ids),
                    limit=left,
                    rate=settings.rate,
                    to=settings.to,
                    dry_run=settings.dry_run,
                    confirm=not settings.dry_run,
                    on_outcome=tally.tell,
                )
                tally.sent += report.sent
                tally.failed += report.failed
                tally.skipped += report.skipped
                tally.selected += report.selected
                for failure in report.failures[: _SHOWN - len(tally.failures)]:
                    message = failure.message
                    said = {"replay_id": message.replay_id, "msg_id": message.msg_id, "error": failure.error or ""}
                    tally.failures.append(said)
                tally.stopped = report.stopped


def _is_one_of(ids: set[str], message: DeadMessage) -> bool:
    return message.replay_id in ids
