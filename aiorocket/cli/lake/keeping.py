"""``aiorocket lake archive|compact|verify|restore|show``"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import click

from aiorocket.cli.lake.options import (
    format_option,
    json_option,
    lake_nameserver,
    report_options,
    source_option,
    spark_options,
    time_option,
    with_environment,
)
from aiorocket.cli.lake.running import Interrupts, check_extras, run_step, told_in_a_line
from aiorocket.cli.lake.telling import complete, plural
from aiorocket.cli.show import Row, table
from aiorocket.config.times import iso_time
from aiorocket.errors import TopicNotFoundError

if TYPE_CHECKING:
    from aiorocket.spark.steps.report import ProgressCall, StepReport

__all__ = ("archive", "compact", "restore", "show", "verify")

_MIB = 1 << 20
_WORDS = ("earliest", "latest", "group")


@click.command()
@click.argument("topic")
@click.argument("path")
@lake_nameserver
@click.option(
    "--mode",
    type=click.Choice(["direct", "spark"]),
    default="direct",
    show_default=True,
    help="direct: tasks write Parquet as they decode, which is faster. spark: a streaming query with a checkpoint.",
)
@format_option
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    show_default="earliest",
    help="Where a queue that is not in the archive yet begins: earliest, latest, or a time such as 2025-03-01T12:00Z.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Go on with what comes. Ctrl-C and SIGTERM end it behind the batch on the way (--max-rows), a failure at once "
    "(so does a broker that is away): `aiorocket lake run` tries again.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow: how often to write what has come.",
)
@click.option("--max-rows", type=click.IntRange(1), show_default="2000000", metavar="N", help="Rows in one batch.")
@source_option
@spark_options
@report_options
def archive(
    topic: str, path: str, name_server: str, mode: str, format: str, start: str | None, follow: bool, interval: float,
    max_rows: int | None, options: dict[str, str], master: str, conf: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Archive TOPIC (several with commas between) to PATH, by topic and hour, each row once.

    A run goes on where the archive ends. Rows become visible a batch at a time; a run that is stopped or killed in
    between leaves none of the batch, and the next one does it again.
    """
    if start is not None:
        for name in options:
            if name.startswith("starting") and name != "startingOffsetsByTimestampStrategy":
                raise click.UsageError(f"--from {start} and --option {name}= both say where to begin: give one")
    if max_rows is not None and "maxOffsetsPerTrigger" in options:
        raise click.UsageError(
            f"--max-rows {max_rows} and --option maxOffsetsPerTrigger= both say how large a batch may be: give one"
        )
    options = {**_starting(start), **with_environment(options)}
    check_extras()
    with told_in_a_line():
        from aiorocket.spark.options import SourceOptions

        source = SourceOptions.parse({**options, "nameServer": name_server, "topic": topic})
        from aiorocket.spark.steps.files.claims import look
        from aiorocket.spark.steps.files.folder import Folder

        look(Folder(path), "archive")

    def at_first() -> None:
        from aiorocket.spark import bridge
        from aiorocket.spark.steps.files.manifest import Archive
        from aiorocket.spark.steps.tables.inputs import look

        if not Archive.there(path):  # else the step says how far a topic was read that is not there now
            bridge.call(look, source)

    def work(spark: Any, tell: ProgressCall, interrupts: Interrupts) -> StepReport:
        from aiorocket.spark.steps import archive as step
        from aiorocket.spark.steps.report import Progress

        tell(Progress("archive", 0, None, f"looking at {topic}"))
        return step(
            spark, path, name_server, topic, mode="spark" if mode == "spark" else "direct",
            format=cast(Any, format), max_rows=max_rows, follow=follow, interval=interval,
            stop=(lambda: interrupts.wanted) if follow else None, on_progress=tell, **_loose(options),
        )  # fmt: skip

    run_step(
        work, master=master, conf=conf, as_json=as_json, look=at_first, gently=follow,
        goes_on=f"what is in {path} is complete up to the last batch, and the next run goes on there",
    )  # fmt: skip


