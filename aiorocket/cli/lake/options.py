"""Options that the lake commands share, and how their values are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aiorocket.cli.lake.running import HTML, check_extras, told_in_a_line
from aiorocket.cli.options import parse_nameservers, written_file
from aiorocket.config.times import iso_time
from aiorocket.errors import RocketError
from aiorocket_protocol import NAMESERVER_PORT

if TYPE_CHECKING:
    from aiorocket.spark.steps.tables.inputs import Input

__all__ = (
    "Spark",
    "format_option",
    "html_option",
    "input_options",
    "json_option",
    "lake_nameserver",
    "with_environment",
    "make_input",
    "output_options",
    "report_options",
    "source_option",
    "spark_options",
    "time_option",
)

F = TypeVar("F", bound=Callable[..., Any])


class Spark(dict[str, str]):
    """Settings of the session; ``master`` is where it runs."""

    master = "local[*]"


def _read_nameservers(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return ";".join(parse_nameservers(value))  # as RocketMQ's own tools, and Spark's options, write it
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def lake_nameserver(function: F) -> F:
    """``--nameserver`` as the other commands have it, as one text for Spark's option ``nameServer``."""
    return click.option(
        "--nameserver", "name_server", metavar="HOST:PORT[,HOST:PORT]", callback=_read_nameservers,
        envvar="AIOROCKET_NAMESERVER", default=f"127.0.0.1:{NAMESERVER_PORT}", show_default=True, show_envvar=True,
        help="Name servers to ask, separated by ',' or ';'.",
    )(function)  # fmt: skip


