"""``aiorocket lake dedup|decode|windows|order|latency|report``: what can be made of rows."""

from __future__ import annotations

from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from aiorocket.cli.lake.options import input_options, make_input, output_options, report_options, spark_options
from aiorocket.cli.lake.running import HTML, Interrupts, check_extras, run_step, told_in_a_line
from aiorocket.cli.options import BadInputError
from aiorocket.cli.server_options import check_place
from aiorocket.errors import RocketError

if TYPE_CHECKING:
    from aiorocket.spark.steps.report import ProgressCall, StepReport
    from aiorocket.spark.steps.tables.inputs import Input

__all__ = ("decode", "dedup", "latency", "order", "report", "windows")

_plots_option = click.option(
    "--plots",
    metavar="DIR",
    help="Draw PNG pictures into this folder (needs the extra report).  [with --html: FILE.plots]",
)
_over_time_option = click.option(
    "--every", default="1 minute", show_default=True, metavar="LENGTH", help="Windows of tables over time."
)
_by_option = click.option(
    "--by", multiple=True, default=("topic",), show_default=True, metavar="NAME",
    help="Count by topic, tag, key or a column; repeatable.",
)  # fmt: skip
_time_option = click.option(
    "--time", default="bornTimestamp", show_default=True, metavar="COLUMN", help="The event time; or storeTimestamp."
)
_approximate_option = click.option(
    "--approximate", is_flag=True, help="Percentiles that need less memory, off by 1 place in 10,000."
)
_AGAIN = "the next run begins with what is not written yet"
_FORMATS = ("json", "variant", "text", "avro", "protobuf")


