"""The life of a lake command: the extra it needs, a session, progress, Ctrl-C, the report, and the exit code."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from aiorocket.cli import running
from aiorocket.cli.lake.telling import Teller, proof, summary
from aiorocket.cli.stopping import ONE_WISH
from aiorocket.cli.terminal import INTERRUPTED
from aiorocket.runtime.clock import WallClock

if TYPE_CHECKING:
    from aiorocket.spark.steps.page import Run
    from aiorocket.spark.steps.report import ProgressCall, StepReport

__all__ = ("HTML", "INSTALL", "Interrupts", "Page", "Work", "check_extras", "run_step", "told_in_a_line")

T = TypeVar("T")

#: Where the context has the path of the page that ``--html`` asks for.
HTML = "aiorocket.lake.html"
_WAITS = b"interrupted: it ends when Spark has started\n"
INSTALL = "pip install 'aiorocketmq[spark,spark-jvm]'"
_NEEDED = ("pyspark", "pyarrow", "numpy")

#: Called with a session and with what takes progress.
Work = Callable[[Any, "ProgressCall"], "StepReport"]


def check_extras(*more: str, install: str = INSTALL, what: str = "aiorocket lake") -> None:
    """A line that says what to install, when something is missing."""
    missing = [name for name in (*_NEEDED, *more) if find_spec(name) is None]
    if missing:
        raise click.ClickException(f"{what} needs {', '.join(missing)}: {install}")


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """As ``running.told_in_a_line``, with what users can act on of Spark's failures."""
    try:
        with running.told_in_a_line("AIOROCKET_CREDENTIALS_FILE=FILE"):
            yield
    except Exception as error:
        from aiorocket.spark.failures import explain, is_spark_failure

        if not is_spark_failure(error):
            raise
        raise click.ClickException(explain(error)) from error


