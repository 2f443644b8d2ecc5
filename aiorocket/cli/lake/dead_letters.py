"""``aiorocket lake triage|replay``: the dead letters of a group, sorted and sent again."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from aiorocket.cli.lake.options import (
    lake_nameserver,
    make_input,
    output_options,
    report_options,
    source_option,
    spark_options,
    time_option,
)
from aiorocket.cli.lake.running import Interrupts, run_step
from aiorocket_protocol import DLQ_PREFIX

if TYPE_CHECKING:
    from aiorocket.spark.steps.report import ProgressCall, StepReport
    from aiorocket.spark.steps.tables.inputs import Input

__all__ = ("replay", "triage")


@click.command()
@click.argument("group")
@lake_nameserver
@click.option("--archive", "archive_path", metavar="PATH", help="Read the dead letters from this archive.")
@time_option("--from", "since", "Given up at this time (UTC unless it says otherwise) or later.")
@time_option("--until", "until", "Given up before then.")
@click.option("--samples", type=click.IntRange(0), default=3, show_default=True, metavar="N", help="Bodies of a cause.")
@click.option("--cause", "causes", multiple=True, metavar="PROPERTY", help="Where your consumers say why; repeatable.")
@output_options(20)
@source_option
@spark_options
@report_options
def triage(
    group: str, name_server: str, archive_path: str | None, since: datetime | None, until: datetime | None,
    samples: int, causes: tuple[str, ...], out: str | None, format: str, show: int, options: dict[str, str],
    master: str, conf: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Sort the dead letters of GROUP: by topic, tag and cause, how many, how old, and what they look like."""
    given = _letters(group, archive_path, name_server, since, until, options)

    def work(spark: Any, tell: ProgressCall, _: Interrupts) -> StepReport:
        from aiorocket.spark.steps.tables.analyses import run_triage
        from aiorocket.spark.steps.tables.run import Output

        return run_triage(
            spark, given, Output(out, format, {"causes": show}), samples=samples, causes=causes or None,
            on_progress=tell,
        )  # fmt: skip

    run_step(work, master=master, conf=conf, as_json=as_json, look=lambda: _look(given))


@click.command()
@click.argument("group")
@lake_nameserver
@click.option("--archive", "archive_path", metavar="PATH", help="Select in this archive of the dead letters.")
@time_option("--from", "since", "Given up at this time (UTC unless it says otherwise) or later.")
@time_option("--until", "until", "Given up before then.")
@click.option(
    "--where",
    metavar="SQL",
    help='Only rows with this condition: "tags = \'paid\'", "cause LIKE \'timeout%\'", "ageSeconds < 3600".',
)
@click.option("--limit", type=click.IntRange(0), metavar="N", help="N messages at most.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="At most N messages a second.")
@click.option("--to", metavar="TOPIC", help="Another topic than theirs; %RETRY%GROUP reaches only the group itself.")
@click.option("--dry-run", is_flag=True, help="Send nothing, say what would be sent.")
@source_option
@spark_options
@report_options
def replay(
    group: str, name_server: str, archive_path: str | None, since: datetime | None, until: datetime | None,
    where: str | None, limit: int | None, rate: float | None, to: str | None, dry_run: bool,
    options: dict[str, str], master: str, conf: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Send the dead letters of GROUP that SQL selects to the topics they came from, each one once.

    As `aiorocket dlq replay`: what one of the two has sent, the other passes over.
    """
    given = _letters(group, archive_path, name_server, since, until, options)

    def work(spark: Any, tell: ProgressCall, _: Interrupts) -> StepReport:
        from aiorocket.spark.steps.tables.analyses import run_replay

        return run_replay(
            spark, given, name_server, where=where, dry_run=dry_run, rate=rate, limit=limit, to=to, on_progress=tell
        )

    run_step(
        work, master=master, conf=conf, as_json=as_json, look=lambda: _look(given),
        goes_on="the next replay passes over what is sent",
        fails=lambda report: bool(report.details.get("failed") or report.details.get("stopped")),
    )  # fmt: skip


def _letters(
    group: str, archive_path: str | None, name_server: str, since: datetime | None, until: datetime | None,
    options: dict[str, str],
) -> Input:  # fmt: skip
    return make_input(archive_path, DLQ_PREFIX + group.removeprefix(DLQ_PREFIX), name_server, since, until, options)


def _look(given: Input) -> None:
    from aiorocket.spark.steps.tables.analyses import look_at_letters

    look_at_letters(given)