def _read_using(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if value not in _FORMATS and ":" not in value:
        raise click.BadParameter(f"{value!r} is not one of {', '.join(_FORMATS)}, and no MODULE:TYPE either")
    return value


@click.command()
@input_options
@click.option(
    "--by",
    type=click.Choice(["id", "key", "spark_txn"]),
    default="id",
    show_default=True,
    help="What is the same: the message id, the keys, or the property that our idempotent sink writes.",
)
@click.option("--key", metavar="SQL", help="With --by key: the key, as an expression on the row's columns.")
@output_options(0)
@click.option(
    "--max-rows", type=click.IntRange(1), default=500_000, show_default=True, metavar="N", help="Rows in one portion."
)
@spark_options
@report_options
def dedup(
    archive_path: str | None, topic: str | None, name_server: str, since: datetime | None, until: datetime | None,
    options: dict[str, str], by: str, key: str | None, out: str | None, format: str, show: int, max_rows: int,
    master: str, conf: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Drop repeated rows, and count them.

    With --out the unique rows are written to PATH/rows, and a later run adds the new ones that repeat none of them.
    """
    if key is not None and by != "key":
        raise click.UsageError(f"--key goes with --by key, not with --by {by}")
    given = make_input(archive_path, topic, name_server, since, until, options)

    def work(spark: Any, tell: ProgressCall, _: Interrupts) -> StepReport:
        from aiorocket.spark.steps.tables.analyses import run_dedup
        from aiorocket.spark.steps.tables.run import Output

        which: Any = by
        return run_dedup(
            spark, given, Output(out, format, {"rows": show}), by=which, key=key, max_rows=max_rows, on_progress=tell
        )

    run_step(work, master=master, conf=conf, as_json=as_json, look=given.look, goes_on=_AGAIN)


@click.command()
@input_options
@click.option(
    "--using",
    metavar=f"[{'|'.join(_FORMATS)}|MODULE:TYPE]",
    callback=_read_using,
    default="json",
    show_default=True,
    help="What bodies are. MODULE:TYPE is the type of a service's listener, such as shop.models:Order; what that "
    "service cannot read is quarantined for the same reason.",
)
@click.option(
    "--schema",
    metavar="TEXT|@FILE",
    help="For json: DDL such as 'id LONG NOT NULL, price DOUBLE'; for a model of pydantic too. For avro: its JSON. For "
    "protobuf: @FILE of protoc's --descriptor_set_out. @FILE reads it from there.",
)
@click.option("--message", metavar="NAME", help="For protobuf: the message, such as shop.Order.")
@click.option(
    "--registry",
    metavar="URL",
    envvar="AIOROCKET_SCHEMA_REGISTRY",
    show_envvar=True,
    help="For avro: the schema registry whose wire format bodies have, such as http://registry:8081.",
)
@click.option("--required", metavar="FIELD", multiple=True, help="For json: a field that must be there; repeatable.")
@click.option(
    "--header-bytes",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="For avro and protobuf: bytes to pass over (6 for protobuf in Confluent's wire format).",
)
@output_options(10)
@click.option(
    "--max-rows", type=click.IntRange(1), default=500_000, show_default=True, metavar="N", help="Rows in one portion."
)
@spark_options
@report_options
def decode(
    archive_path: str | None, topic: str | None, name_server: str, since: datetime | None, until: datetime | None,
    options: dict[str, str], using: str, schema: str | None, required: tuple[str, ...], header_bytes: int,
    message: str | None, registry: str | None, out: str | None, format: str, show: int, max_rows: int, master: str,
    conf: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Make columns of bodies; what cannot be decoded goes to a quarantine with the reason.

    With --out rows go to PATH/decoded and PATH/quarantine, and a later run adds what is new.
    """
    if using in ("json", "avro", "protobuf") and schema is None:
        raise click.UsageError(f"--using {using} needs --schema")
    if using in ("variant", "text") and schema is not None:
        raise click.UsageError(f"--using {using} takes no --schema")
    if (message is None) == (using == "protobuf"):
        raise click.UsageError("--using protobuf needs --message, and nothing else takes it")
    if using == "protobuf" and not (schema or "").startswith("@"):
        raise click.UsageError("--using protobuf needs --schema @FILE, which protoc --descriptor_set_out wrote")
    read: str | bytes | None = schema
    if schema is not None and schema.startswith("@"):
        data = _bytes_of(schema[1:])
        read = data if using == "protobuf" else _text_of(schema[1:], data)
    if using != "avro":
        registry = None  # of the environment
    given = make_input(archive_path, topic, name_server, since, until, options)
    if ":" in using:
        with told_in_a_line():
            from aiorocket.spark.steps.functions.typed import imported

            imported(using)  # before Spark starts

    def work(spark: Any, tell: ProgressCall, _: Interrupts) -> StepReport:
        from aiorocket.spark.steps.tables.analyses import run_decode
        from aiorocket.spark.steps.tables.run import Output

        output = Output(out, format, {"decoded": show, "quarantine": show})
        return run_decode(
            spark, given, output, using=using, schema=read, required=required, header_bytes=header_bytes,
            message=message, registry=registry, max_rows=max_rows, on_progress=tell,
        )  # fmt: skip

    run_step(work, master=master, conf=conf, as_json=as_json, look=given.look, goes_on=_AGAIN)


@click.command()
@input_options
@click.option("--every", default="1 minute", show_default=True, metavar="LENGTH", help="Length of a window.")
@click.option("--slide", metavar="LENGTH", help="Begin a window this often; they overlap then.")
@_by_option
@click.option("--key", metavar="SQL", help="With --by key: the key, as an expression on the row's columns.")
@_time_option
@click.option("--watermark", metavar="LENGTH", help="Count rows that came later than this behind the latest.")
@_plots_option
@output_options(20)
@spark_options
@report_options
def windows(
    archive_path: str | None, topic: str | None, name_server: str, since: datetime | None, until: datetime | None,
    options: dict[str, str], every: str, slide: str | None, by: tuple[str, ...], key: str | None, time: str,
    watermark: str | None, plots: str | None, out: str | None, format: str, show: int, master: str,
    conf: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Count rows and bytes in windows of time, by topic, tag, key or any column.

    With --out the windows are PATH/windows. They are made anew when the input has grown, late rows included.
    """
    if key is not None and "key" not in by:
        raise click.UsageError("--key goes with --by key")
    if plots is not None and slide is not None:
        raise click.UsageError("--plots is for windows that do not overlap, without --slide")
    given = make_input(archive_path, topic, name_server, since, until, options)
    _check(given, every=every, slide=slide, by=by, time=time, watermark=watermark, key=key)
    plots = None if slide is not None else _folder_of_plots(plots)

    def work(spark: Any, tell: ProgressCall, _: Interrupts) -> StepReport:
        from aiorocket.spark.steps.tables.analyses import run_windows
        from aiorocket.spark.steps.tables.run import Output

        return run_windows(
            spark, given, Output(out, format, {"windows": show}), every=every, slide=slide, by=by, time=time,
            watermark=watermark, key=key, plots=plots, on_progress=tell,
        )  # fmt: skip

    run_step(work, master=master, conf=conf, as_json=as_json, look=given.look, goes_on=_AGAIN)


@click.command()
@input_options
@click.option(
    "--sequence",
    metavar="SQL",
    help="A number that grows within a key, for instance \"CAST(properties['seq'] AS LONG)\". Without: queues only.",
)
@click.option("--key", metavar="SQL", help="The key; the sharding key unless given. `keys` for the message's keys.")
@click.option(
    "--dense/--sparse", default=None, help="Whether the sequence counts without gaps: then missing numbers are found."
)
@output_options(20)
@spark_options
@report_options
def order(
    archive_path: str | None, topic: str | None, name_server: str, since: datetime | None, until: datetime | None,
    options: dict[str, str], sequence: str | None, key: str | None, dense: bool | None, out: str | None, format: str,
    show: int, master: str, conf: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Check that everything is there, once, and in order: per queue, and per key with --sequence.

    Exits with 1 when something was found.
    """
    if sequence is None and (key is not None or dense is not None):
        raise click.UsageError("--key, --dense and --sparse go with --sequence")
    given = make_input(archive_path, topic, name_server, since, until, options)

    def work(spark: Any, tell: ProgressCall, _: Interrupts) -> StepReport:
        from aiorocket.spark.steps.tables.analyses import run_order
        from aiorocket.spark.steps.tables.run import Output

        output = Output(out, format, {"findings": show})
        return run_order(spark, given, output, sequence=sequence, key=key, dense=dense, on_progress=tell)

    run_step(
        work, master=master, conf=conf, as_json=as_json, look=given.look, goes_on=_AGAIN,
        fails=lambda report: bool(report.details.get("findings")),
    )  # fmt: skip


@click.command()
@input_options
@_over_time_option
@_plots_option
@click.option("--group", metavar="GROUP", help="Also how far behind this consumer group is (of a live topic).")
@click.option(
    "--samples", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="With --group: ask N times."
)
@click.option(
    "--pause", type=click.FloatRange(0), default=1.0, show_default=True, metavar="SECONDS", help="Between two samples."
)
@_approximate_option
@output_options(20)
@spark_options
@report_options
def latency(
    archive_path: str | None, topic: str | None, name_server: str, since: datetime | None, until: datetime | None,
    options: dict[str, str], every: str, plots: str | None, group: str | None, samples: int, pause: float,
    approximate: bool, out: str | None, format: str, show: int, master: str, conf: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Report how long messages took from producer to broker: percentiles by topic, queue and time, tables and plots.

    With --group also the lag of a consumer group.
    """
    if group is not None and archive_path is not None:
        raise click.UsageError("--group asks brokers: give --topic with --nameserver, not --archive")
    given = make_input(archive_path, topic, name_server, since, until, options)
    _check(given, every=every)
    plots = _folder_of_plots(plots)

    def work(spark: Any, tell: ProgressCall, _: Interrupts) -> StepReport:
        from aiorocket.spark.steps.tables.analyses import run_latency
        from aiorocket.spark.steps.tables.run import Output

        names = ("by_topic", "by_queue", "over_time", "histogram", "lag")
        return run_latency(
            spark, given, Output(out, format, dict.fromkeys(names, show)), every=every, plots=plots, group=group,
            samples=samples, pause=pause, exact=not approximate, on_progress=tell,
        )  # fmt: skip

    run_step(work, master=master, conf=conf, as_json=as_json, look=given.look, goes_on=_AGAIN)


@click.command()
@input_options
@_over_time_option
@_by_option
@_time_option
@_plots_option
@_approximate_option
@output_options(20)
@spark_options
@report_options
def report(
    archive_path: str | None, topic: str | None, name_server: str, since: datetime | None, until: datetime | None,
    options: dict[str, str], every: str, by: tuple[str, ...], time: str, plots: str | None, approximate: bool,
    out: str | None, format: str, show: int, master: str, conf: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Look at all of it in one reading: rows and bytes over time, latencies, gaps and steps back, repeated ids.

    What windows, latency, order and dedup say one by one; with --html FILE as one page with the pictures.
    """
    given = make_input(archive_path, topic, name_server, since, until, options)
    _check(given, every=every, by=by, time=time)
    plots = _folder_of_plots(plots)

    def work(spark: Any, tell: ProgressCall, _: Interrupts) -> StepReport:
        from aiorocket.spark.steps.tables.analyses import run_report
        from aiorocket.spark.steps.tables.run import Output

        names = ("windows", "by_topic", "by_queue", "over_time", "histogram", "findings", "summary", "repeats")
        return run_report(
            spark, given, Output(out, format, dict.fromkeys(names, show)), every=every, by=by, time=time, plots=plots,
            exact=not approximate, on_progress=tell,
        )  # fmt: skip

    run_step(work, master=master, conf=conf, as_json=as_json, look=given.look, goes_on=_AGAIN)


def _check(given: Input, **arguments: Any) -> None:
    """Of the arguments of ``windows``, before Spark starts."""
    from aiorocket.spark.steps.functions.windows import check_windows

    try:
        check_windows(given.columns(), **arguments)
    except RocketError as error:
        raise BadInputError(f"--{error}") from None


def _folder_of_plots(asked: str | None) -> str | None:
    """Where ``--plots`` says, else beside the page of ``--html``; None for no pictures."""
    page = click.get_current_context().meta.get(HTML)
    if asked is not None:
        check_extras("matplotlib", install="pip install 'aiorocketmq[report]'", what="--plots")
        try:
            check_place(asked, "--plots")
        except RocketError as error:
            raise BadInputError(str(error)) from None
    elif page is not None and find_spec("matplotlib") is not None:
        return f"{page}.plots"
    return asked


def _bytes_of(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadInputError(f"--schema @{path}: {error.strerror}") from error


def _text_of(path: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadInputError(f"--schema @{path}: {error}") from error
