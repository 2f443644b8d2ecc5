"""``aiorocket bench``"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aiorocket.cli.options import BadInputError, client_options, written_file

if TYPE_CHECKING:
    from aiorocket.config import ClientConfig

__all__ = ("bench",)


@click.group()
def bench() -> None:
    """Measure a RocketMQ under load: what it takes, how late it is, and what set the limit."""


#: Option -> (type, help). A scenario's own defaults hold for what is not given.
_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("rate", float, "Messages a second, sent when they are due (open loop). 0: as fast as answers come."),
    ("in-flight", int, "Sends of a producer on their way at once, at most."),
    ("producers", int, "Producers, over all processes."),
    ("consumers", int, "Members of each group, over all processes."),
    ("groups", int, "Consumer groups; each gets every message."),
    ("idle", int, "Connections that do nothing."),
    ("topics", int, "Topics."),
    ("queues", int, "Queues of each topic, on each broker."),
    ("size", int, "Bytes of a body."),
    ("batch", int, "Messages of a send."),
    ("keys", int, "How many different keys; 0 for none."),
    ("tags", int, "How many different tags; 0 for none."),
    ("seconds", float, "How long is measured."),
    ("warmup", float, "Seconds before that, in no figure."),
    ("drain", float, "Seconds without a message after which consumers are given up."),
    ("processes", int, "Processes of the load."),
    ("flush", click.Choice(["sync", "async"]), "Refuse brokers that flush otherwise."),
)


def _scenario_options(function: Any) -> Any:
    for name, kind, text in reversed(_OPTIONS):
        function = click.option(f"--{name}", type=kind, default=None, help=text)(function)
    return click.option("--orderly", is_flag=True, default=None, help="Orderly groups; keys are sharding keys.")(
        function
    )


@bench.command()
@click.option("--scenario", "file", type=click.File("r", encoding="utf-8"), metavar="FILE",
              help="TOML with the options below by name (in_flight = 8); options win.")  # fmt: skip
@_scenario_options
@click.option("--runs", type=click.IntRange(1, 1000), default=1, show_default=True, help="The same again and again.")
@click.option("--out", type=click.Path(dir_okay=False, writable=True), metavar="FILE", callback=written_file,
              help="Write the JSON result here too.")  # fmt: skip
@click.option("--html", type=click.Path(dir_okay=False, writable=True), metavar="FILE", callback=written_file,
              help="Write a page with plots.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@client_options
def run(config: ClientConfig, file: Any, **options: Any) -> None:
    """Measure. Topics and groups are made for it and deleted.

    It exits with 1 when a message was lost, came twice or out of order, or a send failed.
    """
    given = {name: value for name, value in options.items() if value is not None}
    own = {name: given.pop(name, None) for name in ("runs", "out", "html", "as_json")}
    import aiorocket

    try:
        from aiorocket.cli.benching import run_bench
        from aiorocket.load import Scenario
    except ImportError as error:
        raise click.ClickException(f"{error}: pip install 'aiorocketmq[bench]'") from None
    try:
        scenario = Scenario.from_toml(file.read() if file is not None else "", **given)
    except (aiorocket.ConfigError, UnicodeDecodeError) as error:
        where = f"{file.name}: " if file is not None else ""
        raise BadInputError(f"{where}{error}") from None
    sys.exit(run_bench(scenario, config, **own))


#: What a result has, and each of its runs.
_PARTS = {"scenario": dict, "machine": dict}
_RUN = {"figures": dict, "checks": dict, "verdict": dict, "percentiles": dict, "seconds": list}
_CHECKS = dict.fromkeys(("lost", "duplicates", "out_of_order", "failed_sends"), int)
_VERDICT = {"limit": str, "why": str}


def _has(found: dict[str, Any], kinds: Mapping[str, type]) -> bool:
    return all(isinstance(found.get(name), kind) for name, kind in kinds.items())


def _result(_ctx: click.Context, _param: click.Parameter, value: str) -> dict[str, Any]:
    import json

    try:
        found = json.loads(Path(value).read_text(encoding="utf-8"))
        if found["kind"] != "bench" or not found["runs"]:
            raise ValueError("of another kind")
        if not _has(found, _PARTS) or not all(
            _has(run, _RUN) and _has(run["checks"], _CHECKS) and _has(run["verdict"], _VERDICT) for run in found["runs"]
        ):
            raise ValueError("not whole")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInputError(f"{value}: not a result of aiorocket bench: {error}") from None
    return dict(found)


@bench.command()
@click.argument("first", metavar="A", callback=_result)
@click.argument("second", metavar="B", callback=_result)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def compare(first: dict[str, Any], second: dict[str, Any], as_json: bool) -> None:
    """Two results: what changed, and whether the runs can tell (95 % confidence; give both several --runs)."""
    from aiorocket.cli.benching import tell_difference

    tell_difference(first, second, as_json)


@bench.command()
@click.argument("result", metavar="FILE", callback=_result)
@click.argument("page", type=click.Path(dir_okay=False, writable=True), callback=written_file)
def report(result: dict[str, Any], page: str) -> None:
    """A result as an HTML page with plots."""
    from aiorocket.load.report import html

    Path(page).write_text(html(result), encoding="utf-8")