def _read_pairs(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        found[name.strip()] = text
    return found


#: Options of the source that the commands have flags or arguments for.
_SAID_OTHERWISE = ("nameServer", "endpoints", "topic")


def _read_options(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = _read_pairs(ctx, param, values)
    if not pairs:
        return {}
    from aiorocket.spark.option_text import NAMES, OptionText

    try:
        OptionText(pairs)  # an unknown name, with the one that was meant
    except RocketError as error:
        raise click.BadParameter(str(error)) from None
    names, found = {name.lower(): name for name in NAMES}, dict[str, str]()
    for given, value in pairs.items():
        name = names.get(given.lower())
        if name is None or name in _SAID_OTHERWISE:
            raise click.BadParameter(f"{given}= is not for here: the command's own options and arguments say it")
        if name in found:
            raise click.BadParameter(f"{name}= is given twice")
        found[name] = value
    return found


#: What the other commands' options for it take from the environment -> the same of Spark's source and sink.
_ENVIRONMENT = {
    "AIOROCKET_CREDENTIALS_FILE": "credentialsFile",
    "AIOROCKET_ACCESS_KEY": "accessKey",
    "AIOROCKET_SECRET_KEY": "secretKey",
    "AIOROCKET_NAMESPACE": "namespace",
    "AIOROCKET_TLS": "tls",
    "AIOROCKET_TLS_CA": "tlsCa",
    "AIOROCKET_TLS_CERT": "tlsCert",
    "AIOROCKET_TLS_KEY": "tlsKey",
    "AIOROCKET_TLS_VERIFY": "tlsVerify",
    "AIOROCKET_ADDRESS_MAP": "addressMap",
}
_KEYS = {"credentialsFile", "accessKey", "secretKey", "securityToken"}
_CERTIFICATES = {"tlsCa", "tlsCert", "tlsKey", "tlsVerify"}


def with_environment(options: dict[str, str]) -> dict[str, str]:
    """``options``, and what the environment says of keys, namespace and TLS; of each of these one of the two says
    all."""
    found = {option: value for name, option in _ENVIRONMENT.items() if (value := os.environ.get(name))}
    if "credentialsFile" in found:
        found = {name: value for name, value in found.items() if name not in ("accessKey", "secretKey")}
    if "tlsVerify" in found and click.BOOL.convert(found.pop("tlsVerify"), None, None) is False:
        found["tlsVerify"] = "false"
    if found.keys() & _CERTIFICATES:
        found["tls"] = "true"
    elif "tls" in found:
        found["tls"] = str(click.BOOL.convert(found["tls"], None, None)).lower()
    for family in (_KEYS, _CERTIFICATES | {"tls"}):
        if options.keys() & family:
            found = {name: value for name, value in found.items() if name not in family}
    return {**found, **options}


def source_option(function: F) -> F:
    return click.option(
        "-o", "--option", "options", metavar="NAME=VALUE", multiple=True, callback=_read_options,
        help="Any option of the Spark source or sink, such as tags=, tls=true, failOnDataLoss=false. Keys, namespace "
        "and TLS are taken from the environment as by the other commands (aiorocket consume --help).",
    )(function)  # fmt: skip


def spark_options(function: F) -> F:
    for option in (
        click.option(
            "--conf", metavar="NAME=VALUE", multiple=True, callback=_read_pairs, help="A setting of the Spark session."
        ),
        click.option("--master", default=Spark.master, show_default=True, help="Where Spark runs."),
    ):
        function = option(function)
    return function


def json_option(function: F) -> F:
    return click.option(
        "--json", "as_json", is_flag=True, help="The report as one JSON object; everything else to standard error."
    )(function)


def report_options(function: F) -> F:
    """Of commands that end with a report; ``run_step`` writes the page."""
    return html_option("The report as one page: proof, plots, tables, configuration.")(json_option(function))


def html_option(text: str) -> Callable[[F], F]:
    """The context gets the path."""
    return click.option(
        "--html", type=click.Path(dir_okay=False, writable=True), metavar="FILE", expose_value=False,
        callback=lambda ctx, param, value: ctx.meta.__setitem__(HTML, written_file(ctx, param, value)), help=text,
    )  # fmt: skip


def format_option(function: F) -> F:
    return click.option(
        "--format", type=click.Choice(["parquet", "delta", "iceberg"]), default="parquet", show_default=True,
        help="delta and iceberg keep a table of that kind over the same Parquet files.",
    )(function)  # fmt: skip


def _read_time(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        at = iso_time(value.strip())
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        at.astimezone(UTC)  # steps look for its hour
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is no time such as 2025-03-01 or 2025-03-01T12:30+01:00") from None
    return at


def time_option(flag: str, name: str, text: str) -> Callable[[F], F]:
    return click.option(flag, name, metavar="TIME", callback=_read_time, help=text)


def input_options(function: F) -> F:
    """An archive or a live topic."""
    for option in (
        source_option,
        time_option("--until", "until", "Rows stored before then."),
        time_option("--from", "since", "Rows stored at this time (UTC unless it says otherwise) or later."),
        lake_nameserver,
        click.option("--topic", metavar="TOPIC", help="With --archive: only this topic of it. Without: a live topic."),
        click.option("--archive", "archive_path", metavar="PATH", help="Read this archive of lake archive."),
    ):
        function = option(function)
    return function


def make_input(
    archive_path: str | None,
    topic: str | None,
    name_server: str,
    since: datetime | None,
    until: datetime | None,
    options: dict[str, str],
) -> Input:
    """UsageError of click's for options that do not go together, its other error for an archive that is not there and
    when Spark is not installed."""
    if archive_path is None and topic is None:
        raise click.UsageError("nothing to read: give --archive PATH, or --topic TOPIC of a live broker")
    if archive_path is not None and options:
        raise click.UsageError(f"--option {next(iter(options))}= is for a live topic, not for an archive")
    for name in options:
        if name.startswith(("starting", "ending")):
            raise click.UsageError(f"--option {name}= is not for here: --from and --until say which rows")
    if since is not None and until is not None and until <= since:
        raise click.UsageError(f"--until {until.isoformat()} is not after --from {since.isoformat()}")
    check_extras()
    from aiorocket.spark.steps.tables.inputs import Input

    if archive_path is not None:
        topics = tuple(name.strip() for name in topic.split(",")) if topic is not None else None
        given = Input(archive=archive_path, topics=topics, since=since, until=until)
    else:
        options = with_environment(options)
        given = Input(name_server=name_server, topic=topic, since=since, until=until, options=options)
    with told_in_a_line():
        given.columns()  # what is wrong with it is said now, not when Spark has started
    return given


def output_options(default_show: int) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in (
            click.option(
                "--show", type=click.IntRange(0), metavar="N", default=default_show, show_default=True,
                help="Show the first N rows of the result.",
            ),
            format_option,
            click.option(
                "--out", metavar="PATH", help="Keep the result here; the next run with the same options goes on."
            ),
        ):  # fmt: skip
            function = option(function)
        return function

    return decorate
