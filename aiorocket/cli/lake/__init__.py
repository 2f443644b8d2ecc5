"""``aiorocket lake``: topics to archives and tables with Spark. Spark is loaded when a command runs, not before."""

from __future__ import annotations

import click

from aiorocket.cli.lake.dead_letters import replay, triage
from aiorocket.cli.lake.demo import demo
from aiorocket.cli.lake.keeping import archive, compact, restore, show, verify
from aiorocket.cli.lake.lag import lag
from aiorocket.cli.lake.looking import decode, dedup, latency, order, report, windows
from aiorocket.cli.lake.run import run

__all__ = ("lake",)


class _InOrder(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder)
def lake() -> None:
    """Archive topics, make tables of them, look at them, with Spark.

    Each command ends with a summary and with a proof by offsets that no row is missing, and goes on where an earlier
    run of it stopped. `aiorocket lake demo` shows all of it. Needs pip install 'aiorocketmq[spark,spark-jvm]'.
    """


for _command in (
    demo, archive, compact, verify, restore, show, lag, dedup, decode, windows, order, latency, report, triage, replay,
    run,
):  # fmt: skip
    lake.add_command(_command)
