"""``aiorocket lake run``: a pipeline as a service."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from aiorocket.cli.lake.options import html_option, lake_nameserver, with_environment
from aiorocket.cli.lake.running import Interrupts, Page, check_extras, told_in_a_line
from aiorocket.cli.lake.telling import plural, proof
from aiorocket.cli.metrics import metrics_options
from aiorocket.cli.server_options import host_port
from aiorocket.cli.terminal import INTERRUPTED
from aiorocket.errors import ConfigError
from aiorocket.runtime.clock import WallClock
from aiorocket.runtime.systemd import Notifier

if TYPE_CHECKING:
    from aiorocket.spark.steps.continuous import Continuous, Plan
    from aiorocket.spark.steps.report import StepReport

__all__ = ("in_a_line", "pages", "run")

_PREFIX = "aiorocket_lake"


@click.command()
@click.argument("file", metavar="PIPELINE.TOML")
@lake_nameserver
@click.option("--once", is_flag=True, help="One round, for a scheduler.")
@click.option("--check", is_flag=True, help="Say whether the file is right, and run nothing.")
@html_option("The newest report of each step as one page, written anew behind each of them.")
@metrics_options
def run(file: str, name_server: str, once: bool, check: bool, metrics: tuple[str, int] | None) -> None:
    """Run a pipeline round after round: archive a topic, decode, deduplicate and count what is new.

    SIGTERM and Ctrl-C end it when the batch on the way is done. A round that fails is tried again after a while, each
    step goes on where its record ends. Exits with 1 when that cannot help, and with --once when rows were gone before
    they were archived. docs/spark.md has the file.
    """
    interrupts = Interrupts(gently=not check)
    interrupts.take()  # now: for a container's first process, a signal without a handler is none
    try:
        _checked(file, name_server, interrupts, once, check, metrics)
    except KeyboardInterrupt:
        click.echo("interrupted" if check else "interrupted in a batch; the next run does it again", err=True)
        sys.exit(INTERRUPTED)
    finally:
        interrupts.give_back()


def _checked(
    file: str, name_server: str, interrupts: Interrupts, once: bool, check: bool, metrics: tuple[str, int] | None
) -> None:
    check_extras()
    with told_in_a_line():
        from aiorocket.spark.steps.continuous import Plan

        plan = Plan.read(file)
        options = with_environment(plan.options)  # of keys one of the two says all
        plan.check(plan.nameserver or name_server, options)
        if check:
            _check_steps(plan, options, interrupts)
            click.echo(f"{file}: nothing is wrong")
            return
        notifier = Notifier()
        try:
            _run(plan, name_server, options, interrupts, notifier, once, metrics)
        finally:
            notifier.tell("STOPPING=1")


def _check_steps(plan: Plan, options: dict[str, str], interrupts: Interrupts) -> None:
    if plan.decode or plan.dedup or plan.windows:
        from aiorocket.spark.quiet_session import session_for

        click.echo("starting Spark, which is asked about schemas, expressions and columns", err=True)
        starting = session_for("aiorocket lake run --check", "local[1]", short=True)
        with interrupts.session(starting) as spark, interrupts.working():
            plan.check_steps(spark, options)


def _run(
    plan: Plan, name_server: str, options: dict[str, str], interrupts: Interrupts, notifier: Notifier, once: bool,
    metrics: tuple[str, int] | None,
) -> None:  # fmt: skip
    from aiorocket.spark import bridge
    from aiorocket.spark.quiet_session import session_for
    from aiorocket.spark.steps.continuous import Continuous

    def say(text: str) -> None:
        click.echo(text, err=True)
        notifier.tell(f"STATUS={text}")

    page = Page(f"{plan.topic} to {plan.path}", {**to_builtins(plan), "nameserver": plan.nameserver or name_server})

    def told(report: StepReport) -> None:
        try:
            page.add(report)
        except click.ClickException as error:
            say(error.message)  # the pipeline is more than its page
        if (report.rows_in and not report.details.get("up_to_date")) or not report.complete:
            say(in_a_line(report))

    if interrupts.wanted:
        say("ended before it began")
        return
    say("starting Spark")
    try:
        with interrupts.session(session_for("aiorocket lake run", plan.master, plan.spark)) as spark:
            pipeline = Continuous(spark, plan, name_server, options, stop=lambda: interrupts.wanted, told=told, say=say)
            with pages(pipeline, plan, metrics) as where:
                say(f"running {plan.topic} to {plan.path}{where}")
                notifier.tell("READY=1")
                with interrupts.working():
                    pipeline.run(once=once)
                rows = ", ".join(f"{name} {count:,}" for name, count in pipeline.health.rows.items())
                page.tell()
                lost = pipeline.health.lost
                gone = f"; INCOMPLETE: {plural(lost, 'row')} gone before they were archived" if lost else ""
                say(f"ended after {plural(pipeline.health.rounds, 'round')}; rows: {rows or 'none'}{gone}")
        if once and lost:
            sys.exit(1)
    finally:
        bridge.close()


def in_a_line(report: StepReport) -> str:
    """What a step did, for a log."""
    bad: Any = report.details.get("quarantined")
    said = [f"{report.step}: {plural(report.rows_in, 'row')} in {report.seconds:.1f} s"]
    return "; ".join([*said, *([f"{bad:,} quarantined"] if bad else []), *proof(report)])


@contextmanager
def pages(pipeline: Continuous, plan: Plan, at: tuple[str, int] | None) -> Iterator[str]:
    """``/metrics``, ``/healthz`` and ``/readyz``, in a loop of their own: the work is done in this thread."""
    if at is None:
        yield ""
        return
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST
    except ModuleNotFoundError as error:
        raise ConfigError(f"--metrics-port needs the extra metrics ({error.name} is missing)") from None
    from aiorocket.runtime.threads import loop_in_thread
    from aiorocket.telemetry.http import Page, serve_pages

    registry = CollectorRegistry()
    registry.register(_Collected(pipeline))

    async def metrics() -> Page:
        return Page(generate_latest(registry), kind=CONTENT_TYPE_LATEST)

    async def health() -> Page:
        since = pipeline.health.good_ms or pipeline.health.began_ms
        idle = (WallClock().wall_ms() - since) / 1000
        if idle <= plan.stalled:
            return Page(b"ok\n")
        text = f"no round has ended well for {idle:.0f} s: {pipeline.health.problem or 'one is on the way'}\n"
        return Page(text.encode(), HTTPStatus.SERVICE_UNAVAILABLE)

    async def ready() -> Page:
        problem = pipeline.health.problem
        return Page(b"ok\n") if problem is None else Page(f"{problem}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)

    answers = {"/metrics": metrics, "/healthz": health, "/readyz": ready}
    with loop_in_thread(serve_pages(*at, answers)) as bound:
        yield f", metrics on http://{host_port(at[0], bound)}/metrics"


class _Collected:
    """For prometheus_client, which asks for ``collect`` alone."""

    def __init__(self, pipeline: Continuous) -> None:
        self._pipeline = pipeline

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        health = self._pipeline.health
        for name, text, value in (
            ("rounds", "Rounds that ended well", health.rounds),
            ("round_failures", "Rounds that failed", health.failures),
            ("quarantined_rows", "Rows that could not be decoded", health.quarantined),
        ):
            yield CounterMetricFamily(f"{_PREFIX}_{name}", text, value=value)
        for name, text, by_step in (
            ("rows", "Rows that a step wrote", health.rows),
            ("step_seconds", "How long a step worked", health.seconds),
        ):
            counted = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=["step"])
            for step, number in dict(by_step).items():
                counted.add_metric([step], number)
            yield counted
        missing = GaugeMetricFamily(f"{_PREFIX}_missing_rows", "Rows that a step's last run lacked", labels=["step"])
        for step, number in dict(health.missing).items():
            missing.add_metric([step], number)
        yield missing
        if health.lag is not None:
            yield GaugeMetricFamily(f"{_PREFIX}_lag_messages", "Messages that are not archived", value=health.lag)
        if health.good_ms is not None:
            yield GaugeMetricFamily(
                f"{_PREFIX}_last_round_seconds", "When a round last ended well, since 1970", value=health.good_ms / 1000
            )
        yield GaugeMetricFamily(f"{_PREFIX}_ready", "Did the last round end well?", value=health.problem is None)