@click.command()
@click.argument("path")
@click.option("--only", "topics", multiple=True, metavar="TOPIC", help="Only this topic of the archive; repeatable.")
@click.option(
    "--target-mib",
    type=click.FloatRange(0, min_open=True),
    default=256.0,
    show_default=True,
    metavar="MIB",
    help="Size of a file; hours with several files below half of it are rewritten.",
)
@click.option(
    "--keep",
    type=click.FloatRange(0),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long replaced files stay for readers that began before; those of a Parquet table go at once.",
)
@spark_options
@report_options
def compact(
    path: str, topics: tuple[str, ...], target_mib: float, keep: float, master: str, conf: dict[str, str], as_json: bool
) -> None:
    """Make the small files of the archive at PATH into few large ones, the same rows in order.

    Of a table that a step wrote, too: the same rows, while no run of that step is under way.
    """
    _need_archive(path, topics, or_table=True)

    def work(spark: Any, tell: ProgressCall, _: Interrupts) -> StepReport:
        from aiorocket.spark.steps import compact as step

        return step(
            spark, path, target_bytes=max(2, round(target_mib * _MIB)), topics=topics or None, keep=keep,
            on_progress=tell,
        )  # fmt: skip

    run_step(work, master=master, conf=conf, as_json=as_json)


