"""``aiorocket lake lag``: how far an archive, a table, a streaming query or a consumer group is behind."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from aiorocket.cli.lake.options import html_option, json_option, lake_nameserver, source_option, with_environment
from aiorocket.cli.lake.running import Page, check_extras, told_in_a_line
from aiorocket.cli.lake.telling import plural
from aiorocket.cli.show import Row, table

__all__ = ("lag",)


@click.command()
@click.argument("path", required=False)
@lake_nameserver
@click.option("--group", metavar="GROUP", help="Of this consumer group, in place of PATH; needs --topic.")
@click.option("--topic", metavar="TOPIC", help="Only this topic; several with commas between.")
@click.option("--most", type=click.IntRange(0), metavar="N", help="Exit with 1 when more than N messages are waiting.")
@source_option
@json_option
@html_option("What is shown as one page.")
def lag(
    path: str | None, name_server: str, group: str | None, topic: str | None, most: int | None,
    options: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Show how many messages of each queue have not been read.

    PATH is an archive, the table of a step, or the checkpoint of a streaming query. It needs no session and no Java.
    Exits with 1 when retention took messages that were not read, or a queue ends before what was read of it.
    """
    if path is not None and group is not None:
        raise click.UsageError(f"whose lag? PATH ({path}) and --group {group} are two: give one of them")
    if path is None and group is None:
        raise click.UsageError("whose lag? Give PATH, or --group GROUP with --topic TOPIC")
    if group is not None and topic is None:
        raise click.UsageError("--group needs --topic")
    check_extras()
    with told_in_a_line():
        from aiorocket.spark import bridge
        from aiorocket.spark.steps.behind import Behind, behind
        from aiorocket.spark.steps.functions.lag_samples import sample_lag
        from aiorocket.spark.steps.report import StepReport
        from aiorocket.spark.steps.tables.run import Shown

        try:
            loose: dict[str, Any] = dict(with_environment(options))
            if path is not None:
                found = behind(name_server, path, topic, **loose)
            else:
                topics = [name.strip() for name in (topic or "").split(",")]
                samples = sample_lag(name_server, group or "", topics, **loose)
                found = [Behind(each.queue, each.committed, each.begin, each.end) for each in samples]
        finally:
            bridge.close()
    waiting, lost = sum(each.lag for each in found), sum(each.lost for each in found)
    ahead = [each for each in found if each.ahead]
    late = most is not None and waiting > most
    lines = [f"{plural(waiting, 'message')} behind in {plural(len(found), 'queue')}"]
    if group is not None and found and all(each.reached is None for each in found):
        lines.append(f"NEVER READ: group {group} has stored no offset here (is it called so? aiorocket group list)")
    if away := sum(each.end is None for each in found):
        what = plural(away, "queue that was read", "queues that were read")
        lines.append(f"NOT THERE: {what}; of brokers that are away, messages may be waiting")
    if lost:
        lines.append(f"LOST: retention took {plural(lost, 'message')} before they were read")
    for each in ahead:
        where = f"{each.queue.topic} on {each.queue.broker_name}, queue {each.queue.queue_id}"
        lines.append(
            f"AHEAD: {where} was read to {each.reached} and ends at {each.end}: it was made anew, or lost some"
        )
    if late:
        lines.append(f"TOO MANY: {plural(waiting, 'message')} behind, and --most says {most:,}")
    shown: list[Row] = [
        (
            each.queue.topic, each.queue.broker_name, str(each.queue.queue_id),
            "never read" if each.reached is None else f"{each.reached:,}",
            "not there" if each.end is None else f"{each.end:,}", f"{each.lag:,}",
            f"{each.lost:,}" if each.lost else "",
        )
        for each in found
    ]  # fmt: skip
    columns = ("topic", "broker", "queue", "next", "end", "lag", "lost")
    if as_json:
        rows = [
            {**each.queue._asdict(), "reached": each.reached, "begin": each.begin, "end": each.end, "lag": each.lag,
             "lost": each.lost, "ahead": each.ahead}
            for each in found
        ]  # fmt: skip
        click.echo(json.dumps({"of": path or group, "lag": waiting, "lost": lost, "queues": rows}, ensure_ascii=False))
        if late:
            click.echo(lines[-1], err=True)
    else:
        table(f"Lag of {path or group}", columns, shown, pretty=sys.stdout.isatty())
        for line in lines:
            click.echo(line)
    page = Page(f"Lag of {path or group}", click.get_current_context().params)
    missing = {each.queue: each.lost for each in found}
    tables = {"queues": Shown(list(columns), [list(each) for each in shown], len(shown))}
    report = StepReport("lag", waiting, 0, missing=missing, details={"of": path or group, "tables": tables})
    good = not (lost or ahead or late)
    page.add(report, lines, good=good)
    page.tell()
    sys.exit(0 if good else 1)