class Interrupts:
    """SIGINT and SIGTERM end the work as KeyboardInterrupt; with ``gently`` the first one only sets ``wanted``, for
    work that looks at it. More of them within ``ONE_WISH`` seconds are the same one."""

    def __init__(self, *, gently: bool) -> None:
        self.wanted = False
        self._gently = gently
        self._starting = False
        self._broke_off = False
        self._last = -inf
        self._before: dict[int, Any] = {}
        self._level = logging.getLogger("py4j").level

    def take(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._on_signal)
            self._before.setdefault(number, before)

    def give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        logging.getLogger().removeFilter(_quiet)
        logging.getLogger("py4j").setLevel(self._level)

    @contextmanager
    def session(self, session: AbstractContextManager[T]) -> Iterator[T]:
        """``session``; a first signal while it starts takes effect when it has. A JVM for which pyspark does not wait
        until it has said where it listens goes on for ever: the folder to say it in is gone, what listens is not."""
        self._starting = True
        try:
            with session as spark:
                self.take()  # pyspark has put a handler of its own there
                self._starting = False
                if self.wanted and not self._gently:
                    self._break_off()
                yield spark
        finally:
            self._starting = False

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around the work. A call into the JVM that is broken off leaves others, on the way out, without an answer:
        what they raise is the interrupt all the same."""
        try:
            yield
        except Exception:
            if not self._broke_off:
                raise
            raise KeyboardInterrupt from None
        if self._broke_off:  # ``follow`` takes it for its end, but there is no stopping Spark in good order any more
            raise KeyboardInterrupt

    def _on_signal(self, number: int, _frame: object) -> None:
        now = perf_counter()
        same, self._last = now - self._last < ONE_WISH, now
        if same:
            return
        first, self.wanted = not self.wanted, True
        if first and self._starting:
            os.write(2, _WAITS)  # 20 s of silence ask for a second Ctrl-C; what is buffered is not for a handler
        if not (first and (self._gently or self._starting)):
            self._break_off()

    def _break_off(self) -> NoReturn:
        self._broke_off = True
        # py4j logs the interrupted call with its trace, and what goes wrong with its sockets.
        logging.getLogger().addFilter(_quiet)
        logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
        raise KeyboardInterrupt


def _quiet(record: logging.LogRecord) -> bool:
    said = record.getMessage()
    return "KeyboardInterrupt" not in said and not said.startswith("Exception while sending command")


def run_step(
    work: Callable[[Any, ProgressCall, Interrupts], StepReport],
    *,
    master: str,
    conf: Mapping[str, str],
    as_json: bool,
    look: Callable[[], object] = lambda: None,
    gently: bool = False,
    goes_on: str = "the next run goes on where this one stopped",
    fails: Callable[[StepReport], bool] = lambda report: False,
) -> None:
    """Run ``work`` with a session and end the process: 0 done, 1 rows are missing or ``fails`` says so, 130
    interrupted. ``look`` is called before Spark starts, for what is wrong by then: that takes seconds. ``gently``:
    ``work`` looks at ``Interrupts.wanted`` by itself."""
    check_extras()
    interrupts = Interrupts(gently=gently)
    teller = Teller()
    interrupts.take()
    try:
        with told_in_a_line(), teller:
            from aiorocket.spark import bridge
            from aiorocket.spark.quiet_session import session_for
            from aiorocket.spark.steps import ClaimStoppedError

            try:
                look()
            finally:
                bridge.close()  # its thread, as Java is started by a fork
            teller.note("starting Spark")
            with interrupts.session(session_for("aiorocket lake", master, conf)) as spark:
                teller.note("")
                try:
                    with interrupts.working():
                        report = work(spark, teller.progress, interrupts)
                except ClaimStoppedError:
                    raise KeyboardInterrupt from None
    except KeyboardInterrupt:
        click.echo(f"interrupted; {goes_on}", err=True)
        sys.exit(INTERRUPTED)
    finally:
        interrupts.give_back()
    if as_json:
        click.echo(json.dumps(_plain(report.as_dict()), ensure_ascii=False))
    else:
        summary(report)
    page = Page(report.step, click.get_current_context().params)
    page.add(report)
    page.tell()
    sys.exit(1 if not report.complete or fails(report) else 0)


class Page:
    """The file that ``--html`` asks for, if it does: made anew with each run of a step, of the newest run of each that
    had something to do. ClickException where it cannot be written."""

    def __init__(self, title: str, configuration: Mapping[str, object]) -> None:
        self.path: str | None = click.get_current_context().meta.get(HTML)
        self._title, self._configuration = title, configuration
        self._runs: dict[str, Run] = {}
        self._written = False

    def add(self, report: StepReport, lines: Sequence[str] | None = None, *, good: bool = True) -> None:
        """``lines`` in place of the proof, which is ``good`` or not, whatever is missing."""
        nothing = report.complete and (not report.rows_in or report.details.get("up_to_date"))
        if self.path is None or (nothing and report.step in self._runs):
            return
        from aiorocket.spark.steps.page import Run, page_of_runs

        made = datetime.fromtimestamp(WallClock().wall_ms() / 1000, UTC)
        self._runs[report.step] = Run(report, made, proof(report) if lines is None else lines, good)
        text = page_of_runs(self._title, [*self._runs.values()], self._configuration)
        self._written = False
        try:
            with open(self.path, "w", encoding="utf-8") as file:
                file.write(text)
            self._written = True
        except OSError as error:
            raise click.ClickException(f"--html {self.path}: {error.strerror}") from error

    def tell(self) -> None:
        """Says where the page is, unless it is not there or not of the newest run."""
        if self._written:
            click.echo(f"report: {self.path}", err=True)


def _plain(report: dict[str, Any]) -> dict[str, Any]:
    """Tables for people are named tuples: as objects their columns have names."""
    tables = report["details"].get("tables")
    if tables:
        report["details"]["tables"] = {
            name: [dict(zip(each.columns, row, strict=True)) for row in each.rows] for name, each in tables.items()
        }
    return report