@click.command()
@click.argument("path")
@click.argument("topic", required=False)
@lake_nameserver
@click.option("--only", "topics", multiple=True, metavar="TOPIC", help="Only this topic of the archive; repeatable.")
@click.option("--where", metavar="SQL", help="Only rows with this condition, for instance \"tags = 'paid'\".")
@time_option("--from", "since", "Rows stored at this time (UTC unless it says otherwise) or later.")
@time_option("--until", "until", "Rows stored before then.")
@click.option("--limit", type=click.IntRange(0), metavar="N", help="N messages at most, in all.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="At most N messages a second.")
@click.option("--keep-queues", is_flag=True, help="Each message to the queue number it had, in its order.")
@click.option("--dry-run", is_flag=True, help="Send nothing, count what would be sent.")
@click.option("--name", metavar="NAME", help="Tells two restores with the same arguments apart.")
@click.option(
    "--max-rows", type=click.IntRange(1), default=200_000, show_default=True, metavar="N", help="Rows in one portion."
)
@source_option
@spark_options
@report_options
def restore(
    path: str, topic: str | None, name_server: str, topics: tuple[str, ...], where: str | None, since: datetime | None,
    until: datetime | None, limit: int | None, rate: float | None, keep_queues: bool, dry_run: bool, name: str | None,
    max_rows: int, options: dict[str, str], master: str, conf: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Send the archive at PATH to TOPIC, or each row to a topic of its own name.

    Bodies, keys, tags and properties are kept. An interrupted restore goes on with the portion that was on the way:
    some of its messages may come twice, with the same property RESTORE_ID.
    """
    _need_archive(path, topics)

    def work(spark: Any, tell: ProgressCall, _: Interrupts) -> StepReport:
        from aiorocket.spark.steps import restore as step

        return step(
            spark, path, name_server, topics=topics or None, to_topic=topic, where=where, since=since, until=until,
            limit=limit, rate=rate, keep_queues=keep_queues, dry_run=dry_run, name=name, max_rows=max_rows,
            on_progress=tell, **_loose(with_environment(options)),
        )  # fmt: skip

    def at_first() -> None:
        from aiorocket.spark import bridge
        from aiorocket.spark.options import SourceOptions
        from aiorocket.spark.steps.tables.inputs import look

        if not dry_run:
            text = {**with_environment(options), "nameServer": name_server, "topic": topic or "any"}
            with suppress(TopicNotFoundError):  # brokers may make it
                bridge.call(look, SourceOptions.parse(text))

    run_step(work, master=master, conf=conf, as_json=as_json, look=at_first)


@click.command()
@click.argument("path")
@spark_options
@report_options
def verify(path: str, master: str, conf: dict[str, str], as_json: bool) -> None:
    """Read the archive at PATH and count its rows by queue: are they what the manifest says?"""
    _need_archive(path)

    def work(spark: Any, tell: ProgressCall, _: Interrupts) -> StepReport:
        from aiorocket.spark.steps import verify as step

        return step(spark, path)

    run_step(work, master=master, conf=conf, as_json=as_json, goes_on="nothing was changed")


@click.command()
@click.argument("path")
@json_option
def show(path: str, as_json: bool) -> None:
    """Show what the archive or the table at PATH holds; it needs no Spark session and no Java.

    Exits with 1 when offsets are missing, or one of its files (on a disk; it reads none of them, as verify does).
    """
    check_extras()
    with told_in_a_line():
        from aiorocket.spark.steps.tables.table import Table

        found = Table.there(path)
        if found is not None:
            sys.exit(_show_table(path, found, as_json))
        from aiorocket.spark.steps.files.manifest import Archive

        sys.exit(_show_archive(path, Archive.open(path), as_json))


def _need_archive(path: str, topics: tuple[str, ...] = (), *, or_table: bool = False) -> None:
    """Ends the command where none is, or none of these topics, before Spark starts."""
    check_extras()
    with told_in_a_line():
        from aiorocket.spark.steps.files.manifest import Archive
        from aiorocket.spark.steps.tables.table import Table

        if not (or_table and Table.there(path)):
            archive = Archive.open(path)
            if topics:
                archive.snapshot().check_topics(topics)


def _show_archive(path: str, there: Any, as_json: bool) -> int:
    snapshot = there.snapshot()
    there.folder.need(snapshot.files)
    missing = {} if there.filtered else snapshot.missing()
    size = sum(file.bytes for file in snapshot.files)
    if as_json:
        value = {
            "path": path, "format": there.format, "columns": there.columns, "filtered": there.filtered,
            "rows": snapshot.rows, "files": len(snapshot.files), "bytes": size, "version": snapshot.version,
            "queues": [[*queue, *snapshot.queues[queue]] for queue in sorted(snapshot.queues)],
            "gaps": [[*queue, begin, end] for queue, begin, end in snapshot.gaps],
            "missing": [[*queue, missing[queue]] for queue in sorted(missing)], "complete": not missing,
        }  # fmt: skip
        click.echo(json.dumps(value, ensure_ascii=False))
        return 1 if missing else 0
    rows: list[Row] = [
        (
            queue.topic, queue.broker_name, str(queue.queue_id), f"{each.begin:,}", f"{each.end:,}", f"{each.rows:,}",
            f"{each.missing:,}" if each.missing else "",
        )
        for queue, each in sorted(snapshot.queues.items())
    ]  # fmt: skip
    if rows:
        columns = ("topic", "broker", "queue", "begin", "end", "rows", "missing")
        table(f"Archive {path}", columns, rows, pretty=sys.stdout.isatty())
    files = plural(len(snapshot.files), "file")
    click.echo(f"{plural(snapshot.rows, 'row')} in {files}, {size / _MIB:,.1f} MiB, {there.format}")
    if there.filtered:
        click.echo("no proof: it is an archive of a selection")
    elif missing:
        click.echo(f"INCOMPLETE: {plural(sum(missing.values()), 'row')} missing in {plural(len(missing), 'queue')}")
    elif rows:
        click.echo(complete(snapshot.rows, len(rows)))
    return 1 if missing else 0


def _show_table(path: str, there: Any, as_json: bool) -> int:
    snapshot = there.snapshot()
    there.folder.need(snapshot.files)
    parts = sorted({file.part for file in snapshot.files})
    if as_json:
        value = {
            "path": path, "step": there.step, "format": there.format, "settings": there.settings,
            "runs": snapshot.last + 1, "rows_in": snapshot.rows_in,
            "parts": {part: snapshot.rows(part) for part in parts},
            "ranges": [[*queue, *snapshot.ranges[queue]] for queue in sorted(snapshot.ranges)],
            "missing": [[*queue, snapshot.missing[queue]] for queue in sorted(snapshot.missing)],
        }  # fmt: skip
        click.echo(json.dumps(value, ensure_ascii=False))
        return 1 if snapshot.missing else 0
    rows: list[Row] = [(part, f"{snapshot.rows(part):,}") for part in parts]
    table(f"Table {path}: {there.step}, {there.format}", ("part", "rows"), rows, pretty=sys.stdout.isatty())
    click.echo(f"made of {plural(snapshot.rows_in, 'row')} in {plural(snapshot.last + 1, 'run')}")
    if snapshot.missing:
        click.echo(f"INCOMPLETE: {plural(sum(snapshot.missing.values()), 'row')} were missing in what it is made of")
    return 1 if snapshot.missing else 0


def _starting(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    if text in _WORDS:
        return {"startingOffsets": text}
    try:
        at = iso_time(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is none of {', '.join(_WORDS)} and no time such as 2025-03-01T12:00Z", param_hint="--from"
        ) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return {"startingTimestamp": str(max(0, round(at.timestamp() * 1000)))}  # the source takes none before 1970


def _loose(options: dict[str, str]) -> dict[str, Any]:
    """Options of the source, beside arguments of other types."""
    return dict(options)
