"""``aiorocket lake demo``: an access log, line by line through a broker, to an archive, to tables and to pictures."""

from __future__ import annotations

import os
import sys

import click
from click.core import ParameterSource

from aiorocket.cli.lake.options import html_option, spark_options
from aiorocket.cli.lake.running import Interrupts, check_extras, told_in_a_line
from aiorocket.cli.lines import LineSource
from aiorocket.cli.terminal import INTERRUPTED

__all__ = ("demo",)

_DEFAULT_OUT = "aiorocket-lake-demo"


@click.command()
@click.argument("file", required=False, metavar="[FILE|-]")
@click.option("--out", metavar="DIR", help="Results go here; a second run with it adds to them.  [default: a new one]")
@click.option("--data", metavar="DIR", help="The broker's store.  [default: OUT/store]")
@click.option(
    "--lines",
    type=click.IntRange(1),
    default=50_000,
    show_default=True,
    metavar="N",
    help="Without FILE: lines of the log that is made up.",
)
@click.option("--seed", default=1, show_default=True, metavar="N", help="Without FILE: another seed, another log.")
@html_option("The counts as one page: proof, plots, tables, configuration.")
@spark_options
def demo(
    file: str | None, out: str | None, data: str | None, lines: int, seed: int, master: str, conf: dict[str, str]
) -> None:
    """Take an access log through a broker to an archive, tables and plots.

    A name server and a durable broker start in this process. Each line of FILE (- is standard input; without FILE a day
    of a shop's log is made up) becomes a message. Spark archives the topic, decodes the lines, counts requests in
    windows of time, and checks the order. The counts must add up, else the exit code is 1. Lines that are no access log
    (common or combined format) are quarantined and counted.
    """
    told = click.get_current_context().get_parameter_source
    if file is not None and any(told(name) is not ParameterSource.DEFAULT for name in ("lines", "seed")):
        raise click.UsageError("--lines and --seed are for the log that is made up: leave them out, or FILE")
    source = None if file is None else LineSource(file)
    total = lines if source is None else source.check()
    check_extras()
    folder = out if out is not None else _new_folder()
    interrupts = Interrupts(gently=False)
    interrupts.take()
    try:
        with told_in_a_line():
            from aiorocket.cli.lake.log_demo import LogDemo

            code = LogDemo(folder, data, source, total, lines, seed).run(master, conf, interrupts)
    except KeyboardInterrupt:
        click.echo(f"interrupted; run it again with --out {folder}: what is there comes first", err=True)
        code = INTERRUPTED
    finally:
        interrupts.give_back()
    sys.exit(code)


def _new_folder() -> str:
    number, folder = 1, _DEFAULT_OUT
    while os.path.exists(folder):
        number += 1
        folder = f"{_DEFAULT_OUT}-{number}"
    return folder
